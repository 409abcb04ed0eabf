// SPDX-License-Identifier: Apache-2.0
// The bytes of the messages that masters, shards and owners send each other, and of the first ones
// of a connection. Those of requesters are in host_wire_test.cc, cluster_test.cc and
// data_frames_test.cc.
#include "tests/golden.h"

#include "kvcove/wire/auth.h"
#include "kvcove/wire/host_wire.h"
#include "kvcove/wire/lanes.h"
#include "kvcove/wire/owner_link.h"
#include "kvcove/wire/probe.h"
#include "kvcove/wire/shards.h"
#include "kvcove/wire/tasks.h"

namespace kvcove::wire {
namespace {

Changes GoldenChanges() {
  auto map = std::make_shared<ShardMap>();
  map->term = 3;
  map->revision = 9;
  map->addresses = {"", "m2:7400"};
  for (std::size_t i = 1000; i < kSlices; ++i) map->shards[i] = 1;
  map->fresh[5] = 7;
  return {.incarnation = {.high = 3, .low = 4},
          .from = 5,
          .to = 9,
          .more = true,
          .slots = {{.slot = 1, .generation = 1ULL << 63, .name = "acme"},
                    {.slot = kMaxSlots - 1, .generation = 0, .name = ""}},
          .naming = 44,
          .names_changed = true,
          .unnamed = {3, 4095},
          .map = map};
}

AuthBytes GoldenNonce(unsigned first) {
  AuthBytes bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(first + i);
  return bytes;
}

TEST(GoldenWireTest, WhatOwnersAndTheMasterSay) {
  const GoldenBytes golden = {
      {"hello",
       "3000000000002a00b0000800180090009800a000280004003800480006005c006000640068006c00a800"
       "0500700080002a00000001010e0001000000000000000200000000000000030000000000000004000000"
       "00000000080000000000000009000000000000000a000000000000000b000000000000000c0000000000"
       "00000d00000000000000000000000f000000680000005c00000050000000440000001000000000000000"
       "110000000000000012000000000000001300000000000000050000000000000006000000000000000700"
       "000000000000000000000010000001000000740000000100000068000000020000002f73000003000000"
       "683a3100"},
      {"hello of a new owner",
       "3000000000002a0088000800180000000000000028000000380048000600000058005c00600064000000"
       "0000680078002a0000000000ffff00000000000000000000000000000000000000000000000000000000"
       "000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
       "00000000000000000000480000003c000000300000002400000000000000000000000000000000000000"
       "000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
       "000000000000"},
      {"welcome",
       "2400000020006c000c001c0044004c00540006000a0030005c0007000800640034000900200000000000"
       "010101010e00010000000000000002000000000000000300000000000000040000000000000000000000"
       "0f0000001200000000000000130000000000000005000000000000000600000000000000070000000000"
       "000010000000000000001100000000000000"},
      {"welcome without an opening",
       "180000000000120028000800180000000000000000000600120000000000ffff00000000000000000000"
       "00000000000000000000000000000000000000000000"},
      {"changes",
       "200000000000000000001600440008002800300006001c00380007002000240016000000000001010300"
       "000000000000040000000000000000000000c4000000b800000030000000050000000000000009000000"
       "000000002c00000000000000000000001000280014001c00040008000c00100010000000600000005000"
       "000044000000180000000300000000000000090000000000000000000000040000000000000000000000"
       "070000000000000000000000000000000000000000000000000000000400000000000001040000000000"
       "05000600e803020000001400000004000000070000006d323a3734303000000000000000000002000000"
       "0300ff0f02000000300000001000000000000a000c000600000008000a0000000000ff0f040000000000"
       "000000000a00180006000c0008000a000000000001001000000000000000000000800000000004000000"
       "61636d6500000000"},
      {"renew",
       "40000000000000003800a8000a000c002800300005003800400048005000580060000600070068007000"
       "1000140078008000080009001800880090009800a000380000000001010101010100020000000c000000"
       "0d0000001000000000000000110000000000000003000000000000000400000000000000060000000000"
       "00000700000000000000080000000000000009000000000000000a000000000000000b00000000000000"
       "180000000000000019000000000000000e000000000000000f0000000000000014000000000000001500"
       "00000000000016000000000000001700000000000000"},
      {"renewed",
       "1c00000018003800070024002c000c000800100009000a000b0014001800000000000001010101012c00"
       "000048000000120000000000000013000000000000000100000000000000020000000000000000000000"
       "0300000007000800ff0f000014001c000400000000000000140000000000180014000000000000000000"
       "000000000000000000000c000000040000000000000000000000"},
      {"watch",
       "1c00000000000000000012003400060008001c00240005002c000c001200000000010100020000000500"
       "0000000000000600000000000000030000000000000004000000000000000700000000000000"},
      {"ask for removals",
       "1c000000000000000000120030000600080014000c001c00240010001200000000000100020000003800"
       "000020000000030000000000000007000000000000000900000000000000000000000200000004000000"
       "00000000070000000000000002000000280000000c000000000006001000040006000000060000000000"
       "0000000000000800140004000c000800000004000000000000000500000000000000"},
      {"removals",
       "180000000000000000000e00240008000c001000070018000e000000000000011c000000200000000b00"
       "000000000000030000000000000000000000020000000100ff0f020000004800000004000000ceffffff"
       "0000020024000000180000000a0000000000000008000000000000000000000002000000782a00000000"
       "000000000e00240010000600180008000c000e0000000000010024000000180000000900000000000000"
       "070000000000000000000000000000000000000002000000100000000400000001000000620000000100"
       "000061000000"},
      {"list",
       "2c000000000000000000220050000600080034000c001000140018001c002000240028002c0030003c00"
       "4400220000000000010002000000a40000009000000084000000780000006c0000006000000054000000"
       "480000003400000020000000030000000000000004000000000000000900000000000000000000000100"
       "000008000000000000000000000001000000000000000004000000000000010000000300000001000000"
       "0200000001000000070000000100000009000000010000004d0000000100000064000000010000000700"
       "000000000000000000000100000005000000000000000600000000000000"},
      {"listed", "0c00000008000c00040008000800000008000000001000000300000000070400"},
  };
  ExpectGolden(
      {
          {"hello", Encode(OwnerHello{.pool = {.high = 1, .low = 2},
                                      .incarnation = {.high = 3, .low = 4},
                                      .seen = {.term = 5, .tag = 6, .revision = 7},
                                      .owner = {.high = 8, .low = 9},
                                      .fresh = true,
                                      .process = {.high = 10, .low = 11},
                                      .predecessor = {.high = 12, .low = 13},
                                      .number = 14,
                                      .epoch = 15,
                                      .address = "h:1",
                                      .socket = "/s",
                                      .host = "h",
                                      .tenant = "t",
                                      .capacity_bytes = 1ULL << 44,
                                      .disk = true,
                                      .opening = {.high = 16, .low = 17},
                                      .opening_before = {.high = 18, .low = 19}})},
          {"hello of a new owner", Encode(OwnerHello{})},
          {"welcome", Encode(OwnerWelcome{.pool = {.high = 1, .low = 2},
                                          .incarnation = {.high = 3, .low = 4},
                                          .position = {.term = 5, .tag = 6, .revision = 7},
                                          .forgotten = true,
                                          .number = 14,
                                          .epoch = 15,
                                          .lease_ns = 16,
                                          .resumed = true,
                                          .tell_first = true,
                                          .removals = 17,
                                          .opening = Id128{.high = 18, .low = 19},
                                          .rolled_back = true})},
          {"welcome without an opening", Encode(OwnerWelcome{})},
          {"changes", Encode(GoldenChanges())},
          {"renew", Encode(RenewRequest{.number = 1,
                                        .epoch = 2,
                                        .table = 3,
                                        .naming = 4,
                                        .told = true,
                                        .free_bytes = 6,
                                        .objects = 7,
                                        .hits = 8,
                                        .evictions = 9,
                                        .stale_puts = 10,
                                        .puts = 11,
                                        .partial = true,
                                        .disk_away = true,
                                        .map = 24,
                                        .told_map = 25,
                                        .disks = 12,
                                        .disks_aside = 13,
                                        .disk_capacity_bytes = 14,
                                        .disk_bytes = 15,
                                        .leased = true,
                                        .disks_void = true,
                                        .opening = {.high = 16, .low = 17},
                                        .hit_bytes = 20,
                                        .put_bytes = 21,
                                        .disk_hits = 22,
                                        .disk_hit_bytes = 23})},
          {"renewed", Encode(RenewReply{.granted = true,
                                        .lease_ns = 1,
                                        .revision = 2,
                                        .hidden = {7, 8, 4095},
                                        .draining = true,
                                        .changes = {.slots = {}, .unnamed = {}},
                                        .tell_again = true,
                                        .doubted = true,
                                        .disks_void = true,
                                        .opening = {.high = 18, .low = 19}})},
          {"watch", Encode(WatchRequest{.number = 1,
                                        .epoch = 2,
                                        .table = 3,
                                        .naming = 4,
                                        .partial = true,
                                        .map = 7,
                                        .opening = {.high = 5, .low = 6}})},
          {"ask for removals",
           Encode(RemovalsRequest{.number = 1,
                                  .epoch = 2,
                                  .after = 3,
                                  .matched = {{.number = 4, .objects = 5}, {.number = 6}},
                                  .dropped = 7,
                                  .ahead = 9,
                                  .open = {4, 7}})},
          {"removals",
           Encode(RemovalsPage{
               .drop = {1, 4095},
               .drop_number = 3,
               .removals =
                   {{.number = 9, .slot = 1, .generation = 7, .keys = {"a", "b"}, .pattern = ""},
                    {.number = 10, .slot = 2, .generation = 8, .keys = {}, .pattern = "x*"}},
               .upto = 11,
               .more = true})},
          {"list", Encode(ListRequest{.number = 1,
                                      .epoch = 2,
                                      .sequence = 3,
                                      .applied = 4,
                                      .session = 9,
                                      .items = {{.hash = {.high = 5, .low = 6},
                                                 .generation = 7,
                                                 .size_bytes = 100,
                                                 .group = 77,
                                                 .slot = 9,
                                                 .gone = true,
                                                 .inventory = true,
                                                 .returns = true,
                                                 .copies = 2,
                                                 .tier = Tier::kDisk,
                                                 .removals = 4ULL << 40,
                                                 .copied_at = 8}}})},
          {"listed",
           Encode(ListReply{.codes = {Code::kOk, Code::kExists, Code::kStale}, .credit = 4096})},
      },
      golden);
}

TEST(GoldenWireTest, WhatShardsAndTheLeaderSay) {
  ShardSyncReply reply{.term = 3, .session = 4, .number = 1, .lease_ns = 5, .position = 6};
  reply.all = true;
  reply.owners.push_back({.number = 7,
                          .epoch = 8,
                          .first_epoch = 6,
                          .told_epoch = 7,
                          .live_ns = 100,
                          .present_ns = 200,
                          .tells_first = true,
                          .disk_away = true,
                          .tenant = 9,
                          .hidden = {1, 2},
                          .drops = {3}});
  reply.slots.push_back({.slot = 4, .generation = 5, .tenant = 6});
  reply.removals.push_back(
      {.number = 11, .slot = 4, .generation = 5, .keys = {"a", "b"}, .pattern = {}});
  reply.shown = 12;
  reply.floor = 13;
  reply.map = GoldenChanges().map;
  reply.move = {.id = 14, .from = 1, .to = 3, .address = "m2:7400", .slices = {8, 9}};
  reply.untold = 15;
  reply.warming = true;
  reply.full = true;
  reply.full_tenants = {16, 17};
  const ShardSyncReply before_slices = reply;
  reply.serves.assign(kSlices, SliceState::kNone);
  reply.serves[8] = SliceState::kFrozen;
  const GoldenBytes golden = {
      {"sync",
       "2c000000000000000000220070000400180034003c0044004c0054005c001c0020002400640028002c00"
       "3000220000000100000000000000020000000000000000000000b80000009c0000008c00000080000000"
       "740000005c00000040000000030000000000000004000000000000000500000000000000060000000000"
       "0000070000000000000008000000000000000c0000000000000000000000020000006400000000000000"
       "140000000000000000000000020000000a00000000000000020000000000000002000000040005000200"
       "0000000100000200000002000000000000000200000009000000000000000a0000000000000000000000"
       "070000006d323a3734303000"},
      {"synced", "624 bytes, XXH3 2c4ce443f2feeae2"},
      {"synced, with slices", "4720 bytes, XXH3 8374d103ea34582a"},
      {"bar", "0c00000008000c000400080008000000100000000400000001000000040000000100000003000000"},
      {"barred",
       "0c00000008000c0004000800080000001400000004000000020000000400000000000000020000000201"
       "0000"},
      {"pull", "1000000000000a0018000800100004000a0000000300000001000000000000000200000000000000"},
      {"page",
       "200000001c003c0008000c001000140018001c002000240028002c00070030001c000000000000017c00"
       "0000680000005c0000005000000044000000380000002c0000002000000014000000090000000a000000"
       "000000000000000001000000010000000100000008000000010000000700000001000000030000000100"
       "000006000000010000000500000001000000040000000100000003000000000000000000000001000000"
       "01000000000000000200000000000000"},
      {"find",
       "100000000000000008000c0004000800080000002c000000040000000200000001000000000000000200"
       "000000000000050000000000000006000000000000000200000003000400"},
      {"found",
       "1800000014002400040008000c001000140018001c002000140000007400000064000000540000004800"
       "00003c000000300000002000000004000000020000000000000000000000090000000000000000000000"
       "020000000000000008000000020000000001000002000000010300000200000001000200020000000200"
       "0000000000000200000007000000000000000200000000020000"},
  };
  ExpectGolden(
      {
          {"sync",
           Encode(ShardSyncRequest{.process = {.high = 1, .low = 2},
                                   .address = "m2:7400",
                                   .term = 3,
                                   .session = 4,
                                   .position = 5,
                                   .frozen = 6,
                                   .loaded = 7,
                                   .failed = 8,
                                   .removed = {{.number = 9, .codes = {Code::kOk, Code::kMiss}},
                                               {.number = 10, .codes = {}}},
                                   .entries = 12,
                                   .entries_of_slots = {{4, 10}, {5, 2}},
                                   .bytes_of_slots = {100, 20}})},
          {"synced", Encode(before_slices)},
          {"synced, with slices", Encode(reply)},
          {"bar", Encode(ShardBarRequest{.values = {{3, 4}}})},
          {"barred", Encode(ShardBarReply{.answers = {{.gives_way = GivesWay::kThisToo, .epoch = 4},
                                                      {.gives_way = GivesWay::kEarlier}}})},
          {"pull", Encode(ShardPullRequest{.term = 1, .move = 2, .cursor = 3})},
          {"page", Encode(ShardPage{.entries = {{.hash = {.high = 1, .low = 2},
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
                                    .shown = 10})},
          {"find", Encode(ShardFindRequest{
                       .keys = {{3, {.high = 1, .low = 2}}, {4, {.high = 5, .low = 6}}}})},
          {"found",
           Encode(ShardFindReply{
               .keys = {{.size_bytes = 7, .holders = {{1, Tier::kMemory}, {2, Tier::kDisk}}},
                        {.reason = MissReason::kEvicted,
                         .holders = {},
                         .missed = MissReason::kNeverPut,
                         .misses = 8,
                         .missed_age_ns = 9}}})},
      },
      golden);
}

TEST(GoldenWireTest, TasksLanesAndMeasurements) {
  InventoryReply held{.cursor = 1,
                      .generation = 2,
                      .live = 3,
                      .voided = 4,
                      .within = 5,
                      .since = 6,
                      .disks = true,
                      .objects = {}};
  held.objects.push_back({.hash = {.high = 7, .low = 8},
                          .generation = 9,
                          .version = 10,
                          .id = 11,
                          .size_bytes = 12,
                          .slot = 13,
                          .copies = 2,
                          .hard_pinned = true,
                          .soft_pinned = true,
                          .held = true,
                          .on_disk = true,
                          .key = "both"});
  held.objects.push_back({.tier = Tier::kDisk, .key = "disk"});
  LaneEnd end{.lid = 1, .number = 2, .first_packet = 3, .mtu = 4, .reads = 5};
  for (std::uint8_t i = 0; i < 16; ++i) end.gid[i] = i;
  const GoldenBytes golden = {
      {"inventory",
       "2000000000000000180028000c00100000000a0014000700080009001800200018000000000000010101"
       "03000700000009000000140000000b000000000000000d000000000000000100000070000000"},
      {"inventory of all slots",
       "1400000000000e00100000000800070000000c000e000000000000010900000004000000000000000000"
       "0000"},
      {"held",
       "2c000000000026005c0008000c001000140018001c002000240028002c00300034003c0044004c005400"
       "0700260000000000000101000000dc000000c0000000a40000009400000084000000780000006c000000"
       "60000000540000002c000000020000000000000003000000000000000400000000000000050000000000"
       "00000600000000000000020000001400000004000000040000006469736b0000000004000000626f7468"
       "000000000200000001030000020000000f0000000200000002010000020000000d000000020000000c00"
       "000000000000020000000b00000000000000020000000a00000000000000000000000000000000000000"
       "020000000900000000000000000000000000000000000000020000000700000000000000080000000000"
       "000000000000000000000000000000000000"},
      {"copy",
       "1c000000000016002800080007000c001000140018001c00200024001600000000000001200000008c00"
       "000070000000060000004c0000004000000028000000180000000d00000031302e302e302e313a373430"
       "310000000200000000000000050000000200000000000000000000000400000000000000020000000000"
       "030002000000100000000400000001000000640000000000000000000000020000000200000000000000"
       "000000000000000000000000020000000100000000000000"},
      {"end of a lane",
       "1800000000001200180008000c00060010001400040005001200000004050100010000000c0000000200"
       "00000300000010000000000102030405060708090a0b0c0d0e0f"},
      {"pieces of a lane",
       "100000000c001c001000040008000c000c000000300000001c0000001000000009000000000000000000"
       "0000010000000700000001000000060000000000000000000000010000000000000000010000"},
      {"probe", "0c0000000800140004000c000800000005000000000000000600000000000000"},
  };
  ExpectGolden(
      {
          {"inventory", Encode(InventoryRequest{.cursor = 7,
                                                .at_most = 9,
                                                .slot = SlotId{3},
                                                .prefix = "p",
                                                .with_keys = true,
                                                .replicated_only = true,
                                                .disks = true,
                                                .within = 11,
                                                .since = 13})},
          {"inventory of all slots",
           Encode(InventoryRequest{.at_most = 9, .slot = std::nullopt, .prefix = ""})},
          {"held", Encode(held)},
          {"copy",
           Encode(CopyRequest{.to = "10.0.0.1:7401",
                              .move = true,
                              .items = {{.id = 1, .version = 2},
                                        {.key = "d", .slot = 3, .generation = 4, .size_bytes = 5}},
                              .budget_ms = 6})},
          {"end of a lane", Encode(end)},
          {"pieces of a lane",
           Encode(LanePieces{.exchange = 9,
                             .pieces = {{.address = 1ULL << 40, .size_bytes = 6, .key = 7}}})},
          {"probe", Encode(Probe{.payload_bytes = 5, .wanted_bytes = 6})},
      },
      golden);
}

TEST(GoldenWireTest, TheFirstMessagesOfAConnection) {
  const Welcome welcome{.session = 7,
                        .secret = {.high = 1, .low = 2},
                        .now_ns = 5,
                        .layout = 4,
                        .node = 1,
                        .authority = "a"};
  const GoldenBytes golden = {
      {"prove",
       "140000000000000000000a00180004000c0008000a000000380000001000000003000000000000000000"
       "0000200000000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f2001000000"
       "74000000"},
      {"challenge",
       "0c00000008000c0004000800080000002c00000004000000200000006465666768696a6b6c6d6e6f7071"
       "72737475767778797a7b7c7d7e7f80818283200000000102030405060708090a0b0c0d0e0f1011121314"
       "15161718191a1b1c1d1e1f20"},
      {"proof",
       "0c00000000000600080004000600000004000000200000006465666768696a6b6c6d6e6f707172737475"
       "767778797a7b7c7d7e7f80818283"},
      {"hello", "0c00000008000c0004000800080000000800000004000000010000006e000000"},
      {"welcome",
       "1400000010003400240004002c0018001c00200010000000010000000000000002000000000000000000"
       "0000040000000100000014000000070000000000000005000000000000000100000061000000"},
      {"join", "0c00000008001c001400040008000000010000000000000002000000000000000700000000000000"},
      {"attendance",
       "140000000000000000000a0014000c00040008000a000000090000000c00000008000000000000000300"
       "0000683a3100"},
  };
  ExpectGolden(
      {
          {"prove", Encode(AuthHello{.tenant = "t", .key_id = 3, .nonce = GoldenNonce(1)})},
          {"challenge", Encode(AuthChallenge{.nonce = GoldenNonce(1), .proof = GoldenNonce(100)})},
          {"proof", EncodeProof(GoldenNonce(100))},
          {"hello", EncodeHello({.name = "n", .layout = 4})},
          {"welcome", EncodeWelcome(welcome)},
          {"join", EncodeJoin(welcome)},
          {"attendance", Encode(Attendance{.lease_left_ns = 8, .attendants = 9, .address = "h:1"})},
      },
      golden);
}

}  // namespace
}  // namespace kvcove::wire
