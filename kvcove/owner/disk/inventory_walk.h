// SPDX-License-Identifier: Apache-2.0
// Reports to the master which objects an owner has, in memory and on its disks, and which it has
// lost. A walk reads memory, then the zones of disk after disk.
//
// When a disk that was set aside works again, neither a removed value nor one older than another
// owner's may return:
//
//   set aside --> the note forgets it (durable) --> a new epoch, in which it is not reported: other
//         owners may store its keys from here on, and the master remembers keys that they lose
//   works again --> keys stored or removed here meanwhile are removed from it --> its zones are
//         reported; objects that the master refuses are removed --> noted --> on
//
// Another master in between does not remember these keys, so the disk starts empty then.
//
// Threads. Next, ReportAgainFrom and WalkEnds belong to the link's lane that routes, TakeGone and
// TakeGoneOverflow to its list lane, Reported to any one of its lanes. A call waits for a disk's
// thread at most until the link ends.
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
  // `link_ends`: while true, no call waits. All arguments outlive this object.
  InventoryWalk(OwnerDisks& disks, const DiskOpening& opening, Memory& memory,
                const std::atomic<bool>& link_ends, const Clock& clock)
      : disks_(disks), opening_(opening), memory_(memory), link_ends_(link_ends), clock_(clock) {}

  // As LinkTarget's Inventory, ReportAgainFrom, WalkEnds and Reported.
  std::vector<InventoryItem> Next(ObjectId& cursor, std::size_t at_most);
  std::optional<ObjectId> ReportAgainFrom() const;
  void WalkEnds();
  void Reported();
  // As LinkTarget's.
  std::vector<InventoryItem> TakeGone(std::size_t at_most);
  bool TakeGoneOverflow();
  // Begins the walk over the disks anew: zones may move while the disks are paused for an upgrade.
  void Reread() { rereads_ = true; }

 private:
  std::vector<InventoryItem> OfMemory(ObjectId& cursor, std::size_t at_most);
  std::vector<InventoryItem> OfDisks(ObjectId& cursor, std::size_t at_most);
  // Reads the objects of a zone into `zone_`. False: the link ends.
  bool ReadZone(std::size_t disk, std::uint32_t number);
  void ReportZone(std::vector<InventoryItem>& items, std::size_t at_most);
  void UseReported(std::size_t disk, std::uint64_t era);

  OwnerDisks& disks_;
  const DiskOpening& opening_;
  Memory& memory_;
  const std::atomic<bool>& link_ends_;
  const Clock& clock_;
  std::atomic<bool> rereads_{false};
  // The zone that the routing lane reports, and how many of its objects are reported.
  std::vector<TierObject> zone_;
  std::size_t reported_ = 0;
  bool returns_ = false;  // the zone's disk was set aside before
  // By disk that is being reported: its era when the walk reached its first zone.
  std::vector<std::optional<std::uint64_t>> reported_eras_;
  // By disk: its strike from the note, before others may store its keys, since it has been away in
  // this era. The list lane's.
  struct Away {
    std::uint64_t era = 0;
    std::shared_ptr<const Strike> strike;
  };
  std::vector<Away> away_;
  Mutex mutex_;
  // The same for walks that have ended.
  std::vector<std::optional<std::uint64_t>> ended_eras_ KVCOVE_GUARDED_BY(mutex_);
};

}  // namespace kvcove::owner
