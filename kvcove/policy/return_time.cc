// SPDX-License-Identifier: Apache-2.0
#include "kvcove/policy/return_time.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kvcove/base/random.h"

namespace kvcove::policy {

std::size_t ReturnTimes::AgeBucket(std::uint64_t age) {
  if (age < 4) return static_cast<std::size_t>(age);
  const auto octave = static_cast<std::size_t>(std::bit_width(age) - 1);
  const std::size_t quarter = (age >> (octave - 2)) & 3;
  return std::min(4 * (octave - 1) + quarter, kAges - 1);
}

double ReturnTimes::AgeLowerBound(std::size_t bucket) {
  if (bucket < 4) return static_cast<double>(bucket);
  return std::ldexp(static_cast<double>(4 + bucket % 4), static_cast<int>(bucket / 4) - 1);
}

void ReturnTimes::AddReturn(std::uint64_t age) {
  returns_[AgeBucket(age)] += 1;
  total_ += 1;
}

void ReturnTimes::AddCensored(std::uint64_t age, float count) {
  lost_[AgeBucket(age)] += count;
  total_ += count;
}

void ReturnTimes::DecayWhenLarge() {
  if (total_ < 100000) return;
  total_ /= 2;
  for (float& count : returns_) count /= 2;
  for (float& count : lost_) count /= 2;
}

void ReturnTimes::Update(const ReturnTimes* prior, double unknown_hazard) {
  const double weight = prior == nullptr ? 4 : 120;
  double at_risk = 0;
  for (std::size_t b = kAges; b-- > 0;) {
    at_risk += returns_[b] + lost_[b];
    const double expected = prior == nullptr ? unknown_hazard : prior->hazard_[b];
    hazard_[b] = (returns_[b] + weight * expected) / (at_risk + weight);
  }
  // G(a) = max over T of sum S h / sum S width, both from a to T.
  std::array<double, kAges> gain;
  std::array<double, kAges> cost;
  double alive = 1;
  for (std::size_t b = 0; b < kAges; ++b) {
    const double width = AgeLowerBound(b + 1) - AgeLowerBound(b);
    gain[b] = alive * hazard_[b];
    cost[b] = alive * (1 - hazard_[b] / 2) * width;
    alive *= 1 - hazard_[b];
  }
  for (std::size_t a = 0; a < kAges; ++a) {
    double best = 0;
    double gains = 0;
    double costs = 0;
    for (std::size_t b = a; b < kAges; ++b) {
      gains += gain[b];
      costs += cost[b];
      best = std::max(best, gains / costs);
    }
    index_[a] = best;
  }
}

ReturnTimePolicy::ReturnTimePolicy() : parked_(kGroupBit) {
  // Group 0 is the ring of those that wait.
  members_.groups.Reach(0);
  members_.groups[0].link = {parked_, parked_};
  UpdateIndex();
}

std::uint8_t ReturnTimePolicy::LengthOf(std::size_t blocks) {
  if (blocks < 4) return 0;
  if (blocks < 16) return 1;
  return blocks < 64 ? 2 : 3;
}

void ReturnTimePolicy::LinkBefore(ObjectId position, ObjectId id) {
  const ObjectId previous = members_.LinkOf(position).previous;
  members_.LinkOf(id) = {.previous = previous, .next = position};
  members_.LinkOf(previous).next = id;
  members_.LinkOf(position).previous = id;
}

void ReturnTimePolicy::Unlink(ObjectId id) {
  const Link link = members_.LinkOf(id);
  members_.LinkOf(link.previous).next = link.next;
  members_.LinkOf(link.next).previous = link.previous;
}

ObjectId ReturnTimePolicy::NewGroup(std::uint8_t cls) {
  ObjectId id;
  if (free_groups_.empty()) {
    std::size_t used = 1;  // 0 is taken
    for (const auto& groups : groups_) used += groups.size();
    id = static_cast<ObjectId>(used) | kGroupBit;
    members_.groups.Reach(used);
  } else {
    id = free_groups_.back();
    free_groups_.pop_back();
  }
  Group& group = members_.groups[id & ~kGroupBit];
  group = {.link = {id, id}, .time = now_};
  groups_[cls].push_back(id);
  return id;
}

void ReturnTimePolicy::DropEmptyGroups(std::uint8_t cls) {
  std::erase_if(groups_[cls], [&](ObjectId id) {
    if (members_.LinkOf(id).next != id) return false;
    free_groups_.push_back(id);
    if (id == chosen_) chosen_ = kNoObject;
    return true;
  });
}

void ReturnTimePolicy::MergeClosest(std::uint8_t cls) {
  std::vector<ObjectId>& groups = groups_[cls];
  std::size_t best = 0;
  double best_gap = std::numeric_limits<double>::max();
  for (std::size_t i = 0; i + 1 < groups.size(); ++i) {
    const Group& older = members_.groups[groups[i] & ~kGroupBit];
    const Group& newer = members_.groups[groups[i + 1] & ~kGroupBit];
    const double gap =
        static_cast<double>(newer.time - older.time) / static_cast<double>(now_ - newer.time + 1);
    if (gap < best_gap) {
      best_gap = gap;
      best = i;
    }
  }
  const ObjectId older_id = groups[best];
  const ObjectId newer_id = groups[best + 1];
  Group& older = members_.groups[older_id & ~kGroupBit];
  Group& newer = members_.groups[newer_id & ~kGroupBit];
  const std::uint64_t sum = older.count_estimate + newer.count_estimate;
  if (sum > 0) older.time += (newer.time - older.time) * newer.count_estimate / sum;
  older.count_estimate = static_cast<std::uint32_t>(sum);
  // Splice the newer ring behind the older one.
  const ObjectId last = older.link.previous;
  members_.LinkOf(last).next = newer.link.next;
  members_.LinkOf(newer.link.next).previous = last;
  members_.LinkOf(newer.link.previous).next = older_id;
  older.link.previous = newer.link.previous;
  newer.link = {newer_id, newer_id};
  if (chosen_ == newer_id) chosen_ = kNoObject;
  free_groups_.push_back(newer_id);
  groups.erase(groups.begin() + static_cast<std::ptrdiff_t>(best) + 1);
}

void ReturnTimePolicy::Follow(std::uint64_t key, std::uint8_t cls) {
  // A key is followed when its hash falls under a threshold that keeps the time seen well beyond
  // the time that the cache itself spans.
  const double share = static_cast<double>(kMaxFollowed) /
                       (8.0 * static_cast<double>(std::max<std::size_t>(count_, 2048)));
  if (share < 1 &&
      static_cast<double>(Mix64(key)) > share * static_cast<double>(~std::uint64_t{0})) {
    return;
  }
  const auto [at, fresh] = followed_.try_emplace(key);
  Followed& seen = at->second;
  if (!fresh) {
    --AliveOf(seen);
    for (ReturnTimes* times : {&times_[seen.cls], &turn_times_[seen.cls / kLengths]}) {
      times->AddReturn(now_ - seen.time);
      times->DecayWhenLarge();
    }
  }
  seen = {.time = now_,
          .cohort = first_cohort_ + static_cast<std::uint32_t>(cohorts_.size()) - 1,
          .cls = cls};
  ++AliveOf(seen);
  followed_order_.emplace_back(key, now_);
  while (followed_.size() > kMaxFollowed || followed_order_.size() > 4 * kMaxFollowed) LoseOldest();
}

void ReturnTimePolicy::LoseOldest() {
  const auto [key, time] = followed_order_.front();
  followed_order_.pop_front();
  const auto at = followed_.find(key);
  if (at == followed_.end() || at->second.time != time) return;
  const Followed& seen = at->second;
  --AliveOf(seen);
  for (ReturnTimes* times : {&times_[seen.cls], &turn_times_[seen.cls / kLengths]}) {
    times->AddCensored(now_ - seen.time);
    times->DecayWhenLarge();
  }
  followed_.erase(at);
}

void ReturnTimePolicy::UpdateIndex() {
  while (
      cohorts_.size() > 1 &&
      std::ranges::all_of(cohorts_.front().alive, [](std::uint32_t alive) { return alive == 0; })) {
    cohorts_.pop_front();
    ++first_cohort_;
  }
  // What is being followed and has not returned yet counts as at risk up to its age: count it in
  // copies.
  std::array<ReturnTimes, kTurns> turns = turn_times_;
  std::array<ReturnTimes, kClasses> classes = times_;
  for (const Cohort& cohort : cohorts_) {
    for (std::size_t cls = 0; cls < kClasses; ++cls) {
      if (cohort.alive[cls] == 0) continue;
      const auto alive = static_cast<float>(cohort.alive[cls]);
      turns[cls / kLengths].AddCensored(now_ - cohort.time, alive);
      classes[cls].AddCensored(now_ - cohort.time, alive);
    }
  }
  for (std::size_t t = 0; t < kTurns; ++t) {
    // What came back tends to come back again.
    turns[t].Update(nullptr, 0.01 * static_cast<double>(1 + t));
    for (std::size_t l = 0; l < kLengths; ++l) {
      ReturnTimes& cls = classes[t * kLengths + l];
      cls.Update(&turns[t], 0);
      times_[t * kLengths + l].TakeIndex(cls);
    }
  }
  next_update_ = now_ + std::clamp<std::uint64_t>(count_ / 64, 256, 65536);
  cohorts_.push_back({.time = now_});
  chosen_ = kNoObject;
}

bool ReturnTimePolicy::ContinuesRun(const Node& node) const {
  return !run_.empty() && node.parent != kNoObject && node.parent == run_.back();
}

void ReturnTimePolicy::StartRun() {
  CloseRun();
  run_turn_ = 0;
  run_stores_ = false;
}

void ReturnTimePolicy::AddToRun(ObjectId id) {
  members_.objects[id].in_run = true;
  run_.push_back(id);
}

void ReturnTimePolicy::CloseRun() {
  if (run_.empty()) return;
  const std::uint8_t length = LengthOf(run_.size());
  std::array<ObjectId, kClasses> group_of;
  group_of.fill(kNoObject);
  // A chunk that ends a request is mostly a partial one: the next turn replaces it.
  const ObjectId tail = run_.size() > 1 ? run_.back() : kNoObject;
  for (const ObjectId id : run_) {
    if (id == kNoObject) continue;
    Node& node = members_.objects[id];
    const bool shared = node.children >= kSharedChildren;
    node.turn = shared ? kSharedTurn : run_turn_;
    node.in_run = false;
    const std::uint8_t place = id == tail ? kTailLength : length;
    const auto cls = static_cast<std::uint8_t>(node.turn * kLengths + place);
    node.cls = cls;
    ObjectId& group = group_of[cls];
    if (group == kNoObject) {
      DropEmptyGroups(cls);
      group = NewGroup(cls);
    }
    ++members_.groups[group & ~kGroupBit].count_estimate;
    LinkBefore(group, id);  // the ring's end: newest
    Follow(node.key, cls);
  }
  run_.clear();
  for (std::uint8_t cls = 0; cls < kClasses; ++cls) {
    if (group_of[cls] != kNoObject && groups_[cls].size() > kMaxGroups) MergeClosest(cls);
  }
  if (now_ >= next_update_) UpdateIndex();
}

void ReturnTimePolicy::OnPut(const PutEvent& event) {
  ++now_;
  ++count_;
  members_.objects.Reach(event.id);
  Node& node = members_.objects[event.id];
  node = {.key = event.key, .parent = event.parent};
  if (!ContinuesRun(node)) {
    StartRun();
    if (event.parent != kNoObject) {
      const Node& parent = members_.objects[event.parent];
      if (parent.children < kSharedChildren && parent.turn != kSharedTurn) run_turn_ = parent.turn;
    }
  }
  if (event.parent != kNoObject) {
    Node& parent = members_.objects[event.parent];
    if (!run_stores_ && parent.children >= kSharedChildren)
      run_turn_ = 0;  // a new conversation after a shared prefix
    if (parent.children < kSharedChildren) ++parent.children;
  }
  run_stores_ = true;
  // A chunk that comes back after it was given up tells as much of its conversation as a hit.
  if (const auto seen = followed_.find(event.key); seen != followed_.end()) {
    const int turn = seen->second.cls / kLengths;
    if (turn != kSharedTurn) {
      run_turn_ =
          std::max(run_turn_, static_cast<std::uint8_t>(std::min(turn + 1, kSharedTurn - 1)));
    }
  }
  AddToRun(event.id);
}

void ReturnTimePolicy::OnHit(ObjectId id) {
  Node& node = members_.objects[id];
  if (node.in_run) return;
  if (!ContinuesRun(node)) StartRun();
  if (!run_stores_) {
    run_turn_ = static_cast<std::uint8_t>(
        node.turn == kSharedTurn ? 0 : std::min<int>(node.turn + 1, kSharedTurn - 1));
  }
  Unlink(id);
  AddToRun(id);
}

void ReturnTimePolicy::OnRemove(ObjectId id, bool /*evicted*/) {
  --count_;
  Node& node = members_.objects[id];
  if (!node.in_run) {
    Unlink(id);
    return;
  }
  node.in_run = false;
  std::replace(run_.begin(), run_.end(), id, kNoObject);
}

ObjectId ReturnTimePolicy::ChooseGroup() {
  ObjectId worst = kNoObject;
  double worst_index = std::numeric_limits<double>::max();
  for (std::uint8_t cls = 0; cls < kClasses; ++cls) {
    DropEmptyGroups(cls);
    // As long as nothing else is known, a tail goes before the run that it ends.
    const double weight = cls % kLengths == kTailLength ? 0.5 : 1;
    for (const ObjectId id : groups_[cls]) {
      const double index = weight * times_[cls].Index(now_ - members_.groups[id & ~kGroupBit].time);
      if (index < worst_index) {
        worst_index = index;
        worst = id;
      }
    }
  }
  return worst;
}

void ReturnTimePolicy::Readmit() {
  parked_count_ = 0;
  victims_since_readmit_ = 0;
  while (members_.LinkOf(parked_).next != parked_) {
    const ObjectId id = members_.LinkOf(parked_).next;
    const std::uint8_t cls = members_.objects[id].cls;
    Unlink(id);
    if (groups_[cls].empty()) NewGroup(cls);
    LinkBefore(groups_[cls].back(), id);
  }
  chosen_ = kNoObject;
}

ObjectId ReturnTimePolicy::Victim(const std::function<bool(ObjectId)>& evictable) {
  if (++victims_since_readmit_ > std::max<std::uint64_t>(64, parked_count_)) Readmit();
  bool readmitted = parked_count_ == 0;
  while (true) {
    if (chosen_ == kNoObject || chosen_left_ == 0 || members_.LinkOf(chosen_).next == chosen_) {
      chosen_ = ChooseGroup();
      chosen_left_ = kVictimsPerChoice;
    }
    if (chosen_ == kNoObject) {
      if (!readmitted) {
        Readmit();
        readmitted = true;
      } else if (!run_.empty()) {
        CloseRun();  // nothing else is left: the current run must give way
      } else {
        return kNoObject;
      }
      continue;
    }
    const ObjectId id = members_.LinkOf(chosen_).previous;  // the tail of its latest run
    if (evictable(id)) {
      --chosen_left_;
      return id;
    }
    Unlink(id);
    LinkBefore(parked_, id);
    ++parked_count_;
  }
}

}  // namespace kvcove::policy
