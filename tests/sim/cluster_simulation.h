// SPDX-License-Identifier: Apache-2.0
// The cores of a cluster in a deterministic simulation: a master, owners and requesters in virtual
// time, with clocks that drift, a network that delays, reorders, drops and partitions, and
// processes that pause, die and start again. Every read is checked against what was put.
#pragma once

#include <cstdint>
#include <string>

namespace kvcove::sim {

// What is switched off in turn, to show that it would be noticed.
struct ClusterChecks {
  bool generation = true;  // owners and readers compare generations
  bool lease = true;       // readers and owners look at the lease
  bool wait = true;        // a reset waits for owners that cannot be reached
  bool protection = true;  // memory is protected while it is read or sent
  bool used = true;        // a generation that was used is used for ever
  bool copies = true;      // a copy is listed only if nothing was removed since it was read
};

struct ClusterSimOptions {
  std::uint64_t seed = 1;
  std::int64_t seconds = 40;  // of virtual time
  ClusterChecks checks;
};

struct ClusterSimReport {
  std::uint64_t verified_reads = 0;
  std::uint64_t puts = 0;
  std::uint64_t stale_puts = 0;
  std::uint64_t resets_proven = 0;
  std::uint64_t removals_proven = 0;
  std::uint64_t copies = 0;  // of objects to other owners
  std::uint64_t owner_deaths = 0;
  std::uint64_t master_deaths = 0;
  std::uint64_t pauses = 0;
  std::uint64_t partitions = 0;
  std::string violation;  // empty: none
};

ClusterSimReport SimulateCluster(const ClusterSimOptions& options);

}  // namespace kvcove::sim
