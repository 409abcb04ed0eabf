// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/worker/job_queue.h"

#include <gtest/gtest.h>

namespace kvcove::connector {
namespace {

using Share = JobQueue::Share;

std::shared_ptr<Job> QueuedJob(JobId id, bool load) {
  auto job = std::make_shared<Job>();
  job->id = id;
  job->load = load;
  return job;
}

class JobQueueTest : public testing::Test {
 protected:
  std::shared_ptr<Job> Add(JobId id, bool load, std::int64_t now_ns = 1) {
    auto job = QueuedJob(id, load);
    queue_.Add(job, now_ns);
    return job;
  }
  JobId Next(Share share = Share::kAll, bool loads_blocked = false, bool saves_blocked = false) {
    const auto job = queue_.Next(share, loads_blocked, saves_blocked);
    return job == nullptr ? 0 : job->id;
  }
  void Save(JobId id, const std::string& request, JobId behind = 0) {
    auto job = QueuedJob(id, /*load=*/false);
    job->request = request;
    job->behind = behind;
    queue_.Add(std::move(job), 1);
  }
  // Runs a batch of the next job, which has more; `moved` false: in vain.
  JobId Batch(bool moved = true) {
    const auto job = queue_.Next(Share::kAll, false, false);
    queue_.Ran(job, moved);
    queue_.PutBack(job);
    return job->id;
  }
  // Runs the last batch of the next job.
  JobId Last() {
    const auto job = queue_.Next(Share::kAll, false, false);
    queue_.Ran(job);
    return job->id;
  }
  JobQueue queue_{3};
};

TEST_F(JobQueueTest, LoadsGoBeforeSavesTheOldestFirst) {
  Add(1, /*load=*/false);
  Add(2, /*load=*/true);
  Add(3, /*load=*/true);
  EXPECT_EQ(queue_.size(), 3U);
  EXPECT_EQ(Next(), 2U);
  EXPECT_EQ(Next(), 3U);
  EXPECT_EQ(Next(), 1U);
  EXPECT_EQ(Next(), 0U);
  EXPECT_TRUE(queue_.running());
  EXPECT_EQ(queue_.size(), 3U) << "they run";
}

TEST_F(JobQueueTest, AThreadTakesItsShareAndNothingThatIsBlocked) {
  Add(1, false);
  Add(2, true);
  EXPECT_EQ(Next(Share::kLoads, /*loads_blocked=*/true), 0U);
  EXPECT_EQ(Next(Share::kSaves, false, /*saves_blocked=*/true), 0U);
  EXPECT_EQ(Next(Share::kSaves), 1U);
  EXPECT_EQ(Next(Share::kSaves), 0U);
  EXPECT_EQ(Next(Share::kLoads), 2U);
  Add(3, false);
  Add(4, true);
  EXPECT_EQ(Next(Share::kAll, /*loads_blocked=*/true), 3U);
}

TEST_F(JobQueueTest, AJobThatWasPutBackIsNext) {
  Add(1, true);
  Add(2, true);
  const auto job = queue_.Next(Share::kAll, false, false);
  queue_.PutBack(job);
  EXPECT_FALSE(queue_.running());
  EXPECT_EQ(Next(), 1U);
  queue_.Ran(job);
  EXPECT_EQ(queue_.size(), 1U);
}

// Three of four batches are of the newest request, and one is the oldest's.
TEST_F(JobQueueTest, ABusySaverStoresTheNewestRequestFirst) {
  Save(1, "old");
  Save(2, "middle");
  Save(3, "new");
  Save(4, "new");
  std::vector<JobId> batches;
  for (int i = 0; i < 8; ++i) batches.push_back(Batch());
  EXPECT_EQ(batches, (std::vector<JobId>{3, 3, 3, 1, 3, 3, 3, 1})) << "in a request's own order";
  EXPECT_EQ(Last(), 3U);
  Save(5, "newer");
  EXPECT_EQ(Last(), 5U);
  EXPECT_EQ(Last(), 4U);
  EXPECT_EQ(Last(), 1U);
  EXPECT_EQ(Last(), 2U);
  EXPECT_EQ(Next(), 0U);
}

// A saver of a device takes a job for nothing each second time: the bytes of the batch before are
// stored first, or the pinned memory is full.
TEST_F(JobQueueTest, TheOldestSaveHasItsShareOfTheBatchesThatAreMoved) {
  Save(1, "old");
  Save(2, "new");
  std::vector<JobId> moved;
  for (int i = 0; i < 4; ++i) {
    moved.push_back(Batch());
    const auto stored_first = queue_.Next(Share::kSaves, false, false);
    queue_.PutBack(stored_first);
    (void)Batch(/*moved=*/false);
  }
  EXPECT_EQ(moved, (std::vector<JobId>{2, 2, 2, 1}));
}

// The newest request's chunks are of no use without the prompt that it shares with others.
TEST_F(JobQueueTest, WhatTheNewestRequestIsBehindIsStoredBeforeIt) {
  Save(1, "old");
  Save(2, "shared");
  Save(3, "shared");
  Save(4, "other");
  Save(5, "new", /*behind=*/3);
  Save(6, "new", /*behind=*/5);
  EXPECT_EQ(Last(), 2U);
  EXPECT_EQ(Last(), 3U);
  EXPECT_EQ(Last(), 5U);
  EXPECT_EQ(Last(), 1U);
  EXPECT_EQ(Last(), 6U);
  EXPECT_EQ(Last(), 4U);
}

TEST_F(JobQueueTest, ALoadThatWasPutBackGoesBeforeNewerOnes) {
  Add(1, true);
  const auto job = queue_.Next(Share::kAll, false, false);
  Add(2, true);
  queue_.PutBack(job);
  EXPECT_EQ(Next(), 1U);
  EXPECT_EQ(Next(), 2U);
}

TEST_F(JobQueueTest, EachKindHasItsBound) {
  EXPECT_FALSE(queue_.Full(/*load=*/false, /*undue_saves=*/2));
  EXPECT_TRUE(queue_.Full(false, 3));
  EXPECT_FALSE(queue_.Full(true, 3)) << "saves take no load's place";
  Add(1, true);
  Add(2, true);
  EXPECT_FALSE(queue_.Full(true, 0));
  Add(3, true);
  EXPECT_TRUE(queue_.Full(true, 0));
  EXPECT_FALSE(queue_.Full(false, 0));
  (void)Next();
  EXPECT_FALSE(queue_.Full(true, 0));
}

TEST_F(JobQueueTest, LoadsAreTakenOffTheQueue) {
  Add(1, true, /*now_ns=*/10);
  Add(2, true, /*now_ns=*/20);
  Add(3, false, /*now_ns=*/10);
  const auto late = queue_.TakeLoads([](const Job& job) { return job.since_ns <= 10; });
  ASSERT_EQ(late.size(), 1U);
  EXPECT_EQ(late[0]->id, 1U);
  const auto all = queue_.TakeAll();
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0]->id, 2U);
  EXPECT_EQ(all[1]->id, 3U);
  EXPECT_FALSE(queue_.has_loads());
  EXPECT_FALSE(queue_.has_saves());
}

TEST_F(JobQueueTest, OnlyWhatRunsIsCancelled) {
  const auto runs = Add(1, true);
  const auto waits = Add(2, true);
  ASSERT_EQ(Next(), 1U);
  queue_.CancelRunning([](const Job& job) { return !job.load; });
  EXPECT_FALSE(runs->cancelled);
  queue_.CancelRunning([](const Job& job) { return job.load; });
  EXPECT_TRUE(runs->cancelled);
  EXPECT_FALSE(waits->cancelled);
}

TEST_F(JobQueueTest, AStepWaitsForSynchronousLoadsUpToAPart) {
  const auto job = QueuedJob(1, true);
  EXPECT_FALSE(queue_.SyncBehind(0));
  queue_.AddSync(job);
  EXPECT_TRUE(queue_.SyncBehind(0));
  job->submitted_parts = 1;
  EXPECT_FALSE(queue_.SyncBehind(0));
  EXPECT_TRUE(queue_.SyncBehind(1));
  queue_.CancelSync();
  EXPECT_TRUE(job->cancelled);
  EXPECT_TRUE(queue_.has_sync()) << "its mover may still write";
  EXPECT_TRUE(queue_.EndSync(job));
  EXPECT_FALSE(queue_.EndSync(job));
  EXPECT_FALSE(queue_.SyncBehind(1));
}

class ComputedStepsTest : public testing::Test {
 protected:
  class FakeMark final : public transport::DeviceMark {};
  static ComputedStep Step(std::size_t saves, std::shared_ptr<const transport::DeviceMark> mark) {
    ComputedStep step{
        .ready = std::make_shared<std::function<void()>>(), .mark = std::move(mark), .saves = {}};
    for (std::size_t i = 0; i < saves; ++i) step.saves.push_back(QueuedJob(i + 1, false));
    return step;
  }
  ComputedSteps steps_;
};

TEST_F(ComputedStepsTest, StepsWithoutAMarkComeOneAfterTheOther) {
  EXPECT_EQ(steps_.front(), nullptr);
  steps_.Add(Step(1, nullptr));
  steps_.Add(Step(2, nullptr));
  EXPECT_EQ(steps_.saves(), 3U);
  const auto first = steps_.front();
  EXPECT_EQ(steps_.Take(first)->saves.size(), 1U);
  EXPECT_FALSE(steps_.Take(first)) << "it was taken";
  EXPECT_NE(steps_.front(), nullptr);
  EXPECT_EQ(steps_.saves(), 2U);
}

TEST_F(ComputedStepsTest, MarkedStepsComeInAnyOrder) {
  const auto first = std::make_shared<const FakeMark>();
  const auto second = std::make_shared<const FakeMark>();
  steps_.Add(Step(1, first));
  steps_.Add(Step(2, second));
  EXPECT_EQ(steps_.front(), nullptr) << "no thread waits for them";
  const auto taken = steps_.Take(std::shared_ptr<const transport::DeviceMark>(second));
  ASSERT_TRUE(taken);
  EXPECT_EQ(taken->saves.size(), 2U);
  EXPECT_FALSE(steps_.Take(std::shared_ptr<const transport::DeviceMark>(second)));
  EXPECT_EQ(steps_.saves(), 1U);
}

TEST_F(ComputedStepsTest, AllAreTakenWhereTheMemoryIsLetGo) {
  steps_.Add(Step(1, std::make_shared<const FakeMark>()));
  steps_.Add(Step(2, nullptr));
  const auto ready = steps_.front();
  EXPECT_EQ(steps_.TakeAll().size(), 2U);
  EXPECT_EQ(steps_.saves(), 0U);
  EXPECT_FALSE(steps_.Take(ready));
}

}  // namespace
}  // namespace kvcove::connector
