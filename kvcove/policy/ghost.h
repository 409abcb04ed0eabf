// SPDX-License-Identifier: Apache-2.0
// What the policy remembers of keys, cached or not: how often each was used and in which segment it
// was used last. First in, first out; a key that is used again counts as new. An open-addressed
// table and a ring: 40 bytes a key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace kvcove::policy {

class Ghost {
 public:
  struct Entry {
    std::uint64_t key = 0;  // 0: free
    std::uint32_t order = 0;
    std::uint32_t segment = 0;
    std::uint8_t uses = 0;
    std::uint8_t children = 0;
  };

  Ghost();

  // Null for a key that is not there. Valid until the next Add or Remove.
  Entry* Find(std::uint64_t key);
  // The key's entry, new or as it was, as the latest.
  Entry& Add(std::uint64_t key);
  // The oldest one, taken out; nothing while there are no more than `keep`.
  std::optional<Entry> TakeOldest(std::size_t keep);
  std::size_t size() const { return size_; }
  const std::vector<Entry>& entries() const { return table_; }  // free ones, too

 private:
  std::size_t HomeOf(std::uint64_t key) const;
  std::size_t PlaceOf(std::uint64_t key) const;  // where it is, or the free place for it
  void Erase(std::size_t at);
  void Grow();

  std::vector<Entry> table_;  // a power of two
  std::size_t size_ = 0;
  // Keys in the order of their use; outdated ones, whose entry has a later number, are skipped.
  std::vector<std::pair<std::uint64_t, std::uint32_t>> ring_;
  std::size_t ring_first_ = 0;
  std::size_t ring_count_ = 0;
  std::uint32_t next_order_ = 1;
};

}  // namespace kvcove::policy
