// SPDX-License-Identifier: Apache-2.0
// A disk of an owner and the thread that uses it; and how an owner's disks are opened together.
//
// Which disk has which share of the keys is noted durably (owner/disk/known_disks.h), so a start
// finds each key where it was. When disks were added or removed, as few shares as possible move.
// The order at a start, so that a crash in between loses objects at most:
//
//   find all, read the note --> assign shares --> empty what is not known, remove what moved away
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
#include "kvcove/owner/disk/disk_worker.h"
#include "kvcove/owner/disk/known_disks.h"
#include "kvcove/owner/disk/owner_facts.h"

namespace kvcove::owner {

// Whose disks they are.
struct TierPlace {
  Id128 pool;
  Id128 incarnation;
  // Beside the pool's generations.
  std::shared_ptr<KnownDisks> known;
  // Set when the owner stops: opening ends then. Null: it does not.
  const std::atomic<bool>* stopping = nullptr;
};

struct TierOptions {
  // A disk that failed is tried again after the least time, then after twice as long each time.
  std::int64_t least_retry_ns = 10 * kSecond;
  std::int64_t most_retry_ns = 600 * kSecond;
  DeviceOpener open = [](const std::string& path) { return disklog::OpenDevice(path); };
  // Keeps an owner's facts in its directory; durable when it returns.
  std::function<Status(const std::string& directory, const OwnerFacts& facts)> write_facts =
      WriteOwnerFacts;
};

// When to try again. Belongs to one thread.
class RetryTimes {
 public:
  RetryTimes(std::int64_t least_ns, std::int64_t most_ns)
      : least_ns_(least_ns), most_ns_(most_ns) {}
  // It has failed, or failed again. What has worked for longer than `most` starts from the least.
  void Failed(std::int64_t now_ns);
  void Works(std::int64_t now_ns) { works_since_ns_ = now_ns; }
  bool Due(std::int64_t now_ns) const { return now_ns >= at_ns_; }
  // Whatever failed before says nothing about the next attempt.
  void Soon(std::int64_t now_ns) { at_ns_ = now_ns; }
  // When it is due.
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
//                                  +---------------- fails -------------------+       told first)
//
// What was unmounted rests until the next start; what was voided rests until the pool's and the
// incarnation's ids are known under which it begins anew (BeginAnew).
class DiskThread {
 public:
  // All outlive it. Without a device it is opened by its own thread, with what the note names.
  DiskThread(FoundDisk found, TierPlace place, Tiering& tiering, Promoter& promoter,
             const Clock& clock, TierOptions options);
  // Without waiting for a device that hangs: that is closed once nothing is under way in it any
  // more.
  ~DiskThread();

  // What is known of it before it is opened.
  struct Opening {
    std::uint64_t hash_seed = 0;  // of all disks of the owner
    bool known = false;           // it has seen every removal; else it is emptied
    bool missed = false;          // if not: others are known, so the pool has run without it
    std::uint64_t moved = 0;      // shares that it had, and that are another disk's now
  };
  // Its objects are found. Errors: those of disklog::Log::Open, with the path; the device is let go
  // of then, and once it is set aside, Start has it tried again.
  Status Load(const Opening& opening);
  KnownDisk facts() const;
  // It is used from now on: after Load at once, else as soon as it can be opened. Errors: as
  // StartThread.
  Status Start();
  // The same without Load. Another process, or this one, has had the disk of this number open, and
  // has struck it from the note: what it holds may be used. Of no number: as Start.
  Status Resume(const Id128& disk);
  // What waits is written until AwaitStop is over.
  void BeginStop(std::int64_t within_ns);
  // False: the disk's thread hangs. It has been left alone, and this, its Tiering and the segment's
  // header must stay where they are for ever. Should it go on one day, it closes the disk and ends.
  bool AwaitStop();
  bool Stop(std::int64_t within_ns) {
    BeginStop(within_ns);
    return AwaitStop();
  }
  // DiskUse::Void was called, and the next start does not know what the disk holds: it is emptied
  // for this pool and used again. Thread-safe.
  void BeginAnew(const Id128& pool, const Id128& incarnation);
  // Thread-safe.
  void Wake();
  const std::string& path() const { return path_; }
  // The next start must not use what it holds. Waits for the directory's file system. Thread-safe.
  Status Forget();

 private:
  DiskOwner whose() const;
  std::unique_ptr<disklog::Device> Watched(std::unique_ptr<disklog::Device> device) const;
  bool stops() const { return stopping_ || (place_.stopping != nullptr && *place_.stopping); }
  Status LoadFound(const Opening& opening);
  Result<std::unique_ptr<disklog::Log>> OpenLog();
  Status RemoveMovedShares(disklog::Log& log, std::uint64_t shares);
  void Use(std::unique_ptr<disklog::Log> log);
  void Run();
  void Rest();
  void RetryLater();
  void TakeAnew();
  void OpenFirst();
  void Strike();
  void Settle();
  Status OpenAgain();
  void LetGo();
  Status OpenFoundAgain();
  Status UseAgain(bool empty);
  void Drain();
  void WriteQueued();
  // What a device may still write into; each device goes before the rest.
  struct Held {
    std::unique_ptr<DiskWorker> disk;
    std::unique_ptr<disklog::Log> log;
    std::unique_ptr<disklog::Device> device;
  };
  Held TakeHeld();

  const std::string path_;
  TierPlace place_;  // the thread's, but for `known` and `stopping`, which stay
  Tiering& tiering_;
  Promoter& promoter_;
  const Clock& clock_;
  const TierOptions options_;
  // While it is opened: its device is `disk_`'s from then on.
  FoundDisk found_;
  mutable Mutex mutex_;  // for `disk_` as others see it, and for rests
  CondVar woken_;
  std::unique_ptr<DiskWorker> disk_;  // replaced by its thread, under `mutex_`; null while it rests
  Id128 number_;                      // Superblock::disk
  struct Anew {
    Id128 pool;
    Id128 incarnation;
  };
  // Of BeginAnew, until its thread has seen it.
  std::optional<Anew> anew_ KVCOVE_GUARDED_BY(mutex_);
  std::optional<Id128> former_pool_;  // the thread's
  // Of a failed attempt: it still has memory of ours, or is not known to have let go.
  std::unique_ptr<disklog::Log> stuck_log_;
  std::unique_ptr<disklog::Device> stuck_;
  RetryTimes retry_;
  LogLimit unstruck_;
  bool resting_ = false;
  std::int64_t first_until_ns_ = 0;       // of OpenFirst
  std::optional<std::uint64_t> settles_;  // the era of `settles_from_`
  std::uint64_t settles_from_ = 0;        // puts from this one on began when it was on
  std::atomic<bool> stopping_{false};
  std::atomic<std::int64_t> stop_by_ns_{0};
  std::atomic<bool> ended_{false};
  bool left_behind_ = false;  // AwaitStop's and the thread's, under `mutex_`
  std::thread thread_;
};

// What became of one disk.
struct OpenedTier {
  std::unique_ptr<DiskThread> tier;
  Status status;  // an error: why the disk is set aside
};

// Opens an owner's disks at once, and divides the keys among them; one that fails has no say in
// the others' outcome. They are on, or set aside, and not started yet. Each in the order of
// `specs`.
std::vector<OpenedTier> OpenTiers(std::span<const disklog::DiskSpec> specs, const TierPlace& place,
                                  DiskSet& tiers, Promoter& promoter, const Clock& clock,
                                  const TierOptions& options = {});

}  // namespace kvcove::owner
