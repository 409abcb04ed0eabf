// SPDX-License-Identifier: Apache-2.0
// Estimates what memory would have found together with a disk of another size below it. As
// policy::WhatIf, of a sample of the objects, and of keys alone.
//
// A disk is a log: what was written first is dropped first. So a disk of S bytes has an object if
// fewer than S bytes were written since the object was, and a position for each size is all that an
// object needs. What memory finds does not depend on the disk. Objects that a disk's cleaner writes
// again, because they were read, count as dropped: an estimate is a little too low by that.
//
// Pure code. One caller at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>

#include "kvcove/policy/what_if.h"

namespace kvcove::policy {

class WhatIfDisk {
 public:
  struct Options {
    std::uint64_t capacity_bytes = 0;
    std::size_t most_sampled = 32'768;
  };
  explicit WhatIfDisk(const Options& options)
      : options_(options), sweep_at_(options.most_sampled) {}

  // As WhatIf's. `least_shift`: of the caller's sample.
  void Apply(std::span<const Access> accesses, std::uint64_t asked, unsigned least_shift);
  WhatIfCounts Read();
  unsigned shift() const { return shift_; }
  std::size_t sampled() const { return objects_.size(); }
  // How many objects all sweeps together have looked at. For tests.
  std::uint64_t swept() const { return swept_; }

 private:
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};
  struct Written {
    // Bytes of the sample that had been written before it, by size.
    std::array<std::uint64_t, kWhatIfSizes.size()> at;
    std::uint16_t slot = 0;
  };
  bool Has(const Written& object, std::size_t size) const;
  void Ask(const Access& access);
  void Write(const Access& access);
  void SetShift(unsigned shift);
  void Sweep();

  const Options options_;
  unsigned shift_ = 0;
  std::size_t sweep_at_;  // objects
  std::unordered_map<std::uint32_t, Written> objects_;
  std::array<std::uint64_t, kWhatIfSizes.size()> written_{};  // bytes of the sample
  std::uint64_t swept_ = 0;
  WhatIfTally tally_;
};

}  // namespace kvcove::policy
