// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/disk/disk_thread.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "kvcove/base/log.h"
#include "kvcove/base/posix.h"
#include "kvcove/base/size.h"
#include "kvcove/owner/disk/moved_shares.h"

namespace kvcove::owner {
namespace {

constexpr std::int64_t kIdleWaitNs = 50 * kMillisecond;
constexpr std::int64_t kRecoveryNs = 600 * kSecond;
// Extra time for operations that are under way when the time for writing is over.
constexpr std::int64_t kCloseNs = 2 * kSecond;
// Time in which the process that has handed the disk over must close it.
constexpr std::int64_t kPredecessorNs = 10 * kSecond;
constexpr std::int64_t kPredecessorLookNs = 20 * kMillisecond;
// A step's wait while the disk is on and not yet named in the note.
constexpr std::int64_t kSettleWaitNs = 10 * kMillisecond;
constexpr std::uint64_t kMostQueueBytes = 64ULL << 20;
constexpr std::uint32_t kZonesForStreams = 32;

disklog::LogOptions LogOptionsFor(const disklog::Superblock& super, const TierPlace& place,
                                  const Id128& noted_opening, Tiering& tiering) {
  disklog::LogOptions options{.pool = place.pool,
                              .incarnation = place.incarnation,
                              .noted_opening = noted_opening,
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
  // Each stream has a zone of its own open, which a small disk cannot spare.
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
  return {.disk = number_, .shares = tiering_.shares(), .opening = opening_};
}

Status DiskThread::Load(const Opening& opening) {
  Status loaded = LoadFound(opening);
  if (!loaded) LetGo();
  if (loaded || loaded.error().detail.find(path_) != std::string::npos) return loaded;
  return Fail(loaded.error().code, "the disk " + path_ + ": " + loaded.error().detail);
}

Status DiskThread::LoadFound(const Opening& opening) {
  if (!opening.known) {
    // A disk without a pool was never used, so it has nothing to lose.
    if (opening.copy) {
      LogWarn(
          "disk {} starts empty: it is not as '{}' has known it last, so one of them was put back "
          "from a copy, and the disk may hold removed values. To keep its values, stop this owner "
          "and put back both as they were when it ended last",
          path_, place_.known->directory());
    } else if (found_.super.pool != Id128{}) {
      LogInfo(
          "disk {} starts empty{}", path_,
          opening.missed ? ": this pool has run without it, so it may hold removed values" : "");
    }
    KVCOVE_TRY(EmptyDisk(found_, whose(), opening.hash_seed));
  }
  KVCOVE_ASSIGN(auto log, OpenLog(opening.noted_opening));
  if (opening.known && opening.moved != 0) {
    if (Status removed = RemoveMovedShares(*log, opening.moved); !removed) {
      // The device may still write into the log's memory, and the disk cannot be emptied meanwhile.
      if (found_.device->in_flight() > 0) {
        stuck_log_ = std::move(log);
        return removed;
      }
      LogWarn("disk {} starts empty: {}", path_, removed.error().detail);
      log.reset();
      KVCOVE_TRY(EmptyDisk(found_, whose(), opening.hash_seed));
      KVCOVE_ASSIGN(log, OpenLog({}));
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
                        .gives_up =
                            [&] {
                              // This takes minutes where many keys move, and an opening without
                              // progress is given up: the disk would start empty.
                              tiering_.use().NoteProgress();
                              return stops() || clock_.NowNs() >= until_ns;
                            }}));
  LogInfo("disk {}: removed {} objects whose keys belong to another disk now", path_, removed);
  return {};
}

// Returns the log once all of its objects are in the shared table. A put of such a key is answered
// `exists` from then on, so no record of the disk is older than the value in memory.
Result<std::unique_ptr<disklog::Log>> DiskThread::OpenLog(const Id128& noted_opening) {
  disklog::Device& device = *found_.device;
  tiering_.log().Attach();
  KVCOVE_ASSIGN(auto log, disklog::Log::Open(device, LogOptionsFor(found_.super, place_,
                                                                   noted_opening, tiering_)));
  std::int64_t until_ns = clock_.NowNs() + kRecoveryNs;
  const auto busy = [&] {
    return (!log->recovered() && !log->unproven()) || device.in_flight() > 0;
  };
  // A device with reads under way cannot be closed: its file would stay locked for as long as this
  // process lives, and no process could open the disk again. So a stop waits for the reads,
  // kCloseNs at most.
  bool stopped = false;
  while (busy() && clock_.NowNs() < until_ns) {
    if (stops() && !std::exchange(stopped, true)) {
      until_ns = std::min(until_ns, clock_.NowNs() + kCloseNs);
    }
    log->Poll(stopped ? kMillisecond : kIdleWaitNs);
    tiering_.use().NoteProgress();
  }
  if (!busy() && log->unproven()) {
    return Fail(Code::kUnavailable, "zones that cannot be read cannot be voided either");
  }
  if (!busy()) {
    found_.super = log->superblock();  // it has another number if the log has emptied the disk
    return log;
  }
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
  if (log->started_empty() && found.lost > 0) {
    LogWarn(
        "disk {} starts empty: {} zones cannot be read, or their headers are damaged, so it is not "
        "known what was removed",
        path_, found.lost);
  }
  const std::uint8_t streams = LogOptionsFor(super, place_, {}, tiering_).writer.streams;
  auto disk = std::make_unique<DiskWorker>(tiering_, std::move(found_.device), std::move(log),
                                           promoter_, clock_, TierDiskOptions{.streams = streams});
  const MutexLock lock(mutex_);
  disk_ = std::move(disk);
  number_ = super.disk;
  opening_ = super.opening;
  noted_ = false;
  drawing_ = false;
  drawn_ns_ = clock_.NowNs();
  counted_changes_ = 0;
  tiering_.use().AddChanges(1);  // it may be another disk, or empty
}

Status DiskThread::Start() {
  first_until_ns_ = clock_.NowNs() + kPredecessorNs;
  KVCOVE_ASSIGN(thread_, StartThread("kvcove-disk", [this] { Run(); }));
  return {};
}

Status DiskThread::Resume(const KnownDisk& disk) {
  number_ = disk.disk;
  opening_ = disk.opening;
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
      ConfirmOpening();
      DrawAgain();
      disk_->Step(tiering_.use().state().unnoted_in() ? kSettleWaitNs : kIdleWaitNs);
      CountChanges();
      Settle();
    }
  }
  Drain();
  TakeNoted();
  // No caller destroys a DiskThread that was left behind, so its thread closes the disk, and lets
  // other processes have the note's directory. AwaitStop sets `left_behind_` in the hold in which
  // it sees that `ended_` is false: one of the two sees the other.
  Held held;
  std::shared_ptr<KnownDisks> known;
  {
    const MutexLock lock(mutex_);
    ended_ = true;
    if (left_behind_) {
      held = TakeHeld();
      known = std::move(place_.known);
    }
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

// Opens the disk after a pause. The former process may still have the file locked, so attempts are
// repeated at once until first_until_ns_; only then is the disk set aside.
void DiskThread::OpenFirst() {
  tiering_.use().NoteProgress();
  const Status opened = OpenAgain();
  if (opened) return retry_.Works(clock_.NowNs());
  if (clock_.NowNs() >= first_until_ns_ || stuck_ != nullptr) {
    tiering_.use().SetAside(opened.error().detail);
    return;
  }
  const MutexLock lock(mutex_);
  if (!stopping_) woken_.WaitFor(mutex_, std::chrono::nanoseconds(kPredecessorLookNs));
}

// ---- the note

// Strikes the disk from the note if a put waits for that. Each round of Run calls this, so a
// failure is tried again.
void DiskThread::Strike() {
  if (!tiering_.use().state().must_be_struck()) return;
  if (const Status struck = Forget(); !struck) {
    if (const auto lines = unstruck_.Due(clock_.NowNs()); lines > 0) {
      LogWarn("disk {} is set aside, but cannot be struck from the note: {} ({} times)", path_,
              struck.error().ToString(), lines);
    }
  }
}

// Names the disk in the note again, once all puts that began before it was on have ended and the
// values that they replaced are removed durably. Named earlier, the disk could give an older value
// to the next start after a kill. NoteIf asks once more under the note's lock: a strike in between
// remains.
void DiskThread::Settle() {
  const std::optional<std::uint64_t> era = tiering_.use().state().unnoted_in();
  // A number that is being drawn is noted first. Only a disk that stops does not note that.
  if (!era || noting_ || (drawing_ && !stopping_)) return;
  TakeNoted();
  const Promoter::Puts puts = promoter_.PutsUnderWay();
  if (settles_ != era) {
    settles_ = era;
    settles_from_ = puts.next;
  }
  if (puts.oldest < settles_from_ || !tiering_.use().Settled(*era)) return;
  StartNoting({.disk = facts(), .names_in = era});
}

// Ends the number by which the disk was known before. If that fails, an older note still knows the
// disk, until the next opening.
void DiskThread::ConfirmOpening() {
  if (std::exchange(noted_, false)) disk_->log().OpeningNoted(opening_, [](const Status&) {});
}

void DiskThread::CountChanges() {
  const std::uint64_t now = disk_->log().changes();
  tiering_.use().AddChanges(now - std::exchange(counted_changes_, now));
}

// Draws another number from time to time, so that after a kill, too, a copy that was taken while
// the disk was on is another disk. Until something is written to the disk a copy equals it, so an
// idle disk is not written. Draws none while the note does not name the disk: Settle will note
// `opening_`.
void DiskThread::DrawAgain() {
  if (!noting_) TakeNoted();
  if (drawing_ || noter_.joinable()) return;
  if (clock_.NowNs() - drawn_ns_ < options_.opening_again_ns) return;
  if (!disk_->log().OpeningDue()) return;
  if (tiering_.use().state().unnoted_in()) return;
  drawn_ns_ = clock_.NowNs();
  drawing_ = true;
  disk_->log().DrawOpening([this](const Status& drawn) {
    drawing_ = false;
    // A disk that stops notes its last number itself.
    if (!drawn || stopping_) return;
    KnownDisk disk = facts();
    disk.opening = disk_->log().superblock().opening;
    StartNoting({.disk = disk, .names_in = {}});
  });
}

// Writes the note on a thread of its own: its file system may hang, and neither reads of the disk
// nor removals may wait for that. If the system refuses the thread, a later round begins anew; the
// log keeps both numbers.
void DiskThread::StartNoting(Noting noting) {
  to_note_ = noting;
  noting_ = true;
  auto noter = StartThread("kvcove-note", [this] {
    const KnownDisk& disk = to_note_.disk;
    const auto names = [this] { return tiering_.use().BeginNote(*to_note_.names_in); };
    was_noted_ =
        to_note_.names_in ? place_.known->NoteIf(disk, names) : place_.known->NoteOpening(disk);
    noting_ = false;
  });
  if (noter) {
    noter_ = std::move(*noter);
  } else {
    noting_ = false;
  }
}

// Takes the outcome of StartNoting; waits for it if it is under way. Called before this thread
// writes the note by itself: else a late write of the other thread would undo that.
void DiskThread::TakeNoted() {
  if (!noter_.joinable()) return;
  noter_.join();
  if (!to_note_.names_in) return NotedOpening(to_note_.disk, was_noted_);
  if (was_noted_ && *was_noted_) noted_ = true;
  if (!was_noted_) {
    LogError("disk {} cannot be named in the note, so the next start empties it: {}", path_,
             was_noted_.error().ToString());
  }
}

// Notes the number of the log's clean end. A disk that pauses is about to be struck from the note,
// so the caller alone is to know its number.
void DiskThread::NoteEnd() {
  KnownDisk disk = facts();
  disk.opening = disk_->log().superblock().opening;
  NotedOpening(disk, pauses_ ? Result<bool>(false) : place_.known->NoteOpening(disk));
}

// If the note could not be written, it may have the number or not: the log keeps both numbers, and
// draws no other one before this one is noted.
void DiskThread::NotedOpening(const KnownDisk& disk, const Result<bool>& noted) {
  if (!noted) {
    if (const auto lines = unnoted_.Due(clock_.NowNs()); lines > 0) {
      LogWarn(
          "disk {}: its next number cannot be noted, so a copy of it, or of '{}', may not be "
          "noticed: {} ({} times)",
          path_, place_.known->directory(), noted.error().ToString(), lines);
    }
    return;
  }
  noted_ = *noted;
  const MutexLock lock(mutex_);
  opening_ = disk.opening;
}

// ---- a disk that failed

void RetryTimes::Failed(std::int64_t now_ns) {
  // A disk that has worked for a long time fails for a new reason.
  if (works_since_ns_ && now_ns - *works_since_ns_ > most_ns_) next_ns_ = 0;
  works_since_ns_.reset();
  next_ns_ = next_ns_ == 0 ? least_ns_ : std::min(2 * next_ns_, most_ns_);
  at_ns_ = now_ns + next_ns_;
}

void DiskThread::Rest() {
  if (!std::exchange(resting_, true)) RetryLater();
  TakeAnew();
  if (disk_ != nullptr && !disk_->idle()) {
    // The device may still write into this worker's buffers, so they stay until it has answered.
    disk_->Step(kIdleWaitNs);
    CountChanges();
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
    // OpenAgain needs the lock of the file, which the device has while it is open.
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

// Takes new ids between two attempts: an attempt that is under way opens the disk for the former
// pool, and must fail.
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
  TakeNoted();
  // A directory, where its file system had failed when the path was looked at.
  KVCOVE_ASSIGN(auto device, options_.open(disklog::DiskFileOf(path_)));
  found_.device = Watched(std::move(device));
  const Status opened = OpenFoundAgain();
  if (!opened) LetGo();
  return opened;
}

// Closes the device of a failed attempt, or keeps it until the operations in its memory have ended.
void DiskThread::LetGo() {
  if (found_.device == nullptr) return;
  if (found_.device->in_flight() > 0) {
    stuck_ = std::move(found_.device);
  } else {
    stuck_log_.reset();
    found_.device.reset();  // unlocks the file
  }
}

// Uses the disk with its contents if it has missed nothing, otherwise empty. Until its log is open,
// the shared table does not have its keys, so values may be stored over them: the note must not
// name the disk. This process knows which disk it was, and names it again (Settle).
Status DiskThread::OpenFoundAgain() {
  KVCOVE_ASSIGN(found_.super, disklog::Log::ReadSuperblock(*found_.device));
  // BeginAnew may have changed the pool's id since the disk was formatted.
  if (found_.super.pool != place_.pool && found_.super.pool != former_pool_) {
    return Fail(Code::kIncompatible, "another pool's disk is there");
  }
  KVCOVE_ASSIGN(const std::vector<KnownDisk> known, place_.known->Read());
  // True if the disk is the known one. A copy that was put in its place has another opening.
  const auto is_this = [&](const KnownDisk& disk) {
    return disk.disk == found_.super.disk && disk.shares == tiering_.shares() &&
           found_.super.HasOpening(disk.opening);
  };
  const auto noted = std::ranges::find_if(known, is_this);
  if (noted != known.end()) {
    KVCOVE_TRY(Forget());
    // From here on this process alone knows the disk, also if this attempt fails.
    const MutexLock lock(mutex_);
    number_ = noted->disk;
    opening_ = noted->opening;
  }
  const KnownDisk disk = facts();
  const bool is_known = is_this(disk) && found_.super.incarnation == place_.incarnation &&
                        found_.super.hash_seed == tiering_.hash_seed();
  if (tiering_.use().MayReuse() && is_known) {
    tiering_.removals().DropGenerationOrders();
    KVCOVE_ASSIGN(auto log, OpenLog(disk.opening));
    if (tiering_.use().MayReuse()) {
      Use(std::move(log));
      noted_ = true;  // the note does not name the disk, so this process alone knows its opening
      // A disk that was on before an upgrade was not away: the master knows its objects.
      const bool reports = tiering_.use().listed() && tiering_.use().state().away();
      if (reports ? tiering_.use().BeginReport() : tiering_.use().SetOnAgain(/*empty=*/false)) {
        return {};
      }
      const MutexLock lock(mutex_);
      disk_.reset();
      return Fail(Code::kInProgress, "the disk has missed a removal; the next attempt empties it");
    }
  }
  if (!tiering_.use().state().may_open()) return Fail(Code::kStale, "it was voided meanwhile");
  KVCOVE_TRY(EmptyDisk(found_, whose(), tiering_.hash_seed()));
  tiering_.removals().DropGenerationOrders();
  KVCOVE_ASSIGN(auto log, OpenLog({}));
  // The disk may be voided at any time, and struck from the note: NoteIf must not name it then.
  const KnownDisk emptied{found_.super.disk, tiering_.shares(), found_.super.opening};
  KVCOVE_ASSIGN(const bool names,
                place_.known->NoteIf(emptied, [&] { return tiering_.use().BeginNoteEmpty(); }));
  if (!names) return Fail(Code::kStale, "it was voided meanwhile");
  Use(std::move(log));
  noted_ = true;
  if (!tiering_.use().SetOnAgain(/*empty=*/true)) {
    const MutexLock lock(mutex_);
    disk_.reset();
    return Fail(Code::kStale, "it was voided meanwhile");
  }
  LogInfo("disk {} starts empty: what was stored or removed meanwhile is unknown to it", path_);
  return {};
}

// Writes queued values, then waits until no operation is under way: a device that has one cannot be
// closed, because it still uses our memory.
void DiskThread::Drain() {
  if (disk_ == nullptr) return;
  WriteQueued();
  const std::int64_t until_ns = stop_by_ns_ + kCloseNs;
  while (!disk_->idle() && clock_.NowNs() < until_ns) disk_->log().Poll(kMillisecond);
}

// Writes queued values until `stop_by_ns_`, names the disk in the note if it has settled, and seals
// the zones if there is time left, so that the next start reads summaries only.
void DiskThread::WriteQueued() {
  const auto late = [&] { return clock_.NowNs() >= stop_by_ns_.load(); };
  const auto settles = [&] {
    const auto era = tiering_.use().state().unnoted_in();
    return era && !tiering_.use().Settled(*era);
  };
  while (!tiering_.use().state().aside() && (!tiering_.Idle() || settles()) && !late()) {
    disk_->Step(kMillisecond);
  }
  TakeNoted();
  // A disk that pauses is about to be struck from the note.
  if (!pauses_) Settle();
  TakeNoted();
  if (!tiering_.Idle() || tiering_.use().state().aside()) return;
  ConfirmOpening();  // before the log draws the next opening
  disk_->Stop();
  while (!(disk_->stopped() && disk_->idle()) && !late()) disk_->Step(kMillisecond);
  if (!disk_->sealed()) return;
  NoteEnd();
  ConfirmOpening();
}

void DiskThread::BeginStop(std::int64_t within_ns, bool pauses) {
  if (!thread_.joinable()) return;
  tiering_.demotions().Close();
  stop_by_ns_ = clock_.NowNs() + within_ns;
  pauses_ = pauses;
  // Pairs with the loop of Run: a thread that sees `stopping_` reads the new `stop_by_ns_`.
  stopping_ = true;
  Wake();
}

bool DiskThread::AwaitStop() {
  if (!thread_.joinable()) return true;
  // Waits somewhat longer: the thread's last step may have begun just before its deadline.
  while (!ended_ && clock_.NowNs() < stop_by_ns_ + kCloseNs + kSecond) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  {
    const MutexLock lock(mutex_);
    left_behind_ = !ended_;
  }
  if (left_behind_) {
    // If the thread continues one day, it must promote nothing any more, and it closes the disk.
    tiering_.use().SetAside("it hangs");
    thread_.detach();
    LogWarn("disk {} hangs; its thread is left behind", path_);
    return false;
  }
  thread_.join();
  if (disk_ != nullptr && !disk_->idle()) {
    LogWarn("disk {} did not finish in time; the next start reads its last zones record by record",
            path_);
  }
  return true;
}

// A device with operations under way still writes into the memory that it was given, and its file
// is locked until it is closed. This process may want the disk again: after an upgrade that failed,
// or when a pool is opened anew. So a detached thread closes the device. If the system refuses that
// thread, the file stays locked until this process ends.
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
