// SPDX-License-Identifier: Apache-2.0
// The reports of one disk to the master of a cluster: which objects are on the disk, a zone at a
// time, and which objects the disk has lost. The disk's index has no keys, so the disk's thread
// reads the summaries of zones. Thread-safe; a call holds the lock for a moment only.
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

// The cursor of a walk over all objects of an owner is one number: objects in memory, then one
// number for each zone, disk after disk. A disk has fewer zones than kZonesADisk: at 64 MiB each,
// these are 8 PiB.
inline constexpr std::uint32_t kZonesFrom = 0x80000000;
inline constexpr std::uint32_t kZonesADisk = 1U << 27;

class DiskInventory {
 public:
  // Most lost objects that wait for TakeLost. Beyond it the owner reports its whole inventory
  // again.
  static constexpr std::size_t kMaxLost = 1 << 18;

  // ---- lost objects
  // Notes that the disk has lost an object.
  void Lose(TierObject object);
  // Notes losses of unknown objects: the owner reports its whole inventory again.
  void LoseAll();
  // Takes up to `at_most` lost objects, the oldest losses first.
  std::vector<TierObject> TakeLost(std::size_t at_most);
  // Returns true once after LoseAll, or after more losses than kMaxLost.
  bool TakeLostAll();

  // ---- walks
  // A zone that a walk asks for.
  struct Zone {
    std::uint32_t number = 0;
    bool whole = false;
    // Set by DiskInventory, until Await returns true:
    std::vector<TierObject> objects;
    bool done = false;
    std::uint64_t era = 0;
  };
  // Returns the number of zones; 0 after End, until Begin.
  std::uint32_t zones() const;
  // Asks for the objects of a zone. `whole`: the walk must meet each object, so the log moves
  // nothing from zone to zone until the walk ends (see `walking`). Other walks hold nothing up, and
  // may miss objects that move.
  std::shared_ptr<Zone> Ask(std::uint32_t number, bool whole = true);
  // Waits up to `wait_ns`. True: the zone's objects are known; none if the disk was set aside since
  // Ask, even if the disk works again by now.
  bool Await(const Zone& zone, std::int64_t wait_ns);
  // Returns true from the first zone of a whole walk until its last zone is answered. The disk's
  // thread holds the log's moves meanwhile: an object that moved to a zone that was read before
  // would not be reported.
  bool walking() const;
  // Hands to a successor's process the losses that the master does not know yet.
  template <typename Ar>
  void Carry(Ar& ar) {
    const MutexLock lock(mutex_);
    CarryAll(ar, lost_, lost_all_);
  }

  // ---- the states of the disk: DiskUse calls Begin and End in the hold of its lock in which the
  // disk's use begins or ends. Otherwise a walk could wait for a disk that answers nothing, or skip
  // one that answers.
  //
  //   ended --Begin--> answering --End--> ended
  //
  // Begins to answer zones.
  void Begin();
  // Ends that, and answers each zone that was asked for with no objects.
  void End();

  // ---- the disk's thread
  // Sets the number of zones of the log that is open now. Call it before Begin.
  void SetZones(std::uint32_t zones);
  // Returns the next zone to read, or null. `still`: the log moves nothing, so zones of whole walks
  // may be read.
  std::shared_ptr<Zone> Take(bool still);
  // Queues a zone again that could not be read just now.
  void PutBack(std::shared_ptr<Zone> zone);
  // Answers a zone with its objects.
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
  // Counts End. A thread in Await may wake only after the next Begin; the era shows that its zone
  // belongs to an earlier use.
  std::uint64_t era_ KVCOVE_GUARDED_BY(mutex_) = 0;
  bool walking_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::uint32_t zones_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::deque<std::shared_ptr<Zone>> asked_ KVCOVE_GUARDED_BY(mutex_);
};

}  // namespace kvcove::owner
