// SPDX-License-Identifier: Apache-2.0
// Notes which objects are asked for, for policy::WhatIf, and how long they stay in memory. No I/O.
// Not thread-safe: needs the core's lock.
//
// A call costs a compare, and for a sampled object an entry of a list. ExpectedHits takes that
// list and estimates from it without the lock. The list has a bound: what is beyond it is counted
// nowhere, neither as sampled nor as asked. Only resets are noted beyond it, once for each slot.
//
// 12 bytes an object: its sampling key, which a hit then does not have to compute from the key's
// text, that of the nearest sampled object before it in its chain, and when it was stored.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "kvcove/base/metrics.h"
#include "kvcove/owner/core/core_types.h"
#include "kvcove/policy/distinct_count.h"
#include "kvcove/policy/id_list.h"
#include "kvcove/policy/what_if.h"

namespace kvcove::owner {

class Asks {
 public:
  // 1 MiB, which is a second of work or less.
  static constexpr std::size_t kMostNoted = 65'536;

  // Sets the time of the calls that follow.
  void SetNow(std::int64_t now_ns) {
    now_s_ = static_cast<std::uint32_t>(now_ns / kSecond) & 0x7FFFFFFF;
  }

  struct Object {
    ObjectId id = kNoObject;
    std::uint64_t hash = 0;  // of its key
    std::uint64_t bytes = 0;
    SlotId slot = 0;
    Generation generation = 0;
  };
  // Notes that it was stored because nobody had it. `parent`: the object before it in its chain,
  // kNoObject if there is none, or it is gone; `parent_hash`: of its key, also then.
  void Stored(const Object& object, ObjectId parent, std::uint64_t parent_hash);
  // Notes that it came up from the lower tier: the read that it came up for follows.
  void CameUp(const Object& object, ObjectId parent, std::uint64_t parent_hash);
  // Returns whether Hit and Touched know the object. A successor's process knows none at first.
  bool Knows(ObjectId id) const { return objects_.Has(id) && objects_[id].key != 0; }
  // Notes that it was read.
  void Hit(const Object& object);
  // Notes that it was stored again, and that nobody asked for it.
  void Touched(const Object& object);
  // Notes that the request whose latest object this is has ended.
  void RequestEnded(ObjectId id);
  // Notes that it was withdrawn. `went_down`: the lower tier has it.
  void Gone(const Object& object, MissReason reason, bool went_down);
  // Prefetches for a later Gone.
  void Prefetch(ObjectId id) const {
    if (objects_.Has(id)) __builtin_prefetch(&objects_[id]);
  }
  // Notes that all objects of the slot were voided.
  void SlotVoided(SlotId slot);

  // Samples one key in 2^`shift` from now on.
  void SetShift(unsigned shift) { shift_ = shift; }
  // Exchanges the list, oldest first, for an empty one; returns how many objects were asked for.
  std::uint64_t Take(std::vector<policy::Access>& accesses);

  // Returns about how many different keys were asked for.
  std::uint64_t distinct() const { return distinct_.Estimate(); }
  // Returns how long evicted objects had been in memory.
  const LongTimes& residence() const { return residence_; }

 private:
  struct Record {
    std::uint32_t key = 0;            // 0: not known
    std::uint32_t above = 0;          // of the nearest sampled object before it; 0: none
    std::uint32_t stored_s : 31 = 0;  // as now_s_; 0: not known
    std::uint32_t came_up : 1 = 0;    // from the lower tier, and was not read since
  };
  static_assert(sizeof(Record) == 12);
  static std::uint32_t KeyOf(std::uint64_t hash) {
    const auto key = static_cast<std::uint32_t>(hash >> 16);
    return key == 0 ? 1 : key;
  }
  bool Sampled(std::uint32_t key) const { return policy::WhatIf::Sampled(key, shift_); }
  // Returns the key of the object, or of the nearest one before it, that is sampled; 0: none.
  std::uint32_t SampledUpTo(ObjectId id) const {
    const Record& record = objects_[id];
    return Sampled(record.key) ? record.key : record.above;
  }
  Record& Remember(const Object& object, ObjectId parent, std::uint64_t parent_hash);
  void Ask(const Object& object, const Record& record, policy::Access::Kind kind);
  void Note(const policy::Access& access);

  policy::ChunkedArray<Record> objects_;
  std::vector<policy::Access> noted_;
  std::uint64_t asked_ = 0;  // since the last Take
  unsigned shift_ = 0;
  std::uint32_t now_s_ = 0;
  policy::DistinctCount distinct_;
  LongTimes residence_;
};

}  // namespace kvcove::owner
