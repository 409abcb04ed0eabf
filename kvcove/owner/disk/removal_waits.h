// SPDX-License-Identifier: Apache-2.0
// Removals whose callers wait for the proof of disks, without a thread each.
//
//   Add --> waits --proven by all its disks, or these are struck--> answered
//             \--its deadline, EndAll, Pause: kTimeout----------------^
//
// The thread of a disk that has proven removals calls Settle, and so does the janitor, which ends
// waits at their deadlines. A disk that has missed a removal is struck from the owner's note; then
// no start uses its contents, so the removal is proven all the same. A look at the removal begins
// that strike and does not wait for it (strikes.h): waits for other disks end meanwhile.
//
// Thread-safe. Its lock comes before those of the disks. No wait is answered under a lock.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/mutex.h"
#include "kvcove/base/result.h"
#include "kvcove/owner/disk/disk_set.h"

namespace kvcove::owner {

class RemovalWaits {
 public:
  using Done = std::function<void(const Status&)>;
  // Looks at a removal without waiting, under the lock of the waits. Ok: it is proven. Errors:
  // kTimeout: not yet; kUnavailable: a disk proves nothing any more, and cannot be struck.
  using Look = std::function<Status(DisksRemoval&)>;
  // Most waits at a time.
  static constexpr std::size_t kMost = 1024;

  RemovalWaits(Look look, const Clock& clock) : look_(std::move(look)), clock_(clock) {}
  ~RemovalWaits() { Stop(); }

  // Ends all waits, and later ones at once.
  void Stop();

  // Returns how many removals wait.
  std::size_t size() const;
  // Returns true if kMost removals wait: then no further one should begin. Callers that ask at the
  // same time may exceed the bound by their number.
  bool Full() const { return size() >= kMost; }
  // Adds a wait. `done` is called once, by any thread, or within the call, with the outcome of the
  // last look, or kTimeout.
  void Add(std::shared_ptr<DisksRemoval> removal, std::int64_t deadline_ns, Done done);
  // Answers the waits that are over.
  void Settle();

  // Ends all waits, and returns once each is answered.
  void EndAll();
  // Ends all waits, and later ones at once, until Resume; begins no strike. For a process that
  // hands its memory over.
  void Pause();
  void Resume();

 private:
  struct Wait {
    std::shared_ptr<DisksRemoval> removal;
    std::int64_t deadline_ns = 0;
    Done done;
  };
  using Waits = std::map<std::uint64_t, Wait>;
  struct Ended {
    Done done;
    Status outcome;
  };

  // Returns the outcome of a wait that is over.
  std::optional<Status> OutcomeOf(const Wait& wait) const KVCOVE_REQUIRES(mutex_);
  Waits::iterator End(Waits::iterator wait, Status outcome, std::vector<Ended>& ended)
      KVCOVE_REQUIRES(mutex_);
  void TakeAll(std::vector<Ended>& ended) KVCOVE_REQUIRES(mutex_);
  void Answer(std::vector<Ended> ended) KVCOVE_EXCLUDES(mutex_);
  void AwaitAnswers() KVCOVE_EXCLUDES(mutex_);

  const Look look_;
  const Clock& clock_;
  mutable Mutex mutex_;
  CondVar quiet_;  // answers have been given
  Waits waits_ KVCOVE_GUARDED_BY(mutex_);
  std::uint64_t next_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::size_t answering_ KVCOVE_GUARDED_BY(mutex_) = 0;  // callbacks that are under way
  bool paused_ KVCOVE_GUARDED_BY(mutex_) = false;
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
};

}  // namespace kvcove::owner
