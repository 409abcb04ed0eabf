// SPDX-License-Identifier: Apache-2.0
// What a step's plan orders becomes jobs; what has ended is told at the next report.
#include <exception>

#include "kvcove/connector/worker/worker.h"
#include "kvcove/connector/worker/worker_job.h"

namespace kvcove::connector {

void WorkerRole::Fail(const LoadOrder& order, LinesAfterLock& lines) {
  auto job = std::make_shared<Job>();
  job->id = order.job;
  job->load = true;
  job->request = order.request;
  job->chunks = order.chunks;
  job->FailAll();
  job->sync = order.sync;
  End(job, lines);
}

void WorkerRole::Drop(const SaveOrder& order) {
  SaveDone done{.job = order.job};
  for (std::uint32_t i = 0; i < order.chunks.size(); ++i) done.missing.push_back(i);
  report_.counters.dropped_keys += order.chunks.size();
  report_.saves.push_back(std::move(done));
}

std::shared_ptr<WorkerRole::Job> WorkerRole::LoadJob(LoadOrder& order) {
  auto job = std::make_shared<Job>();
  job->id = order.job;
  job->load = true;
  job->sync = order.sync;
  job->request = std::move(order.request);
  job->version = std::move(order.version);
  job->adapter = std::move(order.adapter.digest);
  job->chunks = std::move(order.chunks);
  job->shards = shards_;
  return job;
}

std::shared_ptr<WorkerRole::Job> WorkerRole::SaveJob(SaveOrder& order) {
  auto job = std::make_shared<Job>();
  job->id = order.job;
  job->request = std::move(order.request);
  job->version = std::move(order.version);
  job->adapter = std::move(order.adapter.digest);
  job->token = order.token;
  job->chunks = std::move(order.chunks);
  job->hints = order.hints;
  job->goes_on = order.goes_on;
  job->shards = shards_;
  return job;
}

void WorkerRole::Queue(std::shared_ptr<Job> job, ComputedStep* step, LinesAfterLock& lines) {
  const std::size_t queued = job->load ? loads_.size() : saves_.size() + undue_saves_;
  if (queued >= options_.most_queued) {
    job->FailAll();
    job->counters.dropped_keys += job->objects();
    return End(job, lines);
  }
  if (step != nullptr) {
    step->saves.push_back(std::move(job));
    ++undue_saves_;
    return;
  }
  job->since_ns = clock_.NowNs();
  (job->load ? loads_ : saves_).push_back(std::move(job));
  changed_.NotifyAll();  // not every thread runs every job
}

void WorkerRole::Begin(Plan plan, StreamHandle stream) {
  LinesAfterLock lines;
  std::shared_ptr<const transport::DeviceMark> mark;
  std::shared_ptr<std::atomic<std::int64_t>> reached_ns;
  transport::DeviceQueue* const queue = queue_;
  bool unmarked = false;
  if (queue != nullptr && !plan.loads.empty()) {
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
  if (plan.fingerprint != 0) fingerprint_wanted_ = plan.fingerprint;
  step_ = plan.step;
  const bool told = plan.adapters.size() > options_.number;
  adapters_known_ = told ? plan.adapters[options_.number] : 0;
  const std::set<JobId> cancelled(plan.cancelled.begin(), plan.cancelled.end());
  if (!cancelled.empty()) {
    std::deque<std::shared_ptr<Job>> left;
    for (auto& job : loads_) {
      if (!cancelled.contains(job->id)) {
        left.push_back(std::move(job));
        continue;
      }
      job->FailAll();
      End(job, lines);
    }
    loads_ = std::move(left);
    for (const auto* jobs : {&running_, &flying_}) {
      for (const auto& job : *jobs) {
        if (cancelled.contains(job->id)) job->cancelled = true;
      }
    }
  }
  for (const LoadOrder& order : plan.refused) Fail(order, lines);
  for (LoadOrder& order : plan.loads) {
    if (gate_closed_ || without_pool_ || shards_ == nullptr || unmarked ||
        cancelled.contains(order.job) || !AdapterStands(order.adapter)) {
      Fail(order, lines);
      continue;
    }
    std::shared_ptr<Job> job = LoadJob(order);
    if (job->sync) sync_jobs_.insert(job);
    job->after = mark;
    job->reached_ns = reached_ns;
    Queue(std::move(job), nullptr, lines);
  }
  // A step that never finished has computed nothing that could be saved.
  for (const SaveOrder& order : step_saves_) Drop(order);
  step_saves_ = std::move(plan.saves);
}

void WorkerRole::FinishStep(std::function<void()> ready, StreamHandle stream) {
  // Before the lock, so that it is destroyed after it (see Unregister).
  ComputedStep step{
      .ready = std::make_shared<std::function<void()>>(std::move(ready)), .mark = {}, .saves = {}};
  transport::DeviceQueue* const queue = queue_;
  const bool marked = !*step.ready && queue != nullptr;
  const bool at_once = !*step.ready && queue == nullptr;
  // A step need not have come to all layers.
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
    if (!marked) {
      steps_.push_back(std::move(step));
      stepped_.NotifyOne();
      return;
    }
    marked_steps_.push_back(std::move(step));
  }
  queue->WhenReached(mark, this, [this, mark](const Status& status) { StepReached(mark, status); });
}

void WorkerRole::QueueSaves(ComputedStep& step, bool marked, bool at_once, LinesAfterLock& lines) {
  for (SaveOrder& order : std::exchange(step_saves_, {})) {
    if (gate_closed_ || without_pool_ || shards_ == nullptr ||
        clock_.NowNs() < pressure_until_ns_ || !AdapterStands(order.adapter) ||
        (marked && step.mark == nullptr)) {
      Drop(order);
      continue;
    }
    Queue(SaveJob(order), at_once ? nullptr : &step, lines);
  }
}

bool WorkerRole::FailLoadsWithoutStore(LinesAfterLock& lines) {
  if (store_ != nullptr) return false;
  const std::int64_t before = clock_.NowNs() - options_.timeout.count() * kMillisecond;
  std::vector<std::shared_ptr<Job>> late;
  while (!loads_.empty() && loads_.front()->since_ns <= before) {
    late.push_back(std::move(loads_.front()));
    loads_.pop_front();
  }
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
  return std::exchange(ended_, {});
}

Report WorkerRole::TakeReport() {
  transport::DeviceQueue* const queue = queue_;
  const transport::DeviceQueueStats stats =
      queue == nullptr ? transport::DeviceQueueStats{} : queue->stats();
  const MutexLock lock(mutex_);
  Report report = std::exchange(report_, {});
  report_.rank = options_.number;
  report.step = std::exchange(step_, 0);
  report.weight_changes = weight_changes_;
  report.counters.queued_jobs =
      loads_.size() + saves_.size() + undue_saves_ + running_.size() + flying_.size();
  if (queue != nullptr) AddDeviceStats(report, stats);
  return report;
}

void WorkerRole::SayTiers(const Job& job, LinesAfterLock& lines) {
  const Counters& c = job.counters;
  const auto of = [](const auto& by_tier, Tier tier) {
    return by_tier[static_cast<std::size_t>(tier)];
  };
  lines.Info(
      "Mooncake load tier summary: request={} memory_keys={} disk_keys={} unknown_keys={} "
      "success_keys={} failed_keys={} "
      "bytes_by_tier={{memory={}, remote_memory={}, disk={}, unknown={}}}",
      job.request, of(c.keys_by_tier, Tier::kMemory) + of(c.keys_by_tier, Tier::kRemoteMemory),
      of(c.keys_by_tier, Tier::kDisk), of(c.keys_by_tier, Tier::kUnknown), c.loaded_keys,
      c.failed_keys, of(c.bytes_by_tier, Tier::kMemory), of(c.bytes_by_tier, Tier::kRemoteMemory),
      of(c.bytes_by_tier, Tier::kDisk), of(c.bytes_by_tier, Tier::kUnknown));
}

void WorkerRole::End(const std::shared_ptr<Job>& job, LinesAfterLock& lines) {
  if (!std::exchange(job->over, true) && job->load && job->sync) {
    sync_jobs_.erase(job);
    changed_.NotifyAll();
    // The engine looks for failed blocks when it has launched the step, so it is told now what is
    // known; errors of the device come later.
    for (const std::uint32_t place : job->bad) {
      if (job->in_flight == 0 || !job->told.insert(place).second) continue;
      ended_.failed_blocks.push_back(job->chunks[place].block);
    }
    if (!job->told.empty()) ended_.failed.push_back(job->request);
  }
  if (job->in_flight > 0) return;
  job->Add(job->landed);
  ++(job->load ? job->counters.load_jobs : job->counters.save_jobs);
  if (job->since_ns != 0) {
    (job->load ? job->counters.load_time : job->counters.save_time)
        .Add(clock_.NowNs() - job->since_ns);
  }
  report_.counters.Add(job->counters);
  if (!job->load) {
    report_.saves.push_back({.job = job->id,
                             .missing = {job->bad.begin(), job->bad.end()},
                             .on_disk = {job->on_disk.begin(), job->on_disk.end()}});
    return;
  }
  if (job->cancelled) {
    // Also what was moved already: it was cancelled because its values may be wrong.
    job->FailAll();
  }
  if (options_.tier_log) SayTiers(*job, lines);
  LoadDone done{.job = job->id,
                .failed = {},
                .ns = static_cast<std::uint64_t>(job->busy_ns),
                .bytes = job->counters.bytes_by_tier};
  bool news = false;
  for (const std::uint32_t place : job->bad) {
    const BlockId block = job->chunks[place].block;
    done.failed.push_back(block);
    if (job->told.contains(place)) continue;
    ended_.failed_blocks.push_back(block);
    news = true;
  }
  if (news) ended_.failed.push_back(job->request);
  if (!job->sync) ended_.loaded.push_back(job->request);
  report_.loads.push_back(std::move(done));
}

}  // namespace kvcove::connector
