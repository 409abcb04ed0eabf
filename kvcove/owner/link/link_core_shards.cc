// SPDX-License-Identifier: Apache-2.0
// The list lane where several masters serve shards of the directory: one queue a shard. The items
// that are taken from the owner are routed by their slices; the lane that asks next does it.
#include <algorithm>

#include "kvcove/owner/link/link_core.h"

namespace kvcove::owner {
namespace {

constexpr std::size_t kShardBatchItems = 8192;
// Entries in the queues beyond which everything is reported again under a new epoch, because a
// shard has not answered for too long.
constexpr std::size_t kMaxQueued = 1 << 20;
constexpr std::size_t kListingsQueued = 1 << 16;  // beyond, puts remain in the outbox

}  // namespace

std::size_t LinkCore::shards() const {
  const MutexLock lock(mutex_);
  return shards_.active() ? shards_.size() : 0;
}

std::string LinkCore::ShardAddress(std::size_t number) const {
  const MutexLock lock(mutex_);
  if (!shards_.active() || number >= shards_.size()) return {};
  return shards_.map()->addresses[number];
}

// Keeps the map until a lane routes (UseMap), because the lease's lane must not wait for
// `route_mutex_`.
void LinkCore::NoteMap(const std::shared_ptr<const wire::ShardMap>& map) {
  const MutexLock lock(mutex_);
  if (map == nullptr || map->term != seen_.term || map->revision <= MapRevision()) return;
  next_map_ = map;
}

std::uint64_t LinkCore::MapRevision() const {
  if (next_map_ != nullptr) return next_map_->revision;
  return shards_.active() ? shards_.map()->revision : 0;
}

// Puts a new map into use. With the first one, the single lane's batch moves into the shards'
// lanes. Needs `route_mutex_`: between TakeGone and Add the items are in no queue that SetMap could
// move.
void LinkCore::UseMap() {
  const MutexLock lock(mutex_);
  const std::shared_ptr<const wire::ShardMap> map = std::exchange(next_map_, nullptr);
  if (map == nullptr || epoch_ == 0 || map->term != seen_.term) return;
  const bool first = !shards_.active();
  if (!first && map->revision <= shards_.map()->revision) return;
  // A slice that began without entries after the last walk's map (`fresh`): the inventory must be
  // walked for it.
  const std::uint64_t since = std::max(reported_map_, walk_map_);
  const bool restart =
      std::ranges::any_of(map->fresh, [&](std::uint64_t revision) { return revision > since; });
  shards_.SetMap(map);
  if (first && batch_) {
    for (InventoryItem& item : batch_->gone) {
      shards_.Add({.kind = ShardLanes::Kind::kGone,
                   .reported = std::move(item),
                   .applied = applied_at_batch_});
    }
    for (Listing& listing : batch_->listings) {
      shards_.AddListing(std::move(listing), applied_at_batch_);
    }
    for (InventoryItem& item : batch_->inventory) {
      shards_.Add({.kind = ShardLanes::Kind::kInventory,
                   .reported = std::move(item),
                   .applied = applied_at_batch_});
    }
    batch_.reset();
  }
  if (first) {
    shards_.lane(0).credit = credit_;
    walk_map_ = reported_map_ = 0;
  }
  walk_end_.reset();
  walk_last_.reset();
  round_marks_.reset();
  if (!restart) {
    // No slice began anew: all reports remain valid.
    (reported_ && !reporting_again_ ? reported_map_ : walk_map_) = shards_.map()->revision;
    return;
  }
  walk_map_ = shards_.map()->revision;
  cursor_ = 0;
  stale_reported_ = false;
  if (reported_) {
    only_fresh_ = !reporting_again_ || only_fresh_;
    reporting_again_ = true;
    again_from_ = 0;
  }
}

bool LinkCore::IsReported(const InventoryItem& item) const {
  return only_fresh_ && shards_.map()->fresh[wire::SliceOf(item.item.hash)] <= reported_map_;
}

// Takes the owner's news and queues it, and a page of the inventory if every shard has taken the
// last one and the leader gives credit. `mutex_` is not held while the owner is called, so each
// step checks the epoch again.
void LinkCore::Route() {
  const MutexLock route(route_mutex_);
  UseMap();
  std::uint32_t epoch = 0;
  bool reported = false;
  bool room = false;
  {
    const MutexLock lock(mutex_);
    if (epoch_ == 0 || !shards_.active()) return;
    epoch = epoch_;
    reported = reported_;
    room = shards_.queued() < kListingsQueued;
    asked_under_[static_cast<std::size_t>(Lane::kList)] = epoch_;
  }
  bool again = target_.TakeGoneOverflow();
  if (reported && !again) {
    const std::optional<ObjectId> from = target_.ReportAgainFrom();
    const MutexLock lock(mutex_);
    if (epoch_ == epoch) NoteReportAgain(from);
  }
  // Before the items are taken: a shard may refuse an item for a removal after this number, so a
  // later number would claim that this owner has applied it to them.
  std::uint64_t applied = 0;
  {
    const MutexLock lock(mutex_);
    applied = removals_;
  }
  std::vector<Listing> listings;
  if (room) listings = target_.TakeListings(kListPageItems);
  std::vector<InventoryItem> gone;
  while (!again) {
    std::vector<InventoryItem> page = target_.TakeGone(kGonePageItems);
    const bool last = page.size() < kGonePageItems;
    gone.insert(gone.end(), std::make_move_iterator(page.begin()),
                std::make_move_iterator(page.end()));
    if (last) break;
    again = gone.size() > kMaxQueued;
  }
  ObjectId cursor = 0;
  bool walks = false;
  bool behind_walk = false;
  {
    const MutexLock lock(mutex_);
    const bool walking = epoch_ == epoch && shards_.active() && (!reported_ || reporting_again_);
    cursor = cursor_;
    behind_walk = walking && cursor == Core::kWalkDone;
    walks = walking && !behind_walk && shards_.Empty() && shards_.lane(0).credit > 0 &&
            clock_.NowNs() >= walk_from_ns_ && MayWalk();
  }
  std::vector<InventoryItem> inventory;
  if (walks && !again) inventory = target_.Inventory(cursor, kListPageItems);
  {
    const MutexLock lock(mutex_);
    again = again || shards_.queued() > kMaxQueued;
    if (epoch_ == epoch && shards_.active() && !again) {
      using Kind = ShardLanes::Kind;
      for (InventoryItem& item : gone) {
        shards_.Add({.kind = Kind::kGone, .reported = std::move(item), .applied = applied});
      }
      for (Listing& listing : listings) shards_.AddListing(std::move(listing), applied);
      listings.clear();
      for (InventoryItem& item : inventory) {
        if (IsReported(item)) continue;
        shards_.Add({.kind = Kind::kInventory, .reported = std::move(item), .applied = applied});
      }
      if (walks) cursor_ = cursor;
      // The walk's cursor was at the end before TakeGone, so `gone` has all objects that moved
      // behind it: with these the walk is complete.
      if (behind_walk && !walk_end_) walk_end_ = shards_.Marks();
      if (!round_marks_) round_marks_ = shards_.Marks();
    } else if (again && epoch_ == epoch) {
      SayHelloAgain(/*new_epoch=*/true);
    }
  }
  if (!listings.empty()) target_.ReturnListings(std::move(listings));
}

// Begins, changes or ends the second walk for a disk that was set aside and works again: its
// objects of all slices are reported, not only those of fresh ones (`only_fresh_`).
void LinkCore::NoteReportAgain(std::optional<ObjectId> from) {
  if (from && (!reporting_again_ || only_fresh_)) {
    cursor_ = again_from_ = only_fresh_ && reporting_again_ ? 0 : *from;
    reporting_again_ = true;
    only_fresh_ = false;
    walk_end_.reset();
    walk_last_.reset();
  } else if (!from && reporting_again_ && !only_fresh_) {
    // The disk failed again, or all of it is reported. Slices that began anew must be reported all
    // the same, and their objects may be before the cursor.
    reporting_again_ = only_fresh_ = walk_map_ > reported_map_;
    cursor_ = reporting_again_ ? 0 : cursor_;
    again_from_ = reporting_again_ ? 0 : again_from_;
    walk_end_.reset();
    walk_last_.reset();
  }
}

LinkCore::Step LinkCore::NextShard(std::size_t number) {
  Route();
  // A walk that found no objects gets no answer, so AnswerShard would never end it.
  if (EndsWalk()) target_.Reported();
  const MutexLock lock(mutex_);
  if (epoch_ == 0 || !shards_.active() || number >= shards_.size()) {
    return {.wait_ns = kLanePauseNs};
  }
  if (number != 0 && shards_.map()->addresses[number].empty()) return {.wait_ns = kLanePauseNs};
  CheckRounds();
  ShardLanes::Lane& lane = shards_.lane(number);
  if (std::exchange(lane.pause, false)) return {.wait_ns = kLanePauseNs};
  if (const std::int64_t wait_ns = std::exchange(lane.wait_ns, 0); wait_ns > 0) {
    return {.wait_ns = wait_ns};
  }
  if (!lane.batch) {
    // The leader gives the credit for all shards: two shards might give it to different owners,
    // which would wait for each other.
    const bool asks = number == 0 && (!reported_ || reporting_again_) && lane.credit == 0;
    if (lane.queue.empty() && !asks) return {.wait_ns = kLanePauseNs};
    wire::ListRequest request{.number = number_,
                              .epoch = epoch_,
                              .sequence = lane.sequence + 1,
                              .applied = removals_,
                              .session = lane.session,
                              .items = {}};
    for (const ShardLanes::Entry& entry : shards_.Take(lane, kShardBatchItems)) {
      request.items.push_back(entry.reported.item);
      request.applied = std::min(request.applied, entry.applied);
    }
    lane.body = wire::Encode(request);
  }
  return {.call = Call{.method = wire::Method::kList, .body = lane.body, .timeout_ns = kListCallNs},
          .session = lane.session};
}

void LinkCore::AnswerShard(std::size_t number, std::uint64_t session,
                           const Result<std::string>& reply) {
  ShardLanes::Answered answered;
  std::vector<Code> codes;
  std::uint64_t batch = 0;
  {
    const MutexLock lock(mutex_);
    if (!shards_.active() || number >= shards_.size()) return;
    ShardLanes::Lane& lane = shards_.lane(number);
    if (lane.session != session || !lane.batch) return;  // a new map or epoch asks again
    if (!reply) {
      lane.pause = true;
      if (reply.error().code == Code::kStale) SayHelloAgain(/*new_epoch=*/true);
      return;
    }
    auto listed = wire::DecodeListReply(wire::AsBytes(*reply), lane.batch->size());
    if (!listed) {
      lane.pause = true;
      return;
    }
    codes = std::move(listed->codes);
    ++lane.sequence;
    lane.credit = listed->credit;
    if (number == 0 && lane.credit == 0 && (!reported_ || reporting_again_))
      lane.wait_ns = kLanePauseNs;
    answered = shards_.Answer(lane, codes);
    batch = BeginCompleting();
  }
  std::vector<InventoryItem> second;
  bool stale = false;
  for (std::size_t i = 0; i < answered.batch.size(); ++i) {
    ShardLanes::Entry& entry = answered.batch[i];
    if (entry.kind == ShardLanes::Kind::kPut) continue;
    if (codes[i] == Code::kExists || codes[i] == Code::kLimit) {
      second.push_back(std::move(entry.reported));
    }
    stale = stale || codes[i] == Code::kStale;
  }
  for (const auto& split : answered.complete) {
    target_.CompleteListing(std::move(split->listing), split->codes);
  }
  if (!second.empty()) target_.DropObjects(second);
  EndCompleting(batch, second.size(), stale);
  if (EndsWalk()) target_.Reported();
}

void LinkCore::CheckRounds() {
  if (!round_marks_ || !shards_.Reached(*round_marks_)) return;
  round_marks_.reset();
  ++rounds_;
}

// Ends the walk and notes it at the owner, in one hold of `route_mutex_`: another lane's Route may
// begin the next walk as soon as this one has ended, and WalkEnds would count the next one's
// reports as accepted.
bool LinkCore::EndsWalk() {
  const MutexLock route(route_mutex_);
  if (!ShardsReported()) return false;
  target_.WalkEnds();
  return true;
}

// Returns whether the walk over the inventory has ended: the shards have answered all of it, and no
// lane still acts on such an answer. A lane that does may still have refused objects to drop, which
// must not be shown when the owner counts as reported.
bool LinkCore::ShardsReported() {
  const MutexLock lock(mutex_);
  if (!shards_.active()) return false;
  CheckRounds();
  if ((reported_ && !reporting_again_) || !walk_end_ || !shards_.Reached(*walk_end_)) return false;
  if (!walk_last_) walk_last_ = next_batch_;
  if (!completing_.empty() && completing_.begin()->first < *walk_last_) return false;
  walk_end_.reset();
  walk_last_.reset();
  if (std::exchange(stale_reported_, false)) {
    cursor_ = reported_ ? again_from_ : 0;
    walk_from_ns_ = clock_.NowNs() + kLanePauseNs;
    return false;
  }
  const bool all = !reported_ || !only_fresh_;
  reported_ = true;
  reporting_again_ = false;
  only_fresh_ = false;
  reported_map_ = std::max(reported_map_, walk_map_);
  lease_wait_ns_ = 0;
  return all;
}

std::uint64_t LinkCore::BeginCompleting() {
  completing_.emplace(next_batch_, shards_.restarts());
  return next_batch_++;
}

void LinkCore::EndCompleting(std::uint64_t batch, std::size_t gave_way, bool stale) {
  const MutexLock lock(mutex_);
  completing_.erase(batch);
  gave_way_ += gave_way;
  stale_reported_ = stale_reported_ || stale;
}

bool LinkCore::MayWalk() const {
  return completing_.empty() || completing_.begin()->second == shards_.restarts();
}

// Ends the use of shards. Returns the puts that have no answer, for the owner's queue.
std::vector<Listing> LinkCore::EndShards() {
  walk_end_.reset();
  walk_last_.reset();
  round_marks_.reset();
  reported_map_ = walk_map_ = 0;
  only_fresh_ = false;
  next_map_ = nullptr;
  if (!shards_.active()) return {};
  return shards_.Clear();
}

}  // namespace kvcove::owner
