// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/worker/job_results.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvcove::connector {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class JobResultsTest : public testing::Test {
 protected:
  JobResultsTest() {
    job_.id = 7;
    job_.load = true;
    job_.request = "r";
    job_.chunks = {{.chunk = 0, .block = 4}, {.chunk = 1, .block = 5}};
    job_.since_ns = 10;
  }
  void End() {
    LinesAfterLock lines;
    results_.End(job_, 20, lines);
  }
  Report TakeReport() {
    Report report;
    results_.TakeInto(report);
    return report;
  }
  Job job_;
  JobResults results_{/*tier_log=*/false};
};

TEST_F(JobResultsTest, ALoadEndsWellOrWithItsBlocks) {
  job_.bad = {1};
  End();
  const Ended ended = results_.TakeEnded();
  EXPECT_THAT(ended.loaded, ElementsAre("r"));
  EXPECT_THAT(ended.failed_blocks, ElementsAre(5U));
  EXPECT_THAT(ended.failed, ElementsAre("r"));
  EXPECT_THAT(results_.TakeEnded().loaded, IsEmpty()) << "told once";
  const Report report = TakeReport();
  ASSERT_EQ(report.loads.size(), 1U);
  EXPECT_THAT(report.loads[0].failed, ElementsAre(5U));
  EXPECT_EQ(report.counters.load_jobs, 1U);
  EXPECT_THAT(TakeReport().loads, IsEmpty());
}

TEST_F(JobResultsTest, AJobEndsWithItsLastBatch) {
  job_.in_flight = 1;
  End();
  EXPECT_TRUE(job_.over);
  EXPECT_THAT(results_.TakeEnded().loaded, IsEmpty()) << "the device still writes";
  job_.landed.bad = {0};
  job_.in_flight = 0;
  End();
  const Ended ended = results_.TakeEnded();
  EXPECT_THAT(ended.loaded, ElementsAre("r"));
  EXPECT_THAT(ended.failed_blocks, ElementsAre(4U)) << "an error of the device";
  EXPECT_EQ(TakeReport().counters.load_jobs, 1U);
}

TEST_F(JobResultsTest, ASynchronousLoadReportsWhatItKnowsBeforeItsEnd) {
  job_.sync = true;
  job_.in_flight = 1;
  job_.bad = {0};
  End();
  Ended ended = results_.TakeEnded();
  EXPECT_THAT(ended.failed_blocks, ElementsAre(4U));
  EXPECT_THAT(ended.failed, ElementsAre("r"));
  job_.landed.bad = {1};
  job_.in_flight = 0;
  End();
  ended = results_.TakeEnded();
  EXPECT_THAT(ended.failed_blocks, ElementsAre(5U)) << "each once";
  EXPECT_THAT(ended.loaded, IsEmpty()) << "the step waited for it";
  EXPECT_THAT(TakeReport().loads.at(0).failed, ElementsAre(4U, 5U));
}

TEST_F(JobResultsTest, ACancelledLoadHasLoadedNothing) {
  job_.cancelled = true;
  End();
  EXPECT_THAT(results_.TakeEnded().failed_blocks, ElementsAre(4U, 5U));
}

TEST_F(JobResultsTest, ASaveSaysWhatIsMissing) {
  job_.load = false;
  job_.bad = {1};
  job_.on_disk = {0};
  job_.counters.saved_keys = 3;
  End();
  EXPECT_THAT(results_.TakeEnded().failed_blocks, IsEmpty());
  const Report report = TakeReport();
  ASSERT_EQ(report.saves.size(), 1U);
  EXPECT_EQ(report.saves[0].job, 7U);
  EXPECT_THAT(report.saves[0].missing, ElementsAre(1U));
  EXPECT_THAT(report.saves[0].on_disk, ElementsAre(0U));
  EXPECT_EQ(report.counters.save_jobs, 1U);
  EXPECT_EQ(report.counters.saved_keys, 3U);
}

TEST_F(JobResultsTest, OrdersThatNeverBecameJobsEndToo) {
  LinesAfterLock lines;
  results_.Fail({.job = 1, .request = "r", .chunks = job_.chunks}, lines);
  results_.Drop({.job = 2, .chunks = job_.chunks});
  EXPECT_THAT(results_.TakeEnded().failed_blocks, ElementsAre(4U, 5U));
  const Report report = TakeReport();
  ASSERT_EQ(report.loads.size(), 1U);
  ASSERT_EQ(report.saves.size(), 1U);
  EXPECT_THAT(report.saves[0].missing, ElementsAre(0U, 1U));
  EXPECT_EQ(report.counters.dropped_keys, 2U);
}

}  // namespace
}  // namespace kvcove::connector
