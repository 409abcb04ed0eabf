// SPDX-License-Identifier: Apache-2.0
#include "kvcove/segment/view.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "kvcove/base/hash.h"
#include "kvcove/base/thread_sanitizer.h"

namespace kvcove::segment {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kGhosts = 1 << 15;
constexpr int kMaxChain = 64;  // buckets of a chain that a look-up follows at most

constexpr std::uint64_t Up(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

struct Areas {
  std::uint64_t slots, ghosts, buckets, bucket_limit, overflow, overflow_limit, records,
      record_units, tier, tier_limit, end;
};

Areas LayOut(const HeaderSizes& sizes) {
  Areas areas{};
  areas.slots = Up(sizeof(Header), kPage);
  areas.ghosts = Up(areas.slots + kMaxSlots * sizeof(Slot), kPage);
  areas.buckets = Up(areas.ghosts + kGhosts * sizeof(std::uint64_t), kPage);
  areas.bucket_limit = sizes.max_objects / 3 + 64;
  areas.overflow = Up(areas.buckets + areas.bucket_limit * sizeof(Bucket), kPage);
  areas.overflow_limit = areas.bucket_limit + 64;
  areas.records = Up(areas.overflow + areas.overflow_limit * sizeof(Bucket), kPage);
  // 512 bytes an object leave room for long keys, and 64 MiB for partly used slabs of each size. A
  // place has 32 bits.
  areas.record_units = std::min<std::uint64_t>(
      sizes.max_objects * 512 / kRecordUnit + (64ULL << 20) / kRecordUnit, 0xFFFFFFF0ULL);
  areas.tier = Up(areas.records + areas.record_units * kRecordUnit, kPage);
  areas.tier_limit = TierBuckets(sizes.tier_objects);
  areas.end = Up(areas.tier + areas.tier_limit * sizeof(TierBucket), kPage);
  return areas;
}

std::uint64_t LoadWord(const char* bytes) {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes, 8);
  return word;
}

// Returns the last `left` (1 to 7) bytes of `key`, padded with zeros, without a loop over bytes.
std::uint64_t LoadTail(std::string_view key, std::size_t left) {
  if (key.size() >= 8) return LoadWord(key.data() + key.size() - 8) >> (8 * (8 - left));
  std::uint64_t word = 0;
  std::memcpy(&word, key.data(), left);
  return word;
}

}  // namespace

Status CheckLayout(std::uint32_t owner, std::uint32_t reader) {
  if (owner == reader) return {};
  return Fail(
      Code::kIncompatible,
      fmt::format("the owner's segment has layout version {}, the process that wants to map "
                  "it knows {}; use the same kvcove on both sides",
                  owner, reader));
}

void FullFence() {
#if KVCOVE_THREAD_SANITIZER
  static std::atomic<std::uint64_t> word{0};
  word.exchange(0, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

void OwnerOrders() {
#if KVCOVE_THREAD_SANITIZER
  FullFence();
#endif
}

std::uint64_t HeaderFileBytes(const HeaderSizes& sizes) { return LayOut(sizes).end; }

Status FormatHeader(std::byte* data, const HeaderSizes& sizes, Id128 segment_id,
                    std::uint64_t hash_seed) {
  KVCOVE_ASSIGN(const Granule granule, Granule::Of(sizes.granule_bytes, sizes.payload_bytes));
  if (granule.Occupied(sizes.payload_bytes) != sizes.payload_bytes) {
    return Fail(Code::kInvalid,
                fmt::format("a payload of {} B is not made of whole granules of {} B",
                            sizes.payload_bytes, granule.bytes()));
  }
  const Areas areas = LayOut(sizes);
  Header& header = *reinterpret_cast<Header*>(data);
  header.layout_version = kLayoutVersion;
  header.slot_count = kMaxSlots;
  header.segment_id = segment_id;
  header.header_bytes = areas.end;
  header.payload_bytes = sizes.payload_bytes;
  header.granule_bytes = static_cast<std::uint32_t>(granule.bytes());
  header.record_unit_bytes = kRecordUnit;
  header.hash_seed = hash_seed;
  header.slots_offset = areas.slots;
  header.ghosts_offset = areas.ghosts;
  header.ghost_count = kGhosts;
  header.buckets_offset = areas.buckets;
  header.bucket_limit = areas.bucket_limit;
  header.overflow_offset = areas.overflow;
  header.overflow_limit = areas.overflow_limit;
  header.records_offset = areas.records;
  header.record_units = areas.record_units;
  header.tier_offset = areas.tier_limit == 0 ? 0 : areas.tier;
  header.tier_limit = areas.tier_limit;
  header.bucket_count.store(1, std::memory_order_relaxed);
  header.magic = kHeaderMagic;
  return {};
}

Result<HeaderView> HeaderView::Open(std::byte* data, std::size_t size) {
  if (size < sizeof(Header)) {
    return Fail(Code::kCorrupt, fmt::format("a segment header of {} bytes is cut short", size));
  }
  Header& header = *reinterpret_cast<Header*>(data);
  if (header.magic != kHeaderMagic) return Fail(Code::kIncompatible, "not a kvcove segment header");
  KVCOVE_TRY(CheckLayout(header.layout_version, kLayoutVersion));
  const auto inside = [&](std::uint64_t offset, std::uint64_t count, std::uint64_t each) {
    return offset % 8 == 0 && offset <= size && count <= (size - offset) / each;
  };
  if (header.header_bytes != size || header.slot_count != kMaxSlots ||
      !inside(header.slots_offset, header.slot_count, sizeof(Slot)) ||
      !std::has_single_bit(header.ghost_count) ||
      !inside(header.ghosts_offset, header.ghost_count, sizeof(std::uint64_t)) ||
      !inside(header.buckets_offset, header.bucket_limit, sizeof(Bucket)) ||
      !inside(header.overflow_offset, header.overflow_limit, sizeof(Bucket)) ||
      !inside(header.records_offset, header.record_units, kRecordUnit) ||
      header.tier_offset % alignof(TierBucket) != 0 ||
      !inside(header.tier_offset, header.tier_limit, sizeof(TierBucket))) {
    return Fail(Code::kCorrupt, "the segment header's areas do not fit its size");
  }
  const auto granule = Granule::Of(header.granule_bytes, header.payload_bytes);
  if (header.granule_bytes == 0 || !granule || header.record_unit_bytes != kRecordUnit ||
      granule->Occupied(header.payload_bytes) != header.payload_bytes) {
    return Fail(Code::kCorrupt,
                fmt::format("the segment header names granules of {} B for a payload of {} B, and "
                            "records in units of {} B",
                            header.granule_bytes, header.payload_bytes, header.record_unit_bytes));
  }
  HeaderView view;
  view.header_ = &header;
  view.granule_ = *granule;
  view.slots_ = reinterpret_cast<Slot*>(data + header.slots_offset);
  view.buckets_ = reinterpret_cast<Bucket*>(data + header.buckets_offset);
  view.overflow_ = reinterpret_cast<Bucket*>(data + header.overflow_offset);
  view.records_ = data + header.records_offset;
  view.ghosts_ = reinterpret_cast<std::atomic<std::uint64_t>*>(data + header.ghosts_offset);
  view.ghost_mask_ = header.ghost_count - 1;
  if (header.tier_limit != 0) {
    view.tier_ = TierTable(&header, reinterpret_cast<TierBucket*>(data + header.tier_offset),
                           header.tier_limit);
  }
  return view;
}

std::uint64_t HeaderView::HashKey(SlotId slot, std::string_view key) const {
  return Hash64(key, header_->hash_seed + slot);
}

std::uint64_t HeaderView::BucketNumber(std::uint64_t hash, std::uint64_t count) {
  const std::uint64_t low = std::bit_floor(count);
  const std::uint64_t number = hash & (2 * low - 1);
  return number < count ? number : number - low;
}

// The reading side of a sequence lock; Index::Insert and Withdraw are the writing side. The first
// load of the version pairs with Insert's release: a reader that has the version sees the fields.
bool HeaderView::Check(SlotId slot, std::string_view key, Place place, Found& found) const {
  const Entry& entry = EntryAt(place);
  const Version version = entry.version.load(std::memory_order_acquire);
  const EntryMeta meta{entry.meta.load(std::memory_order_relaxed)};
  if (version == 0 || meta.slot() != slot || meta.key_bytes() != key.size()) return false;
  const Generation generation = entry.generation.load(std::memory_order_relaxed);
  const std::uint64_t first = entry.first.load(std::memory_order_relaxed);
  const std::atomic<std::uint64_t>* words = WordsBehind(place) + meta.extent_words();
  const char* bytes = key.data();
  const std::size_t whole = key.size() / 8;
  std::uint64_t differs = 0;
  for (std::size_t i = 0; i < whole; ++i) {
    differs |= words[i].load(std::memory_order_relaxed) ^ LoadWord(bytes + i * 8);
  }
  if (const std::size_t left = key.size() % 8; left > 0) {
    differs |= words[whole].load(std::memory_order_relaxed) ^ LoadTail(key, left);
  }
  // Pairs with the owner's full fence between Withdraw and the next use of the record: if any load
  // above saw a field of the next entry, the load below sees version 0 or a later one.
#if !KVCOVE_THREAD_SANITIZER
  std::atomic_thread_fence(std::memory_order_acquire);
#endif
  if (differs != 0 || entry.version.load(std::memory_order_acquire) != version) return false;
  found.place = place;
  found.version = version;
  found.generation = generation;
  found.meta = meta;
  found.first_granule = static_cast<std::uint32_t>(first >> 32);
  found.object = static_cast<std::uint32_t>(first);
  return true;
}

Found HeaderView::Find(SlotId slot, const PreparedKey& key) const {
  // A local that is returned without a copy. A copy of `found` right after Check has written it in
  // smaller parts would stall the processor.
  Found found;
  const std::uint64_t tag = key.hash >> 32;
  std::uint64_t count = header_->bucket_count.load(std::memory_order_acquire);
  while (true) {
    const Bucket* bucket = &buckets_[BucketNumber(key.hash, count)];
    for (int hops = 0; hops < kMaxChain; ++hops) {
      for (const auto& element : bucket->element) {
        const std::uint64_t word = element.load(std::memory_order_acquire);
        if (word >> 32 != tag || static_cast<Place>(word) == 0) continue;
        if (Check(slot, key.key, static_cast<Place>(word), found)) return found;
      }
      const std::uint64_t next = bucket->overflow.load(std::memory_order_acquire);
      // The bound of hops, too, keeps a look-up from hanging on a damaged header.
      if (next == 0 || next >= header_->overflow_limit) break;
      bucket = &overflow_[next];
    }
    // The bucket may have been split during the search. Index::SplitOne raises the count before it
    // erases elements, so an unchanged count means that none was missed for that.
    const std::uint64_t now = header_->bucket_count.load(std::memory_order_acquire);
    if (now == count) return found;
    count = now;
  }
}

void HeaderView::FindMany(SlotId slot, std::span<const std::string_view> keys, Found* found) const {
  // A pipeline over groups of keys: one group is hashed and its buckets are prefetched, the
  // previous group's buckets are searched and its entries prefetched, and the group before that is
  // compared.
  constexpr std::size_t kGroup = 8;
  std::uint64_t hashes[kFindMany];
  const Bucket* buckets[kFindMany];
  Place places[kFindMany];
  const std::uint64_t count = header_->bucket_count.load(std::memory_order_acquire);
  const auto of_group = [&](std::size_t group, const auto& work) {
    for (std::size_t i = group * kGroup; i < std::min(keys.size(), (group + 1) * kGroup); ++i) {
      work(i);
    }
  };
  for (std::size_t step = 0; step < (keys.size() + kGroup - 1) / kGroup + 2; ++step) {
    of_group(step, [&](std::size_t i) {
      hashes[i] = HashKey(slot, keys[i]);
      buckets[i] = &buckets_[BucketNumber(hashes[i], count)];
      __builtin_prefetch(buckets[i]);
    });
    if (step >= 1) {
      of_group(step - 1, [&](std::size_t i) {
        // Compares all elements without a branch, as the processor would mispredict it.
        const std::uint64_t tag =
            hashes[i] >> 32;  // NOLINT(clang-analyzer-core.UndefinedBinaryOperatorResult)
        std::uint64_t match = 0;
        for (const auto& element : buckets[i]->element) {
          const std::uint64_t word = element.load(std::memory_order_acquire);
          match = word >> 32 == tag ? word : match;
        }
        places[i] = static_cast<Place>(match);
        const auto* entry = reinterpret_cast<const std::byte*>(&EntryAt(places[i]));
        __builtin_prefetch(entry);
        __builtin_prefetch(entry + 64);
        __builtin_prefetch(entry + 128);
      });
    }
    if (step >= 2) {
      of_group(step - 2, [&](std::size_t i) {
        // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult)
        if (places[i] != 0 && Check(slot, keys[i], places[i], found[i])) return;
        // Another key has this tag, or the key is in an overflow bucket or a bucket just added.
        found[i] = Find(slot, {.key = keys[i], .hash = hashes[i]});
      });
    }
  }
}

std::uint32_t HeaderView::Extents(const Found& found,
                                  std::span<Extent, kMaxExtents> extents) const {
  if (found.meta.extents() <= 1) {
    extents[0] = {.start = found.first_granule,
                  .count = static_cast<std::uint32_t>(granule_.Count(found.meta.size_bytes()))};
    return 1;
  }
  const std::atomic<std::uint64_t>* words = WordsBehind(found.place);
  const std::uint32_t count = std::min<std::uint32_t>(found.meta.extents(), kMaxExtents);
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint64_t word = words[i].load(std::memory_order_relaxed);
    extents[i] = {.start = static_cast<std::uint32_t>(word >> 32),
                  .count = static_cast<std::uint32_t>(word)};
  }
  return count;
}

std::string HeaderView::KeyOf(Place place) const {
  const EntryMeta meta = EntryMeta(EntryAt(place).meta.load(std::memory_order_relaxed));
  const std::atomic<std::uint64_t>* words = WordsBehind(place) + meta.extent_words();
  std::string key(Up(meta.key_bytes(), 8), '\0');
  for (std::size_t i = 0; i < key.size(); i += 8) {
    const std::uint64_t word = words[i / 8].load(std::memory_order_relaxed);
    std::memcpy(key.data() + i, &word, 8);
  }
  key.resize(meta.key_bytes());
  return key;
}

MissReason HeaderView::GhostReason(std::uint64_t hash) const {
  const std::uint64_t word = ghosts_[hash & ghost_mask_].load(std::memory_order_relaxed);
  // Another key may have overwritten this word; then the reason of this key is not known any more.
  if (word == 0 || (word ^ hash) >> 8 != 0) return MissReason::kNeverPut;
  return static_cast<MissReason>(word & 0xFF);
}

void HeaderView::RememberGhost(std::uint64_t hash, MissReason reason) {
  ghosts_[hash & ghost_mask_].store(
      (hash & ~std::uint64_t{0xFF}) | static_cast<std::uint64_t>(reason),
      std::memory_order_relaxed);
}

}  // namespace kvcove::segment
