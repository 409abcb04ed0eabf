// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/device_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>

#include "kvcove/base/log.h"
#include "kvcove/transport/fake_device.h"

namespace kvcove::transport {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::uint64_t kRing = 64 << 10;

class DeviceQueueTest : public testing::Test {
 protected:
  void SetUp() override { Open({.ring_bytes = kRing, .thread = false, .poison = true}); }
  void Open(const DeviceQueueOptions& options) {
    auto device = std::make_unique<FakeDevice>();
    device_ = device.get();
    auto queue = DeviceQueue::Open(std::move(device), options, clock_);
    ASSERT_TRUE(queue);
    queue_ = std::move(*queue);
  }
  std::shared_ptr<const HostMemory> Lend(DeviceWay way, std::uint64_t bytes) {
    auto loan = queue_->Lend(way, bytes, clock_.NowNs());
    return loan ? *loan : nullptr;
  }
  // A load of `bytes` times `value` to the start of the device's memory.
  Status Load(char value, std::uint64_t bytes, DeviceQueue::Owner owner, const DeviceMark* after,
              DeviceQueue::OnDone done) {
    auto loan = Lend(DeviceWay::kLoad, bytes);
    if (loan == nullptr) return Fail(Code::kLimit, "no loan");
    std::byte* const at = loan->extents()[0].data();
    std::memset(at, value, bytes);
    const DeviceCopy copy{.host = at, .device = Address(), .bytes = bytes};
    const auto ticket =
        queue_->Submit({.way = DeviceWay::kLoad, .copies = {&copy, 1}, .after = after},
                       std::move(loan), owner, std::move(done));
    if (!ticket) return std::unexpected<Error>(ticket.error());
    return {};
  }
  std::uintptr_t Address() const {
    return reinterpret_cast<std::uintptr_t>(memory_.data());  // NOLINT
  }

  FakeClock clock_;
  std::vector<char> memory_ = std::vector<char>(4 * kRing, 'o');
  FakeDevice* device_ = nullptr;
  std::unique_ptr<DeviceQueue> queue_;
};

TEST_F(DeviceQueueTest, AllOfARingIsLentWhateverItsSizeIs) {
  Open({.ring_bytes = 1000, .thread = false});
  EXPECT_TRUE(Lend(DeviceWay::kLoad, 1000));
}

TEST_F(DeviceQueueTest, ALoadsPieceComesBackWhenItsTicketIsOver) {
  device_->Hold(DeviceWay::kLoad, true);
  std::vector<std::string> told;
  ASSERT_TRUE(Load('n', kRing, this, nullptr, [&](DeviceDone& done) {
    told.emplace_back(done.status ? "well" : "failed");
    EXPECT_EQ(done.moved[0], kRing);
    EXPECT_EQ(done.ns, kMillisecond);
    EXPECT_EQ(queue_->stats().lent_bytes, 0);
  }));
  EXPECT_EQ(queue_->stats().lent_bytes, kRing);
  EXPECT_EQ(Lend(DeviceWay::kLoad, 1), nullptr);
  EXPECT_NE(Lend(DeviceWay::kSave, 1), nullptr);  // each way has its own
  EXPECT_FALSE(queue_->Advance());
  clock_.AdvanceNs(kMillisecond);
  device_->Hold(DeviceWay::kLoad, false);
  EXPECT_TRUE(queue_->Advance());
  EXPECT_THAT(told, ElementsAre("well"));
  EXPECT_EQ(memory_[0], 'n');  // and not what the piece was overwritten with afterwards
  EXPECT_EQ(memory_[kRing - 1], 'n');
  EXPECT_NE(Lend(DeviceWay::kLoad, kRing), nullptr);
  EXPECT_EQ(queue_->stats().busy_ns[0], kMillisecond);
}

TEST_F(DeviceQueueTest, ASavesBytesStayUntilTheyAreLetGo) {
  std::shared_ptr<const HostMemory> kept;
  auto loan = Lend(DeviceWay::kSave, 100);
  const DeviceCopy copy{.host = loan->extents()[0].data(), .device = Address(), .bytes = 100};
  ASSERT_TRUE(queue_->Submit({.way = DeviceWay::kSave, .copies = {&copy, 1}}, std::move(loan), this,
                             [&](DeviceDone& done) { kept = std::move(done.host); }));
  EXPECT_TRUE(queue_->Advance());
  ASSERT_NE(kept, nullptr);
  EXPECT_EQ(static_cast<char>(kept->extents()[0][99]), 'o');
  EXPECT_GT(queue_->stats().lent_bytes, 0);
  kept.reset();
  EXPECT_EQ(queue_->stats().lent_bytes, 0);
}

TEST_F(DeviceQueueTest, ALateErrorIsToldToItsTicketAndToNoOther) {
  device_->FailAfter(1);
  std::vector<bool> well;
  const auto note = [&](DeviceDone& done) { well.push_back(bool(done.status)); };
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(Load('n', 64, this, nullptr, note));
  (void)queue_->Advance();
  device_->FailAfter(-1);
  ASSERT_TRUE(Load('n', 64, this, nullptr, note));
  (void)queue_->Advance();
  EXPECT_THAT(well, ElementsAre(true, false, true));
}

TEST_F(DeviceQueueTest, MarksAreToldInOrderAndBeforeWhatFollowsThem) {
  std::vector<int> told;
  device_->HoldSteps();
  for (int i = 0; i < 3; ++i) {
    auto mark = queue_->RecordStep(0);
    ASSERT_TRUE(mark);
    queue_->WhenReached(*mark, this, [&told, i](const Status& status) {
      EXPECT_TRUE(status);
      told.push_back(i);
    });
  }
  EXPECT_FALSE(queue_->Advance());
  device_->Reach();
  EXPECT_TRUE(queue_->Advance());
  EXPECT_THAT(told, ElementsAre(0, 1, 2));
}

TEST_F(DeviceQueueTest, ALoadBehindAMarkWaitsForIt) {
  device_->HoldSteps();
  auto mark = queue_->RecordStep(0);
  ASSERT_TRUE(mark);
  bool over = false;
  ASSERT_TRUE(Load('n', 64, this, mark->get(), [&](DeviceDone&) { over = true; }));
  (void)queue_->Advance();
  EXPECT_FALSE(over);
  EXPECT_EQ(memory_[0], 'o');
  device_->Reach();
  (void)queue_->Advance();
  EXPECT_TRUE(over);
  EXPECT_EQ(memory_[0], 'n');
}

TEST_F(DeviceQueueTest, WhatIsForgottenIsNotCalledAndItsMemoryStaysUntilTheDeviceIsDone) {
  device_->Hold(DeviceWay::kLoad, true);
  device_->HoldSteps();
  int calls = 0;
  const int other = 0;
  ASSERT_TRUE(Load('n', 64, this, nullptr, [&](DeviceDone&) { ++calls; }));
  ASSERT_TRUE(Load('m', 64, &other, nullptr, [&](DeviceDone&) { calls += 10; }));
  auto mark = queue_->RecordStep(0);
  queue_->WhenReached(*mark, this, [&](const Status&) { ++calls; });
  queue_->Forget(this);
  device_->Reach();
  EXPECT_FALSE(queue_->Advance());
  EXPECT_GT(queue_->stats().lent_bytes, 0);
  device_->Hold(DeviceWay::kLoad, false);
  (void)queue_->Advance();
  EXPECT_EQ(calls, 10);
  EXPECT_EQ(queue_->stats().lent_bytes, 0);
}

TEST_F(DeviceQueueTest, AValueLargerThanTheRingIsPinnedByItself) {
  auto large = Lend(DeviceWay::kLoad, 3 * kRing);
  ASSERT_NE(large, nullptr);
  EXPECT_EQ(large->extents()[0].size(), 3 * kRing);
  EXPECT_EQ(queue_->stats().pinned_bytes, 5 * kRing);
  EXPECT_EQ(Lend(DeviceWay::kLoad, 3 * kRing), nullptr);  // one at a time
  large.reset();
  EXPECT_NE(Lend(DeviceWay::kLoad, 3 * kRing), nullptr);
}

TEST_F(DeviceQueueTest, TransfersAreBounded) {
  Open({.ring_bytes = kRing, .most_tickets = 3, .thread = false});
  device_->Hold(DeviceWay::kLoad, true);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Load('n', 64, this, nullptr, nullptr));
  const Status refused = Load('n', 64, this, nullptr, nullptr);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kLimit);
  EXPECT_EQ(queue_->stats().tickets, 3);
  device_->Hold(DeviceWay::kLoad, false);
  (void)queue_->Advance();
  EXPECT_EQ(queue_->stats().tickets, 0);
}

// With its thread, on real time.
TEST(DeviceQueueThreadTest, MovesBytesOfAnyHostMemoryAndTellsWhenItIsLate) {
  SetLogLevel(LogLevel::kOff);
  const Clock& clock = SystemClock::Instance();
  auto device = std::make_unique<FakeDevice>();
  FakeDevice* const fake = device.get();
  auto queue = DeviceQueue::Open(std::move(device), {.ring_bytes = kRing, .poison = true}, clock);
  ASSERT_TRUE(queue);
  std::vector<char> on_device(5 * kRing, 'o');
  std::vector<char> host(5 * kRing);
  for (std::size_t i = 0; i < host.size(); ++i) host[i] = static_cast<char>(i * 7 / 5);
  const auto address = reinterpret_cast<std::uintptr_t>(on_device.data());
  auto* const bytes = reinterpret_cast<std::byte*>(host.data());
  const auto soon = [&] { return clock.NowNs() + 20 * kSecond; };
  ASSERT_TRUE((*queue)->Move(DeviceWay::kLoad, bytes, address, host.size(), soon()));
  EXPECT_EQ(on_device, host);
  const std::vector<char> before = host;
  std::fill(host.begin(), host.end(), 'x');
  ASSERT_TRUE((*queue)->Move(DeviceWay::kSave, bytes, address, host.size(), soon()));
  EXPECT_EQ(host, before);
  fake->Hold(DeviceWay::kLoad, true);
  const Status late =
      (*queue)->Move(DeviceWay::kLoad, bytes, address, 64, clock.NowNs() + kMillisecond);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, Code::kBufferBusy);
  fake->Hold(DeviceWay::kLoad, false);
  queue->reset();  // until then the device may write what was late
  SetLogLevel(LogLevel::kWarn);
}

TEST(DeviceQueueThreadTest, CallersOfBothWaysAndForgettersMeet) {
  const Clock& clock = SystemClock::Instance();
  auto device = std::make_unique<FakeDevice>();
  auto opened = DeviceQueue::Open(std::move(device), {.ring_bytes = kRing, .poison = true}, clock);
  ASSERT_TRUE(opened);
  DeviceQueue& queue = **opened;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<char> memory(8192, static_cast<char>('a' + t));
      std::vector<char> back(8192);
      const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
      for (int i = 0; i < 100; ++i) {
        auto loan = queue.Lend(DeviceWay::kSave, 8192, clock.NowNs() + 20 * kSecond);
        if (!loan) continue;
        const DeviceCopy copy{
            .host = (*loan)->extents()[0].data(), .device = address, .bytes = 8192};
        std::atomic<bool> told{false};
        const bool forget = i % 5 == 4;
        (void)queue.Submit({.way = DeviceWay::kSave, .copies = {&copy, 1}}, std::move(*loan), &told,
                           [&](DeviceDone& done) {
                             if (!done.status || std::memcmp(done.host->extents()[0].data(),
                                                             memory.data(), 8192) != 0) {
                               ++wrong;
                             }
                             done.host.reset();
                             told = true;
                           });
        if (forget) queue.Forget(&told);
        while (!forget && !told) std::this_thread::yield();
      }
      // The device may still read memory whose saves were forgotten.
      (void)queue.Move(DeviceWay::kSave, reinterpret_cast<std::byte*>(back.data()), address, 8192,
                       clock.NowNs() + 20 * kSecond);
      while (queue.stats().tickets > 0) std::this_thread::yield();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// A reservation in a segment, say: another process would get it, and the device would write there.
TEST_F(DeviceQueueTest, WhatAHangingDeviceMayStillWriteIsNeverGivenBack) {
  struct Watched final : HostMemory {
    explicit Watched(bool& the_given) : given(the_given) {}
    ~Watched() override { given = true; }
    std::span<const std::span<std::byte>> extents() const override { return {}; }
    bool& given;
  };
  static bool given = false;  // it outlives this test, as what is kept does
  device_->Hold(DeviceWay::kSave, true);
  device_->Hang();
  const DeviceCopy copy{.host = nullptr, .device = Address(), .bytes = 0};
  bool done = false;
  ASSERT_TRUE(queue_->Submit({.way = DeviceWay::kSave, .copies = {&copy, 1}},
                             std::make_shared<Watched>(given), this,
                             [&](DeviceDone&) { done = true; }));
  SetLogLevel(LogLevel::kOff);
  queue_.reset();
  SetLogLevel(LogLevel::kWarn);
  EXPECT_FALSE(given);
  EXPECT_FALSE(done);
}

}  // namespace
}  // namespace kvcove::transport
