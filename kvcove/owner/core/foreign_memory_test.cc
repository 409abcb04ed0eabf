// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/core/foreign_memory.h"

#include <gtest/gtest.h>

namespace kvcove::owner {
namespace {

constexpr std::uint32_t kBlockGranules = ForeignMemory::kBlockBytes / segment::kLeastGranule;

class ForeignMemoryTest : public testing::Test {
 protected:
  void Give(Extent extent, std::uint32_t serial) { memory_.Give({&extent, 1}, serial); }
  void Fill(char with) { std::fill(payload_.begin(), payload_.end(), std::byte(with)); }
  std::byte At(std::uint32_t granule) const { return payload_[granule * segment::kLeastGranule]; }

  std::vector<std::byte> payload_ = std::vector<std::byte>(4 * ForeignMemory::kBlockBytes);
  ForeignMemory memory_{{.data = payload_.data(), .granule = {}}, payload_.size()};
};

TEST_F(ForeignMemoryTest, OnlyWhatAnotherSpaceMayHaveLeftIsCleared) {
  Give({.start = 0, .count = 2}, 1);
  Fill('x');
  Give({.start = 2, .count = 2}, 1);
  EXPECT_EQ(At(2), std::byte('x')) << "its own block";
  Give({.start = 4, .count = 2}, 2);
  EXPECT_EQ(At(4), std::byte(0));
  EXPECT_EQ(At(6), std::byte('x')) << "nobody has got this";
  Give({.start = 6, .count = 1}, 1);
  EXPECT_EQ(At(6), std::byte(0)) << "several have used this block";
}

TEST_F(ForeignMemoryTest, AnExtentMayLieInSeveralBlocks) {
  Give({.start = kBlockGranules, .count = 1}, 1);
  Fill('x');
  Give({.start = kBlockGranules - 1, .count = kBlockGranules + 2}, 2);
  EXPECT_EQ(At(kBlockGranules - 1), std::byte('x')) << "this block is new";
  EXPECT_EQ(At(kBlockGranules), std::byte(0));
  EXPECT_EQ(At(2 * kBlockGranules - 1), std::byte(0));
  EXPECT_EQ(At(2 * kBlockGranules), std::byte('x'));
}

}  // namespace
}  // namespace kvcove::owner
