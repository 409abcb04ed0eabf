// SPDX-License-Identifier: Apache-2.0
// What the default eviction policy costs with a million objects: time an event (with what the
// benchmark itself looks up), the longest single event, memory an object. Conversations of several
// turns come back among requests that do not. One JSON line a row; bench/README.md has the figures.
#include <fmt/core.h>
#include <time.h>

#include <algorithm>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/random.h"
#include "kvcove/policy/segments.h"

namespace kvcove::policy {
namespace {

constexpr std::size_t kObjects = 1'000'000;
constexpr std::size_t kEvents = 6'000'000;

// Of this thread: without the time that others take the processor.
std::int64_t Now() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return (now.tv_sec * kSecond) + now.tv_nsec;
}

// A conversation's blocks are named (conversation, place); what is cached is one table.
class Load {
 public:
  // `least_ns`: the time of each event is kept there, if it is the least so far; null: not
  // measured.
  Load(std::uint32_t blocks, std::vector<std::uint32_t>* least_ns)
      : blocks_(blocks), least_ns_(least_ns) {
    objects_.reserve(kObjects);
    free_.reserve(kObjects);
  }

  // Conversation `of` asks for its first `count` blocks.
  void Request(SegmentPolicy& policy, std::uint32_t of, std::uint32_t count) {
    ObjectId parent = kNoObject;
    std::uint64_t parent_key = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
      ObjectId& place = PlaceOf(of, i);
      const std::uint64_t key = Mix64((std::uint64_t{of} << 20) + i + 1);
      if (place != kNoObject) {
        Time([&] { policy.OnHit(place); });
      } else {
        if (cached_ == kObjects) Evict(policy);
        const ObjectId id = NewId();
        Time([&] {
          policy.OnPut(
              {.id = id, .key = key, .size_bytes = 1, .parent = parent, .parent_key = parent_key});
        });
        PlaceOf(of, i) = id;
        objects_[id] = {of, i};
        ++cached_;
      }
      parent = PlaceOf(of, i);
      parent_key = key;
      ++events_;
    }
    Time([&] { policy.EndRequest(parent); });
  }

  std::size_t events() const { return events_; }

 private:
  ObjectId& PlaceOf(std::uint32_t of, std::uint32_t i) {
    const std::size_t at = std::size_t{of} * blocks_ + i;
    if (at >= places_.size()) places_.resize((std::size_t{of} + 1) * blocks_, kNoObject);
    return places_[at];
  }
  void Evict(SegmentPolicy& policy) {
    Time([&] {
      const ObjectId victim = policy.Victim([](ObjectId) { return true; });
      policy.OnRemove(victim, true);
      PlaceOf(objects_[victim].first, objects_[victim].second) = kNoObject;
      free_.push_back(victim);
    });
    --cached_;
  }
  ObjectId NewId() {
    if (free_.empty()) {
      objects_.emplace_back();
      return static_cast<ObjectId>(objects_.size() - 1);
    }
    const ObjectId id = free_.back();
    free_.pop_back();
    return id;
  }
  template <typename Event>
  void Time(const Event& event) {
    if (least_ns_ == nullptr) return event();
    const std::int64_t begin = Now();
    event();
    const auto taken = static_cast<std::uint32_t>(Now() - begin);
    if (timed_ == least_ns_->size()) least_ns_->push_back(taken);
    (*least_ns_)[timed_] = std::min((*least_ns_)[timed_], taken);
    ++timed_;
  }

  const std::uint32_t blocks_;  // of the longest request
  std::vector<std::uint32_t>* const least_ns_;
  std::size_t events_ = 0;
  std::size_t timed_ = 0;
  std::vector<ObjectId> places_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> objects_;
  std::vector<ObjectId> free_;
  std::size_t cached_ = 0;
};

struct Cost {
  std::size_t events = 0;
  std::int64_t ns = 0;
  std::size_t bytes = 0;
};

Cost Run(std::vector<std::uint32_t>* least_ns) {
  constexpr std::uint32_t kTurns = 6;
  constexpr std::uint32_t kTurnBlocks = 8;
  struct Conversation {
    std::uint32_t number;
    std::uint32_t turn;
  };
  Load load(kTurns * kTurnBlocks, least_ns);
  Random random(1);
  SegmentPolicy policy;
  std::vector<Conversation> live(20'000);
  std::uint32_t next = 0;
  for (Conversation& conversation : live) conversation = {.number = next++, .turn = 0};
  const std::int64_t begin = Now();
  while (load.events() < kEvents) {
    Conversation& one = live[random.Below(live.size())];
    if (one.turn == kTurns || random.OneIn(3)) one = {.number = next++, .turn = 0};
    load.Request(policy, one.number, ++one.turn * kTurnBlocks);
  }
  return {.events = load.events(), .ns = Now() - begin, .bytes = policy.bytes()};
}

}  // namespace
}  // namespace kvcove::policy

int main() {
  using namespace kvcove::policy;
  Cost cost = Run(nullptr);
  for (int run = 0; run < 2; ++run) cost.ns = std::min(cost.ns, Run(nullptr).ns);
  // All runs are the same events: what takes long in each of them is the policy's doing, what does
  // so in one is the machine's.
  std::vector<std::uint32_t> least_ns;
  least_ns.reserve(3 * kEvents);
  for (int run = 0; run < 3; ++run) Run(&least_ns);
  fmt::print(
      "{{\"bench\":\"policy\",\"objects\":{},\"events\":{},\"us_an_event\":{:.3f},"
      "\"longest_us\":{:.0f},\"bytes_an_object\":{:.1f}}}\n",
      kObjects, cost.events, static_cast<double>(cost.ns) / 1e3 / static_cast<double>(cost.events),
      static_cast<double>(std::ranges::max(least_ns)) / 1e3,
      static_cast<double>(cost.bytes) / static_cast<double>(kObjects));
}
