// SPDX-License-Identifier: Apache-2.0
// Formatting a path and looking at it, on a real file.
#include "kvcove/disklog/disk_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>

#include "kvcove/base/clock.h"
#include "kvcove/disklog/log_fixture.h"

namespace kvcove::disklog {
namespace {

constexpr std::uint64_t kBytes = kZonesStart + (12 * kSmallZone);

class DiskFileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "/kvcove-disk-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
    const Status formatted = FormatFile({.path = directory_, .size_bytes = kBytes}, Options());
    if (!formatted && formatted.error().code == Code::kInvalid) {
      GTEST_SKIP() << formatted.error().ToString();
    }
    ASSERT_TRUE(formatted) << formatted.error().ToString();
  }
  void TearDown() override {
    unlink(file().c_str());
    rmdir(directory_.c_str());
  }
  static FormatFileOptions Options(bool yes = false) {
    return {.format = {.pool = kPool, .incarnation = kIncarnation, .zone_bytes = kSmallZone},
            .yes = yes};
  }
  std::string file() const { return DiskFileOf(directory_); }

  // Some objects, sealed. Where the first one's record lies.
  std::uint64_t Fill() {
    auto device = OpenDevice(file());
    EXPECT_TRUE(device);
    std::uint64_t place = 0;
    {
      auto log = Log::Open(**device, SmallLog());
      EXPECT_TRUE(log);
      while (!(*log)->recovered()) (*log)->Poll(kSecond);
      for (int i = 0; i < 10; ++i) {
        const std::string key = "key-" + std::to_string(i);
        const std::string value = ValueOf(key, 1, 3000);
        const std::span<const std::byte> bytes = std::as_bytes(std::span(value));
        EXPECT_TRUE((*log)->Put({.slot = kSlot,
                                 .generation = kGeneration,
                                 .version = 1,
                                 .name = "space",
                                 .key = key,
                                 .value = std::span(&bytes, 1)},
                                [](const Status&) {}));
      }
      bool stopped = false;
      (*log)->Stop([&](const Status& status) {
        EXPECT_TRUE(status);
        stopped = true;
      });
      while (!stopped) (*log)->Poll(kMillisecond);
      const auto found = (*log)->Find(kSlot, kGeneration, "key-0");
      EXPECT_TRUE(found);
      place =
          kZonesStart + (found->place.zone * kSmallZone) + (found->place.offset_units * kUnitBytes);
    }
    return place;
  }

  std::string directory_;
};

TEST_F(DiskFileTest, ACheckedDiskIsSoundAndShown) {
  Fill();
  const auto checked = CheckFile(directory_);
  ASSERT_TRUE(checked) << checked.error().ToString();
  EXPECT_EQ(checked->records, 10U);
  EXPECT_EQ(checked->value_bytes, 30'000U);
  EXPECT_EQ(checked->damages, 0U);
  const auto shown = ShowFile(directory_);
  ASSERT_TRUE(shown) << shown.error().ToString();
  EXPECT_TRUE(shown->superblock.clean);
  ASSERT_EQ(shown->zones.size(), 12U);
  EXPECT_EQ(shown->zones[0].state, "sealed");
  EXPECT_EQ(shown->zones[0].records, 10U);
  EXPECT_EQ(shown->zones[1].state, "free");
}

TEST_F(DiskFileTest, ACheckNamesTheDamagedRecord) {
  const std::uint64_t place = Fill();
  {
    std::fstream disk(file(), std::ios::in | std::ios::out | std::ios::binary);
    disk.seekp(static_cast<std::streamoff>(place + 1000));
    disk.put('x').put('y');
  }
  const auto checked = CheckFile(file());
  ASSERT_TRUE(checked);
  EXPECT_EQ(checked->damages, 1U);
  ASSERT_EQ(checked->problems.size(), 1U);
  EXPECT_NE(checked->problems[0].find("key-0"), std::string::npos) << checked->problems[0];
}

TEST_F(DiskFileTest, WhatHoldsSomethingIsOnlyFormattedWithYes) {
  const Status refused = FormatFile({.path = directory_, .size_bytes = kBytes}, Options());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kDenied);
  EXPECT_NE(refused.error().detail.find("a disk of kvcove"), std::string::npos);
  EXPECT_TRUE(FormatFile({.path = directory_, .size_bytes = kBytes}, Options(true)));
}

TEST_F(DiskFileTest, AFileSystemAndAPartitionTableAreRecognised) {
  for (const auto& [offset, bytes, name] :
       {std::tuple(1080, std::string("\x53\xEF"), "ext"), std::tuple(0, std::string("XFSB"), "XFS"),
        std::tuple(510, std::string("\x55\xAA"), "partition"),
        std::tuple(9000, std::string("?"), "data")}) {
    {
      std::ofstream disk(file(), std::ios::binary | std::ios::trunc);
      disk.seekp(offset);
      disk << bytes << std::string(200 << 10, '\0');
    }
    const Status refused = FormatFile({.path = directory_, .size_bytes = kBytes}, Options());
    ASSERT_FALSE(refused) << name;
    EXPECT_EQ(refused.error().code, Code::kDenied);
    EXPECT_NE(refused.error().detail.find(name), std::string::npos) << refused.error().detail;
  }
}

TEST_F(DiskFileTest, ADiskInUseIsRefused) {
  const auto device = OpenDevice(file());
  ASSERT_TRUE(device);
  EXPECT_EQ(FormatFile({.path = directory_, .size_bytes = kBytes}, Options(true)).error().code,
            Code::kUnavailable);
  EXPECT_EQ(CheckFile(directory_).error().code, Code::kUnavailable);
}

TEST_F(DiskFileTest, TooSmallTooLargeAndMemoryAreRefused) {
  EXPECT_EQ(FormatFile({.path = directory_, .size_bytes = 1 << 20}, Options(true)).error().code,
            Code::kInvalid);
  EXPECT_EQ(FormatFile({.path = directory_, .size_bytes = 1ULL << 60}, Options(true)).error().code,
            Code::kNoSpace);
  EXPECT_EQ(FormatFile({.path = directory_}, Options(true)).error().code, Code::kInvalid);
  const Status memory =
      FormatFile({.path = "/dev/shm/kvcove-disk-test", .size_bytes = kBytes}, Options());
  ASSERT_FALSE(memory);
  EXPECT_NE(memory.error().detail.find("tmpfs"), std::string::npos) << memory.error().detail;
  EXPECT_NE(access("/dev/shm/kvcove-disk-test", F_OK), 0) << "it was left behind";
}

TEST_F(DiskFileTest, WhatIsNoDiskSaysHowToMakeOne) {
  ASSERT_EQ(truncate(file().c_str(), 0), 0);
  ASSERT_EQ(truncate(file().c_str(), kBytes), 0);
  const auto shown = ShowFile(directory_);
  ASSERT_FALSE(shown);
  EXPECT_NE(shown.error().detail.find("kvcove disk format"), std::string::npos);
}

TEST_F(DiskFileTest, AShrunkDiskIsRefused) {
  ASSERT_EQ(truncate(file().c_str(), kBytes - kSmallZone), 0);
  const auto shown = ShowFile(directory_);
  ASSERT_FALSE(shown);
  EXPECT_NE(shown.error().detail.find("formatted for"), std::string::npos);
}

TEST(DiskSpecTest, PathAndSize) {
  EXPECT_EQ(ParseDiskSpec("/mnt/a:2GiB")->path, "/mnt/a");
  EXPECT_EQ(ParseDiskSpec("/mnt/a:2GiB")->size_bytes, 2ULL << 30);
  EXPECT_EQ(ParseDiskSpec("/dev/nvme1n1")->size_bytes, 0U);
  EXPECT_FALSE(ParseDiskSpec(":2GiB"));
  EXPECT_FALSE(ParseDiskSpec("/mnt/a:much"));
}

}  // namespace
}  // namespace kvcove::disklog
