// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/leader.h"

#include <gtest/gtest.h>

#include "kvcove/rpc/fake_leader_source.h"

namespace kvcove::rpc {
namespace {

const Address kOne{.host = "h1", .port = 7400};
const Address kTwo{.host = "h2", .port = 7400};
const Address kThree{.host = "h3", .port = 7400};
const Error kSilence{.code = Code::kTimeout, .detail = "nothing"};

TEST(LeaderTest, ListsOfAddresses) {
  const auto list = ParseAddresses("h1,h2:7400,[::1]:9,h1:7400", 7400);
  ASSERT_TRUE(list);
  EXPECT_EQ(list->ToString(), "h1:7400,h2:7400,[::1]:9");
  EXPECT_TRUE(list->several());
  EXPECT_FALSE(ParseAddresses("h1,,h2", 7400));
  EXPECT_FALSE(ParseAddresses("", 7400));
}

TEST(LeaderTest, WhoLeadsIsInTheError) {
  EXPECT_EQ(LeaderIn(NotTheLeader("h2:7400")), "h2:7400");
  EXPECT_EQ(LeaderIn(NotTheLeader("")), "");
  EXPECT_EQ(
      LeaderIn({.code = Code::kUnavailable, .detail = "h1:7400: " + NotTheLeader("a").detail}),
      "a");
  EXPECT_EQ(LeaderIn({.code = Code::kUnavailable, .detail = "gone"}), std::nullopt);
  EXPECT_EQ(LeaderIn({.code = Code::kStale, .detail = NotTheLeader("a").detail}), std::nullopt);
}

TEST(LeaderTest, FollowsTheNamedLeaderAndElseGoesRound) {
  FakeClock clock;
  LeaderFinder finder(Addresses({kOne, kTwo, kThree}), clock);
  EXPECT_EQ(finder.Current(), kOne);
  EXPECT_TRUE(finder.Note(kOne, NotTheLeader("h3:7400"), kSecond));
  EXPECT_EQ(finder.Current(), kThree);
  EXPECT_FALSE(finder.Note(kOne, NotTheLeader("h2:7400"), kSecond)) << "a late answer";
  EXPECT_TRUE(finder.Note(kThree, NotTheLeader(""), kSecond));
  EXPECT_EQ(finder.Current(), kOne);
  EXPECT_TRUE(finder.Note(kOne, NotTheLeader("elsewhere:7400"), kSecond));
  EXPECT_EQ(finder.Current(), kTwo);
  EXPECT_FALSE(finder.Note(kTwo, {.code = Code::kStale, .detail = "x", .answered = true}, kSecond));
  EXPECT_FALSE(
      finder.Note(kTwo, {.code = Code::kTimeout, .detail = "x", .answered = true}, kSecond));
  EXPECT_EQ(finder.Current(), kTwo);
}

TEST(LeaderTest, ASilentLeaderIsNotFollowedForAWhile) {
  FakeClock clock;
  LeaderFinder finder(Addresses({kOne, kTwo, kThree}), clock);
  EXPECT_TRUE(finder.Note(kOne, kSilence, kSecond));
  EXPECT_EQ(finder.Current(), kTwo);
  EXPECT_TRUE(finder.Note(kTwo, NotTheLeader("h1:7400"), kSecond));
  EXPECT_EQ(finder.Current(), kThree);
  EXPECT_TRUE(finder.Note(kThree, NotTheLeader("h1:7400"), kSecond));
  EXPECT_EQ(finder.Current(), kTwo) << "round, without the silent one";
  EXPECT_TRUE(finder.Note(kTwo, NotTheLeader("h1:7400"), kSecond));
  EXPECT_EQ(finder.Current(), kOne) << "all others insist";
  EXPECT_TRUE(finder.Note(kOne, kSilence, kSecond));
  EXPECT_EQ(finder.Current(), kTwo);
  clock.AdvanceNs(2 * kSecond);
  EXPECT_TRUE(finder.Note(kTwo, NotTheLeader("h1:7400"), kSecond));
  EXPECT_EQ(finder.Current(), kOne);
}

TEST(LeaderTest, AnImpatientCallMovesNobodyAndALostConnectionAtOnce) {
  FakeClock clock;
  LeaderFinder finder(Addresses({kOne, kTwo}), clock);
  EXPECT_FALSE(finder.Note(kOne, kSilence, 50 * kMillisecond));
  EXPECT_EQ(finder.Current(), kOne);
  EXPECT_TRUE(finder.Note(kOne, {.code = Code::kUnavailable, .detail = "refused"}, 0));
  EXPECT_EQ(finder.Current(), kTwo);
  EXPECT_TRUE(finder.Note(kTwo, NotTheLeader("h1:7400"), 0)) << "it may have been started again";
  EXPECT_EQ(finder.Current(), kOne);
}

TEST(LeaderTest, ASourceAloneSaysWhoLeads) {
  const auto source = std::make_shared<FakeLeaderSource>(kOne);
  LeaderFinder finder{Addresses(source)};
  EXPECT_EQ(finder.addresses().ToString(), "a source");
  EXPECT_TRUE(finder.addresses().several());
  EXPECT_FALSE(finder.Note(kOne, kSilence, 50 * kMillisecond));
  EXPECT_FALSE(finder.Note(kOne, {.code = Code::kStale, .detail = "x", .answered = true}, 0));
  EXPECT_TRUE(source->doubted().empty());
  EXPECT_FALSE(finder.Note(kOne, NotTheLeader("h2:7400"), 0)) << "whom a stranger names";
  EXPECT_FALSE(finder.Note(kOne, kSilence, kSecond));
  EXPECT_FALSE(finder.Note(kOne, {.code = Code::kUnavailable, .detail = "refused"}, 0));
  EXPECT_EQ(source->doubted(), std::vector(3, kOne));
  EXPECT_EQ(finder.Current(), kOne);
  source->Name(kThree);
  EXPECT_EQ(finder.Current(), kThree);
  EXPECT_TRUE(finder.Note(kOne, kSilence, kSecond)) << "what still waits there waits in vain";
}

TEST(LeaderTest, OneAddressStays) {
  LeaderFinder finder(kOne);
  EXPECT_FALSE(finder.Note(kOne, kSilence, kSecond));
  EXPECT_EQ(finder.Current(), kOne);
}

}  // namespace
}  // namespace kvcove::rpc
