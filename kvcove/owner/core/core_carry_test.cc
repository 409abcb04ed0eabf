// SPDX-License-Identifier: Apache-2.0
// A core over the memory of another one, with what that one knew.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "kvcove/owner/core/core_fixture.h"

namespace kvcove::owner {
namespace {

constexpr SlotId kCarriedSlot = 2;

class CoreCarryTest : public testing::Test {
 protected:
  static CoreOptions Options(const std::string& policy = "default", bool listed = false) {
    return {.payload_bytes = kMiB, .max_objects = 1000, .policy = policy, .listed = listed};
  }
  // A core in place of test.core, which is gone when it returns.
  static Result<bool> Replace(TestCore& test, const CoreOptions& options) {
    StateWriter state = *StateWriter::Open();
    StateWriter policies = *StateWriter::Open();
    test.core->Save(state, policies);
    const UniqueFd state_file = *state.Finish();
    const UniqueFd policies_file = *policies.Finish();
    test.core = *Core::Open(options, test.segment.view, test.segment.payload.data(), test.clock);
    StateReader reader = *StateReader::Open(state_file);
    StateReader policy_reader = *StateReader::Open(policies_file);
    return test.core->Load(reader, policy_reader, {{test.session, {.page = test.page.get()}}});
  }
};

TEST_F(CoreCarryTest, ObjectsReservationsPinsAndCountersGoOn) {
  TestCore test(Options());
  test.SetSlot(kCarriedSlot, kFirst);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(test.Put(kCarriedSlot, fmt::format("k{}", i)), Code::kOk);
  ASSERT_EQ(test.core->Pin(kCarriedSlot, "k1", PinKind::kHard, 0), Code::kOk);
  ASSERT_EQ(test.core->Pin(kCarriedSlot, "k2", PinKind::kSoft, kSecond), Code::kOk);
  ASSERT_EQ(test.core->Pin(kCarriedSlot, "k4", PinKind::kHard, kSecond), Code::kOk);
  ASSERT_EQ(test.core->Remove(kCarriedSlot, "k3"), Code::kOk);
  const PutResult begun = test.Reserve(test.session, kCarriedSlot, "begun", 5000);
  const PoolStat before = test.core->Stat();
  const auto kept = Replace(test, Options());
  ASSERT_TRUE(kept) << kept.error().detail;
  EXPECT_TRUE(*kept);
  test.core->CheckInvariants();
  const PoolStat after = test.core->Stat();
  EXPECT_EQ(after.objects, before.objects);
  EXPECT_EQ(after.object_bytes, before.object_bytes);
  EXPECT_EQ(after.reserved_bytes, before.reserved_bytes);
  EXPECT_EQ(after.free_bytes, before.free_bytes);
  EXPECT_EQ(after.puts, before.puts);
  EXPECT_TRUE(test.core->StatObject(kCarriedSlot, "k1")->hard_pinned);
  EXPECT_TRUE(test.core->StatObject(kCarriedSlot, "k2")->soft_pinned);
  EXPECT_TRUE(test.core->StatObject(kCarriedSlot, "k4")->hard_pinned);
  EXPECT_EQ(after.pinned_bytes, before.pinned_bytes);
  EXPECT_EQ(after.timed_pin_bytes, before.timed_pin_bytes);
  EXPECT_FALSE(test.Has(kCarriedSlot, "k3"));
  EXPECT_EQ(test.Finish(test.session, begun.reservation), Code::kOk);
  EXPECT_TRUE(test.Has(kCarriedSlot, "begun"));
  EXPECT_EQ(test.Finish(test.session, begun.reservation), Code::kOk) << "repeated";
  test.clock.AdvanceNs(kSecond);
  test.core->Tick();
  EXPECT_TRUE(test.core->StatObject(kCarriedSlot, "k1")->hard_pinned);
  EXPECT_FALSE(test.core->StatObject(kCarriedSlot, "k4")->hard_pinned);
  // Everything can be put away and found again.
  for (int i = 0; i < 2000; ++i) test.Put(kCarriedSlot, fmt::format("n{}", i), 1000);
  test.core->CheckInvariants();
  EXPECT_TRUE(test.Has(kCarriedSlot, "k1")) << "hard-pinned";
  test.SetSlot(kCarriedSlot, kLater);
  while (test.core->Tick()) {
  }
  test.core->CheckInvariants();
  EXPECT_EQ(test.core->Stat().objects, 0U);
}

// The same but for the version at the front, and what is left out before the mark at the end.
TEST_F(CoreCarryTest, TheStateOfABuildWhoseHardPinsHaveNoTimeToLiveIsTaken) {
  TestCore test(Options());
  test.SetSlot(kCarriedSlot, kFirst);
  ASSERT_EQ(test.Put(kCarriedSlot, "k"), Code::kOk);
  ASSERT_EQ(test.core->Pin(kCarriedSlot, "k", PinKind::kHard, 0), Code::kOk);
  StateWriter state = *StateWriter::Open();
  StateWriter policies = *StateWriter::Open();
  test.core->Save(state, policies);
  std::string bytes(state.size(), '\0');
  const UniqueFd file = *state.Finish();
  ASSERT_EQ(pread(file.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  constexpr std::size_t kNumber = sizeof(std::uint32_t) + sizeof(std::uint64_t);
  constexpr std::size_t kTimedPins = sizeof(std::uint64_t) + 3 * kNumber;
  bytes.erase(bytes.size() - kNumber - kTimedPins, kTimedPins);
  ASSERT_EQ(bytes[4], 6);
  bytes[4] = 5;
  StateWriter earlier = *StateWriter::Open();
  earlier.Bytes(bytes.data(), bytes.size());
  const UniqueFd earlier_file = *earlier.Finish();
  const UniqueFd policies_file = *policies.Finish();
  test.core = *Core::Open(Options(), test.segment.view, test.segment.payload.data(), test.clock);
  StateReader reader = *StateReader::Open(earlier_file);
  StateReader policy_reader = *StateReader::Open(policies_file);
  const auto taken =
      test.core->Load(reader, policy_reader, {{test.session, {.page = test.page.get()}}});
  ASSERT_TRUE(taken) << taken.error().detail;
  test.core->CheckInvariants();
  EXPECT_TRUE(test.core->StatObject(kCarriedSlot, "k")->hard_pinned);
  EXPECT_EQ(test.core->Stat().timed_pin_bytes, 0U);
}

TEST_F(CoreCarryTest, EachPolicyEvictsWhatItWouldHaveEvicted) {
  for (const std::string_view name : policy::PolicyNames()) {
    const CoreOptions options = Options(std::string(name));
    TestCore moved(options);
    TestCore stayed(options);
    for (TestCore* test : {&moved, &stayed}) {
      test->SetSlot(kCarriedSlot, kFirst);
      for (int i = 0; i < 900; ++i) test->Put(kCarriedSlot, fmt::format("k{}", i), 1000);
      for (int i = 0; i < 900; i += 7)
        test->Put(kCarriedSlot, fmt::format("k{}", i), 1000);  // hits
    }
    ASSERT_TRUE(*Replace(moved, options));
    for (TestCore* test : {&moved, &stayed}) {
      for (int i = 0; i < 500; ++i) test->Put(kCarriedSlot, fmt::format("n{}", i), 1000);
    }
    for (int i = 0; i < 900; ++i) {
      const std::string key = fmt::format("k{}", i);
      EXPECT_EQ(moved.Has(kCarriedSlot, key), stayed.Has(kCarriedSlot, key)) << name << " " << key;
    }
  }
}

TEST_F(CoreCarryTest, AnotherPolicyKeepsTheObjectsAndLearnsAnew) {
  TestCore test(Options("lru"));
  test.SetSlot(kCarriedSlot, kFirst);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(test.Put(kCarriedSlot, fmt::format("k{}", i)), Code::kOk);
  EXPECT_FALSE(*Replace(test, Options("default")));
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(test.Has(kCarriedSlot, fmt::format("k{}", i)));
  for (int i = 0; i < 2000; ++i)
    ASSERT_EQ(test.Put(kCarriedSlot, fmt::format("n{}", i), 1000), Code::kOk);
  test.core->CheckInvariants();
}

TEST_F(CoreCarryTest, WhatAReaderProtectsIsNotFreed) {
  TestCore test(Options());
  test.SetSlot(kCarriedSlot, kFirst);
  ASSERT_EQ(test.Put(kCarriedSlot, "k", 1000), Code::kOk);
  const segment::Found found = test.Find(kCarriedSlot, "k");
  segment::Lane& lane = (*test.page).lanes[0];
  lane.slots[0].place.store(found.place);
  lane.slots[0].version.store(found.version);
  lane.used.store(1);
  ASSERT_EQ(test.core->Remove(kCarriedSlot, "k"), Code::kOk);
  ASSERT_TRUE(Replace(test, Options()));
  test.core->Tick();
  EXPECT_GT(test.core->Stat().withdrawn_bytes, 0U) << "the reader goes on reading";
  lane.used.store(0);
  lane.slots[0].place.store(0);
  test.core->Tick();
  EXPECT_EQ(test.core->Stat().withdrawn_bytes, 0U);
}

TEST_F(CoreCarryTest, WhatWaitsForTheMasterIsListedAgain) {
  TestCore test(Options("default", /*listed=*/true));
  test.SetSlot(kCarriedSlot, kFirst);
  const PutResult begun = test.Reserve(test.session, kCarriedSlot, "k", 100);
  ASSERT_EQ(test.Finish(test.session, begun.reservation), Code::kOk);
  const std::vector<Pending> asked = test.core->TakePending();
  ASSERT_TRUE(Replace(test, Options("default", true)));
  const std::vector<Pending> again = test.core->TakePending();
  ASSERT_EQ(again.size(), 1U);
  EXPECT_EQ(again[0].reservation, asked[0].reservation);
  EXPECT_EQ(again[0].item.hash, asked[0].item.hash);
  EXPECT_EQ(test.core->FinishListing(again[0], Code::kOk), Code::kOk);
  EXPECT_TRUE(test.Has(kCarriedSlot, "k"));
}

}  // namespace
}  // namespace kvcove::owner
