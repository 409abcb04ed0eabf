// SPDX-License-Identifier: Apache-2.0
// An owner's objects as its data service sees them: `Owner`, or the simulation's owner.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "kvcove/owner/core/core.h"

namespace kvcove::owner {

// Thread-safe.
class DataStore {
 public:
  virtual ~DataStore() = default;

  // The session of a peer that puts. Its end gives up what it has
  // reserved, so nothing may land in that memory any more.
  virtual SessionNumber AddRemoteSession() = 0;
  virtual void EndSession(SessionNumber session) = 0;

  // Never waits for the master. `evict` false: nothing makes room for them.
  virtual std::vector<PutResult> Reserve(SessionNumber session, const Token& token,
                                         std::span<const PutItem> items, bool evict) = 0;
  // The master has not told this owner of the token's generation yet: see Core::Awaits.
  virtual bool Awaits(const Token& token) = 0;
  // Answers when the master has; from any thread, also within the call.
  virtual void FinishThen(SessionNumber session, std::span<const FinishItem> items,
                          std::function<void(std::vector<Code>)> done) = 0;
  // False: a listing is not worth waiting for.
  virtual bool MasterReachable() const = 0;

  virtual std::vector<Loan> Lend(const Token& token, std::span<const std::string_view> keys) = 0;
  virtual void Return(std::span<const Loan> loans) = 0;
  virtual void SetChecksum(const Loan& loan, std::uint64_t checksum) = 0;

  // Brings up what lies in a lower tier, until `deadline_ns`. `done` is called once, from any
  // thread or within the call, with what has become of each key; not after GiveUp has returned.
  // Null: there is nothing of them, and `done` is not called.
  struct Upcoming {
    std::function<SessionNumber()> session;  // asked for only where there is something
    std::int64_t deadline_ns = 0;
    std::function<void(std::vector<wire::LoadResult>)> done;
  };
  virtual std::shared_ptr<void> BringUp(const Token& /*token*/,
                                        std::span<const std::string_view> /*keys*/,
                                        const Upcoming& /*upcoming*/) {
    return nullptr;
  }
  virtual void GiveUp(const std::shared_ptr<void>& /*brought*/) {}

  // Whether what is here may be read: the owner's lease on the generations.
  virtual bool LeaseHolds() const = 0;
  // TenantTag of the slot's tenant.
  virtual std::uint64_t TenantOfSlot(SlotId slot) const = 0;
  virtual segment::Payload payload() const = 0;
};

}  // namespace kvcove::owner
