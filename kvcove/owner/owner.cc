// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/owner.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <limits>

#include "kvcove/base/log.h"
#include "kvcove/base/random.h"
#include "kvcove/base/read_only_copy.h"
#include "kvcove/base/size.h"
#include "kvcove/owner/memory_budget.h"
#include "kvcove/segment/leftovers.h"

namespace kvcove::owner {
namespace {

constexpr std::int64_t kJanitorPeriodNs = 5 * kMillisecond;
constexpr std::uint64_t kTrimOutbox = 64;
constexpr std::uint64_t kFirstBuckets = 4 * kKiB;  // each later one is written before it is read

// Before anything is touched. Memory that is not bound serves as well, only farther away.
void BindToNode(const Mapping& memory, const NodePlace& place) {
  if (!place.bound()) return;
  if (const Status bound = BindMemory(memory.data(), memory.size(), place.node); !bound) {
    LogWarn("{}; it lies where it is touched first ('kvcove doctor' says more)",
            bound.error().detail);
  }
}

}  // namespace

Result<OwnerOptions> Owner::Complete(const OwnerOptions& given) {
  OwnerOptions options = given;
  if (options.memory_bytes < kMiB || options.memory_bytes > segment::kMaxPayloadBytes) {
    return Fail(Code::kInvalid,
                fmt::format("a memory budget of {}; give between 1MiB and {}",
                            FormatSize(given.memory_bytes), FormatSize(segment::kMaxPayloadBytes)));
  }
  KVCOVE_ASSIGN(const segment::Granule granule,
                segment::Granule::Of(options.granule_bytes, options.memory_bytes));
  options.granule_bytes = granule.bytes();
  options.memory_bytes = options.memory_bytes / granule.bytes() * granule.bytes();
  if (options.max_objects == 0) {
    options.max_objects = std::clamp<std::uint64_t>(options.memory_bytes / 512, 1024, 1ULL << 27);
  }
  return options;
}

Result<std::unique_ptr<Owner>> Owner::Open(const OwnerOptions& given, const Clock& clock) {
  KVCOVE_ASSIGN(const OwnerOptions options, Complete(given));
  std::unique_ptr<Owner> owner(new Owner(options, clock));
  KVCOVE_TRY(owner->MakeFiles());
  owner->MakeTiers();
  KVCOVE_TRY(owner->OpenCore());
  return owner;
}

Status Owner::OpenCore() {
  const CoreOptions core{.payload_bytes = options_.memory_bytes,
                         .max_objects = options_.max_objects,
                         .policy = options_.policy,
                         .quotas = options_.quotas,
                         .clear_foreign = options_.tenants,
                         .listed = options_.cluster,
                         .lower = tiers_.get()};
  const MutexLock lock(mutex_);
  KVCOVE_ASSIGN(core_, Core::Open(core, header_, payload_.data(), clock_));
  // The first renewal may be sent before the janitor has made a report. One of zeros would tell the
  // master that this owner is full.
  const MutexLock report_lock(report_mutex_);
  report_ = core_->Report();
  return {};
}

Status Owner::MakeFiles() {
  const segment::HeaderSizes sizes{.max_objects = options_.max_objects,
                                   .payload_bytes = options_.memory_bytes,
                                   .granule_bytes = options_.granule_bytes,
                                   .tier_objects = TierObjects()};
  const std::uint64_t header_bytes = segment::HeaderFileBytes(sizes);
  const Id128 segment_id = RandomId();
  KVCOVE_ASSIGN(header_fd_,
                CreateMemoryFile(segment::HeaderFileName(segment_id).c_str(), header_bytes));
  KVCOVE_ASSIGN(header_map_,
                Mapping::Map(header_fd_.get(), header_bytes, Mapping::Access::kReadWrite));
  BindToNode(header_map_, options_.place);
  KVCOVE_TRY(segment::FormatHeader(header_map_.data(), sizes, segment_id, RandomU64()));
  // A look-up reads any of these, also before the owner has written there: they are paid for here.
  KVCOVE_TRY(PopulatePages(
      header_map_.data(),
      reinterpret_cast<const segment::Header*>(header_map_.data())->buckets_offset + kFirstBuckets,
      Populate::kWrite));
  // What others get of the header: nobody maps that for writing.
  KVCOVE_ASSIGN(reader_fd_, ReadOnlyCopy(header_fd_.get()));
  KVCOVE_ASSIGN(header_, segment::HeaderView::Open(header_map_.data(), header_map_.size()));
  if (options_.granule_bytes > segment::kLeastGranule) {
    LogInfo(
        "memory of {} is given out in granules of {}: a value takes up to {} B more than its "
        "size, {} on average",
        FormatSize(options_.memory_bytes), FormatSize(options_.granule_bytes),
        options_.granule_bytes - 1, FormatSize(options_.granule_bytes / 2));
  }
  return MapPayload(segment_id);
}

// The file may be larger than the capacity: huge pages come whole. Nobody is given what is beyond.
Status Owner::MapPayload(const Id128& segment_id) {
  const std::string name = segment::PayloadFileName(segment_id);
  KVCOVE_ASSIGN(MemoryFile file, CreateMemoryFile(name.c_str(), options_.memory_bytes,
                                                  options_.huge_pages, HugePageHost::Read()));
  // Pages of hugetlb are allocated already, and no control group's memory limit counts them.
  if (file.pages != MemoryFile::Pages::kHugetlb) {
    MemoryBudget budget;
    if (options_.available_bytes) {
      budget.available = [bytes = *options_.available_bytes] {
        return MemoryRoom{.bytes = bytes, .limit = "this host", .most_bytes = bytes};
      };
    }
    KVCOVE_TRY(AwaitMemory(options_.memory_bytes, budget));
  }
  pages_description_ = file.Describe();
  payload_fd_ = std::move(file.fd);
  KVCOVE_ASSIGN(payload_,
                Mapping::Map(payload_fd_.get(), file.file_bytes, Mapping::Access::kReadWrite));
  BindToNode(payload_, options_.place);
  AdvisePages(payload_, file.pages);
  MakePopulator();
  return {};
}

void Owner::MakePopulator() {
  const Populator::Options defaults;
  populator_.emplace(std::span(payload_.data(), payload_.size()),
                     Populator::Options{.slice_bytes = std::max(defaults.slice_bytes,
                                                                PageBytesOf(payload_fd_.get()))});
}

Owner::~Owner() {
  StopDisks();
  Stop();
  LeaveHangingDisks();
}

Status Owner::Start() {
  {
    const MutexLock lock(stop_mutex_);
    stopping_ = false;
  }
  {
    const MutexLock lock(mutex_);
    if (!options_.cluster) core_->RenewLease(clock_.NowNs() + options_.lease_ns);
  }
  const Status started = StartThreads();
  if (!started) Stop();
  return started;
}

Status Owner::StartThreads() {
  if (!options_.cluster && !lease_.joinable()) {
    KVCOVE_ASSIGN(lease_, StartThread("kvcove-lease", [this] { RunLease(); }));
  }
  if (janitor_.joinable()) return {};
  KVCOVE_ASSIGN(janitor_, StartThread("kvcove-janitor", [this] { RunJanitor(); }));
  return {};
}

void Owner::Stop() {
  {
    const MutexLock lock(stop_mutex_);
    // Never started: the memory may be another process's, that was not taken over after all.
    if (stopping_) return;
  }
  // First: what was evicted is written while the janitor still watches the disk.
  StopDisks();
  {
    const MutexLock lock(stop_mutex_);
    stopping_ = true;
    stop_changed_.NotifyAll();
  }
  for (std::thread* thread : {&janitor_, &lease_}) {
    if (thread->joinable()) thread->join();
  }
  LeaveHangingDisks();
  if (populator_) populator_->Stop();
  Core::Voided voided;
  {
    const MutexLock lock(mutex_);
    if (core_ != nullptr) core_->RenewLease(0);
    if (core_ != nullptr) voided = core_->TakeVoided();
  }
  SayVoided(voided);
}

// Liveness has its own thread: an expensive request never costs a lease.
void Owner::RunLease() {
  const MutexLock lock(stop_mutex_);
  while (!stopping_ && !lease_over_) {
    // One atomic store into the header; the core's lock is not needed and not waited for.
    header_.header().lease_deadline_ns.store(clock_.NowNs() + options_.lease_ns,
                                             std::memory_order_release);
    stop_changed_.WaitFor(stop_mutex_, std::chrono::nanoseconds(options_.lease_renewal_ns));
  }
}

// While the master is away puts go on, and older ones that wait for it give way. Without a trim the
// outbox would grow with each put. A trim looks at all of it, so it comes after as many have gone
// as make up for that.
void Owner::TrimOutbox(std::uint64_t& gave_way) {
  {
    const MutexLock lock(outbox_mutex_);
    if (gave_way <= kTrimOutbox + (outbox_.size() / 2)) return;
  }
  gave_way = 0;
  std::vector<Listing> wait;
  std::vector<Listing> over;
  for (Listing& listing : TakeListings(~std::size_t{0})) {
    const MutexLock lock(mutex_);
    const bool waits = std::ranges::any_of(
        listing.pending,
        [&](const Pending& pending) KVCOVE_REQUIRES(mutex_) { return core_->Waits(pending); });
    (waits ? wait : over).push_back(std::move(listing));
  }
  ReturnListings(std::move(wait));
  for (const Listing& listing : over) {
    listing.done(std::vector<Code>(listing.pending.size(), Code::kNoSpace));
  }
}

void Owner::RunJanitor() {
  std::uint64_t gave_way = 0;
  while (true) {
    bool more = false;
    wire::RenewRequest report;
    Core::Voided voided;
    {
      const MutexLock lock(mutex_);
      // Here and not by the populating thread, which shares no lock.
      core_->AddPayloadBelow(std::min(populator_->done_bytes(), options_.memory_bytes));
      more = core_->Tick();
      report = core_->Report();
      voided = core_->TakeVoided();
      gave_way += core_->TakeGaveWay();
      PublishRoom();
    }
    SayVoided(voided);
    TrimOutbox(gave_way);
    listed_waits_.End(clock_.NowNs(), /*all=*/!master_reachable_ || waits_end_);
    TickDisks();
    ReportDisks(report);
    {
      const MutexLock lock(report_mutex_);
      report_ = report;
    }
    const MutexLock lock(stop_mutex_);
    if (stopping_ || frozen_) return;
    stop_changed_.WaitFor(stop_mutex_, std::chrono::nanoseconds(more ? kTurnNs : kJanitorPeriodNs));
    if (stopping_ || frozen_) return;
  }
}

Result<Owner::Grant> Owner::AddSession(std::int32_t pid) {
  Grant grant;
  KVCOVE_ASSIGN(grant.page, CreateMemoryFile("kvcove-session", segment::kSessionFileBytes));
  KVCOVE_ASSIGN(Mapping page, Mapping::Map(grant.page.get(), segment::kSessionFileBytes,
                                           Mapping::Access::kReadWrite));
  segment::FormatSessionPage(page.data());
  grant.mapped = reinterpret_cast<segment::SessionPage*>(page.data());
  UniqueFd kept(fcntl(grant.page.get(), F_DUPFD_CLOEXEC, 0));
  if (!kept.valid()) return FailErrno(Code::kLimit, "a descriptor for a session's page");
  const MutexLock lock(mutex_);
  grant.number = core_->AddSession(grant.mapped, pid, segment::StagingOf(page.data(), page.size()));
  pages_.emplace(grant.number, SessionFile{.map = std::move(page), .fd = std::move(kept)});
  return grant;
}

SessionNumber Owner::AddRemoteSession() {
  const MutexLock lock(mutex_);
  return core_->AddSession(nullptr, getpid());
}

void Owner::EndSession(SessionNumber number) {
  const MutexLock lock(mutex_);
  core_->EndSession(number);
  pages_.erase(number);
}

void Owner::Publish(const Id128& incarnation, const std::vector<SlotUpdate>& updates) {
  for (const SlotUpdate& update : updates) {
    slot_tenants_[update.slot].store(TenantTag(TenantOf(update.name)), std::memory_order_release);
  }
  const MutexLock lock(mutex_);
  if (tiers_ != nullptr) tiers_->SetSlots(updates);
  if (holds_back_) {
    held_incarnation_ = incarnation;
    for (const SlotUpdate& update : updates) held_[update.slot] = update;
    return;
  }
  core_->SetSlots(incarnation, updates);
  published_.NotifyAll();
}

PoolStat Owner::Stat() {
  PoolStat stat;
  Core::StatWalk walk;
  while (true) {
    {
      const MutexLock lock(mutex_);
      if (!core_->StatSome(walk, stat)) break;
    }
    LetOthersIn();
  }
  AddDiskStat(stat);
  return stat;
}

bool Owner::Populated() {
  const MutexLock lock(mutex_);
  return core_->added_bytes() >= options_.memory_bytes;
}

}  // namespace kvcove::owner
