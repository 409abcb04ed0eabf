// SPDX-License-Identifier: Apache-2.0
// Evicted values that wait for a disk's log, each with a copy of its bytes, and values that the log
// is writing.
//
//   Push --> filling --Fill--> queued --Take--> in the log --End--> over
//               \                \ Drop            \ Drop
//                \ Drop           +-> First          +-> End(not written)
//
// Filling. Push reserves ring memory for a value and makes the value pending before its bytes are
// copied, so that the copy does not hold this queue's lock. The thread that pushes holds the
// owner's lock until it has copied the bytes. So no other thread reserves ring memory in between,
// and values are filled in the order of their pushes. The log takes no value that is not filled,
// and no load reads one.
//
// Needs the lock of its holder, except for Fill. Does no I/O.
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
#include "kvcove/owner/tier/byte_ring.h"

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
  bool brief = false;  // worth little: its zone is freed early (policy::Verdict)

  // Set by DemotionQueue alone:
  std::span<std::byte> room;  // the bytes of the value, in the ring
  std::uint64_t end = 0;      // where these bytes end in the ring
  bool dropped = false;
  bool taken = false;                // the log has copied the bytes, so the ring need not keep them
  std::atomic<bool> filled = false;  // all bytes are in the ring
  // Loads of the value that wait until the log has written it.
  std::vector<std::shared_ptr<Load>> awaited;
};

class DemotionQueue {
 public:
  // `bytes`: size of the ring. `objects`: most queued values. `shares`: number of namespaces and
  // tenants with a quota.
  DemotionQueue(std::uint64_t bytes, std::size_t objects, std::size_t shares);

  // ---- the owner's side
  // Reserves ring memory for the value and makes the value pending; the caller copies the bytes,
  // then calls Fill. False: the queue is full.
  bool Push(const std::shared_ptr<Demotion>& demotion);
  // Marks all bytes of the value as copied. The release pairs with the acquires in First and
  // Queued, after which the log or a load reads the bytes.
  static void Fill(Demotion& demotion) { demotion.filled.store(true, std::memory_order_release); }
  // Closes the queue: the holder must push nothing more. Push does not check this.
  void SetClosed(bool closed) { closed_ = closed; }
  bool closed() const { return closed_; }

  // ---- pending values: queued, or copied by the log and not written yet
  // Returns the pending value of this tag, which may have been dropped, or null.
  Demotion* Find(std::uint64_t tag) const;
  // Returns true if a value of this tag is pending and was not dropped.
  bool Pending(std::uint64_t tag) const;
  // Returns the bytes of the value. Nothing: they are not filled, the log has copied them, or the
  // value was dropped. The ring keeps the bytes until Take.
  std::optional<std::span<const std::byte>> Queued(const Demotion& demotion) const;
  // Returns the pending values of one slot, or of all slots, in no order.
  std::vector<std::shared_ptr<const Demotion>> PendingOf(std::optional<SlotId> slot) const;
  // Calls `look` for each pending value of any slot, also for dropped ones.
  void EachPending(const std::function<void(const Demotion&)>& look) const;
  // Drops the value: it is not written or, once the log has written it, not found. False: it was
  // dropped before.
  bool Drop(Demotion& demotion);
  // Calls `look`, in the order of the queue, for each value that the log has not taken and that was
  // not dropped.
  void EachQueued(const std::function<void(Demotion&)>& look) const;

  // ---- the disk's thread
  // Removes dropped values from the front into `dropped`; the caller ends each of these. Returns
  // the next value to write. Null: the queue is empty, or its first value is not filled.
  std::shared_ptr<Demotion> First(std::vector<std::shared_ptr<Demotion>>& dropped);
  // Removes the first value: the log has copied it, or never will. False: the queue was cleared
  // since First.
  bool Take(Demotion& demotion, bool copied);
  // Ends a value that is written or never will be. `era`: the current one. False: the value was no
  // longer pending, because it was dropped and another value of its key replaced it, or because the
  // queue was cleared.
  bool End(Demotion& demotion, std::uint64_t era);
  // Forgets all values and returns how many were pending. Their memory stays reserved until
  // FreeMemory, because a thread may still fill one of them.
  std::size_t Clear();
  // Frees the memory of all values that were cleared. A copy that is still under way does no harm:
  // the next Push needs the owner's lock, which the copying thread holds.
  void FreeMemory() { ring_.Clear(); }

  // ---- figures
  std::size_t size() const { return queue_.size(); }
  bool idle() const { return queue_.empty() && pending_.empty(); }
  const ByteRing& ring() const { return ring_; }
  // Returns the bytes of this share's pending values.
  std::uint64_t HeldBy(disklog::ShareNumber share) const { return by_share_[share]; }
  // Returns the bytes of all values that were queued. A value that has ended stays counted until
  // ForgetEnded, which the holder calls when it notes the log's counters: once this is 0, these
  // counters include every value.
  std::uint64_t bytes() const { return bytes_; }
  // Returns true once all queued values have ended and still await ForgetEnded.
  bool drained() const { return ended_bytes_ > 0 && ended_bytes_ == bytes_; }
  // Stops counting the values that have ended.
  void ForgetEnded();

 private:
  void Uncount(Demotion& demotion);

  const std::size_t objects_;
  bool closed_ = false;
  // The holder's lock guards the positions. A value's bytes belong to the thread that fills or
  // reads them.
  ByteRing ring_;
  std::deque<std::shared_ptr<Demotion>> queue_;
  std::unordered_map<std::uint64_t, std::shared_ptr<Demotion>> pending_;  // by tag
  std::uint64_t bytes_ = 0;
  std::uint64_t ended_bytes_ = 0;        // written, or dropped
  std::vector<std::uint64_t> by_share_;  // pending bytes
};

}  // namespace kvcove::owner
