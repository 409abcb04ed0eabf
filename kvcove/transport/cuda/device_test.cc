// SPDX-License-Identifier: Apache-2.0
// The order of host, engine and device, on a driver that runs work as late, and as mixed, as it
// may.
#include <gmock/gmock.h>

#include <numeric>
#include <thread>

#include "kvcove/transport/cuda/device_fixture.h"

namespace kvcove::transport::cuda {
namespace {

using testing::HasSubstr;

// `count` runs of `bytes` from the ring's start on, apart from each other on the device.
std::vector<DeviceCopy> Runs(std::span<std::byte> ring, std::uint64_t count, std::uint64_t bytes) {
  std::vector<DeviceCopy> copies;
  for (std::uint64_t i = 0; i < count; ++i) {
    copies.push_back(
        {.host = ring.data() + i * bytes, .device = fake_base() + 2 * i * bytes, .bytes = bytes});
  }
  return copies;
}

void Fill(std::span<std::byte> memory, char value) {
  std::memset(memory.data(), value, memory.size());
}

bool All(const char* memory, std::uint64_t bytes, char value) {
  return std::all_of(memory, memory + bytes, [value](char each) { return each == value; });
}

// Small runs (a kernel) and large ones (copies), so that each rule is seen on both paths.
class OrderTest : public DeviceTest, public testing::WithParamInterface<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Paths, OrderTest, testing::Values(512, 8192));

TEST_P(OrderTest, ALoadWritesNothingBeforeTheStepThatStillReadsItsBlocks) {
  Open();
  const std::uint64_t bytes = GetParam();
  Fill(ring_, 'n');
  const auto copies = Runs(ring_, 8, bytes);
  for (int turn = 0; turn < 20; ++turn) {
    fake_manual(1);
    for (const DeviceCopy& copy : copies) std::memset(Device(copy.device - At(0)), 'o', bytes);
    fake_gate(engine_);
    for (const DeviceCopy& copy : copies) fake_fill(engine_, copy.device, 0, bytes);
    auto mark = device_->RecordStep(engine());
    ASSERT_TRUE(mark);
    const DeviceTicket ticket = Submit(DeviceWay::kLoad, copies, mark->get());
    (void)fake_run(kAll);
    for (const DeviceCopy& copy : copies) {
      ASSERT_TRUE(All(Device(copy.device - At(0)), bytes, 'o')) << "seed " << seed_;
    }
    EXPECT_FALSE(*device_->Reached(**mark));
    EXPECT_FALSE(*device_->Poll(ticket));
    fake_open(engine_);
    fake_manual(0);
    ASSERT_TRUE(Wait(ticket));
    for (const DeviceCopy& copy : copies) {
      ASSERT_TRUE(All(Device(copy.device - At(0)), bytes, 'n')) << "seed " << seed_;
    }
  }
}

TEST_P(OrderTest, ASaveReadsNothingBeforeItsMark) {
  Open();
  const std::uint64_t bytes = GetParam();
  const auto copies = Runs(ring_, 8, bytes);
  for (int turn = 0; turn < 20; ++turn) {
    for (const DeviceCopy& copy : copies) std::memset(Device(copy.device - At(0)), 'o', bytes);
    fake_manual(1);
    fake_gate(engine_);
    for (const DeviceCopy& copy : copies) fake_fill(engine_, copy.device, 'n', bytes);
    auto mark = device_->RecordStep(engine());
    ASSERT_TRUE(mark);
    const DeviceTicket ticket = Submit(DeviceWay::kSave, copies, mark->get());
    (void)fake_run(kAll);
    fake_open(engine_);
    fake_manual(0);
    ASSERT_TRUE(Wait(ticket));
    ASSERT_TRUE(All(reinterpret_cast<char*>(ring_.data()), 8 * bytes, 'n')) << "seed " << seed_;
  }
}

TEST_P(OrderTest, TheEnginesStreamWaitsForALoadOnTheDevice) {
  Open();
  const std::uint64_t bytes = GetParam();
  const auto copies = Runs(ring_, 8, bytes);
  for (int turn = 0; turn < 20; ++turn) {
    Fill(ring_, 'n');
    fake_manual(1);
    const DeviceTicket ticket = Submit(DeviceWay::kLoad, copies);
    ASSERT_TRUE(device_->StreamWait(engine(), ticket));
    // The forward pass, which reads what was loaded: here it overwrites it.
    for (const DeviceCopy& copy : copies) fake_fill(engine_, copy.device, 'f', bytes);
    fake_manual(0);
    ASSERT_TRUE(Wait(ticket));
    (void)fake_run(kAll);
    for (const DeviceCopy& copy : copies) {
      ASSERT_TRUE(All(Device(copy.device - At(0)), bytes, 'f')) << "seed " << seed_;
    }
  }
}

TEST_P(OrderTest, ASlotIsFilledAgainOnlyWhenItsBytesAreAway) {
  Open();
  const std::uint64_t bytes = GetParam();
  // Many slots' worth, so that each is used several times.
  std::iota(reinterpret_cast<std::uint8_t*>(ring_.data()),
            reinterpret_cast<std::uint8_t*>(ring_.data()) + kRing, std::uint8_t{0});
  for (std::uint64_t i = 0; i < kRing; i += 97) ring_[i] = static_cast<std::byte>(i / 97);
  const auto copies = Runs(ring_, kRing / bytes, bytes);
  const std::vector<std::byte> before(ring_.begin(), ring_.end());
  ASSERT_TRUE(Wait(Submit(DeviceWay::kLoad, copies)));
  Fill(ring_, 'x');
  ASSERT_TRUE(Wait(Submit(DeviceWay::kSave, copies)));
  EXPECT_TRUE(std::equal(before.begin(), before.end(), ring_.begin())) << "seed " << seed_;
}

TEST_P(OrderTest, ATicketIsOverOnlyWhenAllItsBytesHaveLanded) {
  Open();
  const std::uint64_t bytes = GetParam();
  for (int turn = 0; turn < 50; ++turn) {
    Fill(ring_, static_cast<char>('a' + turn % 20));
    // Mixed sizes: both paths in one ticket.
    std::vector<DeviceCopy> copies = Runs(ring_, 8, bytes);
    copies.push_back({.host = ring_.data() + (512 << 10), .device = At(16 << 20), .bytes = 256});
    copies.push_back({.host = ring_.data() + (600 << 10), .device = At(20 << 20), .bytes = 5000});
    ASSERT_TRUE(Wait(Submit(DeviceWay::kLoad, copies)));
    for (const DeviceCopy& copy : copies) {
      ASSERT_TRUE(All(Device(copy.device - At(0)), copy.bytes, static_cast<char>('a' + turn % 20)))
          << "seed " << seed_;
    }
    Fill(ring_, 'x');
    ASSERT_TRUE(Wait(Submit(DeviceWay::kSave, copies)));
    for (const DeviceCopy& copy : copies) {
      ASSERT_TRUE(All(reinterpret_cast<const char*>(copy.host), copy.bytes,
                      static_cast<char>('a' + turn % 20)))
          << "seed " << seed_;
    }
  }
}

TEST_P(OrderTest, ALateErrorFailsItsOwnTicketAlone) {
  Open();
  const std::uint64_t bytes = GetParam();
  Fill(ring_, 'n');
  const auto copies = Runs(ring_, 8, bytes);
  std::vector<DeviceCopy> others = copies;
  for (DeviceCopy& copy : others) copy.device += 8 << 20;
  fake_manual(1);
  const DeviceTicket first = Submit(DeviceWay::kLoad, copies);
  fake_fail_after(0);
  (void)fake_run(kAll);
  fake_fail_after(-1);
  const DeviceTicket second = Submit(DeviceWay::kLoad, others);
  (void)fake_run(kAll);
  const Status failed = Wait(first);
  ASSERT_FALSE(failed);
  EXPECT_THAT(failed.error().detail, HasSubstr("answers 700 to copies that were under way"));
  EXPECT_TRUE(Wait(second));
  for (const DeviceCopy& copy : others) EXPECT_TRUE(All(Device(copy.device - At(0)), bytes, 'n'));
}

TEST_P(OrderTest, WhatCannotBeEnqueuedFailsTheTicket) {
  Open();
  const auto copies = Runs(ring_, 8, GetParam());
  fake_fail(1);
  const DeviceTicket ticket = Submit(DeviceWay::kLoad, copies);
  fake_fail(0);
  const Status failed = Wait(ticket);
  ASSERT_FALSE(failed);
  EXPECT_THAT(failed.error().detail, HasSubstr("answers 700"));
  EXPECT_TRUE(Wait(Submit(DeviceWay::kLoad, copies)));  // its lists and slots are free again
}

// The host's memory is the ticket's until the device is done with it, also if no event tells.
TEST_P(OrderTest, ATicketWithoutAnEventEndsWithItsStreams) {
  Open();
  Fill(ring_, 'o');
  const auto copies = Runs(ring_, 8, GetParam());
  fake_manual(1);
  fake_no_events(1);
  const DeviceTicket ticket = Submit(DeviceWay::kSave, copies);
  fake_no_events(0);
  const auto over = device_->Poll(ticket);
  ASSERT_TRUE(over && !*over) << "its copies have not run";
  (void)fake_run(kAll);
  EXPECT_FALSE(device_->Poll(ticket));
  EXPECT_FALSE(All(reinterpret_cast<char*>(ring_.data()), 1, 'o'));
}

TEST_P(OrderTest, ATicketWhoseStreamsCannotBeOrderedEndsWithBoth) {
  Open();
  for (int turn = 0; turn < 20; ++turn) {
    std::vector<DeviceCopy> copies = Runs(ring_, 8, GetParam());
    copies.push_back({.host = ring_.data() + (512 << 10), .device = At(16 << 20), .bytes = 256});
    copies.push_back({.host = ring_.data() + (600 << 10), .device = At(20 << 20), .bytes = 5000});
    fake_manual(1);
    fake_no_waits(1);
    const DeviceTicket ticket = Submit(DeviceWay::kSave, copies);
    fake_no_waits(0);
    Result<bool> over = device_->Poll(ticket);
    while (over && !*over) {
      ASSERT_GT(fake_run(1), 0U);
      over = device_->Poll(ticket);
    }
    EXPECT_FALSE(over);
    ASSERT_EQ(fake_run(kAll), 0U) << "a stream still copies; seed " << seed_;
  }
}

TEST_F(DeviceTest, TenThousandDescriptorsAreFewCalls) {
  Open({.threshold = 0});
  const auto large = Runs(ring_, 10'000, 64);
  fake_manual(1);
  std::int64_t least = kSecond;
  for (int turn = 0; turn < 20; ++turn) {
    const std::uint64_t before = fake_counts().batches;
    const std::int64_t start = SystemClock::Instance().NowNs();
    const DeviceTicket ticket = Submit(DeviceWay::kLoad, large);
    least = std::min(least, SystemClock::Instance().NowNs() - start);
    EXPECT_EQ(fake_counts().batches, before + 1);
    (void)fake_run(kAll);
    EXPECT_TRUE(Wait(ticket));
  }
  std::printf("10,000 descriptors: least %.1f us\n", static_cast<double>(least) / 1e3);
}

TEST_F(DeviceTest, ALoadIsNotDelayedByPendingSaves) {
  Open();
  const auto copies = Runs(ring_, 8, 8192);
  fake_manual(1);
  fake_by_priority(1);
  const DeviceTicket alone = Submit(DeviceWay::kLoad, copies);
  const std::uint64_t operations = fake_run(kAll);
  EXPECT_TRUE(*device_->Poll(alone));
  std::vector<DeviceTicket> saves;
  for (int i = 0; i < 100; ++i) saves.push_back(Submit(DeviceWay::kSave, copies));
  const DeviceTicket load = Submit(DeviceWay::kLoad, copies);
  (void)fake_run(operations);
  EXPECT_TRUE(*device_->Poll(load)) << "it took more of the device's steps than alone";
  EXPECT_FALSE(*device_->Poll(saves[0]));
  fake_manual(0);
  for (const DeviceTicket save : saves) EXPECT_TRUE(Wait(save));
}

TEST_F(DeviceTest, AnUnfinishedStepHoldsUpNoOtherStreamsWork) {
  Open();
  // A forward pass on the default stream, which blocks all streams that are not our kind.
  fake_gate(nullptr);
  const auto copies = Runs(ring_, 8, 512);
  EXPECT_TRUE(Wait(Submit(DeviceWay::kSave, copies)));
  EXPECT_TRUE(Wait(Submit(DeviceWay::kLoad, copies)));
  fake_open(nullptr);
}

TEST_F(DeviceTest, TheDefaultStreamCanBeMarked) {
  Open();
  fake_gate(nullptr);
  auto mark = device_->RecordStep(0);
  ASSERT_TRUE(mark);
  EXPECT_FALSE(*device_->Reached(**mark));
  fake_open(nullptr);
  (void)fake_run(kAll);
  EXPECT_TRUE(*device_->Reached(**mark));
}

TEST_F(DeviceTest, ACaptureOfAGraphIsNotDisturbed) {
  Open();
  const auto copies = Runs(ring_, 4, 512);
  fake_capture(engine_, 1);
  EXPECT_TRUE(Wait(Submit(DeviceWay::kLoad, copies)));
  const auto mark = device_->RecordStep(engine());
  ASSERT_FALSE(mark);
  EXPECT_EQ(mark.error().code, Code::kUnavailable);
  fake_capture(engine_, 0);
}

TEST_F(DeviceTest, AnOldDriverCopiesRunByRun) {
  for (const int batch : {0, 1, 2}) {
    fake_reset(seed_);
    fake_features(batch, /*kernels=*/0, kAll, kAll);
    Open();
    EXPECT_EQ(device_->threshold(), 0);
    Fill(ring_, 'n');
    const auto copies = Runs(ring_, 8, 512);
    ASSERT_TRUE(Wait(Submit(DeviceWay::kLoad, copies)));
    for (const DeviceCopy& copy : copies) EXPECT_TRUE(All(Device(copy.device - At(0)), 512, 'n'));
    EXPECT_EQ(fake_counts().copies, 8);
    EXPECT_EQ(fake_counts().batches, batch == 0 ? 0 : 1);
    TearDown();
  }
}

TEST_F(DeviceTest, WithoutRoomOnTheDeviceAKernelOfFewBlocksReadsTheHost) {
  fake_features(2, 1, /*free_bytes=*/0, kAll);
  Open({.mapped_bytes = 64 << 10});
  EXPECT_THAT(device_->Describe(), HasSubstr("over the link"));
  for (const DeviceWay way : {DeviceWay::kLoad, DeviceWay::kSave}) {
    Fill(ring_, 'n');
    const auto copies = Runs(ring_, 200, 2048);
    for (const DeviceCopy& copy : copies) std::memset(Device(copy.device - At(0)), 'n', 2048);
    moved_ = {};
    ASSERT_TRUE(Wait(Submit(way, copies)));
    EXPECT_EQ(moved_[static_cast<std::size_t>(DevicePath::kMapped)], 200 * 2048);
    for (const DeviceCopy& copy : copies) {
      EXPECT_TRUE(All(Device(copy.device - At(0)), 2048, 'n'));
      EXPECT_TRUE(All(reinterpret_cast<const char*>(copy.host), 2048, 'n'));
    }
  }
  EXPECT_LE(fake_counts().most_grid, 16);
  EXPECT_LE(fake_counts().most_launch_bytes, (64 << 10) + 2048);
}

TEST_F(DeviceTest, WithoutRoomATicketIsOverOnlyWhenBothOfItsPathsAre) {
  fake_features(2, 1, /*free_bytes=*/0, kAll);
  Open();
  for (int turn = 0; turn < 100; ++turn) {
    const char value = static_cast<char>('a' + turn % 20);
    const DeviceWay way = turn % 2 == 0 ? DeviceWay::kLoad : DeviceWay::kSave;
    Fill(ring_, way == DeviceWay::kLoad ? value : 'x');
    const DeviceCopy copies[] = {{ring_.data(), At(0), 9000},
                                 {ring_.data() + 20000, At(40000), 100},
                                 {ring_.data() + 30000, At(60000), 9000}};
    for (const DeviceCopy& copy : copies) {
      std::memset(Device(copy.device - At(0)), way == DeviceWay::kLoad ? 'x' : value, copy.bytes);
    }
    ASSERT_TRUE(Wait(Submit(way, copies)));
    for (const DeviceCopy& copy : copies) {
      ASSERT_TRUE(All(Device(copy.device - At(0)), copy.bytes, value)) << "seed " << seed_;
      ASSERT_TRUE(All(reinterpret_cast<const char*>(copy.host), copy.bytes, value))
          << "seed " << seed_;
    }
  }
}

TEST_F(DeviceTest, WhereNoListOfRunsIsFreeRunsGoByThemselves) {
  Open({.run_blocks = 1});
  fake_manual(1);
  const auto copies = Runs(ring_, 64, 512);
  std::vector<DeviceTicket> tickets;
  for (int i = 0; i < 3; ++i) tickets.push_back(Submit(DeviceWay::kLoad, copies));
  EXPECT_EQ(moved_[static_cast<std::size_t>(DevicePath::kStaged)], 64 * 512);
  EXPECT_EQ(moved_[static_cast<std::size_t>(DevicePath::kBatched)], 2 * 64 * 512);
  fake_manual(0);
  for (const DeviceTicket ticket : tickets) EXPECT_TRUE(Wait(ticket));
}

TEST_F(DeviceTest, ASegmentIsRegisteredAndUnknownAgain) {
  Open();
  const std::unique_ptr<std::byte[]> segment(new std::byte[1 << 20]);
  {
    auto registered = device_->RegisterHost({segment.get(), 1 << 20});
    ASSERT_TRUE(registered);
    const DeviceCopy copy{.host = segment.get() + 5, .device = At(0), .bytes = 9000};
    EXPECT_TRUE(Wait(Submit(DeviceWay::kSave, {&copy, 1})));
  }
  EXPECT_EQ(fake_counts().violations, 0) << fake_violation();
  fake_features(2, 1, kAll, /*pinnable_bytes=*/0);
  const auto refused = device_->RegisterHost({segment.get(), 1 << 20});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kLimit);
  EXPECT_THAT(refused.error().detail, HasSubstr("memlock"));
}

// As a segment is pinned: piece by piece. Runs by themselves, and runs by a kernel on each path.
TEST_F(DeviceTest, RunsGoOnFromOneRegisteredPieceToTheNext) {
  constexpr std::uint64_t kPiece = 64 << 10;
  const std::unique_ptr<std::byte[]> segment(new std::byte[4 * kPiece]);
  for (const std::uint64_t slot_bytes : {0, 64 << 10}) {
    for (const std::uint64_t threshold : {0, 4096, 1 << 20}) {
      fake_reset(seed_);
      Open({.threshold = threshold, .slot_bytes = slot_bytes});
      std::vector<std::unique_ptr<Registered>> pieces;
      for (int i = 0; i < 4; ++i) {
        auto piece = device_->RegisterHost({segment.get() + i * kPiece, kPiece});
        ASSERT_TRUE(piece);
        pieces.push_back(std::move(*piece));
      }
      for (std::uint64_t i = 0; i < 4 * kPiece; ++i) {
        segment[i] = static_cast<std::byte>(i / 251);
      }
      // Objects of 1000 bytes that touch; every other one goes on on the device, too.
      std::vector<DeviceCopy> copies;
      std::uint64_t device = 0;
      for (std::uint64_t at = 300; at + 1000 <= 4 * kPiece; at += 1000) {
        copies.push_back({.host = segment.get() + at, .device = At(device), .bytes = 1000});
        device += at % 2000 == 300 ? 1000 : 1100;
      }
      ASSERT_TRUE(Wait(Submit(DeviceWay::kLoad, copies)));
      for (const DeviceCopy& copy : copies) {
        ASSERT_EQ(std::memcmp(Device(copy.device - At(0)), copy.host, copy.bytes), 0);
      }
      const std::vector<std::byte> was(segment.get(), segment.get() + 4 * kPiece);
      std::memset(segment.get(), 0, 4 * kPiece);
      ASSERT_TRUE(Wait(Submit(DeviceWay::kSave, copies)));
      for (const DeviceCopy& copy : copies) {
        ASSERT_EQ(std::memcmp(copy.host, &was[copy.host - segment.get()], copy.bytes), 0);
      }
      EXPECT_EQ(fake_counts().violations, 0) << fake_violation() << "; seed " << seed_;
      ASSERT_TRUE(device_->Close(SystemClock::Instance().NowNs() + 60 * kSecond));
      pieces.clear();
      device_.reset();
    }
  }
}

TEST_F(DeviceTest, TheStartMeasuresWhichPathIsFaster) {
  auto device = cuda::Device::Open(FakeDriver(), 1, {});
  ASSERT_TRUE(device) << device.error().detail;
  device_ = std::move(*device);
  EXPECT_GE(device_->threshold(), 4096);
  EXPECT_LE(device_->threshold(), 256 << 10);
  EXPECT_THAT(device_->Describe(), HasSubstr("GPU 1: runs below"));
  EXPECT_THAT(device_->Describe(), HasSubstr("measured"));
}

TEST_F(DeviceTest, CloseEndsByItsDeadlineAndKeepsWhatTheDeviceMayTouch) {
  Open();
  fake_manual(1);
  fake_gate(engine_);
  auto mark = device_->RecordStep(engine());
  ASSERT_TRUE(mark);
  (void)Submit(DeviceWay::kLoad, Runs(ring_, 8, 512), mark->get());
  EXPECT_FALSE(device_->Close(SystemClock::Instance().NowNs() + kMillisecond));
  mark->reset();
  device_.reset();
  fake_open(engine_);
  (void)fake_run(kAll);
  EXPECT_EQ(fake_counts().violations, 0) << fake_violation();
  fake_reset(seed_);
}

TEST_F(DeviceTest, AStartThatFailsKeepsNothing) {
  fake_no_events(1);
  const auto device = cuda::Device::Open(FakeDriver(), 1, {.threshold = 4096, .load_slots = 2});
  ASSERT_FALSE(device);
  EXPECT_THAT(device.error().detail, HasSubstr("an event"));
}

TEST_F(DeviceTest, AProbeThatTakesTooLongKeepsNoListOfRuns) {
  fake_manual(1);
  std::thread late([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // a probe has 200
    fake_manual(0);
  });
  auto device = cuda::Device::Open(FakeDriver(), 1, {.run_blocks = 4});
  late.join();
  ASSERT_TRUE(device);
  device_ = std::move(*device);
  const auto ring = device_->AllocateHost(kRing);
  const auto copies = Runs(*ring, 64, 512);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(Wait(Submit(DeviceWay::kLoad, copies)));
  EXPECT_EQ(moved_[static_cast<std::size_t>(DevicePath::kStaged)], 4 * 64 * 512);
}

TEST_F(DeviceTest, AGpuThatIsNotThereIsRefused) {
  const auto device = cuda::Device::Open(FakeDriver(), 0, {});
  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().code, Code::kUnavailable);
  std::string why;
  EXPECT_EQ(Driver::Open("/nothing/there.so", why), nullptr);
  EXPECT_THAT(why, HasSubstr("there.so"));
}

}  // namespace
}  // namespace kvcove::transport::cuda
