// SPDX-License-Identifier: Apache-2.0
// A cluster in a deterministic simulation: the real master over the real control store, the real
// links and cores of owners, and requesters, in virtual time, with clocks that drift and stop, a
// network that delays, reorders, loses and cuts, disks that fail, and processes that pause, die and
// start again. Every read is checked against what was put; when the faults have ended, everything
// must work again.
#pragma once

#include <cstdint>
#include <string>

#include "kvcove/master/master.h"
#include "tests/sim/sim_owner.h"

namespace kvcove::sim {

struct ClusterSimOptions {
  std::uint64_t seed = 1;
  std::int64_t seconds = 25;        // of virtual time, with faults
  std::int64_t quiet_seconds = 10;  // without, before everything must work
  // ---- what may happen
  bool stopped_clocks = false;  // hosts' virtual machines are paused
  bool lost_facts = true;       // the control file is lost, damaged, or rolled back
  // Nothing but this: owners miss resets, and the control file is rolled back to before those.
  // Unlike after other losses, what was proven must stay so.
  bool rolls_back = false;
  bool walks = false;  // SimOwner::Options
  // Versions come up one after the other, and older ones are declared dead. Without `lost_facts`: a
  // store that is lost does not say which are dead.
  bool prunes = false;
  bool check_availability = true;
  bool force_lenient = false;  // an expired lease proves something, even so
  // ---- what is switched off in turn
  master::MasterOptions master;
  OwnerRules rules;
};

struct ClusterSimReport {
  std::uint64_t verified_reads = 0;
  std::uint64_t puts = 0;
  std::uint64_t stale_puts = 0;
  std::uint64_t resets_proven = 0;
  std::uint64_t removals_proven = 0;
  std::uint64_t prunes_proven = 0;
  std::uint64_t copies = 0;  // of objects to other owners
  std::uint64_t owner_deaths = 0;
  std::uint64_t master_deaths = 0;
  std::uint64_t pauses = 0;
  std::uint64_t partitions = 0;
  std::uint64_t rollbacks = 0;    // of the control file, behind a reset that an owner missed
  std::uint64_t found_again = 0;  // objects that had to be there at the end, and were
  std::uint64_t events = 0;
  std::string violation;  // empty: none
};

ClusterSimReport SimulateCluster(const ClusterSimOptions& options);

}  // namespace kvcove::sim
