// SPDX-License-Identifier: Apache-2.0
// A GPU on the fake driver, with an engine's stream and a ring: what the device's tests share.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "kvcove/base/random.h"
#include "kvcove/base/text.h"
#include "kvcove/transport/cuda/device.h"
#include "kvcove/transport/cuda/fake/fake_driver.h"

namespace kvcove::transport::cuda {

inline constexpr std::uint64_t kAll = ~std::uint64_t{0};

inline const Driver& FakeDriver() {
  std::string why;
  static const Driver* const driver = Driver::Open("libkvcove_fake_cuda.so", why);
  if (driver == nullptr) std::abort();
  return *driver;
}

class DeviceTest : public testing::Test {
 protected:
  static constexpr std::uint64_t kRing = 1 << 20;

  void SetUp() override {
    seed_ = SeedOf();
    fake_reset(seed_);
    RecordProperty("seed", std::to_string(seed_));
  }
  void TearDown() override {
    if (device_ != nullptr) {
      fake_manual(0);
      EXPECT_TRUE(device_->Close(SystemClock::Instance().NowNs() + 60 * kSecond));
    }
    device_.reset();
    const FakeCounts counts = fake_counts();
    EXPECT_EQ(counts.violations, 0) << fake_violation() << "; seed " << seed_;
    EXPECT_EQ(counts.events, 0);
    EXPECT_EQ(counts.pinned_bytes, 0);
    EXPECT_EQ(counts.device_bytes, 0);
    EXPECT_EQ(counts.retained, 0);
  }
  // $KVCOVE_SEED repeats a run.
  static std::uint64_t SeedOf() {
    const char* seed = std::getenv("KVCOVE_SEED");
    return seed == nullptr ? RandomU64() % 1'000'000 : LeadingNumber(seed);
  }

  void Open(DeviceOptions options = {}) {
    if (options.threshold == DeviceOptions::kProbe) options.threshold = 4096;
    options.slot_bytes = options.slot_bytes == 0 ? 0 : 64 << 10;
    options.load_slots = 2;  // so few that transfers wait for them
    options.save_slots = 1;
    options.block_runs = 256;
    auto device = Device::Open(FakeDriver(), 1, options);
    ASSERT_TRUE(device) << device.error().detail;
    device_ = std::move(*device);
    auto ring = device_->AllocateHost(kRing);
    ASSERT_TRUE(ring);
    ring_ = *ring;
    engine_ = fake_stream(/*non_blocking=*/0);
  }
  StreamHandle engine() const { return reinterpret_cast<StreamHandle>(engine_); }
  static char* Device(std::uint64_t offset) {
    return static_cast<char*>(fake_shadow(fake_base() + offset));
  }
  static std::uintptr_t At(std::uint64_t offset) { return fake_base() + offset; }

  DeviceTicket Submit(DeviceWay way, std::span<const DeviceCopy> copies,
                      const DeviceMark* after = nullptr) {
    const auto ticket = device_->Submit({.way = way, .copies = copies, .after = after}, moved_);
    EXPECT_TRUE(ticket);
    return ticket ? *ticket : 0;
  }
  Status Wait(DeviceTicket ticket) {
    while (true) {
      const auto over = device_->Poll(ticket);
      if (!over) return std::unexpected<Error>(over.error());
      if (*over) return {};
    }
  }

  std::uint64_t seed_ = 0;
  std::unique_ptr<cuda::Device> device_;
  std::span<std::byte> ring_;
  void* engine_ = nullptr;
  DeviceBytes moved_{};
};

}  // namespace kvcove::transport::cuda
