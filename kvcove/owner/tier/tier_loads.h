// SPDX-License-Identifier: Apache-2.0
// Loads of one disk: calls add keys, the disk's thread reads them, and the owner promotes the
// values into memory (DiskLoads has the states).
//
// A load of a queued value takes the queue's copy. A value that the log is writing can be read from
// neither place, so its load waits until the write has ended.
//
// Room for promotions. A promoted value evicts others, to any disk of the owner. With
// DiskAdmit::kKeep no evicted value may be dropped, so promotions reserve their bytes, and begin
// only while the queue of each disk has room for all of them.
//
// Thread-safe. No call but End waits. Batches are answered without a lock.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kvcove/owner/tier/tier_parts.h"

namespace kvcove::owner {

class TierLoads {
 public:
  // Adds itself to the disks of the owner (DiskShared::loads).
  explicit TierLoads(TierParts& parts);

  // ---- under the owner's lock
  // Adds one item to the batch, which waits for the key. False: the key cannot be loaded, and the
  // result of the item has the reason.
  bool Add(const std::shared_ptr<LoadBatch>& batch, const Load& wanted);
  // True if the load's value may be promoted: nothing has fenced its key since it was added.
  bool Wanted(const Load& load) const;
  // Returns the sessions that want the key to stay in memory for a while, and until when.
  std::vector<std::pair<SessionNumber, std::int64_t>> HoldersOf(const Load& load) const;

  // ---- without a lock
  // Completes the batch: no item is added any more. Answers it at once if no item waits.
  void Begin(const std::shared_ptr<LoadBatch>& batch);
  // Drops the batch: its `done` is not called any more, unless it is being called now.
  void Cancel(const std::shared_ptr<LoadBatch>& batch);
  // Answers all batches, and waits until each `done` has returned. Add refuses loads from here on.
  void End();

  // ---- the disk's thread
  // Returns the next load, or null. The load stays the next one until Take, or until one of another
  // share is next.
  std::shared_ptr<Load> First();
  // True if some loads wait for the rate of their namespace or tenant only.
  bool Paced();
  // Returns the load's value if the queue still has it, and sets load.put. The ring keeps the bytes
  // until the disk's thread calls TierDemotions::Take.
  std::optional<std::span<const std::byte>> Queued(Load& load) const;
  // Returns how many bytes may be promoted at once so that the values that they evict find room in
  // this disk's queue.
  std::uint64_t PromotionRoom() const;
  // Reserves `bytes` for a promotion, until ReleasePromotion. False: the values that it would evict
  // might find no room in the queue of some disk of the owner.
  bool ReservePromotion(std::uint64_t bytes);
  void ReleasePromotion(std::uint64_t bytes) {
    promoting_.fetch_sub(bytes, std::memory_order_relaxed);
  }
  // Takes the load from its queue; `bytes` are read for it. False: the load is over, because its
  // batch has promoted as much as it may, or because the disk was set aside since First.
  bool Take(const std::shared_ptr<Load>& load, std::uint64_t bytes);
  // Ends the load with `result` for all that wait for it.
  void Finish(const std::shared_ptr<Load>& load, const wire::LoadResult& result);

 private:
  // Returns the bytes that are being promoted; 0 for a disk that is set aside, as its device may
  // hang with them.
  std::uint64_t Promoting() const;

  TierParts& parts_;
  std::atomic<std::uint64_t> promoting_{0};  // bytes
};

}  // namespace kvcove::owner
