// SPDX-License-Identifier: Apache-2.0
// Populates a segment's payload from the bottom, in the background; and at once where an object is
// about to be written to pages that have no memory yet.
//
//   state of a slice: empty -> populated (never reverted; no hole is punched into the file)
//   the thread        walks from the bottom and populates empty slices; done_bytes() follows
//   Ensure            populates the slices of a range in the calling thread
//
// The kernel charges a page to the control group of the process that touches it first. A requester
// gets extents only after Ensure, so the owner's group pays and an engine's never does. Two threads
// may populate one slice at the same time: the second one finds the pages present.
//
// The thread runs where a core would be idle (base/background.h) and takes no lock: it publishes
// its progress in an atomic, which the janitor loads.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
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
    // Processors for the thread: those of the NUMA node that the memory is bound to; empty: any.
    // The caller binds the memory itself, before Start.
    std::vector<int> cpus = {};
    // Bytes that the thread populates at a time, in some 30 us: an engine that needs the core waits
    // no longer. A multiple of the page size of the file.
    std::uint64_t slice_bytes = 64 * kKiB;
    // Populates `size` bytes at `data`.
    std::function<Status(std::byte* data, std::uint64_t size)> populate = [](std::byte* data,
                                                                             std::uint64_t size) {
      return PopulatePages(data, size, Populate::kWrite);
    };
  };

  // `memory` outlives it.
  Populator(std::span<std::byte> memory, Options options);

  // Starts the thread. If that fails, logs it: Ensure populates everything then.
  void Start();
  void Stop() { work_.Stop(); }
  // Stops as BackgroundWork::StopWithin.
  bool StopWithin(std::int64_t wait_ns) { return work_.StopWithin(wait_ns); }

  // Returns the bytes from the bottom that are populated. Never decreases. Pairs (acquire) with the
  // store in Step: the pages below are mapped.
  std::uint64_t done_bytes() const { return done_.load(std::memory_order_acquire); }
  // Populates the slices of [offset, offset + size) in this thread. Errors: kUnavailable.
  Status Ensure(std::uint64_t offset, std::uint64_t size);

 private:
  std::int64_t Step();
  Status PopulateSlice(std::uint64_t slice);
  std::uint64_t slices() const {
    return (memory_.size() + options_.slice_bytes - 1) / options_.slice_bytes;
  }

  const std::span<std::byte> memory_;
  const Options options_;
  std::vector<std::atomic<bool>> populated_;  // by slice
  std::uint64_t next_ = 0;                    // the thread's next slice
  std::atomic<std::uint64_t> done_{0};
  BackgroundWork work_;
};

}  // namespace kvcove::owner
