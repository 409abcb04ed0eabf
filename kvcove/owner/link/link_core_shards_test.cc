// SPDX-License-Identifier: Apache-2.0
// How an owner tells several shards of the directory what it holds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "kvcove/owner/link/link_core_fixture.h"

namespace kvcove::owner {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class LinkShardsTest : public LinkCoreFixture {
 protected:
  // Slices from `from` on are shard 1's, the others the leader's.
  static std::shared_ptr<wire::ShardMap> Map(std::uint64_t revision, std::size_t from = 2048) {
    auto map = std::make_shared<wire::ShardMap>();
    map->term = kTerm;
    map->revision = revision;
    map->addresses = {"", "shard:1"};
    for (std::size_t i = from; i < wire::kSlices; ++i) map->shards[i] = 1;
    return map;
  }
  void Tell(const std::shared_ptr<const wire::ShardMap>& map) {
    Ask(Lane::kLease, wire::Method::kRenew);
    wire::Changes changes = Changes(0, 0);
    changes.map = map;
    Grant(changes);
  }
  static Id128 HashOf(std::uint64_t slice, std::uint64_t key) {
    return {.high = slice << 52, .low = key};
  }
  // A put of one key in each of these slices.
  // The shard is lost: the leader has all slices again, those of the shard without entries.
  void TellLost() {
    auto map = Map(3, wire::kSlices);
    for (std::size_t i = 2048; i < wire::kSlices; ++i) map->fresh[i] = 3;
    Tell(map);
  }
  std::shared_ptr<std::vector<Code>> PutIn(const std::vector<std::uint64_t>& slices) {
    auto codes = std::make_shared<std::vector<Code>>();
    Listing listing{.pending = {}, .done = [codes](std::span<const Code> now) {
                      codes->insert(codes->end(), now.begin(), now.end());
                    }};
    for (const std::uint64_t slice : slices) {
      listing.pending.push_back({.reservation = slice, .item = {.hash = HashOf(slice, 1)}});
    }
    target_.listings.push_back(std::move(listing));
    return codes;
  }
  std::optional<LinkCore::Step> AskShard(std::size_t number = 1) {
    for (int i = 0; i < 8; ++i) {
      LinkCore::Step step = core_.NextShard(number);
      if (step.call) return step;
    }
    return std::nullopt;
  }
  static wire::ListRequest RequestOf(const LinkCore::Step& step) {
    return *wire::DecodeList(Bytes(step.call->body));
  }
  void AnswerShard(const LinkCore::Step& step, Code code = Code::kOk, std::size_t number = 1) {
    core_.AnswerShard(
        number, step.session,
        wire::Encode(wire::ListReply{.codes = std::vector<Code>(RequestOf(step).items.size(), code),
                                     .credit = 4096}));
  }
};

TEST_F(LinkShardsTest, APutIsSplitAndHasItsAnswerWhenAllHaveAnswered) {
  Join();
  TellAll();
  Tell(Map(2));
  const auto codes = PutIn({1, 4000, 2});
  const wire::ListRequest leader = AskList();
  const auto shard = AskShard();
  ASSERT_TRUE(shard);
  EXPECT_EQ(leader.items.size(), 2U);
  ASSERT_EQ(RequestOf(*shard).items.size(), 1U);
  EXPECT_EQ(RequestOf(*shard).sequence, 1U);
  EXPECT_GT(RequestOf(*shard).session, 0U);
  AnswerShard(*shard, Code::kExists);
  EXPECT_THAT(*codes, IsEmpty());
  AnswerList(leader);
  EXPECT_THAT(*codes, ElementsAre(Code::kOk, Code::kExists, Code::kOk));
}

TEST_F(LinkShardsTest, AShardThatIsAwayStopsNoOther) {
  Join();
  TellAll();
  Tell(Map(2));
  const auto there = PutIn({1});
  const auto away = PutIn({4000});
  const auto shard = AskShard();
  ASSERT_TRUE(shard);
  core_.AnswerShard(1, shard->session, kvcove::Fail(Code::kTimeout, "away"));
  AnswerList(AskList());
  EXPECT_THAT(*there, ElementsAre(Code::kOk));
  EXPECT_THAT(*away, IsEmpty());
  EXPECT_EQ(RequestOf(*AskShard()).items.size(), 1U) << "it is asked again";
}

TEST_F(LinkShardsTest, WhatHasNoAnswerGoesWhereTheNextMapSays) {
  Join();
  TellAll();
  Tell(Map(2));
  const auto put = PutIn({4000});
  const auto first = AskShard();
  ASSERT_TRUE(first);
  TellLost();
  const wire::ListRequest request = AskList();
  ASSERT_EQ(request.items.size(), 1U);
  AnswerShard(*first);  // late
  EXPECT_THAT(*put, IsEmpty());
  AnswerList(request);
  EXPECT_THAT(*put, ElementsAre(Code::kOk));
}

// Its key at the shard that is gone by now was listed there, and the owner does not show it yet.
TEST_F(LinkShardsTest, AnAnsweredKeyOfAPutThatWaitsForOthersIsAskedAgain) {
  Join();
  TellAll();
  Tell(Map(2));
  const auto put = PutIn({1, 4000});
  const auto shard = AskShard();
  ASSERT_TRUE(shard);
  AnswerShard(*shard);
  EXPECT_THAT(*put, IsEmpty()) << "the leader has not answered";
  TellLost();
  const wire::ListRequest request = AskList();
  EXPECT_EQ(request.items.size(), 2U);
  AnswerList(request);
  EXPECT_THAT(*put, ElementsAre(Code::kOk, Code::kOk));
}

// The first put has lost its claim to the key: to list it again would take the later one's place.
TEST_F(LinkShardsTest, AnAnsweredKeyIsNotAskedAgainBehindALaterPutOfIt) {
  Join();
  TellAll();
  Tell(Map(2));
  const auto first = PutIn({1, 4000});
  auto shard = AskShard();
  ASSERT_TRUE(shard);
  AnswerShard(*shard);
  const auto second = PutIn({4000});
  shard = AskShard();
  ASSERT_TRUE(shard);
  AnswerShard(*shard);
  EXPECT_THAT(*second, ElementsAre(Code::kOk));
  TellLost();
  const wire::ListRequest request = AskList();
  ASSERT_EQ(request.items.size(), 1U);
  EXPECT_EQ(request.items[0].hash, HashOf(1, 1));
  AnswerList(request);
  EXPECT_THAT(*first, ElementsAre(Code::kOk, Code::kOk));
}

// The later put waits in the queue while the earlier one is answered.
TEST_F(LinkShardsTest, NorBehindALaterPutThatWasQueuedBeforeTheAnswer) {
  Join();
  TellAll();
  Tell(Map(2));
  const auto first = PutIn({1, 4000});
  auto shard = AskShard();
  ASSERT_TRUE(shard);
  const auto second = PutIn({4000});
  (void)AskList();  // which queues it
  AnswerShard(*shard);
  shard = AskShard();
  ASSERT_TRUE(shard);
  AnswerShard(*shard);
  EXPECT_THAT(*second, ElementsAre(Code::kOk));
  TellLost();
  const wire::ListRequest request = AskList();
  ASSERT_EQ(request.items.size(), 1U);
  EXPECT_EQ(request.items[0].hash, HashOf(1, 1));
  AnswerList(request);
  EXPECT_THAT(*first, ElementsAre(Code::kOk, Code::kOk));
}

// The master must not hear that all is told before what it refused is dropped.
TEST_F(LinkShardsTest, AWalkEndsOnlyOnceItsRefusalsAreActedOn) {
  target_.objects = 3;
  Join();
  Tell(Map(2));
  int drops = 0;
  target_.on_drop = [&] {
    ++drops;
    for (int i = 0; i < 3; ++i) (void)core_.NextShard(1);
    EXPECT_FALSE(core_.state().reported);
  };
  for (int i = 0; i < 100 && !core_.state().reported; ++i) {
    if (const auto shard = AskShard()) AnswerShard(*shard);
    const LinkCore::Step step = core_.Next(Lane::kList);
    if (step.call) AnswerList(*wire::DecodeList(Bytes(step.call->body)), 4096, Code::kExists);
  }
  EXPECT_TRUE(core_.state().reported);
  EXPECT_EQ(drops, 1);
  EXPECT_EQ(target_.dropped.size(), 3U);
}

// Another lane looks while the answers of a batch are being acted on, some of which are refusals.
TEST_F(LinkShardsTest, WhatIsRefusedAsStaleIsToldAgainWhicheverLaneEndsTheWalk) {
  target_.objects = 1;
  Join();
  Tell(Map(2));
  target_.listings.push_back({.pending = {{.reservation = 1, .item = {.hash = HashOf(1, 1)}}},
                              .done = [&](std::span<const Code>) {
                                for (int i = 0; i < 3; ++i) (void)core_.NextShard(1);
                                EXPECT_FALSE(core_.state().reported);
                              }});
  std::size_t told = 0;
  for (int i = 0; i < 100 && !core_.state().reported; ++i) {
    if (const auto shard = AskShard()) AnswerShard(*shard);
    const LinkCore::Step step = core_.Next(Lane::kList);
    clock_.AdvanceNs(kLanePauseNs);
    if (!step.call) continue;
    const auto request = *wire::DecodeList(Bytes(step.call->body));
    std::vector<Code> codes;
    for (const wire::ListItem& item : request.items) {
      codes.push_back(item.inventory && told++ == 0 ? Code::kStale : Code::kOk);
    }
    core_.Answer(Lane::kList,
                 wire::Encode(wire::ListReply{.codes = std::move(codes), .credit = 4096}));
  }
  EXPECT_TRUE(core_.state().reported);
  EXPECT_EQ(told, 2U);
}

// It is on again just when a shard is lost.
TEST_F(LinkShardsTest, ADiskThatNeedsNoTellingAnyMoreDoesNotEndThatOfFreshSlices) {
  target_.objects = 10;  // all in slice 0
  Join();
  TellAll();
  Tell(Map(2));
  EXPECT_TRUE(Idle(Lane::kList));
  EXPECT_EQ(AskRenew().told_map, 2U);
  Grant();
  target_.again_from = 5;
  (void)core_.NextShard(1);
  auto map = Map(3);
  map->fresh[0] = 3;
  Tell(map);
  target_.again_from.reset();
  std::set<std::uint64_t> told;
  for (int i = 0; i < 100; ++i) {
    if (const auto shard = AskShard()) AnswerShard(*shard);
    const LinkCore::Step step = core_.Next(Lane::kList);
    if (!step.call) continue;
    const auto request = *wire::DecodeList(Bytes(step.call->body));
    for (const wire::ListItem& item : request.items) told.insert(item.hash.low);
    AnswerList(request);
  }
  EXPECT_EQ(told.size(), 10U);
  EXPECT_EQ(AskRenew().told_map, 3U);
}

// The owner shows a put in its inventory when it is complete. Here another lane would walk between
// the shard's answer and that.
TEST_F(LinkShardsTest, NoWalkBeginsWhileAPutThatWasAnsweredBeforeIsBeingCompleted) {
  target_.objects = 10;
  Join();
  TellAll();
  Tell(Map(2));
  int looks = -1;
  target_.listings.push_back({.pending = {{.reservation = 1, .item = {.hash = HashOf(4000, 1)}}},
                              .done = [&](std::span<const Code>) {
                                auto map = Map(3, wire::kSlices);
                                for (std::size_t i = 2048; i < wire::kSlices; ++i)
                                  map->fresh[i] = 3;
                                Tell(map);
                                target_.looks = 0;
                                for (int i = 0; i < 5; ++i) (void)core_.Next(Lane::kList);
                                looks = target_.looks;
                              }});
  const auto shard = AskShard();
  ASSERT_TRUE(shard);
  AnswerShard(*shard);
  EXPECT_EQ(looks, 0);
  (void)core_.Next(Lane::kList);
  EXPECT_GT(target_.looks, 0);
}

// The same where the leader itself is another one, to which the owner tells all.
TEST_F(LinkShardsTest, NorUnderANewEpoch) {
  target_.objects = 10;
  Join();
  TellAll();
  Tell(Map(2));
  int looks = -1;
  target_.listings.push_back({.pending = {{.reservation = 1, .item = {.hash = HashOf(4000, 1)}}},
                              .done = [&](std::span<const Code>) {
                                core_.Disconnected();
                                Join(8);
                                target_.looks = 0;
                                AnswerList(AskList());
                                AnswerList(AskList());
                                looks = target_.looks;
                              }});
  const auto shard = AskShard();
  ASSERT_TRUE(shard);
  AnswerShard(*shard);
  EXPECT_EQ(looks, 0);
  TellAll();
  EXPECT_GT(target_.looks, 0);
}

TEST_F(LinkShardsTest, SlicesThatBeganAnewAreToldAgainAndNoOthers) {
  target_.objects = 10;  // all in slice 0
  Join();
  TellAll();
  Tell(Map(2));
  EXPECT_TRUE(Idle(Lane::kList));
  EXPECT_EQ(AskRenew().told_map, 2U);
  Grant();
  auto map = Map(3);
  map->fresh[3000] = 3;
  Tell(map);
  for (int i = 0; i < 20; ++i) {
    if (const auto step = AskShard()) AnswerShard(*step);
    const LinkCore::Step step = core_.Next(Lane::kList);
    if (step.call) {
      const auto request = *wire::DecodeList(Bytes(step.call->body));
      EXPECT_THAT(request.items, IsEmpty());
      AnswerList(request);
    }
  }
  EXPECT_EQ(AskRenew().told_map, 3U);
  Grant();
  map = Map(4);
  map->fresh[3000] = 3;
  map->fresh[0] = 4;
  Tell(map);
  std::size_t told = 0;
  for (int i = 0; i < 20; ++i) {
    if (const auto step = AskShard()) AnswerShard(*step);
    const LinkCore::Step step = core_.Next(Lane::kList);
    if (!step.call) continue;
    const auto request = *wire::DecodeList(Bytes(step.call->body));
    told += request.items.size();
    AnswerList(request);
  }
  EXPECT_EQ(told, 10U);
  const wire::RenewRequest renew = AskRenew();
  EXPECT_EQ(renew.told_map, 4U);
  EXPECT_TRUE(renew.told);
}

TEST_F(LinkShardsTest, AnotherEpochBeginsWithoutShards) {
  Join();
  TellAll();
  Tell(Map(2));
  const auto put = PutIn({4000});
  const auto shard = AskShard();
  ASSERT_TRUE(shard);
  core_.AnswerShard(1, shard->session, kvcove::Fail(Code::kStale, "listings are missing"));
  AskHello();
  AnswerHello(Welcome(8));
  EXPECT_EQ(core_.shards(), 0U);
  const wire::ListRequest again = AskList();
  EXPECT_EQ(again.session, 0U);
  ASSERT_EQ(again.items.size(), 1U);
  AnswerList(again);
  EXPECT_THAT(*put, ElementsAre(Code::kOk));
}

TEST_F(LinkShardsTest, WhatAnUpgradeLeavesWithoutAnAnswerIsTakenAgain) {
  Join();
  TellAll();
  Tell(Map(2));
  PutIn({4000});
  ASSERT_TRUE(AskShard());
  core_.ForgetCallers();
  EXPECT_EQ(target_.listings.size(), 1U);
  EXPECT_EQ(core_.shards(), 0U);
  EXPECT_EQ(AskHello().epoch, 0U);
}

}  // namespace
}  // namespace kvcove::owner
