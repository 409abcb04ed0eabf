// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/verbs/fabric.h"

#include <fmt/core.h>

#include <algorithm>
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

// Returns the first ports that work, now: a fabric keeps its ports for as long as it lives, so one
// that is down would leave a host with another port on TCP.
Result<std::vector<std::shared_ptr<Device>>> OpenFirst(Verbs& verbs,
                                                       const std::vector<PortName>& ports,
                                                       std::size_t most) {
  std::vector<std::shared_ptr<Device>> devices;
  std::string reasons;
  for (const PortName& port : ports) {
    if (devices.size() == most) break;
    auto device = Device::Open(verbs, port);
    Error error;
    if (device) {
      const auto way = (*device)->Way();
      if (way) {
        devices.push_back(std::move(*device));
        continue;
      }
      error = way.error();
    } else {
      error = device.error();
    }
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", port.ToString(), error.detail);
  }
  if (!devices.empty()) return devices;
  return Fail(Code::kUnavailable, reasons.empty() ? "this host has no RDMA device" : reasons);
}

}  // namespace

// One range of registered memory, as each port knows it.
class Fabric::Registration final : public Registered {
 public:
  Registration(Fabric& fabric, const std::byte* begin,
               std::vector<std::shared_ptr<Memory>> memories, Access access)
      : fabric_(fabric), begin_(begin), memories_(std::move(memories)), access_(access) {}
  // No Cover() finds the memory any more before its registrations end.
  ~Registration() override {
    if (fabric_.Forked()) {
      (void)new auto(std::move(memories_));  // NOLINT: never freed
      return;
    }
    {
      const MutexLock lock(fabric_.mutex_);
      for (std::size_t port = 0; port < memories_.size(); ++port) {
        Memories& memories = fabric_.Of(access_)[port];
        auto [at, end] = memories.equal_range(begin_);
        while (at != end && at->second != memories_[port]) ++at;
        if (at != end) memories.erase(at);
      }
    }
    for (std::size_t port = 0; port < memories_.size(); ++port) {
      if (const Status status = memories_[port]->Deregister(); !status) {
        LogError("{} does not end a registration of memory, which stays locked: {}",
                 fabric_.device(port).name().ToString(), status.error().ToString());
      }
    }
  }
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

 private:
  Fabric& fabric_;
  const std::byte* const begin_;
  std::vector<std::shared_ptr<Memory>> memories_;
  const Access access_;
};

Result<std::unique_ptr<Fabric>> Fabric::Open(Verbs& verbs, const FabricOptions& options,
                                             const Clock& clock) {
  std::vector<PortName> ports = options.ports;
  if (ports.empty()) {
    KVCOVE_ASSIGN(ports, PortsOf(verbs));
  }
  const std::size_t most = std::clamp<std::size_t>(options.most_ports, 1, kMostPorts);
  KVCOVE_ASSIGN(auto devices, OpenFirst(verbs, ports, most));
  KVCOVE_ASSIGN(auto reaper, Reaper::Start(options.reaper, clock));
  std::unique_ptr<Fabric> fabric(new Fabric(std::move(devices), std::move(reaper), options));
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
  (void)new auto(std::move(devices_));  // NOLINT
}

std::string Fabric::Names() const {
  std::string names;
  for (const auto& device : devices_) {
    names += (names.empty() ? "" : ", ") + device->name().ToString();
  }
  return names;
}

bool Fabric::DeviceGone() {
  bool gone = false;
  for (const auto& device : devices_) gone = device->LookGone() || gone;
  return gone;
}

bool Fabric::gone() const {
  return std::ranges::any_of(devices_, [](const auto& device) { return device->gone(); });
}

Result<std::unique_ptr<Lane>> Fabric::OpenLane(Access peer_may, std::size_t port) {
  Device& device = *devices_[port];
  KVCOVE_ASSIGN(const Route route, device.Way());
  LaneOptions options;
  options.route = route;
  options.route.service_level = service_level_;
  options.route.traffic_class = traffic_class_;
  options.peer_may = peer_may;
  // Not a counter: late packets of an earlier queue pair with the same number must not fit.
  return Lane::Open(device.context(), options, static_cast<std::uint32_t>(RandomU64()));
}

Result<std::unique_ptr<Registered>> Fabric::Register(std::span<std::byte> memory, Access access,
                                                     const std::function<bool()>& go_on) {
  std::vector<std::shared_ptr<Memory>> all;
  const auto end = [](const std::vector<std::shared_ptr<Memory>>& memories) {
    for (const auto& one : memories) (void)one->Deregister();
  };
  for (const auto& device : devices_) {
    Memory& one = *all.emplace_back(
        std::make_shared<Memory>(device->context(), memory, access, piece_bytes_));
    while (true) {
      const auto over = one.RegisterNext();
      if (!over) {
        end(all);
        return std::unexpected(over.error());
      }
      if (*over) break;
      if (!go_on()) {
        // Without room in the queue it ends here, with the last reference.
        (void)workers_->Post([all = std::move(all), end] { end(all); });
        return Fail(Code::kUnavailable, "the registration was given up");
      }
    }
  }
  {
    // All under one lock: ports whose lists differ would cut payload at different places.
    const MutexLock lock(mutex_);
    for (std::size_t port = 0; port < all.size(); ++port) {
      Of(access)[port].emplace(memory.data(), all[port]);
    }
  }
  return std::make_unique<Registration>(*this, memory.data(), std::move(all), access);
}

bool Fabric::exposes() const {
  const MutexLock lock(mutex_);
  return !exposed_.front().empty();
}

bool Fabric::Cover(const std::byte* data, std::uint64_t bytes, Access access,
                   std::vector<Keyed>& parts, std::size_t port) const {
  const MutexLock lock(mutex_);
  const Memories& memories = (access == Access::kLocal ? own_ : exposed_)[port];
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
