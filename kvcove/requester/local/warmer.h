// SPDX-License-Identifier: Apache-2.0
// Maps the pages of a segment into this process ahead of their first read, which then costs no
// fault.
//
// A thread of low priority walks over the files in order: the index first, which every read needs,
// then the payload from the bottom, where owners store first. It maps only pages that have memory:
// a missing page would be allocated, and charged to this process's control group (base/pages.h).
// Pages that an owner populates later are mapped in later rounds, at growing intervals, until all
// is mapped or the budget is used up. The cost is page tables: 2 MiB for each GiB with pages of 4
// KiB, in each process.
//
// The files are sealed against shrinking, so the end of their owner causes no SIGBUS here. A forked
// child inherits neither the mappings nor the thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "kvcove/base/background.h"
#include "kvcove/base/clock.h"
#include "kvcove/base/result.h"
#include "kvcove/base/size.h"

namespace kvcove::requester {

struct WarmOptions {
  std::uint64_t budget_bytes = 32 * kGiB;     // most memory that is mapped ahead; 0: none
  std::uint64_t bytes_per_second = 4 * kGiB;  // at most
};

// Parses the budget: "off", "all", or a size such as 8GiB. `what` names the setting in errors.
// Errors: kInvalid.
Result<WarmOptions> ParseWarm(std::string_view what, std::string_view text);

// The walk over the files, step by step. No thread of its own, so that tests can step it.
class WarmWalk {
 public:
  static constexpr std::uint64_t kSlice = 256 * kKiB;
  static constexpr std::int64_t kFirstRoundNs = 250 * kMillisecond;
  static constexpr std::int64_t kLongestRoundNs = 16 * kSecond;

  struct File {
    int fd = -1;  // for SEEK_DATA; must outlive the walk
    std::span<std::byte> memory;
  };
  WarmWalk(const std::vector<File>& files, const WarmOptions& options);

  // Maps at most one slice. Returns the time to rest, in ns, or BackgroundWork::kDone.
  std::int64_t Step();
  std::uint64_t warmed_bytes() const { return warmed_bytes_; }

 private:
  struct Area {
    File file;
    std::uint64_t slice_bytes = kSlice;  // at least a page of the file
    bool huge = false;                   // hugetlbfs: all of it has memory
    std::vector<bool> warm = {};         // by slice: mapped whole
    std::uint64_t next = 0;              // number of a slice
  };
  // Moves `next` to the next slice that has memory and is not warm. False: there is none.
  static bool Seek(Area& area);
  // Maps the present pages of the slice at `next`, and moves `next` behind it. Returns the bytes.
  std::uint64_t Warm(Area& area);

  const WarmOptions options_;
  std::vector<Area> areas_;
  std::size_t area_ = 0;
  std::uint64_t warmed_bytes_ = 0;
  bool progress_ = false;  // a slice became warm in this round
  std::int64_t round_ns_ = kFirstRoundNs;
};

// The walk on a thread. Must be stopped, or destroyed, before the files are unmapped.
class Warmer {
 public:
  // Starts the thread. If that fails, logs it, and maps nothing ahead.
  void Start(const std::vector<WarmWalk::File>& files, const WarmOptions& options);
  // Stops the thread; waits for one slice at most.
  void Stop() { work_.Stop(); }

 private:
  std::unique_ptr<WarmWalk> walk_;
  BackgroundWork work_;
};

}  // namespace kvcove::requester
