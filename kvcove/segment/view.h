// SPDX-License-Identifier: Apache-2.0
// A checked window onto a header file, for readers and for the owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kvcove/base/clock.h"
#include "kvcove/segment/layout.h"
#include "kvcove/segment/payload.h"
#include "kvcove/segment/tier_table.h"

namespace kvcove::segment {

// Whether a process whose build knows layout `reader` may map the segment of an owner that has
// `owner`. 0: a build that does not say, which knows version 2. Errors: kIncompatible.
Status CheckLayout(std::uint32_t owner, std::uint32_t reader);

// Sequentially consistent fence between a store and later loads of this thread, on both sides of
// the reader protocol. The thread sanitizer knows no fences, so there it is an exchange on one
// word.
void FullFence();
// What a reader has let go of, the owner gives to a writer. Where both are threads of one process
// and the owner is another process, the thread sanitizer does not see the owner's part of that
// order: here it does, at the reader's end and before the writer's first byte. Else nothing.
void OwnerOrders();

// A key and its hash (HeaderView::HashKey), computed once for the look-ups of one call.
struct PreparedKey {
  std::string_view key;
  std::uint64_t hash = 0;
};

// What a look-up found; valid as long as the entry's version is `version`.
struct Found {
  Place place = 0;
  Version version = 0;
  Generation generation = 0;
  EntryMeta meta;
  std::uint32_t first_granule = 0;
  std::uint32_t object = 0;
  explicit operator bool() const { return place != 0; }
};

// Points into a mapping that outlives it. Thread-safe.
class HeaderView {
 public:
  HeaderView() = default;
  // Checks magic, version and that every area lies inside the `size` bytes at `data`.
  // Errors: kIncompatible, kCorrupt.
  static Result<HeaderView> Open(std::byte* data, std::size_t size);

  const Header& header() const { return *header_; }
  Header& header() { return *header_; }
  Granule granule() const { return granule_; }
  // What the owner's disk has.
  const TierTable& tier() const { return tier_; }

  std::uint64_t HashKey(SlotId slot, std::string_view key) const;

  Generation generation(SlotId slot) const {
    return slots_[slot].generation.load(std::memory_order_acquire);
  }
  Slot& slot(SlotId slot) { return slots_[slot]; }
  bool LeaseHolds(std::int64_t now_ns) const {
    return now_ns < header_->lease_deadline_ns.load(std::memory_order_acquire);
  }

  // Finds the entry of `key` in memory, whatever its generation. Concurrent changes may hide an
  // entry that is being replaced, never show a wrong one. O(1).
  Found Find(SlotId slot, const PreparedKey& key) const;
  // A hint that Find will be asked for a key of this hash.
  void Prefetch(std::uint64_t hash) const {
    __builtin_prefetch(
        &buckets_[BucketNumber(hash, header_->bucket_count.load(std::memory_order_relaxed))]);
  }
  // A hint that an entry of this hash will be withdrawn.
  void PrefetchGone(std::uint64_t hash) const {
    Prefetch(hash);
    __builtin_prefetch(&ghosts_[hash & ghost_mask_], 1);
  }
  // Find for up to kFindMany keys, whose cache misses overlap.
  static constexpr std::size_t kFindMany = 64;
  void FindMany(SlotId slot, std::span<const std::string_view> keys, Found* found) const;

  // True if the entry at `place` still has `version`.
  bool StillThere(Place place, Version version) const {
    return EntryAt(place).version.load(std::memory_order_acquire) == version;
  }
  // The extents of a protected entry: writes at most kMaxExtents and returns how many.
  std::uint32_t Extents(const Found& found, std::span<Extent, kMaxExtents> extents) const;

  MissReason GhostReason(std::uint64_t hash) const;
  void RememberGhost(std::uint64_t hash, MissReason reason);

  // For the owner, and for Find.
  Entry& EntryAt(Place place) const {
    return *reinterpret_cast<Entry*>(records_ + std::uint64_t{place} * kRecordUnit);
  }
  std::atomic<std::uint64_t>* WordsBehind(Place place) const {
    return reinterpret_cast<std::atomic<std::uint64_t>*>(&EntryAt(place) + 1);
  }
  // Copies the key of an entry that cannot change now (owner only).
  std::string KeyOf(Place place) const;
  Bucket& bucket(std::uint64_t number) const { return buckets_[number]; }
  Bucket& overflow(std::uint64_t number) const { return overflow_[number]; }
  // The bucket of a hash when `count` buckets are in use.
  static std::uint64_t BucketNumber(std::uint64_t hash, std::uint64_t count);

 private:
  // Compares version, meta and key as one consistent snapshot; fills `found` if they are the key's.
  bool Check(SlotId slot, std::string_view key, Place place, Found& found) const;

  Header* header_ = nullptr;
  Slot* slots_ = nullptr;
  Bucket* buckets_ = nullptr;
  Bucket* overflow_ = nullptr;
  std::byte* records_ = nullptr;
  std::atomic<std::uint64_t>* ghosts_ = nullptr;
  std::uint64_t ghost_mask_ = 0;
  Granule granule_;
  TierTable tier_;
};

// Sizes of a header file, from the number of objects that it must be able to hold.
struct HeaderSizes {
  std::uint64_t max_objects = 0;
  std::uint64_t payload_bytes = 0;
  std::uint64_t granule_bytes = 0;  // 0: the smallest that reaches all of it; see Granule::Of
  std::uint64_t tier_objects = 0;   // that a disk may hold; 0: there is none
};
// Bytes of the file; most of them are never touched, so they take no memory.
std::uint64_t HeaderFileBytes(const HeaderSizes& sizes);
// Writes the fixed fields into `data` (zeroed, HeaderFileBytes long). Errors: those of Granule::Of;
// kInvalid for a payload that is not made of whole granules.
Status FormatHeader(std::byte* data, const HeaderSizes& sizes, Id128 segment_id,
                    std::uint64_t hash_seed);

}  // namespace kvcove::segment
