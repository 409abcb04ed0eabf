// SPDX-License-Identifier: Apache-2.0
// Which keys a store has put: batch_replica_clear removes no others. Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "kvcove/base/mutex.h"

namespace kvcove::python {

// Remembers the latest million keys at least and two million at most, in 32 MiB. It compares hashes
// of 64 bits: with two million keys, one of 10^13 foreign keys passes for an own one.
class OwnKeys {
 public:
  // `at_least`: how many of the latest keys are remembered.
  explicit OwnKeys(std::size_t at_least = std::size_t{1} << 20) : at_least_(at_least) {}

  void Add(std::string_view key);
  bool Has(std::string_view key) const;

 private:
  // Open addressing, at most half full. 0 is an empty place.
  class Hashes {
   public:
    std::size_t size() const { return size_; }
    bool Has(std::uint64_t hash) const;
    void Add(std::uint64_t hash);

   private:
    void Place(std::uint64_t hash);

    std::vector<std::uint64_t> places_;  // a power of two, or none
    std::size_t size_ = 0;
  };

  const std::size_t at_least_;
  mutable Mutex mutex_;
  // The latest keys, and those before them: when the first set is full it takes the place of the
  // second. So nothing is ever deleted from a set.
  std::array<Hashes, 2> sets_ KVCOVE_GUARDED_BY(mutex_);
};

}  // namespace kvcove::python
