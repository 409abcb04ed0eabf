// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/memory/populator.h"

#include <algorithm>
#include <utility>

#include "kvcove/base/log.h"

namespace kvcove::owner {

Populator::Populator(std::span<std::byte> memory, Options options)
    : memory_(memory), options_(std::move(options)), populated_(slices()) {}

void Populator::Start() {
  const Status started =
      work_.Start(options_.thread, Priority::kIdle, [this] { return Step(); }, options_.cpus);
  if (!started) {
    LogWarn("the segment is not populated beforehand: {}; puts populate their own part",
            started.error().detail);
  }
}

std::int64_t Populator::Step() {
  // Skips all slices that Ensure has populated. Acquire: pairs with PopulateSlice in a put's
  // thread, whose pages count for `done_` from here on.
  while (next_ < slices() && populated_[next_].load(std::memory_order_acquire)) ++next_;
  if (next_ < slices()) {
    if (const Status populated = PopulateSlice(next_); !populated) {
      LogWarn("populating the segment stopped at {}: {}; puts beyond it populate their own part",
              FormatSize(next_ * options_.slice_bytes), populated.error().ToString());
      return BackgroundWork::kDone;
    }
    ++next_;
  }
  // Release: a thread that loads it (done_bytes) may use all pages below.
  done_.store(std::min<std::uint64_t>(next_ * options_.slice_bytes, memory_.size()),
              std::memory_order_release);
  return next_ < slices() ? 0 : BackgroundWork::kDone;
}

Status Populator::PopulateSlice(std::uint64_t slice) {
  const std::uint64_t offset = slice * options_.slice_bytes;
  const std::uint64_t size = std::min(options_.slice_bytes, memory_.size() - offset);
  // The flag after the pages: Ensure skips a slice whose flag is set, and hands its pages out.
  KVCOVE_TRY(options_.populate(memory_.data() + offset, size));
  populated_[slice].store(true, std::memory_order_release);
  return {};
}

Status Populator::Ensure(std::uint64_t offset, std::uint64_t size) {
  if (size == 0 || offset + size <= done_bytes()) return {};
  const std::uint64_t last = (offset + size - 1) / options_.slice_bytes;
  for (std::uint64_t slice = offset / options_.slice_bytes; slice <= last; ++slice) {
    if (populated_[slice].load(std::memory_order_acquire)) continue;
    KVCOVE_TRY(PopulateSlice(slice));
  }
  return {};
}

}  // namespace kvcove::owner
