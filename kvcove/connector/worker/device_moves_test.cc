// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/worker/device_moves.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvcove::connector {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class DeviceMovesTest : public testing::Test {
 protected:
  static constexpr bool kLoad = true;
  static constexpr bool kSave = false;

  // Of one value a place.
  static std::shared_ptr<Job> Make(bool load) {
    auto job = std::make_shared<Job>();
    job->load = load;
    job->items = {{.place = 0, .bytes = 10}, {.place = 1, .bytes = 20}};
    return job;
  }
  std::shared_ptr<Batch> Begin(const std::shared_ptr<Job>& job, std::size_t parts = 1,
                               std::int64_t now_ns = 1) {
    auto batch = std::make_shared<Batch>();
    batch->job = job;
    batch->values = {{.item = 0, .tier = Tier::kMemory}, {.item = 1, .tier = Tier::kDisk}};
    batch->copies.resize(parts);
    moves_.Begin(*batch, now_ns);
    return batch;
  }
  bool PartDone(Batch& batch, Status status = {}, std::int64_t now_ns = 2) {
    transport::DeviceDone done{.status = std::move(status), .host = {}};
    done.moved[0] = 30;
    return moves_.PartDone(batch, done, now_ns);
  }
  DeviceMoves moves_;
};

TEST_F(DeviceMovesTest, ABatchIsOverWithItsLastPart) {
  const auto job = Make(kLoad);
  const auto batch = Begin(job, /*parts=*/2);
  EXPECT_FALSE(moves_.empty());
  EXPECT_FALSE(PartDone(*batch));
  EXPECT_TRUE(PartDone(*batch));
  EXPECT_EQ(batch->tally.counters.device_load_bytes[0], 60U);
  EXPECT_FALSE(moves_.End(*batch)) << "its mover has more";
  EXPECT_TRUE(moves_.empty());
  EXPECT_THAT(job->landed.bad, IsEmpty());
  EXPECT_EQ(job->landed.counters.loaded_keys, 2U);
  EXPECT_EQ(job->landed.counters.loaded_bytes, 30U);
}

TEST_F(DeviceMovesTest, AJobWhoseMoverIsDoneEndsWithItsLastBatch) {
  const auto job = Make(kLoad);
  const auto first = Begin(job);
  const auto second = Begin(job);
  job->over = true;
  EXPECT_EQ(moves_.jobs(), 1U);
  EXPECT_FALSE(moves_.End(*second));
  EXPECT_FALSE(moves_.empty());
  EXPECT_TRUE(moves_.End(*first));
  EXPECT_TRUE(moves_.empty());
}

TEST_F(DeviceMovesTest, AnErrorOfOnePartFailsTheBatch) {
  const auto job = Make(kLoad);
  const auto batch = Begin(job, 2);
  EXPECT_FALSE(PartDone(*batch, Fail(Code::kInternal, "error 1")));
  EXPECT_TRUE(PartDone(*batch));
  EXPECT_FALSE(batch->status);
  EXPECT_EQ(batch->tally.counters.device_load_bytes[0], 30U) << "of the part that came";
  (void)moves_.End(*batch);
  EXPECT_THAT(job->landed.bad, ElementsAre(0U, 1U));
  EXPECT_EQ(job->landed.counters.failed_keys, 2U);
  EXPECT_EQ(job->landed.counters.loaded_keys, 0U);
}

TEST_F(DeviceMovesTest, AValueThatWasVoidMeanwhileFailsAlone) {
  const auto job = Make(kLoad);
  const auto batch = Begin(job);
  batch->values[1].voided = true;
  EXPECT_TRUE(PartDone(*batch));
  (void)moves_.End(*batch);
  EXPECT_THAT(job->landed.bad, ElementsAre(1U));
  EXPECT_EQ(job->landed.counters.failed_by_tier[static_cast<std::size_t>(Tier::kDisk)], 1U);
  EXPECT_EQ(job->landed.counters.loaded_keys, 1U);
}

TEST_F(DeviceMovesTest, ASavesBytesWaitForAMover) {
  const auto job = Make(kSave);
  const auto batch = Begin(job);
  EXPECT_TRUE(PartDone(*batch));
  EXPECT_EQ(batch->tally.counters.device_save_bytes[0], 30U);
  EXPECT_EQ(moves_.TakeFetched(), nullptr);
  moves_.Fetched(batch);
  EXPECT_TRUE(moves_.has_fetched());
  EXPECT_FALSE(moves_.empty()) << "it holds pinned memory yet";
  EXPECT_EQ(moves_.TakeFetched(), batch);
  EXPECT_FALSE(moves_.has_fetched());
  batch->status = Fail(Code::kUnavailable, "the role ends");
  (void)moves_.End(*batch);
  EXPECT_EQ(job->landed.counters.refused_keys, 2U);
}

TEST_F(DeviceMovesTest, AWayIsBlockedUntilABatchOfItIsOver) {
  moves_.Block(kLoad);
  EXPECT_FALSE(moves_.blocked(kLoad)) << "nobody would unblock it";
  const auto load = Begin(Make(kLoad));
  const auto save = Begin(Make(kSave));
  EXPECT_EQ(moves_.batches(kLoad), 1U);
  moves_.Block(kLoad);
  EXPECT_TRUE(moves_.blocked(kLoad));
  EXPECT_FALSE(moves_.blocked(kSave));
  (void)moves_.End(*save);
  EXPECT_TRUE(moves_.blocked(kLoad));
  (void)moves_.End(*load);
  EXPECT_FALSE(moves_.blocked(kLoad));
  EXPECT_EQ(moves_.batches(kLoad), 0U);
}

TEST_F(DeviceMovesTest, TheStreamWaitsForEachTicketOnce) {
  const auto job = Make(kLoad);
  (void)Begin(job, 2);
  DeviceMoves::Submitted(*job, /*ticket=*/5, /*part=*/0);
  DeviceMoves::Submitted(*job, /*ticket=*/6, /*part=*/1);
  EXPECT_THAT(moves_.TakeTickets(0), ElementsAre(5U));
  EXPECT_THAT(moves_.TakeTickets(1), ElementsAre(6U));
  EXPECT_THAT(moves_.TakeTickets(1), IsEmpty());
}

TEST_F(DeviceMovesTest, OnlyWhatMatchesIsCancelled) {
  const auto load = Make(kLoad);
  const auto save = Make(kSave);
  (void)Begin(load);
  (void)Begin(save);
  moves_.Cancel([](const Job& job) { return job.load; });
  EXPECT_TRUE(load->cancelled);
  EXPECT_FALSE(save->cancelled);
}

TEST_F(DeviceMovesTest, TimeOnTheDeviceCountsOnceAndWithoutWaits) {
  const auto job = Make(kLoad);
  const auto first = Begin(job, 1, /*now_ns=*/100);
  const auto second = Begin(job, 1, /*now_ns=*/100);
  EXPECT_TRUE(PartDone(*first, {}, 150));
  EXPECT_TRUE(PartDone(*second, {}, 160));
  EXPECT_EQ(job->busy_ns, 60) << "the second began when the first was over";
  const auto marked = Make(kLoad);
  marked->reached_ns = std::make_shared<const std::atomic<std::int64_t>>(190);
  const auto third = Begin(marked, 1, 170);
  EXPECT_TRUE(PartDone(*third, {}, 200));
  EXPECT_EQ(marked->busy_ns, 10) << "it waited for the step's mark";
}

TEST_F(DeviceMovesTest, TheQueuesTimeIsCountedSinceTheLastCall) {
  Counters counters;
  transport::DeviceQueueStats stats;
  stats.busy_ns = {10, 20};
  stats.tickets = 3;
  moves_.Count(counters, stats);
  EXPECT_EQ(counters.device_load_ns, 10U);
  EXPECT_EQ(counters.device_tickets, 3U);
  counters = {};
  stats.busy_ns = {15, 20};
  moves_.Count(counters, stats);
  EXPECT_EQ(counters.device_load_ns, 5U);
  EXPECT_EQ(counters.device_save_ns, 0U);
}

}  // namespace
}  // namespace kvcove::connector
