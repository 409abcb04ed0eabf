// SPDX-License-Identifier: Apache-2.0
// Carries out the decisions of `Generations`: one decision at a time is stored, then published to
// owners; a reset is answered when owners have acknowledged it. The keeper has no thread: answers
// come from the store's thread, from an owner's acknowledgement, or from Tick.
//
//   request -> waiting -> (decided) stored -> published -> (reset, prune) acknowledged -> answered
// Resets that wait while another decision is being stored share the next one. Each request is
// answered by its deadline, even if the store hangs.
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
  // Publishes the generations that owners must use from now on. Called in the order of revisions;
  // does not wait. Adds the answers and commits that follow to `after`, which runs them without the
  // keeper's lock.
  virtual void Publish(const Id128& incarnation, const std::vector<Generations::Published>& updates,
                       Deferred& after) = 0;
  // Replaces the list of slots whose versions no engine uses any more.
  virtual void SetUnnamed(std::vector<SlotId> unnamed, Deferred& after) = 0;
  // Calls `proven` with Ok when each owner has acknowledged all that was published before this
  // call, or its lease has run out: from then on nothing of an older generation is found or stored.
  // Errors: kTimeout.
  virtual void Await(std::int64_t deadline_ns, Reply<void> proven) = 0;
};

// Thread-safe. Publish and SetUnnamed are called under the keeper's lock, so that no older
// generation follows a newer one.
class GenerationKeeper {
 public:
  struct Options {
    GenerationOptions generations;
    // Resets are not answered earlier: an earlier master may have given leases that run until then
    // to owners that are not waited for.
    std::int64_t proven_from_ns = 0;
    // Writes a log line for each reset that is proven.
    bool log_resets = false;
  };
  // Loads `state`, the contents of the store, which must have a pool.
  GenerationKeeper(const Options& options, const StoredState& state, OrderedCommits& commits,
                   GenerationSink& sink, const Clock& clock);
  // Publishes all stored generations to the sink.
  void Start();

  // Registers an engine and answers with the slot's generation. A new slot is stored and published
  // first. Errors: kInvalid, kLimit; kTimeout and kUnavailable when the store does not answer.
  void Register(const RegisterRequest& request, std::int64_t deadline_ns,
                Reply<Registration> reply);
  // Resets a namespace and answers when the reset is proven. Errors: kNotProven, kInvalid.
  void Reset(const ResetRequest& request, std::int64_t deadline_ns, Reply<ResetOutcome> reply);
  // Declares weight versions dead and answers when that is proven. Errors: kNotProven, kInvalid.
  void Prune(const PruneRequest& request, std::int64_t deadline_ns, Reply<PruneOutcome> reply);
  // Replaces the versions that the engine still uses. Errors: kInvalid.
  Status NameVersions(std::string_view name, std::string_view engine,
                      const std::vector<std::string>& versions);
  void EndEngine(std::string_view name, std::string_view engine, const Id128& holder);
  // Notes a call of a holder, which keeps its registrations alive (Registrations).
  void Heard(const Id128& holder);
  void EndHolder(const Id128& holder);
  // Begins another incarnation: every object that is stored so far is void. Later generation
  // numbers have a counter above `counter`. Calls `done` when the store has it.
  void BeginIncarnation(std::uint64_t counter, Reply<void> done);
  // Answers requests whose deadline has passed, and ends registrations whose holders are silent.
  void Tick();

  // Gives the pool the id by which its owners know it, after its store was lost. Calls `done` when
  // the store has it.
  void AdoptPool(const Id128& pool, Reply<void> done);
  // Stores that no lease is running, so that the next start need not wait for any.
  void EndCleanly(Reply<void> done);

  PoolFact pool() const;
  std::vector<SlotDescription> Describe() const;
  std::vector<EngineDescription> Engines(std::size_t at_most) const;  // Generations::Engines
  // Returns the namespaces whose versions have an order, also those that have no slot now.
  std::vector<std::string> VersionedNames() const;
  // Returns true if the namespace has a slot for this version.
  bool Knows(std::string_view name, std::string_view version) const;
  std::size_t registrations() const;
  std::size_t used_slots() const;
  Generations::Refused refused() const;
  struct Versions {
    std::size_t known = 0;  // named by engines, and not forgotten
    std::size_t dead = 0;
  };
  Versions versions() const;

 private:
  enum class Kind { kRegister, kReset, kPrune, kVoid, kPool };
  struct Operation {
    Kind kind = Kind::kRegister;
    std::int64_t since_ns = 0;  // when a reset or a prune arrived
    std::int64_t deadline_ns = 0;
    RegisterRequest registering;
    ResetRequest resetting;
    PruneRequest pruning;
    std::int64_t shared_ns = Generations::kUnshared;  // SharedNs of `resetting`
    std::function<void(Result<Registration>)> registered;
    std::function<void(Result<ResetOutcome>)> reset;
    std::function<void(Result<PruneOutcome>)> pruned;
    std::function<void(PoolFact&)> edit;  // for kVoid and kPool
    Reply<void> stored;
    bool answered = false;
  };
  using Operations = std::vector<std::shared_ptr<Operation>>;

  // Enqueues a change of the pool's fact: another incarnation (kVoid), or another edit (kPool).
  void ChangePool(Kind kind, std::function<void(PoolFact&)> edit, Reply<void> stored,
                  Deferred& deferred) KVCOVE_REQUIRES(mutex_);
  void Enqueue(const std::shared_ptr<Operation>& operation, Deferred& deferred)
      KVCOVE_REQUIRES(mutex_);
  // Decides waiting requests until one of them has to be stored.
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
  // Applies a change of the registrations, and shows the sink the unnamed slots if they changed.
  template <typename Change>
  void ChangeNames(const Change& change);
  // Calls `prove` when the owners have acknowledged the decision, without a lock; answers the
  // operation with an error if they do not in time.
  void AwaitProof(const std::shared_ptr<Operation>& operation, const std::function<void()>& prove,
                  Deferred& deferred) KVCOVE_REQUIRES(mutex_);
  // Answer a proven reset or prune and log how long it took. Called without a lock.
  void Prove(const Operation& operation, const ResetOutcome& outcome) const;
  void Prove(const Operation& operation, const PruneOutcome& outcome) const;
  static void NotProven(const Operation& operation, const std::string& why);
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
  PoolFact pool_ KVCOVE_GUARDED_BY(mutex_);       // as the store has it
  PoolFact next_pool_ KVCOVE_GUARDED_BY(mutex_);  // while it is being stored
  std::int64_t expired_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;
  // Resets that owners have acknowledged and that wait for proven_from_ns_.
  struct Proving {
    std::int64_t from_ns = 0;
    std::function<void()> answer;
  };
  std::vector<Proving> proving_ KVCOVE_GUARDED_BY(mutex_);
};

}  // namespace kvcove::master
