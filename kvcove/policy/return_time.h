// SPDX-License-Identifier: Apache-2.0
// The `default` policy: keep what is expected to come back soonest for the room that it takes.
//
// A conversation comes back after a time that depends on how often it came back before and on how
// long it is. The policy learns these return times on line, class by class, from a bounded
// sample of keys that it follows whether or not they are still cached (so it also learns about what
// it gave up), as hazards by age. An object of class c and age a is worth the Gittins index of its
// class at that age,
//
//     G_c(a) = max over T > a of  P(returns in (a, T]) / E[time it is kept until it returns or T],
//
// the best rate of hits per block and time that keeping it can earn. The victim is what is worth
// least. Nothing is tuned to a capacity: a small cache thereby keeps a few conversations long
// enough to see them return, a large one keeps nearly all and gives up the cold ones.
//
// What it knows of a KV cache: a *run* is what one request reads and stores, chunk after chunk of a
// chain. All chunks of a run share time and class, runs are given up from their tail, and the run
// that is just being stored is spared, so that no chunk is kept without its prefix. A chunk with
// several continuations is a shared prefix, a class of its own: its continuations are new
// conversations.
//
// Time is counted in chunks stored, what pressure is made of. Work a call: O(1), and O(classes x
// groups) once in `kVictimsPerChoice` victims.
#pragma once

#include <array>
#include <deque>
#include <unordered_map>
#include <vector>

#include "kvcove/policy/id_list.h"
#include "kvcove/policy/policy.h"

namespace kvcove::policy {

// Return times of one class: at-risk counts and returns by age, and the index computed from them.
class ReturnTimes {
 public:
  static constexpr std::size_t kAges = 112;  // log buckets, four an octave

  static std::size_t AgeBucket(std::uint64_t age);
  static double AgeLowerBound(std::size_t bucket);

  void AddReturn(std::uint64_t age);
  // `count` objects were followed up to this age without having returned.
  void AddCensored(std::uint64_t age, float count = 1);
  // Halves what was seen once it is much, so that the latest weighs most.
  void DecayWhenLarge();
  // Recomputes the index. Where this class has seen little it takes the hazards of `prior`, or,
  // without one, `unknown_hazard` at every age: worth then falls with age, as in LRU.
  void Update(const ReturnTimes* prior, double unknown_hazard);
  void TakeIndex(const ReturnTimes& other) { index_ = other.index_; }
  double Index(std::uint64_t age) const { return index_[AgeBucket(age)]; }

 private:
  std::array<float, kAges> returns_{};
  std::array<float, kAges> lost_{};
  std::array<double, kAges> hazard_{};
  std::array<double, kAges> index_{};
  float total_ = 0;
};

class ReturnTimePolicy final : public EvictionPolicy {
 public:
  ReturnTimePolicy();

  void OnPut(const PutEvent& event) override;
  void OnHit(ObjectId id) override;
  void OnRemove(ObjectId id, bool evicted) override;
  ObjectId Victim(const std::function<bool(ObjectId)>& evictable) override;
  std::string_view name() const override { return "default"; }

 private:
  // Turns: how often the conversation came back (0, 1, 2, 3 or more), or a shared prefix.
  static constexpr std::uint8_t kTurns = 5;
  static constexpr std::uint8_t kSharedTurn = 4;
  // A chunk with this many continuations is a shared prefix. A conversation alone has two a turn:
  // the partial chunk that ended the last request, and the whole one that replaced it.
  static constexpr std::uint8_t kSharedChildren = 4;
  static constexpr std::uint8_t kLengths = 5;  // of the run; the last is for a run's last chunk
  static constexpr std::uint8_t kTailLength = 4;
  static constexpr std::size_t kClasses = kTurns * kLengths;
  static constexpr std::size_t kMaxGroups = 20;        // a class
  static constexpr std::size_t kMaxFollowed = 131072;  // keys
  static constexpr std::uint32_t kVictimsPerChoice = 32;
  static constexpr ObjectId kGroupBit = 0x80000000;

  struct Node {
    Link link;
    std::uint64_t key = 0;
    ObjectId parent = kNoObject;
    std::uint8_t turn = 0;
    std::uint8_t cls = 0;
    std::uint8_t children = 0;  // saturating
    bool in_run = false;
  };
  // Objects of one class that were last used at about the same time: a ring through a sentinel.
  struct Group {
    Link link;
    std::uint64_t time = 0;
    std::uint32_t count_estimate = 0;  // for merging times only
  };
  // Both kinds of list members under one number space.
  struct Members {
    ChunkedArray<Node> objects;
    ChunkedArray<Group> groups;
    Link& LinkOf(ObjectId id) {
      return (id & kGroupBit) != 0 ? groups[id & ~kGroupBit].link : objects[id].link;
    }
  };
  struct Followed {
    std::uint64_t time = 0;
    std::uint32_t cohort = 0;
    std::uint8_t cls = 0;
  };
  // How many of the followed were last seen between two updates of the index, by class.
  struct Cohort {
    std::uint64_t time = 0;
    std::array<std::uint32_t, kClasses> alive{};
  };

  static std::uint8_t LengthOf(std::size_t blocks);
  bool ContinuesRun(const Node& node) const;
  void StartRun();
  // Gives the run's objects their class and time, and makes them evictable.
  void CloseRun();
  void AddToRun(ObjectId id);
  void Unlink(ObjectId id);
  void LinkBefore(ObjectId position, ObjectId id);
  ObjectId NewGroup(std::uint8_t cls);
  void MergeClosest(std::uint8_t cls);
  void DropEmptyGroups(std::uint8_t cls);
  void Follow(std::uint64_t key, std::uint8_t cls);
  std::uint32_t& AliveOf(const Followed& seen) {
    return cohorts_[seen.cohort - first_cohort_].alive[seen.cls];
  }
  void LoseOldest();
  void UpdateIndex();
  ObjectId ChooseGroup();
  // Gives those that were refused (pinned, held) another chance to be asked for.
  void Readmit();

  Members members_;
  std::array<std::vector<ObjectId>, kClasses> groups_;  // by class, oldest first
  std::vector<ObjectId> free_groups_;
  std::uint64_t now_ = 0;
  std::size_t count_ = 0;

  std::vector<ObjectId> run_;  // in chain order; some may be gone (kNoObject)
  std::uint8_t run_turn_ = 0;
  bool run_stores_ = false;

  std::array<ReturnTimes, kClasses> times_;
  std::array<ReturnTimes, kTurns> turn_times_;  // the prior of a turn's classes
  std::uint64_t next_update_ = 0;
  std::unordered_map<std::uint64_t, Followed> followed_;
  std::deque<std::pair<std::uint64_t, std::uint64_t>> followed_order_;  // key, time
  std::deque<Cohort> cohorts_;                                          // the last one is growing
  std::uint32_t first_cohort_ = 0;

  // Refused objects wait here, so that a victim is not looked for among them each time.
  ObjectId parked_;
  std::uint64_t parked_count_ = 0;  // since the last Readmit
  std::uint64_t victims_since_readmit_ = 0;
  ObjectId chosen_ = kNoObject;
  std::uint32_t chosen_left_ = 0;
};

}  // namespace kvcove::policy
