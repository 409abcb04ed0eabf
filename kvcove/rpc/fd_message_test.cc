// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/fd_message.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "kvcove/base/clock.h"

namespace kvcove::rpc {
namespace {

class FdMessageTest : public testing::Test {
 protected:
  void SetUp() override {
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    here_ = UniqueFd(pair[0]);
    there_ = UniqueFd(pair[1]);
  }
  static std::int64_t Passed() { return SystemClock::Instance().NowNs() - kSecond; }
  static std::int64_t Soon() { return SystemClock::Instance().NowNs() + 60 * kSecond; }
  UniqueFd here_;
  UniqueFd there_;
};

TEST_F(FdMessageTest, DescriptorsArriveWithTheBytes) {
  const int fd = there_.get();
  ASSERT_TRUE(SendMessage(there_.get(), "body", {&fd, 1}, Soon()));
  const auto message = ReceiveMessage(here_.get(), Soon());
  ASSERT_TRUE(message) << message.error().ToString();
  EXPECT_EQ(message->body, "body");
  EXPECT_EQ(message->fds.size(), 1U);
}

// A process that had no processor reads only after its deadline what came before it.
TEST_F(FdMessageTest, WhatCameInTimeIsReadLate) {
  ASSERT_TRUE(SendMessage(there_.get(), "body", {}, Soon()));
  const auto message = ReceiveMessage(here_.get(), Passed());
  ASSERT_TRUE(message) << message.error().ToString();
  EXPECT_EQ(message->body, "body");
}

TEST_F(FdMessageTest, AnEndIsNotTakenForSilence) {
  EXPECT_EQ(ReceiveMessage(here_.get(), Passed()).error().code, Code::kTimeout);
  there_.Reset();
  EXPECT_EQ(ReceiveMessage(here_.get(), Passed()).error().code, Code::kUnavailable);
}

}  // namespace
}  // namespace kvcove::rpc
