// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/memory/memory.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>

#include "kvcove/base/random.h"
#include "kvcove/base/read_only_copy.h"
#include "kvcove/base/size.h"
#include "kvcove/owner/memory/memory_budget.h"
#include "kvcove/segment/leftovers.h"

namespace kvcove::owner {
namespace {

constexpr std::uint64_t kFirstBuckets = 4 * kKiB;  // each later one is written before it is read
// A slice takes a fraction of a millisecond. If the host does not run the thread for so long, the
// hand-over continues and only takes longer.
constexpr std::int64_t kPopulatorNs = 2 * kSecond;

// Binds the memory to the place's node; call before the first page is touched. A refusal is only
// logged: memory of another node serves as well, with a higher latency.
void BindToNode(const Mapping& memory, const NodePlace& place) {
  if (!place.bound()) return;
  if (const Status bound = BindMemory(memory.data(), memory.size(), place.node); !bound) {
    LogWarn("{}; it lies where it is touched first ('kvcove doctor' says more)",
            bound.error().detail);
  }
}

Result<UniqueFd> Copy(int fd) {
  UniqueFd copy(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return FailErrno(Code::kLimit, "a descriptor for an upgrade");
  return copy;
}

}  // namespace

void Memory::LetOthersIn() { std::this_thread::sleep_for(std::chrono::nanoseconds(kTurnNs)); }

segment::HeaderSizes Memory::Sizes() const {
  return {.max_objects = options_.max_objects,
          .payload_bytes = options_.payload_bytes,
          .granule_bytes = options_.granule_bytes,
          .tier_objects = options_.tier_objects};
}

// ---- made here

Result<std::unique_ptr<Memory>> Memory::Create(const MemoryOptions& options, const Clock& clock) {
  std::unique_ptr<Memory> memory(new Memory(options, clock));
  const Id128 segment_id = RandomId();
  KVCOVE_TRY(memory->MakeHeader(segment_id));
  if (options.granule_bytes > segment::kLeastGranule) {
    LogInfo(
        "memory of {} is given out in granules of {}: a value takes up to {} B more than its "
        "size, {} on average",
        FormatSize(options.payload_bytes), FormatSize(options.granule_bytes),
        options.granule_bytes - 1, FormatSize(options.granule_bytes / 2));
  }
  KVCOVE_TRY(memory->MakePayload(segment_id));
  memory->MakePopulator();
  return memory;
}

Status Memory::MakeHeader(const Id128& segment_id) {
  const std::uint64_t header_bytes = segment::HeaderFileBytes(Sizes());
  KVCOVE_ASSIGN(header_fd_,
                CreateMemoryFile(segment::HeaderFileName(segment_id).c_str(), header_bytes));
  KVCOVE_ASSIGN(header_map_,
                Mapping::Map(header_fd_.get(), header_bytes, Mapping::Access::kReadWrite));
  BindToNode(header_map_, options_.place);
  KVCOVE_TRY(segment::FormatHeader(header_map_.data(), Sizes(), segment_id, RandomU64()));
  // A reader's look-up reads these pages, also before the owner has written to them. Populated
  // here, they are charged to the owner's control group.
  KVCOVE_TRY(PopulatePages(
      header_map_.data(),
      reinterpret_cast<const segment::Header*>(header_map_.data())->buckets_offset + kFirstBuckets,
      Populate::kWrite));
  // Other processes get a read-only descriptor, so none of them can map the header for writing.
  KVCOVE_ASSIGN(reader_fd_, ReadOnlyCopy(header_fd_.get()));
  KVCOVE_ASSIGN(header_, segment::HeaderView::Open(header_map_.data(), header_map_.size()));
  return {};
}

// The file may be larger than the capacity, by a part of a huge page. No put gets the bytes beyond.
Status Memory::MakePayload(const Id128& segment_id) {
  const std::string name = segment::PayloadFileName(segment_id);
  KVCOVE_ASSIGN(MemoryFile file, CreateMemoryFile(name.c_str(), options_.payload_bytes,
                                                  options_.huge_pages, HugePageHost::Read()));
  // The host has reserved hugetlb pages already, and no control group's memory limit counts them.
  if (file.pages != MemoryFile::Pages::kHugetlb) {
    MemoryBudget budget;
    if (options_.available_bytes) {
      budget.available = [bytes = *options_.available_bytes] {
        return MemoryRoom{.bytes = bytes, .limit = "this host", .most_bytes = bytes};
      };
    }
    KVCOVE_TRY(AwaitMemory(options_.payload_bytes, budget));
  }
  pages_description_ = file.Describe();
  payload_fd_ = std::move(file.fd);
  KVCOVE_ASSIGN(payload_,
                Mapping::Map(payload_fd_.get(), file.file_bytes, Mapping::Access::kReadWrite));
  BindToNode(payload_, options_.place);
  AdvisePages(payload_, file.pages);
  return {};
}

void Memory::MakePopulator() {
  const Populator::Options defaults;
  populator_.emplace(std::span(payload_.data(), payload_.size()),
                     Populator::Options{.slice_bytes = std::max(defaults.slice_bytes,
                                                                PageBytesOf(payload_fd_.get()))});
}

// ---- another process's

Result<std::unique_ptr<Memory>> Memory::Map(const MemoryOptions& options, Files files,
                                            const Clock& clock) {
  std::unique_ptr<Memory> memory(new Memory(options, clock));
  KVCOVE_TRY(memory->MapHeader(std::move(files.header)));
  KVCOVE_TRY(memory->MapPayload(std::move(files.payload)));
  memory->MakePopulator();
  return memory;
}

Status Memory::MapHeader(UniqueFd file) {
  const std::uint64_t header_bytes = segment::HeaderFileBytes(Sizes());
  header_fd_ = std::move(file);
  KVCOVE_ASSIGN(reader_fd_, ReadOnlyCopy(header_fd_.get()));
  KVCOVE_ASSIGN(header_map_,
                Mapping::Map(header_fd_.get(), header_bytes, Mapping::Access::kReadWrite));
  KVCOVE_ASSIGN(header_, segment::HeaderView::Open(header_map_.data(), header_map_.size()));
  if (header_.header().payload_bytes != options_.payload_bytes ||
      header_.header().header_bytes != header_bytes ||
      header_.granule().bytes() != options_.granule_bytes) {
    return Fail(Code::kIncompatible, "the running owner's segment has other sizes");
  }
  return {};
}

Status Memory::MapPayload(UniqueFd file) {
  payload_fd_ = std::move(file);
  struct stat status{};
  if (fstat(payload_fd_.get(), &status) != 0 ||
      static_cast<std::uint64_t>(status.st_size) < options_.payload_bytes) {
    return Fail(Code::kIncompatible, "the running owner's payload is smaller than its capacity");
  }
  // The file may be larger than the capacity, as in MakePayload.
  KVCOVE_ASSIGN(payload_, Mapping::Map(payload_fd_.get(), static_cast<std::size_t>(status.st_size),
                                       Mapping::Access::kReadWrite));
  return {};
}

Result<Memory::Files> Memory::CopyFiles() {
  Files files;
  KVCOVE_ASSIGN(files.header, Copy(header_fd_.get()));
  KVCOVE_ASSIGN(files.payload, Copy(payload_fd_.get()));
  const MutexLock lock(mutex);
  for (const auto& [number, page] : pages_) {
    KVCOVE_ASSIGN(UniqueFd copy, Copy(page.fd.get()));
    files.pages.emplace_back(number, std::move(copy));
  }
  return files;
}

Result<bool> Memory::Restore(StateReader& ar, StateReader& policies,
                             std::vector<std::pair<SessionNumber, UniqueFd>> pages) {
  std::map<SessionNumber, Core::SessionMemory> mapped;
  const MutexLock lock(mutex);
  for (auto& [number, fd] : pages) {
    KVCOVE_ASSIGN(Mapping map,
                  Mapping::Map(fd.get(), segment::kSessionFileBytes, Mapping::Access::kReadWrite));
    mapped[number] = {.page = reinterpret_cast<segment::SessionPage*>(map.data()),
                      .staging = segment::StagingOf(map.data(), map.size())};
    pages_.emplace(number, SessionFile{.map = std::move(map), .fd = std::move(fd)});
  }
  return core_->Load(ar, policies, mapped);
}

// ---- the core

Status Memory::OpenCore(const CoreOptions& options) {
  const MutexLock lock(mutex);
  KVCOVE_ASSIGN(core_, Core::Open(options, header_, payload_.data(), clock_));
  return {};
}

// Notifies within the hold, as its callers hold the lock: Owner::AwaitGeneration looks again after
// it, and cannot miss the update.
void Memory::SetSlots(const Id128& incarnation, const std::vector<SlotUpdate>& updates) {
  core().SetSlots(incarnation, updates);
  published.NotifyAll();
}

void Memory::PublishRoom() {
  header_.header().free_bytes.store(core_->free_bytes(), std::memory_order_relaxed);
}

void Memory::AddPopulated() {
  core_->AddPayloadBelow(std::min(populator_->done_bytes(), options_.payload_bytes));
}

bool Memory::Populated() {
  const MutexLock lock(mutex);
  return core_->added_bytes() >= options_.payload_bytes;
}

// ---- the janitor's rest

bool Memory::AwaitUse(std::int64_t at_most_ns) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(at_most_ns);
  const MutexLock lock(mutex);
  while (!used_ && first_use_.WaitUntil(mutex, until)) {
  }
  return used_;
}

void Memory::EndRest() {
  const MutexLock lock(mutex);
  NoteUse();
}

// ---- sessions

Result<Memory::Grant> Memory::AddSession(std::int32_t pid) {
  Grant grant;
  KVCOVE_ASSIGN(grant.page, CreateMemoryFile("kvcove-session", segment::kSessionFileBytes));
  KVCOVE_ASSIGN(Mapping page, Mapping::Map(grant.page.get(), segment::kSessionFileBytes,
                                           Mapping::Access::kReadWrite));
  segment::FormatSessionPage(page.data());
  grant.mapped = reinterpret_cast<segment::SessionPage*>(page.data());
  // The session gets `grant.page`; this copy is for a successor's process (CopyFiles).
  UniqueFd kept(fcntl(grant.page.get(), F_DUPFD_CLOEXEC, 0));
  if (!kept.valid()) return FailErrno(Code::kLimit, "a descriptor for a session's page");
  const MutexLock lock(mutex);
  grant.number = core().AddSession(grant.mapped, pid, segment::StagingOf(page.data(), page.size()));
  pages_.emplace(grant.number, SessionFile{.map = std::move(page), .fd = std::move(kept)});
  return grant;
}

void Memory::EndSession(SessionNumber number) {
  const MutexLock lock(mutex);
  core().EndSession(number);
  pages_.erase(number);  // unmaps the page: the core has dropped it before
}

// ---- pages

void Memory::StartPopulating() {
  const OnNode on_node(options_.place);
  if (options_.populate) populator_->Start();
}

void Memory::PausePopulating() { (void)populator_->StopWithin(kPopulatorNs); }

void Memory::EnsurePopulated(std::span<const PutResult> results) {
  const segment::Granule granule = header_.granule();
  for (const PutResult& result : results) {
    for (const Extent& extent : result.extents) {
      const Status ensured =
          populator_->Ensure(granule.BytesOf(extent.start), granule.BytesOf(extent.count));
      if (ensured) continue;
      // The put continues: its writer causes the page faults, and its control group pays.
      if (const auto lines = unpopulated_.Due(clock_.NowNs()); lines > 0) {
        LogWarn("memory for a put could not be populated: {} ({} times)",
                ensured.error().ToString(), lines);
      }
      return;
    }
  }
}

}  // namespace kvcove::owner
