// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/verbs/fabric.h"

#include <fmt/core.h>

#include <string>
#include <utility>

#include "kvcove/base/log.h"
#include "kvcove/base/random.h"

namespace kvcove::transport::verbs {
namespace {

Result<std::vector<PortName>> PortsOf(Verbs& verbs) {
  KVCOVE_ASSIGN(const std::vector<std::string> devices, verbs.Devices());
  std::vector<PortName> ports;
  for (const std::string& device : devices) ports.push_back({.device = device});
  return ports;
}

// Returns the first port that works, now: a fabric keeps its port for as long as it lives, so one
// that is down would leave a host with a second port on TCP.
Result<std::shared_ptr<Device>> OpenFirst(Verbs& verbs, const std::vector<PortName>& ports) {
  std::string reasons;
  for (const PortName& port : ports) {
    auto device = Device::Open(verbs, port);
    Error error;
    if (device) {
      const auto way = (*device)->Way();
      if (way) return device;
      error = way.error();
    } else {
      error = device.error();
    }
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", port.ToString(), error.detail);
  }
  return Fail(Code::kUnavailable, reasons.empty() ? "this host has no RDMA device" : reasons);
}

}  // namespace

// One range of registered memory.
class Fabric::Registration final : public Registered {
 public:
  Registration(Fabric& fabric, const std::byte* begin, std::shared_ptr<Memory> memory,
               Access access)
      : fabric_(fabric), begin_(begin), memory_(std::move(memory)), access_(access) {}
  // No Cover() finds the memory any more before its registrations end.
  ~Registration() override {
    if (fabric_.Forked()) {
      (void)new std::shared_ptr<Memory>(memory_);  // NOLINT: never freed
      return;
    }
    {
      const MutexLock lock(fabric_.mutex_);
      Memories& memories = fabric_.Of(access_);
      auto [at, end] = memories.equal_range(begin_);
      while (at != end && at->second != memory_) ++at;
      if (at != end) memories.erase(at);
    }
    if (const Status status = memory_->Deregister(); !status) {
      LogError("{} does not end a registration of memory, which stays locked: {}",
               fabric_.device().name().ToString(), status.error().ToString());
    }
  }
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

 private:
  Fabric& fabric_;
  const std::byte* const begin_;
  const std::shared_ptr<Memory> memory_;
  const Access access_;
};

Result<std::unique_ptr<Fabric>> Fabric::Open(Verbs& verbs, const FabricOptions& options,
                                             const Clock& clock) {
  std::vector<PortName> ports = options.ports;
  if (ports.empty()) {
    KVCOVE_ASSIGN(ports, PortsOf(verbs));
  }
  KVCOVE_ASSIGN(auto device, OpenFirst(verbs, ports));
  KVCOVE_ASSIGN(auto reaper, Reaper::Start(options.reaper, clock));
  std::unique_ptr<Fabric> fabric(new Fabric(std::move(device), std::move(reaper), options));
  KVCOVE_TRY(fabric->workers_->Start());
  KVCOVE_TRY(fabric->connectors_->Start());
  return fabric;
}

Fabric::~Fabric() {
  if (!Forked()) return;
  // The device would end the parent's objects, and the threads that could be joined are the
  // parent's.
  (void)connectors_.release();
  (void)workers_.release();
  (void)reaper_.release();
  (void)new auto(std::move(own_));      // NOLINT: never freed
  (void)new auto(std::move(exposed_));  // NOLINT
  (void)new auto(std::move(device_));   // NOLINT
}

Result<std::unique_ptr<Lane>> Fabric::OpenLane(Access peer_may) {
  KVCOVE_ASSIGN(const Route route, device_->Way());
  LaneOptions options;
  options.route = route;
  options.route.service_level = service_level_;
  options.route.traffic_class = traffic_class_;
  options.peer_may = peer_may;
  // Not a counter: late packets of an earlier queue pair with the same number must not fit.
  return Lane::Open(device_->context(), options, static_cast<std::uint32_t>(RandomU64()));
}

Result<std::unique_ptr<Registered>> Fabric::Register(std::span<std::byte> memory, Access access,
                                                     const std::function<bool()>& go_on) {
  auto registered = std::make_shared<Memory>(device_->context(), memory, access, piece_bytes_);
  while (true) {
    const auto over = registered->RegisterNext();
    if (!over) {
      (void)registered->Deregister();
      return std::unexpected(over.error());
    }
    if (*over) break;
    if (!go_on()) {
      // Without room in the queue it ends here, with the last reference.
      (void)workers_->Post([registered] { (void)registered->Deregister(); });
      return Fail(Code::kUnavailable, "the registration was given up");
    }
  }
  {
    const MutexLock lock(mutex_);
    Of(access).emplace(memory.data(), registered);
  }
  return std::make_unique<Registration>(*this, memory.data(), std::move(registered), access);
}

bool Fabric::exposes() const {
  const MutexLock lock(mutex_);
  return !exposed_.empty();
}

bool Fabric::Cover(const std::byte* data, std::uint64_t bytes, Access access,
                   std::vector<Keyed>& parts) const {
  const MutexLock lock(mutex_);
  const Memories& memories = access == Access::kLocal ? own_ : exposed_;
  // The mutex is held over Memory::Cover(), which must not run beside Deregister(): ~Registration
  // takes the memory off this list first, under the same mutex.
  // Registrations may overlap, so one that begins earlier may reach further.
  for (auto at = memories.upper_bound(data); at != memories.begin();) {
    --at;
    if (at->second->Cover(data, bytes, parts)) return true;
  }
  return false;
}

}  // namespace kvcove::transport::verbs
