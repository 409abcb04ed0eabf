// SPDX-License-Identifier: Apache-2.0
#include "kvcove/model/saves_under_way.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvcove {
namespace {

constexpr SlotId kSlot = 3;
constexpr Generation kGeneration = 7;
constexpr std::int64_t kKeptNs = 1000;

Id128 HashOf(std::uint64_t number) { return {.high = number, .low = ~number}; }

class SavesUnderWayTest : public testing::Test {
 protected:
  void Begin(std::uint64_t writer, std::uint64_t number, std::int64_t now_ns = 0,
             Generation generation = kGeneration) {
    const Id128 hash = HashOf(number);
    saves_.Begin(writer, kSlot, generation, {&hash, 1}, now_ns);
  }
  bool Has(std::uint64_t number, std::int64_t now_ns = 0, Generation generation = kGeneration,
           SlotId slot = kSlot) const {
    return saves_.Has(slot, generation, HashOf(number), now_ns);
  }

  SavesUnderWay saves_{{.kept_ns = kKeptNs, .most = 8, .most_of_writer = 4}};
};

TEST_F(SavesUnderWayTest, AnAnnouncedKeyIsUnderWayInItsSlotAndGeneration) {
  EXPECT_FALSE(Has(1));
  Begin(/*writer=*/1, 1);
  EXPECT_TRUE(Has(1));
  EXPECT_FALSE(Has(2));
  EXPECT_FALSE(Has(1, 0, kGeneration + 1)) << "a reset ends it";
  EXPECT_FALSE(Has(1, 0, kGeneration, kSlot + 1)) << "another namespace's";
}

TEST_F(SavesUnderWayTest, ItEndsWithItsValueItsWriterAndItsTime) {
  Begin(1, 1);
  Begin(1, 2);
  Begin(2, 3);
  saves_.End(kSlot, kGeneration, HashOf(1));
  EXPECT_FALSE(Has(1));
  EXPECT_TRUE(Has(2));
  saves_.EndWriter(1);
  EXPECT_FALSE(Has(2));
  EXPECT_TRUE(Has(3, kKeptNs - 1));
  EXPECT_FALSE(Has(3, kKeptNs));
  EXPECT_EQ(saves_.until_ns(), kKeptNs);
}

TEST_F(SavesUnderWayTest, ASaveFromBeforeAResetEndsNoneThatBeganAfterIt) {
  Begin(1, 1, 0, kGeneration + 1);
  saves_.End(kSlot, kGeneration, HashOf(1));
  EXPECT_TRUE(Has(1, 0, kGeneration + 1));
}

TEST_F(SavesUnderWayTest, AnAnnouncementRemovesFewOfThoseThatHaveExpired) {
  for (std::uint64_t i = 0; i < 8; ++i) Begin(i, i);
  Begin(9, 9, kKeptNs);
  EXPECT_EQ(saves_.size(), 7U) << "two were removed, one was added";
  EXPECT_TRUE(Has(9, kKeptNs));
  EXPECT_FALSE(Has(7, kKeptNs)) << "it has expired, and is still there";
}

TEST_F(SavesUnderWayTest, AKeyThatIsAnnouncedAgainLastsLonger) {
  Begin(1, 1, 0);
  Begin(2, 1, 500);
  EXPECT_TRUE(Has(1, kKeptNs + 499));
  Begin(2, 2, kKeptNs + 1);  // the first announcement's expiry is over by now
  EXPECT_TRUE(Has(1, kKeptNs + 2));
  EXPECT_FALSE(Has(1, kKeptNs + 500));
  // The writer whose announcement was replaced has none left, and ends nothing.
  saves_.EndWriter(1);
  EXPECT_TRUE(Has(2, kKeptNs + 2));
}

TEST_F(SavesUnderWayTest, ItsBoundsAreThoseOfAWriterAndOfAll) {
  for (std::uint64_t i = 0; i < 6; ++i) Begin(1, i);
  EXPECT_TRUE(Has(3));
  EXPECT_FALSE(Has(4)) << "the writer has its share";
  for (std::uint64_t i = 10; i < 20; ++i) Begin(i, i);
  EXPECT_EQ(saves_.size(), 8U);
  for (int i = 0; i < 100; ++i) Begin(1, 0);  // the same key, again and again
  EXPECT_LE(saves_.size(), 8U);
  // Time makes room.
  Begin(2, 30, kKeptNs);
  EXPECT_TRUE(Has(30, kKeptNs));
  for (int i = 0; i < 10; ++i) Begin(2, 30, kKeptNs);
  EXPECT_EQ(saves_.size(), 1U);
}

}  // namespace
}  // namespace kvcove
