// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/core/key_changes.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "kvcove/base/size.h"
#include "kvcove/owner/core/core_fixture.h"

namespace kvcove::owner {
namespace {

using ChangeKind = KeyChanges::Kind;
using ToldChanges = std::vector<std::pair<ChangeKind, std::string>>;

ToldChanges ToldIn(const KeyChanges::Batch& batch) {
  ToldChanges told;
  batch.Each([&](const KeyChanges::Change& change) {
    told.emplace_back(change.kind, std::string(change.text));
  });
  return told;
}

TEST(KeyChanges, ChangesComeInTheirOrder) {
  KeyChanges changes(1 << 10);
  changes.SetSlot({.slot = 3, .generation = 7, .name = "model", .named = true});
  changes.Add(ChangeKind::kStored, 3, "a");
  changes.Add(ChangeKind::kWithdrawn, 3, "a");
  KeyChanges::Batch batch;
  changes.Take(batch, /*all=*/false);
  EXPECT_FALSE(batch.whole);
  EXPECT_EQ(ToldIn(batch), (ToldChanges{{ChangeKind::kSlot, "model"},
                                        {ChangeKind::kStored, "a"},
                                        {ChangeKind::kWithdrawn, "a"}}));
  changes.Take(batch, false);
  EXPECT_TRUE(batch.empty());
}

TEST(KeyChanges, ASlotIsShownWhileEnginesUseItAndNothingIsMissed) {
  KeyChanges changes(1 << 10);
  KeyChanges::Batch batch;
  const auto shown = [&] {
    std::vector<bool> all;
    changes.Take(batch, false);
    batch.Each([&](const KeyChanges::Change& change) { all.push_back(change.shown); });
    return all;
  };
  changes.SetSlot({.slot = 3, .generation = 7, .name = "m", .named = true});
  EXPECT_EQ(shown(), std::vector<bool>{true});
  changes.SetSlot({.slot = 3, .generation = 7, .name = "m", .named = true});
  EXPECT_EQ(shown(), std::vector<bool>{}) << "nothing has changed";
  changes.SetSlot({.slot = 3, .generation = 7, .name = "m", .named = false});
  changes.SetSlot({.slot = 3, .generation = 7, .name = "m", .named = true});
  changes.SetHidden(3, true);
  changes.SetHidden(3, false);
  EXPECT_EQ(shown(), (std::vector<bool>{false, true, false, true}));
  changes.SetSlot({.slot = 3, .generation = 0, .name = "", .named = true});
  EXPECT_EQ(shown(), std::vector<bool>{false});
}

TEST(KeyChanges, BeyondTheirBoundTheSlotsAreLeft) {
  KeyChanges changes(100);
  changes.SetSlot({.slot = 3, .generation = 7, .name = "m", .named = true});
  for (int i = 0; i < 10; ++i) changes.Add(ChangeKind::kStored, 3, "some key");
  KeyChanges::Batch batch;
  changes.Take(batch, false);
  EXPECT_TRUE(batch.whole);
  EXPECT_TRUE(ToldIn(batch).empty());
  ASSERT_EQ(batch.slots.size(), 1U);
  EXPECT_EQ(batch.slots.at(3).generation, 7U);
  changes.Add(ChangeKind::kStored, 3, "a");
  changes.Take(batch, false);
  EXPECT_FALSE(batch.whole);
  EXPECT_EQ(ToldIn(batch), (ToldChanges{{ChangeKind::kStored, "a"}}));
}

class CoreKeyChangesTest : public testing::Test {
 protected:
  CoreKeyChangesTest() { test_.SetSlot(2, kFirst); }
  ToldChanges Take() {
    KeyChanges::Batch batch;
    core_->TakeKeyChanges(batch, /*all=*/false);
    EXPECT_FALSE(batch.whole);
    return ToldIn(batch);
  }

  TestCore test_{{.payload_bytes = kMiB, .max_objects = 100, .key_changes_bytes = 1 << 16}};
  Core* core_ = test_.core.get();
};

TEST_F(CoreKeyChangesTest, StoresEvictionsAndRemovalsAreNoted) {
  (void)Take();
  ASSERT_EQ(test_.Put(2, "a"), Code::kOk);
  EXPECT_EQ(test_.Put(2, "a"), Code::kExists);
  EXPECT_EQ(Take(), (ToldChanges{{ChangeKind::kStored, "a"}}));
  ASSERT_EQ(core_->Remove(2, "a"), Code::kOk);
  EXPECT_EQ(Take(), (ToldChanges{{ChangeKind::kWithdrawn, "a"}}));
  // The second value needs the room of the first one.
  ASSERT_EQ(test_.Put(2, "b", kMiB / 2 + 1), Code::kOk);
  ASSERT_EQ(test_.Put(2, "c", kMiB / 2 + 1), Code::kOk);
  EXPECT_EQ(Take(), (ToldChanges{{ChangeKind::kStored, "b"},
                                 {ChangeKind::kWithdrawn, "b"},
                                 {ChangeKind::kStored, "c"}}));
}

TEST_F(CoreKeyChangesTest, AResetIsOneChangeAndItsSweepNone) {
  for (const char* const key : {"a", "b"}) ASSERT_EQ(test_.Put(2, key), Code::kOk);
  (void)Take();
  test_.SetSlot(2, kLater);
  ASSERT_EQ(test_.Put(2, "a"), Code::kOk);
  while (core_->Tick()) {
  }
  EXPECT_EQ(Take(), (ToldChanges{{ChangeKind::kSlot, "m"}, {ChangeKind::kStored, "a"}}));
}

TEST_F(CoreKeyChangesTest, AHiddenSlotIsNotShown) {
  (void)Take();
  core_->SetHidden(std::vector<SlotId>{2});
  core_->SetHidden(std::vector<SlotId>{});
  KeyChanges::Batch batch;
  core_->TakeKeyChanges(batch, false);
  std::vector<bool> shown;
  batch.Each([&](const KeyChanges::Change& change) { shown.push_back(change.shown); });
  EXPECT_EQ(shown, (std::vector<bool>{false, true}));
}

// The successor of a take-over begins with the slots, whose names the state has in its spaces.
TEST_F(CoreKeyChangesTest, ATakenOverCoreKnowsItsSlots) {
  ASSERT_EQ(test_.Put(2, "a"), Code::kOk);
  StateWriter state = *StateWriter::Open();
  StateWriter policies = *StateWriter::Open();
  core_->EndSession(test_.session);
  core_->Save(state, policies);
  const UniqueFd state_file = *state.Finish();
  const UniqueFd policies_file = *policies.Finish();
  auto next = *Core::Open({.payload_bytes = kMiB, .max_objects = 100, .key_changes_bytes = 1 << 16},
                          test_.segment.view, test_.segment.payload.data(), test_.clock);
  StateReader reader = *StateReader::Open(state_file);
  StateReader policy_reader = *StateReader::Open(policies_file);
  ASSERT_TRUE(next->Load(reader, policy_reader, {}));
  KeyChanges::Batch batch;
  next->TakeKeyChanges(batch, /*all=*/true);
  ASSERT_EQ(batch.slots.size(), 1U);
  EXPECT_EQ(batch.slots.at(2).generation, kFirst);
  EXPECT_EQ(batch.slots.at(2).name, "m");
  EXPECT_TRUE(batch.slots.at(2).shown());
}

}  // namespace
}  // namespace kvcove::owner
