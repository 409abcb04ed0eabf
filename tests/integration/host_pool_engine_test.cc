// SPDX-License-Identifier: Apache-2.0
// SGLang's way to keep KV, on the roles that vLLM's has.
#include "tests/integration/host_pool_engine.h"

#include <gtest/gtest.h>

#include "kvcove/base/log.h"
#include "kvcove/connector/test_store.h"

namespace kvcove::lab {
namespace {

using connector::TestPool;
using connector::TestStore;

constexpr ModelShape kEngineShape{.tp = 2, .block_tokens = 4, .layers = 3, .blocks = 32};

struct Roles {
  Roles(TestPool& pool, const Clock& clock) : store(pool) {
    const connector::EngineShape shape = ShapeOf(kEngineShape);
    runner = connector::RunHere(store, clock, std::chrono::milliseconds(0));
    scheduler = std::make_unique<connector::SchedulerRole>(
        connector::SchedulerOptions{.shape = shape, .blocks = kEngineShape.blocks}, store, *runner,
        clock);
    for (std::uint32_t rank = 0; rank < kEngineShape.tp; ++rank) {
      workers.push_back(std::make_unique<connector::WorkerRole>(
          connector::WorkerOptions{
              .shape = shape, .rank = {.tp = rank}, .number = rank, .threads = 0},
          clock));
      workers.back()->Connect(std::make_unique<TestStore>(pool));
    }
  }
  ModelConnector Connector() const {
    ModelConnector roles{.scheduler = scheduler.get()};
    for (const auto& worker : workers) roles.workers.push_back(worker.get());
    return roles;
  }
  void Move() const {
    for (const auto& worker : workers) {
      while (worker->RunOne()) {
      }
    }
  }
  TestStore store;
  std::unique_ptr<connector::LookupRunner> runner;
  std::unique_ptr<connector::SchedulerRole> scheduler;
  std::vector<std::unique_ptr<connector::WorkerRole>> workers;
};

struct Engine {
  Engine(TestPool& pool, const Clock& clock)
      : roles(pool, clock),
        engine({.shape = kEngineShape, .slots = 100}, roles.Connector(), [this] { roles.Move(); }) {
    EXPECT_TRUE(engine.Start(1));
  }
  Roles roles;
  HostPoolEngine engine;
};

class HostPoolEngineTest : public testing::Test {
 protected:
  void SetUp() override { SetLogLevel(LogLevel::kOff); }
  void TearDown() override { SetLogLevel(LogLevel::kWarn); }

  static std::vector<std::uint32_t> Prompt(std::size_t tokens) {
    std::vector<std::uint32_t> prompt;
    for (std::uint32_t t = 0; t < tokens; ++t) prompt.push_back(3 * t + 1);
    return prompt;
  }
  static std::uint64_t Expected(std::size_t tokens, Weights weights) {
    std::uint64_t state = 0;
    for (const std::uint32_t token : Prompt(tokens)) state = NextState(state, token, weights);
    return state;
  }
  // Pages that were loaded for it; its last state is right.
  std::uint64_t Serve(Engine& of, const std::string& id, std::size_t tokens = 30,
                      Weights weights = 1) {
    const std::uint64_t before = of.engine.counts().loaded_pages;
    const Result<std::uint64_t> state = of.engine.Serve(id, Prompt(tokens));
    EXPECT_TRUE(state);
    EXPECT_EQ(state.value_or(0), Expected(tokens, weights));
    EXPECT_EQ(of.engine.counts().wrong_tokens, 0U);
    EXPECT_EQ(of.engine.pages_in_use(), 0U);
    return of.engine.counts().loaded_pages - before;
  }

  TestPool pool_;
  FakeClock clock_;
};

TEST_F(HostPoolEngineTest, PagesOfOneEngineGoIntoTheSlotsOfAnother) {
  Engine first(pool_, clock_);
  Engine second(pool_, clock_);
  EXPECT_EQ(Serve(first, "a"), 0U);
  EXPECT_EQ(pool_.values.size(), 7U * kEngineShape.tp);
  EXPECT_EQ(Serve(second, "other slots first", 5), 1U);
  EXPECT_EQ(Serve(second, "b"), 7U);
  EXPECT_EQ(Serve(second, "shorter", 13), 3U);
  EXPECT_EQ(Serve(second, "all of it", 28), 7U) << "the last token is computed";
}

TEST_F(HostPoolEngineTest, SharesWithAnEngineOfBlocks) {
  Roles roles(pool_, clock_);
  ModelEngine blocks(ModelOptions{.shape = kEngineShape}, {roles.Connector()});
  ASSERT_TRUE(blocks.Start(1));
  blocks.Add({.id = "v", .tokens = Prompt(30)});
  for (int i = 0; i < 100 && blocks.has_work(); ++i) {
    blocks.Step();
    roles.Move();
    blocks.Finish();
  }
  ASSERT_EQ(blocks.Leaks(), "");
  ASSERT_EQ(pool_.values.size(), 7U * kEngineShape.tp);
  Engine pages(pool_, clock_);
  EXPECT_EQ(Serve(pages, "s"), 7U);
}

TEST_F(HostPoolEngineTest, APageThatIsLostIsComputedAndAllBehindIt) {
  Engine engine(pool_, clock_);
  EXPECT_EQ(Serve(engine, "a"), 0U);
  auto third = pool_.values.begin();
  std::advance(third, 2);
  pool_.lost.insert(third->first);
  const std::uint64_t loaded = Serve(engine, "b");
  EXPECT_LT(loaded, 7U);
  EXPECT_EQ(engine.engine.counts().failed_pages, 7 - loaded);
}

TEST_F(HostPoolEngineTest, OtherWeightsFindNothingAndStoreTheirOwn) {
  Engine engine(pool_, clock_);
  EXPECT_EQ(Serve(engine, "a"), 0U);
  pool_.values.clear();  // the test's store knows no versions
  engine.engine.ChangeWeights(2);
  EXPECT_EQ(Serve(engine, "b", 30, 2), 0U);
  EXPECT_EQ(Serve(engine, "c", 30, 2), 7U);
}

TEST_F(HostPoolEngineTest, WhatDoesNotFitIsAnErrorAndLeavesNothing) {
  Engine engine(pool_, clock_);
  EXPECT_EQ(engine.engine.Serve("slots", Prompt(101)).error().code, Code::kNoSpace);
  EXPECT_EQ(Serve(engine, "a", 100), 0U);
  EXPECT_EQ(Serve(engine, "b", 100), 25U);
}

}  // namespace
}  // namespace kvcove::lab
