// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/tier/disk_loads.h"

#include <gtest/gtest.h>

namespace kvcove::owner {
namespace {

constexpr std::uint64_t kLoadBytes = 100;

class DiskLoadsTest : public testing::Test {
 protected:
  static std::shared_ptr<LoadBatch> Batch(std::int64_t deadline_ns = 1000) {
    auto batch = std::make_shared<LoadBatch>();
    batch->deadline_ns = deadline_ns;
    return batch;
  }
  bool Add(const std::shared_ptr<LoadBatch>& batch, std::uint64_t tag) {
    return loads_.Add(batch,
                      {.slot = 1, .key = "k" + std::to_string(tag), .tag = tag, .waiters = {}});
  }
  // Takes the batches that are ready, as a caller does to answer them.
  DiskLoads::Ready Answer() {
    DiskLoads::Ready ready = loads_.TakeReady();
    loads_.Answered(ready.size());
    return ready;
  }
  std::shared_ptr<Load> First() {
    return loads_.First(0, [this](const std::shared_ptr<Load>& load) {
      if (load->tag != written_) return false;
      parked_.push_back(load);
      return true;
    });
  }

  void Read(const wire::LoadResult& result) {
    const auto load = First();
    ASSERT_NE(load, nullptr);
    ASSERT_TRUE(loads_.Take(load, 1));
    loads_.Finish(load, result);
  }

  DiskLoads loads_{{.loads = 8, .batch_bytes = 3 * kLoadBytes}, {}, 0};
  std::uint64_t written_ = 0;  // the log is writing the value of this tag
  std::vector<std::shared_ptr<Load>> parked_;
};

TEST_F(DiskLoadsTest, OneLoadAnswersAllThatWaitForItsKey) {
  const auto one = Batch();
  const auto two = Batch();
  ASSERT_TRUE(Add(one, 7));
  ASSERT_TRUE(Add(two, 7));
  loads_.Begin(one);
  loads_.Begin(two);
  const auto load = First();
  ASSERT_NE(load, nullptr);
  EXPECT_TRUE(loads_.Take(load, kLoadBytes));
  EXPECT_EQ(First(), nullptr) << "it is read once";
  EXPECT_TRUE(Answer().empty());
  loads_.Finish(load, {.code = Code::kOk, .bytes = 5});
  EXPECT_EQ(Answer().size(), 2U);
  EXPECT_EQ(one->results[0].code, Code::kOk);
  EXPECT_EQ(two->results[0].code, Code::kOk);
  EXPECT_EQ(loads_.counts().promoted, 1U);
  EXPECT_EQ(loads_.counts().promoted_bytes, 5U);
}

TEST_F(DiskLoadsTest, ABatchIsAnsweredOnceAllItsKeysAreAddedAndDecided) {
  const auto batch = Batch();
  ASSERT_TRUE(Add(batch, 1));
  Read({.code = Code::kOk});
  EXPECT_TRUE(Answer().empty()) << "others may be added yet";
  EXPECT_FALSE(loads_.Refuse(*batch, MissReason::kEvicted));
  ASSERT_TRUE(Add(batch, 2));
  loads_.Begin(batch);
  EXPECT_TRUE(Answer().empty());
  Read(MissFor(MissReason::kDiskDamaged));
  ASSERT_EQ(Answer(), DiskLoads::Ready{batch});
  ASSERT_EQ(batch->results.size(), 3U);
  EXPECT_EQ(batch->results[0].code, Code::kOk);
  EXPECT_EQ(batch->results[1].reason, MissReason::kEvicted);
  EXPECT_EQ(batch->results[2].reason, MissReason::kDiskDamaged);
  EXPECT_EQ(loads_.counts().misses, 1U);
}

TEST_F(DiskLoadsTest, ABatchIsAnsweredAtItsDeadlineAndNotAgain) {
  const auto batch = Batch(10);
  ASSERT_TRUE(Add(batch, 1));
  loads_.Begin(batch);
  const auto load = First();
  ASSERT_TRUE(loads_.Take(load, 1));
  loads_.Expire(9);
  EXPECT_TRUE(Answer().empty());
  loads_.Expire(10);
  EXPECT_EQ(Answer().size(), 1U);
  EXPECT_EQ(batch->results[0].reason, MissReason::kDiskTimeout);
  EXPECT_EQ(loads_.counts().timeouts, 1U);
  EXPECT_FALSE(DiskLoads::Waits(*load));
  EXPECT_TRUE(DiskLoads::HoldersOf(*load).empty());
  loads_.Finish(load, {.code = Code::kOk});
  EXPECT_TRUE(Answer().empty());
  EXPECT_EQ(batch->results[0].reason, MissReason::kDiskTimeout) << "results do not change any more";
}

TEST_F(DiskLoadsTest, WhatNobodyWaitsForIsNotRead) {
  const auto batch = Batch();
  ASSERT_TRUE(Add(batch, 1));
  ASSERT_TRUE(Add(Batch(), 2));
  DiskLoads::Cancel(*batch);
  const auto load = First();
  ASSERT_NE(load, nullptr);
  EXPECT_EQ(load->tag, 2U);
  EXPECT_TRUE(Answer().empty()) << "a batch that was cancelled is not answered";
}

TEST_F(DiskLoadsTest, AFencedLoadIsNotReadAndALaterCallJoinsIt) {
  const auto one = Batch();
  ASSERT_TRUE(Add(one, 1));
  loads_.Begin(one);
  loads_.Fence(1);
  const auto two = Batch();
  ASSERT_TRUE(Add(two, 1));
  loads_.Begin(two);
  EXPECT_EQ(First(), nullptr);
  EXPECT_EQ(Answer().size(), 2U);
  EXPECT_EQ(two->results[0].reason, MissReason::kRaced);
}

TEST_F(DiskLoadsTest, APatternFencesTheLoadsOfItsSlot) {
  const auto batch = Batch();
  ASSERT_TRUE(Add(batch, 1));
  ASSERT_TRUE(Add(batch, 20));
  const auto first = First();
  loads_.FenceMatching(2, "*");
  EXPECT_FALSE(first->cancelled);
  loads_.FenceMatching(1, "k2*");
  EXPECT_FALSE(first->cancelled);
  ASSERT_TRUE(loads_.Take(first, 1));
  EXPECT_EQ(First(), nullptr);
  EXPECT_EQ(batch->results[1].reason, MissReason::kRaced);
}

TEST_F(DiskLoadsTest, ALoadWhoseValueIsBeingWrittenWaitsElsewhere) {
  const auto batch = Batch();
  ASSERT_TRUE(Add(batch, 1));
  ASSERT_TRUE(Add(batch, 2));
  loads_.Begin(batch);
  written_ = 1;
  EXPECT_EQ(First()->tag, 2U);
  ASSERT_EQ(parked_.size(), 1U);
  ASSERT_TRUE(Add(Batch(), 1)) << "it is the same load";
  written_ = 0;
  ASSERT_TRUE(loads_.Take(First(), 1));
  EXPECT_EQ(First(), nullptr);
  loads_.Requeue(parked_[0]);
  EXPECT_EQ(First(), parked_[0]);
}

TEST_F(DiskLoadsTest, ABatchPromotesNoMoreThanItsBytesButOneValueAlways) {
  const auto batch = Batch();
  for (std::uint64_t tag = 1; tag <= 2; ++tag) ASSERT_TRUE(Add(batch, tag));
  loads_.Begin(batch);
  EXPECT_TRUE(loads_.Take(First(), 9 * kLoadBytes));
  EXPECT_FALSE(loads_.Take(First(), kLoadBytes));
  EXPECT_EQ(batch->results[1].code, Code::kLimit);
}

TEST_F(DiskLoadsTest, SoManyLoadsWaitAtATime) {
  const auto batch = Batch();
  std::uint64_t tag = 1;
  while (tag <= 8) ASSERT_TRUE(Add(batch, tag++));
  EXPECT_FALSE(Add(batch, tag));
  EXPECT_EQ(batch->results.back().reason, MissReason::kLimited);
  EXPECT_TRUE(Add(batch, 1)) << "a load that waits already takes no more room";
}

TEST_F(DiskLoadsTest, ADiskThatFailsAnswersAllAndALoadUnderWayIsOver) {
  const auto batch = Batch();
  ASSERT_TRUE(Add(batch, 1));
  ASSERT_TRUE(Add(batch, 2));
  loads_.Begin(batch);
  const auto load = First();
  loads_.FailAll(MissReason::kDiskFailed);
  EXPECT_EQ(Answer().size(), 1U);
  EXPECT_EQ(batch->results[1].reason, MissReason::kDiskFailed);
  EXPECT_EQ(loads_.counts().failed, 2U);
  EXPECT_TRUE(loads_.empty());
  EXPECT_FALSE(loads_.Take(load, 1)) << "it ended between First and Take";
  EXPECT_TRUE(load->cancelled);
  const auto again = Batch();
  ASSERT_TRUE(Add(again, 1));
  EXPECT_NE(First(), load) << "a load of a former era has no part in the new one";
}

TEST_F(DiskLoadsTest, AtItsEndAllAreAnsweredAndNoneWaits) {
  const auto before = Batch();
  ASSERT_TRUE(Add(before, 1));
  loads_.Begin(before);
  loads_.End();
  EXPECT_TRUE(loads_.ended());
  EXPECT_TRUE(loads_.answering());
  const auto late = Batch();
  ASSERT_TRUE(Add(late, 2));
  loads_.Begin(late);
  EXPECT_EQ(Answer().size(), 2U);
  EXPECT_FALSE(loads_.answering());
}

}  // namespace
}  // namespace kvcove::owner
