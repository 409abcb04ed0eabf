// SPDX-License-Identifier: Apache-2.0
// A device's memory: what waits for what, and what a failure of the device costs. On a backend
// whose time the test drives; the order on a GPU's streams is tested in transport/cuda.
#include "kvcove/base/interrupt_fixture.h"
#include "kvcove/connector/roles_fixture.h"
#include "kvcove/connector/scheduler/counts.h"
#include "kvcove/connector/worker/one_device.h"
#include "tests/becomes.h"

namespace kvcove::connector {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;
using transport::DeviceQueue;
using transport::DeviceWay;

class WorkerDeviceTest : public RolesTest {
 protected:
  void SetUp() override {
    RolesTest::SetUp();
    UseDevice({});
  }
  void TearDown() override {
    device_->fake->Reach();
    for (const DeviceWay way : {DeviceWay::kLoad, DeviceWay::kSave})
      device_->fake->Hold(way, false);
    workers_.clear();
    EXPECT_EQ(device_->queue->stats().lent_bytes, 0);
    RolesTest::TearDown();
  }
  // Both ranks on one device, by hand.
  void UseDevice(WorkerOptions options, std::uint64_t ring = 64 << 10) {
    workers_.clear();
    device_ = std::make_unique<OneDevice>(
        transport::DeviceQueueOptions{.ring_bytes = ring, .thread = false, .poison = true}, clock_);
    options.shape = shape_;
    options.threads = 0;
    options.batch_bytes = 2 * kBlockBytes;
    options.device = device_.get();
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      options.rank = {.tp = rank};
      options.number = rank;
      workers_.push_back(std::make_unique<WorkerRole>(options, clock_));
      workers_[rank]->Connect(std::make_unique<TestStore>(pool_));
      ASSERT_TRUE(workers_[rank]->Register(Layers(rank)));
    }
  }
  // Four layers, one behind the other in a block.
  std::vector<LayerMemory> Layers(std::uint32_t rank) const {
    constexpr std::size_t kLayer = kBlockBytes / 4;
    std::vector<LayerMemory> layers;
    for (std::size_t layer = 0; layer < 4; ++layer) {
      layers.push_back(
          {.name = std::to_string(layer),
           .base = AddressOf(memory_[rank]) + kFar + layer * kLayer,
           .element_bytes = kLayer,
           .axes = {{.kind = AxisKind::kBlock, .count = kBlocks, .stride_bytes = kBlockBytes}}});
    }
    return layers;
  }
  bool Same(std::uint32_t rank, BlockId one, BlockId other, std::size_t blocks) const {
    return std::memcmp(&memory_[rank][one * kBlockBytes], &memory_[rank][other * kBlockBytes],
                       blocks * kBlockBytes) == 0;
  }
  std::uint64_t CountOf(const std::string& name) const {
    for (const Count& count : CountsOf(scheduler_->stats())) {
      if (count.name == name) return count.value;
    }
    return ~std::uint64_t{0};
  }
  // A plan of one load of chunks 0 to 2 into blocks from `first` on.
  Plan LoadPlan(std::string_view id, BlockId first) {
    (void)Load(id, 14, first);
    return scheduler_->BuildPlan(pins_);
  }

  std::unique_ptr<OneDevice> device_;
};

TEST_F(WorkerDeviceTest, KvGoesToThePoolAndComesBack) {
  StoreAll(12);
  EXPECT_EQ(pool_.values.size(), 6U);
  (void)Load("r", 14, 10);
  EXPECT_THAT(Step()[0].failed_blocks, IsEmpty());
  EXPECT_TRUE(scheduler_->LoadEnded("r"));
  EXPECT_TRUE(Same(0, 10, 1, 3));
  EXPECT_TRUE(Same(1, 10, 1, 3));
  EXPECT_EQ(CountOf("loaded_keys"), 6);
  EXPECT_EQ(CountOf("saved_keys"), 6);
  EXPECT_EQ(CountOf("device_load_batched_bytes"), 6 * kBlockBytes);
  EXPECT_EQ(CountOf("device_save_batched_bytes"), 6 * kBlockBytes);
  EXPECT_EQ(CountOf("device_pinned_bytes"), 2 * 2 * (64 << 10));
  EXPECT_EQ(CountOf("copy_errors"), 0);
}

TEST_F(WorkerDeviceTest, WhatIsHeldNowIsOfAllRanksAndNotAddedUp) {
  for (int turn = 0; turn < 3; ++turn) {
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      Report report{.rank = rank};
      report.counters.device_in_place_bytes = 5;
      report.counters.device_segment_pinned_bytes = 70;
      scheduler_->OnReport(report);
    }
  }
  EXPECT_EQ(CountOf("device_in_place_bytes"), 10);
  EXPECT_EQ(CountOf("device_segment_pinned_bytes"), 140);
}

TEST_F(WorkerDeviceTest, ALoadWritesNothingBeforeItsStepsMark) {
  StoreAll(12);
  device_->fake->HoldSteps();
  const Plan plan = LoadPlan("r", 10);
  for (auto& worker : workers_) worker->Begin(plan, 7);
  Move();
  EXPECT_THAT(workers_[0]->TakeEnded().loaded, IsEmpty());
  EXPECT_FALSE(Same(0, 10, 1, 1)) << "the step that has freed the blocks may still read them";
  device_->fake->Reach();
  Move();
  EXPECT_THAT(workers_[0]->TakeEnded().loaded, ElementsAre("r"));
  EXPECT_TRUE(Same(0, 10, 1, 3));
}

// What the scheduler weighs against computing: the copies, and no wait for the stream or for
// others.
TEST_F(WorkerDeviceTest, TheTimeOfALoadIsThatOfItsCopies) {
  StoreAll(12);
  const Plan plan = LoadPlan("r", 10);
  device_->fake->HoldSteps();
  device_->fake->Hold(DeviceWay::kLoad, true);
  workers_[0]->Begin(plan, 7);
  Move();
  clock_.AdvanceNs(30 * kMillisecond);
  device_->fake->Reach();
  Move();
  clock_.AdvanceNs(5 * kMillisecond);
  device_->fake->Hold(DeviceWay::kLoad, false);
  Move();
  const Report report = workers_[0]->TakeReport();
  ASSERT_EQ(report.loads.size(), 1U);
  EXPECT_EQ(report.loads[0].ns, 5 * kMillisecond);
}

TEST_F(WorkerDeviceTest, ASaveIsDueWhenItsStepIsComputedAndDelaysNoLoad) {
  StoreAll(12);
  device_->fake->HoldSteps();
  Compute("s", 0, 20, 30);
  const Plan saves = scheduler_->BuildPlan(pins_);
  const std::size_t stored = pool_.values.size();
  for (auto& worker : workers_) {
    worker->Begin(saves);
    worker->FinishStep({}, 7);
  }
  Move();
  EXPECT_EQ(pool_.values.size(), stored) << "the step has not computed it";
  device_->fake->Reach();
  device_->fake->Hold(DeviceWay::kSave, true);
  Move();
  const Plan load = LoadPlan("r", 10);
  for (auto& worker : workers_) worker->Begin(load);
  Move();
  EXPECT_THAT(workers_[0]->TakeEnded().loaded, ElementsAre("r"));
  EXPECT_EQ(pool_.values.size(), stored);
  device_->fake->Hold(DeviceWay::kSave, false);
  Move();
  EXPECT_EQ(pool_.values.size(), stored + 4);
}

TEST_F(WorkerDeviceTest, ALateErrorFailsTheBlocksOfItsBatchAndNoOther) {
  StoreAll(12);
  const Plan plan = LoadPlan("r", 10);
  device_->fake->Hold(DeviceWay::kLoad, true);
  workers_[0]->Begin(plan);
  Move();  // two batches are under way: two chunks, and one
  device_->fake->FailAfter(1);
  device_->fake->Hold(DeviceWay::kLoad, false);
  Move();
  const Ended ended = workers_[0]->TakeEnded();
  EXPECT_THAT(ended.loaded, ElementsAre("r"));
  EXPECT_THAT(ended.failed_blocks, ElementsAre(12));
  EXPECT_TRUE(Same(0, 10, 1, 2));
  const Report report = workers_[0]->TakeReport();
  EXPECT_EQ(report.counters.copy_errors, 1);
  EXPECT_EQ(report.counters.failed_keys, 1);
  EXPECT_THAT(report.counters.failed_by_tier, Each(0)) << "the pool has given it";
  EXPECT_EQ(report.counters.loaded_keys, 2);
}

TEST_F(WorkerDeviceTest, ASaveThatFailsLateIsNotStored) {
  Compute("s", 0, 12, 1);
  plan_ = scheduler_->BuildPlan(pins_);
  device_->fake->FailAfter(0);
  for (auto& worker : workers_) {
    worker->Begin(plan_);
    worker->FinishStep({});
  }
  Move();
  for (auto& worker : workers_) scheduler_->OnReport(worker->TakeReport());
  EXPECT_THAT(pool_.values, IsEmpty());
  EXPECT_EQ(scheduler_->TakeUnpins().size(), 3U);
  EXPECT_EQ(CountOf("copy_errors"), 6);
  EXPECT_EQ(CountOf("refused_keys"), 6);
}

TEST_F(WorkerDeviceTest, ASynchronousLoadMakesTheStreamWaitAndNotTheHost) {
  StoreAll(12);
  options_.load_async = false;
  scheduler_ = std::make_unique<SchedulerRole>(options_, store_, *runner_, clock_);
  scheduler_->StartWith({"a", "b"});
  pool_.lost.insert(pool_.values.rbegin()->first);  // found, and gone when it is loaded
  device_->fake->Hold(DeviceWay::kLoad, true);
  const Plan plan = LoadPlan("r", 10);
  ASSERT_EQ(plan.loads.size(), 1U);
  std::size_t failed = 0;
  for (auto& worker : workers_) {
    worker->Begin(plan, 7);
    worker->WaitForSyncLoads(7);
    failed += worker->TakeEnded().failed_blocks.size();
  }
  EXPECT_GT(device_->fake->waits(), 0) << "the stream waits";
  EXPECT_FALSE(Same(0, 10, 1, 3)) << "and the host did not";
  EXPECT_EQ(failed, 1U) << "a miss is told with the step that it belongs to";
  device_->fake->Hold(DeviceWay::kLoad, false);
  Move();
  EXPECT_TRUE(Same(0, 10, 1, 2));
  for (auto& worker : workers_) {
    EXPECT_THAT(worker->TakeEnded().failed_blocks, IsEmpty()) << "and only once";
  }
}

TEST_F(WorkerDeviceTest, TheFirstLayersNeedNotWaitForTheLast) {
  UseDevice({.layer_parts = 2});
  StoreAll(4);
  options_.load_async = false;
  scheduler_ = std::make_unique<SchedulerRole>(options_, store_, *runner_, clock_);
  scheduler_->StartWith({"a", "b"});
  (void)Load("r", 6, 10);
  const Plan plan = scheduler_->BuildPlan(pins_);
  device_->fake->Hold(DeviceWay::kLoad, true);
  const std::uint64_t before = device_->fake->submitted();
  workers_[0]->Begin(plan);
  EXPECT_EQ(device_->fake->waits(), 0);
  workers_[0]->WaitForLayer("0", 7);
  EXPECT_EQ(device_->fake->submitted() - before, 2) << "a part is two layers";
  EXPECT_EQ(device_->fake->waits(), 1);
  workers_[0]->WaitForLayer("1", 7);
  EXPECT_EQ(device_->fake->waits(), 1);
  workers_[0]->WaitForLayer("2", 7);
  EXPECT_EQ(device_->fake->waits(), 2);
  device_->fake->Hold(DeviceWay::kLoad, false);
  Move();
  EXPECT_TRUE(Same(0, 10, 1, 1));
}

TEST_F(WorkerDeviceTest, UnregisterWaitsForTheDeviceWithinItsDeadline) {
  StoreAll(12);
  const Plan plan = LoadPlan("r", 10);
  device_->fake->Hold(DeviceWay::kLoad, true);
  workers_[0]->Begin(plan);
  Move();
  EXPECT_FALSE(workers_[0]->Unregister()) << "the device does not go on";
  EXPECT_THAT(workers_[0]->TakeEnded().loaded, IsEmpty()) << "it may still write";
  device_->fake->Hold(DeviceWay::kLoad, false);
  EXPECT_TRUE(workers_[0]->Unregister());
  const Ended ended = workers_[0]->TakeEnded();
  EXPECT_THAT(ended.loaded, ElementsAre("r"));
  EXPECT_THAT(ended.failed_blocks, UnorderedElementsAre(10, 11, 12));
  ASSERT_TRUE(workers_[0]->Register(Layers(0)));  // after sleep
  const Plan again = LoadPlan("q", 20);
  workers_[0]->Begin(again);
  Move();
  EXPECT_TRUE(Same(0, 20, 1, 3));
}

TEST_F(WorkerDeviceTest, ACancelledLoadEndsOnlyWhenNothingLandsAnyMore) {
  StoreAll(12);
  const Plan plan = LoadPlan("r", 10);
  device_->fake->Hold(DeviceWay::kLoad, true);
  workers_[0]->Begin(plan);
  Move();
  Plan cancel;
  cancel.cancelled = {plan.loads[0].job};
  workers_[0]->Begin(cancel);
  EXPECT_THAT(workers_[0]->TakeEnded().loaded, IsEmpty());
  device_->fake->Hold(DeviceWay::kLoad, false);
  Move();
  const Ended ended = workers_[0]->TakeEnded();
  EXPECT_THAT(ended.loaded, ElementsAre("r"));
  EXPECT_THAT(ended.failed_blocks, UnorderedElementsAre(10, 11, 12));
}

TEST_F(WorkerDeviceTest, SavesGoOnWhenPinnedMemoryIsShort) {
  UseDevice({}, /*ring=*/256);  // one batch
  StoreAll(20);
  EXPECT_EQ(pool_.values.size(), 10U);
  EXPECT_EQ(CountOf("saved_keys"), 10);
  EXPECT_EQ(CountOf("copy_errors"), 0);
}

TEST_F(WorkerDeviceTest, MemoryThatCannotBeCopiedIsToldWhenItIsRegistered) {
  WorkerRole worker({.shape = shape_, .device = device_.get(), .threads = 0}, clock_);
  ASSERT_TRUE(worker.Register(Layers(0)));
  device_->end = Layers(0)[3].base + (kBlocks - 1) * kBlockBytes + kBlockBytes / 4 - 1;
  const Status last = worker.Register(Layers(0));
  ASSERT_FALSE(last) << "its last byte";
  EXPECT_THAT(last.error().detail, testing::HasSubstr("KV layer '3'"));
  EXPECT_THAT(last.error().detail, testing::HasSubstr("error 1"));
  device_->end = UINTPTR_MAX;
  device_->fake->FailAfter(0);
  const Status refused = worker.Register(Layers(0));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().detail, testing::HasSubstr("the device failed late"));
  device_->fake->FailAfter(-1);
  std::vector<LayerMemory> mixed = Layers(0);
  mixed[2].base -= kFar;
  EXPECT_THAT(worker.Register(mixed).error().detail, testing::HasSubstr("another device"));
}

// A prompt of 8,192 tokens on 80 layers: the engine's thread decodes the plan, queues one job and
// sets one mark, whatever the layers are. The time is for the record.
TEST_F(WorkerDeviceTest, TheModelsThreadOnlyQueuesALoad) {
  constexpr std::uint32_t kLayers = 80;
  constexpr std::uint32_t kChunks = 512;
  constexpr std::uint64_t kRun = 16;
  EngineShape shape{.model = "m", .hash_tokens = 16};
  shape.groups = {{.chunk_tokens = 16, .heads = 1}};
  std::vector<char> memory((kChunks + 1) * kLayers * kRun * 2);
  std::vector<LayerMemory> layers;
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    layers.push_back(
        {.name = std::to_string(layer),
         .base = AddressOf(memory) + kFar + layer * (kChunks + 1) * kRun * 2,
         .element_bytes = kRun,
         .axes = {{.kind = AxisKind::kBlock, .count = kChunks + 1, .stride_bytes = 2 * kRun}}});
  }
  WorkerRole worker({.shape = shape, .device = device_.get(), .threads = 0}, clock_);
  worker.Connect(std::make_unique<TestStore>(pool_));
  ASSERT_TRUE(worker.Register(layers));
  const std::uint64_t asked = pool_.asked;
  const std::uint64_t submitted = device_->fake->submitted();
  std::vector<std::int64_t> took;
  for (JobId job = 1; job <= 200; ++job) {
    LoadOrder order{.job = job, .request = "r" + std::to_string(job)};
    for (std::uint32_t i = 0; i < kChunks; ++i) {
      order.chunks.push_back({.chunk = i, .block = i + 1, .hash = std::string(32, 'h')});
    }
    Plan plan;
    plan.loads.push_back(order);
    const std::string coded = Encode(plan);
    const std::int64_t start = SystemClock::Instance().NowNs();
    worker.Begin(*DecodePlan(coded), 7);
    took.push_back(SystemClock::Instance().NowNs() - start);
  }
  EXPECT_EQ(pool_.asked, asked);
  EXPECT_EQ(device_->fake->submitted(), submitted);
  EXPECT_EQ(worker.TakeReport().counters.queued_jobs, 200);
  std::sort(took.begin(), took.end());
  std::printf("a plan of %u chunks x %u layers: p50 %.1f us, least %.1f us\n", kChunks, kLayers,
              static_cast<double>(took[took.size() / 2]) / 1e3,
              static_cast<double>(took.front()) / 1e3);
}

// Its pool cannot be opened, say; kvcove-connect goes on trying.
TEST_F(WorkerDeviceTest, LoadsOfARankWithoutAStoreEndByTheirTimeout) {
  WorkerOptions options{
      .device = device_.get(), .threads = 1, .timeout = std::chrono::milliseconds(100)};
  options.shape = {.model = "m", .hash_tokens = 4};
  options.shape.groups = {{.chunk_tokens = 4, .heads = 1}};
  WorkerRole worker(options, SystemClock::Instance());
  ASSERT_TRUE(worker.Register(Layers(0)));
  for (const bool sync : {true, false}) {
    Plan plan;
    plan.loads.push_back({.job = sync ? 1U : 2U,
                          .request = "r",
                          .sync = sync,
                          .chunks = {{.chunk = 0, .block = 10, .hash = "h"}}});
    worker.Begin(std::move(plan), 7);
    if (sync) worker.WaitForSyncLoads(7);
    Ended ended;
    EXPECT_TRUE(Becomes([&] {
      ended = worker.TakeEnded();
      return !ended.failed_blocks.empty();
    }));
    EXPECT_THAT(ended.failed_blocks, ElementsAre(10));
    EXPECT_EQ(ended.loaded.size(), sync ? 0U : 1U);
  }
}

// A pool that does not answer, until its caller hears that nobody wants the answer.
class SilentStore final : public TestStore {
 public:
  SilentStore(TestPool& pool, std::atomic<int>& waiting) : TestStore(pool), waiting_(waiting) {}
  Status Get(std::span<const GetItem>, std::span<ItemResult> results, const CallOptions&) override {
    ++waiting_;
    SleepNs(600 * kSecond);
    --waiting_;
    std::ranges::fill(results, ItemResult{.code = Code::kTimeout});
    return Fail(Code::kTimeout, "silent");
  }

 private:
  std::atomic<int>& waiting_;
};

TEST_F(WorkerDeviceTest, AnInterruptedWaitForALayerEndsItsLoadsAndThenItself) {
  WorkerOptions options{
      .device = device_.get(), .threads = 1, .timeout = std::chrono::milliseconds(600'000)};
  options.shape = {.model = "m", .hash_tokens = 4};
  options.shape.groups = {{.chunk_tokens = 4, .heads = 1}};
  WorkerRole worker(options, SystemClock::Instance());
  std::atomic<int> waiting{0};
  worker.Connect(std::make_unique<SilentStore>(pool_, waiting));
  ASSERT_TRUE(worker.Register(Layers(0)));
  Plan plan;
  plan.loads.push_back(
      {.job = 1, .request = "r", .sync = true, .chunks = {{.chunk = 0, .block = 10, .hash = "h"}}});
  worker.Begin(std::move(plan), 7);
  ASSERT_TRUE(Becomes([&] { return waiting == 1; }));
  const std::int64_t began_ns = SystemClock::Instance().NowNs();
  {
    AskedInterrupt interrupt(/*ends_at=*/1);
    worker.WaitForSyncLoads(7);
  }
  EXPECT_LT(SystemClock::Instance().NowNs() - began_ns, 300 * kSecond);
  EXPECT_EQ(waiting, 0) << "nothing writes any more";
  EXPECT_THAT(worker.TakeEnded().failed_blocks, ElementsAre(10));
}

// A store between which and the pool an RDMA device moves the bytes.
class RdmaStore final : public TestStore {
 public:
  struct Device {
    std::vector<std::span<std::byte>> registered;
    bool late = false;  // calls end before the device has
    std::vector<std::shared_ptr<transport::Landing>> landing;
  };
  RdmaStore(TestPool& pool, Device& device) : TestStore(pool), device_(device) {}
  Status Register(std::span<std::byte> memory) override {
    device_.registered.push_back(memory);
    return {};
  }
  Status Get(std::span<const GetItem> items, std::span<ItemResult> results,
             const CallOptions& options) override {
    return Late(results, TestStore::Get(items, results, options));
  }
  Status Put(const Token& token, std::span<const PutItem> items, std::span<ItemResult> results,
             const CallOptions& options) override {
    return Late(results, TestStore::Put(token, items, results, options));
  }

 private:
  Status Late(std::span<ItemResult> results, Status status) {
    if (!device_.late) return status;
    device_.landing.push_back(transport::Landing::Current());
    device_.landing.back()->Begin();
    for (ItemResult& result : results) result = {.code = Code::kBufferBusy};
    return status;
  }
  Device& device_;
};

TEST_F(WorkerDeviceTest, TheRingsAreRegisteredOnceWithEachStore) {
  RdmaStore::Device rdma;
  const auto rings = device_->queue->rings();
  for (const std::size_t stores : {1, 2}) {
    workers_[0]->Connect(std::make_unique<RdmaStore>(pool_, rdma));
    ASSERT_TRUE(workers_[0]->Register(Layers(0)));
    ASSERT_EQ(rdma.registered.size(), stores * rings.size());
    for (std::size_t i = 0; i < rings.size(); ++i) {
      EXPECT_EQ(rdma.registered[i].data(), rings[i].data());
      EXPECT_EQ(rdma.registered[i].size(), rings[i].size());
    }
  }
}

TEST_F(WorkerDeviceTest, MemoryOfTheHostIsNotRegistered) {
  RdmaStore::Device rdma;
  WorkerOptions options{.threads = 0};
  options.shape = {.model = "m", .hash_tokens = 4};
  options.shape.groups = {{.chunk_tokens = 4, .heads = 1}};
  WorkerRole worker(options, clock_);
  worker.Connect(std::make_unique<RdmaStore>(pool_, rdma));
  ASSERT_TRUE(worker.Register(BlocksAt(AddressOf(memory_[0]))));
  EXPECT_THAT(rdma.registered, IsEmpty());
}

TEST_F(WorkerDeviceTest, APieceThatAnRdmaDeviceMayTouchReturnsToTheRingWhenItCannot) {
  UseDevice({.settle = std::chrono::milliseconds(0)});
  RdmaStore::Device rdma;
  for (auto& worker : workers_) worker->Connect(std::make_unique<RdmaStore>(pool_, rdma));
  StoreAll(12);
  const auto lent = [&] { return device_->queue->stats().lent_bytes; };
  EXPECT_EQ(lent(), 0U);
  rdma.late = true;
  (void)Load("r", 14, 10);
  EXPECT_THAT(Step()[0].failed_blocks, UnorderedElementsAre(10, 11, 12));
  EXPECT_FALSE(Same(0, 10, 1, 1)) << "nothing of a busy piece reaches the KV memory";
  const std::uint64_t loads = lent();
  EXPECT_GE(loads, 6 * kBlockBytes);
  pool_.values.clear();
  Compute("again", 0, 12, 30);
  (void)Step();
  EXPECT_GE(lent(), loads + 6 * kBlockBytes) << "and saves keep theirs";
  for (const auto& landing : rdma.landing) landing->End();
  EXPECT_EQ(lent(), 0U);
}

// On real threads and time.
TEST_F(WorkerDeviceTest, ManyThreadsMoveEverythingOnce) {
  OneDevice device({.ring_bytes = 4096, .poison = true}, SystemClock::Instance());
  std::vector<char> memory(kBlocks * kBlockBytes);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<char>(i / kBlockBytes);
  EngineShape shape{.model = "m", .hash_tokens = 4};
  shape.groups = {{.chunk_tokens = 4, .heads = 1}};
  WorkerRole worker(
      {.shape = shape, .device = &device, .threads = 3, .batch_bytes = 3 * kBlockBytes},
      SystemClock::Instance());
  worker.Connect(std::make_unique<TestStore>(pool_));
  ASSERT_TRUE(worker.Register(BlocksAt(AddressOf(memory) + kFar)));
  Plan plan;
  for (JobId job = 1; job <= 50; ++job) {
    SaveOrder order{.job = job, .token = {.generation = 1}};
    for (BlockId block = 1; block < 9; ++block) {
      order.chunks.push_back(
          {.chunk = block, .block = block, .hash = std::to_string(job * 100 + block)});
    }
    plan.saves.push_back(order);
  }
  worker.Begin(plan);
  worker.FinishStep({}, 7);
  std::set<JobId> ended;
  while (ended.size() < 50) {
    for (const SaveDone& done : worker.TakeReport().saves) {
      EXPECT_TRUE(ended.insert(done.job).second);
      EXPECT_THAT(done.missing, IsEmpty());
    }
  }
  EXPECT_EQ(pool_.values.size(), 400U);
  Plan loads;
  for (JobId job = 101; job <= 150; ++job) {
    LoadOrder order{.job = job, .request = std::to_string(job)};
    for (BlockId block = 1; block < 9; ++block) {
      order.chunks.push_back(
          {.chunk = block, .block = block + 40, .hash = std::to_string((job - 100) * 100 + block)});
    }
    loads.loads.push_back(order);
  }
  worker.Begin(loads, 7);
  std::size_t loaded = 0;
  while (loaded < 50) {
    const Ended news = worker.TakeEnded();
    loaded += news.loaded.size();
    EXPECT_THAT(news.failed_blocks, IsEmpty());
  }
  EXPECT_EQ(std::memcmp(&memory[41 * kBlockBytes], &memory[kBlockBytes], 8 * kBlockBytes), 0);
  EXPECT_TRUE(worker.Unregister());
}

}  // namespace
}  // namespace kvcove::connector
