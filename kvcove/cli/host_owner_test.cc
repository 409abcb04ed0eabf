// SPDX-License-Identifier: Apache-2.0
#include "kvcove/cli/host_owner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>

namespace {

std::atomic<int> flock_error{0};  // that the next locks have; 0: they are the kernel's

}  // namespace

// In place of the C library's, for this program.
extern "C" int flock(int fd, int operation) noexcept {
  if (flock_error == 0) return static_cast<int>(syscall(SYS_flock, fd, operation));
  errno = flock_error;
  return -1;
}

namespace kvcove::cli {
namespace {

class HostOwnerTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(mkdtemp(directory_.data()), nullptr); }
  void TearDown() override {
    flock_error = 0;
    std::filesystem::remove_all(directory_);
  }
  std::string directory_ = std::filesystem::temp_directory_path() / "kvcove-owner-XXXXXX";
};

TEST_F(HostOwnerTest, ALogThatCannotBeLockedIsAnErrorAndNobodyElses) {
  HostOwner owner(
      {.socket = directory_ + "/kvcove.sock", .log = directory_ + "/kvcove.log", .words = {"true"}},
      SystemClock::Instance());
  flock_error = EWOULDBLOCK;
  EXPECT_TRUE(owner.Look()) << "somebody else starts it";
  flock_error = ENOLCK;
  const Status looked = owner.Look();
  ASSERT_FALSE(looked);
  EXPECT_THAT(looked.error().detail, testing::HasSubstr("--owner-log"));
  EXPECT_FALSE(owner.started());
}

}  // namespace
}  // namespace kvcove::cli
