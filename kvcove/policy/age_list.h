// SPDX-License-Identifier: Apache-2.0
// The segments of one class, the oldest first, and where each age begins: `first(age)` is the
// oldest segment that is of this age or younger, so the segments of an age are [first(age),
// first(age - 1)).
//
//   oldest                                        youngest
//     s1  s2  s3  s4  s5  s6  s7  s8
//     ^           ^       ^
//     first(9)    first(8) = first(7)   first(6)          ages 7 and those below 6 have none
//
// Growing old moves a mark, not a segment: one segment is looked at for each that changes its age,
// and none is written. An age is an interval of times, so a mark keeps a time that its segment is
// not older than; until that is due, the segment stays where it is in memory, far away.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kvcove/policy/hazards.h"
#include "kvcove/policy/id_list.h"

namespace kvcove::policy {

inline constexpr int kTimeUnit = 4;  // times count 2^4 blocks: ages are told apart no finer

// `Segments` maps an id to something with members `Link link` and `std::uint32_t time`.
template <typename Segments>
class AgeList {
 public:
  using Id = ObjectId;

  AgeList() { first_.fill(kNoObject); }

  bool empty() const { return list_.empty(); }
  bool Empty(std::size_t age) const { return first_[age] == Younger(age); }
  Id front() const { return list_.front(); }
  // kNoObject when the age has none, and none younger.
  Id first(std::size_t age) const { return first_[age]; }

  // As the last one of this age.
  void Insert(Segments& segments, Id id, std::size_t age) {
    const Id behind = Younger(age);
    list_.InsertBefore(segments, id, behind);
    // Ages that had nothing begin where the younger ones do.
    for (; age < kAges && first_[age] == behind; ++age) {
      first_[age] = id;
      time_[age] = segments[id].time;
    }
  }

  void Erase(Segments& segments, Id id) {
    const Id next = segments[id].link.next;
    // The time stays: what comes behind is no older, or its own time is looked up too early.
    for (Id& first : first_) first = first == id ? next : first;
    list_.Erase(segments, id);
  }

  // Moves the marks to where they are at time `now`: at most `left` steps, which it counts down.
  // What is left over then stays younger than it is, until the next call.
  void Advance(const Segments& segments, std::uint32_t now, std::uint32_t& left) {
    for (std::size_t age = kAges; age-- > 0;) {
      Id at = first_[age];
      std::uint32_t time = time_[age];
      std::size_t tied = age;  // younger marks on the way go along: none is ever passed
      while (at != kNoObject && now - time >= kOlderFrom[age]) {
        const auto& segment = segments[at];
        time = segment.time;
        if (segment.link.next != kNoObject) __builtin_prefetch(&segments[segment.link.next]);
        if (now - time < kOlderFrom[age] || left == 0) break;
        --left;
        while (tied > 0 && first_[tied - 1] == at) --tied;
        at = segment.link.next;
      }
      for (std::size_t moved = tied; moved <= age; ++moved) {
        first_[moved] = at;
        time_[moved] = time;
      }
    }
  }

  // For tests: is the list one list, and are the marks in its order?
  bool Consistent(const Segments& segments) const {
    std::size_t age = kAges;
    Id before = kNoObject;
    for (Id id = list_.front(); id != kNoObject; before = id, id = segments[id].link.next) {
      if (segments[id].link.previous != before) return false;
      while (age > 0 && first_[age - 1] == id) --age;
      if (age == kAges) return false;  // the oldest mark is the list's front
    }
    while (age > 0 && first_[age - 1] == kNoObject) --age;
    return list_.back() == before && age == 0;
  }

 private:
  // In time units: the least time that makes a segment too old for the age; never for the last one.
  static constexpr std::array<std::uint32_t, kAges> OlderFrom() {
    std::array<std::uint32_t, kAges> from{};
    for (std::size_t age = 0; age + 1 < kAges; ++age) {
      from[age] = static_cast<std::uint32_t>(AgeOf(age + 1) >> kTimeUnit);
    }
    from[kAges - 1] = 0xFFFFFFFF;
    return from;
  }
  static constexpr std::array<std::uint32_t, kAges> kOlderFrom = OlderFrom();

  Id Younger(std::size_t age) const { return age == 0 ? kNoObject : first_[age - 1]; }

  IdList<Segments> list_;
  std::array<Id, kAges> first_;
  std::array<std::uint32_t, kAges> time_{};  // that `first_` is not older than
};

}  // namespace kvcove::policy
