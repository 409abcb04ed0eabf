// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/channel.h"

#include <span>

namespace kvcove::rpc {

Result<Client> TcpChannel::Take(std::int64_t deadline_ns, bool& fresh) {
  {
    const MutexLock lock(mutex_);
    if (!idle_.empty()) {
      fresh = false;
      Client client = std::move(idle_.back());
      idle_.pop_back();
      return client;
    }
  }
  fresh = true;
  return Client::Connect(address_, access_, deadline_ns);
}

Result<std::string> TcpChannel::Call(wire::Method method, std::span<const std::byte> body,
                                     std::int64_t deadline_ns) {
  while (true) {
    bool fresh = false;
    KVCOVE_ASSIGN(Client client, Take(deadline_ns, fresh));
    Result<std::string> reply = client.Call(method, body, deadline_ns);
    if (client.usable()) {
      const MutexLock lock(mutex_);
      if (idle_.size() < kMaxIdle) idle_.push_back(std::move(client));
      return reply;
    }
    // A kept connection may have ended unnoticed, with a server that has been started again since.
    // Every call may be repeated: those that change something carry an id or name their outcome.
    if (fresh || reply || reply.error().code != Code::kUnavailable) return reply;
  }
}

}  // namespace kvcove::rpc
