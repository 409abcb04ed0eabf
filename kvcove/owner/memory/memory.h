// SPDX-License-Identifier: Apache-2.0
// The memory that one host gives to the pool: the segment's files, their mappings, the pages behind
// them, and the lock around the `Core` that knows what lies where.
//
// `mutex` is public, because the disks fence under it: memory forgets a key and the disks drop what
// they have of it in one hold. Between two holds a promotion could bring a removed value back.
//
// Thread-safe; what needs the lock says so.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kvcove/base/left_behind.h"
#include "kvcove/base/log.h"
#include "kvcove/base/memory_file.h"
#include "kvcove/base/mutex.h"
#include "kvcove/base/numa.h"
#include "kvcove/base/posix.h"
#include "kvcove/owner/core/core.h"
#include "kvcove/owner/memory/populator.h"
#include "kvcove/segment/view.h"

namespace kvcove::owner {

struct MemoryOptions {
  std::uint64_t payload_bytes = 0;
  std::uint64_t granule_bytes = 0;
  std::uint64_t max_objects = 0;
  std::uint64_t tier_objects = 0;  // places in the table of what the disks hold
  // Less than this: Create refuses. Nothing: what the host can give now.
  std::optional<std::uint64_t> available_bytes;
  HugePages huge_pages = HugePages::kAuto;
  NodePlace place{};     // where the memory comes from
  bool populate = true;  // StartPopulating does something
};

class Memory {
 public:
  // Keys or objects that one hold of the lock handles.
  static constexpr std::size_t kSlice = 256;
  // Between two slices of a walk. A mutex that is taken again at once is never seen to be free by
  // the threads that wait for it: they need the time of a wake-up.
  static constexpr std::int64_t kTurnNs = 50 * kMicrosecond;
  static void LetOthersIn();

  // What a successor's process gets (docs/upgrade.md).
  struct Files {
    UniqueFd header;
    UniqueFd payload;
    std::vector<std::pair<SessionNumber, UniqueFd>> pages;
  };
  // Errors: kInvalid when the host cannot give the memory; kInternal.
  static Result<std::unique_ptr<Memory>> Create(const MemoryOptions& options, const Clock& clock);
  // Over the files of another process, which may still use them: writes nothing there.
  // Errors: kIncompatible with the reason.
  static Result<std::unique_ptr<Memory>> Map(const MemoryOptions& options, Files files,
                                             const Clock& clock);
  // Once, before anything that uses core(). Errors: kInvalid for an unknown policy.
  Status OpenCore(const CoreOptions& options);
  // The core of another process and its sessions' pages. Returns whether the policies' knowledge
  // was kept. Errors: kIncompatible, kInternal.
  Result<bool> Restore(StateReader& ar, StateReader& policies,
                       std::vector<std::pair<SessionNumber, UniqueFd>> pages);
  Result<Files> CopyFiles();

  Mutex mutex;
  CondVar published;  // with `mutex`: SetSlots was called
  Core& core() KVCOVE_REQUIRES(mutex) { return *core_; }
  // Other generations are current; wakes those that wait for `published`.
  void SetSlots(const Id128& incarnation, const std::vector<SlotUpdate>& updates)
      KVCOVE_REQUIRES(mutex);
  // A hint for requesters with several owners to choose from.
  void PublishRoom() KVCOVE_REQUIRES(mutex);
  // The pages that are populated by now become room. Here and not by the populating thread, which
  // shares no lock.
  void AddPopulated() KVCOVE_REQUIRES(mutex);
  bool Populated();

  // ---- sessions of processes that map the segment
  struct Grant {
    SessionNumber number = 0;
    UniqueFd page;  // a sealed memory file: one SessionPage, then one Staging
    segment::SessionPage* mapped = nullptr;  // the owner's own mapping, valid until EndSession
  };
  Result<Grant> AddSession(std::int32_t pid);
  void EndSession(SessionNumber number);

  // ---- pages
  // Touches the memory in the background, until PausePopulating. After all that others wait for is
  // started: it holds the lock of the address space, for which new threads wait to get a stack.
  void StartPopulating();
  // Waits for the slice that is being populated, but not for long.
  void PausePopulating();
  void StopPopulating() { populator_->Stop(); }
  // Before anybody else may write to what a put was given.
  void EnsurePopulated(std::span<const PutResult> results);

  segment::HeaderView header() const { return header_; }
  segment::Payload payload() const {
    return {.data = payload_.data(), .granule = header_.granule()};
  }
  // Which pages the payload has, why, and what page tables cost. For the log.
  const std::string& pages() const { return pages_description_; }
  // Reads only.
  int header_fd() const { return reader_fd_.get(); }
  int payload_fd() const { return payload_fd_.get(); }
  void SetLease(std::int64_t deadline_ns) {
    header_.header().lease_deadline_ns.store(deadline_ns, std::memory_order_release);
  }
  std::int64_t LeaseUntilNs() const {
    return header_.header().lease_deadline_ns.load(std::memory_order_acquire);
  }
  // The header remains mapped when this is destroyed, for a thread that was left behind.
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

  const MemoryOptions options_;
  const Clock& clock_;
  UniqueFd header_fd_;
  UniqueFd reader_fd_;  // of the same file
  UniqueFd payload_fd_;
  Mapping header_map_;
  Mapping payload_;
  std::string pages_description_;
  segment::HeaderView header_;
  std::optional<Populator> populator_;
  LogLimit unpopulated_;
  std::unique_ptr<Core> core_ KVCOVE_GUARDED_BY(mutex);
  std::unordered_map<SessionNumber, SessionFile> pages_ KVCOVE_GUARDED_BY(mutex);
};

}  // namespace kvcove::owner
