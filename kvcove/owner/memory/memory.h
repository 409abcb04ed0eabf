// SPDX-License-Identifier: Apache-2.0
// The memory that one host gives to the pool: the segment's files, their mappings, the pages behind
// them, and the lock around the `Core`, which knows the objects in it.
//
// `mutex` is public, because the disks fence under it: memory withdraws a key and the disks drop
// their values of it in one hold. Between two holds a promotion could restore a removed value.
//
// Thread-safe; functions that need the lock are annotated.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kvcove/base/host/numa.h"
#include "kvcove/base/left_behind.h"
#include "kvcove/base/log.h"
#include "kvcove/base/memory_file.h"
#include "kvcove/base/mutex.h"
#include "kvcove/base/posix.h"
#include "kvcove/owner/core/core.h"
#include "kvcove/owner/memory/populator.h"
#include "kvcove/segment/view.h"

namespace kvcove::owner {

struct MemoryOptions {
  std::uint64_t payload_bytes = 0;
  std::uint64_t granule_bytes = 0;
  std::uint64_t max_objects = 0;
  std::uint64_t tier_objects = 0;  // places in the table of the disks' objects
  // Memory that the host can give; Create refuses a larger payload. Unset: as measured by Create.
  std::optional<std::uint64_t> available_bytes;
  HugePages huge_pages = HugePages::kAuto;
  NodePlace place{};     // where the memory comes from
  bool populate = true;  // false: StartPopulating has no effect
};

class Memory {
 public:
  // Keys or objects that one hold of the lock handles.
  static constexpr std::size_t kSlice = 256;
  // Pause between two slices of a walk. A thread that waits for the mutex needs the time of a
  // wake-up to take it, so it would never get a mutex that is taken again at once.
  static constexpr std::int64_t kTurnNs = 50 * kMicrosecond;
  // Sleeps for kTurnNs. The caller holds no lock.
  static void LetOthersIn();

  // The descriptors for a successor's process (docs/upgrade.md).
  struct Files {
    UniqueFd header;
    UniqueFd payload;
    std::vector<std::pair<SessionNumber, UniqueFd>> pages;
  };
  // Creates the files. May wait for memory of an ended owner (memory_budget.h). Errors: kInvalid
  // when the host cannot give the memory; kInternal.
  static Result<std::unique_ptr<Memory>> Create(const MemoryOptions& options, const Clock& clock);
  // Maps the files of another process, which may still use them: writes nothing there.
  // Errors: kIncompatible with the reason.
  static Result<std::unique_ptr<Memory>> Map(const MemoryOptions& options, Files files,
                                             const Clock& clock);
  // Creates the core. Call once, before any use of core(). Errors: kInvalid for an unknown policy.
  Status OpenCore(const CoreOptions& options);
  // Reads the core of another process, and maps its sessions' pages. Returns whether the policies'
  // knowledge was kept. Errors: kIncompatible, kCorrupt, kInternal.
  Result<bool> Restore(StateReader& ar, StateReader& policies,
                       std::vector<std::pair<SessionNumber, UniqueFd>> pages);
  Result<Files> CopyFiles();

  Mutex mutex;
  CondVar published;  // with `mutex`: SetSlots notifies it
  // Returns the core, and ends the janitor's rest.
  Core& core() KVCOVE_REQUIRES(mutex) {
    NoteUse();
    return *core_;
  }
  // Sets the core's generations and notifies `published`.
  void SetSlots(const Id128& incarnation, const std::vector<SlotUpdate>& updates)
      KVCOVE_REQUIRES(mutex);
  // Stores the free bytes in the header: a hint for requesters that choose between several owners.
  void PublishRoom() KVCOVE_REQUIRES(mutex);
  // Gives the core the pages that are populated by now. The populating thread does not, because it
  // takes no lock: at its low priority it would hold the lock for long.
  void AddPopulated() KVCOVE_REQUIRES(mutex);
  // Returns whether the core has the whole payload.
  bool Populated();

  // ---- the janitor's rest
  // Returns the core. The janitor's own calls are no use that would end its rest.
  Core& core_for_janitor() KVCOVE_REQUIRES(mutex) { return *core_; }
  // Begins a round of the janitor: AwaitUse waits for a use after it.
  void ForgetUse() KVCOVE_REQUIRES(mutex) { used_ = false; }
  // Waits until somebody has called core() or EndRest since ForgetUse, `at_most_ns` at most.
  // Returns whether somebody has.
  bool AwaitUse(std::int64_t at_most_ns);
  // Ends AwaitUse without a use: the janitor is to stop.
  void EndRest();

  // ---- sessions of processes that map the segment
  struct Grant {
    SessionNumber number = 0;
    UniqueFd page;  // a sealed memory file: one SessionPage, then one Staging
    segment::SessionPage* mapped = nullptr;  // the owner's own mapping, valid until EndSession
  };
  // Adds a session of process `pid`. Errors: kLimit when there are too few descriptors; those of
  // CreateMemoryFile.
  Result<Grant> AddSession(std::int32_t pid);
  void EndSession(SessionNumber number);

  // ---- pages
  // Populates the payload in the background, until PausePopulating. Call after all other threads
  // are started: it holds the lock of the address space, which a new thread needs to get a stack.
  void StartPopulating();
  // Waits for the slice that is being populated, 2 s at most.
  void PausePopulating();
  void StopPopulating() { populator_->Stop(); }
  // Populates the puts' extents. Call before another process may write to them: the kernel charges
  // a page to the control group of the process that touches it first.
  void EnsurePopulated(std::span<const PutResult> results);

  segment::HeaderView header() const { return header_; }
  segment::Payload payload() const {
    return {.data = payload_.data(), .granule = header_.granule()};
  }
  // Returns all of the payload's memory, for a device that registers it.
  std::span<std::byte> payload_memory() const { return {payload_.data(), payload_.size()}; }
  // Returns, for the log, the kind of the payload's pages, the reason, and the cost of page tables.
  const std::string& pages() const { return pages_description_; }
  // Returns a descriptor that allows reading only.
  int header_fd() const { return reader_fd_.get(); }
  int payload_fd() const { return payload_fd_.get(); }
  // Stores the lease's deadline; needs no lock. Pairs (release) with HeaderView::LeaseHolds: a
  // reader that loads the deadline sees the generations that were stored before.
  void SetLease(std::int64_t deadline_ns) {
    header_.header().lease_deadline_ns.store(deadline_ns, std::memory_order_release);
  }
  std::int64_t LeaseUntilNs() const {
    return header_.header().lease_deadline_ns.load(std::memory_order_acquire);
  }
  // Stores until when announced saves may be under way (segment::Header). Relaxed: a reader that
  // sees it late only does not wait.
  void PublishSavesUntil(std::int64_t until_ns) {
    header_.header().saves_until_ns.store(until_ns, std::memory_order_relaxed);
  }
  // Keeps the header mapped after this object's end, for a thread that was left behind (a disk's
  // thread that hangs in a system call).
  void LeaveHeader() { LeaveBehind(std::make_shared<Mapping>(std::move(header_map_))); }

 private:
  struct SessionFile {
    Mapping map;
    UniqueFd fd;  // for a successor
  };
  Memory(const MemoryOptions& options, const Clock& clock) : options_(options), clock_(clock) {}
  segment::HeaderSizes Sizes() const;
  Status MakeHeader(const Id128& segment_id);
  Status MakePayload(const Id128& segment_id);
  Status MapHeader(UniqueFd file);
  Status MapPayload(UniqueFd file);
  void MakePopulator();
  // Notifies only at the first use after ForgetUse: a busy core costs no system call.
  void NoteUse() KVCOVE_REQUIRES(mutex) {
    if (!std::exchange(used_, true)) first_use_.NotifyOne();
  }

  const MemoryOptions options_;
  const Clock& clock_;
  UniqueFd header_fd_;
  UniqueFd reader_fd_;  // of the same file, read-only
  UniqueFd payload_fd_;
  Mapping header_map_;
  Mapping payload_;
  std::string pages_description_;
  segment::HeaderView header_;
  std::optional<Populator> populator_;
  LogLimit unpopulated_;
  std::unique_ptr<Core> core_ KVCOVE_GUARDED_BY(mutex);
  bool used_ KVCOVE_GUARDED_BY(mutex) = true;
  CondVar first_use_;  // with `mutex`
  std::unordered_map<SessionNumber, SessionFile> pages_ KVCOVE_GUARDED_BY(mutex);
};

}  // namespace kvcove::owner
