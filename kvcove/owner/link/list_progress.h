// SPDX-License-Identifier: Apache-2.0
// How far the list lanes are: rounds, and the batches whose answers are being acted on. Needs
// LinkCore's lock. Does no I/O.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "kvcove/base/carry.h"
#include "kvcove/owner/link/shard_lanes.h"

namespace kvcove::owner {

// Counts rounds. A round has ended when all removed keys that were queued at its beginning are
// unlisted. With a single master a round is a batch, also an empty one, that left no removed key in
// the queue; at shards, all entries up to a mark. RemovalProgress acknowledges by rounds.
class ListRounds {
 public:
  std::uint64_t ended() const { return ended_; }
  void End() { ++ended_; }

  // ---- at shards
  // Begins a round, unless one is under way, with all that is queued now.
  void Begin(const ShardLanes& lanes) {
    if (!marks_) marks_ = lanes.Marks();
  }
  // Ends the round if the shards have answered all of it.
  void Check(const ShardLanes& lanes) {
    if (!marks_ || !lanes.Reached(*marks_)) return;
    marks_.reset();
    End();
  }
  // Abandons the round: marks of another map, or of none, mean nothing.
  void Abandon() { marks_.reset(); }

  template <typename Ar>
  void Carry(Ar& ar) {
    CarryAll(ar, ended_);
  }

 private:
  std::uint64_t ended_ = 0;
  std::optional<std::vector<std::uint64_t>> marks_;
};

// Batches whose answers were taken and are being acted on, without the lock: puts are completed,
// refused objects dropped.
class AnsweredBatches {
 public:
  // Notes that the owner begins to act on a batch. `restarts`: ShardLanes::restarts now. Returns
  // the batch's number.
  std::uint64_t Begin(std::uint64_t restarts) {
    acting_.emplace(next_, restarts);
    return next_++;
  }
  void End(std::uint64_t batch) { acting_.erase(batch); }
  std::uint64_t next() const { return next_; }
  // Returns true if no batch before `number` is being acted on: such a batch may still have refused
  // objects to drop.
  bool EndedBefore(std::uint64_t number) const {
    return acting_.empty() || acting_.begin()->first >= number;
  }
  // Returns false while puts are being completed that were answered under an earlier map or epoch.
  // The shard that listed them may have lost its slices, and a walk that passes before the owner
  // shows these objects would leave them unlisted.
  bool MayWalk(std::uint64_t restarts) const {
    return acting_.empty() || acting_.begin()->second == restarts;
  }

 private:
  std::map<std::uint64_t, std::uint64_t> acting_;  // by number: `restarts`
  std::uint64_t next_ = 0;
};

}  // namespace kvcove::owner
