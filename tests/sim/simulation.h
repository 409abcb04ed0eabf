// SPDX-License-Identifier: Apache-2.0
// The cores of one host in a deterministic simulation: writers, readers, resets, evictions,
// removals, pauses and deaths, cut into steps that a seed orders, in virtual time. Every read is
// checked against what was put.
#pragma once

#include <cstdint>
#include <string>

#include "tests/sim/reader_rules.h"

namespace kvcove::sim {

// What is left out in turn, to show that it would be noticed.
struct SimRules {
  ReaderRules reader;
  // A reserved range belongs to nobody else until its writer has stopped or is proven gone.
  bool reservation = true;
};

struct SimOptions {
  std::uint64_t seed = 1;
  std::uint64_t steps = 40000;
  SimRules rules;
};

struct SimReport {
  std::uint64_t verified_reads = 0;
  std::uint64_t verified_loans = 0;  // of those
  std::uint64_t voided_loans = 0;    // whose end said that a reset or a lease's end had come
  std::uint64_t misses = 0;
  std::uint64_t commits = 0;
  std::uint64_t stale_commits = 0;
  std::uint64_t resets = 0;
  std::uint64_t deaths = 0;
  std::uint64_t evictions = 0;
  std::string
      violation;  // empty: none. Else what was promised and not kept, with the seed and the step.
};

SimReport Simulate(const SimOptions& options);

}  // namespace kvcove::sim
