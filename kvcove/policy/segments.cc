// SPDX-License-Identifier: Apache-2.0
#include "kvcove/policy/segments.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "kvcove/base/random.h"

namespace kvcove::policy {
namespace {

constexpr std::uint8_t kMostUses = 15;
constexpr double kTailWeight = 0.5;
// The ghost follows so many keys for each cached block, within bounds: too few, and it forgets what
// is about to return; too many, and uses of long ago count as if they were new.
constexpr std::size_t kGhostShare = 5;
constexpr std::size_t kLeastGhost = 24'000;
constexpr std::size_t kMostGhost = 131'072;
constexpr std::uint64_t kLeastUpdate = 256;  // blocks asked between two updates of the tables
constexpr std::uint64_t kMostUpdate = 2048;
constexpr std::size_t kReadmitSlice = 1024;

std::uint32_t TagOf(std::uint64_t key) { return static_cast<std::uint32_t>(key >> 32); }

}  // namespace

SegmentPolicy::SegmentPolicy() = default;

// ---- the open request

bool SegmentPolicy::Continues(const Node& node) const {
  return !request_.empty() && node.parent_tag == TagOf(request_.back().key);
}

// Whole conversations are followed, or not at all: a block decides where it starts a chain or
// branches off a shared prefix, and those behind it do as it did.
bool SegmentPolicy::Followed(const Node& node, ObjectId parent) const {
  if (parent != kNoObject && nodes_[parent].children < kSharedChildren) {
    return nodes_[parent].followed;
  }
  if (count_ <= kFollowedObjects) return true;
  const double share = static_cast<double>(kFollowedObjects) / static_cast<double>(count_);
  return static_cast<double>(Mix64(node.key)) <
         share * static_cast<double>(std::numeric_limits<std::uint64_t>::max());
}

void SegmentPolicy::AddStep(ObjectId id, bool known) {
  Node& node = nodes_[id];
  node.open = true;
  ++asked_;
  request_.push_back({.id = id,
                      .key = node.key,
                      .uses = node.uses,
                      .children = node.children,
                      .known = known,
                      .followed = node.followed});
}

void SegmentPolicy::OnPut(const PutEvent& event) {
  nodes_.Reach(event.id);
  Node& node = nodes_[event.id];
  node = {.key = event.key == 0 ? 1 : event.key, .parent_tag = TagOf(event.parent_key)};
  if (!Continues(node)) CloseRequest();
  ++now_;
  most_ = std::max(most_, ++count_);
  node.followed = Followed(node, event.parent);
  const Ghost::Entry* seen = node.followed ? ghost_.Find(node.key) : nullptr;
  if (seen != nullptr) {
    node.uses = seen->uses;
    node.children = seen->children;
  }
  AddStep(event.id, seen != nullptr);
}

void SegmentPolicy::OnHit(ObjectId id) {
  Node& node = nodes_[id];
  if (node.open) return;
  if (!Continues(node)) CloseRequest();
  DropFromSegment(id);
  AddStep(id, true);
}

void SegmentPolicy::OnRemove(ObjectId id, bool /*evicted*/) {
  --count_;
  Node& node = nodes_[id];
  if (node.open) {
    const auto step = std::ranges::find(request_, id, &Step::id);
    if (step != request_.end()) step->id = kNoObject;
    node.open = false;
    return;
  }
  DropFromSegment(id);
}

void SegmentPolicy::CloseRequest() {
  const std::size_t n = request_.size();
  if (n == 0) return;
  std::size_t known = 0;
  while (known < n && request_[known].known) ++known;
  const bool later_turn = known > 1 && request_[known - 1].children < kSharedChildren;
  // What continues a block for the first time makes it more of a shared prefix.
  for (std::size_t i = 0; i + 1 < n; ++i) {
    if (!request_[i + 1].known && request_[i].children < 255) ++request_[i].children;
  }
  SegmentId previous = kNoSegment;
  const std::size_t tail = n - 1;
  for (std::size_t begin = 0; begin < tail;) {
    const std::uint8_t bucket = UseBucket(request_[begin].uses);
    std::size_t end = begin + 1;
    while (end < tail && UseBucket(request_[end].uses) == bucket) ++end;
    MakeSegment(begin, end, bucket == 0 ? NewClass(later_turn, n) : UsedClass(bucket, end == tail),
                previous);
    begin = end;
  }
  MakeSegment(tail, n, kTailClass, previous);
  request_.clear();
  const std::size_t keep = std::clamp(kGhostShare * most_, kLeastGhost, kMostGhost);
  while (const std::optional<Ghost::Entry> oldest = ghost_.TakeOldest(keep)) Forget(*oldest);
  if (asked_ >= next_update_) UpdateTables();
}

void SegmentPolicy::MakeSegment(std::size_t begin, std::size_t end, std::uint8_t cls,
                                SegmentId& previous) {
  const SegmentId id = NewSegment();
  Segment& segment = segments_[id];
  segment.time = now_;
  segment.cls = cls;
  segment.weight = 1 / std::sqrt(static_cast<float>(end - begin));
  segment.shallower = previous;
  if (previous != kNoSegment) segments_[previous].deeper = id;
  for (std::size_t i = begin; i < end; ++i) {
    const Step& step = request_[i];
    const auto uses = static_cast<std::uint8_t>(std::min<int>(step.uses + 1, kMostUses));
    if (step.followed) {
      LeaveOldSegment(step);
      Ghost::Entry& entry = ghost_.Add(step.key);
      entry.segment = id;
      entry.uses = uses;
      entry.children = step.children;
      ++segment.followed;
    }
    if (step.id == kNoObject) continue;
    Node& node = nodes_[step.id];
    node.open = false;
    node.uses = uses;
    node.children = step.children;
    node.segment = id;
    segment.blocks.PushBack(nodes_, step.id);
    ++segment.cached;
  }
  if (segment.cached > 0) ListSegment(id);
  previous = id;
  if (segment.cached == 0 && segment.followed == 0) {
    previous = segment.shallower;
    FreeIfUnused(id);
  }
}

// The block came back after a time that its old segment's class learns from.
void SegmentPolicy::LeaveOldSegment(const Step& step) {
  const Ghost::Entry* entry = ghost_.Find(step.key);
  if (entry == nullptr) return;
  Segment& old = segments_[entry->segment];
  tables_.AddReturn(old.cls, now_ - old.time, old.weight);
  --old.followed;
  FreeIfUnused(entry->segment);
}

void SegmentPolicy::Forget(const Ghost::Entry& entry) {
  Segment& segment = segments_[entry.segment];
  tables_.AddLost(segment.cls, now_ - segment.time, segment.weight);
  --segment.followed;
  FreeIfUnused(entry.segment);
}

// ---- segments

SegmentPolicy::SegmentId SegmentPolicy::NewSegment() {
  SegmentId id = next_segment_;
  if (free_segments_.empty()) {
    segments_.Reach(next_segment_++);
  } else {
    id = free_segments_.back();
    free_segments_.pop_back();
  }
  segments_[id] = {.used = true};
  return id;
}

void SegmentPolicy::FreeIfUnused(SegmentId id) {
  Segment& segment = segments_[id];
  if (segment.cached + segment.parked + segment.followed > 0) return;
  if (segment.shallower != kNoSegment) segments_[segment.shallower].deeper = segment.deeper;
  if (segment.deeper != kNoSegment) segments_[segment.deeper].shallower = segment.shallower;
  segment.used = false;
  free_segments_.push_back(id);
}

void SegmentPolicy::DropFromSegment(ObjectId id) {
  Node& node = nodes_[id];
  const SegmentId of = node.segment;
  Segment& segment = segments_[of];
  if (node.parked) {
    parked_.Erase(nodes_, id);
    node.parked = false;
    --segment.parked;
    --parked_count_;
  } else {
    segment.blocks.Erase(nodes_, id);
    if (--segment.cached == 0) UnlistSegment(of);
  }
  node.segment = kNoSegment;
  FreeIfUnused(of);
}

void SegmentPolicy::ListSegment(SegmentId id) {
  Segment& segment = segments_[id];
  segment.age = static_cast<std::uint8_t>(AgeBucket(now_ - segment.time));
  lists_[segment.cls][segment.age].PushBack(segments_, id);
  occupied_[segment.cls].set(segment.age);
}

void SegmentPolicy::UnlistSegment(SegmentId id) {
  const Segment& segment = segments_[id];
  IdList<Segments>& list = lists_[segment.cls][segment.age];
  list.Erase(segments_, id);
  if (list.empty()) occupied_[segment.cls].reset(segment.age);
}

// Segments move to the list of their age, the oldest first, so that each list stays in the order of
// time.
void SegmentPolicy::AdvanceAges() {
  for (std::size_t cls = 0; cls < kClasses; ++cls) {
    if (occupied_[cls].none()) continue;
    for (std::size_t age = kAges - 1; age-- > 0;) {
      if (!occupied_[cls][age]) continue;
      IdList<Segments>& list = lists_[cls][age];
      while (!list.empty() && AgeBucket(now_ - segments_[list.front()].time) > age) {
        const SegmentId id = list.front();
        UnlistSegment(id);
        ListSegment(id);
      }
    }
  }
}

SegmentPolicy::SegmentId SegmentPolicy::Deepest(SegmentId id) const {
  SegmentId deepest = id;
  for (SegmentId at = id; at != kNoSegment; at = segments_[at].deeper) {
    if (segments_[at].cached > 0) deepest = at;
  }
  return deepest;
}

// ---- victims

void SegmentPolicy::UpdateTables() {
  tables_.BeginUpdate();
  for (SegmentId id = 0; id < next_segment_; ++id) {
    const Segment& segment = segments_[id];
    if (!segment.used || segment.followed == 0) continue;
    tables_.AddLiving(segment.cls, AgeBucket(now_ - segment.time),
                      static_cast<float>(segment.followed) * segment.weight);
  }
  tables_.Update();
  next_update_ = asked_ + std::max<std::uint64_t>(
                              std::clamp(asked_ / 32, kLeastUpdate, kMostUpdate), most_ / 64);
  chosen_left_ = 0;
}

void SegmentPolicy::Choose() {
  AdvanceAges();
  double least = std::numeric_limits<double>::max();
  chosen_left_ = 0;
  for (std::size_t cls = 0; cls < kClasses; ++cls) {
    if (occupied_[cls].none()) continue;
    for (std::size_t age = 0; age < kAges; ++age) {
      if (!occupied_[cls][age]) continue;
      const double worth = tables_.Index(static_cast<std::uint8_t>(cls), age) *
                           (cls == kTailClass ? kTailWeight : 1);
      if (worth >= least) continue;
      least = worth;
      chosen_class_ = static_cast<std::uint8_t>(cls);
      chosen_age_ = static_cast<std::uint8_t>(age);
      chosen_left_ = kVictimsPerChoice;
    }
  }
}

// Gives those that were refused (pinned, held) another chance to be asked for.
std::size_t SegmentPolicy::Readmit() {
  victims_since_readmit_ = 0;
  std::size_t readmitted = 0;
  for (; readmitted < kReadmitSlice && !parked_.empty(); ++readmitted) {
    const ObjectId id = parked_.front();
    Node& node = nodes_[id];
    parked_.Erase(nodes_, id);
    node.parked = false;
    Segment& segment = segments_[node.segment];
    --segment.parked;
    --parked_count_;
    segment.blocks.PushBack(nodes_, id);
    if (segment.cached++ == 0) ListSegment(node.segment);
  }
  chosen_left_ = 0;
  return readmitted;
}

ObjectId SegmentPolicy::Victim(const std::function<bool(ObjectId)>& evictable) {
  if (++victims_since_readmit_ > std::max<std::uint64_t>(64, parked_count_)) Readmit();
  std::uint64_t ask_again = parked_count_;  // of those that were refused before
  while (true) {
    if (chosen_left_ == 0 || lists_[chosen_class_][chosen_age_].empty()) Choose();
    if (chosen_left_ == 0) {
      if (ask_again > 0) {
        ask_again -= std::min<std::uint64_t>(ask_again, Readmit());
      } else if (!request_.empty()) {
        CloseRequest();  // nothing else is left: the open request must give way
      } else {
        return kNoObject;
      }
      continue;
    }
    const SegmentId from = Deepest(lists_[chosen_class_][chosen_age_].front());
    Segment& segment = segments_[from];
    const ObjectId id = segment.blocks.back();
    if (evictable(id)) {
      --chosen_left_;
      return id;
    }
    segment.blocks.Erase(nodes_, id);
    ++segment.parked;
    nodes_[id].parked = true;
    parked_.PushBack(nodes_, id);
    ++parked_count_;
    if (--segment.cached == 0) UnlistSegment(from);
  }
}

// ---- for tests

std::string SegmentPolicy::Contradiction() const {
  std::vector<std::uint32_t> followed(next_segment_);
  for (const Ghost::Entry& entry : ghost_.entries()) {
    if (entry.key != 0) ++followed[entry.segment];
  }
  std::vector<std::uint32_t> parked(next_segment_);
  for (ObjectId id = parked_.front(); id != kNoObject; id = nodes_[id].link.next) {
    if (!nodes_[id].parked) return fmt::format("object {} is parked and does not know it", id);
    ++parked[nodes_[id].segment];
  }
  std::vector<bool> listed(next_segment_);
  for (std::size_t cls = 0; cls < kClasses; ++cls) {
    for (std::size_t age = 0; age < kAges; ++age) {
      const IdList<Segments>& list = lists_[cls][age];
      if (occupied_[cls][age] == list.empty()) return fmt::format("list {} {}", cls, age);
      for (SegmentId id = list.front(); id != kNoSegment; id = segments_[id].link.next) {
        if (segments_[id].cls != cls || segments_[id].age != age || listed[id]) {
          return fmt::format("segment {} stands in list {} {}", id, cls, age);
        }
        listed[id] = true;
      }
    }
  }
  std::size_t objects = static_cast<std::size_t>(
      std::ranges::count_if(request_, [](const Step& step) { return step.id != kNoObject; }));
  for (SegmentId id = 0; id < next_segment_; ++id) {
    const Segment& segment = segments_[id];
    std::uint32_t cached = 0;
    for (ObjectId at = segment.used ? segment.blocks.front() : kNoObject; at != kNoObject;
         at = nodes_[at].link.next) {
      if (nodes_[at].segment != id || nodes_[at].open) return fmt::format("object {}", at);
      ++cached;
    }
    objects += cached + parked[id];
    const bool counts = segment.used ? segment.cached == cached && segment.parked == parked[id] &&
                                           segment.followed == followed[id]
                                     : followed[id] + parked[id] == 0;
    if (!counts) return fmt::format("the counts of segment {}", id);
    if (segment.used && cached + parked[id] + followed[id] == 0) return fmt::format("dead {}", id);
    if (listed[id] != (segment.used && cached > 0)) return fmt::format("segment {}, listed", id);
    for (const SegmentId next : {segment.deeper, segment.shallower}) {
      if (segment.used && next != kNoSegment && !segments_[next].used) {
        return fmt::format("segment {} names {}, which is free", id, next);
      }
    }
  }
  return objects == count_ ? "" : fmt::format("{} objects of {}", objects, count_);
}

}  // namespace kvcove::policy
