// SPDX-License-Identifier: Apache-2.0
// Removals whose callers wait for the proof of disks, without a thread each.
//
//   Add --> waits --proven by all its disks--------------------------> answered
//             | \--a disk proves nothing any more--> struck --proven----^
//             \--its deadline, EndAll, Pause: kTimeout------------------^
//
// The thread of a disk that has proven removals calls Settle, and so does the janitor, which ends
// waits at their deadlines. A disk that has missed a removal is struck from the owner's note; then
// no start uses its contents, so the removal is proven all the same. A strike waits for a file
// system, so a thread of its own (kvcove-strike) makes it: waits for other disks end meanwhile.
//
// Thread-safe, except for Start and Stop. Its lock comes before those of the disks. No wait is
// answered under a lock.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/mutex.h"
#include "kvcove/base/result.h"
#include "kvcove/owner/disk/disk_set.h"

namespace kvcove::owner {

// The disks for which a removal waits.
struct AwaitedDisks {
  bool open = false;         // some have not proven their part yet
  std::uint32_t missed = 0;  // those that prove nothing any more, as bits
};

class RemovalWaits {
 public:
  using Done = std::function<void(const Status&)>;
  struct Disks {
    // Looks without waiting, under the lock of the waits.
    std::function<AwaitedDisks(const DisksRemoval&)> look;
    // Strikes the disk from the note, durably. May wait for a file system.
    std::function<Status(std::size_t disk)> strike;
  };
  // Most waits at a time.
  static constexpr std::size_t kMost = 1024;

  RemovalWaits(Disks disks, const Clock& clock) : disks_(std::move(disks)), clock_(clock) {}
  ~RemovalWaits() { Stop(); }

  // Starts the thread, unless it runs. Errors: those of StartThread.
  Status Start();
  // Ends all waits, and joins the thread. Waits for a strike that is under way.
  void Stop();

  // Returns how many removals wait.
  std::size_t size() const;
  // Returns true if kMost removals wait: then no further one should begin. Callers that ask at the
  // same time may exceed the bound by their number.
  bool Full() const { return size() >= kMost; }
  // Adds a wait. `done` is called once, by any thread, or within the call. Ok: the removal is
  // proven. Errors: kTimeout; kUnavailable: a disk proves nothing any more, and cannot be struck.
  void Add(std::shared_ptr<DisksRemoval> removal, std::int64_t deadline_ns, Done done);
  // Answers the waits that are over.
  void Settle();

  // Ends all waits, and returns once each is answered.
  void EndAll();
  // Ends all waits, and later ones at once, until Resume; begins no strike. For a process that
  // hands its memory over.
  void Pause();
  void Resume();
  // Waits while a strike is under way. False: it still is after `wait_ns`.
  bool AwaitQuiet(std::int64_t wait_ns);

 private:
  struct Wait {
    std::shared_ptr<DisksRemoval> removal;
    std::int64_t deadline_ns = 0;
    Done done;
    std::uint32_t missed = 0;    // disks whose strike must begin, as bits
    std::uint32_t striking = 0;  // disks whose strike has begun since they missed the removal
    Status struck;               // an error: a strike has failed
  };
  using Waits = std::map<std::uint64_t, Wait>;
  struct Ended {
    Done done;
    Status outcome;
  };

  void Run();
  std::optional<std::size_t> NextStrike();
  void EndStrike(std::size_t disk, const Status& struck);
  // Returns the outcome of a wait that is over.
  std::optional<Status> OutcomeOf(Wait& wait) KVCOVE_REQUIRES(mutex_);
  Waits::iterator End(Waits::iterator wait, Status outcome, std::vector<Ended>& ended)
      KVCOVE_REQUIRES(mutex_);
  void TakeAll(std::vector<Ended>& ended) KVCOVE_REQUIRES(mutex_);
  void Answer(std::vector<Ended> ended) KVCOVE_EXCLUDES(mutex_);
  void AwaitAnswers() KVCOVE_EXCLUDES(mutex_);

  const Disks disks_;
  const Clock& clock_;
  mutable Mutex mutex_;
  CondVar changed_;  // a disk must be struck, or the thread stops
  CondVar quiet_;    // answers have been given, or a strike has ended
  Waits waits_ KVCOVE_GUARDED_BY(mutex_);
  std::uint64_t next_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::size_t answering_ KVCOVE_GUARDED_BY(mutex_) = 0;  // callbacks that are under way
  bool strikes_ KVCOVE_GUARDED_BY(mutex_) = false;       // a strike is under way
  bool paused_ KVCOVE_GUARDED_BY(mutex_) = false;
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace kvcove::owner
