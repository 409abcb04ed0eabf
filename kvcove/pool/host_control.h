// SPDX-License-Identifier: Apache-2.0
// The authority of a pool of one host: generations and removals, for the one or several owners of
// this process. A reset is proven when each of them shows the new generation; a removal when none
// has the key.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kvcove/master/control/blocking_generations.h"
#include "kvcove/owner/owner.h"
#include "kvcove/pool/host_engines.h"

namespace kvcove::pool {

// Thread-safe.
class HostControl final : public wire::ControlService, private master::OwnerSink {
 public:
  using Options = master::BlockingGenerations::Options;
  // Errors: those of the store.
  static Result<std::shared_ptr<HostControl>> Open(const Options& options, const Clock& clock);
  // All generations of now are published to the owner before this returns, so it may be given a
  // lease from then on. Its index among the owners. Calls that run when it is taken out may still
  // use it: that is why it is shared.
  std::uint32_t AddOwner(std::shared_ptr<owner::Owner> owner);
  // Its lease has ended. The last one's end is written down, so that the next start waits for
  // nobody's lease; none is added after that.
  void RemoveOwner(const owner::Owner& owner);
  HostEngines& engines() { return *engines_; }
  // Which pool this is, and its incarnation.
  master::PoolFact pool() const { return generations_->pool(); }
  // Calls that wait for a lease or the store end now.
  void EndWaits() {
    if (generations_ != nullptr) generations_->EndWaits();
  }
  // For an upgrade of the process (docs/upgrade.md): gives the store to the successor, or opens it
  // again. No call is under way. Not a clean end: a lease is running.
  void Pause() { generations_.reset(); }
  Status Resume();
  bool paused() const { return generations_ == nullptr; }
  // Equal for all owners that this authority, or one over the same directory, decides for.
  const std::string& name() const { return name_; }

  Result<wire::Registration> Register(const wire::RegisterRequest& request,
                                      std::int64_t deadline_ns) override;
  Result<wire::ResetOutcome> Reset(const wire::ResetRequest& request,
                                   std::int64_t deadline_ns) override;
  Status NameVersions(std::string_view name, std::string_view engine,
                      std::span<const std::string> versions, std::int64_t deadline_ns) override;
  Status EndEngine(std::string_view name, std::string_view engine,
                   std::int64_t deadline_ns) override;
  Result<std::vector<Code>> Remove(const Token& token, std::span<const std::string_view> keys,
                                   std::int64_t deadline_ns) override;
  Result<std::uint64_t> RemoveMatching(const Token& token, std::string_view pattern,
                                       std::int64_t deadline_ns) override;

 private:
  HostControl(const Options& options, const Clock& clock);
  void Publish(const Id128& incarnation, const std::vector<SlotUpdate>& updates) override;
  std::vector<std::shared_ptr<owner::Owner>> Owners();

  const Options options_;
  const Clock& clock_;
  const std::string name_;
  // Held while generations are published, so that an owner that is added sees all of them once and
  // in their order. Before an owner's own lock.
  Mutex mutex_;
  std::vector<std::shared_ptr<owner::Owner>> owners_ KVCOVE_GUARDED_BY(mutex_);
  std::uint32_t added_ KVCOVE_GUARDED_BY(mutex_) = 0;
  Id128 incarnation_ KVCOVE_GUARDED_BY(mutex_);
  std::map<SlotId, SlotUpdate> slots_ KVCOVE_GUARDED_BY(mutex_);
  std::unique_ptr<master::BlockingGenerations> generations_;
  std::unique_ptr<HostEngines> engines_;  // its thread asks `generations_`
};

}  // namespace kvcove::pool
