// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/control/wait_for.h"

#include <gtest/gtest.h>

namespace kvcove::master {
namespace {

TEST(WaitForTest, AStoreThatIsLateIsNamedWithAdvice) {
  FakeClock clock;
  Reply<int> kept;
  const auto late = WaitFor<int>(
      clock, clock.NowNs(), [&](Reply<int> reply) { kept = std::move(reply); }, {},
      StoreIsLate("/mnt/slow/data"));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, Code::kTimeout);
  EXPECT_NE(late.error().detail.find("in '/mnt/slow/data'"), std::string::npos);
  EXPECT_NE(late.error().detail.find("kvcove doctor --data /mnt/slow/data"), std::string::npos);
  kept(7);  // too late: it goes nowhere
}

TEST(WaitForTest, AnAnswerAndAnErrorOfThePollEndTheWait) {
  FakeClock clock;
  EXPECT_EQ(WaitFor<int>(clock, clock.NowNs() + kSecond, [](const Reply<int>& reply) { reply(7); }),
            7);
  const auto polled = WaitFor<int>(
      clock, clock.NowNs() + kSecond, [](const Reply<int>&) {},
      [] { return Status(Fail(Code::kUnavailable, "it stops")); });
  EXPECT_EQ(polled.error().detail, "it stops");
}

}  // namespace
}  // namespace kvcove::master
