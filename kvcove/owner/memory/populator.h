// SPDX-License-Identifier: Apache-2.0
// Gives a segment's payload its memory, from the bottom, in the background; and at once where an
// object is about to be written to a part that has none yet.
//
//   state of a slice: empty -> populated (never back; the file is never punched)
//   the thread        walks from the bottom and populates what is empty; done_bytes() follows
//   Ensure            populates the slices of a range in the calling thread
//
// The kernel charges a page to the control group of the process that touches it first. A requester
// gets extents only after Ensure, so the owner's group pays and an engine's never does. Two threads
// that populate one slice at a time do no harm: the second one finds the pages there.
//
// The thread runs where a core would be idle (base/background.h) and shares no lock: what it has
// done is an atomic that the janitor reads.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvcove/base/background.h"
#include "kvcove/base/pages.h"
#include "kvcove/base/size.h"

namespace kvcove::owner {

// Thread-safe, but for Start and Stop.
class Populator {
 public:
  struct Options {
    std::string thread = "kvcove-pages";
    // Where the thread runs: the processors of the NUMA node that the memory is bound to; empty:
    // anywhere. Binding the memory itself is up to the caller, before Start.
    std::vector<int> cpus = {};
    // The thread populates so much at a time, in some 30 us: an engine that wants the core need not
    // wait for more. A multiple of the page size of the file.
    std::uint64_t slice_bytes = 64 * kKiB;
    // Populates `size` bytes at `data`.
    std::function<Status(std::byte* data, std::uint64_t size)> populate = [](std::byte* data,
                                                                             std::uint64_t size) {
      return PopulatePages(data, size, Populate::kWrite);
    };
  };

  // `memory` outlives it.
  Populator(std::span<std::byte> memory, Options options);

  // Where a thread is refused, it says so and populates nothing.
  void Start();
  void Stop() { work_.Stop(); }
  // As BackgroundWork::StopWithin.
  bool StopWithin(std::int64_t wait_ns) { return work_.StopWithin(wait_ns); }

  // All below is populated. Grows only. Pairs (acquire) with the thread's store: the pages are
  // mapped.
  std::uint64_t done_bytes() const { return done_.load(std::memory_order_acquire); }
  // The slices of [offset, offset + size) are populated when it returns. Errors: kUnavailable.
  Status Ensure(std::uint64_t offset, std::uint64_t size);

 private:
  std::int64_t Step();
  Status PopulateSlice(std::uint64_t slice);
  std::uint64_t slices() const {
    return (memory_.size() + options_.slice_bytes - 1) / options_.slice_bytes;
  }

  const std::span<std::byte> memory_;
  const Options options_;
  std::vector<std::atomic<bool>> populated_;  // a slice
  std::uint64_t next_ = 0;                    // of the thread
  std::atomic<std::uint64_t> done_{0};
  BackgroundWork work_;
};

}  // namespace kvcove::owner
