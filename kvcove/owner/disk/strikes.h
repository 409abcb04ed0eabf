// SPDX-License-Identifier: Apache-2.0
// Strikes disks from an owner's note (known_disks.h) on a thread of its own: the file system of the
// note may hang, and no lease, removal, report or upgrade may wait for it without a bound.
//
//   Begin --> waits --> under way: the note is written --> over, with an outcome
//
// A caller keeps the strike that it has begun, and looks at it from time to time.
//
// Thread-safe, except for Start and Stop: call these one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "kvcove/base/clock.h"
#include "kvcove/base/mutex.h"
#include "kvcove/base/result.h"

namespace kvcove::owner {

// One strike of one disk, guarded by the lock of its Strikes.
struct Strike {
  std::size_t disk = 0;
  std::optional<Status> outcome;  // once it is over
};

class Strikes {
 public:
  // Strikes the disk, durably when it returns. Runs on the thread alone. It must own what it uses,
  // or the caller of Stop leaves that behind.
  using Write = std::function<Status(std::size_t disk)>;

  ~Strikes() { Stop(); }
  // Starts the thread, unless it runs. Errors: those of StartThread.
  Status Start(Write write);
  // Ends the thread, for good; strikes that wait, or begin later, end with kUnavailable. False: the
  // file system has not answered within kStop, and the thread is left behind in its call.
  bool Stop();

  // Begins a strike of the disk, or returns one that has not begun: one that is under way may have
  // been written before the reason of this one.
  std::shared_ptr<const Strike> Begin(std::size_t disk);
  // Waits until the strike is over, at most `within_ns`. Errors: kTimeout: it is not over; those of
  // Write.
  Status Await(const Strike& strike, std::int64_t within_ns) const;
  // Begins a strike of the disk unless `strike` has one, and waits as Await. Clears `strike` once
  // it is over.
  Status Prove(std::size_t disk, std::shared_ptr<const Strike>& strike, std::int64_t within_ns);

  // Returns the number of the strike that is under way, counted from 1; 0: none is.
  std::uint64_t under_way() const;
  // Waits until none is under way or waits, at most `within_ns`. False: one still does.
  bool AwaitIdle(std::int64_t within_ns) const;

  static constexpr std::int64_t kStop = 2 * kSecond;

 private:
  // The state that is shared with the thread, which may outlive this object.
  struct Shared {
    mutable Mutex mutex;
    mutable CondVar changed;
    std::deque<std::shared_ptr<Strike>> waiting KVCOVE_GUARDED_BY(mutex);
    std::uint64_t begun KVCOVE_GUARDED_BY(mutex) = 0;
    bool busy KVCOVE_GUARDED_BY(mutex) = false;
    bool stopping KVCOVE_GUARDED_BY(mutex) = false;
    bool over KVCOVE_GUARDED_BY(mutex) = false;

    void Run(const Write& write);
    std::shared_ptr<Strike> Next();
    // Waits until `done` returns true, `within_ns` at most, and not behind an interrupt of the
    // calling thread. Returns its last answer.
    template <typename Done>
    bool Await(std::int64_t within_ns, Done done) const KVCOVE_REQUIRES(mutex);
  };

  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::thread thread_;
};

}  // namespace kvcove::owner
