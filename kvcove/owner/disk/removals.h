// SPDX-License-Identifier: Apache-2.0
// Removes objects from memory and disks together: for processes of this host, and for the master.
//
// A removal takes a key from memory and fences it at its disk in one hold of the owner's lock.
// Otherwise a promotion that is under way could restore the value in between. The removal is
// answered once the disk has proven it (its tombstone is durable), or once the note or, in a
// cluster, the master says durably that the next start must not use that disk.
//
// Threads. Any thread may call Remove and RemoveMatching and their forms with Then, several at a
// time. The other calls belong to the link: Apply, AwaitApplied, BeginPattern, PatternRoom,
// TakeEndedPatterns, DropSlots, BeginDrop and DropEnded to its removal lane, ForgetPatterns to the
// thread that has ended that lane, DropFromMemory to the lane of the lease.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/owner/disk/disk_opening.h"
#include "kvcove/owner/disk/owner_disks.h"
#include "kvcove/owner/disk/removal_waits.h"
#include "kvcove/wire/owner_link.h"
#include "kvcove/wire/tasks.h"

namespace kvcove::owner {

class Removals {
 public:
  // `link_ends`: while true, no call of the link waits. All arguments outlive this object.
  Removals(OwnerDisks& disks, DiskOpening& opening, Memory& memory,
           const std::atomic<bool>& link_ends, const Clock& clock);
  ~Removals();
  Removals(const Removals&) = delete;
  Removals& operator=(const Removals&) = delete;

  // ---- asked for on this host; `token` names the generation
  // Removes keys, and returns a code for each. kStale: the token names another generation.
  // kTimeout: a disk has not proven the removal in time.
  std::vector<Code> Remove(const Token& token, std::span<const std::string_view> keys,
                           std::int64_t deadline_ns);
  // Removes objects whose keys match, and returns their number. Errors: kTimeout: some may be
  // removed, and the call can be repeated; kInvalid: the pattern; kStale; kLimit: too many removals
  // by pattern wait for a disk, so this one has not begun here (it may have at other owners of the
  // process).
  Result<std::uint64_t> RemoveMatching(const Token& token, std::string_view pattern,
                                       std::int64_t deadline_ns);
  // Do the same without waiting for a disk. `keys` are read within the call. `done` is called once,
  // by any thread, or within the call; the janitor ends waits at their deadlines.
  // RemoveMatchingThen walks over memory within the call. Errors: also kLimit: too many removals
  // wait, so this one has not begun here.
  void RemoveThen(const Token& token, std::span<const std::string_view> keys,
                  std::int64_t deadline_ns, std::function<void(Result<std::vector<Code>>)> done);
  void RemoveMatchingThen(const Token& token, std::string_view pattern, std::int64_t deadline_ns,
                          std::function<void(Result<std::uint64_t>)> done);
  // Returns the removals that wait so.
  RemovalWaits& waits() { return *waits_; }

  // ---- the master's
  // Applies the keys of a removal. AwaitApplied proves them.
  void Apply(const wire::Removal& removal);
  struct Begun {
    std::uint64_t objects = 0;  // that memory had
    bool open = false;          // false: there is no disk, so the removal has ended
  };
  // Applies a removal by pattern without waiting for its walk over the disks. TakeEndedPatterns
  // returns the removal once disks have proven it. Call it while PatternRoom is not 0.
  Begun BeginPattern(const wire::Removal& removal);
  // Returns how many more removals by pattern may be open: each load looks at all of them.
  std::size_t PatternRoom() const;
  // Returns removals that disks have proven, with the number of their objects, once it has queued
  // their keys for the master as lost: a bounded number with each call.
  std::vector<wire::RemovalsRequest::Count> TakeEndedPatterns();
  // Forgets what BeginPattern and BeginDrop have begun: it is applied again.
  void ForgetPatterns();
  // Waits until the removals since the last call are proven. False: the link has ended, which may
  // have cut off any of them, so none may be acknowledged.
  bool AwaitApplied();
  // Removes all objects of the slots. Waits for disks, until the link ends.
  void DropSlots(std::span<const SlotId> slots);
  // Removes all objects of the slots from memory, and orders walks over the disks without waiting
  // for them. False: there is no disk, so the drop has ended.
  bool BeginDrop(std::span<const SlotId> slots);
  // Returns true once disks have proven all that BeginDrop has begun, and the keys are queued for
  // the master as lost: a bounded number with each call.
  bool DropEnded();
  // Removes the slot's objects from memory only. Waits for no disk, because the lane of the lease
  // calls this.
  void DropFromMemory(SlotId slot);
  // Drops objects of which another owner has another value. Waits for disks, but for a moment only:
  // listings wait meanwhile. Durable soon: a process that is killed before that reports the objects
  // again, and they are refused again, unless the other value is lost by then.
  void Drop(std::span<const InventoryItem> items);
  // Drops objects of which another owner has the same value. Not proven: if this owner returns with
  // its disk, they are replicas.
  void Drop(std::span<const wire::CopyRequest::Item> items);

 private:
  // A removal by pattern of the removal lane whose walk over the disks is under way.
  struct Pattern {
    std::uint64_t number = 0;
    SlotId slot = 0;
    DisksRemoval on_disk;
    std::int64_t look_at_ns = 0;  // not before, because a strike has failed; 0: none has
  };
  std::vector<Code> Begin(const Token& token, std::span<const std::string_view> keys,
                          DisksRemoval& on_disk);
  Result<std::uint64_t> BeginMatching(const Token& token, std::string_view pattern,
                                      std::int64_t deadline_ns, DisksRemoval& on_disk);
  void RemoveFromDisks(const Token& token, std::span<const std::string_view> keys,
                       std::span<Code> codes, DisksRemoval& removal) KVCOVE_REQUIRES(memory_.mutex);
  Result<std::uint64_t> Walk(const Token& token, std::string_view pattern,
                             std::int64_t deadline_ns);
  // Removes what memory has, and orders the walk over the disks. Returns how many objects memory
  // had.
  std::uint64_t OrderPattern(const wire::Removal& removal, DisksRemoval& on_disk);
  // Returns whether the disks have proven it, or are struck from the note.
  bool Ended(Pattern& pattern);
  // Queues keys that the first one's walk took as lost, at most `room` of them, and subtracts them.
  // True: it has ended, with the last of its keys.
  bool TakeEnded(std::deque<Pattern>& of, std::size_t& room);
  // Orders the walks of slots that are to be dropped, as many as there may be patterns.
  void OrderDrops();
  // Removes what memory has of the slot, and orders the walk over the disks. Nothing: there is
  // nothing to be proven.
  std::optional<DisksRemoval> OrderDrop(SlotId slot);
  // Waits until the removal is proven. False: the link ends before that.
  bool AwaitProven(DisksRemoval& removal);
  void NoteGone(SlotId slot, std::span<const std::string> keys);
  void NoteGoneUnknown();

  OwnerDisks& disks_;
  DiskOpening& opening_;
  Memory& memory_;
  const std::atomic<bool>& link_ends_;
  const Clock& clock_;
  // Keys that the removal lane has removed and whose tombstones are not proven yet.
  std::shared_ptr<DisksRemoval> unproven_;
  std::deque<Pattern> patterns_;  // few: each load looks at all of them (DiskFences)
  std::deque<SlotId> to_drop_;    // slots for which disks are to be walked
  std::deque<Pattern> drops_;     // those for which they are; few, too
  // Disks share it: a thread of one that hung and was left behind may report a proof late.
  std::shared_ptr<RemovalWaits> waits_;
};

}  // namespace kvcove::owner
