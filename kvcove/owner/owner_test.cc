// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/owner.h"

#include <gtest/gtest.h>

#include <thread>

#include "kvcove/base/size.h"

namespace kvcove::owner {
namespace {

// The master places objects by it: an owner that said "no room" at first got none for a renewal.
TEST(OwnerTest, ReportsItsRoomBeforeAnyThreadRuns) {
  const auto owner = Owner::Open({.memory_bytes = 16 * kMiB}, SystemClock::Instance());
  ASSERT_TRUE(owner) << owner.error().ToString();
  EXPECT_EQ((*owner)->Report().free_bytes, 16 * kMiB);
}

class LateOwnerTest : public testing::Test {
 protected:
  static constexpr SlotId kSlot = 3;
  static constexpr Generation kOld = 1ULL << 24;
  static constexpr Generation kNew = 2ULL << 24;
  LateOwnerTest() {
    Publish(kOld);
    session_ = owner_->AddRemoteSession();
  }
  void Publish(Generation generation) {
    owner_->Publish({1, 1}, {{.slot = kSlot, .generation = generation, .name = "m"}});
  }
  Code Put(Generation generation, std::int64_t timeout_ns) {
    const PutItem item{.key = "k", .size_bytes = 1000, .value = {}, .after = {}};
    const Token token{.incarnation = {1, 1}, .generation = generation, .slot = kSlot};
    return owner_->Put(session_, token, {&item, 1}, SystemClock::Instance().NowNs() + timeout_ns)
        .front()
        .code;
  }
  std::unique_ptr<Owner> owner_ =
      *Owner::Open({.memory_bytes = kMiB, .cluster = true}, SystemClock::Instance());
  SessionNumber session_ = 0;
};

TEST_F(LateOwnerTest, APutWaitsForItsGeneration) {
  // The put is begun by then or not: it is taken in both cases.
  std::thread master([this] { Publish(kNew); });
  EXPECT_EQ(Put(kNew, 30 * kSecond), Code::kOk);
  master.join();
  EXPECT_EQ(Put(kOld, 30 * kSecond), Code::kStale) << "at once";
}

TEST_F(LateOwnerTest, APutDoesNotWaitLongerThanItsDeadlineOrForAMasterThatIsAway) {
  EXPECT_EQ(Put(kNew, kMillisecond), Code::kUnavailable);
  owner_->SetMasterReachable(false);
  EXPECT_EQ(Put(kNew, 30 * kSecond), Code::kUnavailable);
}

// The first slice is done whatever the time is: a caller with little time gets what there is.
TEST_F(LateOwnerTest, PinsAndStatisticsOfObjectsEndWithTheCallersTime) {
  const std::vector<std::string> names(1000, "k");
  const std::vector<std::string_view> keys(names.begin(), names.end());
  const Token token{.incarnation = {1, 1}, .generation = kOld, .slot = kSlot};
  const std::vector<Code> codes = owner_->Pin(token, keys, {.kind = PinKind::kHard}, /*past*/ 1);
  ASSERT_EQ(codes.size(), keys.size());
  EXPECT_EQ(codes.front(), Code::kMiss);
  EXPECT_EQ(codes.back(), Code::kTimeout);
  EXPECT_EQ(owner_->StatObjects(token, keys, /*past*/ 1).error().code, Code::kTimeout);
  const std::int64_t soon_ns = SystemClock::Instance().NowNs() + 30 * kSecond;
  EXPECT_EQ(owner_->Pin(token, keys, {.kind = PinKind::kHard}, soon_ns).back(), Code::kMiss);
  EXPECT_EQ(owner_->StatObjects(token, keys, soon_ns)->size(), keys.size());
}

// The listings of puts that gave way would pile up for as long as the master is away.
TEST_F(LateOwnerTest, TheOutboxKeepsWhatStillWaits) {
  owner_->SetMasterReachable(false);
  owner_->Start();
  const std::vector<std::byte> value(kInlineBytes);
  const Token token{.incarnation = {1, 1}, .generation = kOld, .slot = kSlot};
  for (int i = 0; i < 5000; ++i) {
    const std::string key = "key-" + std::to_string(i);
    const PutItem item{.key = key, .size_bytes = kInlineBytes, .value = value, .after = {}};
    ASSERT_EQ(owner_->Put(session_, token, {&item, 1}, SystemClock::Instance().NowNs() + kSecond)
                  .front()
                  .code,
              Code::kNotListed)
        << i;
  }
  const std::int64_t until_ns = SystemClock::Instance().NowNs() + 10 * kSecond;
  std::size_t waiting = 0;
  do {
    std::vector<Listing> listings = owner_->TakeListings(~std::size_t{0});
    waiting = listings.size();
    owner_->ReturnListings(std::move(listings));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  } while (waiting > 300 && SystemClock::Instance().NowNs() < until_ns);
  EXPECT_LE(waiting, 300U) << "64 fit, and as many again and a half may be over";
  EXPECT_GE(waiting, 1U);
  owner_->Stop();
}

}  // namespace
}  // namespace kvcove::owner
