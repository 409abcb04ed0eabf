// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/worker/job_results.h"

namespace kvcove::connector {

void JobResults::End(Job& job, std::int64_t now_ns, LinesAfterLock& lines) {
  if (!std::exchange(job.over, true) && job.load && job.sync) ReportEarly(job);
  // Called by the mover and by kvcove-device, in either order; the later call ends the job.
  if (job.in_flight > 0) return;
  job.Add(job.landed);
  ++(job.load ? job.counters.load_jobs : job.counters.save_jobs);
  if (job.since_ns != 0) {
    (job.load ? job.counters.load_time : job.counters.save_time).Add(now_ns - job.since_ns);
  }
  counters_.Add(job.counters);
  if (job.load) return EndLoad(job, lines);
  saves_.push_back({.job = job.id,
                    .missing = {job.bad.begin(), job.bad.end()},
                    .on_disk = {job.on_disk.begin(), job.on_disk.end()}});
}

void JobResults::ReportEarly(Job& job) {
  for (const std::uint32_t place : job.bad) {
    // With nothing on the device the job ends now, and EndLoad() reports all.
    if (job.in_flight == 0 || !job.told.insert(place).second) continue;
    ended_.failed_blocks.push_back(job.chunks[place].block);
  }
  if (!job.told.empty()) ended_.failed.push_back(job.request);
}

void JobResults::EndLoad(Job& job, LinesAfterLock& lines) {
  if (job.cancelled) {
    // Fails also the blocks that were loaded: loads are cancelled when their values are void.
    job.FailAll();
  }
  if (tier_log_) job.SayTiers(lines);
  LoadDone done{.job = job.id,
                .failed = {},
                .ns = static_cast<std::uint64_t>(job.busy_ns),
                .bytes = job.counters.bytes_by_tier};
  bool news = false;
  for (const std::uint32_t place : job.bad) {
    const BlockId block = job.chunks[place].block;
    done.failed.push_back(block);
    if (job.told.contains(place)) continue;
    ended_.failed_blocks.push_back(block);
    news = true;
  }
  if (news) ended_.failed.push_back(job.request);
  if (!job.sync) ended_.loaded.push_back(job.request);
  loads_.push_back(std::move(done));
}

void JobResults::Fail(const LoadOrder& order, LinesAfterLock& lines) {
  Job job;
  job.id = order.job;
  job.load = true;
  job.sync = order.sync;
  job.request = order.request;
  job.chunks = order.chunks;
  job.FailAll();
  End(job, 0, lines);
}

void JobResults::Drop(const SaveOrder& order) {
  SaveDone done{.job = order.job};
  for (std::uint32_t i = 0; i < order.chunks.size(); ++i) done.missing.push_back(i);
  counters_.dropped_keys += order.chunks.size();
  saves_.push_back(std::move(done));
}

void JobResults::TakeInto(Report& report) {
  report.saves = std::exchange(saves_, {});
  report.loads = std::exchange(loads_, {});
  report.counters = std::exchange(counters_, {});
}

}  // namespace kvcove::connector
