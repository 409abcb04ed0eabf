// SPDX-License-Identifier: Apache-2.0
// An owner's memory goes to another process (docs/upgrade.md). The one that gives is frozen:
// nothing changes but the lease, which it renews until the other one may. Readers see none of it.
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <thread>

#include "kvcove/base/log.h"
#include "kvcove/base/posix.h"
#include "kvcove/base/read_only_copy.h"
#include "kvcove/base/size.h"
#include "kvcove/owner/owner.h"
#include "kvcove/segment/reader.h"
#include "kvcove/wire/carry_fields.h"

namespace kvcove::owner {
namespace {

// A slice takes a fraction of a millisecond. A thread that a host does not run for so long hurts
// nothing but the time that the hand-over takes.
constexpr std::int64_t kPopulatorNs = 2 * kSecond;
// What is evicted goes on to be queued meanwhile, so a disk that is slow is not waited for.
constexpr std::int64_t kDrainDisksNs = 2 * kSecond;
// Puts wait meanwhile. What is not written then is dropped.
constexpr std::int64_t kPauseDisksNs = 200 * kMillisecond;

Result<UniqueFd> Copy(int fd) {
  UniqueFd copy(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return FailErrno(Code::kLimit, "a descriptor for an upgrade");
  return copy;
}

}  // namespace

// ---- the one that gives

void Owner::Freeze() {
  {
    const MutexLock lock(stop_mutex_);
    frozen_ = true;
    stop_changed_.NotifyAll();
  }
  if (janitor_.joinable()) janitor_.join();
}

void Owner::Thaw() {
  waits_end_ = false;
  link_ends_ = false;
  {
    const MutexLock lock(stop_mutex_);
    if (!frozen_) return;
    frozen_ = false;
    lease_over_ = false;
  }
  if (std::exchange(disks_paused_, false)) {
    disks_.clear();
    StartAgain([this] { return StartDisks(); });
  }
  StartAgain([this] { return StartThreads(); });
}

void Owner::PausePopulating() { (void)populator_->StopWithin(kPopulatorNs); }

void Owner::StartPopulating() {
  const OnNode on_node(options_.place);
  if (options_.populate) populator_->Start();
}

void Owner::StopLease() {
  {
    const MutexLock lock(stop_mutex_);
    lease_over_ = true;
    stop_changed_.NotifyAll();
  }
  if (lease_.joinable()) lease_.join();
  header_.header().lease_deadline_ns.store(clock_.NowNs() + options_.lease_ns,
                                           std::memory_order_release);
}

Status Owner::Save(StateWriter& ar, StateWriter& policies) {
  std::vector<std::uint64_t> tenants;
  for (const auto& tenant : slot_tenants_) tenants.push_back(tenant.load());
  std::uint64_t applied = applied_;
  HandedDisks disks = HandOverDisks();
  CarryAll(ar, tenants, applied, disks);
  for (std::size_t i = 0; i < disks.shares.size(); ++i) CarryOne(ar, (*tiers_)[i].inventory());
  const MutexLock lock(mutex_);
  if (core_->lent()) return Fail(Code::kInProgress, "a transfer to another host is under way");
  core_->Save(ar, policies);
  return {};
}

Result<Owner::Files> Owner::CopyFiles() {
  Files files;
  KVCOVE_ASSIGN(files.header, Copy(header_fd_.get()));
  KVCOVE_ASSIGN(files.payload, Copy(payload_fd_.get()));
  if (disk_lock_.valid()) {
    KVCOVE_ASSIGN(files.disk_lock, Copy(disk_lock_.get()));
  }
  const MutexLock lock(mutex_);
  for (const auto& [number, page] : pages_) {
    KVCOVE_ASSIGN(UniqueFd copy, Copy(page.fd.get()));
    files.pages.emplace_back(number, std::move(copy));
  }
  return files;
}

// ---- the one that takes

Result<std::unique_ptr<Owner>> Owner::Map(const OwnerOptions& options, Files files,
                                          const Clock& clock) {
  std::unique_ptr<Owner> owner(new Owner(options, clock));
  const std::uint64_t header_bytes =
      segment::HeaderFileBytes({.max_objects = options.max_objects,
                                .payload_bytes = options.memory_bytes,
                                .granule_bytes = options.granule_bytes,
                                .tier_objects = owner->TierObjects()});
  owner->header_fd_ = std::move(files.header);
  owner->payload_fd_ = std::move(files.payload);
  KVCOVE_ASSIGN(owner->reader_fd_, ReadOnlyCopy(owner->header_fd_.get()));
  KVCOVE_ASSIGN(owner->header_map_,
                Mapping::Map(owner->header_fd_.get(), header_bytes, Mapping::Access::kReadWrite));
  KVCOVE_ASSIGN(owner->header_,
                segment::HeaderView::Open(owner->header_map_.data(), owner->header_map_.size()));
  if (owner->header_.header().payload_bytes != options.memory_bytes ||
      owner->header_.header().header_bytes != header_bytes ||
      owner->header_.granule().bytes() != options.granule_bytes) {
    return Fail(Code::kIncompatible, "the running owner's segment has other sizes");
  }
  struct stat status{};
  if (fstat(owner->payload_fd_.get(), &status) != 0 ||
      static_cast<std::uint64_t>(status.st_size) < options.memory_bytes) {
    return Fail(Code::kIncompatible, "the running owner's payload is smaller than its capacity");
  }
  // Huge pages come whole: the file may be larger than the capacity.
  KVCOVE_ASSIGN(owner->payload_,
                Mapping::Map(owner->payload_fd_.get(), static_cast<std::size_t>(status.st_size),
                             Mapping::Access::kReadWrite));
  owner->MakePopulator();
  owner->MakeTiers();
  KVCOVE_TRY(owner->OpenCore());
  return owner;
}

Result<bool> Owner::Load(StateReader& ar, StateReader& policies, Files files) {
  std::vector<std::uint64_t> tenants;
  std::uint64_t applied = 0;
  CarryAll(ar, tenants, applied, handed_);
  if (handed_.shares.size() != options_.disks.size()) {
    return Fail(Code::kIncompatible, "the running owner has another number of disks");
  }
  for (std::size_t i = 0; i < handed_.shares.size(); ++i) CarryOne(ar, (*tiers_)[i].inventory());
  disk_lock_ = std::move(files.disk_lock);
  for (std::size_t i = 0; i < std::min<std::size_t>(tenants.size(), kMaxSlots); ++i) {
    slot_tenants_[i].store(tenants[i]);
  }
  applied_ = applied;
  std::map<SessionNumber, Core::SessionMemory> pages;
  const MutexLock lock(mutex_);
  for (auto& [number, fd] : files.pages) {
    KVCOVE_ASSIGN(Mapping map,
                  Mapping::Map(fd.get(), segment::kSessionFileBytes, Mapping::Access::kReadWrite));
    pages[number] = {.page = reinterpret_cast<segment::SessionPage*>(map.data()),
                     .staging = segment::StagingOf(map.data(), map.size())};
    pages_.emplace(number, SessionFile{.map = std::move(map), .fd = std::move(fd)});
  }
  KVCOVE_ASSIGN(const bool kept, core_->Load(ar, policies, pages));
  promoter_ = core_->promoter();
  const MutexLock report_lock(report_mutex_);
  report_ = core_->Report();
  return kept;
}

// ---- disks

void Owner::DrainDisks() const {
  if (!disks_open_) return;
  const std::int64_t until_ns = clock_.NowNs() + kDrainDisksNs;
  for (std::size_t i = 0; i < tiers_->size(); ++i) {
    const Tiering& tiering = (*tiers_)[i];
    while ((tiering.Opening() || !tiering.Idle()) && clock_.NowNs() < until_ns) {
      std::this_thread::sleep_for(std::chrono::nanoseconds(kMillisecond));
    }
  }
}

bool Owner::DisksOpening() const {
  for (std::size_t i = 0; tiers_ != nullptr && i < tiers_->size(); ++i) {
    if ((*tiers_)[i].Opening()) return true;
  }
  return false;
}

// What is stored meanwhile would be unknown to the next process, so that the disk had to be
// emptied.
Status Owner::MayPauseDisks() {
  bool settled = false;
  {
    const MutexLock lock(disk_mutex_);
    settled = disk_state_ == DiskState::kSettled;
  }
  for (std::size_t i = 0; tiers_ != nullptr && i < tiers_->size(); ++i) {
    settled = settled && !(*tiers_)[i].Telling();
  }
  if (settled && !DisksOpening()) return {};
  return Fail(Code::kInProgress, "its disk is still being opened; try again");
}

Status Owner::PauseDisks() {
  if (!disks_open_) return {};
  disks_open_ = false;
  disks_paused_ = true;
  rereads_zones_ = true;
  for (const auto& disk : disks_) {
    if (disk != nullptr) disk->BeginStop(kPauseDisksNs);
  }
  Status paused;
  paused_disks_.assign(disks_.size(), Id128{});
  for (std::size_t i = 0; i < disks_.size(); ++i) {
    Tiering& tiering = (*tiers_)[i];
    const Id128 number = disks_[i] != nullptr ? disks_[i]->facts().disk : Id128{};
    if (disks_[i] != nullptr && !disks_[i]->AwaitStop()) {
      disk_hangs_ = true;
      (void)disks_[i].release();
      paused = Fail(Code::kUnavailable,
                    fmt::format("the disk {} hangs; try again", options_.disks[i].path));
    }
    disks_[i].reset();
    if (tiering.Pause()) paused_disks_[i] = number;
    // What is stored before it is open again may be stored over what it holds. Should the process
    // be killed then, the next start must not find that.
    const Status struck = known_disks_->Forget(tiering.shares(), [&] { tiering.Struck(); });
    if (!struck) paused = struck;
  }
  return paused;
}

HandedDisks Owner::HandOverDisks() {
  HandedDisks disks;
  if (tiers_ == nullptr) return disks;
  disks.seed = tiers_->common().tags.seed();
  for (std::size_t i = 0; i < tiers_->size(); ++i) disks.shares.push_back((*tiers_)[i].shares());
  disks.numbers = paused_disks_;
  if (!options_.cluster) return disks;
  for (std::size_t i = 0; i < tiers_->size(); ++i) {
    disks.asides.push_back((*tiers_)[i].aside().value_or(""));
  }
  disks.slots = (*tiers_)[0].Slots();
  disks.directory = disk_directory_;
  const MutexLock lock(disk_mutex_);
  disks.facts = facts_;
  return disks;
}

// Goes on where it failed before.
Status Owner::StartDisks() {
  Promoter& promoter = *this;
  bool voids = false;
  if (options_.cluster) {
    disk_place_ = ClusterPlace();  // the master may have voided what was there
    const MutexLock lock(disk_mutex_);
    voids = voids_;
  }
  for (std::size_t i = disks_.size(); i < tiers_->size(); ++i) {
    FoundDisk path{.path = disklog::DiskFileOf(options_.disks[i].path), .device = {}, .super = {}};
    auto tier = std::make_unique<Tier>(std::move(path), disk_place_, (*tiers_)[i], promoter, clock_,
                                       options_.tier);
    if (!voids) (*tiers_)[i].UseAnew();
    KVCOVE_TRY(tier->Resume(i < paused_disks_.size() ? paused_disks_[i] : Id128{}));
    disks_.push_back(std::move(tier));
  }
  disks_open_ = true;
  return {};
}

Status Owner::ResumeDisks(const TierPlace& place) {
  if (tiers_ == nullptr) return {};
  known_disks_ = place.known;
  disk_place_ = place;
  tiers_->common().tags.Begin(handed_.seed);
  tiers_->SetShares(handed_.shares);
  paused_disks_ = handed_.numbers;
  disks_.clear();
  return StartDisks();
}

// As if its own opener had done it: `settled` from the start, for the core knows all generations.
// What is set aside is emptied and used again: memory has newer values, and may have applied
// removals, that the disk does not know of.
Status Owner::ResumeClusterDisks() {
  if (tiers_ == nullptr) return {};
  known_disks_ = std::make_shared<KnownDisks>(handed_.directory);
  disk_directory_ = handed_.directory;
  {
    const MutexLock lock(disk_mutex_);
    facts_ = handed_.facts;
  }
  rereads_zones_ = true;
  {
    const MutexLock lock(mutex_);
    tiers_->SetSlots(handed_.slots);
  }
  tiers_->SetShares(handed_.shares);
  for (std::size_t i = 0; i < handed_.asides.size(); ++i) {
    if (!handed_.asides[i].empty()) (*tiers_)[i].Void(handed_.asides[i]);
  }
  return ResumeDisks(ClusterPlace());
}

// ---- in a cluster

void Owner::ForgetCallers() {
  const MutexLock lock(outbox_mutex_);
  for (Listing& listing : outbox_) listing.done = [](std::span<const Code>) {};
}

void Owner::EnqueueWaiting(const std::set<std::uint64_t>& asked) {
  std::vector<Pending> pending;
  {
    const MutexLock lock(mutex_);
    pending = core_->TakePending();
  }
  for (const Pending& one : pending) {
    if (!asked.contains(one.reservation)) Enqueue({one}, [](std::span<const Code>) {});
  }
}

}  // namespace kvcove::owner
