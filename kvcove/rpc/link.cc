// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/link.h"

namespace kvcove::rpc {

// Errors of this process, such as kInvalid for a credentials file, say nothing against the server,
// so they count as an answer.
Breaker::Outcome OutcomeOf(const Error& error) {
  if (error.answered) return Breaker::Outcome::kAnswered;
  if (error.code == Code::kTimeout) return Breaker::Outcome::kMissed;
  if (error.code == Code::kUnavailable) return Breaker::Outcome::kLost;
  return Breaker::Outcome::kAnswered;
}

Link::Link(Addresses addresses, Access access, LinkOptions options, const Clock& clock)
    : tcp_(std::in_place, std::move(addresses), std::move(access)),
      channel_(*tcp_),
      options_(std::move(options)),
      clock_(clock),
      breaker_(clock),
      ways_{Way(*this, {}), Way(*this, kPatient), Way(*this, kGuarded),
            Way(*this, kPatientGuarded)} {}

Link::Link(wire::Channel& channel, LinkOptions options, const Clock& clock)
    : channel_(channel),
      options_(std::move(options)),
      clock_(clock),
      breaker_(clock),
      ways_{Way(*this, {}), Way(*this, kPatient), Way(*this, kGuarded),
            Way(*this, kPatientGuarded)} {}

Result<std::string> Link::Ask(LinkWay way, wire::Method method, std::span<const std::byte> body,
                              std::int64_t deadline_ns) {
  if (!way.guarded) return channel_.Call(method, body, deadline_ns);
  const std::optional<Breaker::Pass> pass = breaker_.Begin(deadline_ns);
  if (!pass) return Fail(Code::kUnavailable, options_.peer + " is not answering");
  Result<std::string> reply = channel_.Call(method, body, pass->until_ns);
  const auto outcome = reply ? Breaker::Outcome::kAnswered : OutcomeOf(reply.error());
  const Breaker::Change change = breaker_.End(*pass, outcome);
  if (change != Breaker::Change::kNone) options_.on_change(change);
  // The breaker had shortened the call, so kTimeout would be wrong: its caller has time left.
  if (outcome == Breaker::Outcome::kMissed && pass->until_ns < deadline_ns) {
    return Fail(Code::kUnavailable, options_.peer + " is not answering");
  }
  return reply;
}

Result<std::string> Link::Call(LinkWay way, wire::Method method, std::span<const std::byte> body,
                               std::int64_t deadline_ns) {
  if (!way.patient) return Ask(way, method, body, deadline_ns);
  BusyUntil& busy = busy_[way.guarded ? 1 : 0];
  while (true) {
    // A server that has said until when it is busy is not asked before: it would be silent until
    // then, and count as dead.
    std::optional<Error> known = busy.Now(clock_.NowNs());
    Result<std::string> reply = known ? Result<std::string>(std::unexpected(std::move(*known)))
                                      : Ask(way, method, body, deadline_ns);
    if (reply) return reply;
    const std::optional<std::uint32_t> retry_after_ms = BusyIn(reply.error());
    if (retry_after_ms && !known) busy.Note(*retry_after_ms, clock_.NowNs());
    if (!retry_after_ms || !WaitWhileBusy(*retry_after_ms, deadline_ns, clock_)) return reply;
  }
}

}  // namespace kvcove::rpc
