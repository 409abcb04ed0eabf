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
  if (map == nullptr || map->term != member_.seen().term || map->revision <= MapRevision()) return;
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
  if (map == nullptr || member_.epoch() == 0 || map->term != member_.seen().term) return;
  const bool first = !shards_.active();
  if (!first && map->revision <= shards_.map()->revision) return;
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
  if (first) shards_.lane(0).credit = credit_;
  report_.UseMap(*map, first);
  rounds_.Abandon();
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
    if (member_.epoch() == 0 || !shards_.active()) return;
    epoch = member_.epoch();
    reported = report_.reported();
    room = shards_.queued() < kListingsQueued;
    asked_under_[Index(Lane::kList)] = epoch;
  }
  bool again = target_.TakeGoneOverflow();
  if (reported && !again) {
    const std::optional<ObjectId> from = target_.ReportAgainFrom();
    const MutexLock lock(mutex_);
    if (member_.epoch() == epoch) report_.ReportAgainToShards(from);
  }
  // Before the items are taken: a shard may refuse an item for a removal after this number, so a
  // later number would claim that this owner has applied it to them.
  std::uint64_t applied = 0;
  {
    const MutexLock lock(mutex_);
    applied = removals_.applied();
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
    const bool walking = member_.epoch() == epoch && shards_.active() && report_.walking();
    cursor = report_.cursor();
    behind_walk = walking && report_.passed();
    walks = walking && !behind_walk && shards_.Empty() && shards_.lane(0).credit > 0 &&
            report_.Due(clock_.NowNs()) && answered_.MayWalk(shards_.restarts());
  }
  std::vector<InventoryItem> inventory;
  if (walks && !again) inventory = target_.Inventory(cursor, kListPageItems);
  {
    const MutexLock lock(mutex_);
    again = again || shards_.queued() > kMaxQueued;
    if (member_.epoch() == epoch && shards_.active() && !again) {
      using Kind = ShardLanes::Kind;
      for (InventoryItem& item : gone) {
        shards_.Add({.kind = Kind::kGone, .reported = std::move(item), .applied = applied});
      }
      for (Listing& listing : listings) shards_.AddListing(std::move(listing), applied);
      listings.clear();
      for (InventoryItem& item : inventory) {
        if (report_.Skips(item, *shards_.map())) continue;
        shards_.Add({.kind = Kind::kInventory, .reported = std::move(item), .applied = applied});
      }
      if (walks) report_.Advance(cursor);
      // The walk's cursor was at the end before TakeGone, so `gone` has all objects that moved
      // behind it: with these the walk is complete.
      if (behind_walk) report_.NotePassed(shards_);
      rounds_.Begin(shards_);
    } else if (again && member_.epoch() == epoch) {
      member_.SayHelloAgain(/*new_epoch=*/true);
    }
  }
  if (!listings.empty()) target_.ReturnListings(std::move(listings));
}

LinkCore::Step LinkCore::NextShard(std::size_t number) {
  Route();
  // A walk that found no objects gets no answer, so AnswerShard would never end it.
  if (EndsWalk()) target_.Reported();
  const MutexLock lock(mutex_);
  if (member_.epoch() == 0 || !shards_.active() || number >= shards_.size()) {
    return {.wait_ns = kLanePauseNs};
  }
  if (number != 0 && shards_.map()->addresses[number].empty()) return {.wait_ns = kLanePauseNs};
  rounds_.Check(shards_);
  ShardLanes::Lane& lane = shards_.lane(number);
  if (std::exchange(lane.pause, false)) return {.wait_ns = kLanePauseNs};
  if (const std::int64_t wait_ns = std::exchange(lane.wait_ns, 0); wait_ns > 0) {
    return {.wait_ns = wait_ns};
  }
  if (!lane.batch) {
    // The leader gives the credit for all shards: two shards might give it to different owners,
    // which would wait for each other.
    const bool asks = number == 0 && report_.walking() && lane.credit == 0;
    if (lane.queue.empty() && !asks) return {.wait_ns = kLanePauseNs};
    wire::ListRequest request{.number = member_.number(),
                              .epoch = member_.epoch(),
                              .sequence = lane.sequence + 1,
                              .applied = removals_.applied(),
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
      if (reply.error().code == Code::kStale) member_.SayHelloAgain(/*new_epoch=*/true);
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
    if (number == 0 && lane.credit == 0 && report_.walking()) lane.wait_ns = kLanePauseNs;
    answered = shards_.Answer(lane, codes);
    batch = answered_.Begin(shards_.restarts());
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

// Ends the walk and notes it at the owner, in one hold of `route_mutex_`: another lane's Route may
// begin the next walk as soon as this one has ended, and WalkEnds would count the next one's
// reports as accepted.
bool LinkCore::EndsWalk() {
  const MutexLock route(route_mutex_);
  if (!ShardsReported()) return false;
  target_.WalkEnds();
  return true;
}

// Returns whether a walk over all of the inventory, or of a disk, has ended.
bool LinkCore::ShardsReported() {
  const MutexLock lock(mutex_);
  if (!shards_.active()) return false;
  rounds_.Check(shards_);
  using Ended = InventoryReport::Ended;
  const Ended ended = report_.EndAtShards(shards_, answered_, clock_.NowNs() + kLanePauseNs);
  if (ended != Ended::kNo) member_.Wait(0);
  return ended == Ended::kAll;
}

void LinkCore::EndCompleting(std::uint64_t batch, std::size_t gave_way, bool stale) {
  const MutexLock lock(mutex_);
  answered_.End(batch);
  gave_way_ += gave_way;
  if (stale) report_.NoteStale();
}

// Ends the use of shards. Returns the puts that have no answer, for the owner's queue.
std::vector<Listing> LinkCore::EndShards() {
  report_.LeaveShards();
  rounds_.Abandon();
  next_map_ = nullptr;
  if (!shards_.active()) return {};
  return shards_.Clear();
}

std::vector<Listing> LinkCore::TakeUnanswered() {
  std::vector<Listing> listings = EndShards();
  if (batch_) {
    listings.insert(listings.end(), std::make_move_iterator(batch_->listings.begin()),
                    std::make_move_iterator(batch_->listings.end()));
  }
  batch_.reset();
  return listings;
}

}  // namespace kvcove::owner
