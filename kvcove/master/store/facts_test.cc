// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/store/facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/golden.h"

namespace kvcove::master {
namespace {

constexpr Id128 kOwner{.high = 0xA1, .low = 0xB2};
constexpr Id128 kReset{.high = 0xC3, .low = 0xD4};

Facts With(const std::string& key, std::string value, std::uint64_t revision = 1) {
  Facts facts;
  facts[key] = {.value = std::move(value), .revision = revision};
  return facts;
}

TEST(FactsTest, ThePoolComesBackAsItWasStored) {
  const PoolFact pool{.pool = {.high = 1, .low = 2},
                      .incarnation = {.high = 3, .low = 4},
                      .counter = 0xFFFFFFFFFF,
                      .longest_lease_ns = 5'000'000'000,
                      .clean_end = true};
  const auto state = Decode(With("pool", Encode(pool)));
  ASSERT_TRUE(state);
  EXPECT_EQ(state->pool, pool);
}

TEST(FactsTest, TermsComeBackInTheirOrder) {
  std::vector<TermFact> terms;
  for (std::uint64_t term = 1; term <= kTermsKept; ++term) {
    terms.push_back({.term = term, .tag = term * 77, .first_revision = term * 10});
  }
  const auto state = Decode(With("terms", Encode(terms)));
  ASSERT_TRUE(state);
  EXPECT_EQ(state->terms, terms);
}

TEST(FactsTest, ASlotComesBackWithItsRevision) {
  const SlotFact used{.generation = 7, .free = false, .name = "acme", .version = "v1"};
  const SlotFact free{.generation = 9, .free = true, .name = "", .version = ""};
  Facts facts = With(SlotKey(0), Encode(used), 30);
  facts[SlotKey(kMaxSlots - 1)] = {.value = Encode(free), .revision = 31};
  const auto state = Decode(facts);
  ASSERT_TRUE(state);
  ASSERT_EQ(state->slots.size(), 2U);
  EXPECT_EQ(state->slots[0].fact, used);
  EXPECT_EQ(state->slots[0].revision, 30U);
  EXPECT_EQ(state->slots[1].slot, kMaxSlots - 1);
  EXPECT_EQ(state->slots[1].fact, free);
}

TEST(FactsTest, AMemberAndItsBarrierComeBack) {
  const MemberFact member{.number = 17,
                          .disk = true,
                          .address = "h:1",
                          .host = "h",
                          .tenant = "t",
                          .joined_s = 1'700'000'000};
  const BarrierFact barrier{.term = 3, .acknowledged = (3ULL << 40) + 5};
  Facts facts = With(MemberKey(kOwner), Encode(member));
  facts[BarrierKey(kOwner, 12)] = {.value = Encode(barrier), .revision = 2};
  const OpeningFact opening{.opening = {.high = 5, .low = 6}};
  facts[OpeningKey(kOwner)] = {.value = Encode(opening), .revision = 3};
  const auto state = Decode(facts);
  ASSERT_TRUE(state);
  ASSERT_EQ(state->members.size(), 1U);
  EXPECT_EQ(state->members[0].id, kOwner);
  EXPECT_EQ(state->members[0].fact, member);
  ASSERT_EQ(state->barriers.size(), 1U);
  EXPECT_EQ(state->barriers[0].member, kOwner);
  EXPECT_EQ(state->barriers[0].slot, 12);
  EXPECT_EQ(state->barriers[0].fact, barrier);
  ASSERT_EQ(state->openings.size(), 1U);
  EXPECT_EQ(state->openings[0].member, kOwner);
  EXPECT_EQ(state->openings[0].fact, opening);
}

TEST(FactsTest, ResetsComeOldestFirstWhateverTheirIdsAre) {
  Facts facts = With(ResetKey("t", {.high = 9, .low = 9}), "", 5);
  facts[ResetKey("t", {.high = 1, .low = 1})] = {.value = "", .revision = 6};
  facts[ResetKey("", kReset)] = {.value = "", .revision = 4};
  const auto state = Decode(facts);
  ASSERT_TRUE(state);
  ASSERT_EQ(state->reset_ids.size(), 3U);
  EXPECT_EQ(state->reset_ids[0].id, kReset);
  EXPECT_EQ(state->reset_ids[0].tenant, "");
  EXPECT_EQ(state->reset_ids[1].tenant, "t");
  EXPECT_EQ(state->reset_ids[1].id, (Id128{.high = 9, .low = 9}));
  EXPECT_EQ(state->reset_ids[2].id, (Id128{.high = 1, .low = 1}));
}

TEST(FactsTest, ANamespaceThatAnEngineResetIsKnownByAShortKey) {
  const std::string key = EngineResetKey(std::string(kMaxNameBytes, 'n'));
  EXPECT_LE(key.size(), kMaxFactKeyBytes);
  EXPECT_NE(key, EngineResetKey("other"));
  const auto state = Decode(With(key, ""));
  ASSERT_TRUE(state);
  EXPECT_EQ(state->engine_resets, std::vector<std::string>{key});
}

TEST(FactsTest, AVersionAndWhatIsPrunedComeBack) {
  const VersionFact version{
      .number = 1ULL << 39, .name = std::string(kMaxNameBytes, 'n'), .version = "step/7"};
  const PrunedFact pruned{.before = 7, .name = "acme"};
  EXPECT_LE(VersionKey(version.name, version.version).size(), kMaxFactKeyBytes);
  EXPECT_NE(VersionKey("a", "bc"), VersionKey("ab", "c"));
  Facts facts = With(VersionKey(version.name, version.version), Encode(version));
  facts[PrunedKey("acme")] = {.value = Encode(pruned), .revision = 2};
  const auto state = Decode(facts);
  ASSERT_TRUE(state);
  EXPECT_EQ(state->versions, std::vector{version});
  EXPECT_EQ(state->pruned, std::vector{pruned});
  EXPECT_FALSE(Decode(With(VersionKey("other", "step/7"), Encode(version)))) << "another's key";
  EXPECT_FALSE(Decode(With(PrunedKey("other"), Encode(pruned))));
}

TEST(FactsTest, TombstonesComeBack) {
  TombstonesFact full{.number = 12, .tenant = "acme", .versions = {}};
  while (full.versions.size() < kTombstonesInFact) {
    full.versions.push_back(VersionHash("m", std::to_string(full.versions.size())));
  }
  EXPECT_LE(Encode(full).size(), kMaxFactValueBytes);
  EXPECT_NE(VersionHash("a", "bc"), VersionHash("ab", "c"));
  const TombstonesFact one{.number = 12, .tenant = "", .versions = {7}};
  Facts facts = With(TombstonesKey("acme", 12), Encode(full));
  facts[TombstonesKey("", 12)] = {.value = Encode(one), .revision = 2};
  const auto state = Decode(facts);
  ASSERT_TRUE(state);
  EXPECT_THAT(state->tombstones, testing::UnorderedElementsAre(full, one));
  EXPECT_FALSE(Decode(With(TombstonesKey("acme", 13), Encode(full)))) << "another's key";
}

TEST(FactsTest, AFactOfALaterVersionIsRefusedWithItsKey) {
  const std::vector<std::pair<std::string, std::string>> all = {
      {"pool", Encode(PoolFact{})},
      {"terms", Encode(std::vector<TermFact>(2))},
      {SlotKey(3), Encode(SlotFact{})},
      {MemberKey(kOwner), Encode(MemberFact{})},
      {OpeningKey(kOwner), Encode(OpeningFact{})},
      {VersionKey("acme", "v"), Encode(VersionFact{.name = "acme", .version = "v"})},
      {PrunedKey("acme"), Encode(PrunedFact{.name = "acme"})},
      {TombstonesKey("acme", 1),
       Encode(TombstonesFact{.number = 1, .tenant = "acme", .versions = {}})},
      {BarrierKey(kOwner, 3), Encode(BarrierFact{})}};
  for (const auto& [key, value] : all) {
    ASSERT_TRUE(Decode(With(key, value))) << key;
    std::string later = value;
    later[0] = 2;
    const auto state = Decode(With(key, later));
    ASSERT_FALSE(state) << key;
    EXPECT_EQ(state.error().code, Code::kCorrupt);
    EXPECT_NE(state.error().detail.find(key), std::string::npos) << state.error().detail;
  }
}

TEST(FactsTest, AFactThatIsCutOrTooLongIsRefused) {
  const std::vector<std::pair<std::string, std::string>> all = {
      {"pool", Encode(PoolFact{})},
      {"terms", Encode(std::vector<TermFact>(2))},
      {SlotKey(3), Encode(SlotFact{.name = "acme", .version = "v"})},
      {MemberKey(kOwner), Encode(MemberFact{.address = "h:1", .host = "h", .tenant = "t"})},
      {OpeningKey(kOwner), Encode(OpeningFact{})},
      {VersionKey("acme", "v"), Encode(VersionFact{.name = "acme", .version = "v"})},
      {PrunedKey("acme"), Encode(PrunedFact{.name = "acme"})},
      {TombstonesKey("acme", 1),
       Encode(TombstonesFact{.number = 1, .tenant = "acme", .versions = {7, 8}})},
      {BarrierKey(kOwner, 3), Encode(BarrierFact{})}};
  for (const auto& [key, value] : all) {
    for (std::size_t cut = 0; cut < value.size(); ++cut) {
      EXPECT_FALSE(Decode(With(key, value.substr(0, cut)))) << key << " cut at " << cut;
    }
    EXPECT_FALSE(Decode(With(key, value + '\0'))) << key;
  }
}

TEST(FactsTest, AKeyThatNamesNothingPossibleIsRefused) {
  for (const char* key : {"slot/4096", "slot/", "slot/-1", "slot/1x", "member/12", "member/",
                          "barrier/12/3", "barrier/00000000000000a100000000000000b2/4096",
                          "barrier/00000000000000a100000000000000b2", "reset/12", "reset/t/xyz"}) {
    const std::string name(key);
    const std::string value = name.starts_with("slot")     ? Encode(SlotFact{})
                              : name.starts_with("member") ? Encode(MemberFact{})
                                                           : Encode(BarrierFact{});
    const auto state = Decode(With(name, value));
    ASSERT_FALSE(state) << key;
    EXPECT_NE(state.error().detail.find(key), std::string::npos);
  }
}

TEST(FactsTest, KeysOfALaterKvcoveAreLeftAlone) { EXPECT_TRUE(Decode(With("shards", "anything"))); }

// Masters of other builds read the same store.
TEST(FactsTest, GoldenBytes) {
  const GoldenBytes golden = {
      {"pool",
       "010100000000000000020000000000000003000000000000000400000000000000050000000000000006"
       "0000000000000003"},
      {"terms",
       "010200010000000000000002000000000000000300000000000000040000000000000005000000000000"
       "000600000000000000"},
      {"slot", "01070000000000000000040061636d6502007631"},
      {"free slot", "0109000000000000000100000000"},
      {"member", "0111000100f15365000000000300683a31010068010074"},
      {"barrier", "0103000000000000000500000000030000"},
      {"opening", "0105000000000000000600000000000000"},
      {"version", "010800000000000000040061636d6502007631"},
      {"pruned", "010700000000000000040061636d65"},
      {"tombstones", "010c000000010074020007000000000000000800000000000000"},
  };
  ExpectGolden(
      {
          {"pool", Encode(PoolFact{.pool = {.high = 1, .low = 2},
                                   .incarnation = {.high = 3, .low = 4},
                                   .counter = 5,
                                   .longest_lease_ns = 6,
                                   .clean_end = true,
                                   .unknown_leases = true})},
          {"terms", Encode(std::vector<TermFact>{{.term = 1, .tag = 2, .first_revision = 3},
                                                 {.term = 4, .tag = 5, .first_revision = 6}})},
          {"slot", Encode(SlotFact{.generation = 7, .name = "acme", .version = "v1"})},
          {"free slot", Encode(SlotFact{.generation = 9, .free = true, .name = "", .version = ""})},
          {"member", Encode(MemberFact{.number = 17,
                                       .disk = true,
                                       .address = "h:1",
                                       .host = "h",
                                       .tenant = "t",
                                       .joined_s = 1'700'000'000})},
          {"barrier", Encode(BarrierFact{.term = 3, .acknowledged = (3ULL << 40) + 5})},
          {"opening", Encode(OpeningFact{.opening = {.high = 5, .low = 6}})},
          {"version", Encode(VersionFact{.number = 8, .name = "acme", .version = "v1"})},
          {"pruned", Encode(PrunedFact{.before = 7, .name = "acme"})},
          {"tombstones", Encode(TombstonesFact{.number = 12, .tenant = "t", .versions = {7, 8}})},
      },
      golden);
  EXPECT_EQ(fmt::format("{:016x}", VersionHash("acme", "v1")), "5a0e1c1563d17d9f");
  EXPECT_EQ(SlotKey(12), "slot/00012");
  EXPECT_EQ(MemberKey(kOwner), "member/00000000000000a100000000000000b2");
  EXPECT_EQ(BarrierKey(kOwner, 12), "barrier/00000000000000a100000000000000b2/00012");
  EXPECT_EQ(OpeningKey(kOwner), "opening/00000000000000a100000000000000b2");
  EXPECT_EQ(ResetKey("t", kReset), "reset/t/00000000000000c300000000000000d4");
  EXPECT_EQ(EngineResetKey("acme"), "engine-reset/7684eb713db02a66ad39b57d0437c4fe");
  EXPECT_EQ(VersionKey("acme", "v1"),
            "version/7684eb713db02a66ad39b57d0437c4fe/3e1dc5aef1ac85aa6f6264cf5b5d8574");
  EXPECT_EQ(PrunedKey("acme"), "pruned/7684eb713db02a66ad39b57d0437c4fe");
  EXPECT_EQ(TombstonesKey("t", 12), "tombstones/20410759848222a51de85fe4a433ad4e/00012");
}

}  // namespace
}  // namespace kvcove::master
