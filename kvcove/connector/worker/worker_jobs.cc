// SPDX-License-Identifier: Apache-2.0
// The movers: choose a job that is due and run one batch of it at a time, so that a load which is
// queued meanwhile precedes the rest of a save. And the thread that waits for computed steps.
#include <exception>

#include "kvcove/base/background.h"
#include "kvcove/base/interrupt.h"
#include "kvcove/connector/worker/worker.h"

namespace kvcove::connector {

std::shared_ptr<Job> WorkerRole::NextJob(Share share) {
  if (store_ == nullptr) return nullptr;
  return jobs_.Next(share, moves_.blocked(/*load=*/true), moves_.blocked(/*load=*/false));
}

std::optional<WorkerRole::Share> WorkerRole::Due(Thread thread) const {
  if (store_ == nullptr) return std::nullopt;
  // Each thread must find in jobs_ and moves_ what RunOne(share) then takes, or it would spin.
  const bool saver = thread == Thread::kSaver;
  const bool device = queue_ != nullptr;
  if (saver && !quiet_saves_ && !device) return std::nullopt;
  const bool only_loads = quiet_saves_ || (device && thread == Thread::kFirstMover);
  const Share share = saver ? Share::kSaves : only_loads ? Share::kLoads : Share::kAll;
  const bool loads = share != Share::kSaves && jobs_.has_loads() && !moves_.blocked(/*load=*/true);
  const bool saves =
      share != Share::kLoads &&
      ((jobs_.has_saves() && !moves_.blocked(/*load=*/false)) || moves_.has_fetched());
  return loads || saves ? std::optional(share) : std::nullopt;
}

bool WorkerRole::RunOne(Share share) {
  std::shared_ptr<Job> job;
  std::shared_ptr<Store> store;
  {
    const MutexLock lock(mutex_);
    job = NextJob(share);
    store = store_;
  }
  // Fetched batches hold pinned memory until they are stored, and further saves need that memory:
  // so they precede further saves. Loads precede both.
  if ((job == nullptr || !job->load) && share != Share::kLoads && RunFetched()) {
    if (job == nullptr) return true;
    const MutexLock lock(mutex_);
    jobs_.PutBack(job);
    changed_.NotifyAll();
    return true;
  }
  if (job == nullptr) {
    if (options_.threads != 0) return false;
    transport::DeviceQueue* const queue = queue_;
    return (queue != nullptr && queue->Advance()) || AwaitStep();
  }
  Ran ran = Ran::kOver;
  const std::int64_t start = clock_.NowNs();
  try {
    // Ends the waits of this thread's calls early once the job is cancelled.
    InterruptBy interrupt(job->cancelled);
    ran = RunBatch(*job, *store);
  } catch (const std::exception& error) {
    LogError("{}: job {} of request {} failed: {}", options_.engine, job->id, job->request,
             error.what());
    // A load for the stream may have advanced `next` beyond batches that it has not submitted.
    job->sync ? job->FailAll() : job->FailRest();
  }
  const std::int64_t end = clock_.NowNs();
  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  job->AddBusy(start, end);
  jobs_.Ran(job, /*moved=*/ran != Ran::kBlocked);
  if (ran == Ran::kOver || job->cancelled) {
    job->FailRest();
    End(job, lines);
  } else {
    // Under the lock that DeviceMoves::End needs: either its batches still have an End to come,
    // which unblocks the way, or Block() does nothing. So the job is never left blocked for ever.
    if (ran == Ran::kBlocked) moves_.Block(job->load);
    jobs_.PutBack(job);
  }
  changed_.NotifyAll();
  return true;
}

void WorkerRole::Loop(Thread thread) {
  if (thread == Thread::kSaver) LowerThisThread();
  while (true) {
    std::optional<Share> share;
    {
      const MutexLock lock(mutex_);
      while (!stopping_ && !(share = Due(thread))) changed_.Wait(mutex_);
      if (stopping_) return;
    }
    (void)RunOne(*share);
  }
}

bool WorkerRole::AwaitStep() {
  std::shared_ptr<std::function<void()>> ready;
  {
    const MutexLock lock(mutex_);
    ready = steps_.front();
    if (ready == nullptr || store_ == nullptr) return false;
  }
  ExpectNoLock("a callback of the engine");
  std::string error;
  try {
    (*ready)();
  } catch (const std::exception& thrown) {
    error = thrown.what();
    LogError("{}: the KV of a step cannot be saved: {}", options_.engine, error);
  }
  std::optional<ComputedStep> step;
  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  step = steps_.Take(ready);
  if (step) StepDone(*step, error, lines);
  return true;
}

void WorkerRole::StepDone(ComputedStep& step, const std::string& error, LinesAfterLock& lines) {
  for (std::shared_ptr<Job>& job : step.saves) {
    if (error.empty()) {
      jobs_.Add(std::move(job), clock_.NowNs());
      continue;
    }
    job->FailAll();
    job->counters.dropped_keys += job->objects();
    End(job, lines);
  }
  changed_.NotifyAll();
}

void WorkerRole::AwaitSteps() {
  while (true) {
    {
      const MutexLock lock(mutex_);
      while (!stopping_ && (steps_.front() == nullptr || store_ == nullptr)) stepped_.Wait(mutex_);
      if (stopping_) return;
    }
    (void)AwaitStep();
  }
}

WorkerRole::Ran WorkerRole::RunBatch(Job& job, Store& store) {
  if (!job.prepared && !job.cancelled) {
    job.Prepare(options_.shape, keys_, options_.rank, options_.priority);
  }
  if (job.next < job.items.size() && !job.cancelled) {
    const std::size_t from = job.next;
    const std::size_t to = job.BatchEnd(options_.batch_bytes);
    const std::int64_t start = clock_.NowNs();
    const bool device = job.device();
    bool ran = true;
    if (device && job.load && job.sync) {
      ran = LoadForStream(job, store);
    } else {
      job.Place(from, to);
      if (!device) {
        job.load ? LoadBatch(job, store, from, to) : SaveBatch(job, store, from, to);
      } else {
        ran = job.load ? LoadBatchToDevice(job, store, from, to)
                       : SaveBatchFromDevice(job, store, from, to);
      }
      if (ran) job.next = to;
    }
    const auto ns = static_cast<std::uint64_t>(clock_.NowNs() - start);
    (job.load ? job.counters.load_ns : job.counters.save_ns) += ns;
    if (!ran) return Ran::kBlocked;
  }
  const bool more = job.next < job.items.size() && !job.Hopeless(options_.shape);
  if (more && !job.cancelled) return Ran::kMore;
  (job.load ? job.counters.failed_keys : job.counters.dropped_keys) += job.objects() - job.next;
  job.FailRest();
  return Ran::kOver;
}

}  // namespace kvcove::connector
