// SPDX-License-Identifier: Apache-2.0
// One disk of an owner and the thread that uses it; and how an owner opens its disks together.
//
// The note (owner/disk/known_disks.h) keeps durably which disk has which share of the keys, so a
// start finds each key where it was. When disks were added or removed, as few shares as possible
// move. A start keeps this order, so that a crash in between loses objects at most:
//
//   find all, read the note --> assign shares --> empty unknown disks, remove keys that moved away
//         (synced) --> write the note --> all are on
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "kvcove/base/log.h"
#include "kvcove/base/mutex.h"
#include "kvcove/owner/disk/disk_path.h"
#include "kvcove/owner/disk/disk_set.h"
#include "kvcove/owner/disk/known_disks.h"
#include "kvcove/owner/disk/owner_facts.h"
#include "kvcove/owner/tier/disk_worker.h"

namespace kvcove::owner {

// The pool to which an owner's disks belong.
struct TierPlace {
  Id128 pool;
  Id128 incarnation;
  // The note, beside the pool's generations.
  std::shared_ptr<KnownDisks> known;
  // Set when the owner stops, which ends an opening. Null: never.
  const std::atomic<bool>* stopping = nullptr;
};

struct TierOptions {
  // A disk that failed is tried again after the least time, then after twice as long each time.
  std::int64_t least_retry_ns = 10 * kSecond;
  std::int64_t most_retry_ns = 600 * kSecond;
  // How often a running owner draws another opening for each disk and, in a cluster, for its data
  // directory, if the disk has changed since. A copy that is older than this, and of before a
  // change, is noticed, whatever ends the owner.
  std::int64_t opening_again_ns = 600 * kSecond;
  // In a cluster: how long the disks wait at the start until the master has stored the directory's.
  std::int64_t opening_await_ns = 5 * kSecond;
  // A strike from the note that takes longer counts as one that cannot be written: the master is
  // asked to store that the disks are void.
  std::int64_t strike_ns = 3 * kSecond;
  // A disk that answers nothing for longer is set aside, as is one whose thread hangs. A sync
  // behind much other work takes seconds on a disk that is sound.
  std::int64_t hang_ns = 10 * kSecond;
  DeviceOpener open = [](const std::string& path) { return disklog::OpenDevice(path); };
  // Writes an owner's facts to its directory; durable when it returns.
  std::function<Status(const std::string& directory, const OwnerFacts& facts)> write_facts =
      WriteOwnerFacts;
};

// The time of the next attempt to open a failed disk. Belongs to one thread.
class RetryTimes {
 public:
  RetryTimes(std::int64_t least_ns, std::int64_t most_ns)
      : least_ns_(least_ns), most_ns_(most_ns) {}
  // Schedules an attempt after a failure. If the disk has worked for longer than `most_ns`, the
  // delays start from the least one again.
  void Failed(std::int64_t now_ns);
  // Notes that the disk works.
  void Works(std::int64_t now_ns) { works_since_ns_ = now_ns; }
  bool Due(std::int64_t now_ns) const { return now_ns >= at_ns_; }
  // Schedules an attempt now: earlier failures say nothing about it.
  void Soon(std::int64_t now_ns) { at_ns_ = now_ns; }
  // Returns the time of the next attempt.
  std::int64_t at_ns() const { return at_ns_; }

 private:
  const std::int64_t least_ns_;
  const std::int64_t most_ns_;
  std::int64_t next_ns_ = 0;
  std::int64_t at_ns_ = 0;
  std::optional<std::int64_t> works_since_ns_;
};

// One disk of an owner.
//
//   on --set aside (Tiering)--> resting --time, and the device is idle--> opening --recovered--> on
//                                  ^                                          |      (in a cluster:
//                                  +---------------- fails -------------------+   reported first)
//
// A disk that was unmounted rests until the next start. One that was voided rests until BeginAnew
// names the pool and the incarnation under which the disk starts empty.
class DiskThread {
 public:
  // All references outlive this object. A disk that was found without a device is opened by the
  // thread.
  DiskThread(FoundDisk found, TierPlace place, Tiering& tiering, Promoter& promoter,
             const Clock& clock, TierOptions options);
  // Does not wait for a device that hangs: another thread closes it once no operation is under way
  // in the device.
  ~DiskThread();

  // The facts about a disk before it is opened.
  struct Opening {
    std::uint64_t hash_seed = 0;  // of all disks of the owner
    bool known = false;           // the disk has seen every removal; else it is emptied
    bool missed = false;      // if unknown: the note names others, so the pool has run without it
    bool copy = false;        // if unknown: the note names another opening of it
    Id128 noted_opening;      // if known: its opening in the note; zero: none
    std::uint64_t moved = 0;  // shares that it had and that another disk has now
  };
  // Opens the log and finds the disk's objects. Errors: those of disklog::Log::Open, with the path;
  // the device is closed then and, once the disk is set aside, Start has it tried again.
  Status Load(const Opening& opening);
  // Returns the number, the shares and the last opening of the disk.
  KnownDisk facts() const;
  // Notes that the note names the disk with facts(). Call it before Start.
  void Noted() { noted_ = true; }
  // Starts the thread. The disk is used at once after Load, otherwise as soon as it can be opened.
  // Errors: those of StartThread.
  Status Start();
  // Starts the thread without Load, after a pause. `disk`: the disk that another process, or this
  // one, had open and has struck from the note; its contents may be used. Number zero: as Start.
  Status Resume(const KnownDisk& disk);
  // Begins to stop: the thread writes queued values for up to `within_ns`, and notes the last
  // opening unless the disk `pauses`: then the caller strikes it from the note.
  void BeginStop(std::int64_t within_ns, bool pauses = false);
  // Waits until the thread has ended. False: the thread hangs and was left behind, so this object,
  // its Tiering and the segment's header must never be destroyed. If the thread continues one day,
  // it closes the disk and ends.
  bool AwaitStop();
  bool Stop(std::int64_t within_ns) {
    BeginStop(within_ns);
    return AwaitStop();
  }
  // Empties a voided disk for this pool and uses it again. Call it once the note names the disk no
  // more. Thread-safe.
  void BeginAnew(const Id128& pool, const Id128& incarnation);
  // Wakes the thread if it waits. Thread-safe.
  void Wake();
  // Returns true while a thread of the disk's writes the note, which may hang. Thread-safe.
  bool noting() const { return noting_; }
  const std::string& path() const { return path_; }
  // Strikes the disk from the note: the next start must not use its contents. Waits for the
  // directory's file system. Errors: kUnavailable. Thread-safe.
  Status Forget();

 private:
  DiskOwner whose() const;
  std::unique_ptr<disklog::Device> Watched(std::unique_ptr<disklog::Device> device) const;
  bool stops() const { return stopping_ || (place_.stopping != nullptr && *place_.stopping); }
  Status LoadFound(const Opening& opening);
  Result<std::unique_ptr<disklog::Log>> OpenLog(const Id128& noted_opening);
  Status RemoveMovedShares(disklog::Log& log, std::uint64_t shares);
  void Use(std::unique_ptr<disklog::Log> log);
  void Run();
  void Rest();
  void RetryLater();
  void TakeAnew();
  void OpenFirst();
  void Strike();
  void Settle();
  void ConfirmOpening();
  void CountChanges();
  void DrawAgain();
  // A write of the note by a thread of its own.
  struct Noting {
    KnownDisk disk;
    // Names the disk if it is settled in this era. Nothing: notes another opening of a named disk.
    std::optional<std::uint64_t> names_in;
  };
  void StartNoting(Noting noting);
  void TakeNoted();
  void NoteEnd();
  void NotedOpening(const KnownDisk& disk, const Result<bool>& noted);
  Status OpenAgain();
  void LetGo();
  Status OpenFoundAgain();
  Status UseAgain(bool empty);
  void Drain();
  void WriteQueued();
  // Memory into which a device may still write. Each device is destroyed before that memory.
  struct Held {
    std::unique_ptr<DiskWorker> disk;
    std::unique_ptr<disklog::Log> log;
    std::unique_ptr<disklog::Device> device;
  };
  Held TakeHeld();

  const std::string path_;
  // The thread's, except `known` and `stopping`, which do not change before it has ended.
  TierPlace place_;
  Tiering& tiering_;
  Promoter& promoter_;
  const Clock& clock_;
  const TierOptions options_;
  // While the disk is being opened; then `disk_` has its device.
  FoundDisk found_;
  mutable Mutex mutex_;  // for `disk_` as other threads see it, and for waits
  CondVar woken_;
  std::unique_ptr<DiskWorker> disk_;  // replaced by its thread, under `mutex_`; null while it rests
  Id128 number_;                      // Superblock::disk
  Id128 opening_;                     // Superblock::opening, the last one that was noted
  struct Anew {
    Id128 pool;
    Id128 incarnation;
  };
  // The arguments of BeginAnew, until the thread takes them.
  std::optional<Anew> anew_ KVCOVE_GUARDED_BY(mutex_);
  std::optional<Id128> former_pool_;  // before BeginAnew; the thread's
  // A failed attempt whose device still has operations under way in our memory.
  std::unique_ptr<disklog::Log> stuck_log_;
  std::unique_ptr<disklog::Device> stuck_;
  RetryTimes retry_;
  LogLimit unstruck_;
  LogLimit unnoted_;
  bool resting_ = false;
  bool noted_ = false;  // no note has an earlier number than `opening_`; the log does not know yet
  bool drawing_ = false;               // the log is writing a number that it has drawn
  std::int64_t drawn_ns_ = 0;          // when the log has drawn a number last
  std::uint64_t counted_changes_ = 0;  // Log::changes() that DiskUse has counted
  // The thread that writes the note, its argument and its result. The disk's thread reads the
  // result after the join.
  std::thread noter_;
  Noting to_note_;
  Result<bool> was_noted_ = false;
  std::atomic<bool> noting_{false};       // set by the disk's thread, cleared by `noter_`
  std::int64_t first_until_ns_ = 0;       // until when OpenFirst repeats its attempts at once
  std::optional<std::uint64_t> settles_;  // the era of `settles_from_`
  std::uint64_t settles_from_ = 0;        // puts from this number on began while the disk was on
  std::atomic<bool> stopping_{false};     // set after `stop_by_ns_`
  std::atomic<std::int64_t> stop_by_ns_{0};
  std::atomic<bool> pauses_{false};  // set before `stopping_`
  std::atomic<bool> ended_{false};   // set under `mutex_`; AwaitStop polls it without
  bool left_behind_ = false;         // AwaitStop's and the thread's, under `mutex_`
  std::thread thread_;
};

// The outcome of opening one disk.
struct OpenedTier {
  std::unique_ptr<DiskThread> tier;
  Status status;  // an error: why the disk is set aside
};

// Opens an owner's disks at once, and divides the keys among them; one that fails does not affect
// the others. Returns disks that are on or set aside, and not started, in the order of `specs`.
std::vector<OpenedTier> OpenTiers(std::span<const disklog::DiskSpec> specs, const TierPlace& place,
                                  DiskSet& tiers, Promoter& promoter, const Clock& clock,
                                  const TierOptions& options = {});

}  // namespace kvcove::owner
