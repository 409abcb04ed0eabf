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

// The current address is read under the lock: each call in `busy_` was added before that, so a call
// to a leader that is named later is not in the list and cannot be ended by mistake.
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
  // The client closes its own descriptor at the end of the call, and the kernel may give the number
  // to another file at once. So AbandonOthers shuts down this copy, which is open as long as it is
  // in `busy_`.
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
      // Not kept: a busy server does not read this connection for a while (rpc/busy.h), and another
      // caller that got it would take the silence for a dead server.
      if (!reply && BusyIn(reply.error())) return reply;
      const MutexLock lock(mutex_);
      if (idle_.size() < kMaxIdle) idle_.push_back({.to = to, .client = std::move(client)});
      return reply;
    }
    // A kept connection may have ended unnoticed: the server was restarted since, or the token was
    // removed with which the connection was let in. Every call may be repeated: one that changes
    // something carries an id, or is answered with the state that it asked for.
    const bool ended =
        !reply && (reply.error().code == Code::kUnavailable || IsSayHelloFirst(reply.error()));
    if (fresh || !ended) return reply;
    if (finder_.Current() != to) return reply;  // AbandonOthers may have ended it
  }
}

Result<std::string> TcpChannel::Call(wire::Method method, std::span<const std::byte> body,
                                     std::int64_t deadline_ns) {
  const std::size_t tries = 2 * finder_.addresses().list().size();
  // A source may name another leader although no call has ended: the calls that still wait at the
  // old one are ended by the next call.
  if (finder_.addresses().source() != nullptr) AbandonOthers();
  for (std::size_t i = 1;; ++i) {
    const Address to = finder_.Current();
    const std::int64_t began_ns = SystemClock::Instance().NowNs();
    Result<std::string> reply = CallAt(to, method, body, deadline_ns);
    if (reply || !finder_.addresses().several()) return reply;
    // The caller has interrupted the call, so its duration says nothing about the master.
    if (Interrupt::Ended()) return reply;
    const std::int64_t now_ns = SystemClock::Instance().NowNs();
    if (finder_.Note(to, reply.error(), now_ns - began_ns)) AbandonOthers();
    const bool elsewhere = finder_.Current() != to;
    if (LeaderIn(reply.error())) reply.error().answered = false;
    if (!elsewhere || now_ns >= deadline_ns || i >= tries) return reply;
  }
}

}  // namespace kvcove::rpc
