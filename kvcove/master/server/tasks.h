// SPDX-License-Identifier: Apache-2.0
// Moves objects between owners: copies and moves that an operator asks for, the draining of an
// owner, and the repair of lost replicas. One task runs at a time, on this object's thread: it
// pages through an owner's inventory, decides by the directory which owner should have each object,
// and lets owners copy straight to each other (owner/data/copier.h), within a rate. An owner reads
// the objects that are on its disk only. A repair covers memory alone, because it begins by itself
// and must not load the disks.
//
//   queued -> running -> done | failed | cancelled
//
// The master's end forgets its tasks; the operator then asks again. No object is lost by that: an
// owner drops an object only after the other owner has it, listed. One lock guards the tasks; no
// call to an owner or to the master is made under it.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/base/result.h"
#include "kvcove/master/server/server.h"
#include "kvcove/rpc/channel.h"
#include "kvcove/wire/tasks.h"

namespace kvcove::master {

enum class TaskKind : std::uint8_t { kCopy, kMove, kDrain, kRepair };
enum class TaskState : std::uint8_t { kQueued, kRunning, kDone, kFailed, kCancelled };
std::string_view TaskKindName(TaskKind kind);
std::string_view TaskStateName(TaskState state);

struct TaskRequest {
  TaskKind kind = TaskKind::kCopy;
  std::string from;             // the owner's address; empty for a repair, which covers all owners
  std::string to;               // of a copy or move; empty: any owner with room
  std::vector<SlotId> slots{};  // a namespace's weight versions, say; empty: all
  std::string prefix;           // of the keys
  bool one_key = false;         // the prefix is a whole key, and slots are named
};

struct TaskStat {
  std::uint64_t id = 0;
  TaskRequest request;
  TaskState state = TaskState::kQueued;
  std::uint64_t looked_at = 0;  // objects; those of repeated walks count again
  std::uint64_t copied = 0;     // objects
  std::uint64_t copied_bytes = 0;
  std::uint64_t left = 0;  // objects of the last walk that found no room, or whose copy failed
  std::string message;     // the reason of a failure, or advice
  double seconds = 0;
};

struct TaskOptions {
  std::uint64_t bytes_per_second = 256ULL << 20;
  // Time without a change of the live owners before a repair begins: a restart is no loss.
  std::int64_t repair_delay_ns = 5 * kSecond;
};

// Thread-safe.
class Tasks {
 public:
  Tasks(MasterServer& cluster, const TaskOptions& options, const Clock& clock);
  // Starts the thread, which runs tasks from now on. Errors: as StartThread.
  Status Begin();
  // Cancels all tasks and joins the thread. Ends a call to an owner within Interrupt::kLookNs, and
  // waits for one to other masters, 1 s at most.
  ~Tasks();

  // Queues a task and returns its number, under which List shows it even if it has nothing to do.
  // The owner of a drain takes no more objects once the answer to its next renewal says so. Errors:
  // kInvalid for an owner that is not alive, or one owner as source and target; kLimit when too
  // many tasks wait.
  Result<std::uint64_t> Start(const TaskRequest& request);
  // Cancels a task: one that waits at once, one that runs after its call to an owner. The owner of
  // a drain takes objects again, also if the drain is done. Errors: kMiss.
  Status Cancel(std::uint64_t id);
  // Returns the tasks that are remembered, newest first.
  std::vector<TaskStat> List() const;
  // Adds the metrics of tasks.
  void Collect(Metrics& metrics) const;

 private:
  struct Task {
    TaskStat stat;
    std::int64_t began_ns = 0;
    bool cancel = false;
    bool asked_for = true;  // by an operator; false: a repair that the master began itself
  };
  struct Move {  // of one object
    wire::HeldObject object;
    std::vector<wire::OwnerNumber> holders;
  };

  Result<std::uint64_t> Queue(const TaskRequest& request, bool asked_for);
  void Run();
  // Queues a repair if the live owners differ from those of the last repair.
  void WatchOwners();
  void RunTask(Task& task);
  // Carry out a copy or move, a drain, a repair. If the task is cancelled meanwhile, their result
  // is not used. Errors: kNoSpace when objects are left, kInProgress as Wanted, and those of the
  // calls.
  Status RunOver(Task& task, const wire::OwnerStat& from);
  Status Drain(Task& task, const wire::OwnerStat& from);
  // Checks that the owner still drains. Errors: kUnavailable if it has restarted, and takes objects
  // again, or has ended.
  Status StillDrains(const wire::OwnerStat& from) const;
  Status Repair(Task& task);
  struct Walked {
    std::uint64_t wanted = 0;  // objects that should move
    std::uint64_t left = 0;    // objects of these that did not
    bool disks = false;        // the walk covered the owner's disks, too
  };
  // Walks once over the owner's inventory, and copies or moves the objects that should be
  // elsewhere.
  Result<Walked> Walk(Task& task, const wire::OwnerStat& from);
  // Returns the objects of a page that should be copied or moved. Errors: kInProgress if the
  // holders of an object are not known within 10 s.
  Result<std::vector<Move>> Wanted(const Task& task, const wire::OwnerStat& from,
                                   const std::vector<wire::HeldObject>& page);
  // Returns the live owners of each object, by the whole directory, in the page's order. `repair`:
  // waits for owners that still list their inventory, too: a replica that is not listed yet looks
  // lost. Errors: kInProgress after 10 s.
  Result<std::vector<std::vector<wire::OwnerNumber>>> HoldersOf(
      bool repair, const std::vector<wire::HeldObject>& page);
  // Moves the objects, each to one of a few targets, and returns the number of those that remain.
  std::uint64_t MoveAll(Task& task, const wire::OwnerStat& from, std::vector<Move> moves);
  // Lets `from` copy the objects to one target, in one call. Returns those to try again, at this
  // target or at another one. `refused`: set if the target has no room, or the call failed.
  std::vector<Move> MoveTo(Task& task, const wire::OwnerStat& from, const std::string& address,
                           std::span<Move> part, bool& refused);
  // Returns the best target, and takes the object's size off its free bytes in `owners`. Null:
  // none.
  const wire::OwnerStat* TargetFor(const Task& task, const wire::OwnerStat& from, const Move& move,
                                   std::vector<wire::OwnerStat>& owners) const;
  // Calls an owner. The end of this object ends the call.
  Result<std::string> Call(const std::string& address, wire::Method method, const std::string& body,
                           std::int64_t deadline_ns);
  // Returns the channel to an owner. `address` must be valid (ParseAddress).
  rpc::TcpChannel& ChannelTo(const std::string& address);
  // Returns the live owner at this address. Errors: kInvalid.
  Result<wire::OwnerStat> Live(const std::string& address) const;
  bool HasDisk(const wire::OwnerStat& owner) const;
  bool Cancelled(const Task& task) const;
  // Waits, but not beyond the next task that is queued. False: this object ends.
  bool Sleep(std::int64_t duration_ns);
  // Sleeps as long as these bytes take at the allowed rate.
  void Pay(std::uint64_t bytes);

  MasterServer& cluster_;
  const TaskOptions options_;
  const Clock& clock_;

  mutable Mutex mutex_;
  CondVar changed_;
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::atomic<bool> ends_ = false;  // as stopping_, for calls to owners
  std::uint64_t next_id_ KVCOVE_GUARDED_BY(mutex_) = 1;
  std::deque<std::shared_ptr<Task>> tasks_ KVCOVE_GUARDED_BY(mutex_);  // oldest first
  std::uint64_t copied_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::uint64_t copied_bytes_ KVCOVE_GUARDED_BY(mutex_) = 0;

  // Only the thread uses these.
  std::map<std::string, std::unique_ptr<rpc::TcpChannel>> channels_;  // by address, for one task
  std::string seen_owners_;           // live owners at the last look, with their epochs
  std::string repaired_owners_;       // those of the last repair
  std::int64_t repair_pause_ns_ = 0;  // before the next repair; doubles with each that fails
  std::int64_t seen_since_ns_ = 0;    // time since which `seen_owners_` has not changed
  std::thread thread_;
};

}  // namespace kvcove::master
