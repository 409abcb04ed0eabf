// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/link/membership.h"

#include <gtest/gtest.h>

#include "kvcove/base/clock.h"

namespace kvcove::owner {
namespace {

class MembershipTest : public testing::Test {
 protected:
  static wire::OwnerWelcome Welcome(std::uint64_t term, std::uint32_t epoch) {
    return {.pool = {.high = 1, .low = 1},
            .incarnation = {.high = 2, .low = 2},
            .position = {.term = term, .tag = 10 * term, .revision = 100},
            .number = 3,
            .epoch = epoch};
  }
  // The whole exchange, as the lease's lane does it.
  void Join(const wire::OwnerWelcome& welcome) {
    EXPECT_TRUE(member_.BeginCall(1));
    (void)member_.Hello(identity_);
    member_.Answered();
    member_.Welcomed(welcome);
  }

  const LinkIdentity identity_{.owner = {.high = 9, .low = 1}, .before = std::nullopt};
  Membership member_{std::nullopt};
};

TEST_F(MembershipTest, AHelloIsDueUntilAMasterWelcomes) {
  EXPECT_TRUE(member_.Unwelcome());
  EXPECT_TRUE(member_.Hello(identity_).fresh);
  Join(Welcome(4, 7));
  EXPECT_FALSE(member_.Unwelcome());
  EXPECT_FALSE(member_.BeginCall(2)) << "a renewal";
  member_.SayHelloAgain(/*new_epoch=*/false);
  EXPECT_TRUE(member_.Unwelcome());
  EXPECT_TRUE(member_.BeginCall(3));
  const wire::OwnerHello hello = member_.Hello(identity_);
  EXPECT_FALSE(hello.fresh);
  EXPECT_EQ(hello.number, 3);
  EXPECT_EQ(hello.epoch, 7U);
}

TEST_F(MembershipTest, AHelloThatIsDueEndsThePause) {
  member_.Wait(5);
  member_.SayHelloAgain(/*new_epoch=*/false);
  EXPECT_EQ(member_.TakeWait(), 0);
  member_.Wait(5);
  EXPECT_EQ(member_.TakeWait(), 5);
  EXPECT_EQ(member_.TakeWait(), 0) << "once";
}

TEST_F(MembershipTest, ANewEpochIsAskedForUntilAMasterWelcomes) {
  Join(Welcome(4, 7));
  member_.SayHelloAgain(/*new_epoch=*/true);
  member_.SayHelloAgain(/*new_epoch=*/false);
  EXPECT_EQ(member_.Hello(identity_).epoch, 0U);
  EXPECT_EQ(member_.Hello(identity_).epoch, 0U) << "the answer may be lost";
  Join(Welcome(4, 8));
  EXPECT_EQ(member_.Hello(identity_).epoch, 8U);
}

TEST_F(MembershipTest, AHelloThatRevisionsOvertookHasNotShownAll) {
  Join(Welcome(4, 7));
  (void)member_.Hello(identity_);
  EXPECT_TRUE(member_.ShowedAll());
  member_.See(90);
  EXPECT_TRUE(member_.ShowedAll()) << "it never falls";
  member_.See(130);
  EXPECT_FALSE(member_.ShowedAll());
  EXPECT_EQ(member_.Hello(identity_).seen.revision, 130U);
  EXPECT_TRUE(member_.ShowedAll());
}

TEST_F(MembershipTest, APredecessorIsKeptUntilAHelloWithItIsAnswered) {
  const Id128 before{.high = 9, .low = 0};
  (void)member_.Hello(identity_);
  member_.NamePredecessor(before);
  member_.Answered();
  EXPECT_EQ(member_.predecessor(), before) << "that hello did not name it";
  member_.Welcomed(Welcome(4, 7));
  EXPECT_TRUE(member_.Unwelcome()) << "the next one is due";
  EXPECT_EQ(member_.Hello(identity_).predecessor, before);
  member_.Answered();
  EXPECT_EQ(member_.predecessor(), Id128{});
}

TEST_F(MembershipTest, AMasterIsKnownByItsTermAndTag) {
  Join(Welcome(4, 7));
  EXPECT_TRUE(member_.Follows(Welcome(4, 8)));
  EXPECT_FALSE(member_.Follows(Welcome(5, 8)));
  wire::OwnerWelcome same_term = Welcome(4, 8);
  ++same_term.position.tag;
  EXPECT_FALSE(member_.Follows(same_term)) << "the term was lost, and given once more";
}

TEST_F(MembershipTest, ALeaseCountsWhileItRunsAndInItsIncarnation) {
  Join(Welcome(4, 7));
  member_.SetLease(100);
  EXPECT_FALSE(member_.BeginCall(99));
  EXPECT_TRUE(member_.Leased());
  EXPECT_FALSE(member_.BeginCall(100));
  EXPECT_FALSE(member_.Leased());
  EXPECT_FALSE(member_.BeginCall(50));
  member_.Welcomed(Welcome(5, 8));
  EXPECT_TRUE(member_.Leased()) << "whichever master gave it";
  wire::OwnerWelcome other = Welcome(6, 9);
  other.incarnation = {.high = 3, .low = 3};
  member_.Welcomed(other);
  EXPECT_FALSE(member_.Leased());
}

TEST_F(MembershipTest, AForgottenOwnerHasSeenNothing) {
  Join(Welcome(4, 7));
  member_.Forgotten(Welcome(5, 0));
  EXPECT_EQ(member_.epoch(), 0U);
  EXPECT_TRUE(member_.Unwelcome());
  const wire::OwnerHello hello = member_.Hello(identity_);
  EXPECT_TRUE(hello.fresh);
  EXPECT_EQ(hello.seen, wire::Position{});
  EXPECT_EQ(hello.number, wire::kNoOwner);
  EXPECT_EQ(hello.pool, Welcome(5, 0).pool);
}

TEST(PositionPaceTest, APositionIsKeptOnceASecond) {
  PositionPace pace;
  EXPECT_TRUE(pace.Take(100, kSecond));
  EXPECT_FALSE(pace.Take(100, 9 * kSecond)) << "nothing new";
  EXPECT_TRUE(pace.Take(101, 9 * kSecond));
  EXPECT_FALSE(pace.Take(102, 10 * kSecond - 1));
  EXPECT_TRUE(pace.Take(102, 10 * kSecond));
}

TEST_F(MembershipTest, FactsOfADiskAreShownAtOnce) {
  const OwnerFacts before{.identity = identity_.owner,
                          .pool = {.high = 1, .low = 1},
                          .incarnation = {.high = 2, .low = 2},
                          .seen = {.term = 3, .tag = 30, .revision = 90}};
  Membership member{before};
  const wire::OwnerHello hello = member.Hello(identity_);
  EXPECT_FALSE(hello.fresh);
  EXPECT_EQ(hello.seen, before.seen);
  EXPECT_EQ(member.Facts(identity_.owner), before);
  Membership unused{OwnerFacts{.identity = identity_.owner}};
  EXPECT_TRUE(unused.Hello(identity_).fresh) << "it has followed no master";
}

}  // namespace
}  // namespace kvcove::owner
