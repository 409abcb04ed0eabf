// SPDX-License-Identifier: Apache-2.0
// What the policy remembers of keys, cached or not: how often each was used and in which segment it
// was used last. First in, first out; a key that is used again counts as new. A chained hash table
// over a slab, which grows by linear hashing: 28 bytes a key, no allocation a key, and no operation
// that looks at many.
//
// Keys are the upper halves of hashes. Two that are equal by chance share what is remembered: one
// in 30,000 with the most keys that the policy follows, and it costs hits only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "kvcove/policy/id_list.h"

namespace kvcove::policy {

class Ghost {
 public:
  struct Entry {
    Link link;  // in the order of use
    std::uint32_t key = 0;
    std::uint32_t chained = kNoObject;  // the next one of the same head
    std::uint32_t segment = 0;
    std::uint8_t uses = 0;
    std::uint8_t children = 0;
  };

  Ghost();

  // Null for a key that is not there. Valid for as long as the key is there.
  Entry* Find(std::uint32_t key);
  // Two hints that Find will be asked for the key. The second one follows when the first has had
  // time to arrive, or is in vain.
  void PrefetchHead(std::uint32_t key) const { __builtin_prefetch(&heads_[HeadNumber(key)]); }
  void PrefetchEntry(std::uint32_t key) const {
    const std::uint32_t at = heads_[HeadNumber(key)].first;
    if (at != kNoObject) __builtin_prefetch(&entries_[at]);
  }
  // The key's entry, new or as it was, as the latest.
  Entry& Add(std::uint32_t key);
  // The oldest one, taken out; nothing while there are no more than `keep`.
  std::optional<Entry> TakeOldest(std::size_t keep);
  // Null when there is none.
  const Entry* Oldest() const { return size_ == 0 ? nullptr : &entries_[order_.front()]; }
  std::size_t size() const { return size_; }
  // Of memory.
  std::size_t bytes() const { return entries_.bytes() + heads_.bytes(); }

  // Calls `each` with every entry, the oldest first.
  template <typename Each>
  void ForEach(const Each& each) const {
    for (std::uint32_t at = order_.front(); at != kNoObject; at = entries_[at].link.next) {
      each(entries_[at]);
    }
  }

  template <typename Ar>
  void Carry(Ar& ar) {
    CarryAll(ar, entries_, order_, heads_, level_, split_, free_, reached_, size_);
  }

 private:
  using Entries = ChunkedArray<Entry>;
  struct Head {
    std::uint32_t first = kNoObject;
  };
  std::size_t HeadNumber(std::uint32_t key) const;
  std::uint32_t& HeadOf(std::uint32_t key) { return heads_[HeadNumber(key)].first; }
  std::uint32_t PlaceOf(std::uint32_t key);
  void Split();

  Entries entries_;
  IdList<Entries> order_;
  ChunkedArray<Head> heads_;
  std::size_t level_;  // a power of two: heads [split_, level_) are not split yet
  std::size_t split_ = 0;
  std::uint32_t free_ = kNoObject;  // a list through `chained`
  std::uint32_t reached_ = 0;       // entries that were ever in use
  std::size_t size_ = 0;
};

}  // namespace kvcove::policy
