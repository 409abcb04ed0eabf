// SPDX-License-Identifier: Apache-2.0
// After a start: which members wait for their next lease, and for how long.
#include "kvcove/master/control/store_doubt.h"

#include <gtest/gtest.h>

#include "kvcove/base/clock.h"

namespace kvcove::master {
namespace {

class StoreDoubtTest : public testing::Test {
 protected:
  void List(OwnerNumber members) {
    for (OwnerNumber number = 0; number < members; ++number) doubt_.Listed(number);
  }
  bool Holds(OwnerNumber number) { return doubt_.Holds(number, now_); }
  void Hear(OwnerNumber number) { doubt_.Heard(number, now_); }

  std::int64_t now_ = 1000 * kSecond;
  StoreDoubt doubt_{kSecond};
};

TEST_F(StoreDoubtTest, AStoreThatListsNobodyIsBelieved) { EXPECT_FALSE(Holds(0)); }

TEST_F(StoreDoubtTest, TheOnlyMemberWaitsForNobody) {
  List(1);
  Hear(0);
  EXPECT_FALSE(Holds(0));
}

TEST_F(StoreDoubtTest, AStoreIsBelievedOnceEachMemberHasSaidHello) {
  List(3);
  Hear(2);
  EXPECT_TRUE(Holds(2));
  Hear(0);
  EXPECT_TRUE(Holds(2));
  Hear(1);
  EXPECT_FALSE(Holds(2));
}

TEST_F(StoreDoubtTest, AMemberThatJoinedSinceIsNotHeldAndVouchesForNothing) {
  List(3);
  Hear(0);
  EXPECT_FALSE(Holds(3));
  doubt_.Vouched(3);
  EXPECT_TRUE(Holds(0));
}

TEST_F(StoreDoubtTest, OneLeaseThatNeverRanOutIsEnough) {
  List(100);
  Hear(7);
  EXPECT_TRUE(Holds(7));
  doubt_.Vouched(8);
  EXPECT_FALSE(Holds(7));
}

TEST_F(StoreDoubtTest, MostMembersAreEnoughAfterAQuarterOfALease) {
  List(5);
  Hear(0);
  Hear(1);
  now_ += kSecond / 4;
  EXPECT_TRUE(Holds(0)) << "two of five";
  Hear(2);
  EXPECT_FALSE(Holds(0));
}

TEST_F(StoreDoubtTest, MostMembersAreNotEnoughAtOnce) {
  List(3);
  Hear(0);
  now_ += kSecond / 4 - 1;
  Hear(1);
  EXPECT_TRUE(Holds(0)) << "the third may be about to come";
  now_ += 1;
  EXPECT_FALSE(Holds(0));
}

TEST_F(StoreDoubtTest, HalfOfTheMembersAreNotMost) {
  List(2);
  Hear(0);
  now_ += kSecond / 4;
  EXPECT_TRUE(Holds(0));
}

TEST_F(StoreDoubtTest, NobodyWaitsLongerThanThreeQuartersOfALeaseFromTheFirstHello) {
  List(3);
  now_ += 3600 * kSecond;  // a slow store, or owners that are away: nobody has waited
  Hear(0);
  now_ += kSecond / 4 * 3 - 1;
  EXPECT_TRUE(Holds(0));
  now_ += 1;
  EXPECT_FALSE(Holds(0));
  EXPECT_FALSE(Holds(1)) << "the others as well";
}

TEST_F(StoreDoubtTest, AMemberThatEndedIsNotWaitedForAndCountsForNothing) {
  List(4);
  Hear(0);
  Hear(1);
  doubt_.Ended(1);
  now_ += kSecond / 4;
  EXPECT_TRUE(Holds(0)) << "one of three";
  EXPECT_FALSE(Holds(1)) << "the number is another's, who has joined since";
  doubt_.Ended(2);
  doubt_.Ended(3);
  EXPECT_FALSE(Holds(0));
}

}  // namespace
}  // namespace kvcove::master
