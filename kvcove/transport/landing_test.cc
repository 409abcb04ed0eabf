// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/landing.h"

#include <gtest/gtest.h>

#include <atomic>
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

TEST(LandingTest, ASettledCallReturnsWhenNothingCanLandAnyMore) {
  std::thread device;
  std::atomic<bool> landed{false};
  const auto busy = Settle(std::chrono::minutes(1), [&] {
    const auto landing = Landing::Current();
    ASSERT_NE(landing, nullptr);
    landing->Begin();
    device = std::thread([&, landing] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      landed = true;
      landing->End();
    });
  });
  EXPECT_EQ(busy, nullptr);
  EXPECT_TRUE(landed);
  device.join();
}

TEST(LandingTest, ACallThatDoesNotSettleKeepsWhatItsCallerGives) {
  std::shared_ptr<Landing> landing;
  const auto busy = Settle(std::chrono::milliseconds(1), [&] {
    landing = Landing::Current();
    landing->Begin();
  });
  ASSERT_EQ(busy, landing);
  auto memory = std::make_shared<int>();
  const std::weak_ptr<int> weak = memory;
  busy->Then([kept = std::move(memory)] {});
  EXPECT_FALSE(weak.expired());
  landing->End();
  EXPECT_TRUE(weak.expired());
}

TEST(LandingTest, WithinAnAsynchronousCallTheCompletionWaits) {
  const auto landing = std::make_shared<Landing>();
  const Landing::Scope scope(landing);
  EXPECT_EQ(Settle(std::chrono::minutes(1), [] { Landing::Current()->Begin(); }), nullptr);
  EXPECT_EQ(Landing::Current(), landing);
  EXPECT_TRUE(landing->busy());
}

}  // namespace
}  // namespace kvcove::transport
