// SPDX-License-Identifier: Apache-2.0
// The connector's roles and the model of an engine on real pools, with real threads.
#include "cluster_fixture.h"
#include "lab/replay/model.h"
#include "tests/call_time.h"
#include "tests/must.h"
#include "tests/slowness.h"

namespace kvcove {
namespace {

using connector::VersionSource;
using lab::ModelEngine;

constexpr lab::ModelShape kShape{.tp = 2, .block_tokens = 16, .layers = 4, .blocks = 128};

// An engine and all that it needs; each rank has a session of its own.
class Engine {
 public:
  Engine(const std::string& name, const std::function<std::unique_ptr<Pool>()>& open,
         VersionSource versions = VersionSource::kFingerprint, lab::Weights weights = 1) {
    const connector::EngineShape shape = lab::ShapeOf(kShape);
    const Clock& clock = SystemClock::Instance();
    const auto session = [&]() -> std::shared_ptr<Session> {
      pools_.push_back(open());
      return Must(pools_.back()->OpenSession({.name = shape.Namespace(), .engine = name}));
    };
    store_ = connector::StoreOf(session());
    runner_ = pools_[0]->form() == "cluster"
                  ? Must(connector::RunInThread(*store_, clock, kCallTime, milliseconds(1000)))
                  : connector::RunHere(*store_, clock, milliseconds(1000));
    scheduler_ = std::make_unique<connector::SchedulerRole>(
        connector::SchedulerOptions{.shape = shape, .engine = name, .versions = versions}, *store_,
        *runner_, clock);
    for (std::uint32_t rank = 0; rank < kShape.tp; ++rank) {
      workers_.push_back(std::make_unique<connector::WorkerRole>(
          connector::WorkerOptions{.shape = shape,
                                   .rank = {.tp = rank},
                                   .number = rank,
                                   .fingerprints = versions == VersionSource::kFingerprint},
          clock));
      workers_.back()->Connect(connector::StoreOf(session()), pools_[0]->form() == "cluster");
    }
    lab::ModelConnector roles{.scheduler = scheduler_.get()};
    for (const auto& worker : workers_) roles.workers.push_back(worker.get());
    lab::ModelOptions options{.shape = kShape, .name = name, .versions = versions};
    if (versions == VersionSource::kSalt) {
      options.weights_of_salt = [](const std::string& salt) { return std::stoull(salt.substr(5)); };
    }
    model_ = std::make_unique<ModelEngine>(options, std::vector<lab::ModelConnector>{roles});
    EXPECT_TRUE(model_->Start(weights));
    if (versions == VersionSource::kSalt) UseSaltOf(weights);
  }
  // Later requests name these weights, which the engine has.
  void UseSaltOf(lab::Weights weights) {
    salt_ = fmt::format("step-{}", weights);
    scheduler_->SetVersion(salt_);
  }

  ModelEngine& model() { return *model_; }
  connector::SchedulerRole& scheduler() { return *scheduler_; }

  // Serves one prompt to its end, saves included. Returns the blocks that came from the pool.
  std::uint64_t Serve(std::uint32_t seed, std::size_t tokens = 200) {
    const std::uint64_t before = model_->counts().loaded_blocks;
    lab::ModelRequest request{.id = fmt::format("r{}", ++served_), .salt = salt_};
    for (std::size_t t = 0; t < tokens; ++t) {
      request.tokens.push_back(static_cast<std::uint32_t>(Mix64(seed * 100'000 + t) % 50'000));
    }
    model_->Add(std::move(request));
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (model_->has_work()) {
      const auto start = std::chrono::steady_clock::now();
      model_->Step();
      model_->Finish();
      longest_step_ = std::max(longest_step_, std::chrono::steady_clock::now() - start);
      if (std::chrono::steady_clock::now() > until) {
        ADD_FAILURE() << "stuck";
        break;
      }
    }
    EXPECT_EQ(model_->counts().stale_blocks + model_->counts().wrong_blocks, 0U);
    EXPECT_EQ(model_->Leaks(), "");
    return model_->counts().loaded_blocks - before;
  }
  milliseconds longest_step() const {
    return std::chrono::duration_cast<milliseconds>(longest_step_);
  }

 private:
  std::vector<std::unique_ptr<Pool>> pools_;
  std::unique_ptr<connector::Store> store_;
  std::unique_ptr<connector::LookupRunner> runner_;
  std::unique_ptr<connector::SchedulerRole> scheduler_;
  std::vector<std::unique_ptr<connector::WorkerRole>> workers_;
  std::unique_ptr<ModelEngine> model_;
  std::string salt_;
  std::uint64_t served_ = 0;
  std::chrono::steady_clock::duration longest_step_{};
};

class ConnectorTest : public ClusterFixture {
 protected:
  std::function<std::unique_ptr<Pool>()> On(const std::string& host) {
    return [this, host] { return Open(host); };
  }
  // Lets `engine` compute the first prompt until the pool has it. Returns the blocks that it had
  // from the pool at first. A step waits some milliseconds for the token of a version that is new,
  // and a request that begins without one stores nothing; nor does one whose owner has no lease.
  static std::uint64_t Stores(Engine& engine) {
    const auto in_pool = [&] {
      const auto ranks = engine.scheduler().stats().ranks;
      return ranks.saved_keys + ranks.existing_keys;
    };
    std::optional<std::uint64_t> loaded;
    EXPECT_TRUE(Becomes(
        [&] {
          const std::uint64_t before = in_pool();
          const std::uint64_t blocks = engine.Serve(1);
          if (!loaded) loaded = blocks;
          if (in_pool() - before >= (12 - blocks) * kShape.tp) return true;
          EXPECT_TRUE(engine.model().ResetPrefixCache(false, false));
          return false;
        },
        milliseconds(30'000)));
    return *loaded;
  }
  // What `engine` has from the pool for the first prompt. Where the machine stood still, no owner
  // had a lease for a moment, and the engine asks once more, without its own cache.
  static std::uint64_t Loads(Engine& engine, std::uint64_t blocks) {
    return Patiently([&] {
      const std::uint64_t loaded = engine.Serve(1);
      const bool in_vain = loaded < blocks;
      if (in_vain) {
        EXPECT_TRUE(engine.model().ResetPrefixCache(false, false));
      }
      return std::pair(loaded, in_vain);
    });
  }
};

TEST_F(ConnectorTest, WhatOneEngineComputesAnotherOneOnAnotherHostLoads) {
  Engine a("a", On("host0"));
  Engine b("b", On("host1"));
  Engine c("c", On("elsewhere"));
  EXPECT_EQ(Stores(a), 0U);
  EXPECT_EQ(Loads(b, 12), 12U);
  EXPECT_EQ(Loads(c, 12), 12U);
  EXPECT_EQ(c.scheduler().stats().ranks.bytes_by_tier[static_cast<int>(Tier::kRemoteMemory)],
            12U * 16 * 4 * 8 * 2);
}

TEST_F(ConnectorTest, NothingOfBeforeAResetIsLoadedAnywhere) {
  Engine a("a", On("host0"));
  Engine b("b", On("host1"));
  (void)Stores(a);
  EXPECT_EQ(Loads(b, 12), 12U);
  EXPECT_TRUE(a.model().ResetPrefixCache(false, true));
  EXPECT_TRUE(b.model().ResetPrefixCache(false, false));
  EXPECT_EQ(Stores(b), 0U);
  EXPECT_TRUE(a.model().ResetPrefixCache(false, false));
  EXPECT_EQ(Loads(a, 12), 12U);
}

TEST_F(ConnectorTest, ReplicasWithEqualWeightsShareWhateverUpdatedThem) {
  Engine a("a", On("host0"));
  Engine b("b", On("host1"));
  (void)Stores(a);
  a.model().ChangeWeights(2, /*told=*/false);
  EXPECT_TRUE(a.model().ResetPrefixCache(false, false));
  EXPECT_EQ(Stores(a), 0U);
  EXPECT_EQ(Loads(b, 12), 12U);  // the old weights' KV, with the old weights
  b.model().ChangeWeights(2, /*told=*/true);
  EXPECT_TRUE(b.model().ResetPrefixCache(false, false));
  EXPECT_EQ(Loads(b, 12), 12U);
  // And back again.
  a.model().ChangeWeights(1, /*told=*/true);
  EXPECT_TRUE(a.model().ResetPrefixCache(false, false));
  EXPECT_EQ(Loads(a, 12), 12U);
  // A new engine with the same weights finds its version's.
  Engine c("c", On("host1"), VersionSource::kFingerprint, 2);
  EXPECT_EQ(Loads(c, 12), 12U);
}

TEST_F(ConnectorTest, EnginesThatResetAfterOneUpdateShareAGeneration) {
  std::vector<std::unique_ptr<Engine>> engines;
  for (int i = 0; i < 4; ++i) {
    engines.push_back(std::make_unique<Engine>(fmt::format("e{}", i), On(i % 2 ? "host1" : "host0"),
                                               VersionSource::kNone));
    (void)engines.back()->Serve(1);
  }
  for (const auto& engine : engines) {
    engine->model().ChangeWeights(2, /*told=*/true);
    EXPECT_TRUE(engine->model().WakeUp());
  }
  EXPECT_EQ(Stores(*engines[0]), 0U);
  for (int i = 1; i < 4; ++i) EXPECT_EQ(Loads(*engines[i], 12), 12U);
}

// An engine that is late with an update computes on, without the pool.
TEST_F(ConnectorTest, NothingIsLoadedOrStoredUnderSaltsThatAreDead) {
  Engine a("a", On("host0"), VersionSource::kSalt);
  Engine late("late", On("host1"), VersionSource::kSalt);
  EXPECT_EQ(Stores(a), 0U);
  EXPECT_EQ(Loads(late, 12), 12U);
  a.model().ChangeWeights(2, /*told=*/false);
  a.UseSaltOf(2);
  EXPECT_TRUE(a.model().ResetPrefixCache(false, false));
  EXPECT_EQ(Stores(a), 0U);
  auto pool = Open("elsewhere");
  auto trainer = Must(pool->OpenSession({.name = lab::ShapeOf(kShape).Namespace()}));
  const auto pruned = trainer->Prune("step-2", {.timeout = kCallTime});
  ASSERT_TRUE(pruned) << pruned.error().ToString();
  EXPECT_EQ(*pruned, 1U);
  const auto saved = [&] { return late.scheduler().stats().ranks.saved_keys; };
  const std::uint64_t before = saved();
  for (std::uint32_t seed = 1; seed < 4; ++seed) {
    EXPECT_TRUE(late.model().ResetPrefixCache(false, false));
    EXPECT_EQ(late.Serve(seed), 0U);
  }
  EXPECT_EQ(saved(), before);
  late.model().ChangeWeights(2, /*told=*/false);
  late.UseSaltOf(2);
  EXPECT_TRUE(late.model().ResetPrefixCache(false, false));
  EXPECT_EQ(Loads(late, 12), 12U);
}

// vllm-connector.md 11.8: a reset is for one model, not for all that the pool holds.
TEST_F(ConnectorTest, AResetLeavesOtherModelsAlone) {
  Engine a("a", On("host0"));
  (void)a.Serve(1);
  auto pool = Open("host1");
  auto other = OpenSession(*pool, "other");
  ASSERT_EQ(Put(*other, "kept"), Code::kOk);
  EXPECT_TRUE(a.model().ResetPrefixCache(false, true));
  EXPECT_TRUE(Get(*other, "kept").ok());
  EXPECT_EQ(a.Serve(1), 0U);
}

TEST_F(ConnectorTest, WithoutItsMasterAnEngineComputesAndAResetIsFalseInTime) {
  Engine a("a", On("host0"));
  (void)a.Serve(1);
  master_.reset();
  std::this_thread::sleep_for(milliseconds(1200));  // until no lease is left
  EXPECT_TRUE(a.model().ResetPrefixCache(false, false));
  EXPECT_EQ(a.Serve(1), 0U);
  const Slowness slowness;
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(a.model().ResetPrefixCache(false, true));
  EXPECT_LT(std::chrono::steady_clock::now() - start - milliseconds(slowness.ms()),
            milliseconds(3000));
  EXPECT_EQ(a.Serve(2), 0U);
  EXPECT_EQ(a.scheduler().stats().closed, 1U);
}

// One owner, and neither a master nor a cluster.
class ConnectorPoolTest : public ConnectorTest {
 protected:
  void SetUp() override { SetUpDirectory(); }
};

TEST_F(ConnectorPoolTest, OneHostsPoolServesRanksInProcessesOfTheirOwn) {
  server::DaemonOptions options;
  options.socket_path = directory_ + "/kvcove.sock";
  options.host.owner.memory_bytes = 64 << 20;
  owners_.push_back(Must(server::Daemon::Open(options, SystemClock::Instance())));
  const auto open = [&] { return Must(Pool::Open("unix:" + options.socket_path, kCallTime)); };
  Engine a("a", open);
  Engine b("b", open);
  EXPECT_EQ(Stores(a), 0U);
  EXPECT_EQ(Loads(b, 12), 12U);
  // While requests come and go, another engine's weights change: nobody loads what is not his.
  for (std::uint32_t turn = 0; turn < 20; ++turn) {
    (void)a.Serve(turn % 5);
    if (turn % 4 == 3) {
      b.model().ChangeWeights(turn, turn % 8 == 3);
      EXPECT_TRUE(b.model().ResetPrefixCache(true, turn % 8 == 3));
    }
    (void)b.Serve(turn % 5);
  }
  EXPECT_GT(a.model().counts().loaded_blocks + b.model().counts().loaded_blocks, 12U);
}

}  // namespace
}  // namespace kvcove
