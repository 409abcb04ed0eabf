// SPDX-License-Identifier: Apache-2.0
#include "kvcove/kvevents/replay_buffer.h"

#include <gtest/gtest.h>

namespace kvcove::kvevents {
namespace {

ReplayBuffer::Payload Batch(std::size_t bytes) {
  return std::make_shared<const std::string>(bytes, 'x');
}

TEST(ReplayBuffer, BatchesAreNumberedFromZero) {
  ReplayBuffer buffer(10, 1000);
  EXPECT_EQ(buffer.Add(Batch(1)), 0U);
  EXPECT_EQ(buffer.Add(Batch(2)), 1U);
  EXPECT_EQ(buffer.oldest(), 0U);
  EXPECT_EQ(buffer.next(), 2U);
  EXPECT_EQ(buffer.At(1)->size(), 2U);
}

TEST(ReplayBuffer, TheOldestBatchesGoBeyondEitherBound) {
  ReplayBuffer few(2, 1000);
  for (int i = 0; i < 5; ++i) few.Add(Batch(1));
  EXPECT_EQ(few.oldest(), 3U);
  EXPECT_EQ(few.next(), 5U);
  EXPECT_EQ(few.bytes(), 2U);
  ReplayBuffer small(100, 10);
  for (int i = 0; i < 5; ++i) small.Add(Batch(4));
  EXPECT_EQ(small.oldest(), 3U);
  EXPECT_EQ(small.bytes(), 8U);
}

TEST(ReplayBuffer, ABatchThatIsLargerThanAllIsKeptAlone) {
  ReplayBuffer buffer(100, 10);
  buffer.Add(Batch(4));
  EXPECT_EQ(buffer.Add(Batch(50)), 1U);
  EXPECT_EQ(buffer.oldest(), 1U);
  EXPECT_EQ(buffer.At(1)->size(), 50U);
}

}  // namespace
}  // namespace kvcove::kvevents
