// SPDX-License-Identifier: Apache-2.0
#include "kvcove/segment/index.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdlib>
#include <memory>
#include <unordered_map>

#include "kvcove/base/random.h"
#include "kvcove/segment/reader.h"

namespace kvcove::segment {
namespace {

struct Freer {
  void operator()(std::byte* data) const { std::free(data); }
};

class IndexTest : public testing::Test {
 protected:
  void Make(std::uint64_t max_objects) {
    const HeaderSizes sizes{.max_objects = max_objects, .payload_bytes = 1 << 20};
    size_ = HeaderFileBytes(sizes);
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(4096, size_)));
    std::fill_n(memory_.get(), size_, std::byte{0});
    EXPECT_TRUE(FormatHeader(memory_.get(), sizes, {1, 2}, 99));
    index_ = std::make_unique<Index>(*HeaderView::Open(memory_.get(), size_));
  }
  Result<Place> Insert(const std::string& key, Version version, SlotId slot = 0) {
    const Extent extent{.start = static_cast<std::uint32_t>(version), .count = 1};
    return index_->Insert({.key = key,
                           .hash = index_->view().HashKey(slot, key),
                           .slot = slot,
                           .generation = 5,
                           .size_bytes = 64,
                           .object = 3,
                           .version = version,
                           .extents = {&extent, 1}});
  }
  Found Find(const std::string& key, SlotId slot = 0) const {
    return index_->view().Find(slot, {.key = key, .hash = index_->view().HashKey(slot, key)});
  }
  std::size_t size_ = 0;
  std::unique_ptr<std::byte, Freer> memory_;
  std::unique_ptr<Index> index_;
};

TEST_F(IndexTest, FindsWhatWasInsertedAndNothingElse) {
  Make(1000);
  ASSERT_TRUE(Insert("key", 1));
  const Found found = Find("key");
  ASSERT_TRUE(found);
  EXPECT_EQ(found.version, 1U);
  EXPECT_EQ(found.generation, 5U);
  EXPECT_EQ(found.meta.size_bytes(), 64U);
  EXPECT_EQ(found.object, 3U);
  EXPECT_FALSE(Find("kex"));
  EXPECT_FALSE(Find("key", 1)) << "another slot is another key";
  EXPECT_EQ(index_->view().KeyOf(found.place), "key");
}

TEST_F(IndexTest, KeysOfEveryLengthCompareWhole) {
  Make(4000);
  Version version = 1;
  for (std::size_t length = 1; length <= kMaxKeyBytes; ++length) {
    ASSERT_TRUE(Insert(std::string(length, 'k'), version++));
  }
  for (std::size_t length = 1; length <= kMaxKeyBytes; ++length) {
    const Found found = Find(std::string(length, 'k'));
    ASSERT_TRUE(found) << length;
    EXPECT_EQ(found.version, length);
    std::string other(length, 'k');
    other.back() = 'x';
    EXPECT_FALSE(Find(other)) << length;
  }
}

TEST_F(IndexTest, StaysRightWhileItGrowsAndShrinks) {
  Make(60000);
  Random random(11);
  std::unordered_map<std::string, Place> there;
  Version version = 1;
  for (int step = 0; step < 60000; ++step) {
    const std::string key = fmt::format("key-{}", random.Below(30000));
    const auto at = there.find(key);
    if (at == there.end()) {
      const auto place = Insert(key, version++);
      ASSERT_TRUE(place);
      there[key] = *place;
    } else if (random.OneIn(2)) {
      index_->Withdraw(at->second, index_->view().HashKey(0, key));
      index_->Release(at->second);
      there.erase(at);
    }
  }
  EXPECT_EQ(index_->size(), there.size());
  for (int i = 0; i < 30000; ++i) {
    const std::string key = fmt::format("key-{}", i);
    EXPECT_EQ(static_cast<bool>(Find(key)), there.contains(key)) << key;
  }
}

TEST_F(IndexTest, FindManyAgreesWithFind) {
  Make(10000);
  for (int i = 0; i < 5000; ++i) ASSERT_TRUE(Insert(fmt::format("k{}", i), i + 1));
  std::vector<std::string> keys;
  for (int i = 0; i < 64; ++i) keys.push_back(fmt::format("k{}", i * 157 % 10000));
  const std::vector<std::string_view> views(keys.begin(), keys.end());
  Found found[HeaderView::kFindMany];
  index_->view().FindMany(0, views, found);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    EXPECT_EQ(found[i].version, Find(keys[i]).version) << keys[i];
  }
}

TEST_F(IndexTest, AWithdrawnEntryKeepsItsRecordUntilItIsReleased) {
  Make(1000);
  const Place place = *Insert("a", 1);
  index_->Withdraw(place, index_->view().HashKey(0, "a"));
  EXPECT_FALSE(Find("a"));
  EXPECT_NE(*Insert("b", 2), place);
  index_->Release(place);
  EXPECT_EQ(*Insert("c", 3), place);
}

// Chains of overflow buckets are kept once they are there, so filling bucket after bucket and
// withdrawing what was put there uses the overflow area up while few entries are in the index.
TEST_F(IndexTest, ASplitThatCannotBeFinishedLeavesNothingBehind) {
  Make(1);
  const auto there = [&] { return index_->view().header().bucket_count.load(); };
  const auto overflow = [&] { return index_->bucket_bytes() / sizeof(Bucket) - there(); };
  Version version = 1;
  int next = 0;
  std::unordered_map<std::string, Place> places;
  // `count` keys whose hashes have these low six bits, but for those that do not matter.
  const auto fill = [&](std::uint64_t bits, std::uint64_t mask, int count) {
    while (count > 0) {
      const std::string key = fmt::format("key-{}", next++);
      if ((index_->view().HashKey(0, key) & mask) != bits) continue;
      const auto place = Insert(key, version++);
      ASSERT_TRUE(place);
      places[key] = *place;
      --count;
    }
  };
  const auto clear = [&] {
    for (const auto& [key, place] : places) {
      index_->Withdraw(place, index_->view().HashKey(0, key));
      index_->Release(place);
    }
    places.clear();
  };
  fill(0, 0, 110);
  clear();
  ASSERT_EQ(there(), 32U);
  for (std::uint64_t bucket = 1; overflow() < 100; ++bucket) {
    fill(bucket, 31, 110);
    clear();
  }
  // Half of the next split's room is left. All of bucket 0 would move.
  fill(32, 63, 113);
  EXPECT_EQ(there(), 32U) << "the split was given up";
  const auto elements = [&] {
    std::unordered_map<Place, int> times;
    const auto count = [&](const Bucket& bucket) {
      for (const auto& element : bucket.element) {
        if (const auto place = static_cast<Place>(element.load()); place != 0) ++times[place];
      }
    };
    const Header& header = index_->view().header();
    for (std::uint64_t i = 0; i < header.bucket_limit; ++i) count(index_->view().bucket(i));
    for (std::uint64_t i = 0; i < header.overflow_limit; ++i) count(index_->view().overflow(i));
    return times;
  };
  EXPECT_EQ(elements().size(), places.size());
  for (const auto& [place, times] : elements()) EXPECT_EQ(times, 1) << place;
  for (const auto& [key, place] : places) EXPECT_EQ(Find(key).place, place);
  clear();
  EXPECT_TRUE(elements().empty());
}

TEST_F(IndexTest, AnEntryThatFindsNoBucketIsRefusedAndItsRecordUsedAgain) {
  Make(1);
  Version version = 1;
  Result<Place> place = Insert("first", version++);
  std::string refused;
  for (int i = 0; place; ++i) {
    refused = fmt::format("key-{}", i);
    place = Insert(refused, version++);
  }
  EXPECT_EQ(place.error().code, Code::kLimit);
  const std::uint64_t size = index_->size();
  const std::uint64_t records = index_->record_bytes();
  for (int i = 0; i < 10'000; ++i) EXPECT_FALSE(Insert(refused, version++));
  EXPECT_EQ(index_->size(), size);
  EXPECT_FALSE(Find(refused));
  EXPECT_EQ(index_->record_bytes(), records);
  EXPECT_TRUE(Find("first"));
}

TEST_F(IndexTest, LongExtentListsComeBack) {
  Make(1000);
  std::vector<Extent> extents;
  for (std::uint32_t i = 0; i < kMaxExtents; ++i)
    extents.push_back({.start = i * 7, .count = i + 1});
  ASSERT_TRUE(index_->Insert({.key = "many",
                              .hash = index_->view().HashKey(0, "many"),
                              .generation = 1,
                              .size_bytes = 100000,
                              .version = 9,
                              .extents = extents}));
  Extent read[kMaxExtents];
  const Found found = Find("many");
  ASSERT_EQ(index_->view().Extents(found, read), kMaxExtents);
  EXPECT_TRUE(std::equal(extents.begin(), extents.end(), read));
}

// A header for 16 TiB, of which only what is used takes memory.
TEST(LargeIndexTest, EntriesNamePlacesUpToTheEndOf16TiB) {
  const HeaderSizes sizes{.max_objects = 1ULL << 27, .payload_bytes = kMaxPayloadBytes};
  const std::size_t size = HeaderFileBytes(sizes);
  void* const memory = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* const data = static_cast<std::byte*>(memory);
  ASSERT_TRUE(FormatHeader(data, sizes, {1, 2}, 99));
  const auto view = HeaderView::Open(data, size);
  ASSERT_TRUE(view) << view.error().detail;
  EXPECT_EQ(view->granule().bytes(), 4096U);
  Index index(*view);
  const Extent last{.start = 0xFFFFFFFE, .count = 2};
  const Extent apart[] = {last, {.start = 0, .count = 1}};
  const auto insert = [&](const std::string& key, std::span<const Extent> extents) {
    return index.Insert({.key = key,
                         .hash = view->HashKey(0, key),
                         .generation = 1,
                         .size_bytes = 8192,
                         .version = 1,
                         .extents = extents});
  };
  ASSERT_TRUE(insert("one", {&last, 1}));
  ASSERT_TRUE(insert("two", apart));
  Extent extents[kMaxExtents];
  const auto find = [&](const std::string& key) {
    const Found found = view->Find(0, {.key = key, .hash = view->HashKey(0, key)});
    return std::vector<Extent>(extents, extents + view->Extents(found, extents));
  };
  EXPECT_EQ(find("one"), std::vector<Extent>{last});
  EXPECT_EQ(find("two"), std::vector<Extent>(std::begin(apart), std::end(apart)));
  munmap(memory, size);
}

TEST_F(IndexTest, GhostsTellWhyAKeyIsGone) {
  Make(1000);
  const std::uint64_t hash = index_->view().HashKey(0, "gone");
  EXPECT_EQ(index_->view().GhostReason(hash), MissReason::kNeverPut);
  index_->view().RememberGhost(hash, MissReason::kEvicted);
  EXPECT_EQ(index_->view().GhostReason(hash), MissReason::kEvicted);
}

TEST(RingTest, AFullRingDropsAndCounts) {
  auto memory = std::make_unique<SessionPage>();
  FormatSessionPage(reinterpret_cast<std::byte*>(memory.get()));
  for (std::uint32_t i = 0; i < kRingEvents + 10; ++i) {
    PushEvent(*memory, {.kind = EventKind::kHit, .place = i + 1, .version = i + 1});
  }
  EXPECT_EQ(memory->ring_dropped.load(), 10U);
  Event event;
  std::uint32_t count = 0;
  while (PopEvent(*memory, 0, event)) {
    ++count;
    EXPECT_EQ(event.place, count);
  }
  EXPECT_EQ(count, kRingEvents);
}

// The owner reads it later, and by then 30 bits may have gone round.
TEST(RingTest, AHoldEndsWhenItsReaderSaid) {
  auto memory = std::make_unique<SessionPage>();
  FormatSessionPage(reinterpret_cast<std::byte*>(memory.get()));
  constexpr std::int64_t kRound = std::int64_t{1} << 30;
  constexpr std::int64_t kDayMs = 24 * 3'600'000;
  for (const std::int64_t now_ms : {kDayMs, kRound - 1000, 7 * kRound - 1, 7 * kRound}) {
    for (const std::int64_t end_ms : {now_ms + 1, now_ms + 5000, now_ms + kDayMs, now_ms - 850}) {
      if (end_ms % kRound == 0) continue;
      PushEvent(*memory, {.hold_until_ms = end_ms, .place = 1, .version = 2});
      Event event;
      ASSERT_TRUE(PopEvent(*memory, now_ms * kMillisecond, event));
      EXPECT_EQ(event.hold_until_ms, end_ms);
      EXPECT_EQ(event.place, 1U);
      EXPECT_EQ(event.kind, EventKind::kHit);
    }
  }
  Event event;
  PushEvent(*memory, {.kind = EventKind::kHit, .place = 1, .version = 2});
  ASSERT_TRUE(PopEvent(*memory, kRound * kMillisecond, event));
  EXPECT_EQ(event.hold_until_ms, 0) << "it holds nothing";
  PushEvent(*memory, {.hold_until_ms = kRound, .place = 1, .version = 2});
  ASSERT_TRUE(PopEvent(*memory, kRound * kMillisecond, event));
  EXPECT_EQ(event.hold_until_ms, kRound + 1) << "not taken for none";
}

TEST(RingTest, NonsenseInTheCountersIsSkipped) {
  auto memory = std::make_unique<SessionPage>();
  memory->ring_written.store(~0ULL);
  Event event;
  EXPECT_FALSE(PopEvent(*memory, 0, event));
  EXPECT_FALSE(PopEvent(*memory, 0, event));
}

}  // namespace
}  // namespace kvcove::segment
