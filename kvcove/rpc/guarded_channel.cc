// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/guarded_channel.h"

namespace kvcove::rpc {

Breaker::Outcome OutcomeOf(const Error& error) {
  if (error.answered) return Breaker::Outcome::kAnswered;
  if (error.code == Code::kTimeout) return Breaker::Outcome::kMissed;
  if (error.code == Code::kUnavailable) return Breaker::Outcome::kLost;
  return Breaker::Outcome::kAnswered;
}

Result<std::string> GuardedChannel::Call(wire::Method method, std::span<const std::byte> body,
                                         std::int64_t deadline_ns) {
  const std::optional<Breaker::Pass> pass = breaker_.Begin(deadline_ns);
  if (!pass) return Fail(Code::kUnavailable, peer_ + " is not answering");
  Result<std::string> reply = channel_.Call(method, body, pass->until_ns);
  const auto outcome = reply ? Breaker::Outcome::kAnswered : OutcomeOf(reply.error());
  const Breaker::Change change = breaker_.End(*pass, outcome);
  if (change != Breaker::Change::kNone) on_change_(change);
  if (outcome == Breaker::Outcome::kMissed && pass->until_ns < deadline_ns) {
    return Fail(Code::kUnavailable, peer_ + " is not answering");
  }
  return reply;
}

}  // namespace kvcove::rpc
