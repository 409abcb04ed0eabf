// SPDX-License-Identifier: Apache-2.0
// The model of an engine with none, one and two connectors.
#include "lab/replay/model.h"

#include <gtest/gtest.h>

#include "kvcove/base/log.h"
#include "kvcove/connector/test_store.h"

namespace kvcove::lab {
namespace {

using connector::TestPool;
using connector::TestStore;

constexpr ModelShape kShape{.tp = 2, .block_tokens = 4, .layers = 2, .blocks = 64};

struct Connector {
  explicit Connector(TestPool& pool, const Clock& clock, const ModelShape& model = kShape)
      : store(pool, ShapeOf(model).Namespace()) {
    const connector::EngineShape shape = ShapeOf(model);
    runner = connector::RunHere(store, clock, std::chrono::milliseconds(0));
    scheduler = std::make_unique<connector::SchedulerRole>(
        connector::SchedulerOptions{.shape = shape}, store, *runner, clock);
    for (std::uint32_t rank = 0; rank < kShape.tp; ++rank) {
      workers.push_back(std::make_unique<connector::WorkerRole>(
          connector::WorkerOptions{
              .shape = shape, .rank = {.tp = rank}, .number = rank, .threads = 0},
          clock));
      workers.back()->Connect(std::make_unique<TestStore>(pool, shape.Namespace()));
    }
  }
  ModelConnector Roles() const {
    ModelConnector roles{.scheduler = scheduler.get()};
    for (const auto& worker : workers) roles.workers.push_back(worker.get());
    return roles;
  }
  TestStore store;
  std::unique_ptr<connector::LookupRunner> runner;
  std::unique_ptr<connector::SchedulerRole> scheduler;
  std::vector<std::unique_ptr<connector::WorkerRole>> workers;
};

class ModelTest : public testing::Test {
 protected:
  void SetUp() override { SetLogLevel(LogLevel::kOff); }
  void TearDown() override { SetLogLevel(LogLevel::kWarn); }

  void Use(std::size_t connectors, const ModelShape& shape = kShape) {
    std::vector<ModelConnector> roles;
    connectors_.clear();
    for (std::size_t i = 0; i < connectors; ++i) {
      connectors_.push_back(std::make_unique<Connector>(pools_[i], clock_, shape));
      roles.push_back(connectors_.back()->Roles());
    }
    engine_ = std::make_unique<ModelEngine>(ModelOptions{.shape = shape}, roles);
    ASSERT_TRUE(engine_->Start(1));
  }
  void Turn() {
    engine_->Step();
    for (const auto& each : connectors_) {
      for (const auto& worker : each->workers) {
        while (worker->RunOne()) {
        }
      }
    }
    engine_->Finish();
  }
  // Blocks that were loaded to serve it.
  std::uint64_t Serve(const std::string& id, std::size_t tokens = 30) {
    const std::uint64_t before = engine_->counts().loaded_blocks;
    ModelRequest request{.id = id, .generate = 4};
    for (std::uint32_t t = 0; t < tokens; ++t) request.tokens.push_back(t);
    engine_->Add(std::move(request));
    for (int i = 0; i < 1000 && engine_->has_work(); ++i) Turn();
    EXPECT_EQ(engine_->Leaks(), "");
    EXPECT_EQ(engine_->counts().stale_blocks + engine_->counts().wrong_blocks, 0U);
    return engine_->counts().loaded_blocks - before;
  }

  FakeClock clock_;
  TestPool pools_[2];
  std::vector<std::unique_ptr<Connector>> connectors_;
  std::unique_ptr<ModelEngine> engine_;
};

// A draft model's layer, say: its blocks are larger, and its hashes the same.
TEST_F(ModelTest, EnginesOfOneLayerMoreShareNothingAndDisturbNobody) {
  Use(1);
  (void)Serve("a");
  engine_.reset();
  ModelShape more = kShape;
  ++more.layers;
  Use(1, more);
  EXPECT_EQ(Serve("b"), 0U);
  connector::SchedulerStats stats = connectors_[0]->scheduler->stats();
  EXPECT_EQ(stats.hit_tokens, 0U);
  EXPECT_EQ(stats.loads_failed, 0U);
  EXPECT_EQ(stats.ranks.existing_keys, 0U);
  EXPECT_TRUE(engine_->ResetPrefixCache(false, false));
  EXPECT_EQ(Serve("c"), 7U) << "its own";
  engine_.reset();
  Use(1);
  EXPECT_EQ(Serve("d"), 7U) << "those of the first engine are there";
}

// RESET-9, DEF-10: callers may always ask for the connector's reset.
TEST_F(ModelTest, WithoutAConnectorAResetIsASuccess) {
  Use(0);
  EXPECT_EQ(Serve("a"), 0U);
  EXPECT_TRUE(engine_->ResetCaches());
  EXPECT_TRUE(engine_->PauseGeneration(ModelEngine::PauseMode::kAbort, true));
  engine_->ResumeGeneration();
  EXPECT_TRUE(engine_->WakeUp());
  EXPECT_EQ(Serve("b"), 0U);
}

TEST_F(ModelTest, AFailedResetIsSeenByTheCaller) {
  Use(1);
  (void)Serve("a");
  pools_[0].resets = Code::kNotProven;
  EXPECT_FALSE(engine_->ResetCaches());
  EXPECT_FALSE(engine_->PauseGeneration(ModelEngine::PauseMode::kAbort, true));
  EXPECT_TRUE(engine_->ResetPrefixCache(false, false));
}

// vllm-connector.md 11.6: the first reset right after an abort, with saves and loads under way.
TEST_F(ModelTest, AResetRightAfterAnAbortIsASuccess) {
  Use(1);
  ModelRequest request{.id = "saves", .generate = 20};
  for (std::uint32_t t = 0; t < 30; ++t) request.tokens.push_back(t);
  engine_->Add(request);
  engine_->Step();  // no mover runs: its saves are queued
  engine_->Finish();
  engine_->Step();
  engine_->Finish();
  engine_->AbortAllRequests();
  EXPECT_GT(connectors_[0]->scheduler->stats().pinned_blocks, 0U);
  EXPECT_TRUE(engine_->ResetPrefixCache(true, false));
  EXPECT_TRUE(engine_->ResetCaches());
  EXPECT_EQ(Serve("after"), 0U);  // and no block leaks
  // A load whose request is gone.
  EXPECT_TRUE(engine_->ResetPrefixCache(false, false));
  request.id = "loads";
  engine_->Add(request);
  engine_->Step();
  EXPECT_EQ(connectors_[0]->scheduler->stats().loads, 1U);
  engine_->Finish();
  EXPECT_FALSE(engine_->ResetPrefixCache(false, false)) << "a request that waits uses its blocks";
  engine_->AbortAllRequests();
  EXPECT_TRUE(engine_->has_requests()) << "its load has not ended";
  EXPECT_TRUE(engine_->ResetCaches());
  EXPECT_EQ(Serve("last"), 0U);
}

// X-7, RESET-21, DEF-20: every child is asked, and one that fails makes it a failure.
TEST_F(ModelTest, AResetAsksEveryConnector) {
  Use(2);
  (void)Serve("a");
  EXPECT_FALSE(pools_[0].values.empty());
  EXPECT_EQ(pools_[0].values.size(), pools_[1].values.size());
  pools_[0].resets = Code::kNotProven;
  EXPECT_FALSE(engine_->ResetCaches());
  EXPECT_TRUE(pools_[1].values.empty());
  pools_[0].resets = Code::kOk;
  EXPECT_TRUE(engine_->ResetCaches());
  EXPECT_EQ(Serve("b"), 0U);
}

TEST_F(ModelTest, SeveralConnectorsLoadFromTheFirstThatHasIt) {
  Use(2);
  (void)Serve("a");
  EXPECT_TRUE(engine_->ResetPrefixCache(true, false));
  EXPECT_EQ(Serve("b"), 7U);
  EXPECT_EQ(connectors_[1]->scheduler->stats().loads, 0U);
  {
    const MutexLock lock(pools_[0].mutex);
    pools_[0].values.clear();
  }
  EXPECT_TRUE(engine_->ResetPrefixCache(true, false));
  EXPECT_EQ(Serve("c"), 7U);
  EXPECT_EQ(connectors_[1]->scheduler->stats().loads, 1U);
}

TEST_F(ModelTest, PausedRequestsGoOnWhenTheyAreKept) {
  Use(1);
  engine_->Add({.id = "kept", .tokens = std::vector<std::uint32_t>(40, 1), .generate = 20});
  for (int i = 0; i < 3; ++i) Turn();
  EXPECT_FALSE(engine_->PauseGeneration(ModelEngine::PauseMode::kWait, false));
  EXPECT_TRUE(engine_->PauseGeneration(ModelEngine::PauseMode::kKeep, false));
  const std::uint64_t computed = engine_->counts().computed_tokens;
  for (int i = 0; i < 5; ++i) Turn();
  EXPECT_EQ(engine_->counts().computed_tokens, computed);
  engine_->ResumeGeneration();
  for (int i = 0; i < 1000 && engine_->has_work(); ++i) Turn();
  EXPECT_EQ(engine_->counts().finished, 1U);
}

}  // namespace
}  // namespace kvcove::lab
