// SPDX-License-Identifier: Apache-2.0
// Both tiers of one owner in a deterministic simulation: puts that come late, gets, removals,
// resets, evictions and reads of the disk in every order that a seed gives, on a disk that fails,
// hangs, flips bits and lies about syncs, by place and kind of operation, in a process that ends,
// is killed, or loses power, and whose disk may be put back from a copy. Every value that is read
// is checked:
//
//   its own      the bytes of one put of that key
//   fenced       no reset was proven since its token was captured, and no removal that began after
//                its put
//   one version  what gave way to another value does not come back
//
// At its end the disk, left alone, stops writing.
#pragma once

#include <cstdint>
#include <string>

namespace kvcove::sim {

// What is left out in turn, to show that it would be noticed.
struct TierRules {
  bool generations = true;  // a restart tells the disk which generations are current
  bool removals = true;     // the disk hears of removals
  bool note = true;         // a restart knows that the disk has missed a removal
  bool openings = true;     // a restart knows a disk from an earlier copy of it
};

struct TierSimOptions {
  std::uint64_t seed = 1;
  std::uint64_t steps = 6000;
  TierRules rules;
};

struct TierReport {
  std::uint64_t reads = 0;       // of memory, verified
  std::uint64_t disk_reads = 0;  // values that came up, verified
  std::uint64_t commits = 0;
  std::uint64_t stale_commits = 0;
  std::uint64_t removals = 0;  // proven
  std::uint64_t resets = 0;
  std::uint64_t restarts = 0;  // in order, by a kill, after a loss of power
  std::uint64_t asides = 0;
  std::uint64_t reused = 0;   // of these, used again with what the disk held
  std::uint64_t damaged = 0;  // records
  std::uint64_t copies = 0;   // of an earlier time that were put back, and noticed
  std::uint64_t lies = 0;     // losses of power after syncs that had synced nothing
  // Returns how many operations have ended as they should.
  std::uint64_t Operations() const {
    return reads + disk_reads + commits + stale_commits + removals + resets + restarts + asides;
  }
  std::string violation;  // empty: none
};

TierReport SimulateTiers(const TierSimOptions& options);

}  // namespace kvcove::sim
