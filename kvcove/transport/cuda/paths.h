// SPDX-License-Identifier: Apache-2.0
// Chooses a path for each run of a transfer. Pure; cost is one step a run.
//
//   run >= threshold   by itself, in one batched call of the copy engines
//   smaller runs       in chunks: whole spans of host memory through a slot of staging memory of
//                      the device, and one kernel for all runs of a chunk
//   seams              host memory that was pinned in pieces: the driver copies nothing across the
//                      end of a piece, so no run and no span does
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kvcove/transport/cuda/kernels.h"
#include "kvcove/transport/device.h"

namespace kvcove::transport::cuda {

struct PathLimits {
  std::uint64_t threshold = 0;  // bytes of a run; 0: all are copied by themselves
  std::uint64_t chunk_bytes = 4 << 20;
  std::uint32_t chunk_runs = 4096;
  // Addresses at which one pinned piece of host memory ends and another begins, in order.
  std::span<const std::byte* const> seams{};
};

// Host memory without a gap, and its place in the slot.
struct PathSpan {
  std::byte* host = nullptr;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};
// A run's place in the slot, and on the device.
struct PathRun {
  std::uint64_t offset = 0;
  std::uintptr_t device = 0;
  std::uint64_t bytes = 0;
};
struct PathChunk {
  std::vector<PathSpan> spans;
  std::vector<PathRun> runs;
  std::uint64_t bytes = 0;  // of runs
};
// Returns the runs that are copied by themselves. Calls `full` for each chunk as soon as it is
// full, so that the device has work while the rest is planned; the chunk is valid during the call.
// Runs that touch in both memories become one first.
std::vector<DeviceCopy> PlanPaths(std::span<const DeviceCopy> copies, const PathLimits& limits,
                                  const std::function<void(const PathChunk&)>& full);

}  // namespace kvcove::transport::cuda
