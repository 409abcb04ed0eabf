// SPDX-License-Identifier: Apache-2.0
// A rank on the CUDA backend and the fake driver, on real threads, while the driver fails in many
// ways: each job ends once, what was not told as failed is right, and nothing is kept.
// $KVCOVE_TEST_TIMES: so many times as long. $KVCOVE_SEED repeats a round.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "kvcove/base/random.h"
#include "kvcove/connector/worker/in_place_fixture.h"
#include "kvcove/transport/cuda/device.h"
#include "kvcove/transport/cuda/fake/fake_driver.h"
#include "tests/becomes.h"

namespace kvcove::connector {
namespace {

constexpr std::uint64_t kRun = 512;
constexpr std::uint64_t kLayers = 8;
constexpr std::uint64_t kCount = 64;  // blocks
constexpr int kUnwritten = 222;

std::uint64_t Number(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

class FakeGpu final : public DeviceMemory {
 public:
  explicit FakeGpu(const transport::cuda::DeviceOptions& options) {
    std::string why;
    static const auto* driver = transport::cuda::Driver::Open("libkvcove_fake_cuda.so", why);
    if (driver == nullptr) std::abort();
    queue = *transport::DeviceQueue::Open(*transport::cuda::Device::Open(*driver, 1, options),
                                          {.ring_bytes = 64 << 10, .poison = true},
                                          SystemClock::Instance());
  }
  bool Owns(std::uintptr_t address) const override { return address >= fake_base(); }
  Result<transport::DeviceQueue*> QueueOf(std::uintptr_t /*address*/) const override {
    return queue.get();
  }
  std::unique_ptr<transport::DeviceQueue> queue;
};

// Layers one behind the other, as an engine's own layout has them.
std::vector<LayerMemory> LayersAt(std::uintptr_t base) {
  std::vector<LayerMemory> layers;
  for (std::uint64_t layer = 0; layer < kLayers; ++layer) {
    layers.push_back({.name = std::to_string(layer),
                      .base = base + layer * kCount * kRun,
                      .element_bytes = kRun,
                      .axes = {{.kind = AxisKind::kBlock, .count = kCount, .stride_bytes = kRun}}});
  }
  return layers;
}

char* At(std::uint64_t layer, BlockId block) {
  return static_cast<char*>(fake_shadow(fake_base() + (layer * kCount + block) * kRun));
}

void Fill(BlockId block, int value) {
  for (std::uint64_t layer = 0; layer < kLayers; ++layer) {
    std::memset(At(layer, block), value + static_cast<int>(layer), kRun);
  }
}

bool Has(BlockId block, int value) {
  for (std::uint64_t layer = 0; layer < kLayers; ++layer) {
    const char wanted = static_cast<char>(value + static_cast<int>(layer));
    const char* const at = At(layer, block);
    if (!std::all_of(at, at + kRun, [=](char each) { return each == wanted; })) return false;
  }
  return true;
}

// The driver fails now and then, while it is told to.
class Breaker {
 public:
  explicit Breaker(std::uint64_t seed) : thread_([this, seed] { Loop(seed); }) {}
  ~Breaker() {
    stop_ = true;
    thread_.join();
  }
  std::atomic<bool> breaks{false};

 private:
  void Loop(std::uint64_t seed) {
    Random random(seed);
    while (!stop_) {
      if (breaks) random.OneIn(2) ? fake_fail(1) : fake_no_events(1);
      std::this_thread::sleep_for(std::chrono::microseconds(random.Below(300)));
      fake_fail(0);
      fake_no_events(0);
      std::this_thread::sleep_for(std::chrono::microseconds(random.Below(300)));
    }
  }
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

class WorkerCudaTest : public testing::Test {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kOff);
    pool_ = *Pool::Open("embedded:?memory=16MiB&policy=lru");
    SessionOptions named{.name = "m", .engine = "e"};
    named.follow_always = true;
    facts_.session = *pool_->OpenSession(named);
  }
  void TearDown() override {
    SetLogLevel(LogLevel::kWarn);
    EXPECT_TRUE(Becomes([&] { return pool_->Stat()->reserved_bytes == 0; }));
    gpu_.reset();
    const FakeCounts counts = fake_counts();
    EXPECT_EQ(counts.violations, 0) << fake_violation();
    EXPECT_EQ(counts.events + counts.pinned_bytes + counts.device_bytes + counts.retained, 0);
  }
  // Slots and lists so few that transfers wait for them.
  void Open(std::uint64_t seed, std::uint64_t threshold = 4096) {
    gpu_.reset();
    fake_reset(seed);
    gpu_ = std::make_unique<FakeGpu>(transport::cuda::DeviceOptions{.threshold = threshold,
                                                                    .slot_bytes = 8 << 10,
                                                                    .load_slots = 2,
                                                                    .save_slots = 1,
                                                                    .run_blocks = 2,
                                                                    .block_runs = 32});
  }
  WorkerOptions Options(std::uint32_t threads) const {
    WorkerOptions options{.device = gpu_.get(),
                          .threads = threads,
                          .batch_bytes = 3 * kRun * kLayers,
                          .pin_piece_bytes = 1 << 20,
                          .in_place_bytes = 6 * kRun * kLayers};
    options.shape = {.model = "m", .hash_tokens = 4};
    options.shape.groups = {{.chunk_tokens = 4, .heads = 1}};
    return options;
  }
  std::unique_ptr<Store> NewStore() { return std::make_unique<PoolStore>(facts_); }

  std::unique_ptr<Pool> pool_;
  PoolFacts facts_;
  std::unique_ptr<FakeGpu> gpu_;
};

// Eight blocks are saved, and those of the turn before are loaded.
class Turns {
 public:
  Turns(WorkerRole& worker, Session& session, std::uint64_t seed)
      : worker_(worker),
        session_(session),
        random_(seed),
        breaker_(seed),
        engine_(fake_stream(0)) {}

  void Run(int turn) {
    breaker_.breaks = random_.OneIn(2);
    const bool resets = random_.OneIn(2);
    Plan plan;
    SaveOrder save{.job = ++job_, .token = *session_.Capture({})};
    LoadOrder load{.job = ++job_, .request = "r", .sync = random_.OneIn(3)};
    const bool sync = load.sync;
    for (BlockId block = 1; block < 9; ++block) {
      Fill(block, ValueOf(turn, block));
      Fill(40 + block, kUnwritten);
      save.chunks.push_back({.chunk = block, .block = block, .hash = HashOf(turn, block)});
      load.chunks.push_back({.chunk = block, .block = 40 + block, .hash = HashOf(turn - 1, block)});
    }
    plan.saves.push_back(std::move(save));
    plan.loads.push_back(std::move(load));
    const auto stream = reinterpret_cast<transport::StreamHandle>(engine_);
    fake_gate(engine_);
    worker_.Begin(std::move(plan), stream);
    std::this_thread::sleep_for(std::chrono::microseconds(random_.Below(2000)));
    for (BlockId block = 41; block < 49; ++block)
      ASSERT_TRUE(Has(block, kUnwritten)) << "too early";
    fake_open(engine_);
    if (resets && random_.OneIn(8)) (void)session_.Reset({});
    if (resets && random_.OneIn(8)) (void)session_.RemoveMatching("*", {});
    if (sync && random_.OneIn(2)) {
      for (std::uint64_t layer = 0; layer < kLayers; ++layer) {
        worker_.WaitForLayer(std::to_string(layer), stream);
      }
    } else if (sync) {
      worker_.WaitForSyncLoads(stream);
    }
    worker_.FinishStep({}, stream);
    const bool unregisters = random_.OneIn(6);
    if (unregisters) {
      ASSERT_TRUE(worker_.Unregister());
    }
    AwaitEnds(turn);
    if (unregisters) {
      breaker_.breaks = false;
      ASSERT_TRUE(Becomes([&] { return worker_.Register(LayersAt(fake_base())).has_value(); }));
    }
  }
  std::size_t loaded() const { return loaded_; }

 private:
  static int ValueOf(int turn, BlockId block) { return turn * 8 + static_cast<int>(block); }
  static std::string HashOf(int turn, BlockId block) {
    return std::to_string(turn) + " " + std::to_string(block);
  }
  void AwaitEnds(int turn) {
    std::multiset<JobId> ended;
    std::set<BlockId> failed;
    const bool all = Becomes([&] {
      const Report report = worker_.TakeReport();
      for (const SaveDone& done : report.saves) ended.insert(done.job);
      for (const LoadDone& done : report.loads) {
        ended.insert(done.job);
        failed.insert(done.failed.begin(), done.failed.end());
      }
      (void)worker_.TakeEnded();
      return ended.size() >= 2;
    });
    ASSERT_TRUE(all) << "a job does not end";
    EXPECT_THAT(ended, testing::ElementsAre(job_ - 1, job_));
    for (BlockId block = 1; block < 9; ++block) {
      if (failed.contains(40 + block)) continue;
      ++loaded_;
      ASSERT_TRUE(Has(40 + block, ValueOf(turn - 1, block))) << "block " << block;
    }
  }

  WorkerRole& worker_;
  Session& session_;
  Random random_;
  Breaker breaker_;
  void* const engine_;
  JobId job_ = 0;
  std::size_t loaded_ = 0;
};

TEST_F(WorkerCudaTest, WhateverFailsAllEndsOnceAndWhatIsLoadedIsRight) {
  const std::uint64_t first = Number("KVCOVE_SEED", RandomU64() % 1'000'000);
  std::size_t loaded = 0;
  for (std::uint64_t round = 0; round < 4 * Number("KVCOVE_TEST_TIMES", 1); ++round) {
    const std::uint64_t seed = first + round;
    SCOPED_TRACE("KVCOVE_SEED=" + std::to_string(seed));
    Random random(seed);
    Open(seed, random.OneIn(4) ? 0 : 4096);
    WorkerOptions options = Options(/*threads=*/3);
    options.layer_parts = 1 + static_cast<std::uint32_t>(random.Below(3));
    options.pin_bytes = random.OneIn(3) ? 0 : ~std::uint64_t{0};  // all by way of the ring
    WorkerRole worker(options, SystemClock::Instance());
    worker.Connect(NewStore());
    ASSERT_TRUE(worker.Register(LayersAt(fake_base())));
    {
      Turns turns(worker, *facts_.session, seed);
      for (int turn = 0; turn < 40 && !HasFatalFailure(); ++turn) turns.Run(turn);
      loaded += turns.loaded();
    }
    EXPECT_TRUE(worker.Unregister());
    EXPECT_EQ(worker.TakeReport().counters.device_in_place_bytes, 0);
    EXPECT_EQ(gpu_->queue->stats().lent_bytes, 0);
    (void)facts_.session->RemoveMatching("*", {});
  }
  EXPECT_GT(loaded, 100U);
}

// As a wake does beside kvcove-connect. Of two that pin the driver refuses the second.
TEST_F(WorkerCudaTest, ARegistrationBesideAConnectPinsTheSegmentOnce) {
  Open(1);
  for (std::uint64_t round = 0; round < 20 * Number("KVCOVE_TEST_TIMES", 1); ++round) {
    WorkerRole worker(Options(/*threads=*/1), SystemClock::Instance());
    std::atomic<int> ready{0};
    const auto both = [&] {
      ++ready;
      while (ready < 2) {
      }
    };
    std::thread connect([&] {
      both();
      worker.Connect(NewStore());
    });
    both();
    EXPECT_TRUE(worker.Register(LayersAt(fake_base())));
    connect.join();
    ASSERT_TRUE(Becomes([&] { return worker.PinOne() == kMemory; })) << worker.PinOne();
  }
}

// The sanitizers see a call that comes too late.
TEST_F(WorkerCudaTest, ARoleThatHasLeftItsDeviceIsNotCalledByIt) {
  Open(1);
  auto worker = std::make_unique<WorkerRole>(Options(/*threads=*/1), SystemClock::Instance());
  worker->Connect(NewStore());
  ASSERT_TRUE(worker->Register(LayersAt(fake_base())));
  void* const engine = fake_stream(0);
  const auto stream = reinterpret_cast<transport::StreamHandle>(engine);
  Plan plan;
  plan.saves.push_back({.job = 1,
                        .token = *facts_.session->Capture({}),
                        .chunks = {{.chunk = 0, .block = 1, .hash = "h"}}});
  fake_gate(engine);
  worker->Begin(std::move(plan), stream);
  worker->FinishStep({}, stream);
  ASSERT_TRUE(worker->Unregister());
  std::vector<char> host(kLayers * kCount * kRun);
  ASSERT_TRUE(worker->Register(LayersAt(reinterpret_cast<std::uintptr_t>(host.data()))));
  worker.reset();
  fake_open(engine);
  gpu_.reset();  // looks at what is left until it ends
}

}  // namespace
}  // namespace kvcove::connector
