// SPDX-License-Identifier: Apache-2.0
// What a disk that is a log keeps when a zone is freed: which of its objects are worth writing
// again. Pure code; the log's cleaner and the simulation ask it.
#pragma once

#include <optional>

namespace kvcove::policy {

// `since_read`: bytes put since the object was read, as a share of the disk; none: it was not read
// since it was written. `budget`: the share that is left of what moves may write.
//
// What was read comes back more often than what was not, and the sooner the later it was read. The
// less budget there is left, the younger the read must be, so that the budget lasts for all zones
// and goes to the best. With all of it, a read within two disks counts; a zone lives that long at
// most, so then every object that was read moves.
inline bool WorthMoving(std::optional<double> since_read, double budget) {
  constexpr double kReach = 2;
  return since_read && *since_read <= kReach * budget;
}

}  // namespace kvcove::policy
