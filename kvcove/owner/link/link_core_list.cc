// SPDX-License-Identifier: Apache-2.0
// The list lane where one master has the whole directory.
#include <algorithm>

#include "kvcove/owner/link/link_core.h"

namespace kvcove::owner {
namespace {

// Pause before credit is asked for again: 16 owners report at a time, and a thousand may wait.
constexpr std::int64_t kCreditNs = 100 * kMillisecond;

}  // namespace

// ---- the next call

LinkCore::Step LinkCore::NextList() {
  bool reported = false;
  std::uint32_t credit = 0;
  bool sharded = false;
  {
    const MutexLock lock(mutex_);
    sharded = shards_.active();
    lane_session_ = 0;
  }
  if (sharded) {
    Step step = NextShard(0);
    const MutexLock lock(mutex_);
    lane_session_ = step.session;
    return step;
  }
  // Held until the batch is stored: UseMap moves a stored batch into the new map's lanes, but would
  // not see items that were taken and are not stored yet.
  const MutexLock route(route_mutex_);
  UseMap();
  {
    const MutexLock lock(mutex_);
    if (shards_.active()) return {.wait_ns = 0};
    const std::size_t lane = Index(Lane::kList);
    if (member_.Unwelcome() || std::exchange(pause_[lane], false)) return {.wait_ns = kLanePauseNs};
    if (const std::int64_t wait_ns = std::exchange(list_wait_ns_, 0); wait_ns > 0) {
      return {.wait_ns = wait_ns};
    }
    asked_under_[lane] = member_.epoch();
    if (batch_) {
      return {.call = Call{
                  .method = wire::Method::kList, .body = batch_->body, .timeout_ns = kListCallNs}};
    }
    reported = report_.reported();
    credit = credit_;
  }
  if (target_.TakeGoneOverflow()) {
    // Removals of entries were lost, so the master would send readers here for objects that this
    // owner does not have. A new epoch voids all its entries.
    const MutexLock lock(mutex_);
    member_.SayHelloAgain(/*new_epoch=*/true);
    pause_[Index(Lane::kList)] = true;
    return {.wait_ns = kLanePauseNs};
  }
  if (reported) reported = !ReportsAgain();
  Batch batch = MakeBatch(reported, credit);
  {
    const MutexLock lock(mutex_);
    if (member_.epoch() == asked_under_[Index(Lane::kList)]) {
      if (batch.body.empty()) {
        rounds_.End();
        return {.wait_ns = kLanePauseNs};
      }
      batch_ = std::move(batch);
      return {.call = Call{
                  .method = wire::Method::kList, .body = batch_->body, .timeout_ns = kListCallNs}};
    }
  }
  // A new epoch began meanwhile: everything is reported again in it. Puts are not in the inventory
  // yet, so they return to the queue; `gone` may be dropped.
  target_.ReturnListings(std::move(batch.listings));
  return {.wait_ns = 0};
}

bool LinkCore::ReportsAgain() {
  const std::optional<ObjectId> from = target_.ReportAgainFrom();
  const MutexLock lock(mutex_);
  if (!report_.reported() || member_.epoch() != asked_under_[Index(Lane::kList)]) return false;
  return report_.ReportAgain(from);
}

// The order matters. Removed entries are taken after the listings and sent before them, so that a
// key that was evicted and stored again remains listed. The inventory is read last: an object that
// is withdrawn after that is in the next batch.
LinkCore::Batch LinkCore::MakeBatch(bool reported, std::uint32_t credit) {
  Batch batch;
  ObjectId cursor = 0;
  bool may_walk = false;
  wire::ListRequest request;
  {
    const MutexLock lock(mutex_);
    request.number = member_.number();
    request.epoch = asked_under_[Index(Lane::kList)];
    request.sequence = sequence_ + 1;
    request.applied = applied_at_batch_ = removals_.applied();
    cursor = report_.cursor();
    may_walk = answered_.MayWalk(shards_.restarts());
  }
  batch.listings = target_.TakeListings(kListPageItems);
  batch.gone = target_.TakeGone(kGonePageItems);
  batch.last = cursor == Core::kWalkDone && batch.gone.size() < kGonePageItems;
  for (const InventoryItem& item : batch.gone) request.items.push_back(item.item);
  // More removed entries may be queued, possibly of these listings' keys: list those later.
  if (batch.gone.size() == kGonePageItems) {
    target_.ReturnListings(std::exchange(batch.listings, {}));
  } else {
    for (const Listing& listing : batch.listings) {
      for (const Pending& pending : listing.pending) request.items.push_back(pending.item);
    }
    if (!reported && credit > 0 && cursor != Core::kWalkDone && !may_walk) {
      batch.waits = true;
    } else if (!reported && credit > 0 && cursor != Core::kWalkDone) {
      const ObjectId from = cursor;
      batch.inventory = target_.Inventory(cursor, std::min<std::size_t>(kListPageItems, credit));
      batch.waits = batch.inventory.empty() && cursor == from;
      for (const InventoryItem& item : batch.inventory) request.items.push_back(item.item);
    }
  }
  const MutexLock lock(mutex_);
  if (reported && request.items.empty()) return batch;
  if (request.epoch == member_.epoch() && report_.walking()) report_.Advance(cursor);
  batch.sequence = request.sequence;
  batch.body = wire::Encode(request);
  return batch;
}

// ---- the answer

void LinkCore::AnswerList(const Result<std::string>& reply) {
  std::uint64_t session = 0;
  {
    const MutexLock lock(mutex_);
    session = lane_session_;
  }
  if (session != 0) return AnswerShard(0, session, reply);
  {
    const MutexLock lock(mutex_);
    const std::size_t lane = Index(Lane::kList);
    if (asked_under_[lane] != member_.epoch() || !batch_) return;
    if (!reply) {
      // The same batch is sent again under its sequence number, so the master acts on it once.
      pause_[lane] = true;
      if (reply.error().code == Code::kStale) member_.SayHelloAgain(/*new_epoch=*/true);
      return;
    }
  }
  std::size_t items = 0;
  {
    const MutexLock lock(mutex_);
    if (!batch_) return;  // UseMap has moved it into the lanes of a map
    items = batch_->gone.size() + batch_->inventory.size();
    for (const Listing& listing : batch_->listings) items += listing.pending.size();
  }
  const auto listed = wire::DecodeListReply(wire::AsBytes(*reply), items);
  if (listed) Listed(*listed);
}

void LinkCore::Listed(const wire::ListReply& reply) {
  Batch batch;
  std::uint64_t number = 0;
  {
    const MutexLock lock(mutex_);
    if (!batch_) return;
    batch = std::move(*batch_);
    batch_.reset();
    number = answered_.Begin(shards_.restarts());
    sequence_ = batch.sequence;
    credit_ = reply.credit;
  }
  // Refused: another owner has another value of the key, or the directory has no room for the
  // tenant. An object that is not listed must not be found on this host alone, so it is dropped. An
  // object that moved during the walk may have been reported in `gone` only.
  std::vector<InventoryItem> second;
  bool stale = false;
  const auto take = [&](std::vector<InventoryItem>& reported, std::span<const Code> answers) {
    for (std::size_t i = 0; i < reported.size(); ++i) {
      if (answers[i] == Code::kExists || answers[i] == Code::kLimit) {
        second.push_back(std::move(reported[i]));
      }
      stale = stale || answers[i] == Code::kStale;
    }
  };
  std::span<const Code> codes = reply.codes;
  take(batch.gone, codes.first(batch.gone.size()));
  codes = codes.subspan(batch.gone.size());
  for (Listing& listing : batch.listings) {
    const std::size_t count = listing.pending.size();
    target_.CompleteListing(std::move(listing), codes.first(count));
    codes = codes.subspan(count);
  }
  take(batch.inventory, codes);
  if (!second.empty()) target_.DropObjects(second);
  EndCompleting(number, second.size(), stale);
  if (!Walked(batch)) return;
  target_.WalkEnds();
  target_.Reported();
}

// Returns whether the walk over the inventory has ended with this batch.
bool LinkCore::Walked(const Batch& batch) {
  const MutexLock lock(mutex_);
  // A full page may leave removed keys in the queue, for the next one.
  if (batch.gone.size() < kGonePageItems) rounds_.End();
  if (shards_.active()) return false;  // a map is in use since: ShardsReported ends the walk
  if (!report_.walking()) return false;
  if (!report_.passed()) {
    if (batch.waits) list_wait_ns_ = kLanePauseNs;
    if (credit_ == 0) list_wait_ns_ = kCreditNs;
    return false;
  }
  // An object that moved behind the walk's cursor is reported as moved, in the next batch.
  if (identity_.disk && !batch.last) return false;
  if (!report_.End()) {
    list_wait_ns_ = kLanePauseNs;
    return false;
  }
  member_.Wait(0);
  return true;
}

}  // namespace kvcove::owner
