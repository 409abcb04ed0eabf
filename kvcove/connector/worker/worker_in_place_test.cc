// SPDX-License-Identifier: Apache-2.0
// A device that copies out of the pool's memory and into it, while the pool evicts, removes and
// resets, and while the device fails or hangs. On a real pool, and a backend whose time the test
// drives.
#include <thread>

#include "kvcove/connector/worker/in_place_fixture.h"
#include "tests/becomes.h"

namespace kvcove::connector {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST_F(InPlaceTest, WhatIsPinnedNeedsNoRing) {
  PinAll();
  Save(4);
  Load(4, 10);
  EXPECT_THAT(worker_->TakeEnded().failed_blocks, IsEmpty());
  ExpectLetters(4, 10);
  const Counters told = Told();
  EXPECT_EQ(told.saved_keys, 4);
  EXPECT_EQ(told.loaded_keys, 4);
  EXPECT_EQ(told.keys_by_tier[static_cast<std::size_t>(Tier::kMemory)], 4);
  EXPECT_EQ(told.device_save_in_place_bytes, 4 * kPlacedBlock);
  EXPECT_EQ(told.device_load_in_place_bytes, 4 * kPlacedBlock);
  EXPECT_EQ(told.device_segment_pinned_bytes, kMemory);
  EXPECT_EQ(told.device_in_place_bytes, 0);
  EXPECT_EQ(facts_.gets, 0);
  EXPECT_EQ(Stored(), 4U);
}

TEST_F(InPlaceTest, WhatIsNotPinnedGoesByWayOfTheRing) {
  Save(2);
  Load(2, 10);
  EXPECT_TRUE(Has(11, 'b'));
  EXPECT_EQ(facts_.borrows + facts_.reserves, 0);
  EXPECT_EQ(Told().device_load_in_place_bytes, 0);
  EXPECT_EQ(Told().saved_keys, 2);
}

TEST_F(InPlaceTest, NothingIsPinnedWhereThatIsSwitchedOff) {
  StartWorker({.pin_bytes = 0});
  for (int i = 0; i < 40; ++i) EXPECT_EQ(worker_->PinOne(), 0);
  Save(2);
  Load(2, 10);
  EXPECT_TRUE(Has(11, 'b'));
  EXPECT_EQ(facts_.borrows + facts_.reserves, 0);
}

TEST_F(InPlaceTest, APoolThatIsPinnedInPartIsUsedWhereItIs) {
  Save(20);  // the pool's first megabyte ends within one of them
  device_->fake->Pinnable(1 << 20);
  for (int i = 0; i < 40; ++i) (void)worker_->PinOne();
  Load(20, 30);
  EXPECT_THAT(worker_->TakeEnded().failed_blocks, IsEmpty());
  ExpectLetters(20, 30);
  const Counters told = Told();
  EXPECT_EQ(told.device_segment_pinned_bytes, 1 << 20);
  EXPECT_EQ(told.loaded_keys, 20);
  EXPECT_LE(told.device_load_in_place_bytes, 1 << 20);
}

TEST_F(InPlaceTest, ASaveIntoMemoryThatIsNotPinnedGoesByWayOfTheRing) {
  device_->fake->Pinnable(1 << 20);
  for (int i = 0; i < 40; ++i) (void)worker_->PinOne();
  std::uint64_t in_place = 0;
  for (int turn = 0; turn < 2; ++turn) {
    Save(20, turn == 0 ? 'a' : 'A');
    in_place = Told().device_save_in_place_bytes;
  }
  EXPECT_LE(in_place, 1 << 20);
  EXPECT_EQ(counters_.saved_keys, 40);
  EXPECT_EQ(counters_.existing_keys, 0) << "a reservation in vain keeps no key";
  EXPECT_EQ(Stored(), 40U);
  Load(20, 30, false, 'A');
  for (std::uint32_t i = 0; i < 20; ++i) EXPECT_TRUE(Has(30 + i, static_cast<char>('A' + i)));
}

TEST_F(InPlaceTest, WhatIsRemovedOrEvictedWhileTheDeviceReadsItIsLoadedAsItWas) {
  PinAll();
  Save(4);
  for (const bool removed : {false, true}) {
    Hold(DeviceWay::kLoad, true);
    Load(4, 10);
    if (removed) {
      ASSERT_TRUE(facts_.session->RemoveMatching("*", {}));
    }
    Press();
    EXPECT_FALSE(Has(10, 'a'));
    Hold(DeviceWay::kLoad, false);
    Move();
    EXPECT_THAT(worker_->TakeEnded().failed_blocks, IsEmpty());
    for (std::uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(Has(10 + i, static_cast<char>('a' + i)));
    EXPECT_EQ(Told().device_load_in_place_bytes, (removed ? 8 : 4) * kPlacedBlock);
    std::fill(memory_.begin() + 10 * kPlacedBlock, memory_.end(), 'z');
    (void)facts_.session->RemoveMatching("*", {});
    Save(4);
  }
  EXPECT_TRUE(Becomes([&] { return pool_->Stat()->withdrawn_bytes == 0; })) << "it came back";
}

TEST_F(InPlaceTest, AResetWhileTheDeviceReadsFailsTheBlocks) {
  PinAll();
  Save(4);
  Hold(DeviceWay::kLoad, true);
  Load(4, 10);
  ASSERT_TRUE(facts_.session->Reset({}));
  Press();
  EXPECT_THAT(worker_->TakeEnded().loaded, IsEmpty());
  Hold(DeviceWay::kLoad, false);
  Move();
  const Ended ended = worker_->TakeEnded();
  EXPECT_THAT(ended.loaded, ElementsAre("r"));
  EXPECT_THAT(ended.failed_blocks, ElementsAre(10, 11, 12, 13));
  const Counters told = Told();
  EXPECT_EQ(told.failed_keys, 4);
  EXPECT_THAT(told.failed_by_tier, ElementsAre(0, 4, 0, 0)) << "the reset's, no device's";
  EXPECT_EQ(told.loaded_keys, 0);
  EXPECT_EQ(told.missed[static_cast<std::size_t>(MissReason::kReset)], 4);
}

TEST_F(InPlaceTest, ALateErrorFailsTheBlocksOfItsBatchAndNoOther) {
  PinAll();
  Save(4);
  Hold(DeviceWay::kLoad, true);
  Load(4, 10);
  Hold(DeviceWay::kLoad, false);
  device_->fake->FailAfter(1);
  Move();  // one batch is well, the other fails late
  device_->fake->FailAfter(-1);
  EXPECT_THAT(worker_->TakeEnded().failed_blocks, ElementsAre(12, 13));
  EXPECT_TRUE(Has(11, 'b'));
  EXPECT_EQ(Told().copy_errors, 2);
}

TEST_F(InPlaceTest, ASaveIsFoundWhenTheDeviceHasWrittenIt) {
  PinAll();
  Hold(DeviceWay::kSave, true);
  Save(4);
  EXPECT_EQ(Stored(), 0U);
  EXPECT_GT(pool_->Stat()->reserved_bytes, 0);
  Press();
  Hold(DeviceWay::kSave, false);
  Move();
  // The key is reserved for a second: on a host that was busy for so long nothing is stored.
  const Counters told = Told();
  EXPECT_EQ(told.saved_keys + told.refused_keys, 4);
  Load(4, 10);
  const std::size_t failed = worker_->TakeEnded().failed_blocks.size();
  for (std::uint32_t i = 0; i < 4 && failed == 0; ++i) {
    EXPECT_TRUE(Has(10 + i, static_cast<char>('a' + i)));
  }
  const std::string value(kPressure, 'P');
  std::size_t read = 0;
  const std::vector<StoredObject> left = *facts_.session->List("pressure", {});
  for (const StoredObject& object : left) {
    std::string bytes(kPressure, ' ');
    const MutableBuffer into{.data = bytes.data(), .size = bytes.size()};
    const GetItem item{.key = object.key, .into = {&into, 1}};
    ItemResult result;
    ASSERT_TRUE(facts_.session->Get({&item, 1}, {&result, 1}, {}));
    if (!result.ok()) continue;
    ++read;
    ASSERT_TRUE(bytes == value) << "the device wrote into " << object.key;
  }
  EXPECT_GT(read, 50U);
}

TEST_F(InPlaceTest, ASaveWhoseTicketFailsIsNotStoredAndGivesItsMemoryBack) {
  PinAll();
  device_->fake->FailAfter(0);
  Save(4);
  EXPECT_EQ(Stored(), 0U);
  EXPECT_EQ(pool_->Stat()->reserved_bytes, 0);
  EXPECT_EQ(Told().copy_errors, 4);
  EXPECT_EQ(Told().refused_keys, 4);
  device_->fake->FailAfter(-1);
  Save(4);
  EXPECT_EQ(Stored(), 4U) << "no key is taken";
  EXPECT_EQ(Told().existing_keys, 0);
}

TEST_F(InPlaceTest, AResetWhileTheDeviceWritesKeepsTheValuesOut) {
  PinAll();
  Hold(DeviceWay::kSave, true);
  Save(4);
  ASSERT_TRUE(facts_.session->Reset({}));
  Hold(DeviceWay::kSave, false);
  Move();
  EXPECT_EQ(Stored(), 0U);
  EXPECT_EQ(pool_->Stat()->reserved_bytes, 0);
  const Counters told = Told();
  EXPECT_EQ(told.saved_keys, 0);
  EXPECT_GT(told.stale_keys, 0);
}

TEST_F(InPlaceTest, WhatADeviceStillWritesIsNobodysWhenTheRoleEnds) {
  StartWorker({.device_timeout = std::chrono::milliseconds(1)});
  PinAll();
  Hold(DeviceWay::kSave, true);
  Hold(DeviceWay::kLoad, true);
  Save(2);
  const std::uint64_t reserved = pool_->Stat()->reserved_bytes;
  EXPECT_GE(reserved, 2 * kPlacedBlock);
  EXPECT_FALSE(worker_->Unregister());
  worker_.reset();
  EXPECT_EQ(pool_->Stat()->reserved_bytes, reserved) << "the device writes there";
  EXPECT_GT(device_->fake->registered_bytes(), 0);
  Press();
  Hold(DeviceWay::kSave, false);
  EXPECT_TRUE(device_->queue->Advance());
  EXPECT_EQ(pool_->Stat()->reserved_bytes, 0);
  EXPECT_EQ(device_->fake->registered_bytes(), 0);
}

TEST_F(InPlaceTest, ASlowDeviceHoldsItsShareOfThePoolAndNoMore) {
  StartWorker({.in_place_bytes = 3 * kPlacedBlock});
  PinAll();
  Save(6);  // one batch at a time
  const std::uint64_t before = Told().device_save_in_place_bytes;
  EXPECT_GE(before, 2 * kPlacedBlock);
  Hold(DeviceWay::kLoad, true);
  Load(6, 10);
  EXPECT_EQ(Held(), 2 * kPlacedBlock);
  EXPECT_EQ(device_->queue->stats().lent_bytes, 0) << "the others wait: the link is busy";
  Hold(DeviceWay::kLoad, false);
  Move();
  const Counters told = Told();
  EXPECT_EQ(told.device_in_place_bytes, 0);
  EXPECT_EQ(told.device_load_in_place_bytes, 6 * kPlacedBlock);
  EXPECT_THAT(worker_->TakeEnded().failed_blocks, IsEmpty());
  ExpectLetters(6, 10);
  Hold(DeviceWay::kSave, true);
  Save(6, 'A');
  EXPECT_EQ(Held(), 2 * kPlacedBlock);
  Hold(DeviceWay::kSave, false);
  Move();
  EXPECT_EQ(Held(), 0);
  EXPECT_EQ(Stored(), 12U);
}

TEST_F(InPlaceTest, WhatIsBeyondTheSessionsLoansGoesByWayOfTheRing) {
  Open({}, {.borrow_bytes = kPlacedBlock});
  PinAll();
  Save(4);
  Load(4, 10);
  EXPECT_THAT(worker_->TakeEnded().failed_blocks, IsEmpty());
  ExpectLetters(4, 10);
  EXPECT_EQ(Told().device_load_in_place_bytes, kPlacedBlock) << "nothing else while that is lent";
  EXPECT_EQ(Told().loaded_keys, 4);
}

TEST_F(InPlaceTest, WhatIsOnOtherHostsGoesByWayOfTheRing) {
  PinAll();
  facts_.elsewhere = true;
  Save(4);
  Load(4, 10);
  EXPECT_GT(facts_.borrows, 0);
  EXPECT_GT(facts_.reserves, 0);
  EXPECT_THAT(worker_->TakeEnded().failed_blocks, IsEmpty());
  ExpectLetters(4, 10);
  const Counters told = Told();
  EXPECT_EQ(told.loaded_keys, 4);
  EXPECT_EQ(told.saved_keys, 4);
  EXPECT_EQ(told.device_load_in_place_bytes + told.device_save_in_place_bytes, 0);
}

TEST_F(InPlaceTest, AMissIsOneAndTheRingIsNotAsked) {
  PinAll();
  Save(2);
  Load(3, 10);
  EXPECT_EQ(facts_.gets, 0);
  EXPECT_THAT(worker_->TakeEnded().failed_blocks, ElementsAre(12));
  EXPECT_EQ(Told().failed_keys, 1);
}

TEST_F(InPlaceTest, ASynchronousLoadMakesTheStreamWaitAndNotTheHost) {
  StartWorker({.in_place_bytes = 2 * kPlacedBlock});  // no bound of what the stream waits for
  PinAll();
  Save(6);
  Hold(DeviceWay::kLoad, true);
  Load(6, 10, /*sync=*/true);
  worker_->WaitForSyncLoads(7);
  EXPECT_EQ(device_->fake->waits(), 3) << "a batch is two values";
  EXPECT_FALSE(Has(10, 'a')) << "the host did not wait";
  Hold(DeviceWay::kLoad, false);
  Move();
  ExpectLetters(6, 10);
  const Counters told = Told();
  EXPECT_EQ(told.loaded_keys, 6);
  EXPECT_EQ(told.device_load_in_place_bytes, 6 * kPlacedBlock);
  EXPECT_EQ(facts_.gets, 0);
  EXPECT_THAT(worker_->TakeEnded().failed_blocks, IsEmpty());
}

// The stream uses the bytes before the host can look at the loan again: they are what they were,
// and the engine hears of it late.
TEST_F(InPlaceTest, AResetBehindTheStreamsWaitIsToldLateAndTheBytesStay) {
  PinAll();
  Save(4);
  Hold(DeviceWay::kLoad, true);
  Load(4, 10, /*sync=*/true);
  worker_->WaitForSyncLoads(7);
  EXPECT_THAT(worker_->TakeEnded().failed_blocks, IsEmpty());
  ASSERT_TRUE(facts_.session->Reset({}));
  Press();
  Hold(DeviceWay::kLoad, false);
  Move();
  ExpectLetters(4, 10);
  EXPECT_THAT(worker_->TakeEnded().failed_blocks, ElementsAre(10, 11, 12, 13));
  EXPECT_EQ(Told().loaded_keys, 0);
}

TEST_F(InPlaceTest, TheFirstLayerOfAllValuesGoesBeforeTheSecondOfAny) {
  StartWorker({.layer_parts = 2});
  PinAll();
  Save(6);
  const std::size_t before = device_->fake->submitted();
  Hold(DeviceWay::kLoad, true);
  Load(6, 10, /*sync=*/true);
  worker_->WaitForLayer("0", 7);
  EXPECT_EQ(device_->fake->waits(), 3);
  worker_->WaitForLayer("1", 7);
  EXPECT_EQ(device_->fake->waits(), 6);
  std::vector<std::size_t> layers;
  for (const transport::DeviceCopy& first : device_->fake->FirstCopies(before)) {
    layers.push_back((first.device - Layers()[0].base) % kPlacedBlock / (kPlacedBlock / 2));
    EXPECT_EQ(first.bytes, kPlacedBlock / 2);
  }
  EXPECT_THAT(layers, ElementsAre(0, 0, 0, 1, 1, 1));
  Hold(DeviceWay::kLoad, false);
  Move();
  ExpectLetters(6, 10);
  const Counters told = Told();
  EXPECT_EQ(told.loaded_keys, 6) << "each once";
  EXPECT_EQ(told.loaded_bytes, 6 * kPlacedBlock);
}

TEST_F(InPlaceTest, AStepThatComesToNoLayerWaitsAtItsEnd) {
  StartWorker({.layer_parts = 2});
  PinAll();
  Save(2);
  Hold(DeviceWay::kLoad, true);
  Load(2, 10, /*sync=*/true);
  worker_->FinishStep({}, 7);
  EXPECT_EQ(device_->fake->waits(), 2);
  Hold(DeviceWay::kLoad, false);
  Move();
  EXPECT_TRUE(Has(11, 'b'));
}

TEST_F(InPlaceTest, ALoadForTheStreamThatIsMoreThanMayBeLentGoesInPlaceAllTheSame) {
  StartWorker({.layer_parts = 2});
  PinAll();
  Save(20);  // 12 of them may be lent at once
  Load(20, 30, /*sync=*/true);
  worker_->WaitForLayer("1", 7);
  worker_->FinishStep({}, 7);
  Move();
  ExpectLetters(20, 30);
  EXPECT_EQ(Told().device_load_in_place_bytes, 20 * kPlacedBlock);
  EXPECT_EQ(facts_.gets, 0);
  EXPECT_EQ(Held(), 0);
}

TEST_F(InPlaceTest, ALateErrorOfOnePartFailsTheBlocksOfItsBatchOnce) {
  StartWorker({.layer_parts = 2});
  PinAll();
  Save(4);
  Hold(DeviceWay::kLoad, true);
  Load(4, 10, /*sync=*/true);
  worker_->FinishStep({}, 7);
  device_->fake->FailAfter(3);  // the second part of the second batch
  Hold(DeviceWay::kLoad, false);
  Move();
  EXPECT_THAT(worker_->TakeEnded().failed_blocks, ElementsAre(12, 13));
  const Counters told = Told();
  EXPECT_EQ(told.loaded_keys, 2);
  EXPECT_EQ(told.failed_keys, 2);
  EXPECT_EQ(told.copy_errors, 2);
}

TEST_F(InPlaceTest, ValuesOfAnotherSizeGiveWay) {
  PinAll();
  Save(1);
  const std::string key = facts_.session->List("", {})->front().key;
  ASSERT_TRUE(facts_.session->RemoveMatching("*", {}));
  const ConstBuffer piece{.data = "short", .size = 5};
  const PutItem item{.key = key, .value = {&piece, 1}};
  ItemResult result;
  ASSERT_TRUE(facts_.session->Put({&item, 1}, {&result, 1}));
  Load(1, 10);
  EXPECT_THAT(worker_->TakeEnded().failed_blocks, ElementsAre(10));
  EXPECT_EQ(Told().misfit_keys, 1);
  Save(1);
  Load(1, 10);
  EXPECT_TRUE(Has(10, 'a'));
}

// On real threads and time, with kvcove-pin beside it: whatever goes which way, all of it is right.
TEST_F(InPlaceTest, ManyThreadsMoveEverythingWhileTheMemoryIsPinned) {
  OneDevice device({.ring_bytes = 1 << 20, .poison = true}, clock_);
  WorkerOptions options{.device = &device,
                        .threads = 3,
                        .batch_bytes = 3 * kPlacedBlock,
                        .pin_piece_bytes = 256 << 10,
                        .in_place_bytes = 6 * kPlacedBlock};
  options.shape = {.model = "m", .hash_tokens = 4};
  options.shape.groups = {{.chunk_tokens = 4, .heads = 1}};
  WorkerRole worker(options, clock_);
  worker.Connect(std::make_unique<PoolStore>(facts_));
  for (std::uint32_t i = 0; i < kInPlaceBlocks; ++i) {
    std::fill_n(memory_.begin() + i * kPlacedBlock, kPlacedBlock, static_cast<char>(i));
  }
  ASSERT_TRUE(worker.Register(Layers()));
  Counters counters;
  for (int turn = 0; turn < 40; ++turn) {
    Plan plan;
    SaveOrder save{.job = ++job_, .token = *facts_.session->Capture({})};
    for (BlockId block = 1; block < 9; ++block) {
      save.chunks.push_back(
          {.chunk = block, .block = block, .hash = std::to_string(turn * 100 + block)});
    }
    plan.saves.push_back(save);
    worker.Begin(plan, 7);
    worker.FinishStep({}, 7);
    std::set<std::uint32_t> missing;
    for (bool over = false; !over;) {
      const Report report = worker.TakeReport();
      counters.Add(report.counters);
      for (const SaveDone& done : report.saves) {
        over = over || done.job == save.job;
        missing.insert(done.missing.begin(), done.missing.end());
      }
      std::this_thread::yield();
    }
    LoadOrder load{.job = ++job_, .request = std::to_string(turn)};
    for (BlockId block = 1; block < 9; ++block) {
      load.chunks.push_back(
          {.chunk = block, .block = 40 + block, .hash = std::to_string(turn * 100 + block)});
    }
    Plan loads;
    loads.loads.push_back(load);
    worker.Begin(loads, 7);
    Ended ended;
    while (ended.loaded.empty()) {
      ended = worker.TakeEnded();
      std::this_thread::yield();
    }
    // A host that is busy for a second refuses saves; what is loaded is right.
    if (missing.empty()) {
      EXPECT_THAT(ended.failed_blocks, IsEmpty());
    }
    for (BlockId block = 1; block < 9; ++block) {
      const bool failed = std::ranges::count(ended.failed_blocks, 40 + block) > 0;
      if (!failed) {
        ASSERT_TRUE(Has(40 + block, static_cast<char>(block))) << turn;
      }
    }
    std::fill(memory_.begin() + 41 * kPlacedBlock, memory_.begin() + 49 * kPlacedBlock, 'z');
  }
  counters.Add(worker.TakeReport().counters);
  std::printf("%.1f of %.1f MB in place\n",
              static_cast<double>(counters.device_load_in_place_bytes +
                                  counters.device_save_in_place_bytes) /
                  1e6,
              static_cast<double>(counters.loaded_bytes + counters.saved_bytes) / 1e6);
  EXPECT_TRUE(worker.Unregister());
  EXPECT_EQ(device.fake->unpinned(), 0);
}

}  // namespace
}  // namespace kvcove::connector
