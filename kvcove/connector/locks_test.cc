// SPDX-License-Identifier: Apache-2.0
// What the roles do while they hold no lock: whatever the engine does meanwhile, from its callbacks
// or from another thread, neither hangs nor breaks them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "kvcove/connector/scheduler/scheduler.h"
#include "kvcove/connector/test_store.h"
#include "kvcove/connector/worker/worker.h"

namespace kvcove::connector {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

constexpr std::chrono::seconds kWatchdog{20};

// Runs `call` in another thread, as an engine's own threads do. False when it has not ended after
// kWatchdog, because it waits for a lock that the caller's thread holds.
class OtherThread {
 public:
  ~OtherThread() {
    if (thread_.joinable()) thread_.join();
  }
  bool Ends(const std::function<void()>& call) {
    std::packaged_task<void()> task(call);
    std::future<void> ended = task.get_future();
    if (thread_.joinable()) thread_.join();
    thread_ = std::thread(std::move(task));
    return ended.wait_for(kWatchdog) == std::future_status::ready;
  }

 private:
  std::thread thread_;
};

class LocksTest : public testing::Test {
 protected:
  LocksTest() {
    options_.shape = {.model = "m", .hash_tokens = 4, .tp = 1};
    options_.shape.groups = {{.chunk_tokens = 4, .heads = 1}};
    options_.versions = VersionSource::kNone;
    options_.blocks = 64;
    runner_ = RunHere(store_, clock_, std::chrono::seconds(1));
    scheduler_ = std::make_unique<SchedulerRole>(options_, store_, *runner_, clock_);
  }

  // A request of `tokens` tokens; `meanwhile` runs in each callback that gives hashes.
  RequestView View(std::string_view id, std::uint64_t tokens) {
    return {.id = id,
            .tokens = tokens,
            .prompt_tokens = tokens,
            .hashes = tokens / 4,
            .read_hashes = [this](std::size_t from, std::size_t to, HashList& into) {
              Meanwhile();
              for (std::size_t i = from; i < to; ++i) into.Add("h" + std::to_string(i));
            }};
  }
  std::function<BlockTables()> Blocks(std::uint64_t tokens) {
    return [this, tokens] {
      Meanwhile();
      std::vector<BlockId> ids((tokens + 3) / 4);
      std::iota(ids.begin(), ids.end(), 1);
      return BlockTables{ids};
    };
  }
  void Compute(std::string_view id, std::uint64_t tokens) {
    scheduler_->Schedule({.request = View(id, tokens),
                          .scheduled_tokens = tokens,
                          .started = true,
                          .blocks = Blocks(tokens)});
  }
  void Meanwhile() {
    ++callbacks_;
    if (meanwhile_) meanwhile_();
  }
  Plan BuildPlan() {
    std::vector<BlockId> pins;
    return scheduler_->BuildPlan(pins);
  }
  void StoreAll(std::uint64_t tokens) {
    for (std::uint64_t i = 0; i < tokens / 4; ++i) {
      std::string key;
      AppendKey("g0.h0of1", "h" + std::to_string(i), key);
      pool_.values[key] = "value";
    }
  }

  SchedulerOptions options_;
  TestPool pool_;
  TestStore store_{pool_};
  FakeClock clock_;
  std::unique_ptr<LookupRunner> runner_;
  std::unique_ptr<SchedulerRole> scheduler_;
  std::function<void()> meanwhile_;
  int callbacks_ = 0;
};

// With Python's GIL in the place of the other thread's wait, this was a deadlock.
TEST_F(LocksTest, OtherThreadsAreAnsweredWhileTheEngineGivesHashesAndBlockTables) {
  OtherThread other;
  int hung = 0;
  meanwhile_ = [&] {
    if (!other.Ends([&] { (void)scheduler_->stats(); })) ++hung;
  };
  StoreAll(16);
  Compute("a", 16);
  EXPECT_EQ(callbacks_, 2);  // its hashes, its tables
  const Match match = scheduler_->Matched(View("b", 18), 0);
  EXPECT_EQ(callbacks_, 3);
  scheduler_->Allocated("b", match.tokens, Blocks(18));
  EXPECT_EQ(callbacks_, 4);
  EXPECT_EQ(hung, 0);
}

TEST_F(LocksTest, ALookupThatAResetOvertakesIsAskedAgain) {
  StoreAll(16);
  meanwhile_ = [&] {
    meanwhile_ = {};
    (void)scheduler_->Reset();
  };
  EXPECT_TRUE(scheduler_->Matched(View("r", 18), 0).ask_again);
  EXPECT_EQ(scheduler_->Matched(View("r", 18), 0).tokens, 0U);
}

// The request's token is of before the reset, and the store refuses what it computes.
TEST_F(LocksTest, AStepThatAResetOvertakesStoresNothing) {
  meanwhile_ = [&] {
    meanwhile_ = {};
    (void)scheduler_->Reset();
  };
  Compute("r", 16);
  Compute("later", 16);
  for (const SaveOrder& order : BuildPlan().saves) {
    if (order.request != "r") continue;
    EXPECT_NE(order.token.generation, pool_.generation);
  }
}

// No engine does so, but its threads may come in any order.
TEST_F(LocksTest, ARequestThatEndsInACallbackIsForgotten) {
  StoreAll(16);
  meanwhile_ = [&] { scheduler_->Finished("r"); };
  (void)scheduler_->Matched(View("r", 18), 0);
  scheduler_->Allocated("r", 16, Blocks(18));
  Compute("r", 16);
  (void)BuildPlan();
  scheduler_->Finished("r");
  EXPECT_THAT(BuildPlan().loads, IsEmpty());
}

TEST_F(LocksTest, AnExceptionOfTheEngineLeavesTheRoleUsable) {
  StoreAll(16);
  meanwhile_ = [] { throw std::runtime_error("no block table"); };
  EXPECT_THROW(Compute("r", 16), std::runtime_error);
  EXPECT_THROW((void)scheduler_->Matched(View("s", 18), 0), std::runtime_error);
  meanwhile_ = {};
  EXPECT_EQ(scheduler_->Matched(View("s", 18), 0).tokens, 16U);
  Compute("r", 16);
  EXPECT_THAT(BuildPlan().saves, SizeIs(1));
}

// An engine's `ready` may be a Python object, whose end needs the GIL.
TEST_F(LocksTest, AQueuedSavesReadyIsDestroyedWithoutTheWorkersLock) {
  WorkerRole worker({.shape = options_.shape, .threads = 0}, clock_);
  std::vector<char> memory(64 * 32);
  ASSERT_TRUE(
      worker.Register({{.name = "kv",
                        .base = reinterpret_cast<std::uintptr_t>(memory.data()),
                        .element_bytes = 32,
                        .axes = {{.kind = AxisKind::kBlock, .count = 64, .stride_bytes = 32}}}}));
  Compute("r", 16);
  worker.Begin(BuildPlan());
  OtherThread other;
  int ended = 0;
  int hung = 0;
  const auto end = [&](int* object) {
    delete object;
    ++ended;
    if (!other.Ends([&] { (void)worker.TakeReport(); })) ++hung;
  };
  worker.FinishStep([object = std::shared_ptr<int>(new int, end)] { (void)object; });
  EXPECT_EQ(ended, 0);
  worker.Unregister();
  EXPECT_EQ(ended, 1);
  // A step without saves drops it at once.
  worker.FinishStep([object = std::shared_ptr<int>(new int, end)] { (void)object; });
  EXPECT_EQ(ended, 2);
  EXPECT_EQ(hung, 0);
}

TEST_F(LocksTest, AStoreThatIsReplacedEndsWithoutTheWorkersLock) {
  class Ending final : public TestStore {
   public:
    Ending(TestPool& pool, std::function<void()> end) : TestStore(pool), end_(std::move(end)) {}
    ~Ending() override { end_(); }

   private:
    std::function<void()> end_;
  };
  WorkerRole worker({.shape = options_.shape, .threads = 0}, clock_);
  OtherThread other;
  bool answered = false;
  worker.Connect(std::make_unique<Ending>(
      pool_, [&] { answered = other.Ends([&] { (void)worker.connected(); }); }));
  worker.Connect(std::make_unique<TestStore>(pool_));
  EXPECT_TRUE(answered);
}

}  // namespace
}  // namespace kvcove::connector
