// SPDX-License-Identifier: Apache-2.0
// The owner's side of the index: writes, publishes and withdraws entries of a header file that
// other processes read without a call (HeaderView). Linear hashing: a put splits at most one
// bucket, so no put pays for a rebuild of the table. Needs the owner's lock; readers need none.
#pragma once

#include <array>
#include <deque>
#include <span>
#include <string_view>

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
  // Writes the entry and makes it visible. The index must not have the key. Errors: kLimit (the
  // area of records or of overflow buckets is full).
  Result<Place> Insert(const NewEntry& entry);

  // Makes the entry invisible to every later look-up. Record and extents must stay untouched until
  // no reader protects the place (segment/reader.h). `hash` must be its key's.
  void Withdraw(Place place, std::uint64_t hash);
  // Makes the record of a withdrawn entry free. A full fence must be between Withdraw and this
  // call.
  void Release(Place place);

  std::uint64_t size() const { return size_; }
  std::uint64_t record_bytes() const { return next_unit_ * kRecordUnit; }
  std::uint64_t bucket_bytes() const { return (buckets_ + next_overflow_) * sizeof(Bucket); }
  HeaderView& view() { return view_; }
  const HeaderView& view() const { return view_; }

  // Writes the state that is not in the header file for a successor, or reads a predecessor's.
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
  // Stores the place in a free element of the bucket or its chain. Returns that element, or null if
  // no overflow bucket is left.
  Element* Link(Place place, std::uint64_t hash, std::uint64_t bucket_number);
  void SplitOne();
  std::uint64_t HashOf(Place place) const;

  HeaderView view_;
  // By size in units. Records never change their size, so that a stale place is always the start of
  // an entry. Deques, because a vector would copy all of its places when a large removal grows it.
  std::array<std::deque<Place>, kMaxRecordUnits + 1> free_records_;
  std::uint64_t next_unit_ = 8;  // place 0 is no place; records begin on a cache line
  std::uint64_t buckets_ = 1;
  std::uint64_t next_overflow_ = 1;
  std::uint64_t size_ = 0;
};

}  // namespace kvcove::segment
