// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/disk/owner_disks.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "kvcove/base/interrupt.h"
#include "kvcove/base/left_behind.h"
#include "kvcove/base/log.h"
#include "kvcove/base/size.h"

namespace kvcove::owner {
namespace {

constexpr std::int64_t kDrainNs = 10 * kSecond;
constexpr std::uint64_t kLeastKeepingQueueBytes = 16 * kMiB;
// Bounded, because evictions continue to fill the queue: a slow disk might never drain it.
constexpr std::int64_t kDrainForUpgradeNs = 2 * kSecond;
// Puts wait meanwhile. Values that are not written by the end are dropped.
constexpr std::int64_t kPauseNs = 200 * kMillisecond;
// For writes of the note that are under way when an upgrade begins, and for those of the upgrade.
constexpr std::int64_t kAwaitNoteNs = 200 * kMillisecond;
constexpr std::int64_t kPauseStrikesNs = kSecond;
// At most this time counts between two ticks: this process may have been stopped.
constexpr std::int64_t kLongestWatchNs = 100 * kMillisecond;

}  // namespace

OwnerDisks::OwnerDisks(const DisksOptions& options, Memory& memory, const Clock& clock)
    : options_(options),
      memory_(memory),
      clock_(clock),
      set_(MakeSet()),
      logged_aside_(options.disks.size()) {}

std::unique_ptr<DiskSet> OwnerDisks::MakeSet() const {
  const std::size_t disks = options_.disks.size();
  // Bytes that one call promotes, and bytes that wait to be written, are bounded for the whole
  // owner: each disk has an equal part.
  const std::uint64_t share = options_.memory_bytes / 8 / std::max<std::size_t>(disks, 1);
  TieringOptions each;
  each.hang_ns = options_.tier.hang_ns;
  each.listed = options_.cluster;
  each.quotas = options_.quotas;
  each.batch_bytes = std::max<std::uint64_t>(share, kMiB);
  // With kKeep the queue drops nothing, so it needs room for values of any usual size.
  const std::uint64_t least =
      options_.admit == DiskAdmit::kKeep ? kLeastKeepingQueueBytes : 4 * kMiB;
  each.queue_bytes = std::clamp<std::uint64_t>(share, least, each.queue_bytes);
  DemotionOptions demotions{.admit = options_.admit, .bytes_per_second = options_.write_rate};
  for (const disklog::DiskSpec& disk : options_.disks) demotions.disk_bytes += disk.size_bytes;
  return std::make_unique<DiskSet>(disks, each, demotions, memory_.header(), memory_.payload(),
                                   clock_);
}

DiskThread* OwnerDisks::ThreadOf(std::size_t disk) const {
  return open_ ? threads_[disk].get() : nullptr;
}

std::uint64_t OwnerDisks::changes() const {
  std::uint64_t changes = known_ == nullptr ? 0 : known_->writes();
  for (std::size_t i = 0; i < set_->size(); ++i) changes += (*set_)[i].use().changes();
  return changes;
}

void OwnerDisks::Wake() const {
  if (!open_) return;
  for (std::size_t i = 0; i < threads_.size(); ++i) {
    if (threads_[i] != nullptr && (*set_)[i].HasWork()) threads_[i]->Wake();
  }
}

void OwnerDisks::Tick() {
  const std::int64_t now_ns = clock_.NowNs();
  const std::int64_t elapsed_ns =
      std::clamp<std::int64_t>(now_ns - std::exchange(watched_ns_, now_ns), 0, kLongestWatchNs);
  WatchStrikes(elapsed_ns);
  if (!open_) return WatchOpening(elapsed_ns);
  for (std::size_t i = 0; i < threads_.size(); ++i) {
    if (threads_[i] == nullptr) continue;
    Tiering& tiering = (*set_)[i];
    // The disk's thread may wait for the note's file system.
    if (known_->is_void() && tiering.use().state().must_be_struck()) tiering.use().Struck();
    if (tiering.use().Tick(clock_.NowNs())) threads_[i]->Wake();
    const DiskState state = tiering.use().state();
    if (state.aside() == logged_aside_[i]) continue;
    logged_aside_[i] = state.aside();
    const std::string& path = threads_[i]->path();
    if (state.aside()) {
      LogError("disk {} is set aside: {}. {}{}", path, state.why(),
               threads_.size() == 1 ? "Memory continues" : "Memory and the other disks continue",
               state.tries_again() ? ", and the disk is tried again from time to time"
                                   : "; restart this owner to use the disk again");
    } else {
      LogWarn("disk {} is used again{}", path,
              state.away() ? " once the master has accepted its contents" : "");
    }
  }
}

// A file system that hangs is no better than one that fails.
void OwnerDisks::WatchStrikes(std::int64_t elapsed_ns) {
  const std::uint64_t strike = strikes_.under_way();
  strike_age_ns_ = std::exchange(strike_, strike) == strike ? strike_age_ns_ + elapsed_ns : 0;
  if (strike != 0 && strike_age_ns_ >= options_.tier.strike_ns) known_->WantVoid();
}

// A disk may take minutes to read, with progress all the time. The opener waits for all disks and
// for the note, so one that hangs is enough.
void OwnerDisks::WatchOpening(std::int64_t elapsed_ns) {
  if (!opens_) return;
  std::uint64_t progress = 0;
  bool hangs = false;
  for (std::size_t i = 0; i < set_->size(); ++i) {
    const DiskUse& use = (*set_)[i].use();
    use.ages()->Advance(elapsed_ns);
    progress += use.progress();
    hangs = hangs || use.DeviceHangs();
  }
  const bool stalls = std::exchange(opening_progress_, progress) == progress;
  opening_age_ns_ = stalls ? opening_age_ns_ + elapsed_ns : 0;
  opening_hangs_ = hangs || opening_age_ns_ > options_.tier.hang_ns;
}

void OwnerDisks::Unmount() {
  for (std::size_t i = 0; i < set_->size(); ++i) (*set_)[i].use().Unmount("it was unmounted");
}

// ---- opening and stopping

Status OwnerDisks::Open(const TierPlace& place, Promoter& promoter) {
  if (none()) return place.known->Write({});  // former disks miss this run
  known_ = place.known;
  KVCOVE_TRY(StartStrikes());
  std::vector<OpenedTier> opened =
      OpenTiers(options_.disks, place, *set_, promoter, clock_, options_.tier);
  for (const OpenedTier& one : opened) KVCOVE_TRY(one.status);
  for (OpenedTier& one : opened) threads_.push_back(std::move(one.tier));
  for (const auto& thread : threads_) KVCOVE_TRY(thread->Start());
  open_ = true;
  return {};
}

void OwnerDisks::OpenEach(const TierPlace& place, Promoter& promoter,
                          const std::atomic<bool>& stops) {
  opens_ = true;
  StartAgain([&] { return stops ? Status() : StartStrikes(); });
  for (OpenedTier& one : OpenTiers(options_.disks, place, *set_, promoter, clock_, options_.tier)) {
    StartAgain([&] { return stops ? Status() : one.tier->Start(); });
    threads_.push_back(std::move(one.tier));
  }
  open_ = true;
}

void OwnerDisks::Stop() {
  for (const auto& thread : threads_) {
    if (thread != nullptr) thread->BeginStop(kDrainNs);
  }
  for (std::size_t i = 0; i < threads_.size(); ++i) {
    if (threads_[i] != nullptr && !threads_[i]->AwaitStop()) hanging_.push_back(i);
  }
  hangs_ = hangs_ || !hanging_.empty();
}

void OwnerDisks::LeaveHanging() {
  if (!strikes_.Stop()) hangs_ = true;
  for (const std::size_t disk : std::exchange(hanging_, {})) LeaveBehind(std::move(threads_[disk]));
  if (!hangs_ || set_->size() == 0) return;
  open_ = false;
  // Threads that hang keep the old set; every other caller finds an empty one from here on.
  memory_.LeaveHeader();
  LeaveBehind(
      std::exchange(set_, std::make_unique<DiskSet>(0, TieringOptions(), DemotionOptions(),
                                                    memory_.header(), memory_.payload(), clock_)));
}

// ---- the note

// The thread owns the note. If it is left behind, so is the set (LeaveHanging).
Status OwnerDisks::StartStrikes() {
  return strikes_.Start([known = known_, set = set_.get()](std::size_t disk) {
    Tiering& tiering = (*set)[disk];
    return known->Forget(tiering.shares(), [&] { tiering.use().Struck(); });
  });
}

Status OwnerDisks::ForgetAll() {
  return known_->Write({}, [&] {
    for (std::size_t i = 0; i < set_->size(); ++i) (*set_)[i].use().Struck();
  });
}

Status OwnerDisks::AwaitStruck(std::size_t disk, std::shared_ptr<const Strike>& strike,
                               std::int64_t deadline_ns) {
  // The file system of the note may hang for ever.
  if (known_->is_void()) {
    (*set_)[disk].use().Struck();
    strike = nullptr;
    return {};
  }
  return strikes_.Prove(disk, strike, LeftNs(deadline_ns, clock_));
}

// A disk that proves nothing any more is struck from the note, durably: no start uses its contents
// then, so the removal is proven all the same. Looks at all disks, so that strikes begin at once.
Status OwnerDisks::AwaitRemoval(DisksRemoval& removal, std::int64_t deadline_ns) {
  if (deadline_ns != 0) Wake();
  Status outcome;
  removal.strikes.resize(removal.parts.size());
  // The set is empty once the owner has stopped while a disk hung.
  for (std::size_t i = 0; i < std::min(removal.parts.size(), set_->size()); ++i) {
    auto& part = removal.parts[i];
    if (part == nullptr) continue;
    Status proven = (*set_)[i].removals().Await(*part, deadline_ns);
    if (!proven && proven.error().code == Code::kUnavailable) {
      const Status struck = AwaitStruck(i, removal.strikes[i], deadline_ns);
      if (struck) {
        part = nullptr;  // the disk's thread may still write to the part
        continue;
      }
      proven = Fail(struck.error().code, proven.error().detail + "; and " + struck.error().detail);
    }
    if (!proven && (outcome || outcome.error().code == Code::kTimeout)) outcome = proven;
  }
  return outcome;
}

// ---- an upgrade

void OwnerDisks::Drain() const {
  if (!open_) return;
  const std::int64_t until_ns = clock_.NowNs() + kDrainForUpgradeNs;
  for (std::size_t i = 0; i < set_->size(); ++i) {
    const Tiering& tiering = (*set_)[i];
    const auto busy = [&] {
      return tiering.use().state().opening() || !tiering.Idle() || noting();
    };
    while (busy() && clock_.NowNs() < until_ns) {
      std::this_thread::sleep_for(std::chrono::nanoseconds(kMillisecond));
    }
  }
}

bool OwnerDisks::AwaitNote() const {
  const std::int64_t until_ns = clock_.NowNs() + kAwaitNoteNs;
  while (noting() && clock_.NowNs() < until_ns) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(kMillisecond));
  }
  return strikes_.AwaitIdle(LeftNs(until_ns, clock_)) && !noting();
}

bool OwnerDisks::noting() const {
  return open_ && std::ranges::any_of(threads_, [](const auto& thread) {
           return thread != nullptr && thread->noting();
         });
}

Status OwnerDisks::Pause() {
  if (!open_) return {};
  open_ = false;  // first: no other thread reads `threads_` while its elements end
  paused_ = true;
  for (const auto& thread : threads_) {
    if (thread != nullptr) thread->BeginStop(kPauseNs, /*pauses=*/true);
  }
  Status paused;
  numbers_.assign(threads_.size(), Id128{});
  openings_.assign(threads_.size(), Id128{});
  for (std::size_t i = 0; i < threads_.size(); ++i) {
    Tiering& tiering = (*set_)[i];
    KnownDisk disk = threads_[i] != nullptr ? threads_[i]->facts() : KnownDisk();
    if (threads_[i] != nullptr && !threads_[i]->AwaitStop()) {
      hangs_ = true;
      LeaveBehind(std::move(threads_[i]));
      paused = Fail(Code::kUnavailable,
                    fmt::format("the disk {} hangs; try again", options_.disks[i].path));
    }
    // Its clean end has drawn another opening.
    if (threads_[i] != nullptr) disk = threads_[i]->facts();
    threads_[i].reset();
    if (tiering.use().Pause()) {
      numbers_[i] = disk.disk;
      openings_[i] = disk.opening;
    }
  }
  // Until a disk is open again, values may be stored over its keys. After a kill, the next start
  // must not find the older ones.
  const std::int64_t struck_by_ns = clock_.NowNs() + kPauseStrikesNs;
  for (std::size_t i = 0; i < threads_.size(); ++i) {
    std::shared_ptr<const Strike> strike;
    if (const Status struck = AwaitStruck(i, strike, struck_by_ns); !struck) paused = struck;
  }
  return paused;
}

bool OwnerDisks::TakePaused() {
  if (!std::exchange(paused_, false)) return false;
  threads_.clear();
  return true;
}

HandedDisks OwnerDisks::HandOver() const {
  HandedDisks handed;
  if (set_->size() == 0) return handed;
  handed.seed = set_->common().tags.seed();
  for (std::size_t i = 0; i < set_->size(); ++i) handed.shares.push_back((*set_)[i].shares());
  handed.numbers = numbers_;
  handed.openings = openings_;
  if (!options_.cluster) return handed;
  for (std::size_t i = 0; i < set_->size(); ++i) {
    // A disk that was paused while it was being reported has no reason for that any more. The
    // master does not know its objects, and other owners may have newer values, so the successor
    // must not use it as it is.
    const DiskState state = (*set_)[i].use().state();
    const bool unreported = state.away() && state.why().empty();
    handed.asides.push_back(unreported ? "the master has not accepted its contents" : state.why());
  }
  handed.slots = (*set_)[0].removals().Slots();
  return handed;
}

// Voids disks that are set aside, so that they are emptied and used again: memory has newer values,
// and may have applied removals, that these disks have missed.
void OwnerDisks::Adopt(const HandedDisks& handed) {
  if (none()) return;
  if (options_.cluster) {
    const MutexLock lock(memory_.mutex);
    set_->SetSlots(handed.slots);
  }
  set_->common().tags.Begin(handed.seed);
  set_->SetShares(handed.shares);
  for (std::size_t i = 0; i < handed.asides.size(); ++i) {
    if (!handed.asides[i].empty()) (*set_)[i].use().Void(handed.asides[i]);
  }
  numbers_ = handed.numbers;
  openings_ = handed.openings;
}

Status OwnerDisks::StartPaused(const TierPlace& place, Promoter& promoter, bool voids) {
  if (!none()) KVCOVE_TRY(StartStrikes());
  for (std::size_t i = threads_.size(); i < set_->size(); ++i) {
    FoundDisk path{.path = disklog::DiskFileOf(options_.disks[i].path), .device = {}, .super = {}};
    auto thread = std::make_unique<DiskThread>(std::move(path), place, (*set_)[i], promoter, clock_,
                                               options_.tier);
    if (!voids) (*set_)[i].use().UseAnew();
    KnownDisk disk;
    if (i < numbers_.size()) disk.disk = numbers_[i];
    if (i < openings_.size()) disk.opening = openings_[i];
    KVCOVE_TRY(thread->Resume(disk));
    threads_.push_back(std::move(thread));
  }
  open_ = !none();
  return {};
}

}  // namespace kvcove::owner
