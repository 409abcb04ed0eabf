// SPDX-License-Identifier: Apache-2.0
// Resets and removals of one disk: begun by the owner, applied by the disk's thread to the log, and
// proven by the log's syncs (DiskFences has the states).
//
// A reset is in the generation: tags, records and promotions carry it. A removal fences its keys
// under the owner's lock, in the same hold in which memory forgets them: it drops their queued
// values, cancels their loads, and refuses new loads until the log has forgotten the keys. A
// removal by pattern does so for its whole slot. A promotion commits as an ordinary put, so a
// removal between its reservation and its commit ends it as it ends any put.
//
// Thread-safe.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/owner/tier/tier_parts.h"

namespace kvcove::owner {

class TierRemovals {
 public:
  explicit TierRemovals(TierParts& parts) : parts_(parts) {}

  // ---- under the owner's lock
  // Sets the generations and names of slots.
  void SetSlots(const std::vector<SlotUpdate>& updates);
  // Removes the keys from the disk. `removal` has one more part, which Await waits for; a disk that
  // is set aside misses it.
  void Remove(SlotId slot, Generation generation, std::span<const std::string_view> keys,
              const std::shared_ptr<TierRemoval>& removal);
  // Removes the key from a disk that is being reported, because a put of it is under way: the
  // master must not list the older value. Else does nothing.
  void RemoveUnreported(SlotId slot, Generation generation, std::string_view key);
  // Begins a removal by pattern, before its walk over memory. Until the removal is proven, no key
  // that matches is promoted behind the walk.
  void BeginMatching(SlotId slot, std::string_view pattern);
  // Continues with the disk after the walk over memory. `removal`: as for Remove.
  void RemoveMatching(SlotId slot, Generation generation, std::string_view pattern,
                      const std::shared_ptr<TierRemoval>& removal);
  // Ends the removal instead, because the walk over memory has failed.
  void EndMatching(SlotId slot, std::string_view pattern);

  // ---- without a lock
  // Waits until all parts of the removal are proven. Errors: kTimeout: `deadline_ns` has passed,
  // with 0 always, so that the call only looks;
  // kUnavailable: the disk was set aside, and does not prove the removal any more.
  Status Await(const TierRemoval& removal, std::int64_t deadline_ns);
  // Returns how many removals by pattern are under way.
  std::size_t Patterns() const;
  // Returns the generation of each slot, also of those without one (0), for a log.
  std::vector<disklog::SlotGeneration> Generations() const;
  // Returns the name of the slot's namespace.
  std::string NameOf(SlotId slot) const;
  // Returns all slots with their names and generations, for a successor's process.
  std::vector<SlotUpdate> Slots() const;

  // ---- the disk's thread
  // Returns the orders since the last call, and forgets them.
  std::vector<TierOrder> TakeOrders();
  // Drops the orders for resets: a log that is about to be opened gets the present generations.
  // Removals remain, for that log.
  void DropGenerationOrders();
  // Drops the queued values that match, before the walk over the log. No value is between the queue
  // and the log then, so each is counted once.
  void RemoveQueued(const TierOrder& order);
  // Ends the fences of the order's keys: the log has forgotten them, so they may be loaded and
  // demoted again.
  void Applied(const TierOrder& order);
  // Ends the order's part of its removal: its tombstones are synced. `removed`: objects that a
  // pattern took from the log.
  void Proven(const TierOrder& order, std::uint64_t removed);
  // Reports to the owner that removals were proven since the last call, if any were.
  void ReportProven();

 private:
  std::vector<std::uint64_t> TagsOf(const TierOrder& order) const;

  TierParts& parts_;
  bool proven_ = false;  // since the last ReportProven; the disk's thread's
};

}  // namespace kvcove::owner
