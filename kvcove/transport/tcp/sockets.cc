// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/tcp/sockets.h"

#include <poll.h>

#include <cerrno>
#include <vector>

#include "kvcove/base/interrupt.h"
#include "kvcove/base/log.h"
#include "kvcove/transport/tcp/peer.h"
#include "kvcove/transport/tcp/server.h"
#include "kvcove/transport/tcp/transfer.h"

namespace kvcove::transport::tcp {
namespace {

// poll() waits for any of its transfers.
class SocketTransport final : public Transport {
 public:
  explicit SocketTransport(const LaneOptions& lanes) : lanes_(lanes) {}
  std::string_view name() const override { return lanes_.fabric == nullptr ? "tcp" : "verbs"; }
  std::shared_ptr<transport::Peer> Connect(const rpc::Address& address, const PeerOptions& options,
                                           const Clock& clock) override {
    return std::make_shared<Peer>(address, options.access, clock, options.on_doubt,
                                  FabricFor(options.access.tls != nullptr), this);
  }
  Result<std::unique_ptr<transport::Server>> Serve(const ServerOptions& options, rpc::Gate& gate,
                                                   Service& service, const Clock& clock) override {
    return Server::Open(options, gate, service, clock, FabricFor(options.tls != nullptr));
  }
  // Memory that the device does not take moves over the sockets, as it would without the device.
  Result<std::unique_ptr<Registered>> Register(std::span<std::byte> memory) override {
    if (lanes_.fabric == nullptr) return std::unique_ptr<Registered>();
    auto registered = lanes_.fabric->Register(memory, verbs::Access::kRemote);
    if (registered) return registered;
    LogWarn("payload of {} bytes moves by TCP, since the RDMA device does not register them: {}",
            memory.size(), registered.error().ToString());
    return std::unique_ptr<Registered>();
  }
  void Wait(std::span<Transfer* const> transfers, std::int64_t most_ns) override {
    std::vector<pollfd> waits;
    waits.reserve(transfers.size());
    for (Transfer* transfer : transfers) {
      if (!static_cast<SocketTransfer&>(*transfer).AddWaits(waits)) return;
    }
    const timespec limit{.tv_sec = most_ns / kSecond, .tv_nsec = most_ns % kSecond};
    const int ready = ppoll(waits.data(), waits.size(), &limit, nullptr);
    if (ready < 0 && errno == EINTR) Interrupt::LookNow();
  }

 private:
  verbs::Fabric* FabricFor(bool tls) const {
    return tls && !lanes_.trusted ? nullptr : lanes_.fabric;
  }

  const LaneOptions lanes_;
};

}  // namespace

Transport& Sockets() {
  static SocketTransport sockets{LaneOptions{}};
  return sockets;
}

std::unique_ptr<Transport> MakeSockets(const LaneOptions& lanes) {
  return std::make_unique<SocketTransport>(lanes);
}

}  // namespace kvcove::transport::tcp
