// SPDX-License-Identifier: Apache-2.0
// An owner reports to the master which objects it has, in memory and on its disks, and which it has
// lost. A walk goes over memory, then over the zones of disk after disk.
//
// A disk that is set aside and works again, so that nothing older than another owner's value or
// than a removal comes back:
//
//   set aside --> the note forgets it (durable) --> a new epoch, in which it is not told: others
//   may
//         store its keys from here on, and the master remembers what they lose
//   works again --> what was stored or removed here meanwhile is removed from it --> its zones are
//         told; what the master refuses is removed --> noted --> on
//
// Another master in between does not remember; the disk starts empty then.
//
// Threads. Next, TellAgainFrom and WalkEnds belong to the link's lane that routes, TakeGone and
// TakeGoneOverflow to its list lane, Told to any one of its lanes. A call waits for a disk's thread
// at most until the link ends.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "kvcove/owner/disk/disk_opening.h"
#include "kvcove/owner/disk/owner_disks.h"

namespace kvcove::owner {

class InventoryWalk {
 public:
  // `link_ends`: while it is true no call waits. All outlive this.
  InventoryWalk(OwnerDisks& disks, const DiskOpening& opening, Memory& memory,
                const std::atomic<bool>& link_ends, const Clock& clock)
      : disks_(disks), opening_(opening), memory_(memory), link_ends_(link_ends), clock_(clock) {}

  // As LinkTarget's Inventory, TellAgainFrom, WalkEnds and Told.
  std::vector<InventoryItem> Next(ObjectId& cursor, std::size_t at_most);
  std::optional<ObjectId> TellAgainFrom() const;
  void WalkEnds();
  void Told();
  // As LinkTarget's.
  std::vector<InventoryItem> TakeGone(std::size_t at_most);
  bool TakeGoneOverflow();
  // The disks are paused for an upgrade: zones may move meanwhile, so a walk over them begins anew.
  void Reread() { rereads_ = true; }

 private:
  std::vector<InventoryItem> OfMemory(ObjectId& cursor, std::size_t at_most);
  std::vector<InventoryItem> OfDisks(ObjectId& cursor, std::size_t at_most);
  // False: the link ends.
  bool ReadZone(std::size_t disk, std::uint32_t number);
  void TellZone(std::vector<InventoryItem>& items, std::size_t at_most);
  void UseTold(std::size_t disk, std::uint64_t era);

  OwnerDisks& disks_;
  const DiskOpening& opening_;
  Memory& memory_;
  const std::atomic<bool>& link_ends_;
  const Clock& clock_;
  std::atomic<bool> rereads_{false};
  // The routing lane's: what is left of the zone that is being told.
  std::vector<TierObject> zone_;
  std::size_t told_ = 0;  // of it
  bool returns_ = false;  // its disk was set aside
  // By disk that is being told: the era in which the walk came to its first zone.
  std::vector<std::optional<std::uint64_t>> told_eras_;
  Mutex mutex_;
  // The same of walks that have ended.
  std::vector<std::optional<std::uint64_t>> ended_eras_ KVCOVE_GUARDED_BY(mutex_);
};

}  // namespace kvcove::owner
