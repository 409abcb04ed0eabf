// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/core/reservations.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

namespace kvcove::owner {
namespace {

constexpr SlotId kReservationSlot = 3;

class ReservationsTest : public testing::Test {
 protected:
  ReservationsTest() {
    reservations_.AddSession(1);
    reservations_.AddSession(2);
  }
  Reservation& Add(SessionNumber session, const std::string& key, std::int64_t until_ns = 100) {
    return reservations_.Add({.session = session,
                              .key = key,
                              .hash = HashOf(key),
                              .slot = kReservationSlot,
                              .size_bytes = 100,
                              .bytes = 128,
                              .key_until_ns = until_ns});
  }
  static std::uint64_t HashOf(const std::string& key) { return key.size(); }  // many are the same
  Reservation* ClaimOf(const std::string& key, std::int64_t now_ns) {
    return reservations_.ClaimOf(kReservationSlot, {.key = key, .hash = HashOf(key)}, now_ns);
  }
  Steps steps_;
  Reservations reservations_{steps_};
};

TEST_F(ReservationsTest, AClaimEndsAtItsDeadlineAndTheReservationDoesNot) {
  Reservation& first = Add(1, "a");
  EXPECT_EQ(ClaimOf("a", 99), &first);
  EXPECT_EQ(ClaimOf("b", 99), nullptr);
  EXPECT_EQ(reservations_.ClaimOf(kReservationSlot + 1, {.key = "a", .hash = 1}, 99), nullptr);
  EXPECT_EQ(ClaimOf("a", 100), nullptr);
  Reservation& second = Add(2, "a", 200);
  EXPECT_EQ(ClaimOf("a", 100), &second);
  EXPECT_FALSE(reservations_.OwnsKey(first, 100));
  EXPECT_EQ(reservations_.Find(first.id), &first) << "its writer may still be copying";
  reservations_.End(first);
  EXPECT_EQ(ClaimOf("a", 100), &second);
}

TEST_F(ReservationsTest, NumbersAreNeverUsedAgain) {
  const std::uint64_t first = Add(1, "a").id;
  reservations_.End(*reservations_.Find(first));
  EXPECT_EQ(reservations_.Find(first), nullptr);
  EXPECT_GT(Add(1, "a").id, first);
}

TEST_F(ReservationsTest, BytesAreWholeGranulesASession) {
  Reservation& one = Add(1, "a");
  Add(1, "b");
  Add(2, "c");
  EXPECT_EQ(reservations_.reserved_bytes(1), 256U);
  reservations_.End(one);
  EXPECT_EQ(reservations_.reserved_bytes(1), 128U);
  EXPECT_EQ(reservations_.reserved_bytes(2), 128U);
}

TEST_F(ReservationsTest, ASessionLeavesOrphansButNotWhatWaitsForTheMaster) {
  Reservation& waits = Add(1, "a");
  reservations_.AwaitListing(waits);
  Reservation& orphan = Add(1, "b");
  Add(2, "c");
  EXPECT_EQ(reservations_.Orphan(), nullptr);
  reservations_.EndSession(1);
  EXPECT_EQ(reservations_.Orphan(), &orphan);
  reservations_.End(orphan);
  EXPECT_EQ(reservations_.Orphan(), nullptr);
  EXPECT_EQ(ClaimOf("a", 1'000'000), &waits) << "it keeps its key until the master has answered";
  reservations_.End(waits);
  EXPECT_EQ(reservations_.size(), 1U);
}

TEST_F(ReservationsTest, ARepeatedCommitAnswersTheSameForAWhile) {
  EXPECT_EQ(reservations_.Outcome(1, 5), std::nullopt);
  reservations_.Remember(1, 5, Code::kExists);
  EXPECT_EQ(reservations_.Outcome(1, 5), Code::kExists);
  EXPECT_EQ(reservations_.Outcome(2, 5), std::nullopt);
  for (std::uint64_t id = 6; id < 5000; ++id) reservations_.Remember(1, id, Code::kOk);
  EXPECT_EQ(reservations_.Outcome(1, 5), std::nullopt);
  EXPECT_EQ(reservations_.Outcome(1, 4999), Code::kOk);
}

TEST_F(ReservationsTest, ARemovalOfASlotIsForWhatHasBegun) {
  Reservation& before = Add(1, "a");
  reservations_.RemoveSlot(kReservationSlot);
  Reservation& after = Add(1, "b");
  EXPECT_TRUE(reservations_.Removed(before));
  EXPECT_FALSE(reservations_.Removed(after));
  EXPECT_EQ(ClaimOf("a", 0), nullptr);
}

TEST_F(ReservationsTest, AWalkOfRemovalsMeetsEachThatHadBegun) {
  for (int i = 0; i < 10; ++i) Add(1, fmt::format("key-{}", i));
  std::uint64_t cursor = 0;
  const auto even = [](std::string_view key) { return (key.back() - '0') % 2 == 0; };
  EXPECT_TRUE(reservations_.RemoveSome(kReservationSlot, even, cursor, 4));
  // What ends between two slices moves nothing.
  reservations_.End(*reservations_.Find(cursor));
  while (reservations_.RemoveSome(kReservationSlot, even, cursor, 4)) {
  }
  for (int i = 0; i < 10; ++i) {
    const Reservation* one = reservations_.Find(static_cast<std::uint64_t>(i) + 1);
    if (one == nullptr) continue;
    EXPECT_EQ(reservations_.Removed(*one), i % 2 == 0) << i;
  }
}

}  // namespace
}  // namespace kvcove::owner
