// SPDX-License-Identifier: Apache-2.0
// Loads for which the engine's stream waits, with `layer_parts` layer by layer:
//
//   a mover        Lend batch after batch (or LoadByRing), then part 0 of all, part 1 of all, ...
//   model thread   WaitForLayer: AwaitSubmitted(part), WaitOnStream: the stream waits for tickets
//   kvcove-device  PartDone -> Revalidate -> EndBatch, as for other loads
//
// All values that the pool lends at once are submitted part by part; further values wait for them.
// So the first layers run while later ones are copied, as long as a load fits into the bound of
// loans (requester/borrow.h).
//
// A loan's bytes never change, so a batch has the bytes that a get at the moment of its Borrow
// would have read, whatever the pool resets while the device copies. Revalidate follows the ticket,
// when the stream may have used the bytes: a load that is void then is reported late, as an error
// of the device is, and the engine computes these blocks again.
#include "kvcove/base/interrupt.h"
#include "kvcove/connector/worker/worker.h"

namespace kvcove::connector {

using transport::DeviceWay;

namespace {

// Most tickets of one load: the device's queue takes some thousands from all.
constexpr std::size_t kMostTickets = 1024;

}  // namespace

bool WorkerRole::LoadForStream(Job& job, Store& store) {
  std::vector<std::shared_ptr<Batch>> lent;
  bool waits = false;
  while (job.next < job.items.size() && !job.cancelled && !job.Hopeless(options_.shape)) {
    waits = lent.size() * options_.layer_parts >= kMostTickets;
    if (waits) break;
    const std::size_t to = job.BatchEnd(options_.batch_bytes);
    std::vector<std::size_t> items = Job::Range(job.next, to);
    // Waits for memory only if batches that hold some will end: this load's own, which are
    // submitted below before the wait, or those on the device.
    bool may_wait = !lent.empty();
    {
      const MutexLock lock(mutex_);
      may_wait = may_wait || moves_.batches(/*load=*/true) > 0;
    }
    if (const auto in_place = TakeInPlace(DeviceWay::kLoad, job.BytesOf(items), false)) {
      Lent some = Lend(job, store, *in_place, std::move(items), may_wait);
      waits = some.waits;
      if (waits) break;
      if (some.batch != nullptr) lent.push_back(std::move(some.batch));
      items = std::move(some.by_ring);
    }
    if (!items.empty() && !job.cancelled) LoadByRing(job, store, items);
    job.next = to;
  }
  // A cancelled load is reported as failed, so its loans are released without a copy.
  if (!job.cancelled) SubmitByLayers(job, lent, /*last=*/!waits);
  return !waits;
}

void WorkerRole::SubmitByLayers(Job& job, const std::vector<std::shared_ptr<Batch>>& batches,
                                bool last) {
  for (const std::shared_ptr<Batch>& batch : batches) {
    batch->PlanCopies(options_.layer_parts);
    Fly(batch);
  }
  for (std::uint32_t part = 0; part < options_.layer_parts; ++part) {
    for (const std::shared_ptr<Batch>& batch : batches) SubmitPart(batch, part);
    if (!last) continue;
    const MutexLock lock(mutex_);
    job.submitted_parts = part + 1;
    changed_.NotifyAll();
  }
}

void WorkerRole::WaitForSyncLoads(StreamHandle stream) {
  AwaitSubmitted(kAllParts);
  WaitOnStream(stream, kAllParts);
}

void WorkerRole::WaitForLayer(std::string_view layer, StreamHandle stream) {
  std::uint32_t part = kAllParts;
  {
    const MutexLock lock(mutex_);
    if (!jobs_.has_sync() && moves_.empty()) return;
    const std::uint32_t* const known = shards_ == nullptr ? nullptr : shards_->PartOf(layer);
    if (known != nullptr) part = *known;
  }
  AwaitSubmitted(part);
  WaitOnStream(stream, part);
}

void WorkerRole::AwaitSubmitted(std::uint32_t part) {
  // A role without threads works in the caller's thread.
  while (options_.threads == 0) {
    {
      const MutexLock lock(mutex_);
      if (!jobs_.SyncBehind(part)) return;
    }
    if (!RunOne()) break;
  }
  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  while (jobs_.SyncBehind(part) && !stopping_) {
    // An interrupted call, too, returns only when no mover writes to the engine's memory any more.
    // Cancelled loads end with the batch that runs.
    if (Interrupt::Ended()) jobs_.CancelSync();
    if (store_ != nullptr) {
      changed_.Wait(mutex_);
    } else if (!FailLoadsWithoutStore(lines)) {
      changed_.WaitFor(mutex_, options_.timeout);
    }
  }
}

void WorkerRole::WaitOnStream(StreamHandle stream, std::uint32_t part) {
  transport::DeviceQueue* const queue = queue_;
  if (queue == nullptr) return;
  std::vector<transport::DeviceTicket> tickets;
  {
    const MutexLock lock(mutex_);
    tickets = moves_.TakeTickets(part);
  }
  for (const transport::DeviceTicket ticket : tickets) {
    const Status waits = queue->StreamWait(stream, ticket);
    if (waits) continue;
    LogError("{}: rank {}: the host waits for a load, as the engine's stream cannot: {}",
             options_.engine, options_.number, waits.error().detail);
    (void)AwaitFlights();
    return;
  }
}

}  // namespace kvcove::connector
