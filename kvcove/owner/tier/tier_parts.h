// SPDX-License-Identifier: Apache-2.0
// The state that the parts of a Tiering share, with its one lock, and the steps that several of
// them take. Each class over this state (DiskUse, TierRemovals, TierLoads, TierDemotions, TierLog)
// keeps to itself what only it uses.
//
// `mutex` comes after the owner's lock and DiskShared's, and before those of DiskInventory and
// TierTags. Nobody asks the disk or calls out under it.
#pragma once

#include <atomic>
#include <string_view>
#include <utility>

#include "kvcove/base/clock.h"
#include "kvcove/base/mutex.h"
#include "kvcove/model/disk_stat.h"
#include "kvcove/owner/core/core_types.h"
#include "kvcove/owner/tier/demotion_queue.h"
#include "kvcove/owner/tier/disk_fences.h"
#include "kvcove/owner/tier/disk_inventory.h"
#include "kvcove/owner/tier/disk_loads.h"
#include "kvcove/owner/tier/disk_shared.h"
#include "kvcove/owner/tier/disk_shares.h"
#include "kvcove/owner/tier/disk_state.h"
#include "kvcove/segment/view.h"

namespace kvcove::owner {

struct TieringOptions {
  std::uint64_t queue_bytes = 64ULL << 20;  // evicted values that wait for the log
  std::size_t queue_objects = 16384;
  std::size_t loads = 8192;              // keys being read, or waiting for that
  std::uint64_t batch_bytes = 64 << 20;  // that one call promotes at a time; one value always may
  // A read, write or sync that takes longer sets the disk aside.
  std::int64_t hang_ns = 3 * kSecond;
  DiskQuotas quotas;                // of all disks together
  std::size_t remembered = 65'536;  // keys stored or removed while the disk is set aside
  bool listed = false;              // a master lists the objects of the disk
};

struct TierParts {
  TierParts(const TieringOptions& options_in, DiskShared& common_in,
            const segment::HeaderView& header_in, const Clock& clock_in)
      : options(options_in),
        header(header_in),
        clock(clock_in),
        common(common_in),
        fences(options.remembered),
        quotas(common.quotas),
        loads({.loads = options.loads, .batch_bytes = options.batch_bytes}, quotas.ReadRates(),
              clock.NowNs()),
        queue(options.queue_bytes, options.queue_objects, common.quotas.size()) {}

  const TieringOptions options;
  const segment::HeaderView header;
  const Clock& clock;
  const std::int64_t counted_since_ns = clock.NowNs();
  DiskShared& common;
  // The keys of this disk and of no other one, as bits; at first all.
  std::atomic<std::uint64_t> shares{segment::kAllTierShares};
  DiskInventory inventory;

  mutable Mutex mutex;
  CondVar proven;    // a removal is proven, or an era has ended
  CondVar answered;  // some loads are answered (Answer)
  DiskState state KVCOVE_GUARDED_BY(mutex);
  DiskFences fences KVCOVE_GUARDED_BY(mutex);
  DiskShares quotas KVCOVE_GUARDED_BY(mutex);
  DiskLoads loads KVCOVE_GUARDED_BY(mutex);
  DemotionQueue queue KVCOVE_GUARDED_BY(mutex);
  DiskStat stat KVCOVE_GUARDED_BY(mutex);  // without the counts of `loads`

  // Returns the key's tag in the table of what the disks hold. Needs no lock.
  std::uint64_t TagOf(SlotId slot, Generation generation, std::string_view key) const {
    return segment::TierTag(segment::TierHash(common.tags.seed(), slot, key), generation);
  }
  // Returns the share of the slot's namespace or tenant; kNoShare: it has no quota.
  disklog::ShareNumber ShareOf(SlotId slot) const KVCOVE_REQUIRES(mutex) {
    return common.quotas.empty() ? disklog::kNoShare : common.ShareOf(fences.NameOf(slot));
  }
  // Returns the share's bytes on the disk and in the queue.
  std::uint64_t Held(disklog::ShareNumber share) const KVCOVE_REQUIRES(mutex) {
    return quotas.held(share) + queue.HeldBy(share);
  }
  // Drops a value that waits for the log, or that the log is writing.
  void DropQueued(Demotion& demotion) KVCOVE_REQUIRES(mutex) {
    if (!queue.Drop(demotion)) return;
    common.tags.Remove(demotion.tag);
    ++stat.dropped_other;
  }
  // Ends what is under way for the key, up and down, in the hold in which its removal begins.
  void Fence(std::uint64_t tag) KVCOVE_REQUIRES(mutex) {
    loads.Fence(tag);
    if (Demotion* const demotion = queue.Find(tag); demotion != nullptr) DropQueued(*demotion);
  }
  // Removes from the disk a value that is older than the one that is stored. Nobody waits for that
  // but the owner's note (DiskUse::Settled).
  void RemoveOlder(SlotId slot, Generation generation, std::string_view key)
      KVCOVE_REQUIRES(mutex) {
    const std::uint64_t tag = TagOf(slot, generation, key);
    Fence(tag);
    fences.RemoveOlder({.slot = slot, .generation = generation, .key = std::string(key)}, tag);
  }
  // Notes for the master that the disk has the object no more. Needs no lock.
  void Lose(TierObject object) {
    if (options.listed) inventory.Lose(std::move(object));
  }
  // Calls `done` of the batches that TakeReady has returned in a hold that has ended. The caller
  // holds no lock: `done` is others' code. TierLoads::End waits until this is over.
  void Answer(const DiskLoads::Ready& ready) KVCOVE_EXCLUDES(mutex) {
    if (ready.empty()) return;
    ExpectNoLock("the answer to a load");
    for (const auto& batch : ready) batch->done(std::move(batch->results));
    const MutexLock lock(mutex);
    loads.Answered(ready.size());
    answered.NotifyAll();
  }
};

}  // namespace kvcove::owner
