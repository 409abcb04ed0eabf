// SPDX-License-Identifier: Apache-2.0
// An owner whose disk and data directory lie on a file system of their own, which fails or hangs.
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>

#include <atomic>
#include <cstdlib>

#include "kvcove/base/interrupt.h"
#include "kvcove/base/posix.h"
#include "tests/fault/cluster_disk_fixture.h"

namespace kvcove {
namespace {

constexpr unsigned long kShutDown = _IOR('X', 125, std::uint32_t);  // EXT4_IOC_SHUTDOWN
constexpr std::uint32_t kWithoutJournal = 2;

class FailingFileSystemTest : public ClusterDiskTest {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(DiskOf(0));
    const std::string image = directory() + "/image";
    if (!Run("truncate -s 160M " + image + " && mkfs.ext4 -q " + image) || !Mount()) {
      GTEST_SKIP() << "file systems cannot be mounted here";
    }
    ClusterDiskTest::SetUp();
  }
  void TearDown() override {
    Thaw();
    for (const pid_t pid : owners()) {
      if (pid != 0) kill(pid, SIGKILL);
    }
    ClusterDiskTest::TearDown();
    if (owners().size() > 0 && owner(0) != 0) KillOwner(0);
    EXPECT_TRUE(!mounted_ || Unmount());
  }

  static bool Run(const std::string& command) {
    return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
  }
  bool Mount() {
    mounted_ = Run("mount -o loop " + directory() + "/image " + DiskOf(0));
    return mounted_;
  }
  bool Unmount() {
    root_ = UniqueFd();
    mounted_ = false;
    return Becomes([&] { return Run("umount " + DiskOf(0)); });
  }
  int Control(unsigned long request, std::uint32_t argument) {
    if (!root_.valid()) root_ = UniqueFd(open(DiskOf(0).c_str(), O_RDONLY | O_CLOEXEC));
    return ioctl(root_.get(), request, &argument);
  }
  void ShutDown() { ASSERT_EQ(Control(kShutDown, kWithoutJournal), 0); }
  void Freeze() {
    ASSERT_EQ(Control(FIFREEZE, 0), 0);
    frozen_ = true;
  }
  void Thaw() {
    if (!std::exchange(frozen_, false)) return;
    EXPECT_EQ(Control(FITHAW, 0), 0);
  }

  static Code Remove(Session& session, const std::string& key) {
    const std::string_view view = key;
    ItemResult result;
    const Status removed =
        session.Remove({&view, 1}, {&result, 1}, {.timeout = milliseconds(2000)});
    return removed ? result.code : removed.error().code;
  }

 private:
  bool mounted_ = false;
  bool frozen_ = false;
  UniqueFd root_;
};

TEST_F(FailingFileSystemTest, RemovalsAreProvenAndKeysFreeWithoutTheDisk) {
  Fill();
  std::vector<std::string> lying;
  for (const auto& [key, result] : Look(*far_, Keys(kMany))) {
    if (result.tier == Tier::kDisk) lying.push_back(key);
  }
  ASSERT_GE(lying.size(), 10U);
  ASSERT_EQ(Put(*here_, "hot"), Code::kOk);
  const SessionPtr reader = OpenSession(*here_pool_);
  std::atomic<bool> over{false};
  std::atomic<int> missed{0};
  const Slowness slowness;
  std::thread reads([&] {
    for (; !over; SleepNs(kMillisecond)) {
      missed += slowness.Holds([&] { return !Get(*reader, {"hot"}).keys.empty(); }) ? 0 : 1;
    }
  });
  ASSERT_NO_FATAL_FAILURE(ShutDown());
  const std::string& removed = lying[0];
  EXPECT_TRUE(Becomes([&] { return Remove(*far_, removed) == Code::kOk; })) << Said(0);
  EXPECT_TRUE(Becomes([&] { return Put(*here_, lying[1]) == Code::kOk; }));
  EXPECT_TRUE(Becomes([&] { return Put(*far_, lying[2]) == Code::kOk; }));
  over = true;
  reads.join();
  EXPECT_EQ(missed, 0) << "memory goes on";
  // The file system comes back as it was, with a note that names the disk.
  KillOwner(0);
  ASSERT_TRUE(Unmount());
  ASSERT_TRUE(Mount());
  ASSERT_NO_FATAL_FAILURE(StartDiskOwner(0, 2));
  EXPECT_EQ(MostFound({removed}), 0U);
  EXPECT_EQ(StatOf(0).disk_objects, 0U);
}

TEST_F(FailingFileSystemTest, AResetCostsNoHitInMemoryWhileItHangs) {
  ASSERT_NO_FATAL_FAILURE(Freeze());
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(far_->Reset({.timeout = kCallTime}));
    EXPECT_TRUE(Becomes([&] { return Put(*here_, "hot") == Code::kOk; }));
    const Slowness slowness;
    int hits = 0;
    for (int i = 0; i < 200; ++i, SleepNs(10 * kMillisecond)) {
      hits += slowness.Holds([&] { return !Get(*here_, {"hot"}).keys.empty(); }) ? 1 : 0;
    }
    EXPECT_EQ(hits, 200);
  }
  Thaw();
  EXPECT_TRUE(Becomes([&] { return Put(*here_, "after") == Code::kOk; }));
}

}  // namespace
}  // namespace kvcove
