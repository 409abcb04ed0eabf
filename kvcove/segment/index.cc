// SPDX-License-Identifier: Apache-2.0
#include "kvcove/segment/index.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace kvcove::segment {
namespace {

std::uint32_t UnitsOf(std::uint32_t extent_words, std::size_t key_bytes) {
  const std::size_t bytes = sizeof(Entry) + extent_words * 8ULL + (key_bytes + 7) / 8 * 8;
  return static_cast<std::uint32_t>((bytes + kRecordUnit - 1) / kRecordUnit);
}

}  // namespace

Place Index::AllocateRecord(std::uint32_t units) {
  std::deque<Place>& free = free_records_[units];
  if (free.empty()) {
    const std::uint32_t records = std::max<std::uint32_t>(kSlabUnits / units, 1);
    if (next_unit_ + std::uint64_t{records} * units > view_.header().record_units) return 0;
    for (std::uint32_t i = records; i-- > 0;) {
      free.push_back(static_cast<Place>(next_unit_ + std::uint64_t{i} * units));
    }
    next_unit_ += std::uint64_t{records} * units;
  }
  const Place place = free.back();
  free.pop_back();
  return place;
}

void Index::Release(Place place) {
  const EntryMeta meta = EntryMeta(view_.EntryAt(place).meta.load(std::memory_order_relaxed));
  free_records_[UnitsOf(meta.extent_words(), meta.key_bytes())].push_back(place);
}

std::uint64_t Index::HashOf(Place place) const {
  const EntryMeta meta = EntryMeta(view_.EntryAt(place).meta.load(std::memory_order_relaxed));
  return view_.HashKey(meta.slot(), view_.KeyOf(place));
}

Index::Element* Index::Link(Place place, std::uint64_t hash, std::uint64_t bucket_number) {
  // Release stores: a reader that finds the place also sees the entry's fields, and a reader that
  // follows `overflow` sees that bucket's first element. Both pair with acquire loads in Find.
  const std::uint64_t word = (hash >> 32 << 32) | place;
  Bucket* bucket = &view_.bucket(bucket_number);
  while (true) {
    for (auto& element : bucket->element) {
      if (element.load(std::memory_order_relaxed) != 0) continue;
      element.store(word, std::memory_order_release);
      return &element;
    }
    const std::uint64_t next = bucket->overflow.load(std::memory_order_relaxed);
    if (next != 0) {
      bucket = &view_.overflow(next);
      continue;
    }
    if (next_overflow_ >= view_.header().overflow_limit) return nullptr;
    Element& first = view_.overflow(next_overflow_).element[0];
    first.store(word, std::memory_order_relaxed);
    bucket->overflow.store(next_overflow_++, std::memory_order_release);
    return &first;
  }
}

// Adds a bucket, and moves the entries of its source that belong there. For a while both buckets
// name these entries, so that a reader finds them under either count.
void Index::SplitOne() {
  if (buckets_ >= view_.header().bucket_limit) return;
  const std::uint64_t level = std::bit_floor(buckets_);
  const std::uint64_t from = buckets_ - level;
  const std::uint64_t to = buckets_;
  std::vector<Element*> left;   // in the bucket that is split
  std::vector<Element*> taken;  // in the new one
  for (Bucket* bucket = &view_.bucket(from);;) {
    for (auto& element : bucket->element) {
      const std::uint64_t word = element.load(std::memory_order_relaxed);
      if (word == 0) continue;
      const auto place = static_cast<Place>(word);
      const std::uint64_t hash = HashOf(place);
      if (HeaderView::BucketNumber(hash, buckets_ + 1) != to) continue;
      Element* const copy = Link(place, hash, to);
      if (copy == nullptr) {
        // No overflow bucket is left, so nothing is split. No reader looks at the new bucket before
        // bucket_count is raised. Its copies are taken back: after a later split they would be
        // elements whose places may name other entries by then.
        for (Element* one : taken) one->store(0, std::memory_order_relaxed);
        return;
      }
      taken.push_back(copy);
      left.push_back(&element);
    }
    const std::uint64_t next = bucket->overflow.load(std::memory_order_relaxed);
    if (next == 0) break;
    bucket = &view_.overflow(next);
  }
  // Raises the count before the old bucket forgets its elements. A reader that misses one of them
  // in the old bucket has read the erasing store with acquire, so it sees the raised count in Find
  // and searches again.
  ++buckets_;
  view_.header().bucket_count.store(buckets_, std::memory_order_release);
  for (Element* element : left) element->store(0, std::memory_order_release);
}

Result<Place> Index::Insert(const NewEntry& entry) {
  const EntryMeta meta =
      EntryMeta::Make(entry.size_bytes, entry.key.size(), entry.extents.size(), entry.slot);
  const Place place = AllocateRecord(UnitsOf(meta.extent_words(), entry.key.size()));
  if (place == 0) return Fail(Code::kLimit, "the index has no record left; raise max_objects");
  // The version is still 0, so readers ignore the fields. Its release store below publishes them.
  Entry& record = view_.EntryAt(place);
  record.generation.store(entry.generation, std::memory_order_relaxed);
  record.meta.store(meta.word, std::memory_order_relaxed);
  record.first.store((std::uint64_t{entry.extents[0].start} << 32) | entry.object,
                     std::memory_order_relaxed);
  std::atomic<std::uint64_t>* words = view_.WordsBehind(place);
  for (std::uint32_t i = 0; i < meta.extent_words(); ++i) {
    (words++)->store((std::uint64_t{entry.extents[i].start} << 32) | entry.extents[i].count,
                     std::memory_order_relaxed);
  }
  for (std::size_t i = 0; i < entry.key.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, entry.key.data() + i, std::min<std::size_t>(8, entry.key.size() - i));
    (words++)->store(word, std::memory_order_relaxed);
  }
  record.version.store(entry.version, std::memory_order_release);
  if (Link(place, entry.hash, HeaderView::BucketNumber(entry.hash, buckets_)) == nullptr) {
    record.version.store(0, std::memory_order_release);
    // Orders the version 0 before the stores of the record's next entry. A reader that has the old
    // version and reads the new words must see version 0 at its second look (HeaderView::Check);
    // else it takes these words for the old entry's. Withdrawn entries have such a fence before
    // Release, too.
    FullFence();
    Release(place);
    return Fail(Code::kLimit, "the index has no overflow bucket left; raise max_objects");
  }
  ++size_;
  if (size_ * 2 > buckets_ * 7) SplitOne();  // 3.5 entries a bucket
  return place;
}

void Index::Withdraw(Place place, std::uint64_t hash) {
  // The version ends the entry, for readers that have the place already. The element only keeps
  // later look-ups from finding the place.
  view_.EntryAt(place).version.store(0, std::memory_order_release);
  for (Bucket* bucket = &view_.bucket(HeaderView::BucketNumber(hash, buckets_));;) {
    for (auto& element : bucket->element) {
      if (static_cast<Place>(element.load(std::memory_order_relaxed)) != place) continue;
      element.store(0, std::memory_order_release);
      --size_;
      return;
    }
    const std::uint64_t next = bucket->overflow.load(std::memory_order_relaxed);
    if (next == 0) return;
    bucket = &view_.overflow(next);
  }
}

}  // namespace kvcove::segment
