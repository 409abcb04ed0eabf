// SPDX-License-Identifier: Apache-2.0
#include "kvcove/segment/tier_table.h"

#include <bit>

#include "kvcove/base/hash.h"
#include "kvcove/segment/layout.h"

namespace kvcove::segment {
namespace {

// A bucket that is not split yet has twice as many tags as others, so the table grows before its
// buckets are half full. At its limit it holds more.
constexpr std::uint64_t kTagsABucket = 3;
constexpr int kGrowsForOne = 64;
constexpr std::uint64_t kClearedAtOnce = 4096;

}  // namespace

Id128 TierHash(std::uint64_t seed, SlotId slot, std::string_view key) {
  return Hash128(key, Mix64(seed ^ slot));
}

std::uint64_t TierTag(const Id128& hash, Generation generation) {
  const std::uint64_t tag = Mix64(hash.low ^ Mix64(hash.high ^ generation));
  return tag == 0 ? 1 : tag;
}

std::uint64_t TierTable::BucketOf(std::uint32_t half, std::uint64_t count) {
  const std::uint64_t mask = std::bit_ceil(count) - 1;
  const std::uint64_t bucket = half & mask;
  return bucket < count ? bucket : bucket & (mask >> 1);
}

std::uint64_t TierTable::on() const {
  return header_ == nullptr ? 0 : header_->tier_on.load(std::memory_order_acquire);
}

bool TierTable::HasTag(std::uint64_t tag) const {
  if (header_ == nullptr) return false;
  std::uint64_t count = header_->tier_buckets.load(std::memory_order_acquire);
  while (count != 0 && count <= limit_) {
    for (int which = 0; which < 2; ++which) {
      for (const auto& one : buckets_[BucketOf(Half(tag, which), count)].tag) {
        // Pairs with Grow's store that erases a moved tag: Grow has published the new count before,
        // so a reader that sees the erased tag also sees that count below.
        if (one.load(std::memory_order_acquire) == tag) return true;
      }
    }
    const std::uint64_t now = header_->tier_buckets.load(std::memory_order_acquire);
    if (now == count) return false;
    count = now;
  }
  return false;
}

bool TierTable::Holds(SlotId slot, Generation generation, std::string_view key) const {
  if (on() == 0) return false;
  return Holds(TierTag(TierHash(header_->tier_seed, slot, key), generation));
}

// ---- the writer

// Clears the first bucket only: Grow writes all tags of each bucket that it adds.
void TierTableWriter::Begin(std::uint64_t seed) {
  if (header_ == nullptr) return;
  SetOff(kAllTierShares);
  size_ = 0;
  header_->tier_seed = seed;
  for (auto& tag : buckets_[0].tag) tag.store(0, std::memory_order_relaxed);
  header_->tier_buckets.store(1, std::memory_order_release);
}

void TierTableWriter::SetOn(std::uint64_t shares) {
  if (header_ != nullptr) header_->tier_on.fetch_or(shares, std::memory_order_release);
}

void TierTableWriter::SetOff(std::uint64_t shares) {
  if (header_ != nullptr) header_->tier_on.fetch_and(~shares, std::memory_order_release);
}

std::optional<std::uint64_t> TierTableWriter::Clear(std::uint64_t shares, std::uint64_t bucket) {
  const std::uint64_t end = std::min(buckets(), bucket + kClearedAtOnce);
  for (; bucket < end; ++bucket) {
    for (auto& one : buckets_[bucket].tag) {
      const std::uint64_t tag = one.load(std::memory_order_relaxed);
      if (tag == 0 || (ShareOf(tag) & shares) == 0) continue;
      one.store(0, std::memory_order_release);
      --size_;
    }
  }
  return end < buckets() ? std::optional(end) : std::nullopt;
}

std::uint64_t TierTableWriter::buckets() const {
  return header_ == nullptr ? 0 : header_->tier_buckets.load(std::memory_order_relaxed);
}

bool TierTableWriter::Add(std::uint64_t tag) {
  if (header_ == nullptr) return false;
  if (size_ > buckets() * kTagsABucket) Grow();
  for (int i = 0; i < kGrowsForOne; ++i) {
    if (Place(tag)) return true;
    if (!Grow()) return false;
  }
  return false;
}

// Stores the tag in the emptier of its two buckets.
bool TierTableWriter::Place(std::uint64_t tag) {
  std::atomic<std::uint64_t>* place = nullptr;
  std::uint32_t most_free = 0;
  for (int which = 0; which < 2; ++which) {
    std::uint32_t free = 0;
    std::atomic<std::uint64_t>* first = nullptr;
    for (auto& one : buckets_[BucketOf(Half(tag, which), buckets())].tag) {
      const std::uint64_t there = one.load(std::memory_order_relaxed);
      if (there == tag) return true;
      if (there != 0) continue;
      ++free;
      if (first == nullptr) first = &one;
    }
    if (free > most_free) {
      most_free = free;
      place = first;
    }
  }
  if (place == nullptr) return false;
  place->store(tag, std::memory_order_release);
  ++size_;
  return true;
}

void TierTableWriter::Remove(std::uint64_t tag) {
  if (header_ == nullptr) return;
  for (int which = 0; which < 2; ++which) {
    for (auto& one : buckets_[BucketOf(Half(tag, which), buckets())].tag) {
      if (one.load(std::memory_order_relaxed) != tag) continue;
      one.store(0, std::memory_order_release);
      --size_;
      return;
    }
  }
}

// Adds a bucket, and moves tags of its source there. Until the last loop a moved tag is in both, so
// a reader finds it under the old and under the new count.
bool TierTableWriter::Grow() {
  const std::uint64_t count = buckets();
  if (count >= limit_) return false;
  TierBucket& from = buckets_[count - std::bit_floor(count)];
  TierBucket& to = buckets_[count];
  bool moves[kTierBucketTags] = {};
  for (std::uint32_t i = 0; i < kTierBucketTags; ++i) {
    const std::uint64_t tag = from.tag[i].load(std::memory_order_relaxed);
    const std::uint64_t old = count - std::bit_floor(count);
    // A tag stays if this bucket is still one of its two under the new count.
    moves[i] = tag != 0 && BucketOf(Half(tag, 0), count + 1) != old &&
               BucketOf(Half(tag, 1), count + 1) != old;
    to.tag[i].store(moves[i] ? tag : 0, std::memory_order_release);
  }
  header_->tier_buckets.store(count + 1, std::memory_order_release);
  for (std::uint32_t i = 0; i < kTierBucketTags; ++i) {
    if (moves[i]) from.tag[i].store(0, std::memory_order_release);
  }
  return true;
}

}  // namespace kvcove::segment
