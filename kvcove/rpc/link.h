// SPDX-License-Identifier: Apache-2.0
// One process's tie to a server, or to the one of several that leads: its connections, and what all
// of its callers know of that server together: whether it answers (rpc/breaker.h), and until when
// it is busy (rpc/busy.h). Each call says how far it uses that.
//
//   guarded   a call to a server that is dead or frozen ends in milliseconds, or at once, and how
//             it ends is told to the breaker
//   patient   a call to a busy server waits and asks again, as long as its deadline allows; then
//             its error is the server's
//
// A patient call that is guarded, too, takes a pass of the breaker each time that it asks: a server
// that is busy is one that answers. Guarded calls and the others are told apart by a busy server,
// so that a reset, which is not guarded, need not wait for what look-ups were told.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include "kvcove/base/clock.h"
#include "kvcove/rpc/breaker.h"
#include "kvcove/rpc/busy.h"
#include "kvcove/rpc/channel.h"
#include "kvcove/wire/host_wire.h"

namespace kvcove::rpc {

struct LinkWay {
  bool guarded = false;
  bool patient = false;
};
inline constexpr LinkWay kPatient{.patient = true};
inline constexpr LinkWay kGuarded{.guarded = true};
inline constexpr LinkWay kPatientGuarded{.guarded = true, .patient = true};

struct LinkOptions {
  std::string peer;  // the other side's name in errors, such as "the master"
  // Called without a lock, when a guarded call has changed what the breaker thinks of the server.
  std::function<void(Breaker::Change)> on_change = [](Breaker::Change) {};
};

// Thread-safe. Destruction needs no call under way.
class Link {
 public:
  Link(Addresses addresses, Access access, LinkOptions options, const Clock& clock);
  // Over another channel, which outlives the link: for tests.
  Link(wire::Channel& channel, LinkOptions options, const Clock& clock);
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Errors: of a guarded call also kUnavailable, where it was not made, or was given less time than
  // it asked for.
  Result<std::string> Call(LinkWay way, wire::Method method, std::span<const std::byte> body,
                           std::int64_t deadline_ns);
  // Returns a channel for stubs, which makes each call this way. It lives as long as the link.
  wire::Channel& channel(LinkWay way) {
    return ways_[(way.guarded ? 2U : 0U) + (way.patient ? 1U : 0U)];
  }
  // Returns the address that is asked now. Not of a link over another channel.
  Address address() const { return tcp_->address(); }
  const Access& access() const { return tcp_->access(); }
  // For callers that reach the same server by another way, and for probes.
  Breaker& breaker() { return breaker_; }
  const Breaker& breaker() const { return breaker_; }

 private:
  class Way final : public wire::Channel {
   public:
    Way(Link& link, LinkWay way) : link_(link), way_(way) {}
    Result<std::string> Call(wire::Method method, std::span<const std::byte> body,
                             std::int64_t deadline_ns) override {
      return link_.Call(way_, method, body, deadline_ns);
    }

   private:
    Link& link_;
    const LinkWay way_;
  };
  Result<std::string> Ask(LinkWay way, wire::Method method, std::span<const std::byte> body,
                          std::int64_t deadline_ns);

  std::optional<TcpChannel> tcp_;
  wire::Channel& channel_;
  const LinkOptions options_;
  const Clock& clock_;
  Breaker breaker_;
  std::array<BusyUntil, 2> busy_;  // of calls that are not guarded, and of those that are
  std::array<Way, 4> ways_;
};

// What an error of a call says about its peer.
Breaker::Outcome OutcomeOf(const Error& error);

}  // namespace kvcove::rpc
