// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/control/generation_keeper.h"

#include <fmt/core.h>

#include <algorithm>

#include "kvcove/base/log.h"

namespace kvcove::master {
namespace {

// A registration that made a slot waits this long for owners to publish the generation, so that the
// first put does not reach them earlier. An owner that lacks the generation refuses the put, so a
// registration that is answered without the proof is safe, too.
constexpr std::int64_t kRegisterWaitNs = 200 * kMillisecond;
constexpr std::int64_t kExpireNs = kSecond;
constexpr std::int64_t kPoolNs = 10 * kSecond;  // to store a fact of the pool
constexpr std::size_t kMaxWaiting = 65536;

Error Late(std::string_view what) {
  return {Code::kTimeout, std::string(what) + " was not stored in time: the control store is slow"};
}

}  // namespace

GenerationKeeper::GenerationKeeper(const Options& options, const StoredState& state,
                                   OrderedCommits& commits, GenerationSink& sink,
                                   const Clock& clock)
    : proven_from_ns_(options.proven_from_ns),
      log_resets_(options.log_resets),
      commits_(commits),
      sink_(sink),
      clock_(clock),
      generations_(options.generations, state.pool->incarnation, clock.NowNs()),
      pool_(*state.pool) {
  generations_.Load(state);
  generations_.RaiseCounter(pool_.counter);
}

void GenerationKeeper::Start() {
  Deferred deferred(commits_);
  const MutexLock lock(mutex_);
  sink_.Publish(generations_.incarnation(), generations_.All(), deferred);
}

// ---- requests

void GenerationKeeper::Register(const RegisterRequest& request, std::int64_t deadline_ns,
                                Reply<Registration> reply) {
  auto operation = std::make_shared<Operation>();
  operation->kind = Kind::kRegister;
  operation->deadline_ns = deadline_ns;
  operation->registering = request;
  operation->registered = std::move(reply);
  Deferred deferred(commits_);
  const MutexLock lock(mutex_);
  Enqueue(operation, deferred);
}

void GenerationKeeper::Reset(const ResetRequest& request, std::int64_t deadline_ns,
                             Reply<ResetOutcome> reply) {
  const auto check = [&]() -> Status {
    KVCOVE_TRY(CheckName(NameWithinTenant(request.name), "namespace"));
    KVCOVE_TRY(CheckName(request.engine, "engine"));
    if (request.version) KVCOVE_TRY(CheckName(*request.version, "weight version"));
    return {};
  };
  if (const Status valid = check(); !valid) return reply(std::unexpected(valid.error()));
  auto operation = std::make_shared<Operation>();
  operation->kind = Kind::kReset;
  operation->since_ns = clock_.NowNs();
  operation->deadline_ns = deadline_ns;
  operation->resetting = request;
  operation->reset = std::move(reply);
  Deferred deferred(commits_);
  const MutexLock lock(mutex_);
  Enqueue(operation, deferred);
}

void GenerationKeeper::Prune(const PruneRequest& request, std::int64_t deadline_ns,
                             Reply<PruneOutcome> reply) {
  const auto check = [&]() -> Status {
    KVCOVE_TRY(CheckName(NameWithinTenant(request.name), "namespace"));
    if (request.before.empty()) {
      return Fail(Code::kInvalid, "name the weight version before which all are dead");
    }
    return CheckName(request.before, "weight version");
  };
  if (const Status valid = check(); !valid) return reply(std::unexpected(valid.error()));
  auto operation = std::make_shared<Operation>();
  operation->kind = Kind::kPrune;
  operation->since_ns = clock_.NowNs();
  operation->deadline_ns = deadline_ns;
  operation->pruning = request;
  operation->pruned = std::move(reply);
  Deferred deferred(commits_);
  const MutexLock lock(mutex_);
  Enqueue(operation, deferred);
}

void GenerationKeeper::ChangePool(Kind kind, std::function<void(PoolFact&)> edit,
                                  Reply<void> stored, Deferred& deferred) {
  auto operation = std::make_shared<Operation>();
  operation->kind = kind;
  operation->deadline_ns = clock_.NowNs() + kPoolNs;
  operation->edit = std::move(edit);
  operation->stored = std::move(stored);
  Enqueue(operation, deferred);
}

void GenerationKeeper::BeginIncarnation(std::uint64_t counter, Reply<void> done) {
  Deferred deferred(commits_);
  const MutexLock lock(mutex_);
  generations_.RaiseCounter(counter);
  ChangePool(
      Kind::kVoid, [](PoolFact& pool) { pool.incarnation = RandomId(); }, std::move(done),
      deferred);
}

void GenerationKeeper::AdoptPool(const Id128& pool, Reply<void> done) {
  Deferred deferred(commits_);
  const MutexLock lock(mutex_);
  ChangePool(Kind::kPool, [pool](PoolFact& fact) { fact.pool = pool; }, std::move(done), deferred);
}

void GenerationKeeper::EndCleanly(Reply<void> done) {
  Deferred deferred(commits_);
  const MutexLock lock(mutex_);
  // If the wait for unknown leases is not over, the next start must repeat it.
  const bool waited = clock_.NowNs() >= proven_from_ns_;
  ChangePool(
      Kind::kPool,
      [waited](PoolFact& fact) {
        fact.clean_end = true;
        fact.unknown_leases = fact.unknown_leases && !waited;
      },
      std::move(done), deferred);
}

// A reset gets kNotProven also when another master leads, or when this one stops, although its
// client should then wait for the next leader. No client reads that answer: the store ends the
// leadership before it fails the commit, so WhileLeading answers "not the leader" in its place, and
// a server that stops closes its connections before it stops the master.
void GenerationKeeper::Refuse(Operation& operation, const Error& error, Deferred& deferred) {
  if (std::exchange(operation.answered, true)) return;
  if (operation.kind == Kind::kRegister) {
    deferred.Answer<Registration>(operation.registered, std::unexpected(error));
  } else if (operation.kind == Kind::kReset) {
    deferred.Answer<ResetOutcome>(operation.reset, Fail(Code::kNotProven, error.ToString()));
  } else if (operation.kind == Kind::kPrune) {
    const bool invalid = error.code == Code::kInvalid;
    deferred.Answer<PruneOutcome>(operation.pruned,
                                  Fail(invalid ? Code::kInvalid : Code::kNotProven,
                                       invalid ? error.detail : error.ToString()));
  } else {
    deferred.Answer<void>(operation.stored, std::unexpected(error));
  }
}

// ---- one decision after the other

void GenerationKeeper::Enqueue(const std::shared_ptr<Operation>& operation, Deferred& deferred) {
  if (waiting_.size() >= kMaxWaiting) {
    return Refuse(*operation, {Code::kLimit, "too many calls wait for the control store"},
                  deferred);
  }
  waiting_.push_back(operation);
  Advance(deferred);
}

GenerationKeeper::Operations GenerationKeeper::TakeNext() {
  Operations next = {waiting_.front()};
  waiting_.pop_front();
  // Waiting resets share one raise. A late one does not: it repeats an older reset, and the others
  // may be for newer weights.
  if (next.front()->kind != Kind::kReset || next.front()->resetting.late) return next;
  std::erase_if(waiting_, [&](const std::shared_ptr<Operation>& operation) {
    if (operation->kind != Kind::kReset || operation->resetting.late) return false;
    next.push_back(operation);
    return true;
  });
  return next;
}

Result<Generations::Plan> GenerationKeeper::Decide(const Operations& operations) {
  switch (operations.front()->kind) {
    case Kind::kRegister:
      return generations_.PlanRegister(operations.front()->registering, clock_.NowNs());
    case Kind::kReset: {
      std::vector<ResetRequest> requests;
      for (const auto& operation : operations) requests.push_back(operation->resetting);
      return generations_.PlanReset(requests, clock_.NowNs());
    }
    case Kind::kPrune:
      return generations_.PlanPrune(operations.front()->pruning);
    case Kind::kVoid:
    case Kind::kPool:
      break;
  }
  Generations::Plan plan;
  if (operations.front()->kind == Kind::kVoid) plan = generations_.PlanVoid();
  // pool_ follows when the store has it (CarryOut).
  next_pool_ = pool_;
  operations.front()->edit(next_pool_);
  next_pool_.counter = generations_.counter();
  plan.changes.push_back({.key = std::string(kPoolKey), .value = Encode(next_pool_)});
  return plan;
}

void GenerationKeeper::Advance(Deferred& deferred) {
  while (!busy_ && !waiting_.empty()) {
    const Operations operations = TakeNext();
    Result<Generations::Plan> plan = Decide(operations);
    if (!plan) {
      for (const auto& operation : operations) Refuse(*operation, plan.error(), deferred);
      continue;
    }
    if (plan->changes.empty()) {
      CarryOut(operations, *plan, 0, deferred);
      continue;
    }
    // Nothing else is decided before Stored: a plan is made for the state that it was decided in.
    busy_ = true;
    storing_ = operations;
    std::vector<FactChange> changes = plan->changes;
    commits_.Add(std::move(changes), [this, operations, plan = std::move(*plan)](
                                         const Result<std::uint64_t>& revision) {
      Deferred after(commits_);
      const MutexLock lock(mutex_);
      Stored(operations, plan, revision, after);
    });
  }
}

void GenerationKeeper::Stored(const Operations& operations, const Generations::Plan& plan,
                              const Result<std::uint64_t>& revision, Deferred& deferred) {
  busy_ = false;
  storing_.clear();
  if (revision) {
    CarryOut(operations, plan, *revision, deferred);
  } else {
    // The plan is discarded, and with it the numbers that it drew: NextNumber never repeats one.
    for (const auto& operation : operations) Refuse(*operation, revision.error(), deferred);
  }
  Advance(deferred);
}

void GenerationKeeper::PublishPlan(const Generations::Plan& plan, Deferred& deferred) {
  std::vector<Generations::Published> updates;
  for (const Generations::Plan::Slot& slot : plan.slots) {
    updates.push_back(generations_.PublishedOf(slot.slot));
  }
  sink_.Publish(generations_.incarnation(), updates, deferred);
}

void GenerationKeeper::CarryOut(const Operations& operations, const Generations::Plan& plan,
                                std::uint64_t revision, Deferred& deferred) {
  const std::uint64_t names = generations_.registrations().version();
  Operation& first = *operations.front();
  if (first.kind == Kind::kRegister) {
    const Registration registration =
        generations_.Register(first.registering, plan, revision, clock_.NowNs());
    if (!plan.slots.empty()) PublishPlan(plan, deferred);
    // Tick may have answered the call at its deadline; the engine registers again then.
    if (!std::exchange(first.answered, true)) {
      const auto reply = first.registered;
      if (plan.slots.empty()) {
        deferred.Answer<Registration>(reply, registration);
      } else {
        const std::int64_t until_ns = std::min(clock_.NowNs() + kRegisterWaitNs, first.deadline_ns);
        // Await runs after the keeper's lock: the sink takes its own lock and may answer at once.
        deferred.Add([this, until_ns, reply, registration] {
          sink_.Await(until_ns,
                      [reply, registration](const Result<void>&) { reply(registration); });
        });
      }
    }
  } else if (first.kind == Kind::kReset) {
    std::vector<ResetRequest> requests;
    for (const auto& operation : operations) {
      operation->shared_ns = generations_.SharedNs(operation->resetting);
      requests.push_back(operation->resetting);
    }
    generations_.Reset(requests, plan, revision, clock_.NowNs());
    if (!plan.slots.empty()) PublishPlan(plan, deferred);
    const auto raised = std::ranges::count(plan.slots, true, &Generations::Plan::Slot::raise);
    for (const auto& operation : operations) {
      const ResetOutcome outcome{.raised = static_cast<std::uint32_t>(raised),
                                 .incarnation = generations_.incarnation(),
                                 .generation = generations_.BoundTo(operation->resetting.name,
                                                                    operation->resetting.engine)};
      AwaitProof(operation, [this, operation, outcome] { Prove(*operation, outcome); }, deferred);
    }
  } else if (first.kind == Kind::kPrune) {
    const PruneOutcome outcome = generations_.Prune(first.pruning, plan, revision);
    if (!plan.slots.empty()) PublishPlan(plan, deferred);
    AwaitProof(
        operations.front(),
        [this, operation = operations.front(), outcome] { Prove(*operation, outcome); }, deferred);
  } else {
    pool_ = next_pool_;
    if (first.kind == Kind::kVoid) {
      generations_.Void(pool_.incarnation, plan, revision);
      PublishPlan(plan, deferred);  // also without slots: owners must learn the incarnation
    }
    if (!std::exchange(first.answered, true)) deferred.Answer<void>(first.stored, Result<void>());
  }
  if (generations_.registrations().version() != names) ShowNames(deferred);
}

void GenerationKeeper::AwaitProof(const std::shared_ptr<Operation>& operation,
                                  const std::function<void()>& prove, Deferred& deferred) {
  if (std::exchange(operation->answered, true)) return;
  deferred.Add([this, operation, prove] {
    sink_.Await(operation->deadline_ns, [this, operation, prove](const Result<void>& proven) {
      if (!proven) return NotProven(*operation, proven.error().detail);
      // Owners that the store does not know are not among those that Await asked, and may still
      // show older generations under an earlier master's lease.
      if (clock_.NowNs() >= proven_from_ns_) return prove();
      if (operation->deadline_ns < proven_from_ns_) {
        return NotProven(*operation, "leases that an earlier process gave are still running");
      }
      const MutexLock lock(mutex_);
      proving_.push_back({.from_ns = proven_from_ns_, .answer = prove});
    });
  });
}

void GenerationKeeper::NotProven(const Operation& operation, const std::string& why) {
  if (operation.kind == Kind::kPrune) return operation.pruned(Fail(Code::kNotProven, why));
  operation.reset(Fail(Code::kNotProven, why));
}

void GenerationKeeper::Prove(const Operation& operation, const ResetOutcome& outcome) const {
  const std::int64_t now_ns = clock_.NowNs();
  const double ms = static_cast<double>(now_ns - operation.since_ns) / 1e6;
  ResetOutcome answer = outcome;
  answer.unshared_ms = ResetOutcome::kUnsharedMs;
  if (operation.shared_ns != Generations::kUnshared) {
    // At least 1: 0 says that this is not known.
    answer.unshared_ms = static_cast<std::uint64_t>(
        std::max<std::int64_t>((now_ns - operation.shared_ns) / kMillisecond, 1));
  }
  operation.reset(answer);
  if (!log_resets_) return;
  const ResetRequest& request = operation.resetting;
  const std::string by = request.engine.empty() ? "an operator or trainer"
                                                : fmt::format("engine '{}'", request.engine);
  // Each owner logs the number of values that the reset voided on its host.
  LogInfo("reset of '{}' by {}: proven in {:.1f} ms; {} generations ended",
          ReadableName(request.name), by, ms, outcome.raised);
}

void GenerationKeeper::Prove(const Operation& operation, const PruneOutcome& outcome) const {
  const double ms = static_cast<double>(clock_.NowNs() - operation.since_ns) / 1e6;
  operation.pruned(outcome);
  if (!log_resets_) return;
  LogInfo(
      "prune of '{}' before version '{}': proven in {:.1f} ms; {} versions died, {} "
      "generations ended",
      ReadableName(operation.pruning.name), operation.pruning.before, ms, outcome.versions,
      outcome.raised);
}

void GenerationKeeper::Tick() {
  const std::int64_t now = clock_.NowNs();
  Deferred deferred(commits_);
  const MutexLock lock(mutex_);
  std::erase_if(waiting_, [&](const std::shared_ptr<Operation>& operation) {
    if (operation->deadline_ns > now) return false;
    Refuse(*operation, Late("the request"), deferred);
    return true;
  });
  // The decision that is being stored may still become durable, but its callers get their answer
  // at the deadline; CarryOut then finds `answered` set.
  for (const auto& operation : storing_) {
    if (operation->deadline_ns <= now) Refuse(*operation, Late("the decision"), deferred);
  }
  std::erase_if(proving_, [&](const Proving& proving) {
    if (proving.from_ns > now) return false;
    deferred.Add(proving.answer);
    return true;
  });
  if (now < expired_ns_ + kExpireNs) return;
  expired_ns_ = now;
  if (generations_.registrations().Expire(now)) ShowNames(deferred);
  // The unknown leases are over now, so the next start need not wait for them again. Only while
  // nothing else waits: this change is not urgent.
  if (pool_.unknown_leases && now >= proven_from_ns_ && waiting_.empty() && !busy_) {
    ChangePool(
        Kind::kPool, [](PoolFact& fact) { fact.unknown_leases = false; },
        [](const Result<void>&) {}, deferred);
  }
}

// ---- versions in use

template <typename Change>
void GenerationKeeper::ChangeNames(const Change& change) {
  Deferred deferred(commits_);
  const MutexLock lock(mutex_);
  const std::uint64_t before = generations_.registrations().version();
  change(generations_);
  if (generations_.registrations().version() != before) ShowNames(deferred);
}

Status GenerationKeeper::NameVersions(std::string_view name, std::string_view engine,
                                      const std::vector<std::string>& versions) {
  for (const std::string& version : versions) KVCOVE_TRY(CheckName(version, "weight version"));
  ChangeNames([&](Generations& generations) { generations.NameVersions(name, engine, versions); });
  return {};
}

void GenerationKeeper::EndEngine(std::string_view name, std::string_view engine,
                                 const Id128& holder) {
  ChangeNames([&](Generations& generations) { generations.EndEngine(name, engine, holder); });
}

void GenerationKeeper::EndHolder(const Id128& holder) {
  ChangeNames([&](Generations& generations) { generations.registrations().EndHolder(holder); });
}

void GenerationKeeper::Heard(const Id128& holder) {
  const MutexLock lock(mutex_);
  generations_.registrations().Heard(holder, clock_.NowNs());
}

// ---- inspection

PoolFact GenerationKeeper::pool() const {
  const MutexLock lock(mutex_);
  return pool_;
}

std::vector<SlotDescription> GenerationKeeper::Describe() const {
  const MutexLock lock(mutex_);
  return generations_.Describe(clock_.NowNs());
}

std::vector<EngineDescription> GenerationKeeper::Engines(std::size_t at_most) const {
  const MutexLock lock(mutex_);
  return generations_.Engines(at_most);
}

std::vector<std::string> GenerationKeeper::VersionedNames() const {
  const MutexLock lock(mutex_);
  return generations_.order().Names();
}

bool GenerationKeeper::Knows(std::string_view name, std::string_view version) const {
  const MutexLock lock(mutex_);
  return generations_.FindSlot(name, version).has_value();
}

std::size_t GenerationKeeper::registrations() const {
  const MutexLock lock(mutex_);
  return generations_.registrations().size();
}

std::size_t GenerationKeeper::used_slots() const {
  const MutexLock lock(mutex_);
  return generations_.used_slots();
}

Generations::Refused GenerationKeeper::refused() const {
  const MutexLock lock(mutex_);
  return generations_.refused();
}

GenerationKeeper::Versions GenerationKeeper::versions() const {
  const MutexLock lock(mutex_);
  return {.known = generations_.order().size(), .dead = generations_.order().dead()};
}

}  // namespace kvcove::master
