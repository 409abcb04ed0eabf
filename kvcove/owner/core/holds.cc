// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/core/holds.h"

namespace kvcove::owner {

void Holds::End(Session& session, List::iterator at) {
  session.bytes -= at->bytes;
  by_end_.erase({at->until_ns, at});
  ended_.splice(ended_.end(), session.holds, at);
}

bool Holds::Add(SessionNumber number, const Hold& hold) {
  if (hold.bytes > budget_bytes_) return false;
  Session& session = sessions_[number];
  while (!session.holds.empty() &&
         (session.bytes + hold.bytes > budget_bytes_ || session.holds.size() >= kMaxHolds)) {
    End(session, session.holds.begin());
  }
  session.holds.push_back({hold, number});
  session.bytes += hold.bytes;
  const auto at = std::prev(session.holds.end());
  by_end_.emplace(hold.until_ns, at);
  return true;
}

void Holds::EndSession(SessionNumber number) {
  const auto at = sessions_.find(number);
  if (at == sessions_.end()) return;
  // Its holds remain in `by_end_` until TakeEnded takes them from `ended_`, which it empties first:
  // so it never looks for this session.
  ended_.splice(ended_.end(), at->second.holds);
  sessions_.erase(at);
}

std::optional<Hold> Holds::TakeEnded(std::int64_t now_ns) {
  if (ended_.empty()) {
    if (by_end_.empty() || by_end_.begin()->first > now_ns) return std::nullopt;
    const List::iterator at = by_end_.begin()->second;
    End(sessions_.at(at->session), at);
  }
  const Entry hold = ended_.front();
  by_end_.erase({hold.until_ns, ended_.begin()});
  ended_.pop_front();
  return hold;
}

std::uint64_t Holds::held_bytes(SessionNumber session) const {
  const auto at = sessions_.find(session);
  return at == sessions_.end() ? 0 : at->second.bytes;
}

}  // namespace kvcove::owner
