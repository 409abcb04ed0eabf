// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/cuda/paths.h"

#include <algorithm>

namespace kvcove::transport::cuda {
namespace {

// Where spans begin in a slot: runs that are aligned in host memory stay aligned there.
constexpr std::uint64_t kAlign = 256;

class Chunks {
 public:
  Chunks(const PathLimits& limits, std::vector<PathChunk>& chunks)
      : limits_(limits), chunks_(chunks) {}

  // The host memory of `copy` is at most a chunk.
  void Add(const DeviceCopy& copy) {
    const bool goes_on =
        !chunks_.empty() && !chunks_.back().spans.empty() &&
        chunks_.back().spans.back().host + chunks_.back().spans.back().bytes == copy.host &&
        !std::ranges::binary_search(limits_.seams, copy.host);
    std::uint64_t at = goes_on ? end_ : Aligned(end_) + Odd(copy.host);
    if (chunks_.empty() || at + copy.bytes > limits_.chunk_bytes ||
        chunks_.back().runs.size() >= limits_.chunk_runs) {
      chunks_.emplace_back();
      at = Odd(copy.host);
      if (at + copy.bytes > limits_.chunk_bytes) at = 0;
      chunks_.back().spans.push_back({.host = copy.host, .offset = at, .bytes = 0});
    } else if (!goes_on) {
      chunks_.back().spans.push_back({.host = copy.host, .offset = at, .bytes = 0});
    }
    PathChunk& chunk = chunks_.back();
    chunk.spans.back().bytes += copy.bytes;
    chunk.runs.push_back({.offset = at, .device = copy.device, .bytes = copy.bytes});
    chunk.bytes += copy.bytes;
    end_ = at + copy.bytes;
  }

 private:
  static std::uint64_t Aligned(std::uint64_t offset) {
    return (offset + kAlign - 1) / kAlign * kAlign;
  }
  static std::uint64_t Odd(const std::byte* host) {
    return reinterpret_cast<std::uintptr_t>(host) % 16;  // NOLINT
  }

  const PathLimits& limits_;
  std::vector<PathChunk>& chunks_;
  std::uint64_t end_ = 0;  // of the last run in the last chunk's slot
};

}  // namespace

Paths PlanPaths(std::span<const DeviceCopy> copies, const PathLimits& limits) {
  Paths paths;
  Chunks chunks(limits, paths.chunks);
  const auto add = [&](const DeviceCopy& copy) {
    if (copy.bytes >= limits.threshold || copy.bytes > limits.chunk_bytes) {
      paths.alone.push_back(copy);
    } else {
      chunks.Add(copy);
    }
  };
  // Runs that became one may lie in several pinned pieces.
  const auto cut = [&](DeviceCopy copy) {
    auto seam = std::ranges::upper_bound(limits.seams, copy.host);
    for (; seam != limits.seams.end() && *seam < copy.host + copy.bytes; ++seam) {
      const auto bytes = static_cast<std::uint64_t>(*seam - copy.host);
      add({.host = copy.host, .device = copy.device, .bytes = bytes});
      copy = {
          .host = copy.host + bytes, .device = copy.device + bytes, .bytes = copy.bytes - bytes};
    }
    add(copy);
  };
  DeviceCopy last;
  for (const DeviceCopy& copy : copies) {
    if (copy.bytes == 0) continue;
    if (last.bytes != 0 && last.host + last.bytes == copy.host &&
        last.device + last.bytes == copy.device) {
      last.bytes += copy.bytes;
      continue;
    }
    if (last.bytes != 0) cut(last);
    last = copy;
  }
  if (last.bytes != 0) cut(last);
  return paths;
}

}  // namespace kvcove::transport::cuda
