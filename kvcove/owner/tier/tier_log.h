// SPDX-License-Identifier: Apache-2.0
// Between one disk's queue and its log: TierDemotions hands evicted values to the log, and TierLog
// answers the questions and reports of the log.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvcove/base/metrics.h"
#include "kvcove/disklog/log.h"
#include "kvcove/owner/tier/tier_parts.h"

namespace kvcove::owner {

// A value that the log is to write, with the facts that writing it needs.
struct HandedDemotion {
  std::shared_ptr<Demotion> demotion;  // null: none waits
  std::string name;                    // of its namespace
  // As of the hold: a removal clears that of `demotion` while the disk's thread copies the value.
  disklog::ShareNumber share = disklog::kNoShare;
};

// The queued values of one disk, in their order. Thread-safe; First, Take, Complete and Drained
// belong to the disk's thread.
class TierDemotions {
 public:
  explicit TierDemotions(TierParts& parts) : parts_(parts) {}

  // Returns the value that is to be written next.
  HandedDemotion First();
  // Takes the first value out of the queue: the log has `copied` it, or never will. Returns the
  // next value, in the same hold of the lock.
  HandedDemotion Take(Demotion& demotion, bool copied);
  // Ends a value that the log has copied. `written`: the value is durable, and found in the log.
  void Complete(Demotion& demotion, bool written);
  // True if all queued values have been written or dropped, and TierLog::NoteCounters has not been
  // called since.
  bool Drained() const;
  // Returns the values that are queued or being written, of one slot or of all, in no order.
  std::vector<std::shared_ptr<const Demotion>> PendingOf(std::optional<SlotId> slot) const;
  // Drops each value that is evicted from now on, because the owner stops.
  void Close();

 private:
  // The value is not pending any more. Unless it is `written`, the table forgets it. Loads that
  // waited for the end of its write are read.
  void EndPending(Demotion& demotion, bool written) KVCOVE_REQUIRES(parts_.mutex);
  HandedDemotion HandFirst() KVCOVE_REQUIRES(parts_.mutex);

  TierParts& parts_;
};

// Durations of a disk's operations. Thread-safe.
struct TierTimes {
  Histogram reads;   // of a record
  Histogram writes;  // from the moment the log takes a value until the device has it
};

// What one disk's log asks of the owner, and reports to it. Keeps the disk's part of the table of
// keys (disklog::Presence). Called on the disk's thread; `times` is thread-safe.
class TierLog final : public disklog::Presence {
 public:
  explicit TierLog(TierParts& parts) : parts_(parts) {}

  // Clears the disk's part of the table before a log is opened. The owner's figures continue from
  // the counters of the former log.
  void Attach();
  // Returns the limits of namespaces and tenants on this disk. The log must not outlive this.
  disklog::DiskShares Shares() const;
  // True if the log should move the object to another zone before it frees the object's own. An
  // object that memory has, too, is not moved: it is demoted again, without a read, when memory
  // evicts it. If memory evicts the object just now, the object is lost: a miss, and nothing else.
  bool WorthMoving(const disklog::LiveObject& object, const disklog::MoveFacts& facts) const;
  // Notes that the cleaner has dropped the object with its zone.
  void Dropped(TierObject object);
  // Notes that the log has the object no more.
  void Lost(TierObject object) { parts_.Lose(std::move(object)); }
  // Takes the log's space and counters over into the owner's figures. `held`: Log::HeldByShare.
  void NoteCounters(const disklog::Space& space, const disklog::Counters& counters,
                    std::vector<std::uint64_t> held);
  // Returns the durations of the disk's operations, to add to or to report.
  TierTimes& times() { return times_; }
  const TierTimes& times() const { return times_; }

  // ---- disklog::Presence: the table of keys, as the log opens and changes
  bool Add(const Id128& hash, Generation generation) override;
  void Remove(const Id128& hash, Generation generation) override;

 private:
  TierParts& parts_;
  TierTimes times_;
  disklog::Counters former_ KVCOVE_GUARDED_BY(parts_.mutex);  // of logs that were open before
  // Objects that the cleaner has dropped while their keys were known (Dropped).
  std::uint64_t dropped_ KVCOVE_GUARDED_BY(parts_.mutex) = 0;
};

}  // namespace kvcove::owner
