// SPDX-License-Identifier: Apache-2.0
// load_when: loads that are slower than computing are not made.
#include "kvcove/connector/roles_fixture.h"

namespace kvcove::connector {
namespace {

constexpr std::int64_t kTokenNs = kMillisecond;  // to compute one

class CostsTest : public RolesTest {
 protected:
  void SetUp() override {
    RolesTest::SetUp();
    pool_.clock = &clock_;
    Begin(LoadWhen::kFaster);
  }
  void Begin(LoadWhen when) {
    options_.load_when = when;
    options_.costs.least_step_tokens = 4;
    Start();
  }
  // A step in which the forward pass takes its time.
  void TimedStep(std::int64_t ns) {
    plan_ = scheduler_->BuildPlan(pins_);
    for (auto& worker : workers_) worker->Begin(plan_);
    clock_.AdvanceNs(ns);
    for (auto& worker : workers_) worker->FinishStep({});
    for (auto& worker : workers_) scheduler_->OnReport(worker->TakeReport());
  }
  // Four chunks of four tokens.
  void ComputeAndStore() {
    Compute("first", 0, 16, 1);
    TimedStep(16 * kTokenNs);
    (void)Step();  // saves end
    scheduler_->Finished("first");
    ASSERT_EQ(pool_.values.size(), 8U);
  }
  // True: it found something to load.
  std::uint64_t LoadOnce(std::string_view id) {
    const std::uint64_t tokens = Load(id, 18, 20).tokens;
    (void)Step();
    EXPECT_TRUE(scheduler_->LoadEnded(id));
    scheduler_->Finished(id);
    return tokens;
  }
};

TEST_F(CostsTest, WhatIsSlowerToLoadIsComputed) {
  pool_.get_ns = 100 * kMillisecond;  // 25 ms a token
  ComputeAndStore();
  EXPECT_EQ(LoadOnce("a"), 16U) << "what a load costs is not known yet";
  const SchedulerStats measured = scheduler_->stats();
  EXPECT_EQ(measured.costs.token_ns, static_cast<std::uint64_t>(kTokenNs));
  EXPECT_EQ(measured.costs.tier_ns[static_cast<std::size_t>(Tier::kMemory)],
            static_cast<std::uint64_t>(25 * kMillisecond));
  EXPECT_EQ(scheduler_->Matched(View("b", 18), 0).tokens, 0U);
  EXPECT_EQ(scheduler_->Matched(View("b", 18), 0).tokens, 0U) << "asked again for want of blocks";
  EXPECT_EQ(scheduler_->stats().loads_declined, 1U);
  EXPECT_EQ(scheduler_->stats().declined_tokens, 16U);
  // It computes, and has nothing to store.
  const std::uint64_t puts = pool_.puts;
  Compute("b", 0, 16, 40);
  (void)Step();
  EXPECT_EQ(pool_.puts, puts);
  clock_.AdvanceNs(31 * kSecond);
  EXPECT_EQ(LoadOnce("c"), 16U) << "the pool may be faster by now";
}

TEST_F(CostsTest, WhatIsFasterToLoadIsLoaded) {
  pool_.get_ns = 10 * kMicrosecond;
  ComputeAndStore();
  for (const char* id : {"a", "b", "c"}) EXPECT_EQ(LoadOnce(id), 16U);
  EXPECT_EQ(scheduler_->stats().loads_declined, 0U);
}

TEST_F(CostsTest, AlwaysLoadsAndMeasures) {
  Begin(LoadWhen::kAlways);
  pool_.get_ns = 100 * kMillisecond;
  ComputeAndStore();
  for (const char* id : {"a", "b"}) EXPECT_EQ(LoadOnce(id), 16U);
  EXPECT_GT(scheduler_->stats().costs.token_ns, 0U);
}

TEST_F(CostsTest, ALoadStopsWhereTheSlowTierBegins) {
  pool_.get_ns = 10 * kMicrosecond;
  pool_.disk_get_ns = 100 * kMillisecond;
  ComputeAndStore();
  EXPECT_EQ(LoadOnce("memory"), 16U);
  for (const auto& [name, value] : pool_.values) {
    if (name.find("@6832") != std::string::npos || name.find("@6833") != std::string::npos) {
      pool_.disk.insert(name);  // chunks 2 and 3
    }
  }
  EXPECT_EQ(LoadOnce("both"), 16U);
  EXPECT_EQ(LoadOnce("short"), 8U);
  EXPECT_EQ(scheduler_->stats().loads_shortened, 1U);
  EXPECT_EQ(scheduler_->stats().declined_tokens, 8U);
  // What the engine has itself is no reason to load the rest.
  EXPECT_EQ(scheduler_->Matched(View("own", 18), 8).tokens, 0U);
  EXPECT_EQ(scheduler_->stats().loads_declined, 1U);
}

TEST_F(CostsTest, AStepThatWasPlannedBeforeTheLastOneEndedBeginsThere) {
  Compute("a", 0, 8, 1);
  const Plan first = scheduler_->BuildPlan(pins_);
  Compute("b", 0, 8, 20);
  const Plan second = scheduler_->BuildPlan(pins_);
  for (const Plan& plan : {first, second}) {
    for (auto& worker : workers_) worker->Begin(plan);
    clock_.AdvanceNs(8 * kTokenNs);
    for (auto& worker : workers_) worker->FinishStep({});
    for (auto& worker : workers_) scheduler_->OnReport(worker->TakeReport());
  }
  EXPECT_EQ(scheduler_->stats().costs.token_ns, static_cast<std::uint64_t>(kTokenNs));
}

}  // namespace
}  // namespace kvcove::connector
