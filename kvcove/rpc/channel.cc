// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/channel.h"

#include <sys/socket.h>

#include <algorithm>
#include <span>

#include "kvcove/base/interrupt.h"
#include "kvcove/rpc/busy.h"
#include "kvcove/rpc/gate.h"

namespace kvcove::rpc {

Result<Client> TcpChannel::Take(const Address& to, std::int64_t deadline_ns, bool& fresh) {
  std::vector<Idle> old;  // closed without the lock
  {
    const MutexLock lock(mutex_);
    while (!idle_.empty()) {
      Idle last = std::move(idle_.back());
      idle_.pop_back();
      if (last.to == to) {
        fresh = false;
        return std::move(last.client);
      }
      old.push_back(std::move(last));
    }
  }
  fresh = true;
  return Client::Connect(to, access_, deadline_ns);
}

// The leader is read under the lock: each call in `busy_` began before, so no call at a later
// leader is ended.
void TcpChannel::AbandonOthers() {
  const MutexLock lock(mutex_);
  if (busy_.empty()) return;
  const Address now = finder_.Current();
  for (const Busy& busy : busy_) {
    if (busy.to != now) shutdown(busy.fd, SHUT_RDWR);
  }
}

Result<std::string> TcpChannel::CallOver(Client& client, const Address& to, wire::Method method,
                                         std::span<const std::byte> body,
                                         std::int64_t deadline_ns) {
  if (!finder_.addresses().several()) return client.Call(method, body, deadline_ns);
  // The client closes its descriptor only in its call's end, so this copy is what is shut down.
  const UniqueFd copy(dup(client.fd()));
  {
    const MutexLock lock(mutex_);
    busy_.push_back({.to = to, .fd = copy.get()});
  }
  Result<std::string> reply = client.Call(method, body, deadline_ns);
  const MutexLock lock(mutex_);
  std::erase_if(busy_, [&](const Busy& busy) { return busy.fd == copy.get(); });
  return reply;
}

Result<std::string> TcpChannel::CallAt(const Address& to, wire::Method method,
                                       std::span<const std::byte> body, std::int64_t deadline_ns) {
  while (true) {
    bool fresh = false;
    KVCOVE_ASSIGN(Client client, Take(to, deadline_ns, fresh));
    Result<std::string> reply = CallOver(client, to, method, body, deadline_ns);
    if (client.usable()) {
      // A server that is busy does not read this connection for a while (rpc/busy.h), and another
      // caller would take its silence for death.
      if (!reply && BusyIn(reply.error())) return reply;
      const MutexLock lock(mutex_);
      if (idle_.size() < kMaxIdle) idle_.push_back({.to = to, .client = std::move(client)});
      return reply;
    }
    // A kept connection may have ended unnoticed, with a server that has been started again since,
    // or with the token that it was let in with. Every call may be repeated: those that change
    // something carry an id or name their outcome.
    const bool ended =
        !reply && (reply.error().code == Code::kUnavailable || IsSayHelloFirst(reply.error()));
    if (fresh || !ended) return reply;
    if (finder_.Current() != to) return reply;  // others have found it silent
  }
}

Result<std::string> TcpChannel::Call(wire::Method method, std::span<const std::byte> body,
                                     std::int64_t deadline_ns) {
  const std::size_t tries = 2 * finder_.addresses().list().size();
  // A source may name another leader without any call's end.
  if (finder_.addresses().source() != nullptr) AbandonOthers();
  for (std::size_t i = 1;; ++i) {
    const Address to = finder_.Current();
    const std::int64_t began_ns = SystemClock::Instance().NowNs();
    Result<std::string> reply = CallAt(to, method, body, deadline_ns);
    if (reply || !finder_.addresses().several()) return reply;
    // Its caller ended it: how long it waited says nothing about the master.
    if (Interrupt::Ended()) return reply;
    const std::int64_t now_ns = SystemClock::Instance().NowNs();
    if (finder_.Note(to, reply.error(), now_ns - began_ns)) AbandonOthers();
    const bool elsewhere = finder_.Current() != to;
    if (LeaderIn(reply.error())) reply.error().answered = false;
    if (!elsewhere || now_ns >= deadline_ns || i >= tries) return reply;
  }
}

}  // namespace kvcove::rpc
