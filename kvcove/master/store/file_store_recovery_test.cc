// SPDX-License-Identifier: Apache-2.0
// What a start finds after power cuts, damage, and an older kvcove.
#include <algorithm>

#include "kvcove/base/hash.h"
#include "kvcove/master/store/control_format.h"
#include "kvcove/master/store/file_store_fixture.h"

namespace kvcove::master {
namespace {

using sim::Loss;

constexpr Loss kLosses[] = {Loss::kAll, Loss::kSome, Loss::kZeros, Loss::kNone};

struct State {
  Facts facts;
  std::uint64_t revision = 0;
  bool operator==(const State&) const = default;
};

class FileStoreRecoveryTest : public FileStoreFixture {
 protected:
  State here;                   // what the running process has
  State known;                  // what its callers know to be durable
  std::vector<State> possible;  // what a start may find instead: nobody had an answer

  // Commits as one batch. True: it is durable.
  bool Batch(const std::vector<Changes>& batch) {
    std::vector<std::size_t> places;
    places.reserve(batch.size());
    for (const Changes& changes : batch) places.push_back(Commit(changes));
    Work();
    State after = here;
    for (const Changes& changes : batch) ApplyTransaction(changes, ++after.revision, after.facts);
    const auto durable = [&](std::size_t place) { return outcomes[place] && *outcomes[place]; };
    const bool all = durable(places.front());
    for (const std::size_t place : places) EXPECT_EQ(durable(place), all);
    if (all) {
      EXPECT_EQ(**outcomes[places.back()], after.revision);
      here = known = std::move(after);
      possible.clear();
    } else {
      possible.push_back(std::move(after));
    }
    return all;
  }
  // After a start.
  void Check(const std::string& what) {
    ASSERT_FALSE(opened.damaged) << what;
    here = {opened.facts, opened.revision};
    if (here == known) return;
    ASSERT_NE(std::find(possible.begin(), possible.end(), here), possible.end()) << what;
  }
  void Forget() {
    here = known = {};
    possible.clear();
  }
};

TEST_F(FileStoreRecoveryTest, APowerCutAtEveryByteLosesNothingKnown) {
  options.min_dead_bytes = 2048;
  std::uint64_t rewrites = 0;
  for (const Loss loss : kLosses) {
    bool cut = true;
    for (std::uint64_t steps = 0; cut; ++steps) {
      NewDisk(steps + 1);
      Forget();
      disk->CutPowerAfter(steps);
      ASSERT_TRUE(Open());
      Batch({{{"a", "1"}, {"b", std::string(300, 'b')}}});
      for (int i = 0; i < 4; ++i) {
        Batch({{{"a", std::to_string(i)}}, {{"c", std::string(700, 'c')}, {"b", std::nullopt}}});
      }
      cut = disk->counts().steps >= steps;
      rewrites = store->stat().rewrites;
      disk->CutPower(loss);
      ASSERT_TRUE(Open());
      Check("cut after " + std::to_string(steps));
      if (HasFatalFailure()) return;
      ASSERT_TRUE(Batch({{{"d", "4"}}}));
    }
  }
  EXPECT_GE(rewrites, 2U) << "the cuts went through a rewrite between two batches";
}

TEST_F(FileStoreRecoveryTest, FaultsInAnyOrderLoseNothingKnown) {
  options.min_dead_bytes = 2048;
  Random random(7);
  std::uint64_t durable = 0;
  std::uint64_t refused = 0;
  ASSERT_TRUE(Open());
  for (int i = 0; i < 20000; ++i) {
    switch (random.Below(12)) {
      case 0:
        disk->FailNext(1 + random.Below(3), random.Below(6));
        break;
      case 1:
        disk->SetFull(random.OneIn(4));
        break;
      case 2:
        if (random.OneIn(3)) disk->CutPowerAfter(random.Below(4000));
        break;
      case 3:
        if (!random.OneIn(4)) break;
        disk->CutPower(kLosses[random.Below(4)]);
        ASSERT_TRUE(Open());
        Check("step " + std::to_string(i));
        if (HasFatalFailure()) return;
        break;
      case 4:
        clock.AdvanceNs(static_cast<std::int64_t>(random.Below(300)) * kMillisecond);
        Work();
        break;
      default: {
        std::vector<Changes> batch(1 + random.Below(3));
        for (Changes& changes : batch) {
          const std::string key(1, static_cast<char>('a' + random.Below(6)));
          changes.push_back({key, std::string(random.Below(400), static_cast<char>(i % 3))});
          if (random.OneIn(4)) changes.push_back({"a", std::nullopt});
        }
        (Batch(batch) ? durable : refused) += 1;
      }
    }
  }
  disk->SetFull(false);
  disk->CutPower(Loss::kAll);
  ASSERT_TRUE(Open());
  Check("the end");
  EXPECT_GT(durable, 1000U);
  EXPECT_GT(refused, 1000U);
}

TEST_F(FileStoreRecoveryTest, WhatAStartFoundIsDurableWithItsFirstCommit) {
  ASSERT_TRUE(Open());
  Must({{"a", "1"}});
  disk->HangAfter(1);
  Commit({{"b", "appended, not synced"}});
  Work();
  disk->CutPower(Loss::kNone);  // the process is killed
  ASSERT_TRUE(Open());
  ASSERT_TRUE(opened.facts.contains("b"));
  EXPECT_EQ(Must({{"term", "2"}}), 3U);
  disk->CutPower(Loss::kAll);
  ASSERT_TRUE(Open());
  EXPECT_TRUE(opened.facts.contains("b")) << "the process that found it may have told others";
}

TEST_F(FileStoreRecoveryTest, AFlippedBitIsDamageNeverAShorterHistory) {
  ASSERT_TRUE(Open());
  Must({{"a", "1"}});
  Must({{"a", "2"}});
  const std::string whole = *disk->Content("control");
  for (std::uint64_t bit = 0; bit < whole.size() * 8; ++bit) {
    NewDisk(1);
    disk->Put("control", whole);
    disk->FlipBit("control", bit);
    ASSERT_TRUE(Open());
    ASSERT_TRUE(opened.damaged) << bit;
    ASSERT_FALSE(opened.found_nothing);
    ASSERT_TRUE(opened.facts.empty());
    ASSERT_EQ(disk->Names(), std::vector<std::string>{"control.damaged"});
  }
}

TEST_F(FileStoreRecoveryTest, DamageIsReportedUntilTheFirstCommit) {
  disk->Put("control", "no control file at all");
  disk->Put("generations", EncodeHeader({5, 6}, kSecond));
  for (int start = 0; start < 2; ++start) {
    ASSERT_TRUE(Open());
    EXPECT_TRUE(opened.damaged) << "a start that died before its first commit";
    EXPECT_FALSE(opened.found_nothing);
    EXPECT_FALSE(opened.from_v1) << "older than what is lost";
  }
  EXPECT_EQ(*disk->Content("control.damaged"), "no control file at all");
  EXPECT_EQ(Must({{"incarnation", "2"}}), 1U);
  ASSERT_TRUE(Open());
  EXPECT_FALSE(opened.damaged);
  EXPECT_EQ(opened.facts.size(), 1U);
}

TEST_F(FileStoreRecoveryTest, EightDamagedFilesAreKept) {
  for (int i = 1; i <= 10; ++i) {
    disk->Put("control", "damage " + std::to_string(i));
    ASSERT_TRUE(Open());
    EXPECT_TRUE(opened.damaged);
  }
  EXPECT_EQ(disk->Names().size(), 8U);
  EXPECT_EQ(*disk->Content("control.damaged"), "damage 1");
  EXPECT_EQ(*disk->Content("control.damaged.7"), "damage 7");
  EXPECT_EQ(*disk->Content("control.damaged.8"), "damage 10");
}

TEST_F(FileStoreRecoveryTest, AFileOfAnotherVersionIsRefusedAndStays) {
  ASSERT_TRUE(Open());
  Must({{"a", "1"}});
  std::string bytes = *disk->Content("control");
  bytes[8] = 3;
  const std::uint64_t sum = Hash64(std::string_view(bytes).substr(0, 504), 0);
  for (std::size_t i = 0; i < 8; ++i) bytes[504 + i] = static_cast<char>(sum >> (8 * i));
  disk->Put("control", bytes);
  const Status status = Open();
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kIncompatible);
  EXPECT_NE(status.error().detail.find("fake/control"), std::string::npos);
  EXPECT_EQ(*disk->Content("control"), bytes);
}

std::string SomeV1() {
  return EncodeHeader({5, 6}, kSecond) + EncodeRecord({.kind = OldRecord::Kind::kSlot,
                                                       .slot = 1,
                                                       .generation = 2,
                                                       .name = "name",
                                                       .version = "v"});
}

TEST_F(FileStoreRecoveryTest, RecordsOfVersion1AreHandedOutUntilTheyAreFacts) {
  disk->Put("generations", SomeV1());
  ASSERT_TRUE(Open());
  ASSERT_TRUE(opened.from_v1);
  EXPECT_FALSE(opened.found_nothing);
  EXPECT_EQ(opened.from_v1->incarnation, (Id128{5, 6}));
  EXPECT_EQ(opened.from_v1->running_lease_ns, kSecond);
  ASSERT_EQ(opened.from_v1->records.size(), 1U);
  store->RetireV1();
  Work();
  EXPECT_TRUE(disk->Content("generations")) << "there is no commit yet";
  disk->FailNext(1);
  EXPECT_EQ(Must({{"slot", "1"}}), 0U);
  EXPECT_TRUE(disk->Content("generations"));
  ASSERT_TRUE(Open());
  ASSERT_TRUE(opened.from_v1) << "nothing was converted";
  EXPECT_EQ(Must({{"slot", "1"}}), 1U);
  store->RetireV1();
  Work();
  EXPECT_EQ(disk->Names(), (std::vector<std::string>{"control", "generations.v1"}));
  ASSERT_TRUE(Open());
  EXPECT_FALSE(opened.from_v1);
  EXPECT_EQ(opened.facts.size(), 1U);
}

TEST_F(FileStoreRecoveryTest, AFileWithoutATransactionSaysNothing) {
  for (const bool v1 : {true, false}) {
    NewDisk(1);
    disk->Put(v1 ? "generations" : "control", v1 ? SomeV1() : "damage");
    ASSERT_TRUE(Open());
    disk->FailNext(1);
    EXPECT_EQ(Must({{"slot", "1"}}), 0U);
    clock.AdvanceNs(kSecond);
    Work();
    EXPECT_TRUE(disk->Content("control")) << "rewritten, and nothing was committed since";
    ASSERT_TRUE(Open());
    EXPECT_EQ(opened.from_v1.has_value(), v1);
    EXPECT_EQ(opened.damaged, !v1);
    EXPECT_FALSE(opened.found_nothing);
  }
}

TEST_F(FileStoreRecoveryTest, APowerCutWhileVersion1IsConvertedLosesNothing) {
  bool cut = true;
  for (std::uint64_t steps = 0; cut; ++steps) {
    NewDisk(steps + 1);
    disk->Put("generations", SomeV1());
    disk->CutPowerAfter(steps);
    ASSERT_TRUE(Open());
    if (Must({{"slot", "1"}}) != 0) store->RetireV1();
    Work();
    cut = disk->counts().steps >= steps;
    disk->CutPower(Loss::kSome);
    ASSERT_TRUE(Open());
    ASSERT_NE(opened.from_v1.has_value(), opened.facts.contains("slot")) << steps;
  }
}

TEST_F(FileStoreRecoveryTest, AStartFinishesTheRetiringOfVersion1) {
  disk->Put("generations", SomeV1());
  ASSERT_TRUE(Open());
  EXPECT_EQ(Must({{"slot", "1"}}), 1U);
  ASSERT_TRUE(Open());
  EXPECT_FALSE(opened.from_v1);
  EXPECT_EQ(disk->Names(), (std::vector<std::string>{"control", "generations.v1"}));
}

TEST_F(FileStoreRecoveryTest, DamagedRecordsOfVersion1AreKeptAside) {
  std::string bytes = SomeV1();
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  disk->Put("generations", bytes);
  for (int start = 0; start < 2; ++start) {
    ASSERT_TRUE(Open());
    EXPECT_TRUE(opened.damaged);
    EXPECT_FALSE(opened.from_v1);
    EXPECT_EQ(disk->Names(), std::vector<std::string>{"generations.damaged"});
  }
  bytes = SomeV1();
  bytes[8] = 9;
  NewDisk(1);
  disk->Put("generations", bytes);
  EXPECT_EQ(Open().error().code, Code::kIncompatible);
}

TEST_F(FileStoreRecoveryTest, ARolledBackFileIsAnOlderHistory) {
  ASSERT_TRUE(Open());
  for (int i = 1; i <= 5; ++i) Must({{"a", std::to_string(i)}});
  store.reset();
  ASSERT_TRUE(disk->RollBack("control", 2));
  ASSERT_TRUE(Open());
  EXPECT_FALSE(opened.damaged) << "the file cannot tell; owners that know more can";
  EXPECT_EQ(opened.revision, 3U);
}

}  // namespace
}  // namespace kvcove::master
