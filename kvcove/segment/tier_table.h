// SPDX-License-Identifier: Apache-2.0
// The set of keys that an owner's disks have, for look-ups without a call: 64-bit tags in the
// header file. A tag is a hash of slot, key and generation, so a reset needs no change here: no
// look-up asks for tags of an earlier generation any more.
//
// The owner writes the table, and every process that maps the header reads it. Tags of two keys are
// equal only by chance, so a hit here answers a look-up; a get compares the whole key on the disk.
//
// A tag is in one of two buckets of eight. The table grows by linear hashing, one bucket at a time:
// the writer copies the tags that move, publishes the new number of buckets, then erases the old
// copies. A reader that finds nothing reads that number again: if it has not changed, the reader
// has missed no tag that remained in the table.
//
// An owner may have several disks. A tag belongs to one of 64 shares, and each share to one disk.
// One word has the shares whose tags count: those of a disk that is set aside do not.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string_view>

#include "kvcove/base/random.h"
#include "kvcove/model/ids.h"

namespace kvcove::segment {

struct Header;

inline constexpr std::uint32_t kTierBucketTags = 8;
struct alignas(64) TierBucket {
  std::atomic<std::uint64_t> tag[kTierBucketTags];  // 0 = free
};
static_assert(sizeof(TierBucket) == 64);

// A set of shares is a word of 64 bits.
inline constexpr std::uint32_t kTierShares = 64;
inline constexpr std::uint64_t kAllTierShares = ~0ULL;
// Returns the share of a tag, from other bits than those that choose its buckets.
constexpr std::uint64_t ShareOf(std::uint64_t tag) { return 1ULL << (tag >> 58); }

// Returns the number of buckets for this many tags, with room for an uneven spread.
constexpr std::uint64_t TierBuckets(std::uint64_t tags) { return tags == 0 ? 0 : (tags / 4) + 16; }

// Returns the tag of an object, never 0. `hash`: TierHash of its key, as the disk's index has it.
std::uint64_t TierTag(const Id128& hash, Generation generation);
Id128 TierHash(std::uint64_t seed, SlotId slot, std::string_view key);

// The readers' side; copies are cheap. Points into a mapping that must outlive it. Thread-safe.
class TierTable {
 public:
  TierTable() = default;  // for an owner without a disk
  // `limit`: most buckets.
  TierTable(Header* header, TierBucket* buckets, std::uint64_t limit)
      : header_(header), buckets_(buckets), limit_(limit) {}

  // Returns the shares whose tags count. 0: there is no disk, or all are set aside.
  std::uint64_t on() const;
  // True if the table has the tag and its share counts.
  bool Holds(std::uint64_t tag) const { return (on() & ShareOf(tag)) != 0 && HasTag(tag); }
  // True if the table has the tag, also if its share does not count.
  bool HasTag(std::uint64_t tag) const;
  bool Holds(SlotId slot, Generation generation, std::string_view key) const;

 protected:
  static std::uint64_t BucketOf(std::uint32_t half, std::uint64_t count);
  static std::uint32_t Half(std::uint64_t tag, int which) {
    return static_cast<std::uint32_t>(which == 0 ? tag : tag >> 32);
  }

  Header* header_ = nullptr;
  TierBucket* buckets_ = nullptr;
  std::uint64_t limit_ = 0;
};

// The one writer's side. SetOn and SetOff are thread-safe; the other calls need a lock.
class TierTableWriter : public TierTable {
 public:
  TierTableWriter() = default;
  explicit TierTableWriter(const TierTable& table) : TierTable(table) {}
  // Empties the table, and lets no share count. `seed`: of the disks' hashes.
  void Begin(std::uint64_t seed);
  // Lets the tags of these shares count from now on, or not any more.
  void SetOn(std::uint64_t shares);
  void SetOff(std::uint64_t shares);
  // Adds a tag. False: there is no room.
  bool Add(std::uint64_t tag);
  void Remove(std::uint64_t tag);
  // Removes the tags of these shares from some buckets, from `bucket` on. Returns the bucket at
  // which to continue; none at the end. If the table grows between two calls, tags move to its end
  // only, so none is missed.
  std::optional<std::uint64_t> Clear(std::uint64_t shares, std::uint64_t bucket);
  std::uint64_t size() const { return size_; }
  std::uint64_t buckets() const;

 private:
  bool Place(std::uint64_t tag);
  bool Grow();

  std::uint64_t size_ = 0;
};

}  // namespace kvcove::segment
