// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/descriptors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>

#include "kvcove/base/log.h"
#include "kvcove/base/posix.h"

namespace kvcove {
namespace {

// Sets the soft limit while it lives.
class SoftLimit {
 public:
  explicit SoftLimit(rlim_t descriptors) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit now{.rlim_cur = descriptors, .rlim_max = before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &now);
  }
  ~SoftLimit() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST(DescriptorsTest, CountsWhatIsOpen) {
  const std::uint64_t before = OpenDescriptors();
  const UniqueFd one(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const UniqueFd two(open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(OpenDescriptors(), before + 2);
}

TEST(DescriptorsTest, AListenersBoundLeavesTheReserve) {
  const SoftLimit limit(1000);
  EXPECT_EQ(DescriptorLimit(), 1000U);
  EXPECT_EQ(ConnectionsWithin(100, 1), 100U);
  EXPECT_EQ(ConnectionsWithin(8192, 1), 1000 - kReservedDescriptors);
  EXPECT_EQ(ConnectionsWithin(8192, 3), (1000 - kReservedDescriptors) / 3);
}

TEST(DescriptorsTest, ASmallLimitIsSharedHalfAndHalf) {
  const SoftLimit limit(100);
  EXPECT_EQ(ConnectionsWithin(8192, 1), 50U);
  EXPECT_EQ(ConnectionsWithin(8192, 3), 16U);
  EXPECT_EQ(ConnectionsWithin(4, 3), 4U);
}

TEST(DescriptorsTest, AServerRaisesItsSoftLimit) {
  const SoftLimit limit(100);
  rlimit limits{};
  getrlimit(RLIMIT_NOFILE, &limits);
  EXPECT_EQ(RaiseDescriptorLimit(), std::min<rlim_t>(limits.rlim_max, 1U << 20));
}

TEST(ConnectionLimitTest, CountsWhatLivesAndRefusesTheRest) {
  SetLogLevel(LogLevel::kOff);
  const auto limit = std::make_shared<ConnectionLimit>("test", 2);
  std::shared_ptr<void> one = limit->Take();
  const std::shared_ptr<void> two = limit->Take();
  EXPECT_NE(one, nullptr);
  EXPECT_EQ(limit->open(), 2U);
  EXPECT_EQ(limit->Take(), nullptr);
  EXPECT_EQ(limit->refused(), 1U);
  one.reset();
  EXPECT_EQ(limit->open(), 1U);
  EXPECT_NE(limit->Take(), nullptr);
}

}  // namespace
}  // namespace kvcove
