// SPDX-License-Identifier: Apache-2.0
#include "kvcove/disklog/disk_index.h"

#include <gtest/gtest.h>

#include "kvcove/base/hash.h"

namespace kvcove::disklog {
namespace {

IndexEntry EntryOf(std::uint64_t i) {
  IndexEntry entry;
  entry.set_id(Hash128(std::to_string(i), 5));
  entry.set_sequence(i + 1);
  entry.record_bytes = 100;
  return entry;
}

TEST(DiskIndexTest, AMillionObjectsTakeAtMost48BytesEach) {
  DiskIndex index;
  constexpr std::uint64_t kCount = 1'000'000;
  for (std::uint64_t i = 0; i < kCount; ++i) index.Insert(EntryOf(i));
  EXPECT_LE(index.memory_bytes(), kCount * 48 + (1 << 18));
  for (std::uint64_t i = 0; i < kCount; i += 997) {
    const IndexEntry* const found = index.Find(EntryOf(i).id());
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(found->sequence(), i + 1);
  }
  EXPECT_EQ(index.Find(EntryOf(kCount).id()), nullptr);
}

TEST(DiskIndexTest, PlacesOfErasedEntriesAreUsedAgain) {
  DiskIndex index;
  for (std::uint64_t i = 0; i < 10'000; ++i) index.Insert(EntryOf(i));
  const std::uint64_t bytes = index.memory_bytes();
  for (std::uint64_t round = 1; round < 20; ++round) {
    for (std::uint64_t i = 0; i < 10'000; ++i)
      index.Erase(EntryOf(((round - 1) * 10'000) + i).id());
    EXPECT_EQ(index.size(), 0U);
    for (std::uint64_t i = 0; i < 10'000; ++i) index.Insert(EntryOf((round * 10'000) + i));
  }
  EXPECT_EQ(index.memory_bytes(), bytes);
}

TEST(DiskIndexTest, ASweepErasesWhatIsDeadInSlices) {
  DiskIndex index;
  for (std::uint64_t i = 0; i < 5000; ++i) index.Insert(EntryOf(i));
  const auto odd = [](const IndexEntry& entry) { return entry.sequence() % 2 == 1; };
  int slices = 0;
  while (!index.Sweep(100, odd)) ++slices;
  EXPECT_GE(slices, 40);
  EXPECT_EQ(index.size(), 2500U);
  EXPECT_EQ(index.Find(EntryOf(0).id()), nullptr);
  EXPECT_NE(index.Find(EntryOf(1).id()), nullptr);
}

TEST(DiskIndexTest, SequencesKeep48Bits) {
  IndexEntry entry;
  entry.set_sequence(kMaxSequence);
  EXPECT_EQ(entry.sequence(), kMaxSequence);
}

}  // namespace
}  // namespace kvcove::disklog
