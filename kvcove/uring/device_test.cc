// SPDX-License-Identifier: Apache-2.0
// Both backends on a real file. A file system without O_DIRECT, and a kernel that forbids io_uring,
// are named in the output instead of failing.
#include "kvcove/disklog/device.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "kvcove/base/clock.h"
#include "kvcove/disklog/aligned.h"
#include "kvcove/disklog/log_fixture.h"
#include "kvcove/uring/uring.h"

namespace kvcove::disklog {
namespace {

constexpr std::uint64_t kFileBytes = kZonesStart + (12 * kSmallZone);

class DeviceTest : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    uring::UseUring();
    std::string name = testing::TempDir() + "/kvcove-device-XXXXXX";
    const int fd = mkstemp(name.data());
    ASSERT_GE(fd, 0);
    ASSERT_EQ(ftruncate(fd, kFileBytes), 0);
    close(fd);
    path_ = name;
    options_.backend = GetParam();
    auto device = OpenDevice(path_, options_);
    if (!device && device.error().code == Code::kInvalid) {
      options_.direct = false;
      device = OpenDevice(path_, options_);
    }
    if (!device && GetParam() == Backend::kUring) {
      GTEST_SKIP() << device.error().ToString();
    }
    ASSERT_TRUE(device) << device.error().ToString();
    device_ = *std::move(device);
  }
  void TearDown() override {
    device_.reset();
    unlink(path_.c_str());
  }

  std::string path_;
  FileDeviceOptions options_;
  std::unique_ptr<Device> device_;
};

TEST_P(DeviceTest, ManyOperationsAtOnceComeBackRight) {
  constexpr int kCount = 150;  // more than the kernel takes at once
  std::vector<AlignedBuffer> buffers;
  int done = 0;
  for (int i = 0; i < kCount; ++i) {
    buffers.emplace_back(kBlockBytes);
    std::memset(buffers[i].span().data(), i + 1, kBlockBytes);
    device_->Write(static_cast<std::uint64_t>(i) * kBlockBytes, buffers[i].span(), [&](int error) {
      EXPECT_EQ(error, 0);
      ++done;
    });
  }
  while (done < kCount) device_->Poll(kSecond);
  EXPECT_EQ(Await(*device_, [&](Device::Done d) { device_->Sync(std::move(d)); }), 0);
  AlignedBuffer all(kCount * kBlockBytes);
  EXPECT_EQ(Await(*device_, [&](Device::Done d) { device_->Read(0, all.span(), std::move(d)); }),
            0);
  for (int i = 0; i < kCount; ++i) {
    EXPECT_EQ(all.span()[i * kBlockBytes], static_cast<std::byte>(i + 1)) << i;
  }
  EXPECT_EQ(device_->in_flight(), 0U);
}

TEST_P(DeviceTest, RegisteredMemoryWorksLikeAnyOther) {
  AlignedBuffer arena(1 << 20);
  device_->Register(arena.span());
  std::memset(arena.span().data(), 7, arena.size());
  const auto from = arena.span().subspan(4096, 64 << 10);
  ASSERT_EQ(Await(*device_, [&](Device::Done d) { device_->Write(8192, from, std::move(d)); }), 0);
  AlignedBuffer back(64 << 10);
  ASSERT_EQ(
      Await(*device_, [&](Device::Done d) { device_->Read(8192, back.span(), std::move(d)); }), 0);
  EXPECT_EQ(std::memcmp(back.span().data(), from.data(), back.size()), 0);
}

TEST_P(DeviceTest, MemoryIsRegisteredPieceByPiece) {
  std::vector<AlignedBuffer> arenas;
  for (int i = 0; i < 3; ++i) {
    arenas.emplace_back(1 << 20);
    device_->Register(arenas.back().span());
  }
  for (int i = 0; i < 3; ++i) {
    const auto from = arenas[i].span().subspan(8192, 4096);
    std::memset(from.data(), 10 + i, from.size());
    ASSERT_EQ(Await(*device_, [&](Device::Done d) { device_->Write(0, from, std::move(d)); }), 0);
    const auto into = arenas[(i + 1) % 3].span().last(4096);
    ASSERT_EQ(Await(*device_, [&](Device::Done d) { device_->Read(0, into, std::move(d)); }), 0);
    EXPECT_EQ(into.front(), static_cast<std::byte>(10 + i));
    EXPECT_EQ(into.back(), static_cast<std::byte>(10 + i));
  }
}

TEST_P(DeviceTest, AReadBehindTheEndIsAnError) {
  AlignedBuffer buffer(kBlockBytes);
  EXPECT_EQ(Await(*device_,
                  [&](Device::Done d) { device_->Read(kFileBytes, buffer.span(), std::move(d)); }),
            EIO);
}

TEST_P(DeviceTest, AnotherThreadEndsTheWait) {
  const auto start = std::chrono::steady_clock::now();
  std::thread waker([&] { device_->Wake(); });
  device_->Poll(60 * kSecond);
  waker.join();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

TEST_P(DeviceTest, AFileInUseIsRefused) {
  const auto second = OpenDevice(path_, options_);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::kUnavailable);
  EXPECT_NE(second.error().detail.find("in use"), std::string::npos);
}

TEST_P(DeviceTest, ALogOnARealFileSurvivesItsProcess) {
  ASSERT_TRUE(
      Format(*device_, {.pool = kPool, .incarnation = kIncarnation, .zone_bytes = kSmallZone}));
  for (const bool second : {false, true}) {
    auto opened = Log::Open(*device_, SmallLog());
    ASSERT_TRUE(opened) << opened.error().ToString();
    Log& log = **opened;
    while (!log.recovered()) log.Poll(kSecond);
    const std::string value = ValueOf("k", 1, 5000);
    const std::span<const std::byte> bytes = std::as_bytes(std::span(value));
    bool done = false;
    if (!second) {
      ASSERT_TRUE(log.Put({.slot = kSlot,
                           .generation = kGeneration,
                           .version = 1,
                           .name = "n",
                           .key = "k",
                           .value = std::span(&bytes, 1)},
                          [](const Status& status) { EXPECT_TRUE(status); }));
      log.Sync([&](const Status& status) { done = status.has_value(); });
    } else {
      const auto found = log.Find(kSlot, kGeneration, "k");
      ASSERT_TRUE(found);
      const auto buffer = std::make_shared<AlignedBuffer>(found->buffer_bytes);
      log.Read(*found, {.slot = kSlot, .generation = kGeneration, .key = "k"}, buffer->span(),
               [&, buffer](const ReadResult& read) {
                 done = true;
                 EXPECT_EQ(buffer->view().substr(read.value_offset, read.value_bytes), value);
               });
    }
    while (!done || !log.idle()) {
      if (done && device_->in_flight() == 0) break;
      log.Poll(10 * kMillisecond);
    }
    device_.reset();
    auto again = OpenDevice(path_, options_);
    ASSERT_TRUE(again);
    opened->reset();
    device_ = *std::move(again);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, DeviceTest, testing::Values(Backend::kUring, Backend::kThreads),
                         [](const auto& backend) {
                           return backend.param == Backend::kUring ? "Uring" : "Threads";
                         });

}  // namespace
}  // namespace kvcove::disklog
