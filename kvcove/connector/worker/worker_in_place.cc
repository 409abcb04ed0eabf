// SPDX-License-Identifier: Apache-2.0
// Batches whose host memory is the pool's own: a device copies out of a segment and into it.
//
//   load   Borrow, Submit with the loan; kvcove-device: PartDone -> Revalidate -> EndBatch
//   save   Reserve, Submit with the reservation; kvcove-device: PartDone -> Fetched;
//          a mover: CommitInPlace -> EndBatch, or Abort if the device failed
//
// The loan and the reservation are the transfer's HostMemory: the queue keeps them until the ticket
// is over, however it ends, and longer than this role if the device hangs. So the pool gives that
// memory to no other value while a device may still read or write it.
//
// Values that are on other hosts, in memory that is not pinned, or beyond a bound take the ring.
#include <fmt/core.h>

#include "kvcove/connector/worker/worker.h"

namespace kvcove::connector {
namespace {

// Pause of saves in place after the pool reserved memory that is not pinned (yet): each try costs
// two calls of the pool in vain.
constexpr std::int64_t kUnpinnedNs = kSecond;

// Returns whether a get by way of the ring would have the same answer.
bool IsFinal(const ItemResult& result) { return result.code == Code::kMiss && !result.elsewhere; }

}  // namespace

void WorkerRole::StartPins() {
  std::shared_ptr<Store> store;
  std::shared_ptr<SegmentPins> before;  // destroyed after the lock: it joins its thread
  transport::DeviceQueue* const queue = queue_;
  {
    const MutexLock lock(mutex_);
    if (pins_ != nullptr && &pins_->queue() != queue) before = std::move(pins_);
    if (options_.pin_bytes == 0 || queue == nullptr || store_ == nullptr || pins_ != nullptr) {
      return;
    }
    store = store_;
  }
  auto pins = std::make_shared<SegmentPins>(
      *queue, [store, timeout = options_.timeout] { return store->Segments({.timeout = timeout}); },
      SegmentPinsOptions{.most_bytes = options_.pin_bytes,
                         .piece_bytes = options_.pin_piece_bytes,
                         .name = fmt::format("{}: rank {}", options_.engine, options_.number),
                         .thread = options_.threads > 0});
  const MutexLock lock(mutex_);
  // Register and Connect both call this, so another thread may have been faster, or have changed
  // the store or the queue while `pins` was made without the lock.
  if (pins_ != nullptr || store_ != store || queue_ != queue || stopping_) return;
  pins_.swap(pins);
  pins_->Start();  // not before: a loser's thread must not pin the same memory
}

std::uint64_t WorkerRole::PinOne() {
  std::shared_ptr<SegmentPins> pins;
  {
    const MutexLock lock(mutex_);
    pins = pins_;
  }
  if (pins == nullptr) return 0;
  if (options_.threads == 0) (void)pins->Step();
  return pins->bytes();
}

std::optional<WorkerRole::InPlace> WorkerRole::TakeInPlace(transport::DeviceWay way,
                                                           std::uint64_t bytes, bool bounded) {
  InPlace in_place;
  {
    const MutexLock lock(mutex_);
    in_place.pins = pins_;
  }
  if (in_place.pins == nullptr || in_place.pins->bytes() == 0) return std::nullopt;
  std::shared_ptr<const void> share =
      in_place_[static_cast<std::size_t>(way)]->Take(bytes, bounded);
  if (share != nullptr) in_place.memory = std::make_shared<InPlaceMemory>(std::move(share));
  return in_place;
}

bool WorkerRole::WaitsFor(const std::optional<InPlace>& in_place, bool load) const {
  if (!in_place || in_place->memory != nullptr) return false;
  const MutexLock lock(mutex_);
  return moves_.batches(load) > 0;
}

WorkerRole::Lent WorkerRole::Lend(Job& job, Store& store, const InPlace& in_place,
                                  std::vector<std::size_t> items, bool may_wait) {
  std::vector<std::string_view> keys;
  for (const std::size_t i : items) keys.push_back(job.items[i].key);
  Result<Borrowed> loan = store.Borrow(keys, {.timeout = options_.timeout, .version = job.version});
  if (!loan) return {.batch = {}, .by_ring = std::move(items)};
  for (std::size_t k = 0; k < items.size() && may_wait; ++k) {
    if (loan->result(k).code == Code::kLimit) return {.batch = {}, .by_ring = {}, .waits = true};
  }
  in_place.memory->loan = std::move(*loan);
  const Borrowed& lent = in_place.memory->loan;
  Lent out;
  std::vector<std::size_t> here;  // items that the loan has decided
  std::vector<Batch::Value> values;
  std::vector<ItemResult> results;
  for (std::size_t k = 0; k < items.size(); ++k) {
    const ItemResult& result = lent.result(k);
    Batch::Value value{.item = items[k], .tier = result.tier, .host = {}, .number = k};
    if (result.ok() && result.bytes == job.items[items[k]].bytes) {
      value.host = in_place.memory->Add(*in_place.pins, lent.pieces(k));
    }
    if (value.host.empty() && !IsFinal(result)) {
      out.by_ring.push_back(items[k]);
      continue;
    }
    here.push_back(items[k]);
    results.push_back(result);
    values.push_back(std::move(value));
  }
  auto batch = std::make_shared<Batch>();
  batch->job = job.shared_from_this();
  for (const std::size_t k : JudgeLoad(job, store, here, results)) {
    batch->values.push_back(std::move(values[k]));
  }
  if (batch->values.empty() || job.cancelled) return out;
  batch->host = batch->in_place = in_place.memory;
  out.batch = std::move(batch);
  return out;
}

void WorkerRole::Revalidate(Batch& batch) {
  std::vector<ItemResult> now(batch.in_place->loan.size());
  const Status looked = batch.in_place->loan.Revalidate(now);
  for (Batch::Value& value : batch.values) {
    const ItemResult& result = now[value.number];
    if (looked && result.ok()) continue;
    value.voided = true;
    if (looked) ++batch.tally.counters.missed[static_cast<std::size_t>(result.reason)];
  }
}

bool WorkerRole::SavesInPlace() const {
  const MutexLock lock(mutex_);
  return clock_.NowNs() >= save_in_place_from_ns_;
}

bool WorkerRole::SaveInPlace(Job& job, Store& store, const InPlace& in_place,
                             const std::vector<std::size_t>& items) {
  std::vector<ReserveItem> wanted;
  for (const std::size_t i : items) {
    const Job::Item& item = job.items[i];
    wanted.push_back(
        {.key = item.key, .size_bytes = item.bytes, .after = item.after, .hints = item.hints});
  }
  Result<Reserved> reserved =
      store.Reserve(job.token, wanted, {.timeout = options_.timeout, .version = job.version});
  if (!reserved) return false;
  Reserved& space = in_place.memory->space = std::move(*reserved);
  auto batch = std::make_shared<Batch>();
  batch->job = job.shared_from_this();
  std::vector<std::size_t> over;  // items that need no copy: the pool has them, or refuses them
  std::vector<ItemResult> results;
  for (std::size_t k = 0; k < items.size(); ++k) {
    const ItemResult& result = space.result(k);
    const bool unknown = result.elsewhere || result.code == Code::kLimit;
    if (!result.ok() && !unknown) {
      over.push_back(items[k]);
      results.push_back(result);
      continue;
    }
    auto host = unknown ? std::vector<std::span<std::byte>>()
                        : in_place.memory->Add(*in_place.pins, space.pieces(k));
    if (host.empty()) {
      // All or none: the whole batch takes the ring. Aborts first, as the ring's put would find the
      // keys of this reservation in progress.
      space.Abort(options_.timeout);
      const MutexLock lock(mutex_);
      if (!unknown) save_in_place_from_ns_ = clock_.NowNs() + kUnpinnedNs;
      return false;
    }
    batch->values.push_back({.item = items[k], .host = std::move(host), .number = k});
  }
  job.counters.existing_keys += CountPuts(job, job, over, results).size();
  batch->host = batch->in_place = in_place.memory;
  if (job.cancelled) {
    job.DropItems(job, batch->Items());
  } else if (!batch->values.empty()) {
    Submit(batch);
  }
  return true;
}

void WorkerRole::CommitInPlace(Batch& batch) {
  std::vector<ItemResult> all(batch.in_place->space.size());
  (void)batch.in_place->space.Commit(all, options_.timeout);
  std::vector<ItemResult> results;
  for (const Batch::Value& value : batch.values) results.push_back(all[value.number]);
  batch.tally.counters.existing_keys +=
      CountPuts(*batch.job, batch.tally, batch.Items(), results).size();
}

}  // namespace kvcove::connector
