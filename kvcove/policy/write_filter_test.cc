// SPDX-License-Identifier: Apache-2.0
#include "kvcove/policy/write_filter.h"

#include <gtest/gtest.h>

#include "kvcove/base/random.h"

namespace kvcove::policy {
namespace {

// Memory that holds nothing: each chain is stored, and given up from its end at once.
class Memory {
 public:
  explicit Memory(std::uint64_t tier_bytes, std::size_t most_followed = 65'536)
      : admission({.tier_bytes = tier_bytes, .most_followed = most_followed}) {}

  // How many of the chain's blocks are worth writing. `key`: of its first block; the others follow.
  std::size_t Pass(std::uint64_t key, std::uint32_t length, bool returned = false) {
    for (ObjectId i = 0; i < length; ++i) {
      admission.OnPut({.id = i,
                       .key = Mix64(key + i),
                       .size_bytes = 1,
                       .parent = i == 0 || returned ? kNoObject : i - 1},
                      returned);
    }
    std::size_t worth = 0;
    for (ObjectId i = length; i-- > 0;) {
      if (!admission.Worth(i, Mix64(key + i))) continue;
      ++worth;
      admission.OnWritten(1);
    }
    return worth;
  }

  WriteFilter admission;
};

TEST(WriteFilterTest, WithoutExperienceAllIsWritten) {
  Memory memory(10'000);
  EXPECT_EQ(memory.Pass(1, 100), 100U);
}

// Nobody knows what is better than the rest, so nothing is dropped, whether all comes back or none.
TEST(WriteFilterTest, WhatIsAllAlikeIsWrittenWhole) {
  for (const bool again : {false, true}) {
    Memory memory(2'000);
    std::uint64_t written = 0;
    std::uint64_t given = 0;
    for (std::uint64_t chain = 0; chain < 2'000; ++chain) {
      const std::uint64_t key = (again ? chain % 20 : chain) * 1000;
      // Single blocks: chains of more than one have a tail, which is another class.
      written += memory.Pass(key, 1);
      ++given;
    }
    EXPECT_EQ(written, given) << again;
  }
}

// Long chains that nobody asks for again, beside short ones that all come back.
TEST(WriteFilterTest, AScanIsNotWrittenBesideWhatComesBack) {
  Memory memory(20'000);
  std::size_t scanned = 0;
  std::size_t read = 0;
  for (std::uint64_t round = 0; round < 600; ++round) {
    const std::size_t scan = memory.Pass((1 << 30) + (round * 1000), 100);
    const std::size_t chain = memory.Pass((round % 50) * 1000, 12);
    if (round < 500) continue;
    scanned += scan;
    read += chain;
  }
  EXPECT_EQ(read, 100U * 12);
  EXPECT_LT(scanned, 100U * 100 / 10);
}

// The last block of a chain has another in its place in the next turn.
TEST(WriteFilterTest, TailsAreDropped) {
  Memory memory(50'000);
  std::size_t worth = 0;
  for (std::uint64_t chain = 0; chain < 1500; ++chain) {
    // Two turns: the second one has the first one's blocks but its tail, as it has a new tail.
    const std::uint64_t key = chain * 1000;
    const std::size_t first = memory.Pass(key, 10);
    if (chain >= 1400) worth += first;
    for (ObjectId i = 0; i < 9; ++i) {
      memory.admission.OnPut({.id = i, .key = Mix64(key + i), .size_bytes = 1}, true);
    }
    for (ObjectId i = 9; i-- > 0;) memory.admission.OnKept(i, Mix64(key + i));
  }
  EXPECT_EQ(worth, 100U * 9) << "all but the tails";
}

// What a class was known for is forgotten when it changes.
TEST(WriteFilterTest, ALoadThatChangesIsLearned) {
  Memory memory(5'000);
  std::uint64_t next = 0;
  for (int round = 0; round < 1500; ++round) {
    memory.Pass((1ULL << 40) + (next++ * 1000), 60);
    memory.Pass((static_cast<std::uint64_t>(round) % 30) * 1000, 6);
  }
  ASSERT_LT(memory.Pass((1ULL << 40) + (next++ * 1000), 60), 10U);
  std::size_t worth = 0;
  for (int round = 0; round < 1500; ++round) {
    // Now the long ones come back, and the short ones do not.
    worth = memory.Pass((2ULL << 40) + ((static_cast<std::uint64_t>(round) % 20) * 1000), 60);
    memory.Pass((3ULL << 40) + (next++ * 1000), 6);
  }
  EXPECT_GT(worth, 55U);
}

TEST(WriteFilterTest, AKeyThatIsGivenUpAgainCountsOnce) {
  Memory memory(1'000);
  for (int i = 0; i < 600; ++i) memory.Pass(7, 1);
  EXPECT_GT(memory.admission.average(), 0.8) << "it came back each time but the last";
  EXPECT_LE(memory.admission.followed(), 1'000U);
}

TEST(WriteFilterTest, FollowsNoMoreThanItMay) {
  Memory memory(1'000'000, 500);
  for (std::uint64_t chain = 0; chain < 2'000; ++chain) {
    memory.Pass(chain * 1000, 10);
    ASSERT_LE(memory.admission.followed(), 500U);
  }
  EXPECT_GT(memory.admission.followed(), 100U);
}

// What the tier would have forgotten is not followed any longer.
TEST(WriteFilterTest, FollowsForAsLongAsTheTierKeeps) {
  Memory memory(100);
  for (std::uint64_t chain = 0; chain < 100; ++chain) memory.Pass(chain * 1000, 10);
  EXPECT_LE(memory.admission.followed(), 111U);
}

TEST(WriteFilterTest, AnUnknownBlockIsNoError) {
  Memory memory(100);
  EXPECT_TRUE(memory.admission.Worth(77, 1));
  memory.admission.OnHit(99);
  memory.admission.OnRemove(99);
}

}  // namespace
}  // namespace kvcove::policy
