// SPDX-License-Identifier: Apache-2.0
// Holds: objects that sessions have looked up and are about to load. A hold makes eviction pass
// over the object, and promises nothing. No I/O. Not thread-safe: needs the core's lock. O(log n) a
// call, n = holds.
//
// A hold ends at its deadline (each has its own, so they end in any order), when its session's
// budget is used up (the oldest ends first), or with its session. The caller takes ended holds from
// `TakeEnded`, some at a time, and reduces the objects' counts (Objects::Unhold).
#pragma once

#include <list>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "kvcove/owner/core/core_types.h"

namespace kvcove::owner {

struct Hold {
  ObjectId object = kNoObject;
  Version version = 0;
  std::uint64_t bytes = 0;
  std::int64_t until_ns = 0;
};

class Holds {
 public:
  static constexpr std::size_t kMaxHolds = 65536;  // a session

  // `budget_bytes`: the most that one session may hold.
  explicit Holds(std::uint64_t budget_bytes) : budget_bytes_(budget_bytes) {}

  // Adds a hold and ends the session's oldest ones until the budget suffices. False when the object
  // alone exceeds the budget.
  bool Add(SessionNumber session, const Hold& hold);
  void EndSession(SessionNumber session);
  // Takes one hold that has ended by `now_ns`, or nothing.
  std::optional<Hold> TakeEnded(std::int64_t now_ns);

  // Of sessions that the successor knows; what has ended is ended there.
  template <typename Ar>
  void Carry(Ar& ar) {
    std::vector<Entry> all(ended_.begin(), ended_.end());
    std::uint64_t ended = all.size();
    for (const auto& [number, session] : sessions_) {
      all.insert(all.end(), session.holds.begin(), session.holds.end());
    }
    CarryAll(ar, ended, all);
    if constexpr (Ar::kReads) {
      for (const Entry& entry : all) {
        if (ended > 0) {
          --ended;
          ended_.push_back(entry);
        } else {
          (void)Add(entry.session, entry);
        }
      }
    }
  }

  std::uint64_t held_bytes(SessionNumber session) const;

 private:
  struct Entry : Hold {
    SessionNumber session = 0;
  };
  using List = std::list<Entry>;
  using ByEnd = std::pair<std::int64_t, List::iterator>;
  struct Earlier {
    bool operator()(const ByEnd& a, const ByEnd& b) const {
      return a.first != b.first ? a.first < b.first : &*a.second < &*b.second;
    }
  };
  struct Session {
    List holds;  // oldest first
    std::uint64_t bytes = 0;
  };
  void End(Session& session, List::iterator at);

  const std::uint64_t budget_bytes_;
  std::map<SessionNumber, Session> sessions_;
  std::set<ByEnd, Earlier> by_end_;
  List ended_;
};

}  // namespace kvcove::owner
