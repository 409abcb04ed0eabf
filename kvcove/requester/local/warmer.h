// SPDX-License-Identifier: Apache-2.0
// Maps the pages of a segment into this process before anybody reads them, so that the first read
// of each costs no fault.
//
// A thread of low priority goes over the files in order, the index first (every read needs it),
// then the payload from the bottom, where owners store first. It maps what has memory already and
// nothing else: a page that is missing would be allocated and charged to this process's control
// group (base/pages.h). What an owner adds later is mapped in later rounds, at growing intervals,
// until all is mapped or the budget is used up. Page tables are the price: 2 MiB a GiB with pages
// of 4 KiB, in each process.
//
// The files are sealed against shrinking, so nothing here can be hit by SIGBUS when their owner
// dies. Mappings are not inherited by a forked child, and neither is the thread.
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
  std::uint64_t budget_bytes = 32 * kGiB;     // of memory mapped in all; 0: nothing is warmed
  std::uint64_t bytes_per_second = 4 * kGiB;  // at most
};

// "off", "all", or a size such as 8GiB: the budget. `what` names the setting in errors. Errors:
// kInvalid.
Result<WarmOptions> ParseWarm(std::string_view what, std::string_view text);

// What one thread does step by step; without a thread, for tests.
class WarmWalk {
 public:
  static constexpr std::uint64_t kSlice = 256 * kKiB;
  static constexpr std::int64_t kFirstRoundNs = 250 * kMillisecond;
  static constexpr std::int64_t kLongestRoundNs = 16 * kSecond;

  struct File {
    int fd = -1;  // says where the file has memory; outlives the walk
    std::span<std::byte> memory;
  };
  WarmWalk(const std::vector<File>& files, const WarmOptions& options);

  // Maps at most one slice. Returns how long to rest, or BackgroundWork::kDone.
  std::int64_t Step();
  std::uint64_t warmed_bytes() const { return warmed_bytes_; }

 private:
  struct Area {
    File file;
    std::uint64_t slice_bytes = kSlice;  // at least a page of the file
    bool huge = false;                   // of hugetlbfs: all of it has memory
    std::vector<bool> warm = {};         // a slice that needs no other look
    std::uint64_t next = 0;              // slice
  };
  // The next slice of `area` that has memory and is not warm; moves `next` there. False: none.
  static bool Seek(Area& area);
  // Maps what is present of the slice at `next`, which it leaves behind. Returns the bytes.
  std::uint64_t Warm(Area& area);

  const WarmOptions options_;
  std::vector<Area> areas_;
  std::size_t area_ = 0;
  std::uint64_t warmed_bytes_ = 0;
  bool progress_ = false;  // of this round
  std::int64_t round_ns_ = kFirstRoundNs;
};

// The walk on its thread. Ends with its owner, before anything is unmapped.
class Warmer {
 public:
  // Returns at once. Where a thread is refused, it says so and maps nothing beforehand.
  void Start(const std::vector<WarmWalk::File>& files, const WarmOptions& options);
  // After it no further page is mapped. Waits for one slice at most.
  void Stop() { work_.Stop(); }

 private:
  std::unique_ptr<WarmWalk> walk_;
  BackgroundWork work_;
};

}  // namespace kvcove::requester
