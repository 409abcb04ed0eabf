// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/scheduler/scheduler.h"

#include <fmt/core.h>

#include <algorithm>

#include "kvcove/base/hash.h"
#include "kvcove/base/posix.h"

namespace kvcove::connector {

Result<VersionSource> ParseVersionSource(std::string_view name) {
  if (name == "fingerprint") return VersionSource::kFingerprint;
  if (name == "engine") return VersionSource::kEngine;
  if (name == "salt") return VersionSource::kSalt;
  if (name == "none") return VersionSource::kNone;
  return Fail(
      Code::kInvalid,
      fmt::format("weight_version_source '{}': give fingerprint, engine, salt or none", name));
}

Result<LoadWhen> ParseLoadWhen(std::string_view name) {
  if (name == "always") return LoadWhen::kAlways;
  if (name == "faster") return LoadWhen::kFaster;
  return Fail(Code::kInvalid, fmt::format("load_when '{}': give always or faster", name));
}

SchedulerRole::SchedulerRole(const SchedulerOptions& options, Store& store, LookupRunner& runner,
                             const Clock& clock)
    : options_(options),
      keys_(options.shape),
      stride_(options.shape.stride_tokens()),
      store_(store),
      runner_(runner),
      clock_(clock),
      budget_(options.lookup_budget),
      marks_(options.blocks),
      weights_(options_, clock.NowNs()),
      adapters_(options.shape.world(), options.engine),
      bindings_(options_),
      gauges_(options.shape.world()),
      events_({.enabled = options.events, .engine = options.engine}),
      costs_(options.costs) {
  if (!options_.bind_in_thread) return;
  if (options_.versions == VersionSource::kNone) {
    const MutexLock lock(mutex_);
    bindings_.Add({}, clock_.NowNs());
  }
  auto binder = StartThread("kvcove-bind", [this] { BindInThread(); });
  if (binder) binder_ = std::move(*binder);
  if (!binder) started_ = std::unexpected(binder.error());
}

SchedulerRole::Request& SchedulerRole::Find(const RequestView& view) {
  auto at = requests_.find(view.id);
  if (at == requests_.end()) at = requests_.emplace(std::string(view.id), Request{}).first;
  Request& request = at->second;
  request.prompt_tokens = view.prompt_tokens;
  return request;
}

SchedulerRole::NewHashes SchedulerRole::ReadHashes(const RequestView& view, std::size_t known,
                                                   std::uint64_t tokens) const {
  NewHashes read{.known = known, .hashes = {}};
  const std::size_t wanted =
      std::min<std::uint64_t>(view.hashes, tokens / options_.shape.hash_tokens);
  if (wanted <= known) return read;
  ExpectNoLock("a callback of the engine");
  view.read_hashes(known, wanted, read.hashes);
  return read;
}

bool SchedulerRole::Keep(Request& request, const NewHashes& read) {
  // The lock was free while the hashes were read: Finished() may have removed the request, and
  // another call may have begun it anew, with other hashes.
  if (request.hashes.size() != read.known) return false;
  for (std::size_t i = 0; i < read.hashes.size(); ++i) request.hashes.Add(read.hashes[i]);
  return true;
}

std::string_view SchedulerRole::HashOf(const Request& request, std::uint32_t group,
                                       std::uint64_t chunk) const {
  const std::uint64_t hashes =
      options_.shape.groups[group].chunk_tokens / options_.shape.hash_tokens;
  return request.hashes[(chunk + 1) * hashes - 1];
}

void SchedulerRole::Hint(std::string_view id, const RequestHints& hints) {
  const MutexLock lock(mutex_);
  auto at = requests_.find(id);
  if (at == requests_.end()) at = requests_.emplace(std::string(id), Request{}).first;
  at->second.hints = hints;
}

void SchedulerRole::Finished(std::string_view id) {
  const MutexLock lock(mutex_);
  const auto at = requests_.find(id);
  const bool stores = at != requests_.end() && at->second.may_store;
  if (at != requests_.end()) requests_.erase(at);
  const auto job = load_of_.find(id);
  if (job == load_of_.end()) return;
  Load& load = loads_.at(job->second);
  load.wanted = false;
  // Blocks that the request has computed on the load are settled only if it could store them.
  if (!stores) load.dependent.clear();
  plan_.cancelled.push_back(job->second);
}

Plan SchedulerRole::BuildPlan(std::vector<BlockId>& pins) {
  Plan plan = MakePlan(pins);
  if (!options_.bind_in_thread) {
    while (Announce()) continue;
  }
  return plan;
}

Plan SchedulerRole::MakePlan(std::vector<BlockId>& pins) {
  if (!options_.bind_in_thread) (void)BindOne(StepBudget::kCaptureTimeout);
  PollGenerations();
  if (!options_.bind_in_thread) NameVersions();
  const bool closed = store_.closed();
  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  if (closed_since_ns_ != 0 && !closed) {
    lines.Info("{}: the reset is proven after {:.1f} s; look-ups and stores go on", options_.engine,
               static_cast<double>(clock_.NowNs() - closed_since_ns_) / 1e9);
    closed_since_ns_ = 0;
    bindings_.Forget();
    NewEpoch(/*blocks=*/false);
  }
  if (options_.bind_in_thread) {
    bindings_.QueueNames(HaveSalts(), clock_.NowNs());
    WakeBinder();
  }
  budget_.BeginStep();
  // No rank has reported yet with which weights this step computes.
  if (!weights_.known()) StopStoring([](const Request&) { return true; });
  Plan plan = std::move(plan_);
  plan_ = {};
  // No value has the empty hash, so the ranks report these loads as failed. LoadEnded would void
  // them too, but nobody asks it about one that the step computes on.
  for (LoadOrder& order : plan.loads) {
    const auto load = loads_.find(order.job);
    if (load == loads_.end() || load->second.epoch == epoch_) continue;
    for (ChunkPlace& place : order.chunks) place.hash = {};
  }
  plan.pool = options_.pool;
  plan.engine = options_.engine_socket;
  plan.step = steps_.Begin(clock_.NowNs());
  plan.adapters = adapters_.Seen();
  plan.fingerprint = weights_.TakeQuestion();
  // Now, before the step computes this KV: the next turn may reach another engine as soon as the
  // step has ended, when no rank has begun to store.
  for (const SaveOrder& save : plan.saves) QueueNotice(SaveNotice::kBegin, save, save.chunks);
  pins = std::move(pins_);
  pins_.clear();
  return plan;
}

std::vector<BlockId> SchedulerRole::TakeUnpins() {
  const MutexLock lock(mutex_);
  return std::exchange(unpins_, {});
}

bool SchedulerRole::Pending() const {
  const MutexLock lock(mutex_);
  return weights_.AsksAtOnce() || !saves_.empty() || !loads_.empty() || !unpins_.empty() ||
         !plan_.empty();
}

void SchedulerRole::OnReport(const Report& report) {
  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  if (report.rank >= gauges_.size()) {
    lines.Error("{}: a report of rank {} of {}", options_.engine, report.rank, gauges_.size());
    return;
  }
  stats_.ranks.Add(report.counters);
  const Counters& now = report.counters;
  gauges_[report.rank] = {now.queued_jobs,           now.device_tickets,
                          now.device_lent_bytes,     now.device_pinned_bytes,
                          now.device_in_place_bytes, now.device_segment_pinned_bytes};
  const auto all = [this](std::size_t which) KVCOVE_REQUIRES(mutex_) {
    std::uint64_t sum = 0;
    for (const auto& rank : gauges_) sum += rank[which];
    return sum;
  };
  stats_.ranks.queued_jobs = all(0);
  stats_.ranks.device_tickets = all(1);
  stats_.ranks.device_lent_bytes = all(2);
  stats_.ranks.device_pinned_bytes = all(3);
  stats_.ranks.device_in_place_bytes = all(4);
  stats_.ranks.device_segment_pinned_bytes = all(5);
  TakeStep(report);
  if (report.without_pool) without_pool_ = true;
  // Weights and adapters before loads and saves: a report that has a change, too, must not end jobs
  // as current that the change has voided.
  TakeWeights(report, lines);
  TakeAdapters(report, lines);
  TakeLoads(report);
  TakeSaves(report, lines);
}

SchedulerStats SchedulerRole::stats() const {
  const bool closed = store_.closed();
  const MutexLock lock(mutex_);
  SchedulerStats stats = stats_;
  stats.events_dropped = events_.dropped();
  stats.costs = costs_.costs(clock_.NowNs());
  stats.closed = closed || !weights_.known() ? 1 : 0;
  return stats;
}

}  // namespace kvcove::connector
