// SPDX-License-Identifier: Apache-2.0
// Jobs of one rank that wait for a mover or are run by one, and steps whose saves are not due yet.
// Loads precede saves, and the oldest load is first.
//
//   load  Add --Next--> running --PutBack--> waits again, before newer ones --Next--> ... --Ran-->
//   save  a step's (ComputedSteps) --Add when it is computed--> as above
//
// Saves: three of four batches are of the newest request, whose next turn may be asked for at once,
// and one is the oldest's. Oldest first, a saver that is a second behind would store every turn a
// second after somebody has looked for it, and none in time. A chunk without those before it is of
// no use, so the jobs of one request keep their order, and those that it is behind
// (SaveOrder::behind) go first: a prompt that requests share, or the turn before.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "kvcove/connector/worker/job.h"

namespace kvcove::connector {

// Does no I/O. Needs its owner's lock.
class JobQueue {
 public:
  using JobPtr = std::shared_ptr<Job>;
  using Matches = std::function<bool(const Job&)>;
  // Which jobs a thread runs. Saves of host memory, where the forward pass needs the processors,
  // are one thread's, of low priority; movers then run loads only. A device's memory is saved by
  // the saver and all movers but the first, so that no load ever waits for a pool that is slow.
  enum class Share : std::uint8_t { kAll, kLoads, kSaves };

  // At most `most_queued` jobs of each kind wait.
  explicit JobQueue(std::uint32_t most_queued) : most_queued_(most_queued) {}

  // Returns whether one more load, or save, is too much. `undue_saves`: those of ComputedSteps.
  bool Full(bool load, std::size_t undue_saves) const {
    return (load ? loads_.size() : saves_.size() + undue_saves) >= most_queued_;
  }
  void Add(JobPtr job, std::int64_t now_ns);
  // Takes the next job of the share that is not blocked, loads first; it is running from now on.
  // Null: there is none. Cost for a save: a look at each that waits.
  JobPtr Next(Share share, bool loads_blocked, bool saves_blocked);
  // Puts a running job that has more to move back, before all that were added after it.
  void PutBack(const JobPtr& job);
  // Takes note that a job runs no more. `moved`: false if it could not move its batch yet, which
  // counts for no share of the saves.
  void Ran(const JobPtr& job, bool moved = true) {
    running_.erase(job);
    if (moved && !job->load) ++save_batches_;
  }

  bool has_loads() const { return !loads_.empty(); }
  bool has_saves() const { return !saves_.empty(); }
  bool running() const { return !running_.empty(); }
  std::size_t size() const { return loads_.size() + saves_.size() + running_.size(); }

  // Take waiting jobs off the queue, in order; the caller ends them.
  std::vector<JobPtr> TakeLoads(const Matches& matches);
  std::vector<JobPtr> TakeAll();
  // Cancels running jobs: each moves no further batch.
  void CancelRunning(const Matches& matches);

  // Adds a synchronous load, for which the engine's step waits until EndSync.
  void AddSync(const JobPtr& job) { sync_.insert(job); }
  // Returns true if the job was one of them.
  bool EndSync(const JobPtr& job) { return sync_.erase(job) > 0; }
  bool has_sync() const { return !sync_.empty(); }
  // Returns whether one of them has not submitted the parts up to `part` yet.
  bool SyncBehind(std::uint32_t part) const;
  void CancelSync();

 private:
  // One batch of so many is that of the oldest save.
  static constexpr std::uint64_t kOldestEvery = 4;
  std::deque<JobPtr>::iterator NextSave();

  const std::uint32_t most_queued_;
  std::uint64_t last_number_ = 0;
  std::uint64_t save_batches_ = 0;
  std::deque<JobPtr> loads_;  // both by Job::number
  std::deque<JobPtr> saves_;
  std::set<JobPtr> running_;
  std::set<JobPtr> sync_;
};

// The saves of a step that the device, or the engine, may still be computing.
struct ComputedStep {
  std::shared_ptr<std::function<void()>> ready;
  std::shared_ptr<const transport::DeviceMark> mark;  // null: `ready` says when it is computed
  std::vector<std::shared_ptr<Job>> saves;
};

// Steps that the engine still computes, so that their saves must wait. A step with a mark on the
// device ends when the device reports the mark, in any order. A thread waits for each of the other
// steps, so these end in their order. Does no I/O. Needs the lock of its holder, the role. A caller
// that takes a step must destroy it without that lock: the destructor of `ready` may need the
// engine's own locks (Python's GIL), and a thread that holds them may wait for the role's.
class ComputedSteps {
 public:
  using Ready = std::shared_ptr<std::function<void()>>;

  void Add(ComputedStep step);
  // Returns the `ready` of the oldest step without a mark; null: there is none.
  Ready front() const { return steps_.empty() ? nullptr : steps_.front().ready; }
  // Take a computed step; none: it was taken meanwhile (Unregister).
  std::optional<ComputedStep> Take(const Ready& ready);
  std::optional<ComputedStep> Take(const std::shared_ptr<const transport::DeviceMark>& mark);
  std::deque<ComputedStep> TakeAll();
  // Returns the number of saves of all steps.
  std::size_t saves() const { return saves_; }

 private:
  std::deque<ComputedStep> steps_;
  std::deque<ComputedStep> marked_;
  std::size_t saves_ = 0;
};

}  // namespace kvcove::connector
