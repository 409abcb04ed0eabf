// SPDX-License-Identifier: Apache-2.0
// Evicted values that wait for a disk's log, with a copy of their bytes, and those that the log is
// writing.
//
//   Push --> filling --Fill--> queued --Take--> in the log --End--> over
//               \                \ Drop            \ Drop
//                \ Drop           +-> TakeDropped    +-> End(not written)
//
// Filling. An evicted value gets its place in the queue, and is pending, before its bytes are
// copied, so that the copy needs no hold of this queue's lock. The thread that pushes the value
// holds the owner's lock until it has copied the bytes. So no other thread reserves memory of the
// ring meanwhile, and the values are filled in their order. The log takes no value that is not
// filled, and no load reads one.
//
// Needs the lock of its holder, but for Fill. No I/O.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "kvcove/disklog/shares.h"
#include "kvcove/model/ids.h"
#include "kvcove/owner/disk/byte_ring.h"

namespace kvcove::owner {

struct Load;

// An evicted value that is being demoted.
struct Demotion {
  SlotId slot = 0;
  Generation generation = 0;
  std::uint64_t put = 0;
  std::string key;
  std::uint64_t tag = 0;
  std::uint32_t size_bytes = 0;
  std::uint64_t era = 0;
  disklog::ShareNumber share = disklog::kNoShare;
  bool brief = false;  // not worth much: policy::Verdict

  // Set by DemotionQueue alone:
  std::span<std::byte> room;  // its bytes, in the ring
  std::uint64_t end = 0;      // of these, in the ring
  bool dropped = false;
  bool taken = false;                // by the log: its place in the ring is free
  std::atomic<bool> filled = false;  // its bytes are in the ring
  // Loads that wait until the log has written it.
  std::vector<std::shared_ptr<Load>> awaited;
};

class DemotionQueue {
 public:
  // `shares`: how many namespaces and tenants have a quota.
  DemotionQueue(std::uint64_t bytes, std::size_t objects, std::size_t shares);

  // ---- the owner's side
  // Takes room for the value, which is pending from here on; the caller fills it. False: there is
  // no room.
  bool Push(const std::shared_ptr<Demotion>& demotion);
  // Its bytes are in the ring. Pairs with First and Queued, which read them.
  static void Fill(Demotion& demotion) { demotion.filled.store(true, std::memory_order_release); }
  // A queue that is closed takes nothing more.
  void SetClosed(bool closed) { closed_ = closed; }
  bool closed() const { return closed_; }

  // ---- what is pending: queued, or in the log and not written yet
  // The value of this tag, or null; it may have been dropped.
  Demotion* Find(std::uint64_t tag) const;
  bool Pending(std::uint64_t tag) const;
  // Its bytes, unless the log has them already: the ring keeps them until Take.
  std::optional<std::span<const std::byte>> Queued(const Demotion& demotion) const;
  // Those of one slot, or of all, in no order.
  std::vector<std::shared_ptr<const Demotion>> PendingOf(std::optional<SlotId> slot) const;
  // Those of all slots, also what was dropped.
  void EachPending(const std::function<void(const Demotion&)>& look) const;
  // It is not to be written, or not to be found once it is. False: it was dropped before.
  bool Drop(Demotion& demotion);
  // Those in the queue, without what the log has taken and what was dropped, in their order.
  void EachQueued(const std::function<void(Demotion&)>& look) const;

  // ---- the disk's thread
  // Removes what was dropped from the front; the caller ends each of these. Returns the next value
  // then, or null.
  std::shared_ptr<Demotion> First(std::vector<std::shared_ptr<Demotion>>& dropped);
  // The log has copied the first one, or never will. False: the queue was cleared meanwhile.
  bool Take(Demotion& demotion, bool copied);
  // It has been written, or never will be. False: it was not pending any more, for it was dropped
  // and another value of its key took its place, or the queue was cleared.
  bool End(Demotion& demotion, std::uint64_t era);
  // Forgets all, and returns how many were pending. What is being filled may still be written to.
  std::size_t Clear();
  // The memory of all that was cleared is free.
  void FreeMemory() { ring_.Clear(); }

  // ---- figures
  std::size_t size() const { return queue_.size(); }
  bool idle() const { return queue_.empty() && pending_.empty(); }
  const ByteRing& ring() const { return ring_; }
  // Bytes of this share's values that are pending.
  std::uint64_t HeldBy(disklog::ShareNumber share) const { return by_share_[share]; }
  // What has been written stays counted until the log's counters are noted (ForgetEnded): once the
  // queue is reported to be empty, the counters have all of it.
  std::uint64_t bytes() const { return bytes_; }
  // All that was queued is over, and not forgotten yet.
  bool drained() const { return ended_bytes_ > 0 && ended_bytes_ == bytes_; }
  void ForgetEnded();

 private:
  void Uncount(Demotion& demotion);

  const std::size_t objects_;
  bool closed_ = false;
  ByteRing
      ring_;  // its positions need the lock; a value's bytes belong to one who fills or reads it
  std::deque<std::shared_ptr<Demotion>> queue_;
  std::unordered_map<std::uint64_t, std::shared_ptr<Demotion>> pending_;  // by tag
  std::uint64_t bytes_ = 0;
  std::uint64_t ended_bytes_ = 0;  // written, or dropped
  std::vector<std::uint64_t> by_share_;
};

}  // namespace kvcove::owner
