// SPDX-License-Identifier: Apache-2.0
// The owner's side of the index: makes, publishes and withdraws entries in a header file that
// others read without asking. Linear hashing: one bucket is split at a time, so that no put ever
// pays for a whole rebuild. Needs a lock; readers need none.
#pragma once

#include <array>
#include <deque>
#include <span>
#include <string_view>
#include <vector>

#include "kvcove/base/carry.h"
#include "kvcove/segment/view.h"

namespace kvcove::segment {

class Index {
 public:
  explicit Index(HeaderView view) : view_(view) {}

  struct NewEntry {
    std::string_view key;
    std::uint64_t hash = 0;
    SlotId slot = 0;
    Generation generation = 0;
    std::uint32_t size_bytes = 0;
    std::uint32_t object = 0;
    Version version = 0;
    std::span<const Extent> extents;
  };
  // Writes the entry and makes it visible. The key must not be there. Errors: kLimit when the
  // record area or the overflow area is full.
  Result<Place> Insert(const NewEntry& entry);

  // Makes the entry invisible for every look-up from now on. Its record and extents stay untouched
  // until Release: readers may still be reading. `hash` must be its key's.
  void Withdraw(Place place, std::uint64_t hash);
  // The record may be used again.
  void Release(Place place);

  std::uint64_t size() const { return size_; }
  std::uint64_t record_bytes() const { return next_unit_ * kRecordUnit; }
  std::uint64_t bucket_bytes() const { return (buckets_ + next_overflow_) * sizeof(Bucket); }
  HeaderView& view() { return view_; }
  const HeaderView& view() const { return view_; }

  // What is not in the header file itself.
  template <typename Ar>
  void Carry(Ar& ar) {
    CarryAll(ar, free_records_, next_unit_, buckets_, next_overflow_, size_);
  }

 private:
  static constexpr std::uint32_t kMaxRecordUnits =
      (sizeof(Entry) + kMaxExtents * 8 + kMaxKeyBytes) / kRecordUnit;
  static constexpr std::uint32_t kSlabUnits = 65536 / kRecordUnit;

  Place AllocateRecord(std::uint32_t units);
  using Element = std::atomic<std::uint64_t>;
  // The element that it took, or nothing when no overflow bucket is left.
  Element* Link(Place place, std::uint64_t hash, std::uint64_t bucket_number);
  void SplitOne();
  std::uint64_t HashOf(Place place) const;

  HeaderView view_;
  // Records never change their size, so that a stale place still shows a real entry.
  // In deques: a removal of a million objects must not copy a list that grows.
  std::array<std::deque<Place>, kMaxRecordUnits + 1> free_records_;
  std::uint64_t next_unit_ = 8;  // place 0 means nowhere; records begin on a cache line
  std::uint64_t buckets_ = 1;
  std::uint64_t next_overflow_ = 1;
  std::uint64_t size_ = 0;
};

}  // namespace kvcove::segment
