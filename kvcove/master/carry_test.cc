// SPDX-License-Identifier: Apache-2.0
// The master's state machines go on in a successor's process as if there had been one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "kvcove/base/carry_over.h"
#include "kvcove/master/control/generations_fixture.h"
#include "kvcove/master/control/members_fixture.h"
#include "kvcove/master/control/removal_log.h"
#include "kvcove/master/control/slot_table.h"
#include "kvcove/master/directory/directory_service.h"
#include "kvcove/master/directory/removal_memory.h"
#include "kvcove/master/server/tasks.h"

namespace kvcove::master {
namespace {

constexpr std::uint64_t kTerm = 4;
constexpr SlotId kSlot = 3;

TEST(SlotTableCarryTest, LeadsOwnersOnFromWhereTheyAre) {
  SlotTable before;
  before.Set({.slot = 1, .generation = 5, .name = "acme"}, 10);
  before.Set({.slot = 2, .generation = 6, .name = "other"}, 11);
  SlotTable after;
  CarryOver(before, after);
  EXPECT_EQ(after.revision(), 11U);
  EXPECT_EQ(after.Since(10).slots, before.Since(10).slots);
  EXPECT_TRUE(after.Set({.slot = 1, .generation = 7, .name = "acme"}, 12)) << "it was known";
  EXPECT_EQ(after.RaisedSince(1, 5), 12U);
}

TEST(RemovalLogCarryTest, OwnersThatAreBehindGetTheRest) {
  RemovalLog before(kTerm);
  const std::uint64_t first = before.Append(
      {.slot = kSlot, .generation = 7, .keys = {"a", "b"}, .pattern = {}}, /*held_back=*/false);
  before.Append({.slot = 5, .generation = 8, .keys = {}, .pattern = "x*"});
  before.Append({.slot = 5, .generation = 8, .keys = {"y"}, .pattern = {}}, /*held_back=*/true);
  RemovalLog after(kTerm);
  CarryOver(before, after);
  EXPECT_EQ(after.After(first).removals, before.After(first).removals);
  EXPECT_EQ(after.After(first).upto, first + 1) << "the third is held back";
  EXPECT_EQ(after.bytes(), before.bytes());
  EXPECT_EQ(after.BytesAfter(first), before.BytesAfter(first));
  EXPECT_EQ(after.Append({.slot = 5, .generation = 8, .keys = {"z"}, .pattern = {}}), first + 3);
  after.Void(5);
  EXPECT_EQ(after.size(), 1U);
}

TEST(RemovalMemoryCarryTest, WhatWasRemovedLatelyIsRefusedStill) {
  RemovalMemory before(/*at_most=*/4);
  for (std::uint64_t tag = 1; tag <= 5; ++tag) before.Remember(kSlot, tag, 100 + tag);
  before.RememberPattern(7, 200);
  RemovalMemory after(/*at_most=*/4);
  CarryOver(before, after);
  EXPECT_TRUE(after.RemovedSince(kSlot, 5, 104));
  EXPECT_FALSE(after.RemovedSince(kSlot, 5, 105));
  EXPECT_TRUE(after.RemovedSince(kSlot, 9, 100)) << "below the floor";
  EXPECT_FALSE(after.RemovedSince(kSlot, 9, 101));
  EXPECT_TRUE(after.PatternSince(7, 199));
  after.Remember(kSlot, 6, 106);
  EXPECT_EQ(after.size(), 4U) << "the bound holds";
}

TEST(RegistrationsCarryTest, EnginesStayNamedAsLongAsTheirHoldersAreHeardOf) {
  constexpr Id128 kHost{.high = 1, .low = 1};
  const std::int64_t now = 100 * kSecond;
  Registrations before(0);
  Registrations::Binding& binding = before.Bind("model", "e", kHost, now);
  binding.current_version = "v7";
  binding.open = true;
  before.Name(binding, kSlot);
  before.Inherit(9);
  Registrations after(0);
  CarryOver(before, after);
  ASSERT_NE(after.Find("model", "e"), nullptr);
  EXPECT_TRUE(after.Find("model", "e")->open);
  EXPECT_EQ(after.Find("model", "e")->current_version, "v7");
  EXPECT_TRUE(after.Named(kSlot, now));
  EXPECT_EQ(after.version(), before.version());
  after.Heard(kHost, now + Registrations::kHolderNs - 1);
  (void)after.Expire(now + Registrations::kHolderNs);
  EXPECT_EQ(after.size(), 1U);
  after.EndHolder(kHost);
  EXPECT_EQ(after.size(), 0U);
  EXPECT_FALSE(after.Held(kSlot));
}

class GenerationsCarryTest : public GenerationsFixture {
 protected:
  void HandOver() {
    auto after = std::make_unique<Generations>(options_, Id128{}, /*started_ns=*/0);
    CarryOver(*generations_, *after);
    generations_ = std::move(after);
  }
};

TEST_F(GenerationsCarryTest, GenerationsResetIdsAndWhoMayUseThemGoOn) {
  const Registration first = Register("a");
  ASSERT_EQ(Reset("a", std::nullopt, 5), 1U);
  const Registration unused = Register("versions", "v1");
  const Generation raised = Current();
  const Id128 incarnation = generations_->incarnation();
  const std::uint64_t counter = generations_->counter();
  HandOver();
  EXPECT_EQ(generations_->incarnation(), incarnation);
  EXPECT_EQ(generations_->counter(), counter);
  EXPECT_EQ(Current(), raised);
  EXPECT_NE(raised, first.generation);
  EXPECT_EQ(Register("versions", "v1").generation, unused.generation);
  EXPECT_EQ(Reset("a", std::nullopt, 5), 0U) << "the id was used";
  // Of an engine that has not come back since another one's reset.
  EXPECT_FALSE(Register("b").open);
  EXPECT_TRUE(Register("a").open) << "it has reset itself";
}

TEST_F(GenerationsCarryTest, AnUnusedGenerationStaysUnused) {
  Register("a");
  ASSERT_EQ(Reset("a"), 1U);
  HandOver();
  EXPECT_EQ(Reset("a"), 0U) << "nobody has used the one that the reset gave";
}

class MembersCarryTest : public MembersFixture {
 protected:
  void HandOver() {
    Members after({.lease_ns = kSecond, .member_ttl_ns = 3600 * kSecond}, kTerm, 77);
    CarryOver(members_, after);
    std::destroy_at(&members_);
    std::construct_at(&members_, after);
  }
};

TEST_F(MembersCarryTest, LeasesEpochsAndBarriersGoOn) {
  const auto first = Join(1);
  const auto second = Join(2);
  ASSERT_EQ(Renew(first, kTable, /*told=*/true), Members::Renewal::kGranted);
  ASSERT_TRUE(members_.RaiseBarrier(members_.RefOf(second.number), kSlot, kFirst + 1));
  ASSERT_TRUE(members_.SetDraining(second.number, true));
  const MemberRef ref = members_.RefOf(first.number);
  HandOver();
  EXPECT_TRUE(members_.Exists(ref));
  EXPECT_TRUE(members_.Current(first.number, first.epoch));
  EXPECT_TRUE(members_.Told(first.number));
  EXPECT_TRUE(members_.LeaseRunning(now_ + kSecond));
  EXPECT_FALSE(members_.TableProven(ref, kTable + 1, now_ + kSecond)) << "its lease is waited for";
  EXPECT_EQ(members_.HiddenOf(second.number), std::vector<SlotId>{kSlot});
  EXPECT_TRUE(members_.Draining(second.number));
  EXPECT_EQ(Renew(first), Members::Renewal::kGranted) << "without a hello";
  EXPECT_NE(Join(3).epoch, second.epoch) << "epochs go on, too";
}

TEST_F(MembersCarryTest, AnIdentityThatHasEndedStaysSo) {
  const auto owner = Join(1);
  (void)members_.BeginEnd(owner.number);
  members_.End(members_.RefOf(owner.number));
  HandOver();
  wire::OwnerHello late = Of(1);
  late.fresh = true;
  EXPECT_EQ(*members_.Admit(late, now_), Members::Admission::kUnknown);
}

TEST_F(MembersCarryTest, AMasterThatDoubtsItsStoreGoesOnDoubtingIt) {
  Load({Stored(1, 0), Stored(2, 1)}, now_ + kSecond);
  const auto owner = Hello(1, /*seen_before=*/true);
  HandOver();
  EXPECT_EQ(Renew(owner), Members::Renewal::kDoubted);
  Hello(2, /*seen_before=*/true);
  EXPECT_EQ(Renew(owner), Members::Renewal::kGranted);
}

TEST_F(MembersFixture, TheFirstLeaseEndIsThatOfAnOwnerThatRenews) {
  EXPECT_FALSE(members_.FirstLeaseEndNs(now_));
  const auto silent = Join(1);
  ASSERT_EQ(Renew(silent), Members::Renewal::kGranted);
  now_ += kSecond * 3 / 4;
  const auto owner = Join(2);
  ASSERT_EQ(Renew(owner), Members::Renewal::kGranted);
  const auto end = members_.FirstLeaseEndNs(now_);
  ASSERT_TRUE(end);
  EXPECT_GE(*end, now_ + kSecond) << "not that of an owner which has missed renewals";
  EXPECT_FALSE(members_.FirstLeaseEndNs(now_ + 2 * kSecond));
}

TEST(StandingsCarryTest, WhatLookUpsGoByIsTheSame) {
  FakeClock clock;
  Standings before(clock);
  before.SetSlot({.slot = kSlot, .generation = 5, .name = QualifiedName("acme", "m")});
  before.owner(7).epoch = 3;
  before.owner(7).first_epoch = 2;
  before.owner(7).live_until_ns = clock.NowNs() + kSecond;
  before.owner(7).overtaken = true;
  before.owner(7).disk_away = true;
  before.SetBarred(7, kSlot, true);
  before.untold = 4;
  Standings after(clock);
  CarryOver(before, after);
  EXPECT_TRUE(after.Current(kSlot, 5));
  EXPECT_EQ(after.TenantOfSlot(kSlot), TenantTag("acme"));
  EXPECT_TRUE(after.EpochIs(7, 3));
  EXPECT_TRUE(after.MayListAgain(7, 2));
  EXPECT_TRUE(after.Live(7));
  EXPECT_TRUE(after.owner(7).overtaken);
  EXPECT_TRUE(after.DiskAway(7));
  EXPECT_TRUE(after.Barred(7, kSlot));
  EXPECT_EQ(after.untold, 4U);
}

// ---- the directory

class DirectoryCarryTest : public testing::Test {
 protected:
  DirectoryCarryTest() {
    for (Standings* standings : {&standings_, &next_standings_}) {
      standings->SetSlot({.slot = kSlot, .generation = 5, .name = "m"});
      standings->owner(1).epoch = 1;
      standings->owner(1).live_until_ns = clock_.NowNs() + kSecond;
    }
  }
  static std::string Key(int i) { return "k" + std::to_string(i); }
  void List(DirectoryService& service, int from, int to, std::uint64_t sequence,
            bool gone = false) {
    wire::ListRequest request{.number = 1, .epoch = 1, .sequence = sequence, .items = {}};
    for (int i = from; i < to; ++i) {
      request.items.push_back({.hash = DirectoryHash(kSlot, Key(i)),
                               .generation = 5,
                               .size_bytes = 10,
                               .group = 1,
                               .slot = kSlot,
                               .gone = gone});
    }
    DirectoryService::OwnerSlots to_bar;
    EXPECT_TRUE(service.List(request, {}, to_bar));
  }
  std::size_t Found(DirectoryService& service, int count) {
    std::vector<Id128> hashes;
    for (int i = 0; i < count; ++i) hashes.push_back(DirectoryHash(kSlot, Key(i)));
    return static_cast<std::size_t>(
        std::ranges::count(service.Lookup(kSlot, hashes), 1, &wire::Place::owner));
  }
  // The bytes of the second part.
  std::uint64_t HandOver(DirectoryService& before, DirectoryService& after,
                         const std::function<void()>& between) {
    StateWriter ahead = *StateWriter::Open();
    before.SaveAhead(ahead);
    between();
    StateWriter rest = *StateWriter::Open();
    before.Save(rest);
    const std::uint64_t size = rest.size();
    const UniqueFd ahead_file = *ahead.Finish();
    const UniqueFd rest_file = *rest.Finish();
    StateReader first = *StateReader::Open(ahead_file);
    Directory::Shards shards = DirectoryService::LoadAhead(first);
    StateReader second = *StateReader::Open(rest_file);
    after.Load(second, std::move(shards));
    EXPECT_TRUE(first.ok() && second.ok());
    return size;
  }

  FakeClock clock_;
  Standings standings_{clock_};
  Standings next_standings_{clock_};
  DirectoryService before_{{}, standings_, clock_};
  DirectoryService after_{{}, next_standings_, clock_};
};

TEST_F(DirectoryCarryTest, WhatChangesAfterTheCopyComesWithTheRest) {
  List(before_, 0, 1000, 1);
  HandOver(before_, after_, [&] {
    List(before_, 1000, 1100, 2);
    List(before_, 0, 50, 3, /*gone=*/true);
    (void)before_.Remove(kSlot, 5, std::vector<std::string>{Key(60)}, 7);
  });
  EXPECT_EQ(Found(after_, 1100), 1049U);
  EXPECT_EQ(after_.entries(), before_.entries());
  EXPECT_EQ(after_.Find(kSlot, Key(0)).reason, MissReason::kEvicted) << "and why it is gone";
  EXPECT_EQ(after_.EntriesBySlot(), before_.EntriesBySlot());
  EXPECT_EQ(after_.listed(), before_.listed());
  // A listing that was answered is known; the next one follows it.
  List(after_, 0, 50, 3, /*gone=*/true);
  List(after_, 2000, 2010, 4);
  EXPECT_EQ(after_.entries(), before_.entries() + 10);
}

TEST_F(DirectoryCarryTest, WithoutChangesTheRestHoldsNoEntries) {
  DirectoryService other(DirectoryService::Options{}, standings_, clock_);
  DirectoryService empty_after(DirectoryService::Options{}, next_standings_, clock_);
  const std::uint64_t empty = HandOver(other, empty_after, [] {});
  List(before_, 0, 50'000, 1);
  const std::uint64_t full = HandOver(before_, after_, [] {});
  EXPECT_LT(full, empty + 200'000) << "the last answer, but no entry";
  EXPECT_EQ(Found(after_, 50'000), 50'000U);
}

TEST_F(DirectoryCarryTest, ARemovalBeforeTheHandOverRefusesAListingAfterIt) {
  List(before_, 0, 10, 1);
  (void)before_.Remove(kSlot, 5, std::vector<std::string>{Key(3)}, 7);
  HandOver(before_, after_, [] {});
  wire::ListRequest late{.number = 1, .epoch = 1, .sequence = 2, .items = {}};
  late.items.push_back({.hash = DirectoryHash(kSlot, Key(3)),
                        .generation = 5,
                        .size_bytes = 10,
                        .group = 2,
                        .slot = kSlot,
                        .removals = 6});
  DirectoryService::OwnerSlots to_bar;
  EXPECT_EQ(after_.List(late, {}, to_bar)->codes[0], Code::kStale);
}

TEST_F(DirectoryCarryTest, AStateThatIsCutShortIsFoundOut) {
  List(before_, 0, 100, 1);
  StateWriter rest = *StateWriter::Open();
  before_.Save(rest);
  const UniqueFd file = *rest.Finish();
  ASSERT_EQ(ftruncate(file.get(), 100'000), 0);
  StateReader reader = *StateReader::Open(file);
  after_.Load(reader, {});
  EXPECT_FALSE(reader.ok());
}

TEST(CarriedTasksTest, AreAllThere) {
  CarriedTasks before{.next_id = 9, .copied = 5, .copied_bytes = 500, .tasks = {}};
  before.tasks.push_back({});
  TaskStat& stat = before.tasks.back().stat;
  stat.id = 8;
  stat.request = {.kind = TaskKind::kMove, .from = "a:1", .to = "b:1", .slot = 3, .prefix = "p"};
  stat.state = TaskState::kRunning;
  CarriedTasks after;
  CarryOver(before, after);
  EXPECT_EQ(after.next_id, 9U);
  ASSERT_EQ(after.tasks.size(), 1U);
  EXPECT_EQ(after.tasks[0].stat.request.to, "b:1");
  EXPECT_EQ(after.tasks[0].stat.request.slot, 3);
  EXPECT_EQ(after.tasks[0].stat.state, TaskState::kRunning);
}

}  // namespace
}  // namespace kvcove::master
