// SPDX-License-Identifier: Apache-2.0
// The master's shell: locks, syncs and publishes what `Generations` decides.
#pragma once

#include <memory>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/mutex.h"
#include "kvcove/master/generation_log.h"

namespace kvcove::master {

// The owners.
class GenerationSink {
 public:
  virtual ~GenerationSink() = default;
  // Sends them what they must know, in the order of the calls. Does not wait.
  virtual void Publish(const Id128& incarnation, const std::vector<SlotUpdate>& updates) = 0;
  // Ok when each has acknowledged all that was published before this call, or its lease has run
  // out: from then on nothing of an older generation is found or stored. Errors: kTimeout.
  virtual Status Await(std::int64_t deadline_ns) = 0;
};

using wire::ResetOutcome;

// Thread-safe.
class Master {
 public:
  // `restored`: what the log held. Leases of an earlier process are waited for before a reset
  // answers. Errors: those of the log.
  static Result<std::unique_ptr<Master>> Open(std::unique_ptr<GenerationLog> log,
                                              const Restored& restored, GenerationSink& sink,
                                              const Clock& clock);

  Result<Registration> Register(const RegisterRequest& request);

  // Ok: proven. Requests that wait at the same time share one raise and one sync. Errors:
  // kNotProven, kInvalid.
  Result<ResetOutcome> Reset(const ResetRequest& request, std::int64_t deadline_ns);

  Status NameVersions(std::string_view name, std::string_view engine,
                      const std::vector<std::string>& versions);
  void EndEngine(std::string_view name, std::string_view engine);
  Id128 incarnation() const;
  std::uint64_t term() const;
  std::set<SlotId> missed_removals() const;
  std::vector<SlotDescription> Describe() const;
  // Remembers durably that an owner which comes back may have missed a removal from `slot`.
  Status PersistMissed(SlotId slot);
  // Before it, leases that an earlier process gave may be running.
  std::int64_t proven_from_ns() const { return proven_from_ns_; }

  // Ends cleanly: the next start need not wait for leases. Call it when no lease is running any
  // more.
  Status Close();

 private:
  struct Pending {
    ResetRequest request;
    bool done = false;
    Result<ResetOutcome> outcome;
  };

  Master(std::unique_ptr<GenerationLog> log, const Restored& restored, GenerationSink& sink,
         const Clock& clock);
  void LeadResets() KVCOVE_REQUIRES(mutex_);
  // Appends, and starts over under a new incarnation when that fails.
  Status Persist(const std::vector<Record>& records) KVCOVE_REQUIRES(mutex_);
  Status StartOver() KVCOVE_REQUIRES(mutex_);
  std::vector<SlotUpdate> UpdatesOf(const std::vector<SlotId>& slots) KVCOVE_REQUIRES(mutex_);

  GenerationSink& sink_;
  const Clock& clock_;
  const std::int64_t proven_from_ns_;  // earlier leases have run out by then

  mutable Mutex mutex_;
  CondVar changed_;
  std::unique_ptr<GenerationLog> log_ KVCOVE_GUARDED_BY(mutex_);
  Generations generations_ KVCOVE_GUARDED_BY(mutex_);
  std::vector<Pending*> waiting_ KVCOVE_GUARDED_BY(mutex_);
  bool busy_ KVCOVE_GUARDED_BY(mutex_) = false;    // between the two steps of a decision
  bool broken_ KVCOVE_GUARDED_BY(mutex_) = false;  // the log cannot be written
  bool closed_ KVCOVE_GUARDED_BY(mutex_) = false;
};

}  // namespace kvcove::master
