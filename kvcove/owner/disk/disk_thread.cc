// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/disk/disk_thread.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <utility>

#include "kvcove/base/log.h"
#include "kvcove/base/size.h"
#include "kvcove/owner/disk/moved_shares.h"

namespace kvcove::owner {
namespace {

constexpr std::int64_t kIdleWaitNs = 50 * kMillisecond;
constexpr std::int64_t kRecoveryNs = 600 * kSecond;
// For what is under way when the time to write is over.
constexpr std::int64_t kCloseNs = 2 * kSecond;
// How long the process that has handed it over may take to let go of it.
constexpr std::int64_t kPredecessorNs = 10 * kSecond;
constexpr std::int64_t kPredecessorLookNs = 20 * kMillisecond;
// While its note is to be written.
constexpr std::int64_t kSettleWaitNs = 10 * kMillisecond;
constexpr std::uint64_t kMostQueueBytes = 64ULL << 20;
constexpr std::uint32_t kZonesForStreams = 32;

disklog::LogOptions LogOptionsFor(const disklog::Superblock& super, const TierPlace& place,
                                  Tiering& tiering) {
  disklog::LogOptions options{.pool = place.pool,
                              .incarnation = place.incarnation,
                              .generations = tiering.removals().Generations(),
                              .presence = &tiering.log()};
  options.shares = tiering.log().Shares();
  options.cleaner.on_dropped = [&tiering](const disklog::LiveObject& object) {
    tiering.log().Dropped({.slot = object.slot,
                           .generation = object.generation,
                           .put = object.version,
                           .key = std::string(object.key)});
  };
  options.cleaner.worth_moving = [&tiering](const disklog::LiveObject& object,
                                            const disklog::MoveFacts& facts) {
    return tiering.log().WorthMoving(object, facts);
  };
  options.writer.queue_bytes = std::min(kMostQueueBytes, 4 * super.zone_bytes);
  options.writer.chunk_bytes = std::min<std::uint64_t>(kMiB, super.zone_bytes / 4);
  if (super.zones() < kZonesForStreams) options.writer.streams = 1;
  return options;
}

}  // namespace

DiskThread::DiskThread(FoundDisk found, TierPlace place, Tiering& tiering, Promoter& promoter,
                       const Clock& clock, TierOptions options)
    : path_(found.path),
      place_(std::move(place)),
      tiering_(tiering),
      promoter_(promoter),
      clock_(clock),
      options_(std::move(options)),
      found_(std::move(found)),
      retry_(options_.least_retry_ns, options_.most_retry_ns) {
  if (found_.device != nullptr) found_.device = Watched(std::move(found_.device));
}

std::unique_ptr<disklog::Device> DiskThread::Watched(
    std::unique_ptr<disklog::Device> device) const {
  return std::make_unique<WatchedDevice>(std::move(device), tiering_.use().ages());
}

DiskOwner DiskThread::whose() const {
  return {.pool = place_.pool,
          .incarnation = place_.incarnation,
          .data_directory = place_.known->directory()};
}

KnownDisk DiskThread::facts() const {
  const MutexLock lock(mutex_);
  return {.disk = number_, .shares = tiering_.shares()};
}

Status DiskThread::Load(const Opening& opening) {
  Status loaded = LoadFound(opening);
  if (!loaded) LetGo();
  if (loaded || loaded.error().detail.find(path_) != std::string::npos) return loaded;
  return Fail(loaded.error().code, "the disk " + path_ + ": " + loaded.error().detail);
}

Status DiskThread::LoadFound(const Opening& opening) {
  if (!opening.known) {
    // Before a master is heard of, a disk is formatted for no pool.
    if (found_.super.pool != Id128{}) {
      LogInfo(
          "disk {} starts empty{}", path_,
          opening.missed ? ": this pool has run without it, so it may hold removed values" : "");
    }
    KVCOVE_TRY(EmptyDisk(found_, whose(), opening.hash_seed));
  }
  KVCOVE_ASSIGN(auto log, OpenLog());
  if (opening.known && opening.moved != 0) {
    if (Status removed = RemoveMovedShares(*log, opening.moved); !removed) {
      if (found_.device->in_flight() > 0) {
        stuck_log_ = std::move(log);
        return removed;
      }
      LogWarn("disk {} starts empty: {}", path_, removed.error().detail);
      log.reset();
      KVCOVE_TRY(EmptyDisk(found_, whose(), opening.hash_seed));
      KVCOVE_ASSIGN(log, OpenLog());
    }
  }
  Use(std::move(log));
  return {};
}

Status DiskThread::RemoveMovedShares(disklog::Log& log, std::uint64_t shares) {
  const std::uint64_t seed = tiering_.hash_seed();
  const std::int64_t until_ns = clock_.NowNs() + kRecoveryNs;
  KVCOVE_ASSIGN(
      const std::uint64_t removed,
      RemoveMoved(log, {.goes =
                            [seed, shares](const disklog::LiveObject& object) {
                              const Id128 hash = segment::TierHash(seed, object.slot, object.key);
                              const auto tag = segment::TierTag(hash, object.generation);
                              return (segment::ShareOf(tag) & shares) != 0;
                            },
                        .name_of = [this](SlotId slot) { return tiering_.removals().NameOf(slot); },
                        .gives_up = [&] { return stops() || clock_.NowNs() >= until_ns; }}));
  LogInfo("disk {}: {} objects are another disk's from now on, and are removed here", path_,
          removed);
  return {};
}

// With all its objects known: a put of a key that the disk has is refused.
Result<std::unique_ptr<disklog::Log>> DiskThread::OpenLog() {
  disklog::Device& device = *found_.device;
  tiering_.log().Attach();
  KVCOVE_ASSIGN(auto log,
                disklog::Log::Open(device, LogOptionsFor(found_.super, place_, tiering_)));
  std::int64_t until_ns = clock_.NowNs() + kRecoveryNs;
  const auto busy = [&] {
    return (!log->recovered() && !log->unproven()) || device.in_flight() > 0;
  };
  // A device with reads under way cannot be closed: it would stay open for as long as the process
  // lives, and nobody could open the disk again. So a stop waits for them for a moment.
  bool stopped = false;
  while (busy() && clock_.NowNs() < until_ns) {
    if (stops() && !std::exchange(stopped, true)) {
      until_ns = std::min(until_ns, clock_.NowNs() + kCloseNs);
    }
    log->Poll(stopped ? kMillisecond : kIdleWaitNs);
  }
  if (!busy() && log->unproven()) {
    return Fail(Code::kUnavailable, "zones that cannot be read cannot be freed or voided either");
  }
  if (!busy()) return log;
  stuck_log_ = std::move(log);
  if (stops()) return Fail(Code::kUnavailable, "this owner stops");
  return Fail(Code::kUnavailable, "it does not answer: its zones could not be read");
}

void DiskThread::Use(std::unique_ptr<disklog::Log> log) {
  const disklog::RecoveryCounters& found = log->recovery();
  const disklog::Superblock& super = found_.super;
  LogInfo("disk {}: {} in zones of {} by {}, {} objects found, {} zones read record by record",
          path_, FormatSize(super.device_bytes), FormatSize(super.zone_bytes),
          found_.device->kind(), found.objects, found.scanned);
  if (found.emptied > 0) {
    LogWarn(
        "disk {} starts empty: {} zones cannot be read, or their headers are damaged, so it is not "
        "known what was removed",
        path_, found.lost);
  }
  const std::uint8_t streams = LogOptionsFor(super, place_, tiering_).writer.streams;
  auto disk = std::make_unique<DiskWorker>(tiering_, std::move(found_.device), std::move(log),
                                           promoter_, clock_, TierDiskOptions{.streams = streams});
  const MutexLock lock(mutex_);
  disk_ = std::move(disk);
  number_ = super.disk;
}

Status DiskThread::Start() {
  first_until_ns_ = clock_.NowNs() + kPredecessorNs;
  KVCOVE_ASSIGN(thread_, StartThread("kvcove-disk", [this] { Run(); }));
  return {};
}

Status DiskThread::Resume(const Id128& disk) {
  number_ = disk;
  return Start();
}

void DiskThread::Run() {
  while (!stopping_) {
    if (tiering_.use().state().aside()) {
      Strike();
      Rest();
    } else if (disk_ == nullptr) {
      OpenFirst();
    } else {
      disk_->Step(tiering_.use().state().unnoted_in() ? kSettleWaitNs : kIdleWaitNs);
      Settle();
    }
  }
  Drain();
  // AwaitStop's caller never destroys a DiskThread that was left behind, so its thread closes the
  // disk.
  Held held;
  {
    const MutexLock lock(mutex_);
    ended_ = true;
    if (left_behind_) held = TakeHeld();
  }
}

DiskThread::Held DiskThread::TakeHeld() {
  return {.disk = std::move(disk_), .log = std::move(stuck_log_), .device = std::move(stuck_)};
}

void DiskThread::Wake() {
  const MutexLock lock(mutex_);
  if (disk_ != nullptr) disk_->Wake();
  woken_.NotifyAll();
}

void DiskThread::OpenFirst() {
  const Status opened = OpenAgain();
  if (opened) return retry_.Works(clock_.NowNs());
  if (clock_.NowNs() >= first_until_ns_ || stuck_ != nullptr) {
    tiering_.use().SetAside(opened.error().detail);
    return;
  }
  const MutexLock lock(mutex_);
  if (!stopping_) woken_.WaitFor(mutex_, std::chrono::nanoseconds(kPredecessorLookNs));
}

// ---- its note

void DiskThread::Strike() {
  if (!tiering_.use().state().must_be_struck()) return;
  if (const Status struck = Forget(); !struck) {
    if (const auto lines = unstruck_.Due(clock_.NowNs()); lines > 0) {
      LogWarn("disk {} is set aside, but the note cannot be written to say so: {} ({} times)",
              path_, struck.error().ToString(), lines);
    }
  }
}

// A put that began before it was on may end later, over what it holds.
void DiskThread::Settle() {
  const std::optional<std::uint64_t> era = tiering_.use().state().unnoted_in();
  if (!era) return;
  const Promoter::Puts puts = promoter_.PutsUnderWay();
  if (settles_ != era) {
    settles_ = era;
    settles_from_ = puts.next;
  }
  if (puts.oldest < settles_from_ || !tiering_.use().Settled(*era)) return;
  const auto noted = place_.known->NoteIf(facts(), [&] { return tiering_.use().BeginNote(*era); });
  if (!noted) {
    LogError("disk {} cannot be noted, so the next start empties it: {}", path_,
             noted.error().ToString());
  }
}

// ---- a disk that failed

void RetryTimes::Failed(std::int64_t now_ns) {
  if (works_since_ns_ && now_ns - *works_since_ns_ > most_ns_) next_ns_ = 0;
  works_since_ns_.reset();
  next_ns_ = next_ns_ == 0 ? least_ns_ : std::min(2 * next_ns_, most_ns_);
  at_ns_ = now_ns + next_ns_;
}

void DiskThread::Rest() {
  if (!std::exchange(resting_, true)) RetryLater();
  TakeAnew();
  if (disk_ != nullptr && !disk_->idle()) {
    // A device that hangs keeps the memory that it was given until it answers.
    disk_->Step(kIdleWaitNs);
    return;
  }
  if (stuck_ != nullptr) {
    if (stuck_log_ != nullptr) {
      stuck_log_->Poll(kIdleWaitNs);
    } else {
      stuck_->Poll(kIdleWaitNs);
    }
    if (stuck_->in_flight() > 0) return;
    stuck_log_.reset();
    stuck_.reset();
  }
  if (!tiering_.use().state().may_open() || !retry_.Due(clock_.NowNs())) {
    const MutexLock lock(mutex_);
    if (!stopping_) woken_.WaitFor(mutex_, std::chrono::nanoseconds(kIdleWaitNs));
    return;
  }
  {
    // The file is locked while a device has it open.
    const MutexLock lock(mutex_);
    disk_.reset();
  }
  if (const Status again = OpenAgain()) {
    resting_ = false;
    retry_.Works(clock_.NowNs());
  } else {
    LogDebug("disk {} does not work yet: {}", path_, again.error().ToString());
    RetryLater();
  }
}

void DiskThread::BeginAnew(const Id128& pool, const Id128& incarnation) {
  const MutexLock lock(mutex_);
  anew_ = {.pool = pool, .incarnation = incarnation};
  woken_.NotifyAll();
}

// Between two attempts: one that is under way knows the pool as it was, and must fail.
void DiskThread::TakeAnew() {
  {
    const MutexLock lock(mutex_);
    if (!anew_) return;
    former_pool_ = std::exchange(place_.pool, anew_->pool);
    place_.incarnation = anew_->incarnation;
    anew_.reset();
  }
  tiering_.use().UseAnew();
  retry_.Soon(clock_.NowNs());
  tiering_.use().SetRetryAt(retry_.at_ns());
}

void DiskThread::RetryLater() {
  retry_.Failed(clock_.NowNs());
  tiering_.use().SetRetryAt(retry_.at_ns());
}

Status DiskThread::OpenAgain() {
  KVCOVE_ASSIGN(auto device, options_.open(path_));
  found_.device = Watched(std::move(device));
  const Status opened = OpenFoundAgain();
  if (!opened) LetGo();
  return opened;
}

void DiskThread::LetGo() {
  if (found_.device == nullptr) return;
  if (found_.device->in_flight() > 0) {
    stuck_ = std::move(found_.device);
  } else {
    stuck_log_.reset();
    found_.device.reset();  // the file is locked while it is open
  }
}

// From here on the table does not know what the disk holds, so whatever is stored may be stored
// over that: the note must not name it. This process knows which one it was, and notes it again
// (Settle).
Status DiskThread::OpenFoundAgain() {
  KVCOVE_ASSIGN(found_.super, disklog::Log::ReadSuperblock(*found_.device));
  // It may have been formatted before the pool took another id.
  if (found_.super.pool != place_.pool && found_.super.pool != former_pool_) {
    return Fail(Code::kIncompatible, "another pool's disk is there");
  }
  KVCOVE_ASSIGN(const std::vector<KnownDisk> known, place_.known->Read());
  const bool noted =
      std::ranges::find(known, KnownDisk{found_.super.disk, tiering_.shares()}) != known.end();
  if (noted) KVCOVE_TRY(Forget());
  const bool is_known = (noted || found_.super.disk == facts().disk) &&
                        found_.super.incarnation == place_.incarnation &&
                        found_.super.hash_seed == tiering_.hash_seed();
  if (tiering_.use().MayReuse() && is_known) {
    tiering_.removals().DropGenerationOrders();
    KVCOVE_ASSIGN(auto log, OpenLog());
    if (tiering_.use().MayReuse()) {
      Use(std::move(log));
      // After an upgrade it was not away: the master knows what it holds.
      const bool tells = tiering_.use().listed() && tiering_.use().state().away();
      if (tells ? tiering_.use().BeginTelling() : tiering_.use().SetOnAgain(/*empty=*/false)) {
        return {};
      }
      const MutexLock lock(mutex_);
      disk_.reset();
      return Fail(Code::kInProgress, "a removal came between; the next attempt empties the disk");
    }
  }
  if (!tiering_.use().state().may_open()) return Fail(Code::kStale, "it was voided meanwhile");
  KVCOVE_TRY(EmptyDisk(found_, whose(), tiering_.hash_seed()));
  tiering_.removals().DropGenerationOrders();
  KVCOVE_ASSIGN(auto log, OpenLog());
  // It may be voided at any time, and its note be written anew then: it must not be noted again.
  KVCOVE_ASSIGN(const bool names, place_.known->NoteIf({found_.super.disk, tiering_.shares()}, [&] {
    return tiering_.use().BeginNoteEmpty();
  }));
  if (!names) return Fail(Code::kStale, "it was voided meanwhile");
  Use(std::move(log));
  if (!tiering_.use().SetOnAgain(/*empty=*/true)) {
    const MutexLock lock(mutex_);
    disk_.reset();
    return Fail(Code::kStale, "it was voided meanwhile");
  }
  LogInfo("disk {} starts empty: what was stored or removed meanwhile is unknown to it", path_);
  return {};
}

// A device that has something under way cannot be closed: it keeps the memory that it was given.
void DiskThread::Drain() {
  if (disk_ == nullptr) return;
  WriteQueued();
  const std::int64_t until_ns = stop_by_ns_ + kCloseNs;
  while (!disk_->idle() && clock_.NowNs() < until_ns) disk_->log().Poll(kMillisecond);
}

void DiskThread::WriteQueued() {
  const auto late = [&] { return clock_.NowNs() >= stop_by_ns_.load(); };
  const auto settles = [&] {
    const auto era = tiering_.use().state().unnoted_in();
    return era && !tiering_.use().Settled(*era);
  };
  while (!tiering_.use().state().aside() && (!tiering_.Idle() || settles()) && !late()) {
    disk_->Step(kMillisecond);
  }
  Settle();
  if (!tiering_.Idle() || tiering_.use().state().aside()) return;
  disk_->Stop();
  while (!(disk_->stopped() && disk_->idle()) && !late()) disk_->Step(kMillisecond);
}

void DiskThread::BeginStop(std::int64_t within_ns) {
  if (!thread_.joinable()) return;
  tiering_.demotions().Close();
  stop_by_ns_ = clock_.NowNs() + within_ns;
  stopping_ = true;
  Wake();
}

bool DiskThread::AwaitStop() {
  if (!thread_.joinable()) return true;
  // Somewhat longer: its last step may have begun just before the end.
  while (!ended_ && clock_.NowNs() < stop_by_ns_ + kCloseNs + kSecond) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  {
    const MutexLock lock(mutex_);
    left_behind_ = !ended_;
  }
  if (left_behind_) {
    // Should the thread go on one day, it must bring nothing up any more. It closes the disk then.
    tiering_.use().SetAside("it hangs");
    thread_.detach();
    LogWarn("disk {} hangs; its thread is left behind", path_);
    return false;
  }
  thread_.join();
  if (disk_ != nullptr && !disk_->idle()) {
    LogWarn("disk {} was not done in time; the next start reads its last zones record by record",
            path_);
  }
  return true;
}

// A device that has something under way still writes into the memory that it was given, and its
// file is locked until it is closed. This process may want the disk again: after an upgrade that
// failed, or when a pool is opened anew. So a thread that nobody waits for closes it. Where the
// system refuses that thread, the file stays locked until this process ends.
DiskThread::~DiskThread() {
  if (thread_.joinable()) (void)Stop(0);
  if (stuck_ == nullptr && (disk_ == nullptr || disk_->idle())) return;
  Held* const held = std::make_unique<Held>(TakeHeld()).release();
  if (auto closer = StartThread("kvcove-closer", [held] { delete held; })) closer->detach();
}

Status DiskThread::Forget() {
  return place_.known->Forget(tiering_.shares(), [&] { tiering_.use().Struck(); });
}

}  // namespace kvcove::owner
