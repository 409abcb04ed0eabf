// SPDX-License-Identifier: Apache-2.0
// Removals from memory and disks together: those that processes of this host ask for, and those
// that the master orders.
//
// A removal takes a key from memory and fences it at its disk in one hold of the owner's lock; else
// a promotion that is under way could bring the value back in between. It is answered once the disk
// has proven it (its tombstone is durable), or once the note, or in a cluster the master, says
// durably that the next start must not use that disk.
//
// Threads. Remove and RemoveMatching: any, several at a time. The others belong to the link: Apply,
// AwaitApplied and DropSlot to its removal lane, DropFromMemory to that of the lease.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/owner/disk/disk_opening.h"
#include "kvcove/owner/disk/owner_disks.h"
#include "kvcove/wire/tasks.h"

namespace kvcove::owner {

class Removals {
 public:
  // `link_ends`: while it is true no call of the link waits. All outlive this.
  Removals(OwnerDisks& disks, DiskOpening& opening, Memory& memory,
           const std::atomic<bool>& link_ends, const Clock& clock)
      : disks_(disks), opening_(opening), memory_(memory), link_ends_(link_ends), clock_(clock) {}

  // ---- asked for on this host; these name the generation that they mean
  // kStale for each key under another one. kTimeout: the disk has not proven it in time.
  std::vector<Code> Remove(const Token& token, std::span<const std::string_view> keys,
                           std::int64_t deadline_ns);
  // Errors: kTimeout, with what was removed so far gone; kInvalid for the pattern; kStale.
  Result<std::uint64_t> RemoveMatching(const Token& token, std::string_view pattern,
                                       std::int64_t deadline_ns);

  // ---- the master's
  // Returns how many objects a pattern matched. Keys are proven by AwaitApplied.
  std::uint64_t Apply(const wire::Removal& removal);
  // Any of the removals since the last call may have been cut off when the link ended. False: it
  // ended, so none is acknowledged.
  bool AwaitApplied();
  void DropSlot(SlotId slot);
  // Waits for no disk. The lane of the lease.
  void DropFromMemory(SlotId slot);
  // Another owner has another value of these keys. Durable when it returns, unless the link ends:
  // they must not be told again by a later process, when the other value may be gone.
  void Drop(std::span<const InventoryItem> items);
  // Another owner has the same values. Not proven: should this one come back with its disk, they
  // are replicas.
  void Drop(std::span<const wire::CopyRequest::Item> items);

 private:
  void RemoveFromDisks(const Token& token, std::span<const std::string_view> keys,
                       std::span<Code> codes, DisksRemoval& removal) KVCOVE_REQUIRES(memory_.mutex);
  Result<std::uint64_t> Walk(const Token& token, std::string_view pattern,
                             std::int64_t deadline_ns);
  std::uint64_t ApplyPattern(const wire::Removal& removal);
  // False: the link ends, and it is not proven.
  bool AwaitProven(DisksRemoval& removal);
  void NoteGone(SlotId slot, std::span<const std::string> keys);
  void NoteGoneUnknown();

  OwnerDisks& disks_;
  DiskOpening& opening_;
  Memory& memory_;
  const std::atomic<bool>& link_ends_;
  const Clock& clock_;
  // The removal lane's: removed keys whose tombstones are not proven yet.
  std::shared_ptr<DisksRemoval> unproven_;
};

}  // namespace kvcove::owner
