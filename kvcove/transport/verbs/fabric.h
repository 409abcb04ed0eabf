// SPDX-License-Identifier: Apache-2.0
// RDMA as one process has it: a device, the memory that the device knows, the reaper of its lanes,
// and threads (kvcove-worker) for what waits.
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
  // The first port that works is used. Empty: those of the host's devices, in their order.
  std::vector<PortName> ports;
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
  // Errors: kUnavailable where no port works, with the reason of each; those of Reaper::Start.
  static Result<std::unique_ptr<Fabric>> Open(Verbs& verbs, const FabricOptions& options,
                                              const Clock& clock);
  ~Fabric();
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;

  const Device& device() const { return *device_; }
  // Returns whether the device was removed or has failed, as it reports by now.
  bool DeviceGone() { return device_->LookGone(); }
  Reaper& reaper() { return *reaper_; }
  // One thread, for work that waits for the device: a registration, an owner's end of a lane.
  rpc::Workers& workers() { return *workers_; }
  // For work that waits for other processes. Their owners answer by their workers(), so
  // two processes that connect to each other would wait in a circle on one thread for both.
  rpc::Workers& connectors() { return *connectors_; }
  // Makes a fresh lane. Errors: Device::Way's and Lane::Open's.
  Result<std::unique_ptr<Lane>> OpenLane(Access peer_may);

  // Registers memory until the returned object is destroyed, which the device may refuse: then the
  // registration remains, and the object's memory must not be unmapped before the process ends.
  // `go_on` is asked between pieces; false: the rest is not registered (kUnavailable), and what is
  // ends in the background, since its caller is in a hurry. Pins some GiB a second, and unpins them
  // no faster. Errors: Context::Register's.
  Result<std::unique_ptr<Registered>> Register(
      std::span<std::byte> memory, Access access,
      const std::function<bool()>& go_on = [] { return true; });
  // Returns whether any memory is registered for peers.
  bool exposes() const;
  // Appends the registered parts of [data, data + bytes) to `parts`, in order. False, with nothing
  // appended: some of it is not registered for this access.
  bool Cover(const std::byte* data, std::uint64_t bytes, Access access,
             std::vector<Keyed>& parts) const;

 private:
  class Registration;
  using Memories = std::multimap<const std::byte*, std::shared_ptr<Memory>>;  // by their beginning

  Fabric(std::shared_ptr<Device> device, std::unique_ptr<Reaper> reaper,
         const FabricOptions& options)
      : forks_(ForkCount()),
        device_(std::move(device)),
        piece_bytes_(options.piece_bytes),
        service_level_(options.service_level),
        traffic_class_(options.traffic_class),
        reaper_(std::move(reaper)) {}
  bool Forked() const { return forks_ != ForkCount(); }
  Memories& Of(Access access) KVCOVE_REQUIRES(mutex_) {
    return access == Access::kLocal ? own_ : exposed_;
  }

  const unsigned forks_;
  std::shared_ptr<Device> device_;
  const std::uint64_t piece_bytes_;
  const std::uint8_t service_level_;
  const std::uint8_t traffic_class_;
  mutable Mutex mutex_;
  Memories own_ KVCOVE_GUARDED_BY(mutex_);
  Memories exposed_ KVCOVE_GUARDED_BY(mutex_);
  std::unique_ptr<Reaper> reaper_;  // ends behind the workers, which give it lanes
  std::unique_ptr<rpc::Workers> workers_ = std::make_unique<rpc::Workers>(1);
  std::unique_ptr<rpc::Workers> connectors_ = std::make_unique<rpc::Workers>(1);
};

}  // namespace kvcove::transport::verbs
