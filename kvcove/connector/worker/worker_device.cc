// SPDX-License-Identifier: Apache-2.0
// Batches of a device's memory, by way of pinned host memory: pieces of the ring here, and the
// pool's own in worker_in_place.cc. worker_layers.cc has loads for which the engine's stream waits.
//
//   load   a mover: Lend, Get into it, Submit behind the step's mark
//          kvcove-device: PartDone -> EndBatch
//   save   a mover: Lend, Submit
//          kvcove-device: PartDone -> Fetched; a mover: RunFetched: Put -> EndBatch
//
// The mover of a job writes the job's tally without the lock, while kvcove-device or another mover
// writes the tallies of its batches. DeviceMoves::End adds these to `landed` under the role's lock,
// and JobResults::End joins both once neither is written any more.
#include <exception>

#include "kvcove/connector/worker/worker.h"
#include "kvcove/transport/landing.h"

namespace kvcove::connector {

using transport::DeviceWay;

namespace {

// Makes a call of the pool that reads or writes memory of the ring. Where an RDMA device may still
// touch a piece behind the call, the piece returns to the ring once it cannot any more: no other
// value gets it before. Other pieces come and go meanwhile: the ring passes over this one. The
// mover waits for `settle` at most, and then takes the next batch.
template <typename Call>
void KeepWhileBusy(const std::shared_ptr<const transport::HostMemory>& host,
                   std::chrono::milliseconds settle, const Call& call) {
  const auto busy = transport::Settle(settle, call);
  if (busy == nullptr) return;
  LogError(
      "an RDMA transfer does not end; its piece of pinned memory is kept until it does, and the "
      "rest of device_ring serves. Once loads and saves fail, start the engine again");
  busy->Then([host] {});
}

}  // namespace

void WorkerRole::RegisterRings() {
  std::shared_ptr<Store> store;
  transport::DeviceQueue* const queue = queue_;
  {
    const MutexLock lock(mutex_);
    if (queue == nullptr || store_ == nullptr || rings_of_ == queue) return;
    rings_of_ = queue;
    store = store_;
  }
  for (const std::span<std::byte> ring : queue->rings()) {
    const Status registered = store->Register(ring);
    if (registered) continue;
    LogWarn(
        "{}: rank {}: values of other hosts move by TCP, since the pinned memory is not "
        "registered: {}",
        options_.engine, options_.number, registered.error().detail);
    return;
  }
}

std::int64_t WorkerRole::DeviceDeadline() const {
  return clock_.NowNs() + options_.device_timeout.count() * kMillisecond;
}

void WorkerRole::CountCopyErrors(const Job& job, Tally& tally, std::size_t items,
                                 const Status& status, LinesAfterLock& lines) {
  tally.counters.copy_errors += items;
  if (const std::uint64_t times = copy_lines_.Due(clock_.NowNs()); times > 0) {
    lines.Error(
        "{}: rank {}: {} of request {} failed in the device's memory: {} ({} such "
        "failures)",
        options_.engine, options_.number, job.load ? "a load" : "a save", job.request,
        status.error().detail, times);
  }
}

bool WorkerRole::LoadBatchToDevice(Job& job, Store& store, std::size_t from, std::size_t to) {
  std::vector<std::size_t> items = Job::Range(from, to);
  const auto in_place = TakeInPlace(DeviceWay::kLoad, job.BytesOf(items), /*bounded=*/true);
  if (WaitsFor(in_place, /*load=*/true)) return false;
  if (in_place && in_place->memory != nullptr) {
    Lent lent = Lend(job, store, *in_place, std::move(items), /*may_wait=*/false);
    if (lent.batch != nullptr) Submit(lent.batch);
    items = std::move(lent.by_ring);
  }
  if (!items.empty() && !job.cancelled) LoadByRing(job, store, items);
  return true;
}

void WorkerRole::LoadByRing(Job& job, Store& store, const std::vector<std::size_t>& items) {
  auto batch = std::make_shared<Batch>();
  batch->job = job.shared_from_this();
  auto host = queue_.load()->Lend(DeviceWay::kLoad, job.BytesOf(items), DeviceDeadline());
  if (!host) {
    LinesAfterLock lines;
    CountCopyErrors(job, job, items.size(), std::unexpected<Error>(host.error()), lines);
    job.counters.failed_keys += items.size();
    for (const std::size_t i : items) job.bad.insert(job.items[i].place);
    return;
  }
  batch->host = std::move(*host);
  HostCursor cursor(batch->host->extents());
  std::vector<std::vector<std::span<std::byte>>> places(items.size());
  std::vector<std::vector<MutableBuffer>> into(items.size());
  std::vector<GetItem> gets(items.size());
  for (std::size_t k = 0; k < items.size(); ++k) {
    places[k] = cursor.Take(job.items[items[k]].bytes);
    for (const auto& piece : places[k]) {
      into[k].push_back({.data = piece.data(), .size = piece.size()});
    }
    gets[k] = {.key = job.items[items[k]].key, .into = into[k]};
  }
  std::vector<ItemResult> results(items.size());
  KeepWhileBusy(batch->host, options_.settle, [&] {
    (void)store.Get(gets, results, {.timeout = options_.timeout, .version = job.version});
  });
  for (const std::size_t k : JudgeLoad(job, store, items, results)) {
    batch->values.push_back(
        {.item = items[k], .tier = results[k].tier, .host = std::move(places[k])});
  }
  if (!batch->values.empty() && !job.cancelled) Submit(batch);
}

const std::vector<std::size_t>& WorkerRole::Wanted(Job& job, Store& store, std::size_t from,
                                                   std::size_t to) {
  if (job.asked == to) return job.wanted;
  job.wanted = NotStored(job, store, Job::Range(from, to));
  std::erase_if(job.wanted, [&](std::size_t i) {
    if (!job.items[i].pieces.empty()) return false;
    job.bad.insert(job.items[i].place);
    ++job.counters.refused_keys;
    return true;
  });
  job.asked = to;
  return job.wanted;
}

bool WorkerRole::SaveBatchFromDevice(Job& job, Store& store, std::size_t from, std::size_t to) {
  // Asks the pool first: a value that it has is not copied from the device.
  const std::vector<std::size_t>& items = Wanted(job, store, from, to);
  if (job.cancelled) job.DropItems(job, items);
  if (items.empty() || job.cancelled) return true;
  if (SavesInPlace()) {
    const auto in_place = TakeInPlace(DeviceWay::kSave, job.BytesOf(items), /*bounded=*/true);
    if (WaitsFor(in_place, /*load=*/false)) return false;
    if (in_place && in_place->memory != nullptr && SaveInPlace(job, store, *in_place, items)) {
      return true;
    }
  }
  return SaveByRing(job, items);
}

bool WorkerRole::SaveByRing(Job& job, const std::vector<std::size_t>& items) {
  transport::DeviceQueue& queue = *queue_.load();
  const std::uint64_t bytes = job.BytesOf(items);
  // Does not wait for the ring while batches of saves hold it: they return it only once a mover has
  // stored them, and this thread may be that mover.
  auto host = queue.Lend(DeviceWay::kSave, bytes, clock_.NowNs());
  if (!host) {
    bool comes_back = false;
    {
      const MutexLock lock(mutex_);
      comes_back = moves_.batches(/*load=*/false) > 0;
    }
    if (comes_back) return false;
    host = queue.Lend(DeviceWay::kSave, bytes, DeviceDeadline());
  }
  if (!host) {
    LinesAfterLock lines;
    CountCopyErrors(job, job, items.size(), std::unexpected<Error>(host.error()), lines);
    job.counters.refused_keys += items.size();
    for (const std::size_t i : items) job.bad.insert(job.items[i].place);
    return true;
  }
  auto batch = std::make_shared<Batch>();
  batch->job = job.shared_from_this();
  batch->host = std::move(*host);
  HostCursor cursor(batch->host->extents());
  for (const std::size_t i : items) {
    batch->values.push_back({.item = i, .host = cursor.Take(job.items[i].bytes)});
  }
  Submit(batch);
  return true;
}

void WorkerRole::Submit(const std::shared_ptr<Batch>& batch) {
  batch->PlanCopies(options_.layer_parts);
  Fly(batch);
  for (std::uint32_t part = 0; part < batch->copies.size(); ++part) SubmitPart(batch, part);
}

void WorkerRole::Fly(const std::shared_ptr<Batch>& batch) {
  const MutexLock lock(mutex_);
  moves_.Begin(*batch, clock_.NowNs());
}

void WorkerRole::SubmitPart(const std::shared_ptr<Batch>& batch, std::uint32_t part) {
  Job& job = *batch->job;
  const Result<transport::DeviceTicket> ticket = queue_.load()->Submit(
      {.way = job.load ? DeviceWay::kLoad : DeviceWay::kSave,
       .copies = batch->copies[part],
       .after = job.after.get()},
      batch->host, this, [this, batch](transport::DeviceDone& over) { PartDone(batch, over); });
  if (!ticket) {
    transport::DeviceDone failed{.status = std::unexpected<Error>(ticket.error()), .host = {}};
    return PartDone(batch, failed);
  }
  if (!job.sync) return;
  const MutexLock lock(mutex_);
  DeviceMoves::Submitted(job, *ticket, part);
}

void WorkerRole::PartDone(const std::shared_ptr<Batch>& batch, transport::DeviceDone& done) {
  const bool load = batch->job->load;
  LinesAfterLock lines;
  {
    const MutexLock lock(mutex_);
    if (!moves_.PartDone(*batch, done, clock_.NowNs())) return;
    if (!batch->status) {
      CountCopyErrors(*batch->job, batch->tally, batch->values.size(), batch->status, lines);
    }
  }
  // The last part is over, so only this thread has the batch, and it needs no lock. Revalidate
  // comes after the copy: a loan that is valid now was valid while the device read it.
  if (load && batch->in_place != nullptr && batch->status) Revalidate(*batch);
  // Returned before EndBatch unblocks the way: a load that waits for this memory must find it.
  if (load) {
    batch->host.reset();
    batch->in_place.reset();
  }
  // Destroyed after the lock: to return a reservation is a call of the pool.
  std::shared_ptr<const transport::HostMemory> let_go;
  std::shared_ptr<InPlaceMemory> in_place;
  const MutexLock lock(mutex_);
  // A save's batch is left to a mover, which stores it, or returns its reservation: both are calls
  // of the pool, which may wait, and kvcove-device must not.
  if (load || stopping_ || (!batch->status && batch->in_place == nullptr)) {
    let_go = std::move(batch->host);
    in_place = std::move(batch->in_place);
    return EndBatch(*batch, lines);
  }
  moves_.Fetched(batch);
  changed_.NotifyAll();
}

void WorkerRole::EndBatch(Batch& batch, LinesAfterLock& lines) {
  if (moves_.End(batch)) End(batch.job, lines);
  changed_.NotifyAll();
}

bool WorkerRole::RunFetched() {
  std::shared_ptr<Batch> batch;
  std::shared_ptr<Store> store;
  {
    const MutexLock lock(mutex_);
    if (store_ == nullptr) return false;
    batch = moves_.TakeFetched();
    if (batch == nullptr) return false;
    store = store_;
  }
  const Job& job = *batch->job;
  Status status;
  try {
    StoreFetched(*batch, *store);
  } catch (const std::exception& error) {
    LogError("{}: job {} of request {} failed: {}", options_.engine, job.id, job.request,
             error.what());
    status = Fail(Code::kInternal, error.what());
  }
  batch->host.reset();
  batch->in_place.reset();
  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  if (!status) batch->status = status;
  EndBatch(*batch, lines);
  return true;
}

void WorkerRole::StoreFetched(Batch& batch, Store& store) {
  Job& job = *batch.job;
  if (!batch.status) {
    batch.in_place->space.Abort();
    return;
  }
  // The batch's destructor aborts its reservation.
  if (job.cancelled) return job.DropItems(batch.tally, batch.Items());
  if (batch.in_place != nullptr) return CommitInPlace(batch);
  std::vector<ConstBuffer> pieces;
  std::vector<std::size_t> ends;
  for (const Batch::Value& value : batch.values) {
    for (const std::span<std::byte> piece : value.host) {
      pieces.push_back({.data = piece.data(), .size = piece.size()});
    }
    ends.push_back(pieces.size());
  }
  KeepWhileBusy(batch.host, options_.settle, [&] {
    batch.tally.counters.existing_keys +=
        PutValues(job, batch.tally, store, batch.Items(), pieces, ends).size();
  });
}

void WorkerRole::StepReached(const std::shared_ptr<const transport::DeviceMark>& mark,
                             const Status& status) {
  std::optional<ComputedStep> step;
  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  step = steps_.Take(mark);
  if (!step) return;
  if (!status) {
    lines.Error("{}: the KV of a step cannot be saved: {}", options_.engine, status.error().detail);
  }
  StepDone(*step, status ? std::string() : status.error().detail, lines);
}

bool WorkerRole::AwaitFlights() {
  const std::int64_t deadline = DeviceDeadline();
  const auto left = [&] {
    const MutexLock lock(mutex_);
    return !moves_.empty();
  };
  // A role without threads works in the caller's thread.
  while (options_.threads == 0 && left()) {
    transport::DeviceQueue* const queue = queue_;
    if (!RunFetched() && (queue == nullptr || !queue->Advance())) return false;
  }
  LinesAfterLock lines;
  std::vector<std::shared_ptr<Batch>>
      let_go;  // destroyed after the lock: to return a reservation is a call of the pool
  const MutexLock lock(mutex_);
  while (!moves_.empty()) {
    // The movers have ended, so no thread would store these batches.
    if (stopping_ && moves_.has_fetched()) {
      const std::shared_ptr<Batch>& batch = let_go.emplace_back(moves_.TakeFetched());
      batch->status = Fail(Code::kUnavailable, "the role ends");
      EndBatch(*batch, lines);
      continue;
    }
    const std::int64_t wait = deadline - clock_.NowNs();
    if (wait <= 0) return false;
    changed_.WaitFor(mutex_, std::chrono::nanoseconds(wait));
  }
  return true;
}

}  // namespace kvcove::connector
