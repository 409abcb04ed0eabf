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

constexpr std::uint64_t kLeastUpdate = 256;  // blocks asked between two updates of the tables
constexpr std::uint64_t kMostUpdate = 2048;
// Steps of one call at most.
constexpr std::size_t kReadmitSlice = 1024;
constexpr std::uint32_t kCountSlice = 8192;  // segments
constexpr std::uint32_t kAgeSlice = 1024;    // segments that change their age
constexpr std::uint32_t kDeepestSlice = 64;  // segments
// A request that nothing continues for so many blocks asked counts as ended.
constexpr std::uint64_t kLeastIdle = 64;
constexpr std::uint64_t kMostIdle = 4096;
constexpr std::uint64_t kIdleShare = 16;  // of the cache

std::uint32_t KeyOf(std::uint64_t hash) { return static_cast<std::uint32_t>(hash >> 32); }
// Never 0, which says that there is no parent.
std::uint16_t TagOf(std::uint32_t key) {
  const auto tag = static_cast<std::uint16_t>(key);
  return tag == 0 ? 1 : tag;
}

}  // namespace

SegmentPolicy::SegmentPolicy(const SegmentOptions& options)
    : options_(options), lists_(kClasses), tables_(options.hazards) {}

std::uint32_t SegmentPolicy::TimeNow() const {
  return static_cast<std::uint32_t>(now_ >> kTimeUnit);
}

// Of each of its blocks in the statistics: they come back together, so they are no separate
// observations.
float SegmentPolicy::WeightOf(const Segment& segment) const {
  return options_.by_size ? 1 / std::sqrt(static_cast<float>(segment.size)) : 1;
}

std::uint64_t SegmentPolicy::AgeNow(const Segment& segment) const {
  return std::uint64_t{TimeNow() - segment.time} << kTimeUnit;
}

// ---- open requests

// The one that the block continues, else a new one. What nothing has continued for a while ends.
SegmentPolicy::Request& SegmentPolicy::RequestFor(const Node& node) {
  Request* unused = nullptr;
  const std::uint64_t idle = std::clamp<std::uint64_t>(count_ / kIdleShare, kLeastIdle, kMostIdle);
  for (Request& request : requests_) {
    if (request.touched == 0) {
      unused = &request;
    } else if (node.parent_tag != 0 && node.parent_tag == TagOf(request.steps.back().key)) {
      if (request.steps.size() < kMostSteps) return request;
      CloseRequest(request, /*ended=*/false);
      return request;
    }
  }
  for (Request& request : requests_) {
    if (request.touched == 0 || asked_ - request.touched < idle) continue;
    CloseRequest(request);
    unused = &request;
  }
  if (unused != nullptr) return *unused;
  CloseOldest();
  return *std::ranges::find(requests_, 0U, &Request::touched);
}

bool SegmentPolicy::CloseOldest() {
  Request* oldest = nullptr;
  for (Request& request : requests_) {
    if (request.touched == 0) continue;
    if (oldest == nullptr || request.touched < oldest->touched) oldest = &request;
  }
  if (oldest != nullptr) CloseRequest(*oldest);
  return oldest != nullptr;
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

void SegmentPolicy::AddStep(Request& request, ObjectId id, bool known) {
  Node& node = nodes_[id];
  node.open = true;
  node.segment = static_cast<SegmentId>(&request - requests_.data()) * kMostSteps +
                 static_cast<SegmentId>(request.steps.size());
  request.touched = ++asked_;
  request.time = TimeNow();
  ++open_steps_;
  request.steps.push_back({.id = id,
                           .key = node.key,
                           .uses = node.uses,
                           .children = node.children,
                           .known = known,
                           .followed = node.followed,
                           .ephemeral = request.ephemeral});
}

void SegmentPolicy::OnPut(const PutEvent& event) {
  nodes_.Reach(event.id);
  Node& node = nodes_[event.id];
  node = {.key = KeyOf(event.key),
          .parent_tag = event.parent_key == 0 ? std::uint16_t{0} : TagOf(KeyOf(event.parent_key))};
  Request& request = RequestFor(node);
  ++now_;
  most_ = std::max(most_, ++count_);
  node.followed = Followed(node, event.parent);
  const Ghost::Entry* seen = node.followed ? ghost_.Find(node.key) : nullptr;
  if (seen != nullptr) {
    node.uses = seen->uses;
    node.children = seen->children & kMostChildren;
  }
  AddStep(request, event.id, seen != nullptr);
}

void SegmentPolicy::Prefetch(std::span<const std::uint64_t> keys) const {
  for (const std::uint64_t key : keys) ghost_.PrefetchHead(KeyOf(key));
  for (const std::uint64_t key : keys) ghost_.PrefetchEntry(KeyOf(key));
}

void SegmentPolicy::OnHit(ObjectId id) {
  Node& node = nodes_[id];
  if (node.open) return;
  Request& request = RequestFor(node);
  DropFromSegment(id);
  AddStep(request, id, true);
}

void SegmentPolicy::OnHints(ObjectId id, const Hints& hints) {
  Request* request = OpenOf(id);
  if (request == nullptr) return;
  if (hints.output_tokens > 0) request->output_tokens = hints.output_tokens;
  if (hints.session_ends) request->session_ends = true;
  if (!hints.ephemeral) return;
  request->ephemeral = true;
  request->steps[nodes_[id].segment % kMostSteps].ephemeral = true;
}

void SegmentPolicy::EndRequest(ObjectId last) {
  Request* request = OpenOf(last);
  if (request != nullptr && request->steps.back().id == last) CloseRequest(*request);
}

void SegmentPolicy::OnRemove(ObjectId id, bool /*evicted*/) {
  --count_;
  Node& node = nodes_[id];
  if (Request* request = OpenOf(id)) {
    request->steps[node.segment % kMostSteps].id = kNoObject;
    node.open = false;
    return;
  }
  DropFromSegment(id);
}

// What the caller says of a block goes before what the policy sees, but for prefixes that several
// conversations share: they do not end with one of them.
std::uint8_t SegmentPolicy::ClassOf(const Request& request, const Step& step,
                                    std::uint8_t otherwise) const {
  if (step.ephemeral) return kEphemeralClass;
  if (request.session_ends && step.children < kSharedChildren) return kEndedClass;
  return WithOutput(otherwise, request.output_tokens);
}

void SegmentPolicy::CloseRequest(Request& request, bool ended) {
  std::vector<Step>& steps = request.steps;
  const std::size_t n = steps.size();
  std::size_t known = 0;
  while (known < n && steps[known].known) ++known;
  const bool later_turn =
      options_.turns && known > 1 && steps[known - 1].children < kSharedChildren;
  // What continues a block for the first time makes it more of a shared prefix.
  for (std::size_t i = 0; i + 1 < n; ++i) {
    if (!steps[i + 1].known && steps[i].children < kMostChildren) ++steps[i].children;
  }
  const std::size_t tail = ended ? n - 1 : n;
  const auto class_at = [&](std::size_t i) {
    const std::uint8_t bucket = options_.cut ? UseBucket(steps[i].uses) : std::uint8_t{0};
    return ClassOf(
        request, steps[i],
        bucket == 0 ? NewClass(later_turn, options_.lengths ? n : 1) : UsedClass(bucket, false));
  };
  SegmentId previous = kNoSegment;
  for (std::size_t begin = 0; begin < tail;) {
    const std::uint8_t cls = class_at(begin);
    std::size_t end = begin + 1;
    while (end < tail && class_at(end) == cls) ++end;
    MakeSegment(request, begin, end, options_.before_tail && end == tail ? BeforeTail(cls) : cls,
                previous);
    begin = end;
  }
  if (ended) MakeSegment(request, tail, n, ClassOf(request, steps[tail], kTailClass), previous);
  open_steps_ -= n;
  steps.clear();
  if (ended) request = {.steps = std::move(steps)};
  const auto shared = [this](std::size_t keys) {
    return static_cast<std::size_t>(share_ * static_cast<double>(keys));
  };
  const std::size_t keep = std::clamp(options_.ghost_share * most_, shared(options_.least_ghost),
                                      shared(options_.most_ghost));
  while (const std::optional<Ghost::Entry> oldest = ghost_.TakeOldest(keep)) Forget(*oldest);
  PrefetchOldest();
  if (counted_ != kNoSegment || asked_ >= next_update_) UpdateTables();
}

// The one that goes with the next new key, most likely.
void SegmentPolicy::PrefetchOldest() const {
  const Ghost::Entry* oldest = ghost_.Oldest();
  if (oldest == nullptr) return;
  ghost_.PrefetchHead(oldest->key);
  __builtin_prefetch(&segments_[oldest->segment]);
}

void SegmentPolicy::MakeSegment(const Request& request, std::size_t begin, std::size_t end,
                                std::uint8_t cls, SegmentId& previous) {
  const SegmentId id = NewSegment();
  Segment& segment = segments_[id];
  segment.time = request.time;  // not when its end was noticed
  segment.cls = cls;
  segment.size = static_cast<std::uint16_t>(end - begin);
  segment.shallower = previous;
  if (previous != kNoSegment) segments_[previous].deeper = id;
  for (std::size_t i = begin; i < end; ++i) {
    const Step& step = request.steps[i];
    const auto uses = static_cast<std::uint8_t>(std::min<int>(step.uses + 1, options_.most_uses));
    if (step.followed) {
      // First, as a request that removes a key and puts it again leaves this very segment.
      ++segment.followed;
      LeaveOldSegment(step);
      Ghost::Entry& entry = ghost_.Add(step.key);
      entry.segment = id;
      entry.uses = uses;
      entry.children = step.children;
    }
    if (step.id == kNoObject) continue;
    Node& node = nodes_[step.id];
    node.open = false;
    node.uses = uses;
    node.children = step.children & kMostChildren;
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
  tables_.AddReturn(old.cls, AgeNow(old), WeightOf(old));
  --old.followed;
  FreeIfUnused(entry->segment);
}

void SegmentPolicy::Forget(const Ghost::Entry& entry) {
  Segment& segment = segments_[entry.segment];
  tables_.AddLost(segment.cls, AgeNow(segment), WeightOf(segment));
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

// Classes with an output length are there from the first one on.
AgeList<SegmentPolicy::Segments>& SegmentPolicy::ListOf(std::uint8_t cls) {
  if (cls >= lists_.size()) lists_.resize(kAllClasses);
  return lists_[cls];
}

void SegmentPolicy::ListSegment(SegmentId id) {
  const Segment& segment = segments_[id];
  ListOf(segment.cls).Insert(segments_, id, AgeBucket(AgeNow(segment)));
}

void SegmentPolicy::UnlistSegment(SegmentId id) { lists_[segments_[id].cls].Erase(segments_, id); }

SegmentPolicy::SegmentId SegmentPolicy::Deepest(SegmentId id) const {
  SegmentId deepest = id;
  if (!options_.deepest) return deepest;
  std::uint32_t left = kDeepestSlice;
  for (SegmentId at = id; at != kNoSegment && left > 0; at = segments_[at].deeper, --left) {
    if (segments_[at].cached > 0) deepest = at;
  }
  return deepest;
}

// ---- victims

// Counts what is followed, a slice a call, then computes the tables from it.
void SegmentPolicy::UpdateTables() {
  if (counted_ == kNoSegment) {
    tables_.BeginUpdate();
    counted_ = 0;
  }
  const SegmentId until = std::min(next_segment_, counted_ + kCountSlice);
  for (; counted_ < until; ++counted_) {
    const Segment& segment = segments_[counted_];
    if (!segment.used || segment.followed == 0) continue;
    tables_.AddLiving(segment.cls, AgeBucket(AgeNow(segment)),
                      static_cast<float>(segment.followed) * WeightOf(segment));
  }
  if (counted_ < next_segment_) return;
  counted_ = kNoSegment;
  tables_.Update();
  next_update_ = asked_ + std::max<std::uint64_t>(
                              std::clamp(asked_ / 32, kLeastUpdate, kMostUpdate), most_ / 64);
  chosen_left_ = 0;
}

void SegmentPolicy::Choose() {
  double least = std::numeric_limits<double>::max();
  chosen_left_ = 0;
  std::uint32_t steps_left = kAgeSlice;
  for (std::size_t cls = 0; cls < lists_.size(); ++cls) {
    if (lists_[cls].empty()) continue;
    // Until the tables know the parts of a class, they are worth as much as the class.
    const auto known = static_cast<std::uint8_t>(
        cls < tables_.classes() ? cls : WholeOf(static_cast<std::uint8_t>(cls)));
    const double weight = cls == kTailClass ? options_.tail_weight : 1;
    lists_[cls].Advance(segments_, TimeNow(), steps_left);
    for (std::size_t age = 0; age < kAges; ++age) {
      if (lists_[cls].Empty(age)) continue;
      const double worth = tables_.Index(known, age) * weight;
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

// Victims are asked for in rows: the block that the next segment gives up, and the segment after
// it, which the call before fetched this one's address for.
void SegmentPolicy::PrefetchBehind(SegmentId id) const {
  const SegmentId next = segments_[id].link.next;
  if (next == kNoSegment) return;
  const ObjectId block = segments_[next].blocks.back();
  if (block != kNoObject) __builtin_prefetch(&nodes_[block]);
  const SegmentId after = segments_[next].link.next;
  if (after != kNoSegment) __builtin_prefetch(&segments_[after]);
}

ObjectId SegmentPolicy::Victim(const std::function<bool(ObjectId)>& evictable) {
  // Requests whose end nobody tells do not hold most of a small cache.
  if (open_steps_ > count_ / 2 &&
      std::ranges::count(requests_, 0U, &Request::touched) + 1 < kMostOpen) {
    CloseOldest();
  }
  if (++victims_since_readmit_ > std::max<std::uint64_t>(64, parked_count_)) Readmit();
  std::uint64_t ask_again = parked_count_;  // of those that were refused before
  while (true) {
    if (chosen_left_ == 0 || lists_[chosen_class_].Empty(chosen_age_)) Choose();
    if (chosen_left_ == 0) {
      if (ask_again > 0) {
        ask_again -= std::min<std::uint64_t>(ask_again, Readmit());
      } else if (!CloseOldest()) {  // an open request gives way when nothing else is left
        return kNoObject;
      }
      continue;
    }
    const SegmentId front = lists_[chosen_class_].first(chosen_age_);
    PrefetchBehind(front);
    const SegmentId from = Deepest(front);
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

std::size_t SegmentPolicy::bytes() const {
  std::size_t steps = 0;
  for (const Request& request : requests_) steps += request.steps.capacity();
  return sizeof(*this) + nodes_.bytes() + segments_.bytes() + ghost_.bytes() + tables_.bytes() +
         free_segments_.size() * sizeof(SegmentId) + lists_.capacity() * sizeof(lists_[0]) +
         steps * sizeof(Step);
}

// ---- for tests

std::string SegmentPolicy::Contradiction() const {
  std::vector<std::uint32_t> followed(next_segment_);
  ghost_.ForEach([&](const Ghost::Entry& entry) { ++followed[entry.segment]; });
  std::vector<std::uint32_t> parked(next_segment_);
  for (ObjectId id = parked_.front(); id != kNoObject; id = nodes_[id].link.next) {
    if (!nodes_[id].parked) return fmt::format("object {} is parked and does not know it", id);
    ++parked[nodes_[id].segment];
  }
  std::vector<bool> listed(next_segment_);
  for (std::size_t cls = 0; cls < lists_.size(); ++cls) {
    if (!lists_[cls].Consistent(segments_)) return fmt::format("the list of class {}", cls);
    for (SegmentId id = lists_[cls].front(); id != kNoSegment; id = segments_[id].link.next) {
      if (segments_[id].cls != cls) return fmt::format("segment {} in list {}", id, cls);
      listed[id] = true;
    }
  }
  std::size_t objects = 0;
  std::size_t steps = 0;
  for (const Request& request : requests_) {
    if ((request.touched == 0) != request.steps.empty()) return "a request without blocks";
    steps += request.steps.size();
    for (const Step& step : request.steps) {
      if (step.id == kNoObject) continue;
      ++objects;
      const Node& node = nodes_[step.id];
      const auto place = static_cast<SegmentId>(&step - request.steps.data());
      if (!node.open || &requests_[node.segment / kMostSteps] != &request ||
          node.segment % kMostSteps != place) {
        return fmt::format("object {} and its open request", step.id);
      }
    }
  }
  if (steps != open_steps_) return fmt::format("{} open blocks of {}", steps, open_steps_);
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
