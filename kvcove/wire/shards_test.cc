// SPDX-License-Identifier: Apache-2.0
#include "kvcove/wire/shards.h"

#include <gtest/gtest.h>

namespace kvcove::wire {
namespace {

std::span<const std::byte> Bytes(const std::string& body) { return std::as_bytes(std::span(body)); }

std::shared_ptr<ShardMap> Map() {
  auto map = std::make_shared<ShardMap>();
  map->term = 3;
  map->revision = 9;
  map->addresses = {"", "m2:7400", "", "m4:7400"};
  for (std::size_t i = 1000; i < 2000; ++i) map->shards[i] = 1;
  for (std::size_t i = 2000; i < kSlices; ++i) map->shards[i] = 3;
  map->fresh[5] = 7;
  return map;
}

TEST(ShardsWireTest, AMapComesAsItWent) {
  Changes changes{.map = Map()};
  const std::string body = Encode(changes);
  EXPECT_LT(body.size(), 400U) << "slices come as runs";
  const auto back = DecodeChanges(Bytes(body));
  ASSERT_TRUE(back) << back.error().ToString();
  ASSERT_NE(back->map, nullptr);
  EXPECT_EQ(*back->map, *Map());
  EXPECT_EQ(DecodeChanges(Bytes(Encode(Changes{})))->map, nullptr);
}

TEST(ShardsWireTest, ASliceIsTheFirstBitsOfTheHash) {
  EXPECT_EQ(SliceOf({.high = 0, .low = ~0ULL}), 0);
  EXPECT_EQ(SliceOf({.high = ~0ULL, .low = 0}), kSlices - 1);
  EXPECT_EQ(SliceOf({.high = 1ULL << 52, .low = 0}), 1);
}

TEST(ShardsWireTest, ASyncComesAsItWent) {
  const ShardSyncRequest request{.process = {.high = 1, .low = 2},
                                 .address = "m2:7400",
                                 .term = 3,
                                 .session = 4,
                                 .position = 5,
                                 .frozen = 6,
                                 .loaded = 7,
                                 .failed = 8,
                                 .removed = {{.number = 9, .codes = {Code::kOk, Code::kMiss}},
                                             {.number = 10, .codes = {}},
                                             {.number = 11, .codes = {Code::kOk}}},
                                 .entries = 12,
                                 .entries_of_slots = {{4, 10}, {5, 2}},
                                 .bytes_of_slots = {100, 20}};
  const auto back = DecodeShardSync(Bytes(Encode(request)));
  ASSERT_TRUE(back) << back.error().ToString();
  EXPECT_EQ(back->process, request.process);
  EXPECT_EQ(back->address, "m2:7400");
  EXPECT_EQ(back->position, 5U);
  EXPECT_EQ(back->failed, 8U);
  ASSERT_EQ(back->removed.size(), 3U);
  EXPECT_EQ(back->removed[0].codes, request.removed[0].codes);
  EXPECT_TRUE(back->removed[1].codes.empty());
  EXPECT_EQ(back->removed[2].number, 11U);
  EXPECT_EQ(back->entries_of_slots, request.entries_of_slots);
  EXPECT_EQ(back->bytes_of_slots, request.bytes_of_slots);
}

TEST(ShardsWireTest, AnAnswerComesAsItWent) {
  ShardSyncReply reply{.term = 3, .session = 4, .number = 1, .lease_ns = 5, .position = 6};
  reply.all = true;
  reply.owners.push_back({.number = 7,
                          .epoch = 8,
                          .first_epoch = 6,
                          .told_epoch = 7,
                          .live_ns = 100,
                          .present_ns = 200,
                          .tells_first = true,
                          .disk_away = false,
                          .tenant = 9,
                          .hidden = {1, 2},
                          .drops = {3}});
  reply.slots.push_back({.slot = 4, .generation = 5, .tenant = 6});
  reply.removals.push_back(
      {.number = 11, .slot = 4, .generation = 5, .keys = {"a", "b"}, .pattern = {}});
  reply.shown = 12;
  reply.floor = 13;
  reply.map = Map();
  reply.serves.assign(kSlices, SliceState::kNone);
  reply.serves[8] = SliceState::kFrozen;
  reply.move = {.id = 14, .from = 1, .to = 3, .address = "m2:7400", .slices = {8, 9}};
  reply.untold = 15;
  reply.warming = true;
  reply.full_tenants = {16, 17};
  const auto back = DecodeShardSyncReply(Bytes(Encode(reply)));
  ASSERT_TRUE(back) << back.error().ToString();
  ASSERT_EQ(back->owners.size(), 1U);
  EXPECT_TRUE(back->owners[0].tells_first);
  EXPECT_FALSE(back->owners[0].disk_away);
  EXPECT_EQ(back->owners[0].hidden, (std::vector<SlotId>{1, 2}));
  EXPECT_EQ(back->owners[0].drops, (std::vector<SlotId>{3}));
  EXPECT_EQ(back->owners[0].present_ns, 200);
  ASSERT_EQ(back->slots.size(), 1U);
  EXPECT_EQ(back->slots[0].tenant, 6U);
  EXPECT_EQ(back->removals, reply.removals);
  EXPECT_EQ(*back->map, *Map());
  EXPECT_EQ(back->serves, reply.serves);
  EXPECT_EQ(back->move.slices, reply.move.slices);
  EXPECT_EQ(back->move.address, "m2:7400");
  EXPECT_TRUE(back->warming);
  EXPECT_EQ(back->untold, 15U);
  EXPECT_FALSE(back->full);
  EXPECT_EQ(back->full_tenants, reply.full_tenants);
}

TEST(ShardsWireTest, EntriesAndAnswersOfBarsComeAsTheyWent) {
  const ShardPage page{.entries = {{.hash = {.high = 1, .low = 2},
                                    .generation = 3,
                                    .size_bytes = 4,
                                    .group = 5,
                                    .slot = 6,
                                    .tier = Tier::kDisk,
                                    .owner = 7,
                                    .epoch = 8,
                                    .superseded = true}},
                       .cursor = 9,
                       .done = true,
                       .shown = 10};
  const auto back = DecodeShardPage(Bytes(Encode(page)));
  ASSERT_TRUE(back) << back.error().ToString();
  ASSERT_EQ(back->entries.size(), 1U);
  EXPECT_EQ(back->entries[0].hash, page.entries[0].hash);
  EXPECT_EQ(back->entries[0].tier, Tier::kDisk);
  EXPECT_TRUE(back->entries[0].superseded);
  EXPECT_TRUE(back->done);
  const ShardBarReply bars{.answers = {{.gives_way = GivesWay::kThisToo, .epoch = 4}}};
  EXPECT_EQ(DecodeShardBarReply(Bytes(Encode(bars)), 1)->answers[0].epoch, 4U);
  EXPECT_FALSE(DecodeShardBarReply(Bytes(Encode(bars)), 2));
  EXPECT_EQ(DecodeShardBar(Bytes(Encode(ShardBarRequest{.values = {{3, 4}}})))->values[0].second,
            4);
  EXPECT_EQ(DecodeShardPull(Bytes(Encode(ShardPullRequest{.term = 1, .move = 2})))->move, 2U);
}

TEST(ShardsWireTest, WhatAShardKnowsOfKeysComesAsItWent) {
  const ShardFindRequest request{.keys = {{3, {.high = 1, .low = 2}}, {4, {.high = 5, .low = 6}}}};
  EXPECT_EQ(DecodeShardFind(Bytes(Encode(request)))->keys, request.keys);
  const ShardFindReply reply{
      .keys = {{.size_bytes = 7, .holders = {{1, Tier::kMemory}, {2, Tier::kDisk}}},
               {.reason = MissReason::kEvicted,
                .holders = {},
                .missed = MissReason::kNeverPut,
                .misses = 8,
                .missed_age_ns = 9}}};
  EXPECT_EQ(DecodeShardFindReply(Bytes(Encode(reply)), 2)->keys, reply.keys);
  EXPECT_FALSE(DecodeShardFindReply(Bytes(Encode(reply)), 3)) << "not for each key";
}

TEST(ShardsWireTest, WhatDoesNotFitIsRefused) {
  EXPECT_FALSE(DecodeShardBar(Bytes(Encode(ShardBarRequest{.values = {{kMaxOwners, 4}}}))));
  EXPECT_FALSE(DecodeShardBar(Bytes(Encode(ShardBarRequest{.values = {{3, kMaxSlots}}}))));
  ShardSyncReply reply;
  reply.serves.assign(5, SliceState::kServes);
  EXPECT_FALSE(DecodeShardSyncReply(Bytes(Encode(reply)))) << "not all slices";
  auto map = Map();
  map->addresses.resize(2);  // slices of a shard that there is not
  EXPECT_FALSE(DecodeChanges(Bytes(Encode(Changes{.map = map}))));
  const std::string body = Encode(ShardSyncRequest{.address = "m2:7400"});
  for (std::size_t size = 0; size < body.size(); size += 3) {
    (void)DecodeShardSync(Bytes(body).first(size));
    (void)DecodeShardSyncReply(Bytes(body).first(size));
    (void)DecodeShardPage(Bytes(body).first(size));
  }
}

}  // namespace
}  // namespace kvcove::wire
