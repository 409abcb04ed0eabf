// SPDX-License-Identifier: Apache-2.0
// The calls of an owner's data service to its owner: to `DataSide`, or to the simulation's owner.
#pragma once

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

  // Adds the session of a peer that puts. EndSession gives up its reservations, so the caller first
  // makes sure that no transfer writes into their memory any more.
  virtual SessionNumber AddRemoteSession() = 0;
  virtual void EndSession(SessionNumber session) = 0;

  // Reserves memory for the items; never waits for the master. `evict` false: no object is evicted
  // for them.
  virtual std::vector<PutResult> Reserve(SessionNumber session, const Token& token,
                                         std::span<const PutItem> items, bool evict) = 0;
  // Returns whether this owner may learn of the token's generation soon: see Core::Awaits.
  virtual bool Awaits(const Token& token) = 0;
  // Commits or gives up reservations, and calls `done` once the master has answered: from any
  // thread, also within the call.
  virtual void FinishThen(SessionNumber session, std::span<const FinishItem> items,
                          std::function<void(std::vector<Code>)> done) = 0;
  // Returns false while the master is away: a listing is not worth waiting for then.
  virtual bool MasterReachable() const = 0;

  // As in Core. Each loan with a place must be returned.
  virtual std::vector<Loan> Lend(const Token& token, std::span<const std::string_view> keys) = 0;
  virtual void Return(std::span<const Loan> loans) = 0;
  virtual void SetChecksum(const Loan& loan, std::uint64_t checksum) = 0;

  // Promotes the keys that a lower tier has, until `deadline_ns`. Calls `done` once, from any
  // thread or within the call, with each key's result; not after GiveUp has returned. Null: the
  // lower tier has none of them, and `done` is not called.
  struct Upcoming {
    std::function<SessionNumber()> session;  // called only if the tier has one of the keys
    std::int64_t deadline_ns = 0;
    std::function<void(std::vector<wire::LoadResult>)> done;
  };
  virtual std::shared_ptr<void> BringUp(const Token& /*token*/,
                                        std::span<const std::string_view> /*keys*/,
                                        const Upcoming& /*upcoming*/) {
    return nullptr;
  }
  virtual void GiveUp(const std::shared_ptr<void>& /*brought*/) {}

  // Returns whether the owner's lease on the generations is running: only then may objects be read.
  virtual bool LeaseHolds() const = 0;
  // Returns the TenantTag of the slot's tenant.
  virtual std::uint64_t TenantOfSlot(SlotId slot) const = 0;
  virtual segment::Payload payload() const = 0;
};

}  // namespace kvcove::owner
