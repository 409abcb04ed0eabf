// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/landing.h"

#include <gtest/gtest.h>

#include <thread>

namespace kvcove::transport {
namespace {

TEST(LandingTest, ACallWhoseTransfersHaveEndedIsQuietAtOnce) {
  Landing landing;
  landing.Begin();
  landing.End();
  int quiet = 0;
  landing.Then([&] { ++quiet; });
  EXPECT_EQ(quiet, 1);
}

TEST(LandingTest, TheLastTransferSaysThatTheBuffersAreFree) {
  Landing landing;
  landing.Begin();
  landing.Begin();
  int quiet = 0;
  landing.Then([&] { ++quiet; });
  landing.End();
  EXPECT_EQ(quiet, 0);
  EXPECT_TRUE(landing.busy());
  std::thread device([&] { landing.End(); });
  device.join();
  EXPECT_EQ(quiet, 1);
  EXPECT_FALSE(landing.busy());
}

TEST(LandingTest, OnlyTheThreadThatMakesTheCallHasIt) {
  EXPECT_EQ(Landing::Current(), nullptr);
  const auto landing = std::make_shared<Landing>();
  {
    const Landing::Scope scope(landing);
    EXPECT_EQ(Landing::Current(), landing);
    std::thread other([] { EXPECT_EQ(Landing::Current(), nullptr); });
    other.join();
  }
  EXPECT_EQ(Landing::Current(), nullptr);
}

}  // namespace
}  // namespace kvcove::transport
