// SPDX-License-Identifier: Apache-2.0
// A leader and shards of its directory, in virtual time and without sockets: what moves stays
// found, what is lost is a miss, and no key has two values. tests/sim/shards_sim.h has faults at
// random.
#include "kvcove/master/shards/shards.h"

#include "kvcove/master/shards/shards_fixture.h"

namespace kvcove::master {
namespace {

TEST_F(ShardsTest, AShardGetsItsShareWithItsEntries) {
  Join(1);
  Pass(20 * kMillisecond);
  for (int i = 0; i < 200; ++i) ASSERT_EQ(List(1, Key(i), 1), Code::kOk);
  AddFollower();
  AddFollower();
  Pass(3 * kSecond);
  const auto shards = master_->shards().Describe();
  ASSERT_EQ(shards.size(), 3U);
  for (const ShardDescription& one : shards) EXPECT_NEAR(one.slices, wire::kSlices / 3, 70);
  EXPECT_EQ(Found(200), 200);
  int elsewhere = 0;
  for (int i = 0; i < 200; ++i) elsewhere += Of(Key(i)) != nullptr ? 1 : 0;
  EXPECT_GT(elsewhere, 80);
  // The leader lists and finds nothing of theirs any more.
  for (int i = 0; i < 200; ++i) {
    if (Of(Key(i)) == nullptr) continue;
    const std::vector<Id128> hashes = {DirectoryHash(m_.slot, Key(i))};
    EXPECT_EQ((*master_->Lookup(token_, hashes))[0].reason, MissReason::kShardAway);
  }
  for (int i = 200; i < 300; ++i) EXPECT_EQ(List(1, Key(i), 1), Code::kOk) << i;
  EXPECT_EQ(Found(300), 300);
}

TEST_F(ShardsTest, MastersThatFollowAtOnceGetTheirPartsBeforeAnythingIsTold) {
  AddFollower();
  AddFollower();
  Use({.generations = {}, .shards = true});
  const auto shards = master_->shards().Describe();
  ASSERT_EQ(shards.size(), 3U);
  for (const ShardDescription& one : shards) EXPECT_NEAR(one.slices, wire::kSlices / 3, 2);
  EXPECT_EQ(master_->shards().map()->revision, 1U) << "nothing moved";
  Join(1);
  Pass(20 * kMillisecond);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(List(1, Key(i), 1), Code::kOk) << i;
  EXPECT_EQ(Found(100), 100);
}

TEST_F(ShardsTest, NoKeyHasTwoValues) {
  Join(1);
  Join(2);
  AddFollower();
  Pass(2 * kSecond);
  for (int i = 0; i < 50; ++i) {
    ASSERT_EQ(List(1, Key(i), 1), Code::kOk);
    EXPECT_EQ(List(2, Key(i), 2), Code::kExists);
    EXPECT_EQ(List(2, Key(i), 1), Code::kOk) << "a replica";
  }
}

TEST_F(ShardsTest, AnAbsentOwnersValueGivesWayOnceItIsBarred) {
  Join(1);
  Join(2);
  AddFollower();
  Pass(2 * kSecond);
  for (int i = 0; i < 50; ++i) ASSERT_EQ(List(1, Key(i), 1), Code::kOk);
  away_ = 1;
  Pass(1500 * kMillisecond);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(List(2, Key(i), 2), Code::kOk) << i;
  EXPECT_EQ(Found(50), 50);
  // It comes back, is told to tell everything again, and what it tells is refused.
  away_ = 0;
  tells_ = false;
  Join(1);
  Pass(200 * kMillisecond);
  for (int i = 0; i < 50; ++i) {
    EXPECT_NE(List(1, Key(i), 1, /*inventory=*/true), Code::kOk) << i;
  }
}

TEST_F(ShardsTest, ALostShardIsAMissUntilItIsToldAgain) {
  Join(1);
  Follower& shard = AddFollower();
  Pass(3 * kSecond);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(List(1, Key(i), 1), Code::kOk);
  int there = 0;
  for (int i = 0; i < 100; ++i) there += Of(Key(i)) != nullptr ? 1 : 0;
  ASSERT_GT(there, 20);
  shard.cut = true;
  told_map_ = 0;
  Pass(990 * kMillisecond);
  Pass(300 * kMillisecond);
  EXPECT_EQ(shard.replica.Serving(), 0U);
  EXPECT_EQ(master_->shards().Describe().size(), 1U);
  EXPECT_EQ(Found(100), 100 - there);
  EXPECT_TRUE(master_->control().Warming());
  for (int i = 0; i < 100; ++i) EXPECT_EQ(List(1, Key(i), 1, true), Code::kOk) << i;
  EXPECT_EQ(Found(100), 100);
  told_map_ = ~0ULL;
  Pass(100 * kMillisecond);
  EXPECT_FALSE(master_->control().Warming());
}

TEST_F(ShardsTest, WhatALostShardKnewOfValuesThatGaveWayIsMadeGoodByADrop) {
  Join(1);
  Join(2);
  Follower& shard = AddFollower();
  Pass(3 * kSecond);
  std::string key;
  for (int i = 0; Of(key = Key(i)) == nullptr; ++i) continue;
  ASSERT_EQ(List(1, key, 1), Code::kOk);
  away_ = 1;
  Pass(1500 * kMillisecond);
  ASSERT_EQ(List(2, key, 2), Code::kOk);
  EXPECT_TRUE(master_->control().DropsOf(owners_[1].number).empty());
  shard.cut = true;
  Pass(1300 * kMillisecond);
  ASSERT_EQ(Of(key), nullptr);
  // The leader has never heard of the second value; the first one must not come back.
  EXPECT_THAT(master_->control().DropsOf(owners_[1].number), testing::ElementsAre(m_.slot));
  away_ = 0;
  tells_ = false;
  Join(1);
  EXPECT_EQ(List(1, key, 1, /*inventory=*/true), Code::kStale);
  EXPECT_EQ(List(2, key, 2, /*inventory=*/true), Code::kOk);
}

TEST_F(ShardsTest, AnotherLeadersMovesAreTakenToo) {
  Join(1);
  Follower& shard = AddFollower();
  Pass(3 * kSecond);
  const std::uint64_t before = shard.replica.following_number();
  shard.cut = true;
  Pass(1300 * kMillisecond);
  shard.cut = shard.asked = false;
  Pass(3 * kSecond);
  EXPECT_GT(shard.replica.following_number(), before);
  EXPECT_EQ(shard.replica.stat().slices, wire::kSlices / 2);
}

TEST_F(ShardsTest, ARemovalIsProvenOverShardsAndOwners) {
  Join(1);
  Follower& shard = AddFollower();
  Pass(3 * kSecond);
  std::vector<std::string> keys;
  for (int i = 0; i < 40; ++i) {
    ASSERT_EQ(List(1, Key(i), 1), Code::kOk);
    keys.push_back(Key(i));
  }
  keys.push_back("other");
  shard.asked = false;
  const Answer<Master::Removed> removed;
  master_->Remove(token_, keys, "", clock_.NowNs() + 10 * kSecond, removed.Into());
  Pass(20 * kMillisecond);
  EXPECT_EQ(Found(40), 0);
  EXPECT_FALSE(removed.came());
  applied_ = master_->control().Count().removals;
  master_->control().Removals(
      {.number = owners_[1].number, .epoch = owners_[1].epoch, .after = applied_},
      [](const Result<wire::RemovalsPage>&) {});
  ASSERT_TRUE(removed.ok());
  ASSERT_EQ(removed->codes.size(), 41U);
  for (int i = 0; i < 40; ++i) EXPECT_EQ(removed->codes[static_cast<std::size_t>(i)], Code::kOk);
  EXPECT_EQ(removed->codes[40], Code::kMiss);
}

TEST_F(ShardsTest, ARemovalWaitsForAShardThatIsCutOffUntilItsLeaseIsOver) {
  Join(1);
  Follower& shard = AddFollower();
  Pass(3 * kSecond);
  for (int i = 0; i < 40; ++i) ASSERT_EQ(List(1, Key(i), 1), Code::kOk);
  shard.cut = true;
  const Answer<Master::Removed> removed;
  const std::uint64_t before = master_->control().shown();
  master_->Remove(token_, {Key(0)}, "", clock_.NowNs() + 10 * kSecond, removed.Into());
  Pass(500 * kMillisecond);
  EXPECT_EQ(master_->control().shown(), before) << "owners may not apply it yet";
  Pass(700 * kMillisecond);
  EXPECT_GT(master_->control().shown(), before);
  EXPECT_EQ(shard.replica.Serving(), 0U);
}

TEST_F(ShardsTest, AResetIsProvenWhenShardsKnowIt) {
  Join(1);
  Follower& shard = AddFollower();
  Pass(3 * kSecond);
  ASSERT_EQ(List(1, Key(0), 1), Code::kOk);
  shard.cut = true;
  const Answer<ResetOutcome> reset;
  master_->generations().Reset(
      {.name = "m", .engine = "e", .version = {}, .id = {.high = 1, .low = 1}},
      clock_.NowNs() + 3 * kSecond, reset.Into());
  Pass(500 * kMillisecond);
  EXPECT_FALSE(reset.came()) << "the shard finds what is void";
  Pass(700 * kMillisecond);
  EXPECT_TRUE(reset.ok()) << reset.detail();
}

TEST_F(ShardsTest, ADrainedShardGivesItsPartToTheOthers) {
  Join(1);
  AddFollower();
  AddFollower();
  Pass(3 * kSecond);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(List(1, Key(i), 1), Code::kOk);
  ASSERT_TRUE(master_->shards().SetDraining("shard0:1", true));
  EXPECT_FALSE(master_->shards().SetDraining("nobody:1", true));
  Pass(5 * kSecond);
  const auto shards = master_->shards().Describe();
  ASSERT_EQ(shards.size(), 3U);
  EXPECT_EQ(shards[1].slices, 0U);
  EXPECT_TRUE(shards[1].draining);
  EXPECT_EQ(Found(100), 100);
}

TEST_F(ShardsTest, TheLeaderTakesThePartOfTheLastShardThatIsDrained) {
  Join(1);
  Follower& shard = AddFollower();
  Pass(3 * kSecond);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(List(1, Key(i), 1), Code::kOk);
  ASSERT_GT(shard.replica.stat().slices, 1000U);
  ASSERT_TRUE(master_->shards().SetDraining(shard.address, true));
  for (int i = 0; i < 1000 && shard.replica.stat().slices > 0; ++i) {
    Pass(5 * kMillisecond);
    ASSERT_EQ(Found(100), 100) << "nothing is missed meanwhile";
  }
  Pass(kSecond);
  EXPECT_EQ(shard.replica.stat().slices, 0U);
  EXPECT_EQ(master_->shards().Describe()[0].slices, wire::kSlices);
  EXPECT_EQ(master_->directory().entries(), 100U);
  for (int i = 100; i < 200; ++i) ASSERT_EQ(List(1, Key(i), 1), Code::kOk);
  EXPECT_EQ(Found(200), 200);
  // What has gone back is not found twice when it moves once more.
  ASSERT_TRUE(master_->shards().SetDraining(shard.address, false));
  Pass(3 * kSecond);
  EXPECT_GT(shard.replica.stat().slices, 1000U);
  EXPECT_EQ(Found(200), 200);
  EXPECT_EQ(master_->directory().entries() + shard.replica.stat().entries, 200U);
}

TEST_F(ShardsTest, WhatTheLeaderHadTakenOfAShardThatIsLostMeanwhileIsForgotten) {
  Join(1);
  Follower& shard = AddFollower();
  Pass(3 * kSecond);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(List(1, Key(i), 1), Code::kOk);
  ASSERT_TRUE(master_->shards().SetDraining(shard.address, true));
  takes_back_ = false;
  Pass(500 * kMillisecond);
  const wire::ShardMove move = master_->shards().Wanted();
  ASSERT_NE(move.id, 0U);
  auto page = shard.replica.Pull({.term = master_->term(), .move = move.id, .cursor = 0});
  ASSERT_TRUE(page) << page.error().ToString();
  page->done = false;
  ASSERT_TRUE(master_->shards().Load(move.id, *page));
  shard.cut = true;
  told_map_ = 0;
  Pass(1500 * kMillisecond);
  EXPECT_EQ(master_->shards().Describe().size(), 1U);
  EXPECT_FALSE(master_->shards().Load(move.id, *page)) << "the move is over";
  EXPECT_EQ(static_cast<std::uint64_t>(Found(100)), master_->directory().entries());
  EXPECT_LT(Found(100), 100) << "it is told again, and not what it was";
}

TEST_F(ShardsTest, ATenantsShareCountsOverAllShards) {
  const MasterOptions options{
      .generations = {}, .max_entries = 1000, .tenant_entries = 100, .shards = true};
  Use(options, QualifiedName("tenant", "m"));
  Join(1);
  AddFollower();
  AddFollower();
  Pass(4 * kSecond);
  int listed = 0;
  for (int i = 0; i < 200; ++i) {
    listed += List(1, Key(i), 1) == Code::kOk ? 1 : 0;
    Pass(120 * kMillisecond);  // each hears of the others
  }
  EXPECT_NEAR(listed, 100, 2);
  const auto entries = master_->shards().EntriesBySlot();
  EXPECT_EQ(entries[m_.slot], static_cast<std::uint64_t>(listed));
  EXPECT_EQ(master_->shards().BytesBySlot()[m_.slot], static_cast<std::uint64_t>(listed))
      << "of one byte each";
  // Room comes back to all of them.
  for (int i = 0; i < 200; ++i) (void)List(1, Key(i), 1, false, /*gone=*/true);
  Pass(300 * kMillisecond);
  for (int i = 300; i < 330; ++i) EXPECT_EQ(List(1, Key(i), 1), Code::kOk) << i;
}

TEST_F(ShardsTest, AShardKnowsWhatItHoldsAndWhyItIsMissed) {
  Join(1);
  AddFollower();
  Pass(3 * kSecond);
  std::string key;
  for (int i = 0; Of(key = Key(i)) == nullptr; ++i) continue;
  const ShardReplica& shard = Of(key)->replica;
  const wire::ShardFindRequest asked{.keys = {{m_.slot, DirectoryHash(m_.slot, key)}}};
  (void)Find(key);
  (void)Find(key);
  const wire::HeldKey missed = shard.Held(asked)[0];
  EXPECT_EQ(missed.reason, MissReason::kNeverPut);
  EXPECT_EQ(missed.missed, MissReason::kNeverPut);
  EXPECT_EQ(missed.misses, 2U);
  ASSERT_EQ(List(1, key, 1), Code::kOk);
  const wire::HeldKey held = shard.Held(asked)[0];
  EXPECT_EQ(held.reason, MissReason::kNone);
  EXPECT_THAT(held.holders, testing::ElementsAre(std::pair(owners_[1].number, Tier::kMemory)));
  EXPECT_EQ(master_->directory().Held(asked.keys)[0].reason, MissReason::kShardAway);
}

// The leader sends everything again because an answer was lost: the one that named these ends.
TEST(ShardReplicaTest, WhatAnAnswerWithEverythingDoesNotNameIsForgotten) {
  FakeClock clock;
  ShardReplica replica({.address = "a", .directory = {}}, clock);
  wire::ShardSyncReply answer{.term = 1, .session = 1, .number = 1, .all = true};
  answer.position = 1;
  answer.slots = {{.slot = 3, .generation = 9, .tenant = 5}, {.slot = 4, .generation = 8}};
  answer.owners = {{.number = 2, .epoch = 7, .tenant = 6}, {.number = 3, .epoch = 1, .tenant = 4}};
  replica.Apply(answer, clock.NowNs());
  ASSERT_EQ(replica.TenantOfSlot(3), 5U);
  ASSERT_EQ(replica.TenantOfOwner(2), 6U);
  answer.position = 3;
  answer.slots.erase(answer.slots.begin());
  answer.owners.erase(answer.owners.begin());
  replica.Apply(answer, clock.NowNs());
  EXPECT_EQ(replica.TenantOfSlot(3), 0U);
  EXPECT_EQ(replica.TenantOfOwner(2), 0U);
  EXPECT_EQ(replica.TenantOfOwner(3), 4U);
  const Token freed{.generation = 9, .slot = 3};
  EXPECT_FALSE(replica.Lookup(freed, {}));
  const Token kept{.generation = 8, .slot = 4};
  EXPECT_TRUE(replica.Lookup(kept, {}));
}

}  // namespace
}  // namespace kvcove::master
