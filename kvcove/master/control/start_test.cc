// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/control/start.h"

#include <gtest/gtest.h>

namespace kvcove::master {
namespace {

constexpr std::int64_t kNow = 50 * kSecond;
constexpr Id128 kOwner{.high = 1, .low = 1};

// What the store holds after the plan's changes.
Facts After(Facts facts, const StartPlan& plan) {
  ApplyTransaction(plan.changes, plan.leadership.position.revision, facts);
  return facts;
}

// What its master has stored when it ends, a second or more after its start.
Facts Ended(Facts facts, bool cleanly) {
  PoolFact pool = *Decode(facts)->pool;
  pool.clean_end = cleanly;
  pool.unknown_leases = false;
  facts["pool"].value = Encode(pool);
  return facts;
}

TEST(StartTest, AFirstStartDrawsAPool) {
  const auto plan = PlanStart({}, 0, kSecond, kNow);
  ASSERT_TRUE(plan);
  EXPECT_NE(plan->leadership.pool, Id128{});
  EXPECT_TRUE(plan->leadership.new_pool);
  EXPECT_EQ(plan->leadership.position.term, 1U);
  EXPECT_EQ(plan->leadership.position.revision, 1U) << "that of its own changes";
  EXPECT_EQ(plan->leadership.terms.size(), 1U);
  const auto stored = Decode(After({}, *plan));
  ASSERT_TRUE(stored);
  EXPECT_EQ(stored->pool, plan->state.pool);
  EXPECT_EQ(stored->terms, plan->state.terms);
  EXPECT_FALSE(stored->pool->clean_end);
  EXPECT_EQ(stored->pool->longest_lease_ns, kSecond);
  EXPECT_NE(PlanStart({}, 0, kSecond, kNow)->leadership.pool, plan->leadership.pool);
}

TEST(StartTest, WithoutAStoreOwnersThatNobodyKnowsMayHoldLeases) {
  const auto plan = PlanStart({}, 0, kSecond, kNow);
  EXPECT_EQ(plan->unknown_leases_until_ns, kNow + kSecond / 100 * 101) << "1 % for drift";
  EXPECT_EQ(plan->leases_until_ns, 0);
}

TEST(StartTest, ACleanEndLeavesNoLeaseToWaitFor) {
  const auto first = PlanStart({}, 0, kSecond, kNow);
  const auto plan = PlanStart(Ended(After({}, *first), true), 5, kSecond, kNow);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->leases_until_ns, 0);
  EXPECT_EQ(plan->unknown_leases_until_ns, 0);
  EXPECT_FALSE(plan->state.pool->clean_end) << "this master may give some";
  EXPECT_EQ(plan->leadership.pool, first->leadership.pool);
  EXPECT_EQ(plan->state.pool->incarnation, first->state.pool->incarnation);
}

TEST(StartTest, AfterACrashTheLongestLeaseEverConfiguredIsWaitedFor) {
  Facts facts = Ended(After({}, *PlanStart({}, 0, 10 * kSecond, kNow)), false);
  facts = After(facts, *PlanStart(facts, 1, kSecond, kNow));  // a shorter one is configured now
  const auto plan = PlanStart(facts, 2, kSecond, kNow);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->leases_until_ns, kNow + 10 * kSecond / 100 * 101);
  EXPECT_EQ(plan->unknown_leases_until_ns, 0) << "all owners with a lease are members";
  EXPECT_EQ(plan->state.pool->longest_lease_ns, 10 * kSecond);
}

TEST(StartTest, EachStartIsATermWithATagOfItsOwn) {
  Facts facts;
  std::uint64_t revision = 0;
  std::set<std::uint64_t> tags;
  for (std::uint64_t term = 1; term <= kTermsKept + 10; ++term) {
    const auto plan = PlanStart(facts, revision, kSecond, kNow);
    ASSERT_TRUE(plan);
    EXPECT_EQ(plan->leadership.position.term, term);
    EXPECT_TRUE(tags.insert(plan->leadership.position.tag).second);
    EXPECT_LE(plan->leadership.terms.size(), kTermsKept);
    EXPECT_EQ(plan->leadership.terms.back().first_revision, revision + 1);
    facts = After(facts, *plan);
    revision = plan->leadership.position.revision + 3;  // it stores some facts, too
  }
  const auto state = Decode(facts);
  EXPECT_EQ(state->terms.size(), kTermsKept);
  EXPECT_EQ(state->terms.front().term, 11U) << "the oldest are forgotten";
}

TEST(StartTest, ADamagedFactIsNamed) {
  Facts facts = After({}, *PlanStart({}, 0, kSecond, kNow));
  facts["pool"].value.pop_back();
  const auto plan = PlanStart(facts, 1, kSecond, kNow);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, Code::kCorrupt);
  EXPECT_NE(plan.error().detail.find("'pool'"), std::string::npos);
}

// A master whose store is lost may start several times before an owner finds it.
TEST(StartTest, APoolThatNobodyJoinedYetMayStillTakeTheIdThatOwnersKnow) {
  const auto first = PlanStart({}, 0, kSecond, kNow);
  Facts facts = After({}, *first);
  const auto second = PlanStart(facts, 1, kSecond, kNow);
  EXPECT_EQ(second->leadership.pool, first->leadership.pool);
  EXPECT_TRUE(second->leadership.new_pool);
  facts[MemberKey(kOwner)] = {.value = Encode(MemberFact{}), .revision = 2};
  EXPECT_FALSE(PlanStart(facts, 2, kSecond, kNow)->leadership.new_pool);
}

TEST(StartTest, OwnersThatNobodyKnowsAreWaitedForUntilOneStartHasOutlivedThem) {
  const auto first = PlanStart({}, 0, kSecond, kNow);
  const auto second = PlanStart(After({}, *first), 1, kSecond, kNow + kMillisecond);
  EXPECT_GE(second->unknown_leases_until_ns, first->unknown_leases_until_ns)
      << "the store was lost a millisecond ago";
  PoolFact pool = *second->state.pool;
  pool.clean_end = true;  // nor did that master give any
  const Facts facts = {{"pool", {.value = Encode(pool), .revision = 2}}};
  EXPECT_GT(PlanStart(facts, 2, kSecond, kNow + kMillisecond)->unknown_leases_until_ns, kNow);
  EXPECT_EQ(PlanStart(Ended(facts, true), 2, kSecond, kNow)->unknown_leases_until_ns, 0);
}

TEST(StartTest, AnOpeningThatAnEarlierVersionLeftIsDeleted) {
  Facts facts = After({}, *PlanStart({}, 0, kSecond, kNow));
  constexpr Id128 kEnded{.high = 2, .low = 2};
  facts[MemberKey(kOwner)] = {.value = Encode(MemberFact{}), .revision = 1};
  for (const Id128& member : {kOwner, kEnded}) {
    facts[OpeningKey(member)] = {.value = Encode(OpeningFact{.opening = member}), .revision = 1};
  }
  const auto plan = PlanStart(facts, 1, kSecond, kNow);
  ASSERT_TRUE(plan);
  const Facts after = After(facts, *plan);
  EXPECT_TRUE(after.contains(OpeningKey(kOwner)));
  EXPECT_FALSE(after.contains(OpeningKey(kEnded)));
}

// ---- the first format

Restored OldFile() {
  using Kind = OldRecord::Kind;
  return {
      .incarnation = {.high = 5, .low = 6},
      .records =
          {{.kind = Kind::kStart, .generation = 4, .name = {}, .version = {}},
           {.kind = Kind::kSlot, .slot = 1, .generation = 10, .name = "acme", .version = "v1"},
           {.kind = Kind::kSlot, .slot = 2, .generation = 11, .name = "gone", .version = {}},
           {.kind = Kind::kRaise, .slot = 1, .generation = 1ULL << 60, .name = {}, .version = {}},
           {.kind = Kind::kRaise, .slot = 9, .generation = 13, .name = {}, .version = {}},
           {.kind = Kind::kDropSlot, .slot = 2, .name = {}, .version = {}},
           {.kind = Kind::kMissed, .slot = 1, .name = {}, .version = {}},
           {.kind = Kind::kEngineReset, .name = "acme", .version = {}}},
      .running_lease_ns = 2 * kSecond};
}

TEST(StartTest, AFileOfTheFirstFormatBecomesTheTable) {
  const Restored old = OldFile();
  const auto plan = PlanStart({}, 0, kSecond, kNow, &old);
  ASSERT_TRUE(plan);
  const auto stored = Decode(After({}, *plan));
  ASSERT_TRUE(stored);
  for (const StoredState* state : {&plan->state, &*stored}) {
    EXPECT_EQ(state->pool->incarnation, old.incarnation);
    ASSERT_EQ(state->slots.size(), 1U);
    EXPECT_EQ(state->slots[0].slot, 1);
    EXPECT_EQ(state->slots[0].fact,
              (SlotFact{.generation = 1ULL << 60, .free = false, .name = "acme", .version = "v1"}));
    EXPECT_EQ(state->slots[0].revision, plan->leadership.position.revision);
    EXPECT_EQ(state->engine_resets, std::vector<std::string>{EngineResetKey("acme")});
  }
}

TEST(StartTest, NumbersGoOnAboveThoseOfTheFirstFormat) {
  const Restored old = OldFile();
  const auto plan = PlanStart({}, 0, kSecond, kNow, &old);
  EXPECT_GT(plan->state.pool->counter, Generations::CounterOf(1ULL << 60));
}

TEST(StartTest, LeasesOfAMasterOfTheFirstFormatAreWaitedFor) {
  Restored old = OldFile();
  const auto crashed = PlanStart({}, 0, kSecond, kNow, &old);
  EXPECT_EQ(crashed->unknown_leases_until_ns, kNow + 2 * kSecond / 100 * 101)
      << "its owners are no members";
  old.running_lease_ns = 0;
  const auto ended = PlanStart({}, 0, kSecond, kNow, &old);
  EXPECT_EQ(ended->unknown_leases_until_ns, 0);
  EXPECT_EQ(ended->leases_until_ns, 0);
}

TEST(StartTest, TheFirstFormatCountsOnlyForAStoreThatHoldsNothing) {
  const Facts facts = After({}, *PlanStart({}, 0, kSecond, kNow));
  const Restored old = OldFile();
  const auto plan = PlanStart(facts, 1, kSecond, kNow, &old);
  EXPECT_TRUE(plan->state.slots.empty());
  EXPECT_NE(plan->state.pool->incarnation, old.incarnation);
}

// An earlier build has stored their slots alone. Which was named first is not known, so none of
// them is before another, and all are before those that are named from now on.
TEST(StartTest, VersionsOfAnEarlierBuildAreNamedNow) {
  Facts facts = After({}, *PlanStart({}, 0, kSecond, kNow));
  const auto slot = [&](SlotId number, std::uint64_t counter, const std::string& version) {
    facts[SlotKey(number)] = {
        .value = Encode(SlotFact{.generation = counter << 24, .name = "m", .version = version}),
        .revision = 2};
  };
  const std::uint64_t counter = Decode(facts)->pool->counter;
  slot(0, counter + 1, "");
  slot(1, counter + 3, "v2");
  slot(2, counter + 2, "v1");
  const auto plan = PlanStart(facts, 2, kSecond, kNow);
  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->state.versions.size(), 2U) << "the slot without a version has no place";
  for (const VersionFact& version : plan->state.versions) EXPECT_EQ(version.number, counter + 3);
  facts = After(facts, *plan);
  EXPECT_EQ(Decode(facts)->versions.size(), 2U);
  const auto next = PlanStart(facts, 3, kSecond, kNow);
  EXPECT_EQ(next->state.versions.size(), 2U) << "once";
}

// One that is left without a number would later count as named after those that are named now.
TEST(StartTest, VeryManyVersionsOfAnEarlierBuildAreNamedInOneStart) {
  Facts facts = After({}, *PlanStart({}, 0, kSecond, kNow));
  for (SlotId number = 0; number < kMaxSlots; ++number) {
    std::string version = std::to_string(number);
    version.resize(kMaxNameBytes, 'v');
    facts[SlotKey(number)] = {
        .value = Encode(
            SlotFact{.generation = 1, .name = std::string(kMaxNameBytes, 'n'), .version = version}),
        .revision = 2};
  }
  const auto plan = PlanStart(facts, 2, kSecond, kNow);
  ASSERT_TRUE(plan);
  const Status fits = CheckTransaction(plan->changes);
  EXPECT_TRUE(fits) << fits.error().ToString();
  EXPECT_EQ(Decode(After(facts, *plan))->versions.size(), kMaxSlots);
}

TEST(StartTest, AnImportOfVeryManyLeavesSomeVersionsToTheNextStart) {
  Restored old;
  old.incarnation = RandomId();
  for (SlotId number = 0; number < kMaxSlots; ++number) {
    std::string version = std::to_string(number);
    version.resize(kMaxNameBytes, 'v');
    old.records.push_back({.kind = OldRecord::Kind::kSlot,
                           .slot = number,
                           .generation = (number + 1ULL) << 24,
                           .reset_id = {},
                           .name = std::string(kMaxNameBytes, 'n'),
                           .version = version});
  }
  const auto first = PlanStart({}, 0, kSecond, kNow, &old);
  ASSERT_TRUE(first);
  ASSERT_TRUE(CheckTransaction(first->changes));
  const Facts facts = After({}, *first);
  EXPECT_LT(Decode(facts)->versions.size(), kMaxSlots);
  const auto next = PlanStart(facts, 1, kSecond, kNow);
  ASSERT_TRUE(CheckTransaction(next->changes));
  EXPECT_EQ(Decode(After(facts, *next))->versions.size(), kMaxSlots);
}

}  // namespace
}  // namespace kvcove::master
