// SPDX-License-Identifier: Apache-2.0
// Carries out what `Generations` decides: one decision at a time is stored, then published to
// owners; a reset is answered when owners have acknowledged it. No thread of its own: answers come
// from the store's thread, from an owner's acknowledgement, or from Tick.
//
//   request -> waiting -> (decided) stored -> published -> (reset) acknowledged -> answered
// Requests that wait while another one is being stored share the next decision. Each is answered by
// its deadline, whatever the store does.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/master/control/deferred.h"
#include "kvcove/master/control/generations.h"

namespace kvcove::master {

using wire::ResetOutcome;

// The owners.
class GenerationSink {
 public:
  virtual ~GenerationSink() = default;
  // What owners must know from now on. In the order of revisions; does not wait. `after` takes what
  // this leads to: answers and commits, which run without the keeper's lock.
  virtual void Publish(const Id128& incarnation, const std::vector<Generations::Published>& updates,
                       Deferred& after) = 0;
  // Slots of versions that no engine uses any more.
  virtual void SetUnnamed(std::vector<SlotId> unnamed, Deferred& after) = 0;
  // Ok when each owner has acknowledged all that was published before this call, or its lease has
  // run out: from then on nothing of an older generation is found or stored. Errors: kTimeout.
  virtual void Await(std::int64_t deadline_ns, Reply<void> proven) = 0;
};

// Thread-safe. Publish and SetUnnamed are called under the keeper's lock, so that no older
// generation follows a newer one.
class GenerationKeeper {
 public:
  struct Options {
    GenerationOptions generations;
    // Leases that an earlier master may have given have run out by then; resets wait for it.
    std::int64_t proven_from_ns = 0;
    // A log line for each reset that is proven: of a master, or of the daemon of one host.
    bool log_resets = false;
  };
  // `state`: what the store held, with a pool.
  GenerationKeeper(const Options& options, const StoredState& state, OrderedCommits& commits,
                   GenerationSink& sink, const Clock& clock);
  // Shows the sink all that is stored.
  void Start();

  // Errors: kInvalid, kLimit; kTimeout and kUnavailable when the store does not answer.
  void Register(const RegisterRequest& request, std::int64_t deadline_ns,
                Reply<Registration> reply);
  // Ok: proven. Errors: kNotProven, kInvalid.
  void Reset(const ResetRequest& request, std::int64_t deadline_ns, Reply<ResetOutcome> reply);
  Status NameVersions(std::string_view name, std::string_view engine,
                      const std::vector<std::string>& versions);
  void EndEngine(std::string_view name, std::string_view engine, const Id128& holder);
  void Heard(const Id128& holder);
  void EndHolder(const Id128& holder);
  // Everything stored so far is void. Numbers given from now on have a counter above `counter`.
  void BeginIncarnation(std::uint64_t counter, Reply<void> done);
  // Answers what ran out of time, ends registrations that nobody keeps alive.
  void Tick();

  // The pool has lost its store; owners know it by this id. `done` when it is stored.
  void AdoptPool(const Id128& pool, Reply<void> done);
  // The next start need not wait for leases: none is running.
  void EndCleanly(Reply<void> done);

  PoolFact pool() const;
  std::vector<SlotDescription> Describe() const;
  // The namespace has a slot for this version.
  bool Knows(std::string_view name, std::string_view version) const;
  std::size_t registrations() const;
  std::size_t used_slots() const;
  Generations::Refused refused() const;

  // ---- for a successor's process (docs/upgrade.md)
  // Nothing is being decided, stored or proven.
  bool Idle() const;
  std::int64_t proven_from_ns() const { return proven_from_ns_; }
  // Of an idle one.
  void Save(StateWriter& ar);
  // Into one that has the same `proven_from_ns`.
  void Load(StateReader& ar);

 private:
  enum class Kind { kRegister, kReset, kVoid, kPool };
  struct Operation {
    Kind kind = Kind::kRegister;
    std::int64_t since_ns = 0;  // a reset's
    std::int64_t deadline_ns = 0;
    RegisterRequest registering;
    ResetRequest resetting;
    std::function<void(Result<Registration>)> registered;
    std::function<void(Result<ResetOutcome>)> reset;
    std::function<void(PoolFact&)> edit;  // of the pool
    Reply<void> stored;
    bool answered = false;
  };
  using Operations = std::vector<std::shared_ptr<Operation>>;

  // Stores the pool with another incarnation (kVoid), or edited.
  void ChangePool(Kind kind, std::function<void(PoolFact&)> edit, Reply<void> stored,
                  Deferred& deferred) KVCOVE_REQUIRES(mutex_);
  void Enqueue(const std::shared_ptr<Operation>& operation, Deferred& deferred)
      KVCOVE_REQUIRES(mutex_);
  // Decides what waits, as long as nothing is being stored.
  void Advance(Deferred& deferred) KVCOVE_REQUIRES(mutex_);
  Operations TakeNext() KVCOVE_REQUIRES(mutex_);
  Result<Generations::Plan> Decide(const Operations& operations) KVCOVE_REQUIRES(mutex_);
  void Stored(const Operations& operations, const Generations::Plan& plan,
              const Result<std::uint64_t>& revision, Deferred& deferred) KVCOVE_REQUIRES(mutex_);
  void CarryOut(const Operations& operations, const Generations::Plan& plan, std::uint64_t revision,
                Deferred& deferred) KVCOVE_REQUIRES(mutex_);
  void PublishPlan(const Generations::Plan& plan, Deferred& deferred) KVCOVE_REQUIRES(mutex_);
  void ShowNames(Deferred& deferred) KVCOVE_REQUIRES(mutex_) {
    sink_.SetUnnamed(generations_.UnnamedSlots(clock_.NowNs()), deferred);
  }
  // Registrations change, and with them the slots that somebody names.
  template <typename Change>
  void ChangeNames(const Change& change);
  void AwaitReset(const std::shared_ptr<Operation>& operation, const ResetOutcome& outcome,
                  Deferred& deferred) KVCOVE_REQUIRES(mutex_);
  // Answers and says how long it took. Called without a lock.
  void Prove(const Operation& operation, const ResetOutcome& outcome) const;
  static void Refuse(Operation& operation, const Error& error, Deferred& deferred);

  const std::int64_t proven_from_ns_;
  const bool log_resets_;
  OrderedCommits& commits_;
  GenerationSink& sink_;
  const Clock& clock_;

  mutable Mutex mutex_;
  Generations generations_ KVCOVE_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<Operation>> waiting_ KVCOVE_GUARDED_BY(mutex_);
  Operations storing_ KVCOVE_GUARDED_BY(mutex_);  // being stored now
  bool busy_ KVCOVE_GUARDED_BY(mutex_) = false;
  PoolFact pool_ KVCOVE_GUARDED_BY(mutex_);       // as it is stored
  PoolFact next_pool_ KVCOVE_GUARDED_BY(mutex_);  // being stored
  std::int64_t expired_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;
  struct Proving {
    std::int64_t from_ns = 0;
    std::function<void()> answer;
  };
  std::vector<Proving> proving_ KVCOVE_GUARDED_BY(mutex_);
};

}  // namespace kvcove::master
