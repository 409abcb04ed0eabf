// SPDX-License-Identifier: Apache-2.0
// Engines with their connectors in a deterministic simulation: the real roles and the model of an
// engine, in virtual time, on a pool that keeps what DESIGN's promises say and nothing more: it
// forgets, is late, loses answers, and does not always prove a reset. Every loaded block is
// checked.
#pragma once

#include <cstdint>
#include <string>

#include "kvcove/connector/scheduler/scheduler.h"

namespace kvcove::sim {

// What is switched off in turn, to show that it would be noticed.
struct EngineChecks {
  bool generation = true;   // the pool compares generations
  bool worker_gate = true;  // a rank tells that its weights change
  bool own_reset = true;    // an engine's update empties its own cache; else others must not see it
};

struct EngineSimOptions {
  std::uint64_t seed = 1;
  std::uint32_t engines = 16;
  std::uint32_t tp = 4;
  std::uint64_t loads = 100'000;  // verified blocks, on each rank, until it ends
  connector::VersionSource versions = connector::VersionSource::kFingerprint;
  EngineChecks checks;
};

struct EngineSimReport {
  std::uint64_t loads = 0;  // blocks verified, times ranks
  std::uint64_t finished = 0;
  std::uint64_t aborted = 0;
  std::uint64_t preempted = 0;
  std::uint64_t failed_blocks = 0;
  std::uint64_t updates = 0;
  std::uint64_t resets_unproven = 0;
  std::uint64_t engine_deaths = 0;
  std::uint64_t owner_deaths = 0;
  std::uint64_t lost_messages = 0;
  std::uint64_t late_puts = 0;
  std::uint64_t stale_puts = 0;  // refused
  std::uint64_t evictions = 0;
  std::uint64_t void_loads = 0;
  std::string violation;  // empty: none
};

EngineSimReport SimulateEngines(const EngineSimOptions& options);

}  // namespace kvcove::sim
