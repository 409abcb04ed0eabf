// SPDX-License-Identifier: Apache-2.0
// A checked view of a header file, for readers and for the owner.
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

// Checks whether a process whose build knows layout `reader` may map the segment of an owner with
// layout `owner`. A build that sends no version counts as 0. Errors: kIncompatible.
Status CheckLayout(std::uint32_t owner, std::uint32_t reader);

// Passes a sequentially consistent fence between a store and later loads of this thread, on both
// sides of the readers' protocol. The thread sanitizer knows no fences, so there it is an exchange
// on one word.
void FullFence();
// Shows the thread sanitizer an order that it cannot see: a reader clears its slot, the owner, in
// another process, reuses the memory, and a writer in the reader's process writes there. Call it
// when a reader ends, and before a writer's first byte. Does nothing in other builds.
void OwnerOrders();

// A key and its hash (HeaderView::HashKey), computed once for the look-ups of one call.
struct PreparedKey {
  std::string_view key;
  std::uint64_t hash = 0;
};

// Result of a look-up; valid as long as the entry's version is `version`.
struct Found {
  Place place = 0;
  Version version = 0;
  Generation generation = 0;
  EntryMeta meta;
  std::uint32_t first_granule = 0;
  std::uint32_t object = 0;
  explicit operator bool() const { return place != 0; }
};

// Points into a mapping that must outlive it. The const calls are thread-safe, also while the owner
// changes the index; the others are for the owner, under its lock.
class HeaderView {
 public:
  HeaderView() = default;
  // Checks magic, version and that every area is inside the `size` bytes at `data`.
  // Errors: kIncompatible, kCorrupt.
  static Result<HeaderView> Open(std::byte* data, std::size_t size);

  const Header& header() const { return *header_; }
  Header& header() { return *header_; }
  Granule granule() const { return granule_; }
  // Returns the set of keys that the owner's disks have.
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
  // entry that is being replaced, but never show a wrong one. O(1).
  Found Find(SlotId slot, const PreparedKey& key) const;
  // Prefetches the bucket of a hash, before a Find of its key.
  void Prefetch(std::uint64_t hash) const {
    __builtin_prefetch(
        &buckets_[BucketNumber(hash, header_->bucket_count.load(std::memory_order_relaxed))]);
  }
  // Prefetches bucket and ghost of a hash, before its entry is withdrawn.
  void PrefetchGone(std::uint64_t hash) const {
    Prefetch(hash);
    __builtin_prefetch(&ghosts_[hash & ghost_mask_], 1);
  }
  // Calls Find for up to kFindMany keys, such that their cache misses overlap.
  static constexpr std::size_t kFindMany = 64;
  void FindMany(SlotId slot, std::span<const std::string_view> keys, Found* found) const;

  // True if the entry at `place` still has `version`.
  bool StillThere(Place place, Version version) const {
    return EntryAt(place).version.load(std::memory_order_acquire) == version;
  }
  // Writes the extents of a protected entry, at most kMaxExtents, and returns their number.
  std::uint32_t Extents(const Found& found, std::span<Extent, kMaxExtents> extents) const;

  // Returns why the key of this hash is missing, as far as its ghost is still there.
  MissReason GhostReason(std::uint64_t hash) const;
  void RememberGhost(std::uint64_t hash, MissReason reason);

  // Accessors for the owner, and for Find.
  Entry& EntryAt(Place place) const {
    return *reinterpret_cast<Entry*>(records_ + std::uint64_t{place} * kRecordUnit);
  }
  std::atomic<std::uint64_t>* WordsBehind(Place place) const {
    return reinterpret_cast<std::atomic<std::uint64_t>*>(&EntryAt(place) + 1);
  }
  // Copies the key of an entry. For the owner only: the entry must not change meanwhile.
  std::string KeyOf(Place place) const;
  Bucket& bucket(std::uint64_t number) const { return buckets_[number]; }
  Bucket& overflow(std::uint64_t number) const { return overflow_[number]; }
  // Returns the bucket of a hash if `count` buckets are in use.
  static std::uint64_t BucketNumber(std::uint64_t hash, std::uint64_t count);

 private:
  // Reads the entry as a sequence lock, and fills `found` if it is the key's and did not change.
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

// Capacities of a header file.
struct HeaderSizes {
  std::uint64_t max_objects = 0;
  std::uint64_t payload_bytes = 0;
  std::uint64_t granule_bytes = 0;  // 0: the smallest that reaches the payload's end (Granule::Of)
  std::uint64_t tier_objects = 0;   // objects that the disks may hold; 0: no disk
};
// Returns the size of the file. Most of its pages are never touched, so they take no memory.
std::uint64_t HeaderFileBytes(const HeaderSizes& sizes);
// Writes the fixed fields into `data` (zeroed, HeaderFileBytes long). Errors: those of Granule::Of;
// kInvalid for a payload that is not made of whole granules.
Status FormatHeader(std::byte* data, const HeaderSizes& sizes, Id128 segment_id,
                    std::uint64_t hash_seed);

}  // namespace kvcove::segment
