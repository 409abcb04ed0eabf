// SPDX-License-Identifier: Apache-2.0
// What moves objects between owners: copies and moves by hand, the draining of an owner, and the
// repair of lost replicas. One task runs at a time, on this object's thread; it pages through an
// owner's inventory, decides by the directory what should be where, and has owners copy straight to
// each other (owner/data/copier.h), no faster than it may. What lies on an owner's disk only is
// read by that owner; a repair goes over memory alone, for it begins by itself and reads no disks
// for that.
//
//   queued -> running -> done | failed | cancelled
//
// Tasks are forgotten with the master: to drain is to ask again. Nothing is lost by that: an object
// leaves its owner only after the other one has it, listed.
#pragma once

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
  std::string from;            // owners' addresses; not of a repair
  std::string to;              // of a copy or move; empty: any owner with room
  std::optional<SlotId> slot;  // empty: all
  std::string prefix;          // of the keys
  bool one_key = false;        // the prefix is a whole key, and the slot is named
};

struct TaskStat {
  std::uint64_t id = 0;
  TaskRequest request;
  TaskState state = TaskState::kQueued;
  std::uint64_t looked_at = 0;  // objects
  std::uint64_t copied = 0;
  std::uint64_t copied_bytes = 0;
  std::uint64_t left = 0;  // objects that found no room, or whose copy failed
  std::string message;     // why it failed, or what to know
  double seconds = 0;
};

struct TaskOptions {
  std::uint64_t bytes_per_second = 256ULL << 20;
  // How long owners must have stayed the same before lost replicas are looked for.
  std::int64_t repair_delay_ns = 5 * kSecond;
};

// Thread-safe.
class Tasks {
 public:
  Tasks(MasterServer& cluster, const TaskOptions& options, const Clock& clock);
  // Tasks run from now on. Errors: as StartThread.
  Status Begin();
  // Cancels what runs.
  ~Tasks();

  // Its number; it is listed from then on, also if there is nothing to do. Errors: kInvalid for an
  // owner that is not there, kLimit.
  Result<std::uint64_t> Start(const TaskRequest& request);
  // Errors: kMiss.
  Status Cancel(std::uint64_t id);
  std::vector<TaskStat> List() const;  // newest first
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
  // Queues a repair when the owners are others than at the last one.
  void WatchOwners();
  void RunTask(Task& task);
  Status RunOver(Task& task, const wire::OwnerStat& from);
  Status Drain(Task& task, const wire::OwnerStat& from);
  // Errors: kUnavailable: it was started again, and takes objects.
  Status StillDrains(const wire::OwnerStat& from) const;
  Status Repair(Task& task);
  struct Walked {
    std::uint64_t wanted = 0;  // objects that should move
    std::uint64_t left = 0;    // that did not
    bool disks = false;        // they were gone over, too
  };
  // One walk over the inventory.
  Result<Walked> Walk(Task& task, const wire::OwnerStat& from);
  // Errors: kInProgress where it is not known who else holds something of the page.
  Result<std::vector<Move>> Wanted(const Task& task, const wire::OwnerStat& from,
                                   const std::vector<wire::HeldObject>& page);
  // Live holders of each object, of the whole directory.
  Result<std::vector<std::vector<wire::OwnerNumber>>> HoldersOf(
      bool repair, const std::vector<wire::HeldObject>& page);
  std::uint64_t MoveAll(Task& task, const wire::OwnerStat& from, std::vector<Move> moves);
  // Those that did not move and may, to this target or another one; `refused`: the target has no
  // room, or does not answer.
  std::vector<Move> MoveTo(Task& task, const wire::OwnerStat& from, const std::string& address,
                           std::span<Move> part, bool& refused);
  const wire::OwnerStat* TargetFor(const Task& task, const wire::OwnerStat& from, const Move& move,
                                   std::vector<wire::OwnerStat>& owners) const;
  rpc::TcpChannel& ChannelTo(const std::string& address);
  Result<wire::OwnerStat> Live(const std::string& address) const;
  bool HasDisk(const wire::OwnerStat& owner) const;
  bool Cancelled(const Task& task) const;
  // False: stopping.
  bool Sleep(std::int64_t duration_ns);
  void Pay(std::uint64_t bytes);

  MasterServer& cluster_;
  const TaskOptions options_;
  const Clock& clock_;

  mutable Mutex mutex_;
  CondVar changed_;
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::uint64_t next_id_ KVCOVE_GUARDED_BY(mutex_) = 1;
  std::deque<std::shared_ptr<Task>> tasks_ KVCOVE_GUARDED_BY(mutex_);  // oldest first
  std::uint64_t copied_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::uint64_t copied_bytes_ KVCOVE_GUARDED_BY(mutex_) = 0;

  // The thread's own.
  std::map<std::string, std::unique_ptr<rpc::TcpChannel>> channels_;
  std::string seen_owners_;
  std::string repaired_owners_;
  std::int64_t seen_since_ns_ = 0;
  std::thread thread_;
};

}  // namespace kvcove::master
