// SPDX-License-Identifier: Apache-2.0
// What a step's plan orders becomes jobs; what has ended is told at the next report.
#include <exception>

#include "kvcove/connector/worker.h"
#include "kvcove/connector/worker_job.h"

namespace kvcove::connector {

void WorkerRole::Fail(const LoadOrder& order, LinesAfterLock& lines) {
  auto job = std::make_shared<Job>();
  job->id = order.job;
  job->load = true;
  job->request = order.request;
  job->chunks = order.chunks;
  job->FailAll();
  job->sync = order.sync;
  if (job->sync) ++sync_left_;
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

void WorkerRole::Begin(Plan plan) {
  LinesAfterLock lines;
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
    for (const auto& job : running_) {
      if (cancelled.contains(job->id)) job->cancelled = true;
    }
  }
  for (const LoadOrder& order : plan.refused) Fail(order, lines);
  for (LoadOrder& order : plan.loads) {
    if (gate_closed_ || shards_ == nullptr || cancelled.contains(order.job) ||
        !AdapterStands(order.adapter)) {
      Fail(order, lines);
      continue;
    }
    if (order.sync) ++sync_left_;
    Queue(LoadJob(order), nullptr, lines);
  }
  // A step that never finished has computed nothing that could be saved.
  for (const SaveOrder& order : step_saves_) Drop(order);
  step_saves_ = std::move(plan.saves);
}

void WorkerRole::WaitForSyncLoads() {
  const auto left = [&] {
    const MutexLock lock(mutex_);
    return sync_left_ > 0;
  };
  while (options_.threads == 0 && left() && RunOne()) {
  }
  const MutexLock lock(mutex_);
  while (sync_left_ > 0 && !stopping_) changed_.Wait(mutex_);
}

void WorkerRole::FinishStep(std::function<void()> ready) {
  // Before the lock, so that it is destroyed after it (see Unregister).
  ComputedStep step{.ready = std::make_shared<std::function<void()>>(std::move(ready)),
                    .saves = {}};
  const bool at_once = !*step.ready;
  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  for (SaveOrder& order : std::exchange(step_saves_, {})) {
    if (gate_closed_ || shards_ == nullptr || clock_.NowNs() < pressure_until_ns_ ||
        !AdapterStands(order.adapter)) {
      Drop(order);
      continue;
    }
    Queue(SaveJob(order), at_once ? nullptr : &step, lines);
  }
  if (step.saves.empty()) return;
  steps_.push_back(std::move(step));
  stepped_.NotifyOne();
}

Ended WorkerRole::TakeEnded() {
  const MutexLock lock(mutex_);
  return std::exchange(ended_, {});
}

Report WorkerRole::TakeReport() {
  const MutexLock lock(mutex_);
  Report report = std::exchange(report_, {});
  report_.rank = options_.number;
  report.step = std::exchange(step_, 0);
  report.weight_changes = weight_changes_;
  report.counters.queued_jobs = loads_.size() + saves_.size() + undue_saves_ + running_.size();
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
                .ns = job->counters.load_ns,
                .bytes = job->counters.bytes_by_tier};
  for (const std::uint32_t place : job->bad) done.failed.push_back(job->chunks[place].block);
  if (!done.failed.empty()) {
    ended_.failed_blocks.insert(ended_.failed_blocks.end(), done.failed.begin(), done.failed.end());
    ended_.failed.push_back(job->request);
  }
  if (job->sync) {
    --sync_left_;
    changed_.NotifyAll();
  } else {
    ended_.loaded.push_back(job->request);
  }
  report_.loads.push_back(std::move(done));
}

}  // namespace kvcove::connector
