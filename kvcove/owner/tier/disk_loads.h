// SPDX-License-Identifier: Apache-2.0
// Keys that calls want in memory and that are read from a disk: one load for each key, however many
// calls wait for the key.
//
//   Add --> queued --First, Take--> being read --Finish--> over: its waiters have their results
//             |  ^                                           ^
//             |  +-- Requeue                                 | FailAll; no call waits any more
//             v                                              |
//           elsewhere: the log is writing its value ---------+
//
// A call has one LoadBatch for each disk. A batch is answered once: when its last key has a result,
// at its deadline, or when the disk ends its loads. DiskLoads itself answers none: TakeReady
// returns the batches to a caller, which answers them without a lock and then calls Answered.
//
// Needs the lock of its holder. Has no I/O and no clock.
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
#include "kvcove/owner/tier/load_queue.h"

namespace kvcove::owner {

// Returns a miss with this reason.
inline wire::LoadResult MissFor(MissReason reason) {
  return {.code = Code::kMiss, .reason = reason};
}

// The keys of one call that are on one disk. The disk's thread may answer the first keys while the
// call still adds the last ones: from the first Add on, all members but `done` belong to DiskLoads
// and its lock.
struct LoadBatch {
  std::int64_t deadline_ns = 0;
  SessionNumber session = 0;
  std::int64_t hold_until_ns = 0;
  std::function<void(std::vector<wire::LoadResult>)> done;
  // Set by DiskLoads alone:
  std::vector<wire::LoadResult> results;  // one for each key, in the order of the keys
  std::size_t open = 1;  // keys without an answer; one more until Begin, so that no answer is early
  std::uint64_t bytes = 0;  // promoted for this call
  bool answered = false;
};

// One key that is being promoted, for all calls that wait for the key.
struct Load {
  SlotId slot = 0;
  Generation generation = 0;
  std::string key;
  // The key before this one in its call. Callers name the keys of a chain in order, so memory's
  // eviction policy takes that key for the preceding chunk. Otherwise each promoted chunk would
  // begin a chain.
  std::string after;
  std::uint64_t put = 0;  // EvictedObject::put; set once the value is read
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
    std::size_t loads = 0;          // keys that are queued or being read
    std::uint64_t batch_bytes = 0;  // most that one call promotes; a single value always may
  };
  struct Counts {
    std::uint64_t promoted = 0;
    std::uint64_t promoted_bytes = 0;
    std::uint64_t misses = 0;
    std::uint64_t timeouts = 0;
    std::uint64_t failed = 0;
    std::uint64_t no_room = 0;
  };

  // `read_rates`: bytes per second, by share; 0 is any rate.
  DiskLoads(const Limits& limits, std::span<const std::uint64_t> read_rates, std::int64_t now_ns);
  void SetRates(std::span<const std::uint64_t> read_rates, std::int64_t now_ns) {
    queue_.SetRates(read_rates, now_ns);
  }

  // ---- calls
  // Adds an item to the batch, which waits for the key. False: too many loads are queued, and the
  // item is a miss.
  bool Add(const std::shared_ptr<LoadBatch>& batch, const Load& wanted);
  // Adds an item to the batch that is a miss. Returns false.
  bool Refuse(LoadBatch& batch, MissReason reason);
  // Ends the additions to the batch.
  void Begin(const std::shared_ptr<LoadBatch>& batch);
  // Withdraws a batch for which no caller waits: it is not answered.
  static void Cancel(LoadBatch& batch) { batch.answered = true; }
  // Makes batches ready whose deadline has passed.
  void Expire(std::int64_t now_ns);
  // Makes all batches ready, and every later one at once.
  void End();
  bool ended() const { return ended_; }
  // Takes the batches that are to be answered without a lock. Their results no longer change.
  Ready TakeReady() { return std::exchange(ready_, {}); }
  // Notes that a caller has answered this many batches.
  void Answered(std::size_t batches) { answering_ -= batches; }
  // Returns true while a batch that is ready has not been answered.
  bool answering() const { return answering_ > 0; }

  // ---- fences
  // Fences the key's load: its value must not be promoted any more, and the load ends as a miss.
  // The load remains until then, so that a later call for the key does not begin a second one
  // beside it.
  void Fence(std::uint64_t tag);
  // Fences all loads of the slot whose keys match.
  void FenceMatching(SlotId slot, std::string_view pattern);
  // Ends all loads as misses with this reason.
  void FailAll(MissReason reason);

  // ---- the disk's thread
  // Returns the next load, or null: no load is queued within the rate of its share. The load stays
  // first until Take, or until one of another share is first. Ends loads for which no call waits
  // any more. `elsewhere`: returns true for a load that waits in another place until Requeue.
  std::shared_ptr<Load> First(std::int64_t now_ns,
                              const std::function<bool(const std::shared_ptr<Load>&)>& elsewhere);
  // Queues a load again that waited elsewhere.
  void Requeue(const std::shared_ptr<Load>& load) { queue_.Push(load); }
  // Begins a load of `bytes`. False: the load is over, because its call has promoted as much as it
  // may and must ask again, or because the load has ended since First.
  bool Take(const std::shared_ptr<Load>& load, std::uint64_t bytes);
  // Ends a load, with this result for all calls that wait for it.
  void Finish(const std::shared_ptr<Load>& load, const wire::LoadResult& result);
  // Returns true if a call that is not answered waits for the load.
  static bool Waits(const Load& load);
  // Returns the sessions that want the key to stay in memory, each with the end of its hold.
  static std::vector<std::pair<SessionNumber, std::int64_t>> HoldersOf(const Load& load);

  // ---- figures
  // Returns true if no load is queued; others may be under way.
  bool empty() const { return queue_.empty(); }
  // Returns true if some loads wait for nothing but the rate of their share.
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
