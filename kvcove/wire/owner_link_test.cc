// SPDX-License-Identifier: Apache-2.0
#include "kvcove/wire/owner_link.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace kvcove::wire {
namespace {

constexpr Id128 kPool{.high = 1, .low = 2};
constexpr Id128 kIncarnation{.high = 3, .low = 4};

// As a server has it: aligned to 8 bytes.
template <typename Decoded, typename... Args>
auto Decode(const std::string& text, Decoded (*decode)(std::span<const std::byte>, Args...),
            Args... args) {
  std::vector<std::uint64_t> words(text.size() / 8 + 1);
  std::copy(text.begin(), text.end(), reinterpret_cast<char*>(words.data()));
  return decode(std::as_bytes(std::span(words)).first(text.size()), args...);
}

ListItem SomeItem(std::uint64_t i) {
  return {.hash = {.high = i, .low = ~i},
          .generation = i << 24,
          .size_bytes = 100,
          .group = 77,
          .slot = 9,
          .gone = i % 2 == 0,
          .inventory = i % 3 == 0,
          .returns = i % 4 == 0,
          .copies = 2,
          .tier = Tier::kDisk,
          .removals = (4ULL << 40) + i,
          .copied_at = i};
}

Changes SomeChanges() {
  return {.incarnation = kIncarnation,
          .from = 5,
          .to = 9,
          .more = true,
          .slots = {{.slot = 1, .generation = 1ULL << 63, .name = "acme"},
                    {.slot = kMaxSlots - 1, .generation = 0, .name = ""}},
          .naming = 44,
          .names_changed = true,
          .unnamed = {3, 4095}};
}

void ExpectSame(const Changes& a, const Changes& b) {
  EXPECT_EQ(a.incarnation, b.incarnation);
  EXPECT_EQ(a.from, b.from);
  EXPECT_EQ(a.to, b.to);
  EXPECT_EQ(a.more, b.more);
  EXPECT_EQ(a.slots, b.slots);
  EXPECT_EQ(a.naming, b.naming);
  EXPECT_EQ(a.names_changed, b.names_changed);
  EXPECT_EQ(a.unnamed, b.unnamed);
}

TEST(OwnerLinkWireTest, AHelloArrivesWhole) {
  const OwnerHello hello{.pool = kPool,
                         .incarnation = kIncarnation,
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
                         .opening_before = {.high = 18, .low = 19}};
  const auto arrived = Decode(Encode(hello), &DecodeOwnerHello);
  ASSERT_TRUE(arrived);
  EXPECT_EQ(arrived->pool, hello.pool);
  EXPECT_EQ(arrived->incarnation, hello.incarnation);
  EXPECT_EQ(arrived->seen, hello.seen);
  EXPECT_EQ(arrived->owner, hello.owner);
  EXPECT_TRUE(arrived->fresh);
  EXPECT_EQ(arrived->process, hello.process);
  EXPECT_EQ(arrived->predecessor, hello.predecessor);
  EXPECT_EQ(arrived->number, hello.number);
  EXPECT_EQ(arrived->epoch, hello.epoch);
  EXPECT_EQ(arrived->address, hello.address);
  EXPECT_EQ(arrived->socket, hello.socket);
  EXPECT_EQ(arrived->host, hello.host);
  EXPECT_EQ(arrived->tenant, hello.tenant);
  EXPECT_EQ(arrived->capacity_bytes, hello.capacity_bytes);
  EXPECT_TRUE(arrived->disk);
  EXPECT_EQ(arrived->opening, hello.opening);
  EXPECT_EQ(arrived->opening_before, hello.opening_before);
  const auto empty = Decode(Encode(OwnerHello{}), &DecodeOwnerHello);
  ASSERT_TRUE(empty);
  EXPECT_EQ(empty->number, kNoOwner);
  EXPECT_EQ(empty->address, "");
}

TEST(OwnerLinkWireTest, AWelcomeArrivesWhole) {
  const OwnerWelcome welcome{.pool = kPool,
                             .incarnation = kIncarnation,
                             .position = {.term = 5, .tag = 6, .revision = 7},
                             .forgotten = true,
                             .number = 14,
                             .epoch = 15,
                             .lease_ns = 16,
                             .resumed = true,
                             .tell_first = true,
                             .removals = 17,
                             .opening = Id128{.high = 18, .low = 19},
                             .rolled_back = true};
  const auto arrived = Decode(Encode(welcome), &DecodeOwnerWelcome);
  ASSERT_TRUE(arrived);
  EXPECT_EQ(arrived->pool, welcome.pool);
  EXPECT_EQ(arrived->incarnation, welcome.incarnation);
  EXPECT_EQ(arrived->position, welcome.position);
  EXPECT_TRUE(arrived->forgotten);
  EXPECT_EQ(arrived->number, welcome.number);
  EXPECT_EQ(arrived->epoch, welcome.epoch);
  EXPECT_EQ(arrived->lease_ns, welcome.lease_ns);
  EXPECT_TRUE(arrived->resumed);
  EXPECT_TRUE(arrived->tell_first);
  EXPECT_EQ(arrived->removals, welcome.removals);
  EXPECT_EQ(arrived->opening, welcome.opening);
  EXPECT_TRUE(arrived->rolled_back);
}

// A master that stores no openings differs from one that has none of this owner.
TEST(OwnerLinkWireTest, AWelcomeSaysWhetherTheMasterStoresOpenings) {
  EXPECT_FALSE(Decode(Encode(OwnerWelcome{}), &DecodeOwnerWelcome)->opening);
  EXPECT_EQ(Decode(Encode(OwnerWelcome{.opening = Id128{}}), &DecodeOwnerWelcome)->opening,
            Id128{});
}

TEST(OwnerLinkWireTest, ChangesArriveWholeAndEmpty) {
  for (const Changes& changes : {SomeChanges(), Changes{.slots = {}, .unnamed = {}}}) {
    const auto arrived = Decode(Encode(changes), &DecodeChanges);
    ASSERT_TRUE(arrived);
    ExpectSame(*arrived, changes);
  }
}

TEST(OwnerLinkWireTest, ARenewalAndItsAnswerArriveWhole) {
  const RenewRequest request{.number = 1,
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
                             .disk_hit_bytes = 23};
  const auto asked = Decode(Encode(request), &DecodeRenew);
  ASSERT_TRUE(asked);
  EXPECT_EQ(asked->number, 1);
  EXPECT_EQ(asked->epoch, 2U);
  EXPECT_EQ(asked->table, 3U);
  EXPECT_EQ(asked->naming, 4U);
  EXPECT_TRUE(asked->told);
  EXPECT_EQ(asked->free_bytes, 6U);
  EXPECT_EQ(asked->objects, 7U);
  EXPECT_EQ(asked->hits, 8U);
  EXPECT_EQ(asked->evictions, 9U);
  EXPECT_EQ(asked->stale_puts, 10U);
  EXPECT_EQ(asked->puts, 11U);
  EXPECT_TRUE(asked->partial);
  EXPECT_TRUE(asked->disk_away);
  EXPECT_EQ(asked->disks, 12U);
  EXPECT_EQ(asked->disks_aside, 13U);
  EXPECT_EQ(asked->disk_capacity_bytes, 14U);
  EXPECT_EQ(asked->disk_bytes, 15U);
  EXPECT_TRUE(asked->leased);
  EXPECT_TRUE(asked->disks_void);
  EXPECT_EQ(asked->opening, request.opening);
  EXPECT_EQ(asked->hit_bytes, 20U);
  EXPECT_EQ(asked->put_bytes, 21U);
  EXPECT_EQ(asked->disk_hits, 22U);
  EXPECT_EQ(asked->disk_hit_bytes, 23U);
  const RenewReply reply{.granted = true,
                         .lease_ns = 1,
                         .revision = 2,
                         .hidden = {7, 8, 4095},
                         .draining = true,
                         .changes = SomeChanges(),
                         .tell_again = true,
                         .doubted = true,
                         .disks_void = true,
                         .opening = {.high = 18, .low = 19}};
  const auto answered = Decode(Encode(reply), &DecodeRenewReply);
  ASSERT_TRUE(answered);
  EXPECT_TRUE(answered->granted);
  EXPECT_EQ(answered->lease_ns, 1);
  EXPECT_EQ(answered->revision, 2U);
  EXPECT_EQ(answered->hidden, reply.hidden);
  EXPECT_TRUE(answered->draining);
  EXPECT_TRUE(answered->tell_again);
  EXPECT_TRUE(answered->disks_void);
  EXPECT_EQ(answered->opening, reply.opening);
  ExpectSame(answered->changes, reply.changes);
  const auto empty = Decode(
      Encode(RenewReply{.hidden = {}, .changes = {.slots = {}, .unnamed = {}}}), &DecodeRenewReply);
  ASSERT_TRUE(empty);
  EXPECT_TRUE(empty->hidden.empty());
}

TEST(OwnerLinkWireTest, AWatchArrivesWhole) {
  const auto arrived = Decode(
      Encode(WatchRequest{
          .number = 1, .epoch = 2, .table = 3, .naming = 4, .partial = true, .opening = {5, 6}}),
      &DecodeWatch);
  ASSERT_TRUE(arrived);
  EXPECT_EQ(arrived->number, 1);
  EXPECT_EQ(arrived->epoch, 2U);
  EXPECT_EQ(arrived->table, 3U);
  EXPECT_EQ(arrived->naming, 4U);
  EXPECT_TRUE(arrived->partial);
  EXPECT_EQ(arrived->opening, (Id128{5, 6}));
}

TEST(OwnerLinkWireTest, RemovalsThatAreOpenArriveAndAreBounded) {
  RemovalsRequest request{
      .after = 3, .matched = {}, .ahead = 9, .open = {4, 7}, .dropping = {0, 4095}};
  const auto asked = Decode(Encode(request), &DecodeRemovalsRequest);
  ASSERT_TRUE(asked);
  EXPECT_EQ(asked->after, 3U);
  EXPECT_EQ(asked->ahead, 9U);
  EXPECT_EQ(asked->seen(), 9U);
  EXPECT_EQ(asked->open, (std::vector<std::uint64_t>{4, 7}));
  EXPECT_EQ(asked->dropping, request.dropping);
  request.open.assign(kMaxOpenRemovals, 5);
  EXPECT_TRUE(Decode(Encode(request), &DecodeRemovalsRequest));
  request.open.push_back(5);
  EXPECT_EQ(Decode(Encode(request), &DecodeRemovalsRequest).error().code, Code::kCorrupt);
}

// To a master of an earlier version it is the message that it knows.
TEST(OwnerLinkWireTest, WithoutOpenRemovalsARequestHasTheBytesOfBefore) {
  EXPECT_EQ(Encode(RemovalsRequest{.after = 3, .matched = {}, .ahead = 3}),
            Encode(RemovalsRequest{.after = 3, .matched = {}}));
}

TEST(OwnerLinkWireTest, RemovalsArriveWholeAndEmpty) {
  const RemovalsRequest request{.number = 1,
                                .epoch = 2,
                                .after = 3,
                                .matched = {{.number = 4, .objects = 5}, {.number = 6}},
                                .dropped = 7};
  const auto asked = Decode(Encode(request), &DecodeRemovalsRequest);
  ASSERT_TRUE(asked);
  EXPECT_EQ(asked->number, 1);
  EXPECT_EQ(asked->epoch, 2U);
  EXPECT_EQ(asked->after, 3U);
  EXPECT_EQ(asked->dropped, 7U);
  ASSERT_EQ(asked->matched.size(), 2U);
  EXPECT_EQ(asked->matched[0].objects, 5U);
  EXPECT_EQ(asked->seen(), 3U);
  EXPECT_TRUE(asked->open.empty());
  EXPECT_TRUE(Decode(Encode(RemovalsRequest{.matched = {}}), &DecodeRemovalsRequest));
  const RemovalsPage page{
      .drop = {1, 4095},
      .drop_number = 3,
      .removals = {{.number = 9, .slot = 1, .generation = 7, .keys = {"a", "", "b"}, .pattern = ""},
                   {.number = 10, .slot = 2, .generation = 8, .keys = {}, .pattern = "x*"}},
      .upto = 11,
      .more = true,
      .takes_dropping = true};
  const auto answered = Decode(Encode(page), &DecodeRemovalsPage);
  ASSERT_TRUE(answered);
  EXPECT_EQ(answered->drop, page.drop);
  EXPECT_EQ(answered->drop_number, 3U);
  EXPECT_EQ(answered->removals, page.removals);
  EXPECT_EQ(answered->upto, 11U);
  EXPECT_TRUE(answered->more);
  EXPECT_TRUE(answered->takes_dropping);
  EXPECT_TRUE(Decode(Encode(RemovalsPage{.drop = {}, .removals = {}}), &DecodeRemovalsPage));
}

TEST(OwnerLinkWireTest, AListingArrivesWhole) {
  for (const std::size_t count : {0, 1, 2, 7, 4096}) {
    ListRequest request{.number = 1, .epoch = 2, .sequence = 3, .applied = 4, .items = {}};
    for (std::size_t i = 0; i < count; ++i) request.items.push_back(SomeItem(i));
    const auto arrived = Decode(Encode(request), &DecodeList);
    ASSERT_TRUE(arrived) << count;
    EXPECT_EQ(arrived->applied, 4U);
    ASSERT_EQ(arrived->items.size(), count);
    for (std::size_t i = 0; i < count; ++i) {
      const ListItem expected = SomeItem(i);
      const ListItem& item = arrived->items[i];
      EXPECT_EQ(item.hash, expected.hash);
      EXPECT_EQ(item.generation, expected.generation);
      EXPECT_EQ(item.size_bytes, expected.size_bytes);
      EXPECT_EQ(item.group, expected.group);
      EXPECT_EQ(item.slot, expected.slot);
      EXPECT_EQ(item.gone, expected.gone);
      EXPECT_EQ(item.inventory, expected.inventory);
      EXPECT_EQ(item.returns, expected.returns);
      EXPECT_EQ(item.copies, expected.copies);
      EXPECT_EQ(item.tier, expected.tier);
      EXPECT_EQ(item.removals, expected.removals);
      EXPECT_EQ(item.copied_at, expected.copied_at);
    }
  }
}

TEST(OwnerLinkWireTest, AListingsAnswerHasOneCodeAnItem) {
  const ListReply reply{.codes = {Code::kOk, Code::kExists, Code::kStale}, .credit = 4096};
  const auto arrived = Decode(Encode(reply), &DecodeListReply, std::size_t{3});
  ASSERT_TRUE(arrived);
  EXPECT_EQ(arrived->codes, reply.codes);
  EXPECT_EQ(arrived->credit, 4096U);
  for (const std::size_t expected : {0, 2, 4}) {
    const auto other = Decode(Encode(reply), &DecodeListReply, expected);
    ASSERT_FALSE(other);
    EXPECT_EQ(other.error().code, Code::kCorrupt);
  }
  EXPECT_TRUE(Decode(Encode(ListReply{.codes = {}}), &DecodeListReply, std::size_t{0}));
  const ListReply odd{.codes = {static_cast<Code>(kMaxCode + 1)}};
  EXPECT_FALSE(Decode(Encode(odd), &DecodeListReply, std::size_t{1}));
}

TEST(OwnerLinkWireTest, ColumnsOfDifferentLengthsAreCorrupt) {
  constexpr std::uint32_t kCount = 1301;  // as a length only
  ListRequest request{.number = 1, .epoch = 2, .sequence = 3, .items = {}};
  for (std::uint32_t i = 0; i < kCount; ++i) {
    request.items.push_back(SomeItem(1));
  }
  const std::string whole = Encode(request);
  int columns = 0;
  for (std::size_t at = 0; at + 4 <= whole.size(); at += 4) {
    std::uint32_t word = 0;
    std::memcpy(&word, whole.data() + at, 4);
    if (word != kCount) continue;
    ++columns;
    for (const std::uint32_t length : {0U, kCount - 1}) {
      std::string other = whole;
      std::memcpy(other.data() + at, &length, 4);
      const auto arrived = Decode(other, &DecodeList);
      ASSERT_FALSE(arrived) << "column " << columns;
      EXPECT_EQ(arrived.error().code, Code::kCorrupt);
    }
  }
  EXPECT_EQ(columns, 10);
}

TEST(OwnerLinkWireTest, SlotsAndTiersThatCannotBeAreCorrupt) {
  ListRequest request{.items = {SomeItem(1)}};
  request.items[0].slot = kMaxSlots;
  EXPECT_EQ(Decode(Encode(request), &DecodeList).error().code, Code::kCorrupt);
  request.items[0] = SomeItem(1);
  request.items[0].tier = static_cast<Tier>(kTiers);
  EXPECT_EQ(Decode(Encode(request), &DecodeList).error().code, Code::kCorrupt);
  Changes changes = SomeChanges();
  changes.unnamed = {kMaxSlots};
  EXPECT_FALSE(Decode(Encode(changes), &DecodeChanges));
  changes = SomeChanges();
  changes.slots[0].slot = kMaxSlots;
  EXPECT_FALSE(Decode(Encode(changes), &DecodeChanges));
  EXPECT_FALSE(
      Decode(Encode(RenewReply{.hidden = {kMaxSlots}, .changes = {.slots = {}, .unnamed = {}}}),
             &DecodeRenewReply));
  EXPECT_FALSE(
      Decode(Encode(RemovalsPage{.drop = {kMaxSlots}, .removals = {}}), &DecodeRemovalsPage));
  EXPECT_FALSE(
      Decode(Encode(RemovalsPage{.drop = {},
                                 .removals = {{.slot = kMaxSlots, .keys = {}, .pattern = {}}}}),
             &DecodeRemovalsPage));
}

TEST(OwnerLinkWireTest, BytesThatAreCutAreCorrupt) {
  ListRequest request{.number = 1, .epoch = 2, .sequence = 3, .items = {SomeItem(1), SomeItem(2)}};
  const std::string whole = Encode(request);
  for (std::size_t cut = 0; cut + 8 <= whole.size(); ++cut) {
    const auto arrived = Decode(whole.substr(0, cut), &DecodeList);
    if (arrived) {
      EXPECT_LE(arrived->items.size(), 2U) << cut;
    } else {
      EXPECT_EQ(arrived.error().code, Code::kCorrupt) << cut;
    }
  }
}

}  // namespace
}  // namespace kvcove::wire
