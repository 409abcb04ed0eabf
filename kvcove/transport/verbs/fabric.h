// SPDX-License-Identifier: Apache-2.0
// RDMA as one process has it: a device or several, the memory that each of them knows, the reaper
// of their lanes, and threads (kvcove-worker) for what waits.
//
// Locks. One mutex guards the list of registered memory. Cover() takes it, so it is held for no
// call of the device.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/mutex.h"
#include "kvcove/base/posix.h"
#include "kvcove/rpc/workers.h"
#include "kvcove/transport/endpoint.h"
#include "kvcove/transport/verbs/device.h"
#include "kvcove/transport/verbs/lane.h"
#include "kvcove/transport/verbs/memory.h"
#include "kvcove/transport/verbs/reaper.h"

namespace kvcove::transport::verbs {

struct FabricOptions {
  // The first ports that work are used, so many. Empty: those of the host's devices, in their
  // order.
  std::vector<PortName> ports;
  std::size_t most_ports = 1;
  ReaperOptions reaper;
  std::uint64_t piece_bytes = Memory::kPieceBytes;  // of one registration
  // Of all packets that this side's lanes send (Route).
  std::uint8_t service_level = 0;
  std::uint8_t traffic_class = 0;
};

// Thread-safe. Outlives its lanes and registrations, and all that `on_quiet` of its reaper holds.
// A forked child has copies of all these, whose device objects are the parent's: it leaks them.
class Fabric {
 public:
  // Each registers all memory, so that payload may take any of them.
  static constexpr std::size_t kMostPorts = 4;

  // Errors: kUnavailable where no port works, with the reason of each; those of Reaper::Start.
  static Result<std::unique_ptr<Fabric>> Open(Verbs& verbs, const FabricOptions& options,
                                              const Clock& clock);
  ~Fabric();
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;

  std::size_t ports() const { return devices_.size(); }
  // Returns "mlx5_0:1, mlx5_1:1".
  std::string Names() const;
  const Device& device(std::size_t port = 0) const { return *devices_[port]; }
  // Returns whether a device was removed or has failed, as they report by now.
  bool DeviceGone();
  // The same, of what was looked at before.
  bool gone() const;
  Reaper& reaper() { return *reaper_; }
  // One thread, for work that waits for the device: a registration, an owner's end of a lane.
  rpc::Workers& workers() { return *workers_; }
  // For work that waits for other processes. Their owners answer by their workers(), so
  // two processes that connect to each other would wait in a circle on one thread for both.
  rpc::Workers& connectors() { return *connectors_; }
  // Makes a fresh lane by a port, below ports(). Errors: Device::Way's and Lane::Open's.
  Result<std::unique_ptr<Lane>> OpenLane(Access peer_may, std::size_t port = 0);

  // Registers memory with each port until the returned object is destroyed, which the device may
  // refuse: then the registration remains, and the object's memory must not be unmapped before the
  // process ends. `go_on` is asked between pieces; false: the rest is not registered
  // (kUnavailable), and what is ends in the background, since its caller is in a hurry. Pins some
  // GiB a second, and unpins them no faster. Errors: Context::Register's.
  Result<std::unique_ptr<Registered>> Register(
      std::span<std::byte> memory, Access access,
      const std::function<bool()>& go_on = [] { return true; });
  // Returns whether any memory is registered for peers.
  bool exposes() const;
  // Appends the registered parts of [data, data + bytes) to `parts`, in order, with a port's keys.
  // The parts themselves are the same for all ports. False, with nothing appended: some of it is
  // not registered for this access.
  bool Cover(const std::byte* data, std::uint64_t bytes, Access access, std::vector<Keyed>& parts,
             std::size_t port = 0) const;

 private:
  class Registration;
  using Memories = std::multimap<const std::byte*, std::shared_ptr<Memory>>;  // by their beginning

  Fabric(std::vector<std::shared_ptr<Device>> devices, std::unique_ptr<Reaper> reaper,
         const FabricOptions& options)
      : forks_(ForkCount()),
        devices_(std::move(devices)),
        piece_bytes_(options.piece_bytes),
        service_level_(options.service_level),
        traffic_class_(options.traffic_class),
        own_(devices_.size()),
        exposed_(devices_.size()),
        reaper_(std::move(reaper)) {}
  bool Forked() const { return forks_ != ForkCount(); }
  std::vector<Memories>& Of(Access access) KVCOVE_REQUIRES(mutex_) {
    return access == Access::kLocal ? own_ : exposed_;
  }

  const unsigned forks_;
  std::vector<std::shared_ptr<Device>> devices_;
  const std::uint64_t piece_bytes_;
  const std::uint8_t service_level_;
  const std::uint8_t traffic_class_;
  mutable Mutex mutex_;
  std::vector<Memories> own_ KVCOVE_GUARDED_BY(mutex_);  // by port; each has the same ranges
  std::vector<Memories> exposed_ KVCOVE_GUARDED_BY(mutex_);
  std::unique_ptr<Reaper> reaper_;  // ends behind the workers, which give it lanes
  std::unique_ptr<rpc::Workers> workers_ = std::make_unique<rpc::Workers>(1);
  std::unique_ptr<rpc::Workers> connectors_ = std::make_unique<rpc::Workers>(1);
};

}  // namespace kvcove::transport::verbs
