// SPDX-License-Identifier: Apache-2.0
// Memory of ended owners that other processes still map.
//
// The kernel gives a killed owner's pages back when the last process that maps them lets go. An
// engine does so within milliseconds of the owner's end, unless it is stopped, or hangs. Until then
// the memory stays charged to the owner's control group, and the next owner there may not fit.
//
// The files' names tell what belongs together: kvcove-header-ID and kvcove-payload-ID. Only an
// owner maps its header writable (readers have a descriptor that only reads), so a segment whose
// header nobody maps writable has no owner any more.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvcove/base/random.h"

namespace kvcove::segment {

std::string HeaderFileName(const Id128& segment);
std::string PayloadFileName(const Id128& segment);

struct Leftover {
  struct Holder {
    int pid = 0;
    std::string command;
  };
  std::string segment;      // of its files' names
  std::uint64_t bytes = 0;  // of payload: what it can hold at most
  std::vector<Holder> holders;

  // "leftover: up to 4GiB of an ended owner (segment 12ab...), still mapped by pid 71 (python3)".
  std::string Describe() const;
};

// What the processes below `proc` hold that this one may look at: those of its own user, or all for
// root. A few microseconds a mapping; not for a hot path.
std::vector<Leftover> FindLeftovers(const std::string& proc = "/proc");

}  // namespace kvcove::segment
