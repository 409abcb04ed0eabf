// SPDX-License-Identifier: Apache-2.0
// Marks of the engine's blocks: the epoch in which each was computed or loaded, whether the pool
// has it, and the adapter with which it was computed.
//
// A reset, another generation or other weights begin an epoch. Every mark of an older one is then
// void without being touched: a block may be stored, and a request that begins on it may store,
// only while its mark is of the current epoch.
//
//   nothing --Computed--> computed --BeginSave--> stored --Unstored--> computed
//   any --BeginLoad--> nothing --Loaded, or Settle with the load that it awaits--> stored
//   any --Void--> nothing
#pragma once

#include <cstdint>
#include <vector>

#include "kvcove/connector/plan.h"

namespace kvcove::connector {

// Does no I/O. Needs its owner's lock. The null block has no mark: callers leave it out.
class Marks {
 public:
  // `blocks`: number of the engine's blocks; 0: unknown, and the table grows with the blocks that
  // it sees.
  explicit Marks(std::uint64_t blocks) : blocks_(blocks) {}

  std::uint64_t epoch() const { return epoch_; }
  void BeginEpoch() { ++epoch_; }

  // Marks a block that the engine computes anew. `storable` false: no KV that begins on it may be
  // stored. `awaits`: the synchronous load on whose blocks it is computed; Settle decides later.
  void Computed(BlockId block, bool storable, std::uint64_t adapter_tag, JobId awaits = 0);
  // Bars a block from being stored, or begun on: a request that may not store writes to it.
  void Void(BlockId block) { At(block).epoch = 0; }
  // Marks a block that a load may overwrite from now on. `awaits`: its job, if it is synchronous.
  void BeginLoad(BlockId block, JobId awaits) { At(block) = {.awaits = awaits}; }
  // Marks a block whose KV was loaded: the pool has it.
  void Loaded(BlockId block, std::uint64_t adapter_tag);
  // Marks a block that awaited the synchronous load `job`, which has ended well. `loaded`: the load
  // filled the block; false: the block was computed behind it. Does nothing if another request has
  // the block now.
  void Settle(BlockId block, JobId job, bool loaded, std::uint64_t adapter_tag);
  // Copies the mark of `from` to `to`, except that it is stored: a copy is of a part of a chunk,
  // which is never a value of its own. Returns the load that the copy awaits, 0 for none.
  JobId Copy(BlockId from, BlockId to);

  // Returns whether KV that is computed behind this block may be stored: the block is of this epoch
  // and of this adapter, or it awaits the request's own load (0: there is none).
  bool MayBeginOn(BlockId block, std::uint64_t adapter_tag, JobId own_load);
  // Begins a save. True once an epoch, if the block may be stored; it counts as stored from now on.
  bool BeginSave(BlockId block);
  // Notes the job of the save, and returns that of the last one since the block was computed; 0:
  // none. The job may have ended.
  void NoteSave(BlockId block, JobId job) { At(block).save = job; }
  JobId SaveOf(BlockId block) { return At(block).save; }
  // Takes the save back, as it has failed: another request may store the block.
  void Unstored(BlockId block);

 private:
  struct Mark {
    std::uint64_t epoch = 0;        // in which it was computed or loaded; 0: it may not be stored
    std::uint64_t stored = 0;       // the epoch in which it was, or is being, stored
    std::uint64_t adapter_tag = 0;  // of the adapter with which it was computed
    JobId save = 0;                 // the last one
    JobId awaits = 0;               // the synchronous load whose report says whether it is right
  };
  Mark& At(BlockId block);

  const std::uint64_t blocks_;
  std::uint64_t epoch_ = 1;
  std::vector<Mark> marks_;
};

}  // namespace kvcove::connector
