// SPDX-License-Identifier: Apache-2.0
// The tie of one process to a server, or to the one of several masters that leads: its connections,
// and the knowledge that all its callers share: whether the server answers (rpc/breaker.h), and
// until when it is busy (rpc/busy.h). Each call chooses how far it uses that knowledge.
//
//   guarded   a call to a server that is dead or frozen ends in milliseconds, or at once, and
//             reports to the breaker how it ended
//   patient   a call to a busy server waits and asks again, as long as its deadline allows; then
//             its error is the server's
//
// A call that is patient and guarded takes a pass of the breaker each time that it asks: a busy
// server is one that answers. Guarded and other calls have separate busy times, so that a reset,
// which is not guarded, does not wait for a time that a look-up was given.
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
  std::string peer;  // the server's name in errors, such as "the master"
  // Called without a lock, when a guarded call has changed the state of the breaker.
  std::function<void(Breaker::Change)> on_change = [](Breaker::Change) {};
};

// Thread-safe. Destruction needs no call under way.
class Link {
 public:
  Link(Addresses addresses, Access access, LinkOptions options, const Clock& clock);
  // Makes a link over another channel, which outlives it: for tests.
  Link(wire::Channel& channel, LinkOptions options, const Clock& clock);
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Makes a call. Errors: the channel's; a guarded call also fails with kUnavailable where it was
  // not made, or had no answer within less time than its deadline allowed.
  Result<std::string> Call(LinkWay way, wire::Method method, std::span<const std::byte> body,
                           std::int64_t deadline_ns);
  // Returns a channel for stubs, which makes each call this way. It lives as long as the link.
  wire::Channel& channel(LinkWay way) {
    return ways_[(way.guarded ? 2U : 0U) + (way.patient ? 1U : 0U)];
  }
  // Returns the address that is asked now. Not of a link over another channel.
  Address address() const { return tcp_->address(); }
  const Access& access() const { return tcp_->access(); }
  // Returns the breaker, for probes and for callers that reach the same server by another way.
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
  std::array<BusyUntil, 2> busy_;  // for calls that are not guarded, and for guarded ones
  std::array<Way, 4> ways_;
};

// Returns the outcome of a failed call, for the breaker.
Breaker::Outcome OutcomeOf(const Error& error);

}  // namespace kvcove::rpc
