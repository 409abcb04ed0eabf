// SPDX-License-Identifier: Apache-2.0
// Memory of ended owners that other processes still map.
//
// The kernel frees a killed owner's pages when the last process that maps them unmaps them. An
// engine does so within milliseconds of the owner's end, unless it is stopped, or hangs. Until then
// the memory is charged to the owner's control group, and the next owner there may not fit.
//
// Files of one segment have its id in their names: kvcove-header-ID and kvcove-payload-ID. Only the
// owner maps its header writable (readers have a read-only descriptor), so a segment has no owner
// any more if no process maps its header writable.
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
  std::string segment;      // id in the names of its files
  std::uint64_t bytes = 0;  // size of its payload: an upper bound of its memory
  std::vector<Holder> holders;

  // Returns a line such as "leftover: up to 4GiB of an ended owner (segment 12ab...), still mapped
  // by pid 71 (python3)".
  std::string Describe() const;
};

// Looks for leftovers in all processes that this one may inspect: those of its user, or all for
// root. Takes a few microseconds for each mapping; not for a hot path.
std::vector<Leftover> FindLeftovers(const std::string& proc = "/proc");

}  // namespace kvcove::segment
