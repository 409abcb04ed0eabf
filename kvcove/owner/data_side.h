// SPDX-License-Identifier: Apache-2.0
// The side of an owner that its data service calls, for requesters of other hosts: these map none
// of its memory. Each call that touches the core takes `Memory::mutex`.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kvcove/owner/core/data_store.h"
#include "kvcove/owner/disk/owner_disks.h"
#include "kvcove/owner/disk/promotions.h"
#include "kvcove/owner/link_side.h"
#include "kvcove/owner/memory/memory.h"

namespace kvcove::owner {

// Thread-safe.
class DataSide final : public DataStore {
 public:
  // Commits values and calls `done` once, from any thread, with the outcomes: when the master has
  // listed them, or before this returns if nothing waits for the master.
  using Finish = std::function<void(SessionNumber, std::span<const FinishItem>,
                                    std::function<void(std::vector<Code>)> done)>;
  DataSide(Memory& memory, const OwnerDisks& disks, Promotions& promotions, const Outbox& outbox,
           const LinkSide& link, Finish finish, const Clock& clock)
      : memory_(memory),
        disks_(disks),
        promotions_(promotions),
        outbox_(outbox),
        link_(link),
        finish_(std::move(finish)),
        clock_(clock) {}

  SessionNumber AddRemoteSession() override;
  void EndSession(SessionNumber number) override { memory_.EndSession(number); }
  std::vector<PutResult> Reserve(SessionNumber session, const Token& token,
                                 std::span<const PutItem> items, bool evict = true) override;
  bool Awaits(const Token& token) override;
  void FinishThen(SessionNumber session, std::span<const FinishItem> items,
                  std::function<void(std::vector<Code>)> done) override {
    finish_(session, items, std::move(done));
  }
  bool MasterReachable() const override { return outbox_.MasterReachable(); }
  std::vector<Loan> Lend(const Token& token, std::span<const std::string_view> keys) override;
  void Return(std::span<const Loan> loans) override;
  void SetChecksum(const Loan& loan, std::uint64_t checksum) override;
  std::shared_ptr<void> BringUp(const Token& token, std::span<const std::string_view> keys,
                                const Upcoming& upcoming) override {
    return promotions_.BringUp(token, keys, upcoming);
  }
  void GiveUp(const std::shared_ptr<void>& brought) override {
    promotions_.GiveUp(*std::static_pointer_cast<LoadCall>(brought));
  }
  bool LeaseHolds() const override { return memory_.LeaseUntilNs() > clock_.NowNs(); }
  std::uint64_t TenantOfSlot(SlotId slot) const override { return link_.TenantOfSlot(slot); }
  segment::Payload payload() const override { return memory_.payload(); }

  // ---- copies to other owners
  // Lends objects that are in memory; nothing for the others, which BringUp promotes.
  std::vector<std::optional<CopyLoan>> LendForCopy(std::span<const wire::CopyRequest::Item> items);
  // Returns whether a disk of this owner has the item. Takes no lock: reads the segment's header.
  bool OnDisk(const wire::CopyRequest::Item& item) const {
    return !disks_.none() && memory_.header().tier().Holds(item.slot, item.generation, item.key);
  }
  // Returns the token that a process here would have captured under that generation of the slot.
  Token TokenOf(SlotId slot, Generation generation);

 private:
  Memory& memory_;
  const OwnerDisks& disks_;
  Promotions& promotions_;
  const Outbox& outbox_;
  const LinkSide& link_;
  const Finish finish_;
  const Clock& clock_;
};

}  // namespace kvcove::owner
