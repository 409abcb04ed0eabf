// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/cuda/paths.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "kvcove/base/random.h"

namespace kvcove::transport::cuda {
namespace {

std::byte* Host(std::uint64_t at) {
  return reinterpret_cast<std::byte*>(0x10000 + at);  // NOLINT
}

struct Paths {
  std::vector<DeviceCopy> alone;
  std::vector<PathChunk> chunks;
};
Paths PlanPaths(std::span<const DeviceCopy> copies, const PathLimits& limits) {
  Paths paths;
  paths.alone = cuda::PlanPaths(copies, limits,
                                [&](const PathChunk& chunk) { paths.chunks.push_back(chunk); });
  return paths;
}

TEST(PathsTest, WhatTouchesInBothMemoriesIsOneRun) {
  const DeviceCopy copies[] = {{Host(0), 1000, 100}, {Host(100), 1100, 50}, {Host(150), 2000, 10}};
  const Paths paths = PlanPaths(copies, {.threshold = 0});
  ASSERT_EQ(paths.alone.size(), 2);
  EXPECT_EQ(paths.alone[0].bytes, 150);
  EXPECT_EQ(paths.alone[1].device, 2000);
}

TEST(PathsTest, SmallRunsOfOneObjectAreOneSpan) {
  std::vector<DeviceCopy> copies;
  for (std::uint64_t i = 0; i < 80; ++i) copies.push_back({Host(i * 512), 100000 * i, 512});
  copies.push_back({Host(1 << 20), 1, 4096});
  const Paths paths = PlanPaths(copies, {.threshold = 4096, .chunk_bytes = 1 << 20});
  ASSERT_EQ(paths.alone.size(), 1);
  ASSERT_EQ(paths.chunks.size(), 1);
  EXPECT_EQ(paths.chunks[0].spans.size(), 1);
  EXPECT_EQ(paths.chunks[0].spans[0].bytes, 80 * 512);
  EXPECT_EQ(paths.chunks[0].runs.size(), 80);
}

TEST(PathsTest, AChunkIsBoundedInBytesAndRuns) {
  Random random(1);
  for (int turn = 0; turn < 200; ++turn) {
    const PathLimits limits{.threshold = 1024,
                            .chunk_bytes = 1024 + random.Below(8192),
                            .chunk_runs = 1 + static_cast<std::uint32_t>(random.Below(20))};
    std::vector<DeviceCopy> copies;
    std::uint64_t host = 0;
    std::uint64_t total = 0;
    for (std::uint64_t i = 0; i < 100; ++i) {
      const std::uint64_t bytes = 1 + random.Below(1200);
      host += random.OneIn(3) ? 1 + random.Below(40) : 0;
      copies.push_back({Host(host), 1'000'000 * (i + 1), bytes});
      host += bytes;
      total += bytes;
    }
    const Paths paths = PlanPaths(copies, limits);
    std::uint64_t seen = 0;
    for (const DeviceCopy& copy : paths.alone) seen += copy.bytes;
    for (const PathChunk& chunk : paths.chunks) {
      ASSERT_LE(chunk.runs.size(), limits.chunk_runs);
      seen += chunk.bytes;
      // Spans lie in order, apart, and hold all runs.
      std::uint64_t end = 0;
      for (const PathSpan& span : chunk.spans) {
        ASSERT_GE(span.offset, end);
        end = span.offset + span.bytes;
      }
      ASSERT_LE(end, limits.chunk_bytes);
      std::uint64_t bytes = 0;
      for (const PathRun& run : chunk.runs) {
        ASSERT_LE(run.offset + run.bytes, end);
        bytes += run.bytes;
      }
      ASSERT_EQ(bytes, chunk.bytes);
    }
    ASSERT_EQ(seen, total);
  }
}

// The driver copies nothing that lies in two pinned pieces.
TEST(PathsTest, NothingCrossesASeam) {
  Random random(3);
  for (int turn = 0; turn < 300; ++turn) {
    std::vector<const std::byte*> seams;
    for (std::uint64_t at = 0; at < 100'000; at += 500 + random.Below(4000)) {
      seams.push_back(Host(at));
    }
    const PathLimits limits{.threshold = random.Below(3000), .chunk_bytes = 8192, .seams = seams};
    std::vector<DeviceCopy> copies;
    std::uint64_t host = random.Below(100);
    std::uint64_t device = 1'000'000;
    std::uint64_t total = 0;
    for (int i = 0; i < 40; ++i) {
      const std::uint64_t bytes = 1 + random.Below(2500);
      device += random.OneIn(2) ? 0 : 64;  // every second one touches in both memories
      copies.push_back({Host(host), device, bytes});
      host += bytes;
      device += bytes;
      total += bytes;
    }
    const auto check = [&](const std::byte* at, std::uint64_t bytes) {
      const auto seam = std::ranges::upper_bound(seams, at);
      ASSERT_TRUE(seam == seams.end() || at + bytes <= *seam);
    };
    // Each byte goes where it is meant to.
    std::map<const std::byte*, std::pair<std::uintptr_t, std::uint64_t>> went;
    const Paths paths = PlanPaths(copies, limits);
    for (const DeviceCopy& copy : paths.alone) {
      check(copy.host, copy.bytes);
      went[copy.host] = {copy.device, copy.bytes};
    }
    for (const PathChunk& chunk : paths.chunks) {
      for (const PathSpan& span : chunk.spans) check(span.host, span.bytes);
      std::size_t span = 0;
      for (const PathRun& run : chunk.runs) {
        while (run.offset >= chunk.spans[span].offset + chunk.spans[span].bytes) ++span;
        const PathSpan& in = chunk.spans[span];
        ASSERT_LE(run.offset + run.bytes, in.offset + in.bytes);
        went[in.host + (run.offset - in.offset)] = {run.device, run.bytes};
      }
    }
    std::uint64_t seen = 0;
    for (const auto& [at, to] : went) {
      const auto of = std::ranges::find_if(copies, [&](const DeviceCopy& copy) {
        return copy.host <= at && at < copy.host + copy.bytes;
      });
      ASSERT_NE(of, copies.end());
      ASSERT_EQ(to.first, of->device + static_cast<std::uint64_t>(at - of->host));
      seen += to.second;
    }
    ASSERT_EQ(seen, total);
  }
}

// The kernel's twin with any number of threads and blocks, at all alignments.
TEST(KernelTest, MovesRunsAtAnyAlignment) {
  constexpr std::uint64_t kSize = 2048;
  Random random(7);
  for (int turn = 0; turn < 3000; ++turn) {
    alignas(16) char from[kSize];
    alignas(16) char to[kSize];
    for (char& each : from) each = static_cast<char>(random.Next());
    std::memset(to, 'x', sizeof to);
    char expected[kSize];
    std::memset(expected, 'x', sizeof expected);
    const std::uint64_t most = random.OneIn(2) ? 90 : 1500;
    std::vector<MoveRun> runs;
    std::uint64_t out = random.Below(20);
    for (std::uint64_t i = random.Below(6); i > 0; --i) {
      const std::uint64_t bytes = random.Below(most);
      const std::uint64_t in = random.Below(kSize - bytes);
      if (out + bytes > kSize) break;
      runs.push_back({.from = reinterpret_cast<std::uintptr_t>(from + in),
                      .to = reinterpret_cast<std::uintptr_t>(to + out),
                      .bytes = bytes});
      std::memcpy(expected + out, from + in, bytes);
      out += bytes + random.Below(3);
    }
    const unsigned blocks = 1 + static_cast<unsigned>(random.Below(4));
    // Also several groups of threads, and threads that are left over.
    const unsigned threads = 1 + static_cast<unsigned>(random.Below(random.OneIn(2) ? 9 : 140));
    for (unsigned block = 0; block < blocks; ++block) {
      for (unsigned thread = 0; thread < threads; ++thread) {
        MoveRuns({.thread = thread, .threads = threads, .block = block, .blocks = blocks},
                 runs.data(), static_cast<unsigned>(runs.size()));
      }
    }
    ASSERT_EQ(std::memcmp(to, expected, sizeof to), 0) << turn;
  }
}

}  // namespace
}  // namespace kvcove::transport::cuda
