// SPDX-License-Identifier: Apache-2.0
// Writes the facts that an owner with disks keeps about its master, on a thread of its own. The
// link's lanes hand the facts over and continue: a file system that hangs must not cost the owner
// its lease.
//
//   idle --Write--> writing --done--> idle
//                    |   ^  \--Write meanwhile--> writing the newer facts
//                 failed  \--kRetry, or the next Write
//                    v     |
//                   waits -+
//
// Only the newest facts are written. Calls into the file system use nothing but `Files`, so Stop
// can leave behind a thread that hangs in one.
//
// Thread-safe, except for Start and Stop: call these one at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "kvcove/base/mutex.h"
#include "kvcove/base/result.h"
#include "kvcove/owner/disk/owner_facts.h"

namespace kvcove::owner {

class FactsWriter {
 public:
  // A call returns once its change is durable. The calls run on the writer's thread alone, and must
  // own what they use, because they may run after Stop.
  struct Files {
    std::function<Status()> strike;  // strikes all disks from the owner's note
    std::function<Status(const OwnerFacts&)> write;
  };
  struct Job {
    OwnerFacts facts;
    // How often the facts have voided the disks. The disks are struck before facts with a higher
    // number are written: a process that starts with these facts must not use the disks.
    std::uint64_t voided = 0;
  };
  // The outcome of the last attempt.
  struct Ended {
    OwnerFacts facts;
    std::uint64_t struck = 0;  // the last Job::voided for which the disks were struck
    Status outcome;
  };

  ~FactsWriter() { Stop(); }
  // Errors: those of StartThread.
  Status Start(Files files);
  // Hands over the newest facts. Does not wait.
  void Write(const Job& job);
  // Returns the last attempt, once.
  std::optional<Ended> TakeEnded();
  // Returns true while a call into the file system is under way.
  bool busy() const;
  // Waits until no such call is under way, for kPause at most. False: one hangs.
  bool AwaitIdle() const;

  // Pauses writes for an upgrade of the process: none begins before Resume, nor in Stop. False: a
  // write was under way, and did not end within kPause.
  bool Pause();
  void Resume();

  // Writes facts that wait, and joins the thread. False: the file system has not answered within
  // kStop, and the thread is left behind in its call.
  bool Stop();

  static constexpr std::chrono::seconds kRetry{1};
  static constexpr std::chrono::milliseconds kPause{200};
  static constexpr std::chrono::seconds kStop{2};

 private:
  // The state that is shared with the thread, which may outlive this object.
  struct Shared {
    using Time = std::chrono::steady_clock::time_point;
    mutable Mutex mutex;
    CondVar changed;
    std::optional<Job> next KVCOVE_GUARDED_BY(mutex);
    Time not_before KVCOVE_GUARDED_BY(mutex);  // of `next`
    std::optional<Ended> ended KVCOVE_GUARDED_BY(mutex);
    bool busy KVCOVE_GUARDED_BY(mutex) = false;
    bool paused KVCOVE_GUARDED_BY(mutex) = false;
    bool stopping KVCOVE_GUARDED_BY(mutex) = false;
    bool over KVCOVE_GUARDED_BY(mutex) = false;

    void Run(const Files& files);
    // Waits for facts to write. Nothing: Stop was called.
    std::optional<Job> Next();
    // Notes an attempt. Schedules another one if it failed.
    void NoteEnded(const Job& job, const Ended& attempt);
    // Returns whether `done` became true in time.
    template <typename Done>
    // Waits until `done` returns true, `within` at most. Returns its last answer.
    bool Await(std::chrono::nanoseconds within, Done done) KVCOVE_REQUIRES(mutex);
  };

  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::thread thread_;
};

}  // namespace kvcove::owner
