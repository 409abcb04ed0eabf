// SPDX-License-Identifier: Apache-2.0
// What clients saw of some keys, with times of one clock, and whether a pool that keeps its
// promises could have shown it. A miss is always allowed; everything else must be explained:
//
//   nothing from nowhere   a value that is read was put under that key, by a put that had begun
//   fenced                 no reset has been proven that began after the put's token was captured,
//                          nor a removal of the key that began after the put had ended; a put that
//                          overlaps a removal may come before or after it
//   one version            what gave way to another value does not come back, except while a
//                          removal or a reset between the two is under way, or while a new
//                          master is being told what the owners hold
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kvcove/model/ids.h"

namespace kvcove::multihost {

inline constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

struct Operation {
  // kMaster: from the end of one master until the owners have told the next what they hold.
  enum class Kind : std::uint8_t { kPut, kGet, kRemove, kReset, kMaster };
  enum class Outcome : std::uint8_t {
    kUnknown,  // it may have happened, now or later: its caller died, or was told so
    kDone,     // put: stored and listed; get: a hit; removal, reset: proven
    kRefused,  // nothing happened, or a miss
  };
  Kind kind = Kind::kGet;
  Outcome outcome = Outcome::kUnknown;
  std::uint32_t key = 0;         // not of a reset, nor of a master
  std::uint64_t value = 0;       // of puts and hits; unique over all puts
  std::int64_t captured_ns = 0;  // puts: when its token was known
  std::int64_t began_ns = 0;
  std::int64_t ended_ns = kNever;
  // For the words of a violation only: which client it was, and where a hit lay.
  std::uint8_t client = 0;
  Tier tier = Tier::kMemory;
};

// What could not have been, in words; empty: nothing.
std::vector<std::string> CheckHistory(const std::vector<Operation>& history);

}  // namespace kvcove::multihost
