// SPDX-License-Identifier: Apache-2.0
// Which keys an owner's disk has, for look-ups without a call: a set of 64-bit tags in the header
// file. A tag stands for slot, key and generation, so a reset needs no change here: nobody asks for
// a tag of a former generation any more.
//
// The owner's disk thread writes it, anybody reads it. Two tags are equal by chance only, so a hit
// here is an answer for a look-up; a get compares the whole key on the disk.
//
// A tag lies in one of two buckets of eight. The table grows by linear hashing, a bucket at a time:
// the writer copies the tags that move, publishes the new number of buckets, then erases the old
// copies. A reader that finds nothing looks at that number again: if it is what it was, no tag that
// stayed in the table was missed.
//
// An owner may have several disks. A tag belongs to one of 64 shares, and each share to one disk,
// so one word says of which disks the tags count: those of a disk that is set aside do not.
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

// Sets of shares are the bits of a word.
inline constexpr std::uint32_t kTierShares = 64;
inline constexpr std::uint64_t kAllTierShares = ~0ULL;
// Of other bits than those that choose a bucket.
constexpr std::uint64_t ShareOf(std::uint64_t tag) { return 1ULL << (tag >> 58); }

// For so many tags, with room for their uneven spread.
constexpr std::uint64_t TierBuckets(std::uint64_t tags) { return tags == 0 ? 0 : (tags / 4) + 16; }

// Never 0. `hash`: of the key, as the disk's index has it.
std::uint64_t TierTag(const Id128& hash, Generation generation);
Id128 TierHash(std::uint64_t seed, SlotId slot, std::string_view key);

// What readers do; copies are cheap. Points into a mapping that outlives it. Thread-safe.
class TierTable {
 public:
  TierTable() = default;  // of an owner without a disk
  // `limit`: buckets that there is room for.
  TierTable(Header* header, TierBucket* buckets, std::uint64_t limit)
      : header_(header), buckets_(buckets), limit_(limit) {}

  // Of no share: there is no disk, or all are set aside.
  std::uint64_t on() const;
  bool Holds(std::uint64_t tag) const { return (on() & ShareOf(tag)) != 0 && HasTag(tag); }
  // Also of a share that is off.
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

// What its one writer does, too. SetOn and SetOff are thread-safe; the rest needs a lock.
class TierTableWriter : public TierTable {
 public:
  TierTableWriter() = default;
  explicit TierTableWriter(const TierTable& table) : TierTable(table) {}
  // Empty, and nothing is on. `seed`: of the disks' hashes.
  void Begin(std::uint64_t seed);
  // The tags of these shares count from now on, or count no more.
  void SetOn(std::uint64_t shares);
  void SetOff(std::uint64_t shares);
  // False when there is no room.
  bool Add(std::uint64_t tag);
  void Remove(std::uint64_t tag);
  // Removes all tags of these shares, in some buckets from `bucket` on; where to go on, or nothing.
  // What grows meanwhile moves to buckets that are still to come.
  std::optional<std::uint64_t> Clear(std::uint64_t shares, std::uint64_t bucket);
  std::uint64_t size() const { return size_; }
  std::uint64_t buckets() const;

 private:
  bool Place(std::uint64_t tag);
  bool Grow();

  std::uint64_t size_ = 0;
};

}  // namespace kvcove::segment
