// SPDX-License-Identifier: Apache-2.0
// Makes jobs of the orders of a step's plan, and reports the outcomes.
#include <set>
#include <utility>

#include "kvcove/connector/worker/worker.h"

namespace kvcove::connector {

void WorkerRole::Queue(std::shared_ptr<Job> job, ComputedStep* step, LinesAfterLock& lines) {
  const std::size_t undue = steps_.saves() + (step == nullptr ? 0 : step->saves.size());
  if (jobs_.Full(job->load, undue)) {
    job->FailAll();
    job->counters.dropped_keys += job->objects();
    return End(job, lines);
  }
  if (step != nullptr) {
    step->saves.push_back(std::move(job));
    return;
  }
  jobs_.Add(std::move(job), clock_.NowNs());
  changed_.NotifyAll();  // not every thread runs every job
}

void WorkerRole::Begin(Plan plan, StreamHandle stream) {
  LinesAfterLock lines;
  std::shared_ptr<const transport::DeviceMark> mark;
  std::shared_ptr<std::atomic<std::int64_t>> reached_ns;
  transport::DeviceQueue* const queue = queue_;
  bool unmarked = false;
  if (queue != nullptr && !plan.loads.empty()) {
    // Recorded before the loads are queued: a mover may submit one at once, and it must not write
    // before the stream's present work is done.
    auto recorded = queue->RecordStep(stream);
    unmarked = !recorded;
    if (recorded) {
      mark = std::move(*recorded);
      reached_ns = std::make_shared<std::atomic<std::int64_t>>(0);
      queue->WhenReached(mark, this, [reached_ns, &clock = clock_](const Status& /*status*/) {
        reached_ns->store(clock.NowNs(), std::memory_order_relaxed);
      });
    } else {
      lines.Error("{}: rank {}: loads fail, as the engine's stream takes no mark: {}",
                  options_.engine, options_.number, recorded.error().detail);
    }
  }
  const MutexLock lock(mutex_);
  gate_.TakePlan(plan);
  step_ = plan.step;
  const std::set<JobId> cancelled(plan.cancelled.begin(), plan.cancelled.end());
  if (!cancelled.empty()) {
    const auto matches = [&](const Job& job) { return cancelled.contains(job.id); };
    for (const auto& job : jobs_.TakeLoads(matches)) {
      job->FailAll();
      End(job, lines);
    }
    CancelMoving(matches);
  }
  for (const LoadOrder& order : plan.refused) results_.Fail(order, lines);
  for (LoadOrder& order : plan.loads) {
    if (!gate_.Loads(order.adapter) || shards_ == nullptr || unmarked ||
        cancelled.contains(order.job)) {
      results_.Fail(order, lines);
      continue;
    }
    std::shared_ptr<Job> job = Job::Of(order, shards_);
    // Before Queue(), whose End() of a job that is too much removes it again.
    if (job->sync) jobs_.AddSync(job);
    job->after = mark;
    job->reached_ns = reached_ns;
    Queue(std::move(job), nullptr, lines);
  }
  // Orders left here are those of a step that never finished: it computed nothing to be saved.
  for (const SaveOrder& order : step_saves_) results_.Drop(order);
  step_saves_ = std::move(plan.saves);
}

void WorkerRole::FinishStep(std::function<void()> ready, StreamHandle stream) {
  // Declared before any lock, so that `ready` is destroyed without one (as in LetGo).
  ComputedStep step{
      .ready = std::make_shared<std::function<void()>>(std::move(ready)), .mark = {}, .saves = {}};
  transport::DeviceQueue* const queue = queue_;
  const bool marked = !*step.ready && queue != nullptr;
  const bool at_once = !*step.ready && queue == nullptr;
  // A step may end before WaitForLayer was called for all layers: the rest is waited for here.
  if (options_.layer_parts > 1) WaitForSyncLoads(stream);
  LinesAfterLock lines;
  {
    const MutexLock lock(mutex_);
    if (step_saves_.empty()) return;
  }
  if (marked) {
    auto mark = queue->RecordStep(stream);
    if (mark) {
      step.mark = std::move(*mark);
    } else {
      lines.Error(
          "{}: rank {}: a step's saves are dropped, as the engine's stream takes no mark: {}",
          options_.engine, options_.number, mark.error().detail);
    }
  }
  const std::shared_ptr<const transport::DeviceMark> mark = step.mark;
  {
    const MutexLock lock(mutex_);
    QueueSaves(step, marked, at_once, lines);
    if (step.saves.empty()) return;
    steps_.Add(std::move(step));
    if (!marked) {
      stepped_.NotifyOne();
      return;
    }
  }
  // After steps_.Add(): the callback may run at once, and must find the step.
  queue->WhenReached(mark, this, [this, mark](const Status& status) { StepReached(mark, status); });
}

void WorkerRole::QueueSaves(ComputedStep& step, bool marked, bool at_once, LinesAfterLock& lines) {
  for (SaveOrder& order : std::exchange(step_saves_, {})) {
    if (!gate_.Saves(order.adapter, clock_.NowNs()) || shards_ == nullptr ||
        (marked && step.mark == nullptr)) {
      results_.Drop(order);
      continue;
    }
    Queue(Job::Of(order, shards_), at_once ? nullptr : &step, lines);
  }
}

bool WorkerRole::FailLoadsWithoutStore(LinesAfterLock& lines) {
  if (store_ != nullptr) return false;
  const std::int64_t before = clock_.NowNs() - options_.timeout.count() * kMillisecond;
  const auto late = jobs_.TakeLoads([before](const Job& job) { return job.since_ns <= before; });
  for (const std::shared_ptr<Job>& job : late) {
    job->counters.failed_keys += job->objects();
    job->FailAll();
    End(job, lines);
  }
  return !late.empty();
}

Ended WorkerRole::TakeEnded() {
  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  (void)FailLoadsWithoutStore(lines);
  return results_.TakeEnded();
}

Report WorkerRole::TakeReport() {
  transport::DeviceQueue* const queue = queue_;
  const transport::DeviceQueueStats stats =
      queue == nullptr ? transport::DeviceQueueStats{} : queue->stats();
  const MutexLock lock(mutex_);
  Report report = gate_.TakeReport();
  results_.TakeInto(report);
  report.step = std::exchange(step_, 0);
  Counters& counters = report.counters;
  counters.queued_jobs = jobs_.size() + steps_.saves() + moves_.jobs();
  if (queue == nullptr) return report;
  moves_.Count(counters, stats);
  for (const auto& budget : in_place_) counters.device_in_place_bytes += budget->bytes();
  counters.device_segment_pinned_bytes = pins_ == nullptr ? 0 : pins_->bytes();
  return report;
}

void WorkerRole::End(const std::shared_ptr<Job>& job, LinesAfterLock& lines) {
  if (jobs_.EndSync(job)) changed_.NotifyAll();
  results_.End(*job, clock_.NowNs(), lines);
}

}  // namespace kvcove::connector
