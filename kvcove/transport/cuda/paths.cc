// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/cuda/paths.h"

#include <algorithm>

namespace kvcove::transport::cuda {
namespace {

// Alignment of spans in a slot, plus the host address's remainder by 16: a run that is aligned in
// host memory is aligned in the slot, too, so the kernel moves its whole words.
constexpr std::uint64_t kAlign = 256;

class Chunks {
 public:
  Chunks(const PathLimits& limits, const std::function<void(const PathChunk&)>& full)
      : limits_(limits), full_(full) {}

  // Adds a run of at most a chunk's bytes.
  void Add(const DeviceCopy& copy) {
    const bool goes_on = !chunk_.spans.empty() &&
                         chunk_.spans.back().host + chunk_.spans.back().bytes == copy.host &&
                         !std::ranges::binary_search(limits_.seams, copy.host);
    std::uint64_t at = goes_on ? end_ : Aligned(end_) + Odd(copy.host);
    if (chunk_.runs.empty() || at + copy.bytes > limits_.chunk_bytes ||
        chunk_.runs.size() >= limits_.chunk_runs) {
      Flush();
      at = Odd(copy.host);
      // A run of nearly a chunk's size fits only at the slot's start, without the alignment.
      if (at + copy.bytes > limits_.chunk_bytes) at = 0;
      chunk_.spans.push_back({.host = copy.host, .offset = at, .bytes = 0});
    } else if (!goes_on) {
      chunk_.spans.push_back({.host = copy.host, .offset = at, .bytes = 0});
    }
    chunk_.spans.back().bytes += copy.bytes;
    chunk_.runs.push_back({.offset = at, .device = copy.device, .bytes = copy.bytes});
    chunk_.bytes += copy.bytes;
    end_ = at + copy.bytes;
  }
  void Flush() {
    if (!chunk_.runs.empty()) full_(chunk_);
    chunk_.spans.clear();
    chunk_.runs.clear();
    chunk_.bytes = 0;
  }

 private:
  static std::uint64_t Aligned(std::uint64_t offset) {
    return (offset + kAlign - 1) / kAlign * kAlign;
  }
  static std::uint64_t Odd(const std::byte* host) {
    return reinterpret_cast<std::uintptr_t>(host) % 16;  // NOLINT
  }

  const PathLimits& limits_;
  const std::function<void(const PathChunk&)>& full_;
  PathChunk chunk_;
  std::uint64_t end_ = 0;  // of the last run in the chunk's slot
};

}  // namespace

std::vector<DeviceCopy> PlanPaths(std::span<const DeviceCopy> copies, const PathLimits& limits,
                                  const std::function<void(const PathChunk&)>& full) {
  std::vector<DeviceCopy> alone;
  Chunks chunks(limits, full);
  const auto add = [&](const DeviceCopy& copy) {
    if (copy.bytes >= limits.threshold || copy.bytes > limits.chunk_bytes) {
      alone.push_back(copy);
    } else {
      chunks.Add(copy);
    }
  };
  // Cuts a run at seams: one that was joined from several may be in several pinned pieces.
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
  chunks.Flush();
  return alone;
}

}  // namespace kvcove::transport::cuda
