// SPDX-License-Identifier: Apache-2.0
// Replays requests against memory with a disk below it: what both find together, how much of it is
// found in memory, and how much is written to the disk, which is what wears it.
//
// A block that is read from the disk stays there, and is in memory, too; memory then gives it up
// without a write. Each tier has a policy. The disk's policy hears of whole requests, of blocks in
// either tier, because blocks that arrive one by one, as memory gives them up, tell nothing of the
// requests that they come from; `kApart` shows what that would cost. A disk of zones has none: what
// was written first goes first, or, with moves, what was read of it is written again.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kvcove/base/result.h"
#include "kvcove/policy/write_filter.h"
#include "lab/policy/simulate.h"

namespace kvcove::lab {

// What is written to the disk.
enum class Descent : std::uint8_t {
  kApart,     // what memory gives up; the disk's policy hears of nothing else
  kVictims,   // what memory gives up
  kUsed,      // of that, what was asked for at least twice
  kWorth,     // of that, what the disk's policy does not give up first
  kAdmitted,  // of that, what WriteFilter thinks worth a write (policy/write_filter.h)
  kStored,    // each block when it is stored: the disk has all that memory has
};

struct TwoTierOptions {
  std::string_view memory_policy = "default";
  std::string_view disk_policy = "default";
  Descent descent = Descent::kWorth;
  // The disk gives up its blocks in zones, oldest first, as a log does, whatever its policy thinks.
  bool zones = false;
  bool moves = false;  // of the zones: as an owner's disk does (lab/policy/zone_log.h)
  std::uint64_t memory_blocks = 0;
  std::uint64_t disk_blocks = 0;
  policy::WriteFilterOptions admission;  // of kAdmitted; the tier's size is the disk's
};

struct TwoTierCount {
  HitCount together;
  std::uint64_t memory_hits = 0;  // of `together.hit_blocks`: in memory
  std::uint64_t written = 0;      // blocks that memory gave up, to the disk
  std::uint64_t moved = 0;        // blocks that were written again
  std::uint64_t evicted = 0;      // by memory, also what was on the disk already

  double memory_ratio() const { return HitCount{memory_hits, together.blocks}.ratio(); }
  double evicted_ratio() const { return HitCount{written, evicted}.ratio(); }
  double write_amplification() const {
    return written == 0 ? 0 : HitCount{written + moved, written}.ratio();
  }
  double written_ratio() const { return HitCount{written, together.blocks}.ratio(); }
};

// Errors: kInvalid for an unknown policy, or a tier without blocks.
Result<TwoTierCount> SimulateTwoTiers(const TwoTierOptions& options,
                                      std::span<const Chain> requests);

}  // namespace kvcove::lab
