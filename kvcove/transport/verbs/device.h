// SPDX-License-Identifier: Apache-2.0
// One RDMA port of this host, open for lanes: which GID they use, and whether it works now.
//
// No thread watches the device. Its reports wait until Way() is called for the next lane; lanes
// that are open find out by their completions, or by their deadlines.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/transport/verbs/verbs_api.h"

namespace kvcove::transport::verbs {

// A port as an operator names it.
struct PortName {
  std::string device;
  std::uint8_t port = 1;
  std::optional<std::uint8_t> gid_index;  // nothing: the device chooses (BestGid)
  bool operator==(const PortName&) const = default;
  // Returns "mlx5_0:2/3".
  std::string ToString() const;
};

// Reads "mlx5_0", "mlx5_0:2" (its second port) or "mlx5_0:2/3" (GID 3 of that). Errors: kInvalid.
Result<PortName> ParsePortName(std::string_view text);
// Reads such names with commas between. Errors: kInvalid, also for a port that is named twice.
Result<std::vector<PortName>> ParsePortNames(std::string_view text);

// Returns the index of the GID that reaches most hosts: RoCE v2 before v1, then a global address
// before a link-local one, then the lowest index. Nothing: no entry is used.
std::optional<std::uint8_t> BestGid(const std::vector<GidEntry>& table);

// Thread-safe.
class Device {
 public:
  // Errors: kUnavailable for a device that is not there; the context's. A port that is down is
  // none: it may come up later.
  static Result<std::shared_ptr<Device>> Open(Verbs& verbs, const PortName& name);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const PortName& name() const { return name_; }
  const std::shared_ptr<Context>& context() const { return context_; }
  // Returns how a new lane leaves this host. Errors: kUnavailable while the port is down, has no
  // GID, or once the device is gone.
  Result<Route> Way();
  // Returns whether the device has reported its end. It stays so: a device that returns is another.
  bool gone() const { return gone_.load(std::memory_order_relaxed); }
  // The same, behind a look for what the device has reported meanwhile.
  bool LookGone() {
    TakeEvents();
    return gone();
  }

 private:
  Device(PortName name, std::shared_ptr<Context> context)
      : name_(std::move(name)), context_(std::move(context)) {}
  void TakeEvents();
  Result<std::uint8_t> ChooseGid(const PortState& port) const;

  const PortName name_;
  const std::shared_ptr<Context> context_;
  // All are only caches of what the context says: no order between them is needed.
  std::atomic<bool> gone_{false};
  std::atomic<std::uint32_t> changes_{1};  // of the port
  // The index that was chosen, in the low 8 bits, and `changes_` at that time above it. So an index
  // that another thread chose before a change, and stores behind it, does not count.
  std::atomic<std::uint64_t> gid_{0};
};

}  // namespace kvcove::transport::verbs
