// SPDX-License-Identifier: Apache-2.0
// Keys that calls want to have in memory, and that a disk is to be read for: one load a key,
// however many calls wait for it.
//
//   Add --> queued --First, Take--> being read --Finish--> over: its waiters have their results
//             |  ^                                           ^
//             |  +-- Requeue                                 | FailAll; nobody waits any more
//             v                                              |
//           elsewhere: the log is writing its value ---------+
//
// A call waits in one LoadBatch a disk. It is answered, once, when its last key has a result, at
// its deadline, or when the disk ends its loads. Nothing is answered in here: TakeReady gives what
// is to be answered to a caller that holds no lock, and the caller says when it has done so
// (Answered).
//
// Needs the lock of its holder. No I/O, no clock.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kvcove/owner/core/core_types.h"
#include "kvcove/owner/disk/load_queue.h"

namespace kvcove::owner {

inline wire::LoadResult MissFor(MissReason reason) {
  return {.code = Code::kMiss, .reason = reason};
}

// The keys of one call that are on one disk. The disk's thread answers its first keys while its
// last ones are still being added: from the first Add on, all but `done` belongs to DiskLoads and
// its lock.
struct LoadBatch {
  std::int64_t deadline_ns = 0;
  SessionNumber session = 0;
  std::int64_t hold_until_ns = 0;
  std::function<void(std::vector<wire::LoadResult>)> done;
  // Set by DiskLoads alone:
  std::vector<wire::LoadResult> results;  // one for each key, in their order
  std::size_t open = 1;  // keys without an answer, and the call that adds them, until Begin
  std::uint64_t bytes = 0;
  bool answered = false;
};

// One key that is being promoted, for all that wait for it.
struct Load {
  SlotId slot = 0;
  Generation generation = 0;
  std::string key;
  // The key before it in its call: memory's policy takes it for the chunk before it, for callers
  // ask for chains in their order. Without it, each chunk that comes up would begin a chain.
  std::string after;
  std::uint64_t put = 0;  // EvictedObject::put, once it is read
  std::uint64_t tag = 0;
  disklog::ShareNumber share = disklog::kNoShare;
  // Set by DiskLoads alone:
  bool cancelled = false;
  std::vector<std::pair<std::shared_ptr<LoadBatch>, std::size_t>> waiters;
};

class DiskLoads {
 public:
  using Ready = std::vector<std::shared_ptr<LoadBatch>>;
  struct Limits {
    std::size_t loads = 0;          // keys being read, or waiting for that
    std::uint64_t batch_bytes = 0;  // that one call promotes at a time; one value always may
  };
  struct Counts {
    std::uint64_t promoted = 0;
    std::uint64_t promoted_bytes = 0;
    std::uint64_t misses = 0;
    std::uint64_t timeouts = 0;
    std::uint64_t failed = 0;
    std::uint64_t no_room = 0;
  };

  // `read_rates`: bytes a second, by share; 0 is any rate.
  DiskLoads(const Limits& limits, std::span<const std::uint64_t> read_rates, std::int64_t now_ns);
  void SetRates(std::span<const std::uint64_t> read_rates, std::int64_t now_ns) {
    queue_.SetRates(read_rates, now_ns);
  }

  // ---- calls
  // Waits for the key with one more item of the batch. False: too many loads wait.
  bool Add(const std::shared_ptr<LoadBatch>& batch, const Load& wanted);
  // One more item of the batch is a miss. Returns false.
  bool Refuse(LoadBatch& batch, MissReason reason);
  // All keys of the batch are added.
  void Begin(const std::shared_ptr<LoadBatch>& batch);
  // Nobody waits for the batch any more: it is not answered.
  static void Cancel(LoadBatch& batch) { batch.answered = true; }
  // Answers the batches whose deadlines are over.
  void Expire(std::int64_t now_ns);
  // Answers all, and takes none from now on.
  void End();
  bool ended() const { return ended_; }
  // The batches that are to be answered without a lock, with results that do not change any more.
  Ready TakeReady() { return std::exchange(ready_, {}); }
  // A caller has answered that many of them.
  void Answered(std::size_t batches) { answering_ -= batches; }
  // Some are not answered yet.
  bool answering() const { return answering_ > 0; }

  // ---- fences
  // A load whose value must not be promoted any more stays one, and ends as a miss, so that a later
  // call for its key does not begin another one beside it.
  void Fence(std::uint64_t tag);
  void FenceMatching(SlotId slot, std::string_view pattern);
  // Ends all with `reason`.
  void FailAll(MissReason reason);

  // ---- the disk's thread
  // The load that is next, or null: none waits, or those that wait are beyond their rates. It stays
  // so until Take, or until one of another share is next. Ends loads that nobody waits for any
  // more. `elsewhere`: true for a load that has found another place to wait in until Requeue.
  std::shared_ptr<Load> First(std::int64_t now_ns,
                              const std::function<bool(const std::shared_ptr<Load>&)>& elsewhere);
  void Requeue(const std::shared_ptr<Load>& load) { queue_.Push(load); }
  // `bytes` are read for it. False: its batch has promoted as much as it may, and asks again; or
  // the load has ended since First.
  bool Take(const std::shared_ptr<Load>& load, std::uint64_t bytes);
  void Finish(const std::shared_ptr<Load>& load, const wire::LoadResult& result);
  static bool Waits(const Load& load);
  // Who wants the key to stay in memory for a while, and until when.
  static std::vector<std::pair<SessionNumber, std::int64_t>> HoldersOf(const Load& load);

  // ---- figures
  // No load is queued; others may be under way.
  bool empty() const { return queue_.empty(); }
  // Some wait for nothing but their rate.
  bool paced(std::int64_t now_ns) { return queue_.paced(now_ns); }
  std::uint64_t read_bytes(disklog::ShareNumber share) const { return queue_.read_bytes(share); }
  const Counts& counts() const { return counts_; }

 private:
  void MakeReady(const std::shared_ptr<LoadBatch>& batch);

  const Limits limits_;
  LoadQueue queue_;
  std::unordered_map<std::uint64_t, std::shared_ptr<Load>> loads_;  // by tag
  std::list<std::shared_ptr<LoadBatch>> batches_;                   // that have begun
  Ready ready_;
  std::size_t answering_ = 0;  // batches that are ready, and not answered yet
  bool ended_ = false;
  Counts counts_;
};

}  // namespace kvcove::owner
