// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/master.h"

#include <fmt/core.h>

#include <algorithm>

#include "kvcove/base/log.h"

namespace kvcove::master {
namespace {

constexpr std::int64_t kRegisterWaitNs = 50 * kMillisecond;

}  // namespace

Master::Master(std::unique_ptr<GenerationLog> log, const Restored& restored, GenerationSink& sink,
               const Clock& clock)
    : sink_(sink),
      clock_(clock),
      proven_from_ns_(restored.running_lease_ns == 0
                          ? 0
                          : clock.NowNs() + restored.running_lease_ns / 100 * 101),
      log_(std::move(log)),
      // From a random number on, so that none of another incarnation's is one of this.
      generations_(restored.incarnation, restored.records.empty() ? RandomU64() >> 8 : 0) {}

Result<std::unique_ptr<Master>> Master::Open(std::unique_ptr<GenerationLog> log,
                                             const Restored& restored, GenerationSink& sink,
                                             const Clock& clock) {
  std::unique_ptr<Master> master(new Master(std::move(log), restored, sink, clock));
  std::vector<SlotUpdate> updates;
  {
    const MutexLock lock(master->mutex_);
    for (const Record& record : restored.records) master->generations_.Restore(record);
    const Record start = master->generations_.StartRecord();
    master->generations_.Restore(start);
    std::vector<Record> records = master->generations_.Snapshot();
    records.push_back(start);
    KVCOVE_TRY(master->log_->Rewrite(restored.incarnation, records));
    updates = master->UpdatesOf(master->generations_.Slots());
  }
  sink.Publish(restored.incarnation, updates);
  return master;
}

Id128 Master::incarnation() const {
  const MutexLock lock(mutex_);
  return generations_.incarnation();
}

std::vector<SlotUpdate> Master::UpdatesOf(const std::vector<SlotId>& slots) {
  std::vector<SlotUpdate> updates;
  for (const SlotId slot : slots) updates.push_back(generations_.UpdateOf(slot));
  return updates;
}

Status Master::StartOver() {
  std::vector<SlotUpdate> updates;
  for (const SlotId slot : generations_.Slots()) {
    updates.push_back({.slot = slot, .generation = 0, .name = {}});
  }
  // Numbers go on, so that no reader of this segment can take a new one for an old one.
  const std::uint64_t term = generations_.term();
  generations_ = Generations(RandomId(), generations_.last_generation());
  generations_.Restore({.kind = Record::Kind::kStart,
                        .reset_id = {.high = 0, .low = term},
                        .name = {},
                        .version = {}});
  const Status rewritten = log_->Rewrite(generations_.incarnation(), {generations_.StartRecord()});
  broken_ = !rewritten;
  sink_.Publish(generations_.incarnation(), updates);
  return rewritten;
}

Status Master::Persist(const std::vector<Record>& records) {
  if (closed_) return Fail(Code::kUnavailable, "the pool is stopping");
  if (broken_) KVCOVE_TRY(StartOver());
  if (records.empty()) return {};
  // The log may sync: nobody else may decide meanwhile, but counters and other calls need not wait.
  busy_ = true;
  GenerationLog& log = *log_;
  mutex_.unlock();
  Status appended = log.Append(records);
  mutex_.lock();
  busy_ = false;
  changed_.NotifyAll();
  if (appended) return {};
  // Nothing is known about what reached the disk: no number of this incarnation may be used again.
  if (const Status fresh = StartOver(); !fresh)
    appended.error().detail += "; " + fresh.error().detail;
  return Fail(Code::kUnavailable, appended.error().detail);
}

Result<Registration> Master::Register(const RegisterRequest& request) {
  std::vector<SlotUpdate> updates;
  Registration registration;
  {
    const MutexLock lock(mutex_);
    while (busy_) changed_.Wait(mutex_);
    std::vector<Record> records;
    KVCOVE_TRY(generations_.PrepareRegister(request, records));
    KVCOVE_TRY(Persist(records));
    registration = generations_.FinishRegister(request, records);
    // Whether a version is named may have changed for all of the namespace.
    updates = UpdatesOf(generations_.SlotsOf(request.name));
    // Published under the lock, so that no older update can follow a newer one.
    sink_.Publish(generations_.incarnation(), updates);
  }
  // So that the first put is not ahead of its owner. Who does not know is safe: it refuses.
  (void)sink_.Await(clock_.NowNs() + kRegisterWaitNs);
  return registration;
}

void Master::LeadResets() {
  std::vector<Pending*> mine;
  mine.swap(waiting_);
  std::vector<ResetRequest> requests;
  for (const Pending* pending : mine) requests.push_back(pending->request);
  std::vector<Record> records;
  generations_.PrepareReset(requests, records);
  const Status persisted = Persist(records);
  ResetOutcome outcome;
  if (persisted) {
    const std::vector<SlotId> raised = generations_.FinishReset(requests, records);
    outcome.raised = static_cast<std::uint32_t>(raised.size());
    sink_.Publish(generations_.incarnation(), UpdatesOf(raised));
  }
  for (Pending* pending : mine) {
    if (persisted) {
      pending->outcome = outcome;
    } else {
      pending->outcome = Fail(Code::kNotProven, persisted.error().ToString());
    }
    pending->done = true;
  }
  changed_.NotifyAll();
}

Result<ResetOutcome> Master::Reset(const ResetRequest& request, std::int64_t deadline_ns) {
  KVCOVE_TRY(CheckName(NameWithinTenant(request.name), "namespace"));
  KVCOVE_TRY(CheckName(request.engine, "engine"));
  if (request.version) KVCOVE_TRY(CheckName(*request.version, "weight version"));
  Pending pending{.request = request, .outcome = ResetOutcome{}};
  const MutexLock lock(mutex_);
  waiting_.push_back(&pending);
  while (!pending.done) {
    if (busy_) {
      changed_.Wait(mutex_);  // a sync is under way; whoever waits shares the next raise
    } else {
      LeadResets();
    }
  }
  if (!pending.outcome) return pending.outcome;
  mutex_.unlock();
  const Status acknowledged = sink_.Await(deadline_ns);
  mutex_.lock();
  if (!acknowledged) return Fail(Code::kNotProven, acknowledged.error().detail);
  // Somebody may still map the memory of an owner that died without ending its lease.
  while (clock_.NowNs() < proven_from_ns_) {
    const std::int64_t now = clock_.NowNs();
    if (now >= deadline_ns) {
      return Fail(Code::kNotProven, "leases that an earlier process gave are still running");
    }
    changed_.WaitFor(mutex_, std::chrono::nanoseconds(std::min(
                                 std::min(proven_from_ns_, deadline_ns) - now, 20 * kMillisecond)));
  }
  return pending.outcome;
}

Status Master::NameVersions(std::string_view name, std::string_view engine,
                            const std::vector<std::string>& versions) {
  for (const std::string& version : versions) KVCOVE_TRY(CheckName(version, "weight version"));
  const MutexLock lock(mutex_);
  while (busy_) changed_.Wait(mutex_);
  generations_.NameVersions(name, engine, versions);
  sink_.Publish(generations_.incarnation(), UpdatesOf(generations_.SlotsOf(name)));
  return {};
}

void Master::EndEngine(std::string_view name, std::string_view engine) {
  const MutexLock lock(mutex_);
  while (busy_) changed_.Wait(mutex_);
  generations_.EndEngine(name, engine);
  sink_.Publish(generations_.incarnation(), UpdatesOf(generations_.SlotsOf(name)));
}

std::uint64_t Master::term() const {
  const MutexLock lock(mutex_);
  return generations_.term();
}

std::vector<SlotDescription> Master::Describe() const {
  const MutexLock lock(mutex_);
  return generations_.Describe();
}

std::set<SlotId> Master::missed_removals() const {
  const MutexLock lock(mutex_);
  return generations_.missed_removals();
}

Status Master::PersistMissed(SlotId slot) {
  const MutexLock lock(mutex_);
  while (busy_) changed_.Wait(mutex_);
  if (generations_.missed_removals().contains(slot)) return {};
  const Record record{.kind = Record::Kind::kMissed, .slot = slot, .name = {}, .version = {}};
  KVCOVE_TRY(Persist({record}));
  generations_.Restore(record);
  return {};
}

Status Master::Close() {
  const MutexLock lock(mutex_);
  while (busy_) changed_.Wait(mutex_);
  closed_ = true;
  return log_->Close();
}

}  // namespace kvcove::master
