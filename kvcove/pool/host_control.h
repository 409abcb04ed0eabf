// SPDX-License-Identifier: Apache-2.0
// The authority of a pool of one host: decides about generations and removals for the one or
// several owners of this process. A reset is proven when each owner has published the new
// generation; a removal when no owner has the key. Its calls block, but for those with Then. The
// mutex guards the owners and the last publication; it comes after the keeper's lock and before
// each owner's own.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvcove/master/control/blocking_generations.h"
#include "kvcove/owner/owner.h"
#include "kvcove/pool/host_engines.h"

namespace kvcove::pool {

// Thread-safe.
class HostControl final : public wire::ControlService, private master::OwnerSink {
 public:
  using Options = master::BlockingGenerations::Options;
  // Opens the store and starts the thread that ends engines. Errors: those of the store and of
  // StartThread.
  static Result<std::shared_ptr<HostControl>> Open(const Options& options, const Clock& clock);
  // Adds an owner and returns its index. Publishes all current generations to it before this
  // returns, so it may get a lease from then on. The pointer is shared because a removal that runs
  // on another thread may use the owner after RemoveOwner.
  std::uint32_t AddOwner(std::shared_ptr<owner::Owner> owner);
  // Removes an owner whose lease has ended. With the last owner a clean end is stored, so that the
  // next start waits for no lease; no owner may be added after that.
  void RemoveOwner(const owner::Owner& owner);
  HostEngines& engines() { return *engines_; }
  // Returns the pool's id and its incarnation.
  master::PoolFact pool() const { return Held()->pool(); }
  // What operators ask (server/host_pool.h). Errors: kUnavailable from Pause to Resume.
  struct Description {
    master::PoolFact pool;
    std::vector<master::SlotDescription> slots;
    std::size_t registrations = 0;
  };
  Result<Description> Describe() const;
  struct EngineList {
    std::vector<master::EngineDescription> engines;  // as many as were asked for
    std::size_t registered = 0;
  };
  Result<EngineList> Engines(std::size_t at_most) const;  // errors: as Describe
  // Returns those of GenerationKeeper::VersionedNames. Errors: as Describe.
  Result<std::vector<std::string>> VersionedNames() const;
  // Ends the calls that wait for a lease or the store now, with kUnavailable.
  void EndWaits() {
    if (const auto generations = Held()) generations->EndWaits();
  }
  // Ends the removals that wait for disks, with kTimeout, and returns once each is answered.
  void EndRemovals();
  // For an upgrade of the process (docs/upgrade.md), while no change is under way: Pause closes the
  // store, so that the successor can open it, and stores no clean end, because a lease is running.
  // Questions (Describe, Engines) may be under way. Resume opens the store again; errors: the
  // store's. Until it has succeeded, calls that need the generations fail with kUnavailable.
  void Pause();
  Status Resume();
  bool paused() const { return Held() == nullptr; }
  // Returns a name that is equal for all owners that this authority, or another one over the same
  // directory, decides for.
  const std::string& name() const { return name_; }

  Result<wire::Registration> Register(const wire::RegisterRequest& request,
                                      std::int64_t deadline_ns) override;
  Result<wire::ResetOutcome> Reset(const wire::ResetRequest& request,
                                   std::int64_t deadline_ns) override;
  Status NameVersions(std::string_view name, std::string_view engine,
                      std::span<const std::string> versions, std::int64_t deadline_ns) override;
  Status EndEngine(std::string_view name, std::string_view engine,
                   std::int64_t deadline_ns) override;
  Result<wire::PruneOutcome> Prune(const wire::PruneRequest& request,
                                   std::int64_t deadline_ns) override;
  Result<std::vector<Code>> Remove(const Token& token, std::span<const std::string_view> keys,
                                   std::int64_t deadline_ns) override;
  Result<std::uint64_t> RemoveMatching(const Token& token, std::string_view pattern,
                                       std::int64_t deadline_ns) override;
  void RemoveThen(const Token& token, std::span<const std::string_view> keys,
                  std::int64_t deadline_ns, const RemoveDone& done) override;
  void RemoveMatchingThen(const Token& token, std::string_view pattern, std::int64_t deadline_ns,
                          const MatchDone& done) override;

 private:
  HostControl(const Options& options, const Clock& clock);
  void Publish(const Id128& incarnation, const std::vector<SlotUpdate>& updates) override;
  std::vector<std::shared_ptr<owner::Owner>> Owners();
  using GenerationsPtr = std::shared_ptr<master::BlockingGenerations>;
  GenerationsPtr Held() const {
    const MutexLock lock(generations_mutex_);
    return generations_;
  }
  // Returns the former ones, which end outside of the lock.
  GenerationsPtr Take(GenerationsPtr generations) {
    const MutexLock lock(generations_mutex_);
    return std::exchange(generations_, std::move(generations));
  }
  Result<GenerationsPtr> Generations() const;

  const Options options_;
  const Clock& clock_;
  const std::string name_;
  // Held while generations are published, so that an added owner sees each of them once and in
  // their order. Comes before an owner's own lock.
  Mutex mutex_;
  std::vector<std::shared_ptr<owner::Owner>> owners_ KVCOVE_GUARDED_BY(mutex_);
  std::uint32_t added_ KVCOVE_GUARDED_BY(mutex_) = 0;  // owners so far; the next index
  Id128 incarnation_ KVCOVE_GUARDED_BY(mutex_);
  std::map<SlotId, SlotUpdate> slots_ KVCOVE_GUARDED_BY(mutex_);
  // Of several owners in one process one may serve calls while another resumes. No other lock is
  // taken under this one.
  mutable Mutex generations_mutex_;
  GenerationsPtr generations_ KVCOVE_GUARDED_BY(generations_mutex_);  // null from Pause to Resume
  std::unique_ptr<HostEngines> engines_;  // ends first: its thread uses `generations_`
};

}  // namespace kvcove::pool
