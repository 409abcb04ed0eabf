// SPDX-License-Identifier: Apache-2.0
// The scheduler's role: answers an engine's scheduler, and orders its ranks' loads and saves.
//
// A request's life here (docs/connector.md has the picture):
//   Matched -> (ask again)* -> Allocated -> [load ordered -> LoadEnded] -> Schedule... -> Finished
// All KV that is computed or loaded belongs to an epoch: a reset, another generation, or other
// weights begin a new one, and KV of an older one is neither used nor stored. Every block that this
// engine computes is marked with its epoch, so that a request which begins on blocks of an older
// one (the engine's own cache was not emptied) stores nothing that depends on them.
//
// The KV of a request with a LoRA adapter depends on the adapter's tensors, too. The engine's block
// hash has the adapter's name only, so every key gets the digest of the tensors that the ranks
// report. While a rank lacks the adapter such a request neither finds nor stores.
//
// Threads. The engine's scheduler calls Matched, Allocated, Schedule, Finished and BuildPlan, one
// after the other; any thread may call the rest at any time. One lock guards the state, and is
// never held while other code runs: not for a call of the pool, not for a log line, and not while
// the engine gives hashes or block tables. The engine's callbacks may wait for the engine's own
// locks (Python's GIL), and a thread that holds such a lock may be waiting in stats() for this
// role's. So a call that needs the engine's data has three parts: decide under the lock what is
// needed, read it without the lock, act under the lock on the state of that moment. A reset in
// between is seen by the last part through the epochs, as one just before the call would be.
//
// The role has the order of calls, the lock, the threads and the calls of the pool. Its state is in
// parts that have none of these: WeightsState (the version), Adapters, Bindings (generations, and
// the binder's work), Marks (blocks), StepBudget, StepTimes, Events, CostModel. One lock guards all
// of them, as a report or a reset changes several at once.
#pragma once

#include <array>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "kvcove/base/log.h"
#include "kvcove/base/mutex.h"
#include "kvcove/connector/plan.h"
#include "kvcove/connector/scheduler/adapters.h"
#include "kvcove/connector/scheduler/bindings.h"
#include "kvcove/connector/scheduler/events.h"
#include "kvcove/connector/scheduler/lookup.h"
#include "kvcove/connector/scheduler/marks.h"
#include "kvcove/connector/scheduler/scheduler_types.h"
#include "kvcove/connector/scheduler/step_budget.h"
#include "kvcove/connector/scheduler/step_times.h"
#include "kvcove/connector/scheduler/weights_state.h"

namespace kvcove::connector {

// Thread-safe (see Threads above).
class SchedulerRole {
 public:
  // `store`, `runner` and `clock` outlive it. The shape passed its Check.
  SchedulerRole(const SchedulerOptions& options, Store& store, LookupRunner& runner,
                const Clock& clock);
  ~SchedulerRole();
  SchedulerRole(const SchedulerRole&) = delete;
  SchedulerRole& operator=(const SchedulerRole&) = delete;
  // Returns whether its threads could be started; if not, it must not be used. Errors: as
  // StartThread.
  const Status& started() const { return started_; }

  // Returns the number of tokens beyond `computed_tokens` that the pool has and that are worth
  // loading. `ask_again`: not known yet; this request waits, others do not.
  Match Matched(const RequestView& request, std::uint64_t computed_tokens);
  // Orders the load of `external_tokens` tokens into blocks that the engine has allocated; 0: the
  // engine loads nothing after all.
  void Allocated(std::string_view request, std::uint64_t external_tokens,
                 const std::function<BlockTables()>& blocks);
  // Returns the keys found for a request at its last Matched, by tier.
  std::array<std::uint64_t, kTiers> TiersOf(std::string_view request) const;

  // Notes that the step begins with copies of blocks, from first to second: the marks are copied,
  // too. Call it before the step's calls of Schedule.
  void Copied(const std::vector<std::pair<BlockId, BlockId>>& copies);
  // Notes what a step computes of a request. Needed for every step that TouchesChunks and for a
  // request's first; other calls may be left out.
  void Schedule(const ScheduledPart& part);
  // Sets the hints of a request's caller, before its first Schedule.
  void Hint(std::string_view request, const RequestHints& hints);
  // Forgets a request that has finished or was aborted. A load under way still ends.
  void Finished(std::string_view request);
  // Ends the step and returns the plan for the ranks. `pins` gets the blocks that must keep their
  // contents until TakeUnpins returns them (each as often as it was given).
  Plan BuildPlan(std::vector<BlockId>& pins);
  std::vector<BlockId> TakeUnpins();
  // Returns true while pins are outstanding or a rank's answer is awaited: the engine should
  // continue to step, also without requests.
  bool Pending() const;

  // Takes a rank's report.
  void OnReport(const Report& report);
  // Notes blocks of the request's load that hold nothing, all of them if none is named, before
  // LoadEnded. The ranks' reports name the same blocks, as far as the ranks know them.
  void LoadFailed(std::string_view request, const std::vector<BlockId>& blocks);
  // Ends a load that all ranks have ended. False: it became void meanwhile; the engine must not
  // learn of its end yet, as the ranks will end it again, as failed.
  bool LoadEnded(std::string_view request);

  // Returns the tokens of a prefix that the pool has: for callers other than the engine's
  // scheduler, in their thread. Errors: kTimeout, kClosed while weights change.
  Result<std::uint64_t> Ask(const std::vector<std::string>& hashes, std::string_view salt,
                            std::chrono::milliseconds timeout);

  // Resets the pool for this engine's version, and waits for the proof. True: no process finds KV
  // any more that was computed before. With `closed_on_reset_failure` also true when it is not
  // proven in time: this engine then neither looks up nor stores until it is, and the reset is
  // repeated. False in both modes when the pool refuses it: it is not repeated.
  bool Reset();

  // Notes that the weights are about to change, or may have changed: nothing is looked up or stored
  // from now on, until WeightsChanged and all ranks' fingerprints.
  void WeightsChanging();
  void WeightsChanged();
  // Sets the ranks' fingerprints at start, in order of rank.
  void StartWith(const std::vector<std::string>& fingerprints);
  using OwnWeights = WeightsState::OwnWeights;
  // Returns, for kFingerprint with experts on other engines, this engine's weights under the number
  // of the question to its ranks. None: they are unknown, or name the version by themselves. A
  // change of the number is a change of the weights.
  std::optional<OwnWeights> TakesPeers() const;
  // Sets the weights of the data-parallel peers (fingerprints.h), each time that they change. Fewer
  // than all peers: the rest do not know theirs now, and nothing is found or stored until they do.
  // `alone`: continues without peers. Ignored if `number` is not that of TakesPeers any more.
  void SetPeers(std::uint64_t number, const std::vector<std::string>& peers, bool alone);
  // Sets the version: for kEngine that of KV from now on, for kSalt that of the loaded weights.
  void SetVersion(std::string_view version);
  std::string version() const;
  // Returns whether all ranks have reported this adapter with its digest.
  bool HasAdapter(AdapterId adapter) const;

  std::vector<PoolEvent> TakeEvents();
  // Notes that the engine has cleared its own cache and has reported that as a KV event (events.h).
  void OwnCacheCleared();
  SchedulerStats stats() const;

 private:
  struct Request {
    HashList hashes;
    std::uint64_t prompt_tokens = 0;
    // The look-up.
    std::shared_ptr<Lookup> lookup;  // null: to be made, from lookup_begin on
    std::uint64_t lookup_epoch = 0;  // 0: the answer is void, and the next call begins anew
    std::uint64_t lookup_limit = 0;
    std::uint64_t lookup_from = 0;
    std::uint64_t lookup_begin = 0;     // a long request is looked up in two parts
    std::uint64_t computed_tokens = 0;  // the engine's own, at the last Matched
    // Tokens from the engine's own cache or our load. If more are computed when the request begins,
    // a sibling connector has loaded the rest.
    std::optional<std::uint64_t> known_tokens;
    std::uint64_t known_epoch = 0;
    std::int64_t lookup_since_ns = 0;
    bool lookup_over = false;  // a load failed: compute
    std::array<std::uint64_t, kTiers> tiers{};
    bool lookup_counted = false;
    std::vector<Tier> found;     // by stride behind lookup_from: the slowest tier of its values
    std::uint64_t load_end = 0;  // token from which found KV is not worth loading
    // The KV that it computes.
    bool may_store = false;
    std::uint64_t epoch = 0;  // of its blocks
    std::string version;
    AdapterPrint adapter;
    std::uint64_t adapter_tag = 0;
    Token token;
    std::vector<std::uint64_t> marked_chunks;  // by group
    std::vector<std::uint64_t> saved_chunks;
    RequestHints hints;
  };
  struct Load {
    LoadOrder order;
    std::uint64_t epoch = 0;  // 0: its adapter has changed
    std::uint64_t adapter_tag = 0;
    bool refused = false;
    bool wanted = true;  // its request has not finished
    std::set<BlockId> failed;
    // For a synchronous load: the step computes on its blocks before any rank has reported them.
    std::uint32_t ranks = 0;         // that have reported
    std::uint64_t block_epoch = 0;   // marks' epoch when it was ordered
    std::vector<BlockId> dependent;  // blocks that its request has computed on them meanwhile
    std::uint64_t tokens = 0;
    std::int64_t ordered_ns = 0;
    std::uint64_t mover_ns = 0;  // of the slowest rank
  };
  struct Save {
    SaveOrder order;
    std::uint64_t block_epoch = 0;  // of its blocks; saves of an older one make no KV events
    std::uint32_t ranks_left = 0;
    std::set<std::uint32_t> missing;
    std::set<std::uint32_t> on_disk;  // not stored: the pool has them, on a disk alone
  };

  // Tells other engines' look-ups that saves are under way, or that some of their chunks are not.
  struct Announcement {
    SaveNotice notice = SaveNotice::kNone;
    Token token;
    std::string adapter;  // digest
    std::vector<ChunkPlace> chunks;
  };

  // Hashes that the engine gave while the lock was free: those after the first `known`.
  struct NewHashes {
    std::size_t known = 0;
    HashList hashes;
  };
  Request& Find(const RequestView& view) KVCOVE_REQUIRES(mutex_);
  // Reads the hashes of the first `tokens` tokens that the role does not know yet.
  NewHashes ReadHashes(const RequestView& view, std::size_t known, std::uint64_t tokens) const
      KVCOVE_EXCLUDES(mutex_);
  // Adds hashes that were read. False: the request has ended, or begun anew, since ReadHashes was
  // given its `known`.
  static bool Keep(Request& request, const NewHashes& read);
  static void DropLookup(Request& request);
  // Sets the digest and the tag of the request's adapter. False: a rank lacks it.
  bool BindAdapter(Request& request, AdapterId adapter) const KVCOVE_REQUIRES(mutex_);
  // Stops its requests from storing, and voids their loads and look-ups.
  void VoidAdapter(AdapterId adapter) KVCOVE_REQUIRES(mutex_);
  Match MatchOnce(const RequestView& view, std::uint64_t computed_tokens, bool& again)
      KVCOVE_EXCLUDES(mutex_);
  // Returns the request, with a look-up that fits this call (the former one, or a new one that is
  // still to be made), or null with the answer in `match`.
  Request* BeginLookup(const RequestView& view, std::uint64_t computed_tokens, Match& match)
      KVCOVE_REQUIRES(mutex_);
  // Returns the look-up to run, made if need be, or null with the answer in `match`.
  std::shared_ptr<Lookup> LookupFor(const RequestView& view, std::uint64_t computed_tokens,
                                    Match& match) KVCOVE_EXCLUDES(mutex_);
  // Returns the token at which the look-up that begins at lookup_begin ends.
  std::uint64_t LookupEnd(const Request& request) const;
  // Returns the answer of a look-up that has run. `again`: the next part of a long request follows.
  Match TakeAnswer(const RequestView& view, std::uint64_t computed_tokens, const Lookup& lookup,
                   bool& again, LinesAfterLock& lines) KVCOVE_REQUIRES(mutex_);
  void CountWait(const Lookup& lookup) KVCOVE_REQUIRES(mutex_);
  // Returns for how long the request's look-up may wait for saves; 0: not at all.
  std::int64_t SaveWaitNs(const Request& request) const KVCOVE_REQUIRES(mutex_);
  // Makes the load of `external_tokens` tokens into the blocks of `tables`.
  Load LoadOf(const Request& request, std::string_view id, std::uint64_t external_tokens,
              const BlockTables& tables) KVCOVE_REQUIRES(mutex_);
  // Stops matching requests from storing, now: the engine does not report steps that fill no block,
  // so the role cannot wait for a request's next step.
  void StopStoring(const std::function<bool(const Request&)>& matches) KVCOVE_REQUIRES(mutex_);
  // Wakes the binder if something was queued for it. Must follow each call of bindings_ that may
  // queue, in the same hold of the lock.
  void WakeBinder() KVCOVE_REQUIRES(mutex_);
  // Asks the pool for the token of a version. An exception becomes kInternal.
  Result<Token> AskFor(const std::string& version, std::chrono::milliseconds timeout)
      KVCOVE_EXCLUDES(mutex_);
  // Applies an answer of the pool: wakes requests, and begins an epoch for another generation.
  void Learn(const Bindings::Answer& answer, LinesAfterLock& lines) KVCOVE_REQUIRES(mutex_);
  // Returns whether the version's requests should wait a little (Bindings::Awaits).
  bool Binds(const std::string& version) KVCOVE_REQUIRES(mutex_);
  // Waits for the binder, within the step's budget for it.
  void AwaitBinding(std::string_view salt) KVCOVE_EXCLUDES(mutex_);
  // Returns the token of a bound version, within the step's budget for captures (bindings.h).
  std::optional<Token> Capture(const std::string& version) KVCOVE_EXCLUDES(mutex_);
  // Asks for the version that was queued first. False: there was none, or no answer.
  bool BindOne(std::chrono::milliseconds timeout) KVCOVE_EXCLUDES(mutex_);
  void BindInThread() KVCOVE_EXCLUDES(mutex_);
  // Queues what is to be announced of a save, for the binder, together with that of other saves
  // under the same token; beyond a bound nothing.
  void QueueNotice(SaveNotice notice, const SaveOrder& order, std::span<const ChunkPlace> chunks)
      KVCOVE_REQUIRES(mutex_);
  // Makes the calls of the announcement that was queued first. False: there was none.
  bool Announce() KVCOVE_EXCLUDES(mutex_);
  // Asks the pool for the token that a request's first step needs.
  std::optional<Token> CaptureFor(const ScheduledPart& part) KVCOVE_EXCLUDES(mutex_);
  // Returns whether the step marks or saves a chunk; false also when the request was never started.
  bool Concerns(const Request& request, const ScheduledPart& part) const KVCOVE_REQUIRES(mutex_);
  void Compute(Request& request, const ScheduledPart& part, const BlockTables& tables,
               const std::optional<Token>& token) KVCOVE_REQUIRES(mutex_);
  void Begin(Request& request, const ScheduledPart& part, const BlockTables& tables,
             const std::optional<Token>& token) KVCOVE_REQUIRES(mutex_);
  // Marks the blocks that another connector of the engine has loaded for this request.
  void MarkSiblings(Request& request, const ScheduledPart& part, const BlockTables& tables)
      KVCOVE_REQUIRES(mutex_);
  void Mark(Request& request, const ScheduledPart& part, const BlockTables& tables)
      KVCOVE_REQUIRES(mutex_);
  std::uint64_t SavableTokens(const Request& request, const ScheduledPart& part) const
      KVCOVE_REQUIRES(mutex_);
  void OrderSave(Request& request, const ScheduledPart& part, const BlockTables& tables)
      KVCOVE_REQUIRES(mutex_);
  std::vector<ChunkPlace> SavableChunks(Request& request, const ScheduledPart& part,
                                        std::uint32_t group, const BlockTables& tables)
      KVCOVE_REQUIRES(mutex_);
  // Returns the hash of a chunk, valid until hashes are added. The request must have it.
  std::string_view HashOf(const Request& request, std::uint32_t group, std::uint64_t chunk) const;
  // Begins an epoch for look-ups and loads; `blocks`: for blocks that the engine has computed, too.
  void NewEpoch(bool blocks) KVCOVE_REQUIRES(mutex_);
  void UseUnlessWeightsMoved() KVCOVE_EXCLUDES(mutex_);
  void PollGenerations() KVCOVE_EXCLUDES(mutex_);
  // Returns whether each request names its version and there are requests.
  bool HaveSalts() const KVCOVE_REQUIRES(mutex_);
  // Reports the versions in use to the pool: on the binder's thread, if there is one.
  void NameVersions() KVCOVE_EXCLUDES(mutex_);
  Plan MakePlan(std::vector<BlockId>& pins) KVCOVE_EXCLUDES(mutex_);
  // Voids all that depends on the weights of before.
  void Apply(WeightsState::Change change, LinesAfterLock& lines) KVCOVE_REQUIRES(mutex_);
  void TakeWeights(const Report& report, LinesAfterLock& lines) KVCOVE_REQUIRES(mutex_);
  void TakeAdapters(const Report& report, LinesAfterLock& lines) KVCOVE_REQUIRES(mutex_);
  void TakeLoads(const Report& report) KVCOVE_REQUIRES(mutex_);
  // Ends a synchronous load that all ranks have reported: only now KV that was computed on it may
  // be stored.
  void EndSyncLoad(const Load& load) KVCOVE_REQUIRES(mutex_);
  // Returns the request's synchronous load that not all ranks have reported, 0 for none.
  JobId SyncLoadOf(std::string_view request) const KVCOVE_REQUIRES(mutex_);
  void TakeSaves(const Report& report, LinesAfterLock& lines) KVCOVE_REQUIRES(mutex_);
  void EndSave(const Save& save, LinesAfterLock& lines) KVCOVE_REQUIRES(mutex_);
  // Returns whether the values of a save may still be found under the hashes of its blocks.
  bool IsCurrent(const Save& save) const KVCOVE_REQUIRES(mutex_);
  // Make KV events of the answers of a look-up, and of a load that has ended.
  void TellFound(std::string_view id, const Request& request, const Lookup& lookup,
                 LinesAfterLock& lines) KVCOVE_REQUIRES(mutex_);
  void TellLoaded(const Load& load, LinesAfterLock& lines) KVCOVE_REQUIRES(mutex_);
  // Keeps the tiers in which a look-up found values.
  void KeepTiers(Request& request, const Lookup& lookup) KVCOVE_REQUIRES(mutex_);
  // Returns the slowest tier in which it found the values of the chunks that begin at `token`.
  Tier TierOf(const Request& request, std::uint64_t token) const;
  // Returns the token at which the load of a hit should end; counts the tokens that are left out.
  std::uint64_t LoadEnd(Request& request, std::uint64_t hit) KVCOVE_REQUIRES(mutex_);
  // Measures a step for the cost model.
  void TakeStep(const Report& report) KVCOVE_REQUIRES(mutex_);

  const SchedulerOptions options_;
  const Keys keys_;
  const std::uint64_t stride_;
  Store& store_;
  LookupRunner& runner_;
  const Clock& clock_;

  mutable Mutex mutex_;
  std::map<std::string, Request, std::less<>> requests_ KVCOVE_GUARDED_BY(mutex_);
  std::map<JobId, Load> loads_ KVCOVE_GUARDED_BY(mutex_);
  std::map<std::string, JobId, std::less<>> load_of_ KVCOVE_GUARDED_BY(mutex_);
  std::map<JobId, Save> saves_ KVCOVE_GUARDED_BY(mutex_);
  Plan plan_ KVCOVE_GUARDED_BY(mutex_);  // orders so far for the next step
  std::vector<BlockId> pins_ KVCOVE_GUARDED_BY(mutex_);
  std::vector<BlockId> unpins_ KVCOVE_GUARDED_BY(mutex_);
  JobId last_job_ KVCOVE_GUARDED_BY(mutex_) = 0;
  StepBudget budget_ KVCOVE_GUARDED_BY(mutex_);
  std::uint64_t epoch_ KVCOVE_GUARDED_BY(mutex_) = 1;  // of look-ups and loads; blocks': marks_
  Marks marks_ KVCOVE_GUARDED_BY(mutex_);
  WeightsState weights_ KVCOVE_GUARDED_BY(mutex_);
  Adapters adapters_ KVCOVE_GUARDED_BY(mutex_);
  Bindings bindings_ KVCOVE_GUARDED_BY(mutex_);
  CondVar bind_wanted_, bound_;
  std::deque<Announcement> notices_ KVCOVE_GUARDED_BY(mutex_);                  // for the binder
  std::size_t noticed_chunks_ KVCOVE_GUARDED_BY(mutex_) = 0;                    // in notices_
  std::vector<std::array<std::uint64_t, 6>> gauges_ KVCOVE_GUARDED_BY(mutex_);  // by rank
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::int64_t closed_since_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;
  bool reset_refused_ KVCOVE_GUARDED_BY(mutex_) = false;  // since the last proven one
  bool without_pool_ KVCOVE_GUARDED_BY(mutex_) = false;   // a rank can never open it
  Events events_ KVCOVE_GUARDED_BY(mutex_);
  CostModel costs_ KVCOVE_GUARDED_BY(mutex_);
  StepTimes steps_ KVCOVE_GUARDED_BY(mutex_);
  SchedulerStats stats_ KVCOVE_GUARDED_BY(mutex_);
  Status started_;
  std::thread binder_;
};

}  // namespace kvcove::connector
