// SPDX-License-Identifier: Apache-2.0
// What an owner in a cluster must know of its disk to tell its master: which objects lie there, a
// zone at a time, and which lie there no more. The disk's index has no keys, so a walk reads the
// summaries of zones, on the disk's thread. Thread-safe; a call holds the lock for a moment only.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "kvcove/base/carry.h"
#include "kvcove/base/mutex.h"
#include "kvcove/model/ids.h"

namespace kvcove::owner {

struct TierObject {
  SlotId slot = 0;
  Generation generation = 0;
  std::uint64_t put = 0;  // EvictedObject::put
  std::uint32_t size_bytes = 0;
  std::string key;
  template <typename Ar>
  void Carry(Ar& ar) {
    CarryAll(ar, slot, generation, put, size_bytes, key);
  }
};

// Where a walk over all that an owner has stands, in one number: objects in memory, then one a
// zone, disk after disk. A disk has fewer zones than this: 64 MiB each make 8 PiB.
inline constexpr std::uint32_t kZonesFrom = 0x80000000;
inline constexpr std::uint32_t kZonesADisk = 1U << 27;

class DiskInventory {
 public:
  // Beyond so many that are lost and not taken yet, the owner tells its whole inventory again.
  static constexpr std::size_t kMaxLost = 1 << 18;

  // ---- what the disk has no more
  void Lose(TierObject object);
  // Nobody knows what: all is told again.
  void LoseAll();
  std::vector<TierObject> TakeLost(std::size_t at_most);
  bool TakeLostAll();

  // ---- walks
  struct Zone {
    std::uint32_t number = 0;
    bool whole = false;
    // Of DiskInventory, until Await was true:
    std::vector<TierObject> objects;
    bool done = false;
    std::uint64_t era = 0;
  };
  // 0 while it has ended.
  std::uint32_t zones() const;
  // `whole`: one of a walk that meets each object, because nothing moves from zone to zone
  // meanwhile (see `walking`). Other walks hold nothing up, and may miss what moves.
  std::shared_ptr<Zone> Ask(std::uint32_t number, bool whole = true);
  // True once the zone's objects are known; none are when the disk was set aside since Ask, also if
  // it answers again by now.
  bool Await(const Zone& zone, std::int64_t wait_ns);
  // From the first zone of a whole walk that is asked for until the last one is answered: what
  // moves from zone to zone meanwhile might not be told.
  bool walking() const;
  // To a successor's process: what the master has not heard yet.
  template <typename Ar>
  void Carry(Ar& ar) {
    const MutexLock lock(mutex_);
    CarryAll(ar, lost_, lost_all_);
  }

  // ---- the states of the disk, which are DiskUse's: it calls Begin and End in the same hold of
  // its lock in which the disk is used, or is used no more. Else a walk could wait for a disk that
  // answers nothing, or pass over one that does.
  //
  //   ended --Begin--> answering --End--> ended
  //
  // Zones are asked for and answered from here on.
  void Begin();
  // The disk answers nothing any more, and what was asked for is answered with nothing.
  void End();

  // ---- the disk's thread
  // How many the log has that is open. Before Begin.
  void SetZones(std::uint32_t zones);
  // `still`: nothing moves, so zones of a whole walk can be read.
  std::shared_ptr<Zone> Take(bool still);
  // It could not be read just now.
  void PutBack(std::shared_ptr<Zone> zone);
  void Answer(Zone& zone, std::vector<TierObject> objects);

 private:
  bool Over(const Zone& zone) const KVCOVE_REQUIRES(mutex_) {
    return zone.done || zone.era != era_;
  }

  mutable Mutex mutex_;
  CondVar answered_;
  std::deque<TierObject> lost_ KVCOVE_GUARDED_BY(mutex_);
  bool lost_all_ KVCOVE_GUARDED_BY(mutex_) = false;
  bool ended_ KVCOVE_GUARDED_BY(mutex_) = true;
  // How often it has ended. A thread that waits may wake only after the next Begin.
  std::uint64_t era_ KVCOVE_GUARDED_BY(mutex_) = 0;
  bool walking_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::uint32_t zones_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::deque<std::shared_ptr<Zone>> asked_ KVCOVE_GUARDED_BY(mutex_);
};

}  // namespace kvcove::owner
