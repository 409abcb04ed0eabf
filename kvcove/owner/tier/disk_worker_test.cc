// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/tier/disk_worker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <map>
#include <set>
#include <thread>

#include "kvcove/owner/disk/disk_fixture.h"
#include "tests/becomes.h"

namespace kvcove::owner {
namespace {

class DiskWorkerTest : public testing::Test {
 protected:
  void PutDown(const std::string& key, std::uint64_t id) {
    ASSERT_EQ(tiers_.Put(key, id), Code::kOk);
    tiers_.Evict(key);
    ASSERT_TRUE(tiers_.Settle());
    ASSERT_TRUE(tiers_.OnDisk(key));
  }
  Tiers tiers_{Tiers::Formatted(1)};
};

TEST_F(DiskWorkerTest, WhatMemoryEvictsComesBackFromTheDisk) {
  PutDown("key", 7);
  EXPECT_TRUE(tiers_.Get("key") == ValueOf(7));
  EXPECT_TRUE(tiers_.InMemory("key"));
  EXPECT_TRUE(tiers_.OnDisk("key"));
  EXPECT_EQ(tiers_.tiering->Stat().promoted, 1U);
}

TEST_F(DiskWorkerTest, AValueOnTheDiskIsNotReplacedByAPut) {
  PutDown("key", 7);
  EXPECT_EQ(tiers_.Put("key", 8), Code::kExists);
  EXPECT_TRUE(tiers_.Get("key") == ValueOf(7));
  ASSERT_TRUE(tiers_.Remove("key"));
  EXPECT_EQ(tiers_.Put("key", 8), Code::kOk);
  tiers_.Evict("key");
  ASSERT_TRUE(tiers_.Settle());
  EXPECT_TRUE(tiers_.Get("key") == ValueOf(8));
}

// Its record would be on the disk though nothing finds it: older than what is stored meanwhile.
TEST(TierTableTest, WhatFindsNoPlaceInTheTableDoesNotComeBack) {
  constexpr std::uint64_t kKeys = 600;
  Tiers tiers(Tiers::Formatted(9, 80), kFirst, {.queue_bytes = 128 << 10}, {}, /*places=*/8);
  for (std::uint64_t i = 0; i < kKeys; ++i) {
    ASSERT_EQ(tiers.Put(std::to_string(i), i), Code::kOk);
    ASSERT_TRUE(tiers.Settle());
  }
  std::set<std::uint64_t> replaced;
  for (std::uint64_t i = 0; i < kKeys; ++i) {
    const std::string key = std::to_string(i);
    if (tiers.InMemory(key) || tiers.OnDisk(key)) continue;
    if (tiers.Put(key, 1000 + i) == Code::kOk) replaced.insert(i);
  }
  EXPECT_GT(replaced.size(), 100U);
  ASSERT_TRUE(tiers.Settle());
  Tiers later(tiers.Killed(1));
  std::size_t found = 0;
  for (std::uint64_t i = 0; i < kKeys; ++i) {
    const std::string got = later.Get(std::to_string(i));
    if (got.empty()) continue;
    ++found;
    EXPECT_TRUE(got == ValueOf(replaced.contains(i) ? 1000 + i : i)) << i;
  }
  EXPECT_GT(found, 50U);
}

TEST_F(DiskWorkerTest, AValueThatIsOnItsWayDownIsNotReplacedEither) {
  ASSERT_EQ(tiers_.Put("key", 7), Code::kOk);
  tiers_.Evict("key");  // the disk's thread has not seen it yet
  EXPECT_EQ(tiers_.Put("key", 8), Code::kExists);
  ASSERT_TRUE(tiers_.Settle());
  EXPECT_TRUE(tiers_.Get("key") == ValueOf(7));
}

TEST_F(DiskWorkerTest, WhatWaitsToGoDownIsFoundAndComesBackUnread) {
  ASSERT_EQ(tiers_.Put("key", 7), Code::kOk);
  tiers_.Evict("key");  // the disk's thread has not seen it yet
  EXPECT_TRUE(tiers_.OnDisk("key"));
  EXPECT_TRUE(tiers_.Get("key") == ValueOf(7));
  EXPECT_TRUE(tiers_.InMemory("key"));
  EXPECT_EQ(tiers_.disk->log().counters().reads, 0U);
  ASSERT_TRUE(tiers_.Settle());
  EXPECT_TRUE(tiers_.OnDisk("key"));
}

TEST_F(DiskWorkerTest, WhatIsBeingWrittenIsFoundAndAwaited) {
  tiers_.device->faults.hangs = true;
  ASSERT_EQ(tiers_.Put("key", 7), Code::kOk);
  tiers_.Evict("key");
  for (int i = 0; i < 50; ++i) tiers_.Step();  // the log has it, and the device
  EXPECT_TRUE(tiers_.OnDisk("key"));
  const auto batch = tiers_.BeginLoad("key");
  for (int i = 0; i < 50; ++i) tiers_.Step();
  EXPECT_FALSE(batch->answered);
  tiers_.device->faults.hangs = false;
  EXPECT_TRUE(tiers_.Until([&] { return batch->answered; }));
  EXPECT_TRUE(tiers_.Read("key") == ValueOf(7));
}

TEST_F(DiskWorkerTest, WhatCouldNotBeWrittenIsFoundNoMore) {
  tiers_.device->faults.hangs = true;
  ASSERT_EQ(tiers_.Put("key", 7), Code::kOk);
  tiers_.Evict("key");
  for (int i = 0; i < 50; ++i) tiers_.Step();
  const auto batch = tiers_.BeginLoad("key");
  tiers_.device->faults.write_error = ENOSPC;
  tiers_.device->faults.hangs = false;
  EXPECT_TRUE(tiers_.Until([&] { return batch->answered; }));
  EXPECT_EQ(batch->results[0].code, Code::kMiss);
  EXPECT_FALSE(tiers_.OnDisk("key"));
  EXPECT_EQ(tiers_.Read("key"), "");
}

TEST_F(DiskWorkerTest, ARemovalOfWhatGoesDownIsSeenAtOnceAndMakesRoomForAnother) {
  for (const int steps : {0, 50}) {  // it waits; it is being written
    Tiers tiers(Tiers::Formatted(static_cast<std::uint64_t>(steps)));
    tiers.device->faults.hangs = true;
    ASSERT_EQ(tiers.Put("key", 7), Code::kOk);
    tiers.Evict("key");
    for (int i = 0; i < steps; ++i) tiers.Step();
    const auto removal = tiers.BeginRemove("key");
    EXPECT_FALSE(tiers.OnDisk("key"));
    EXPECT_EQ(tiers.Put("key", 8), Code::kOk);
    tiers.Evict("key");
    tiers.device->faults.hangs = false;
    ASSERT_TRUE(tiers.Until([&] { return tiers.Proven(*removal).has_value(); }));
    ASSERT_TRUE(tiers.Settle());
    EXPECT_TRUE(tiers.OnDisk("key"));
    EXPECT_TRUE(tiers.Get("key") == ValueOf(8));
    Tiers next(tiers.Cut(2));
    const std::string after = next.Get("key");
    EXPECT_TRUE(after.empty() || after == ValueOf(8));
  }
}

TEST_F(DiskWorkerTest, ARemovalByPatternOfWhatIsBeingWrittenLeavesNothing) {
  tiers_.device->faults.hangs = true;
  ASSERT_EQ(tiers_.Put("key", 7), Code::kOk);
  tiers_.Evict("key");
  for (int i = 0; i < 50; ++i) tiers_.Step();
  const auto removal = tiers_.BeginRemoveMatching("k*");
  tiers_.device->faults.hangs = false;
  ASSERT_TRUE(tiers_.Until([&] { return tiers_.Proven(*removal).has_value(); }));
  ASSERT_TRUE(tiers_.Settle());
  EXPECT_FALSE(tiers_.OnDisk("key"));
  EXPECT_EQ(tiers_.Get("key"), "");
}

TEST_F(DiskWorkerTest, WhatTheDiskHasAlreadyIsNotWrittenAgain) {
  PutDown("key", 7);
  EXPECT_TRUE(tiers_.Get("key") == ValueOf(7));
  const std::uint64_t demoted = tiers_.tiering->Stat().demoted;
  tiers_.clock.AdvanceNs(60 * kSecond);  // the get held it
  tiers_.core->Tick();
  tiers_.Evict("key");
  ASSERT_TRUE(tiers_.Settle());
  EXPECT_GE(tiers_.tiering->Stat().kept, 1U);
  EXPECT_GT(tiers_.tiering->Stat().demoted, demoted);  // of others
  EXPECT_TRUE(tiers_.Get("key") == ValueOf(7));
}

// Callers that wait without a thread depend on it.
TEST_F(DiskWorkerTest, ItReportsOnceThatRemovalsAreProven) {
  int reports = 0;
  tiers_.common().on_proven = [&] { ++reports; };
  ASSERT_TRUE(tiers_.Settle());
  EXPECT_EQ(reports, 0);
  EXPECT_TRUE(tiers_.Remove("a"));
  EXPECT_EQ(reports, 1);
  EXPECT_TRUE(tiers_.RemoveMatching("b*"));
  EXPECT_EQ(reports, 2);
  ASSERT_TRUE(tiers_.Settle());
  EXPECT_EQ(reports, 2);
}

// Poll waits for the disk as long as there is nothing else to do.
TEST_F(DiskWorkerTest, ItReportsBeforeItWaitsForTheDisk) {
  int reports = 0;
  std::optional<int> at_poll;
  tiers_.common().on_proven = [&] { ++reports; };
  tiers_.device->on_poll = [&] { at_poll = at_poll.value_or(reports); };
  EXPECT_TRUE(tiers_.Remove("absent"));
  EXPECT_EQ(at_poll, 1);
}

TEST_F(DiskWorkerTest, ARemovalByPatternThatFindsNothingWaitsForTheOneBeforeIt) {
  PutDown("key", 7);
  tiers_.device->faults.hangs = true;
  const auto first = tiers_.BeginRemove("key");
  const auto second = tiers_.BeginRemoveMatching("k*");
  for (int i = 0; i < 50; ++i) tiers_.Step();
  EXPECT_FALSE(tiers_.OnDisk("key"));
  EXPECT_FALSE(tiers_.Proven(*second));
  tiers_.device->faults.hangs = false;
  EXPECT_TRUE(tiers_.Until([&] { return tiers_.Proven(*first) && tiers_.Proven(*second); }));
}

TEST_F(DiskWorkerTest, AResetEndsWhatIsOnTheDisk) {
  PutDown("key", 7);
  tiers_.Reset();
  EXPECT_FALSE(tiers_.OnDisk("key"));
  EXPECT_EQ(tiers_.Get("key"), "");
}

TEST_F(DiskWorkerTest, AResetEndsWhatIsOnItsWayDown) {
  ASSERT_EQ(tiers_.Put("key", 7), Code::kOk);
  tiers_.Evict("key");
  tiers_.Reset();
  ASSERT_TRUE(tiers_.Settle());
  EXPECT_FALSE(tiers_.OnDisk("key"));
  EXPECT_EQ(tiers_.Get("key"), "");
}

TEST_F(DiskWorkerTest, AResetOrARemovalEndsAReadAtEveryStep) {
  for (const bool reset : {false, true}) {
    for (int steps = 0; steps < 12; ++steps) {
      Tiers tiers(Tiers::Formatted(static_cast<std::uint64_t>(steps)));
      ASSERT_EQ(tiers.Put("key", 7), Code::kOk);
      tiers.Evict("key");
      ASSERT_TRUE(tiers.Settle());
      const auto batch = tiers.BeginLoad("key");
      for (int i = 0; i < steps; ++i) tiers.Step();
      if (reset) {
        tiers.Reset();
      } else {
        ASSERT_TRUE(tiers.Remove("key"));
      }
      EXPECT_EQ(tiers.Read("key"), "") << steps;
      ASSERT_TRUE(tiers.Until([&] { return batch->answered; }));
      ASSERT_TRUE(tiers.Settle());
      EXPECT_EQ(tiers.Read("key"), "") << steps;
      EXPECT_EQ(tiers.Get("key"), "") << steps;
    }
  }
}

TEST_F(DiskWorkerTest, ARemovalBetweenAReadAndItsPromotionEndsIt) {
  PutDown("key", 7);
  std::shared_ptr<TierRemoval> removal;
  tiers_.before_promotion = [&] { removal = tiers_.BeginRemove("key"); };
  EXPECT_EQ(tiers_.Get("key"), "");
  ASSERT_NE(removal, nullptr);
  ASSERT_TRUE(tiers_.Until([&] { return tiers_.Proven(*removal).has_value(); }));
  EXPECT_FALSE(tiers_.InMemory("key"));
  EXPECT_EQ(tiers_.Get("key"), "");
}

TEST_F(DiskWorkerTest, ARemovalOfWhatIsQueuedIsNotOvertakenByIt) {
  ASSERT_EQ(tiers_.Put("key", 7), Code::kOk);
  tiers_.Evict("key");
  ASSERT_TRUE(tiers_.Remove("key"));
  ASSERT_TRUE(tiers_.Settle());
  EXPECT_FALSE(tiers_.OnDisk("key"));
}

TEST_F(DiskWorkerTest, AProvenRemovalOutlivesALossOfPower) {
  PutDown("key", 7);
  PutDown("kept", 8);
  ASSERT_TRUE(tiers_.Remove("key"));
  Tiers next(tiers_.Cut(2));
  EXPECT_EQ(next.Get("key"), "");
  EXPECT_FALSE(next.OnDisk("key"));
}

TEST_F(DiskWorkerTest, ACleanStopBringsEverythingBack) {
  PutDown("key", 7);
  tiers_.disk->Stop();
  ASSERT_TRUE(tiers_.Until([&] { return tiers_.disk->stopped(); }));
  Tiers next(tiers_.Cut(2));
  EXPECT_TRUE(next.OnDisk("key"));
  EXPECT_TRUE(next.Get("key") == ValueOf(7));
  Tiers later(next.Cut(3), kLater);
  EXPECT_FALSE(later.OnDisk("key"));
  EXPECT_EQ(later.Get("key"), "");
}

TEST_F(DiskWorkerTest, ARemovalByPatternMeetsBothTiers) {
  PutDown("a1", 1);
  PutDown("a2", 2);
  PutDown("b1", 3);
  ASSERT_TRUE(tiers_.Get("a2") == ValueOf(2));  // in both
  ASSERT_EQ(tiers_.Put("a3", 4), Code::kOk);
  const auto removed = tiers_.RemoveMatching("a*");
  ASSERT_TRUE(removed) << removed.error().ToString();
  EXPECT_EQ(*removed, 3U);
  for (const char* key : {"a1", "a2", "a3"}) EXPECT_EQ(tiers_.Get(key), "") << key;
  EXPECT_TRUE(tiers_.Get("b1") == ValueOf(3));
  Tiers next(tiers_.Cut(2));
  for (const char* key : {"a1", "a2", "a3"}) EXPECT_EQ(next.Get(key), "") << key;
}

// It takes what it matches from the queue, too, counts each value once, and nothing else is lost.
TEST_F(DiskWorkerTest, ARemovalByPatternTakesFromTheQueueOnlyWhatItMatches) {
  tiers_.device->faults.hangs = true;
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(tiers_.Put("a" + std::to_string(i), 1), Code::kOk);
    ASSERT_EQ(tiers_.Put("b" + std::to_string(i), 2), Code::kOk);
  }
  for (int i = 0; i < 4; ++i) {
    tiers_.Evict("a" + std::to_string(i));
    tiers_.Evict("b" + std::to_string(i));
    if (i == 1) tiers_.Step();  // some are in the log and not written yet
  }
  std::uint64_t removed = 0;
  const auto removal = tiers_.BeginRemoveMatching("a*", &removed);
  tiers_.device->faults.hangs = false;
  ASSERT_TRUE(tiers_.Until([&] { return tiers_.Proven(*removal).has_value(); }));
  EXPECT_EQ(removed + removal->removed, 4U);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(tiers_.Get("a" + std::to_string(i)), "") << i;
    EXPECT_TRUE(tiers_.Get("b" + std::to_string(i)) == ValueOf(2)) << i;
  }
}

// A walk each would make others wait for as long as somebody orders patterns in a row.
TEST_F(DiskWorkerTest, OneWalkServesAllPatternsThatWaitForIt) {
  for (std::uint64_t i = 0; i < 80; ++i) {
    ASSERT_EQ(tiers_.Put("a" + std::to_string(i), i), Code::kOk);
    ASSERT_TRUE(tiers_.Settle());
  }
  const auto reads = [&](const std::vector<std::string>& patterns) {
    const std::uint64_t before = tiers_.device->reads();
    std::vector<std::shared_ptr<TierRemoval>> removals;
    for (const std::string& pattern : patterns) {
      removals.push_back(tiers_.BeginRemoveMatching(pattern));
    }
    EXPECT_TRUE(tiers_.Until([&] {
      return std::ranges::all_of(removals,
                                 [&](const auto& one) { return tiers_.Proven(*one).has_value(); });
    }));
    return tiers_.device->reads() - before;
  };
  const std::uint64_t one = reads({"b*"});
  ASSERT_GT(one, 1U) << "more than the zone that is being written";
  EXPECT_LT(reads({"b*", "c*", "d*", "e*", "f*", "g*", "h*", "i*"}), 2 * one);
}

TEST_F(DiskWorkerTest, PatternsOfOneWalkCountAnObjectOnce) {
  for (std::uint64_t i = 0; i < 12; ++i) {
    ASSERT_EQ(tiers_.Put("a" + std::to_string(i), i), Code::kOk);
  }
  ASSERT_TRUE(tiers_.Settle());
  tiers_.Evict("a11");
  ASSERT_TRUE(tiers_.Settle());
  for (int i = 0; i < 12; ++i) ASSERT_TRUE(tiers_.OnDisk("a" + std::to_string(i)));
  const auto some = tiers_.BeginRemoveMatching("a1*");
  const auto all = tiers_.BeginRemoveMatching("a*");
  const auto again = tiers_.BeginRemoveMatching("a*");
  ASSERT_TRUE(tiers_.Until(
      [&] { return tiers_.Proven(*some) && tiers_.Proven(*all) && tiers_.Proven(*again); }));
  EXPECT_EQ(some->removed, 3U);
  EXPECT_EQ(all->removed, 9U);
  EXPECT_EQ(again->removed, 0U);
  for (int i = 0; i < 12; ++i) EXPECT_FALSE(tiers_.OnDisk("a" + std::to_string(i)));
}

TEST_F(DiskWorkerTest, NothingComesUpWhileAPatternIsDecided) {
  PutDown("a1", 1);
  PutDown("b1", 2);
  const auto batch = tiers_.BeginLoad("a1");
  tiers_.tiering->removals().BeginMatching(kSlot, "a*");
  EXPECT_TRUE(tiers_.Get("b1") == ValueOf(2)) << "what does not match comes up all the while";
  MissReason reason = MissReason::kNone;
  EXPECT_EQ(tiers_.Get("a1", &reason), "");
  EXPECT_EQ(reason, MissReason::kRaced);
  ASSERT_TRUE(tiers_.Until([&] { return batch->answered; }));
  EXPECT_FALSE(tiers_.InMemory("a1"));
  tiers_.tiering->removals().EndMatching(kSlot, "a*");
  EXPECT_TRUE(tiers_.Get("a1") == ValueOf(1));
}

TEST_F(DiskWorkerTest, AFullQueueDropsAndNothingWaits) {
  for (int i = 0; i < 200; ++i) {
    ASSERT_EQ(tiers_.Put("key" + std::to_string(i), 1), Code::kOk) << i;
  }
  EXPECT_GT(tiers_.tiering->Stat().dropped_full, 100U);
  EXPECT_TRUE(tiers_.Settle());
}

TEST_F(DiskWorkerTest, UnnamedVersionsAreDropped) {
  ASSERT_EQ(tiers_.Put("key", 7), Code::kOk);
  const std::vector<SlotUpdate> unnamed = {
      {.slot = kSlot, .generation = tiers_.generation(), .name = "m", .named = false},
      {.slot = kSlot + 1, .generation = kFirst, .name = "n"}};
  tiers_.core->SetSlots(kTestIncarnation, unnamed);
  tiers_.tiering->removals().SetSlots(unnamed);
  for (int i = 0; i < 40; ++i) {
    const std::string key = std::to_string(i);
    const std::string value = ValueOf(1);
    const PutItem item{
        .key = key, .size_bytes = kValue, .value = std::as_bytes(std::span(value)), .after = {}};
    Token token = tiers_.token();
    token.slot = kSlot + 1;
    token.generation = kFirst;
    (void)tiers_.core->Put(tiers_.session, token, {&item, 1});
  }
  ASSERT_FALSE(tiers_.InMemory("key"));
  ASSERT_TRUE(tiers_.Settle());
  EXPECT_FALSE(tiers_.OnDisk("key"));
}

TEST_F(DiskWorkerTest, ADamagedRecordIsAMissAndIsForgotten) {
  PutDown("key", 7);
  for (std::byte& byte : tiers_.device->bytes().subspan(disklog::kZonesStart + 4096)) {
    byte ^= std::byte{1};
  }
  EXPECT_EQ(tiers_.Get("key"), "");
  EXPECT_FALSE(tiers_.InMemory("key"));
  EXPECT_EQ(tiers_.Put("key", 8), Code::kExists) << "its record may be sound at the next start";
  ASSERT_TRUE(tiers_.Until([&] { return !tiers_.OnDisk("key"); })) << "a tombstone is written";
  tiers_.clock.AdvanceNs(kSecond);
  tiers_.Step();
  EXPECT_EQ(tiers_.tiering->Stat().log.corrupt, 1U);
  EXPECT_EQ(tiers_.Put("key", 8), Code::kOk);
}

TEST_F(DiskWorkerTest, ADiskThatHangsCostsMissesAndIsSetAside) {
  PutDown("key", 7);
  PutDown("other", 6);
  tiers_.device->faults.hangs = true;
  const auto batch = tiers_.BeginLoad("key", 200 * kMillisecond);
  const auto removal = tiers_.BeginRemove("other");
  ASSERT_TRUE(tiers_.Until([&] { return batch->answered; }));
  EXPECT_EQ(batch->results[0].reason, MissReason::kDiskTimeout);
  EXPECT_FALSE(tiers_.tiering->use().state().aside());
  EXPECT_EQ(tiers_.Proven(*removal).error().code, Code::kTimeout);
  ASSERT_TRUE(tiers_.Until([&] { return tiers_.tiering->use().state().aside(); }));
  EXPECT_EQ(tiers_.Proven(*removal).error().code, Code::kUnavailable);
  EXPECT_FALSE(tiers_.OnDisk("key"));
  EXPECT_EQ(tiers_.Get("key"), "");
  EXPECT_EQ(tiers_.Put("key", 8), Code::kExists) << "the next start might find it there";
  EXPECT_TRUE(tiers_.tiering->use().state().must_be_struck());
  tiers_.tiering->use().Struck();
  EXPECT_EQ(tiers_.Put("key", 8), Code::kOk);
  EXPECT_TRUE(tiers_.Get("key") == ValueOf(8));
  tiers_.device->faults.hangs = false;  // what it answers now counts for nothing
  tiers_.Settle();
  EXPECT_TRUE(tiers_.Get("key") == ValueOf(8));
}

// As soon as a disk that answers nothing, because no removal is proven until then.
TEST_F(DiskWorkerTest, ADiskWhoseWritesHangIsSetAsideWhileItsReadsComplete) {
  std::vector<int> steps;
  for (const bool reads : {false, true}) {
    Tiers tiers(Tiers::Formatted(1));
    disklog::AlignedBuffer into(disklog::kBlockBytes);
    ASSERT_EQ(tiers.Put("key", 7), Code::kOk);
    tiers.Evict("key");
    ASSERT_TRUE(tiers.Settle());
    tiers.device->faults.hangs = !reads;
    tiers.device->faults.writes_hang = reads;
    const auto removal = tiers.BeginRemove("key");
    int read = 0;
    int step = 0;
    for (; step < 20'000 && !tiers.tiering->use().state().aside(); ++step) {
      tiers.device->Read(0, into.span(), [&](int error) { read += error == 0 ? 1 : 0; });
      tiers.Step();
    }
    steps.push_back(step);
    EXPECT_EQ(read > 1000, reads);
    EXPECT_EQ(tiers.Proven(*removal).error().code, Code::kUnavailable);
  }
  EXPECT_LT(steps[0], 20'000);
  EXPECT_NEAR(steps[0], steps[1], 100);
}

TEST_F(DiskWorkerTest, AProcessThatWasStoppedDoesNotTakeTheDiskForHanging) {
  PutDown("other", 6);
  tiers_.device->faults.hangs = true;
  const auto removal = tiers_.BeginRemove("other");
  ASSERT_EQ(tiers_.Put("key", 7), Code::kOk);
  tiers_.Evict("key");
  for (int i = 0; i < 5; ++i) tiers_.Step();
  tiers_.clock.AdvanceNs(60 * kSecond);
  tiers_.Step();
  EXPECT_FALSE(tiers_.tiering->use().state().aside());
}

TEST_F(DiskWorkerTest, ADiskThatFailsToWriteIsSetAside) {
  PutDown("key", 7);
  tiers_.device->faults.write_error = ENOSPC;
  for (int i = 0; i < 400 && !tiers_.tiering->use().state().aside(); ++i) {
    tiers_.Put("key" + std::to_string(i), 1);
    tiers_.clock.AdvanceNs(20 * kMillisecond);
    tiers_.Step();
  }
  ASSERT_TRUE(tiers_.tiering->use().state().aside());
  EXPECT_EQ(tiers_.Put("after", 9), Code::kOk);
  EXPECT_TRUE(tiers_.Get("after") == ValueOf(9));
  EXPECT_EQ(tiers_.Get("key"), "");
}

TEST_F(DiskWorkerTest, ADiskThatFailsToReadIsSetAside) {
  for (int i = 0; i < 8; ++i) PutDown("key" + std::to_string(i), 7);
  tiers_.device->faults.read_error = EIO;
  for (int i = 0; i < 8 && !tiers_.tiering->use().state().aside(); ++i) {
    MissReason reason = MissReason::kNone;
    EXPECT_EQ(tiers_.Get("key" + std::to_string(i), &reason), "");
    EXPECT_EQ(reason, MissReason::kDiskFailed);
  }
  EXPECT_TRUE(tiers_.tiering->use().state().aside());
}

// A popular key on it must not have the disk set aside again and again.
TEST_F(DiskWorkerTest, OnePlaceThatCannotBeReadCostsItsObject) {
  PutDown("key", 7);
  tiers_.device->faults.read_error = EIO;
  for (int i = 0; i < 2; ++i) EXPECT_EQ(tiers_.Get("key"), "");
  for (int i = 0; i < 20; ++i) EXPECT_EQ(tiers_.Get("key"), "");
  tiers_.device->faults.read_error = 0;
  ASSERT_TRUE(tiers_.Settle());
  EXPECT_FALSE(tiers_.tiering->use().state().aside());
  EXPECT_FALSE(tiers_.OnDisk("key"));
  EXPECT_EQ(tiers_.Put("key", 8), Code::kOk);
  EXPECT_EQ(tiers_.Get("key"), ValueOf(8));
}

// ---- set aside, and used again

TEST_F(DiskWorkerTest, ADiskThatMissedNothingIsUsedAgainWithWhatItHolds) {
  PutDown("key", 7);
  tiers_.Fail(2);
  EXPECT_EQ(tiers_.Get("key"), "");
  EXPECT_EQ(tiers_.Put("other", 8), Code::kOk) << "memory goes on";
  ASSERT_TRUE(tiers_.UseAgain());
  EXPECT_FALSE(tiers_.tiering->use().state().aside());
  EXPECT_TRUE(tiers_.Get("key") == ValueOf(7));
  tiers_.Evict("other");
  ASSERT_TRUE(tiers_.Settle());
  EXPECT_TRUE(tiers_.Get("other") == ValueOf(8));
  EXPECT_EQ(tiers_.tiering->Stat().asides, 1U);
  EXPECT_GE(tiers_.tiering->Stat().demoted, 2U) << "counters go on, too";
}

// Else the bytes a day, and the bytes written for each byte stored, would be wrong from then on.
TEST_F(DiskWorkerTest, ADiskThatIsUsedAgainCountsItsBytesAndItsTimeFromTheStart) {
  PutDown("key", 7);
  tiers_.clock.AdvanceNs(kSecond);
  tiers_.Step();
  const DiskStat before = tiers_.tiering->Stat();
  EXPECT_GT(before.log.written_bytes, 0U);
  EXPECT_GE(before.counted_ms, 1000U);
  tiers_.Fail(2);
  EXPECT_EQ(tiers_.Get("key"), "");
  ASSERT_TRUE(tiers_.UseAgain());
  PutDown("other", 8);
  tiers_.clock.AdvanceNs(kSecond);
  tiers_.Step();
  const DiskStat after = tiers_.tiering->Stat();
  EXPECT_EQ(after.asides, 1U);
  EXPECT_GT(after.log.written_bytes, before.log.written_bytes);
  EXPECT_GE(after.counted_ms, before.counted_ms + 1000);
}

TEST_F(DiskWorkerTest, ADiskThatMissedARemovalStartsEmpty) {
  PutDown("key", 7);
  PutDown("stays", 8);
  tiers_.Fail(2);
  const auto removal = tiers_.BeginRemove("key");
  EXPECT_EQ(tiers_.Proven(*removal).error().code, Code::kUnavailable);
  ASSERT_FALSE(tiers_.UseAgain());
  EXPECT_EQ(tiers_.Proven(*removal).error().code, Code::kUnavailable)
      << "the caller learns of it, whenever it asks";
  EXPECT_EQ(tiers_.Get("key"), "");
  EXPECT_EQ(tiers_.Get("stays"), "");
  PutDown("next", 9);
  EXPECT_TRUE(tiers_.Get("next") == ValueOf(9));
}

// The tombstone of the removal may be on the disk or not.
TEST_F(DiskWorkerTest, ARemovalThatWasUnderWayIsMissed) {
  PutDown("key", 7);
  const auto removal = tiers_.BeginRemove("key");
  tiers_.disk->Step(0);
  tiers_.Fail(2);
  EXPECT_FALSE(tiers_.UseAgain());
  EXPECT_EQ(tiers_.Get("key"), "");
  EXPECT_FALSE(tiers_.Proven(*removal));
}

TEST_F(DiskWorkerTest, ARemovalByPatternThatBeganBeforeIsMissed) {
  PutDown("a1", 1);
  tiers_.tiering->removals().BeginMatching(kSlot, "a*");
  tiers_.Fail(2);
  const auto removal = std::make_shared<TierRemoval>();
  tiers_.tiering->removals().RemoveMatching(kSlot, tiers_.generation(), "a*", removal);
  EXPECT_FALSE(tiers_.UseAgain());
  EXPECT_FALSE(tiers_.Proven(*removal));
  EXPECT_EQ(tiers_.Get("a1"), "");
  PutDown("a2", 2);
  EXPECT_TRUE(tiers_.Get("a2") == ValueOf(2)) << "nothing is hidden any more";
}

// A value that was seen while the disk was off is not followed by an older one.
TEST_F(DiskWorkerTest, WhatWasStoredMeanwhileReplacesTheDisksRecord) {
  PutDown("key", 7);
  tiers_.Fail(2);
  ASSERT_EQ(tiers_.Put("key", 8), Code::kOk);
  tiers_.Evict("key");
  ASSERT_TRUE(tiers_.UseAgain());
  EXPECT_EQ(tiers_.Get("key"), "");
  ASSERT_TRUE(tiers_.Settle());
  EXPECT_FALSE(tiers_.OnDisk("key"));
  Tiers next(tiers_.Cut(3));
  EXPECT_EQ(next.Get("key"), "") << "after a restart neither";
}

TEST_F(DiskWorkerTest, ADiskIsSettledOnceWhatWasReplacedIsGoneDurably) {
  tiers_.Put("key", 7);
  tiers_.Evict("key");
  ASSERT_TRUE(tiers_.Settle());
  EXPECT_FALSE(tiers_.tiering->use().state().unnoted_in());
  tiers_.Fail(5);
  EXPECT_EQ(tiers_.Put("key", 8), Code::kOk);
  ASSERT_TRUE(tiers_.UseAgain());
  const auto era = tiers_.tiering->use().state().unnoted_in();
  ASSERT_TRUE(era);
  EXPECT_FALSE(tiers_.tiering->use().Settled(*era)) << "a start now would find the older value";
  EXPECT_FALSE(tiers_.tiering->use().BeginNote(*era));
  ASSERT_TRUE(tiers_.Until([&] { return tiers_.tiering->use().Settled(*era); }));
  EXPECT_TRUE(tiers_.tiering->use().BeginNote(*era));
  EXPECT_FALSE(tiers_.tiering->use().state().unnoted_in());
  EXPECT_TRUE(tiers_.Get("key") == ValueOf(8));
}

// Otherwise the next start would find the older value: the note is just being written.
TEST_F(DiskWorkerTest, ADiskThatIsSetAsideWhileItIsNotedMustBeStruckBeforeItsKeysArePut) {
  PutDown("key", 7);
  tiers_.Fail(5);
  ASSERT_TRUE(tiers_.UseAgain());
  const auto era = tiers_.tiering->use().state().unnoted_in();
  ASSERT_TRUE(era);
  ASSERT_TRUE(tiers_.tiering->use().BeginNote(*era));
  tiers_.tiering->use().SetAside("a test");
  EXPECT_EQ(tiers_.Put("key", 8), Code::kExists);
  EXPECT_TRUE(tiers_.tiering->use().state().must_be_struck());
  tiers_.tiering->use().Struck();
  EXPECT_EQ(tiers_.Put("key", 8), Code::kOk);
  EXPECT_FALSE(tiers_.tiering->use().BeginNote(*era)) << "of an era that is over";
}

TEST(TierDiskAsideTest, MoreStoredThanIsRememberedEmptiesTheDisk) {
  Tiers tiers(Tiers::Formatted(8), kFirst, {.queue_bytes = 128 << 10, .remembered = 20});
  ASSERT_EQ(tiers.Put("key", 7), Code::kOk);
  tiers.Evict("key");
  ASSERT_TRUE(tiers.Settle());
  tiers.Fail(2);
  for (int i = 0; i < 20; ++i) ASSERT_EQ(tiers.Put("k" + std::to_string(i), 1), Code::kOk);
  EXPECT_TRUE(tiers.tiering->use().MayReuse());
  ASSERT_EQ(tiers.Put("one more", 1), Code::kOk);
  EXPECT_FALSE(tiers.UseAgain());
  EXPECT_EQ(tiers.Get("key"), "");
}

TEST_F(DiskWorkerTest, AResetMeanwhileHoldsForTheDisk) {
  PutDown("key", 7);
  tiers_.Fail(2);
  tiers_.Reset();
  ASSERT_TRUE(tiers_.UseAgain());
  EXPECT_EQ(tiers_.Get("key"), "");
  EXPECT_EQ(tiers_.Put("key", 8), Code::kOk);
}

TEST(RetryTimesTest, TwiceAsLongEachTimeUntilItWorksForLong) {
  RetryTimes retry(10, 100);
  std::int64_t now = 1000;
  for (const std::int64_t wait : {10, 20, 40, 80, 100, 100}) {
    retry.Failed(now);
    EXPECT_FALSE(retry.Due(now + wait - 1));
    EXPECT_TRUE(retry.Due(now + wait));
    now += wait;
  }
  retry.Works(now);
  retry.Failed(now + 50);
  EXPECT_FALSE(retry.Due(now + 149)) << "it did not work for long";
  retry.Works(now + 200);
  retry.Failed(now + 301);
  EXPECT_TRUE(retry.Due(now + 311));
}

// Values that are not worth a write, or exceed the rate, are dropped and counted by that reason.
TEST(TierDiskRulesTest, WhatIsRefusedIsCounted) {
  Tiers never(Tiers::Formatted(5), kFirst, {.queue_bytes = 128 << 10},
              {.admit = DiskAdmit::kNever});
  ASSERT_EQ(never.Put("key", 7), Code::kOk);
  never.Evict("key");
  ASSERT_TRUE(never.Settle());
  EXPECT_FALSE(never.OnDisk("key"));
  EXPECT_GE(never.tiering->Stat().not_worth, 1U);
  EXPECT_EQ(never.tiering->Stat().demoted, 0U);

  // A burst of ten values, then one a second.
  Tiers slow(Tiers::Formatted(6), kFirst, {.queue_bytes = 128 << 10}, {.bytes_per_second = kValue});
  const auto evicted = [&](int from) {
    for (int i = from; i < from + 100; ++i) {
      EXPECT_EQ(slow.Put("key" + std::to_string(i), 1), Code::kOk);
      if (i % 10 == 0) {
        EXPECT_TRUE(slow.Settle());
      }
    }
    EXPECT_TRUE(slow.Settle());
    return slow.tiering->Stat().demoted;
  };
  const std::uint64_t first = evicted(0);
  EXPECT_GE(first, 10U);
  EXPECT_LE(first, 12U);
  EXPECT_GT(slow.tiering->Stat().over_rate, 50U);
  slow.clock.AdvanceNs(5 * kSecond);
  const std::uint64_t more = evicted(100) - first;
  EXPECT_GE(more, 5U);
  EXPECT_LE(more, 7U);
}

// Puts, hits and removals are reported to its policy, so values that no call asks for again are not
// written.
TEST(TierDiskRulesTest, AdmissionHearsOfWholeRequests) {
  Tiers tiers(Tiers::Formatted(7), kFirst, {.queue_bytes = 128 << 10},
              {.admit = DiskAdmit::kPolicy, .disk_bytes = 1 << 20});
  std::uint64_t scanned = 0;
  for (int round = 0; round < 700; ++round) {
    // A few keys are asked for again and again, each time after many that are not.
    const std::string key = "again" + std::to_string(round % 10);
    if (tiers.Get(key).empty()) (void)tiers.Put(key, 1);
    (void)tiers.Get(key);
    for (int i = 0; i < 8; ++i) {
      EXPECT_EQ(tiers.Put("scan" + std::to_string(scanned++), 2), Code::kOk);
    }
    ASSERT_TRUE(tiers.Settle());
  }
  const DiskStat stat = tiers.tiering->Stat();
  EXPECT_GT(stat.not_worth, scanned / 4);
  EXPECT_EQ(stat.dropped_full, 0U);
}

TEST_F(DiskWorkerTest, ACallBringsUpSoMuchAtATime) {
  Tiers tiers(Tiers::Formatted(4), kFirst, {.queue_bytes = 128 << 10, .batch_bytes = 10'000});
  for (int i = 0; i < 4; ++i) ASSERT_EQ(tiers.Put("key" + std::to_string(i), 10 + i), Code::kOk);
  for (int i = 0; i < 4; ++i) {
    tiers.Evict("key" + std::to_string(i));
    ASSERT_TRUE(tiers.Settle());
  }
  auto batch = std::make_shared<LoadBatch>();
  batch->deadline_ns = tiers.clock.NowNs() + 10 * kSecond;
  std::vector<wire::LoadResult> results;
  batch->done = [&](std::vector<wire::LoadResult> all) { results = std::move(all); };
  for (std::size_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(tiers.tiering->loads().Add(
        batch,
        {.slot = kSlot, .generation = kFirst, .key = "key" + std::to_string(i), .waiters = {}}));
  }
  tiers.tiering->loads().Begin(batch);
  ASSERT_TRUE(tiers.Until([&] { return !results.empty(); }));
  EXPECT_EQ(results[0].code, Code::kOk);
  EXPECT_EQ(results[3].code, Code::kLimit);  // to be asked for again
}

TEST_F(DiskWorkerTest, KeysAreAnsweredWhileTheirCallStillAddsOthers) {
  PutDown("first", 7);
  auto batch = std::make_shared<LoadBatch>();
  batch->deadline_ns = tiers_.clock.NowNs() + 10 * kSecond;
  std::vector<wire::LoadResult> results;
  batch->done = [&](std::vector<wire::LoadResult> all) { results = std::move(all); };
  const auto add = [&](const std::string& key) {
    return tiers_.tiering->loads().Add(
        batch, {.slot = kSlot, .generation = kFirst, .key = key, .waiters = {}});
  };
  ASSERT_TRUE(add("first"));
  ASSERT_TRUE(tiers_.Until([&] { return tiers_.InMemory("first"); }));
  for (int i = 0; i < 40; ++i) ASSERT_FALSE(add("nowhere" + std::to_string(i)));
  EXPECT_TRUE(results.empty());  // of one call, in one answer
  tiers_.tiering->loads().Begin(batch);
  ASSERT_EQ(results.size(), 41U);
  EXPECT_EQ(results[0].code, Code::kOk);
  for (std::size_t i = 1; i < results.size(); ++i) {
    EXPECT_EQ(results[i].reason, MissReason::kEvicted) << i;
  }
}

// A put that began while the disk was away ends while the disk's value is being read.
TEST_F(DiskWorkerTest, WhatIsStoredWhileAnOlderValueComesUpReplacesItOnTheDisk) {
  PutDown("key", 7);
  tiers_.Fail(2);
  const std::string value = ValueOf(8);
  const PutItem item{.key = "key", .size_bytes = kValue, .value = {}, .after = {}};
  const PutResult put = tiers_.core->Put(tiers_.session, tiers_.token(), {&item, 1}).front();
  ASSERT_EQ(put.code, Code::kOk);
  tiers_.Write(put.extents, std::as_bytes(std::span(value)));
  ASSERT_TRUE(tiers_.UseAgain());
  ASSERT_TRUE(tiers_.OnDisk("key"));
  const auto batch = tiers_.BeginLoad("key");
  ASSERT_EQ(tiers_.Finish(tiers_.session, put.reservation), Code::kOk);
  ASSERT_TRUE(tiers_.Settle());
  EXPECT_TRUE(batch->answered);
  EXPECT_FALSE(tiers_.OnDisk("key"));
  EXPECT_TRUE(tiers_.Get("key") == ValueOf(8));
}

// The rate allows about a key a second: the third one waits, and a call with a short deadline
// misses it.
TEST(TierRateTest, ANamespaceBeyondItsReadRateWaits) {
  Tiers tiers(Tiers::Formatted(1), kFirst,
              {.queue_bytes = 128 << 10, .quotas = {{"m", {.read_rate = kValue}}}});
  for (std::uint64_t id = 0; id < 4; ++id) {
    const std::string key = "key" + std::to_string(id);
    ASSERT_EQ(tiers.Put(key, id), Code::kOk);
    tiers.Evict(key);
    ASSERT_TRUE(tiers.Settle());
  }
  EXPECT_TRUE(tiers.Get("key0") == ValueOf(0));
  const std::int64_t begun_ns = tiers.clock.NowNs();
  EXPECT_TRUE(tiers.Get("key1") == ValueOf(1)) << "the burst's last bytes are paid off later";
  EXPECT_LT(tiers.clock.NowNs() - begun_ns, kSecond / 2);
  const auto late = tiers.BeginLoad("key2", kSecond / 10);
  ASSERT_TRUE(tiers.Until([&] { return late->answered; }));
  EXPECT_EQ(late->results[0].reason, MissReason::kDiskTimeout);
  EXPECT_TRUE(tiers.Get("key3") == ValueOf(3));
  EXPECT_GT(tiers.clock.NowNs() - begun_ns, kSecond / 2);
}

// It had not been accepted by the former master, and the other one does not know what it has
// missed.
TEST(ListedTierTest, ADiskThatWasPausedWhileItWasReportedMissesAllUnderAnotherMaster) {
  Tiers tiers(Tiers::Formatted(1), kFirst, {.queue_bytes = 128 << 10, .listed = true});
  tiers.Fail(2);
  ASSERT_TRUE(tiers.tiering->use().BeginReport());
  EXPECT_TRUE(tiers.tiering->use().Pause());
  EXPECT_TRUE(tiers.tiering->use().state().away());
  EXPECT_TRUE(tiers.tiering->use().MissAll("another master"));
  EXPECT_FALSE(tiers.tiering->use().MayReuse());
}

TEST_F(DiskWorkerTest, WaitersAreAnsweredWhenTheOwnerEnds) {
  PutDown("key", 7);
  tiers_.device->faults.hangs = true;
  const auto batch = tiers_.BeginLoad("key");
  tiers_.tiering->loads().End();
  EXPECT_TRUE(batch->answered);
  EXPECT_TRUE(tiers_.BeginLoad("key")->answered);
}

TEST_F(DiskWorkerTest, WaitersOfADiskThatIsVoidedAreAnsweredWhenTheOwnerEnds) {
  PutDown("key", 7);
  tiers_.device->faults.hangs = true;
  const auto batch = tiers_.BeginLoad("key");
  tiers_.tiering->use().Void("a test");
  EXPECT_TRUE(batch->results.empty() || batch->results[0].reason == MissReason::kDiskFailed);
  std::atomic<bool> ended{false};
  std::thread owner([&] {
    tiers_.tiering->loads().End();  // no tick comes any more
    ended = true;
  });
  EXPECT_TRUE(Becomes([&] { return ended.load(); }));
  if (!ended) tiers_.tiering->use().Tick(tiers_.clock.NowNs());
  owner.join();
  EXPECT_TRUE(batch->answered);
}

// Another thread sets it aside while the disk's thread looks where the value is.
TEST_F(DiskWorkerTest, ALoadMayEndBeforeTheDisksThreadTakesIt) {
  PutDown("key", 7);
  const auto batch = tiers_.BeginLoad("key");
  const auto load = tiers_.tiering->loads().First();
  ASSERT_NE(load, nullptr);
  tiers_.tiering->use().SetAside("a test");
  ASSERT_TRUE(batch->answered);
  EXPECT_FALSE(tiers_.tiering->loads().Take(load, kValue));
  EXPECT_EQ(tiers_.tiering->loads().First(), nullptr);
  EXPECT_EQ(batch->results[0].reason, MissReason::kDiskFailed);
}

// Puts values, and promotes every third one, until one that was read is being moved.
void PutUntilOneMoves(Tiers& tiers) {
  const auto moved = [&] { return tiers.disk->log().counters().moved_objects; };
  for (std::uint64_t i = 0; i < 1000 && moved() == 0; ++i) {
    ASSERT_EQ(tiers.Put(std::to_string(i), i), Code::kOk);
    if (i >= 40 && i % 3 == 0) (void)tiers.Get(std::to_string(i - 40));
    tiers.clock.AdvanceNs(60 * kSecond);  // what a get holds
    tiers.core->Tick();
    ASSERT_TRUE(tiers.Settle());
  }
  ASSERT_GT(moved(), 0U);
}

// The walk reads the zones one by one: an object that moved behind the walk would survive.
TEST(TierMovesTest, ARemovalByPatternMeetsWhatIsMoving) {
  for (std::uint64_t steps = 0; steps < 20; ++steps) {
    SCOPED_TRACE(steps);
    Tiers tiers(Tiers::Formatted(steps + 1, 14));
    ASSERT_NO_FATAL_FAILURE(PutUntilOneMoves(tiers));
    for (std::uint64_t i = 0; i < steps; ++i) tiers.Step();
    ASSERT_TRUE(tiers.RemoveMatching("*"));
    const std::uint64_t moved = tiers.disk->log().counters().moved_objects;
    for (std::uint64_t i = 0; i < 1000; ++i) {
      ASSERT_EQ(tiers.Get(std::to_string(i)), "") << i;
    }
    EXPECT_EQ(tiers.disk->log().counters().moved_objects, moved);
    // Moves continue afterwards, and no removed object returns with a start.
    const auto later = std::make_unique<Tiers>(tiers.Cut(steps), tiers.generation());
    for (std::uint64_t i = 0; i < 1000; ++i) {
      ASSERT_EQ(later->Get(std::to_string(i)), "") << i;
    }
  }
}

// Random calls over both tiers, and losses of power, against a model: what a get gives was put
// under the current generation and not removed since.
void Torture(std::uint64_t seed) {
  SCOPED_TRACE(seed);
  Random random(seed);
  auto tiers = std::make_unique<Tiers>(Tiers::Formatted(seed, 12));
  std::map<std::string, std::set<std::uint64_t>> values;  // that a get may give
  std::uint64_t next = 100;
  std::uint64_t hits = 0;
  for (int i = 0; i < 1500; ++i) {
    const std::string key = std::to_string(random.Below(60));
    const std::uint64_t what = random.Below(1000);
    if (what < 450) {
      const std::uint64_t id = next++;
      if (tiers->Put(key, id) == Code::kOk) values[key].insert(id);
    } else if (what < 850) {
      const std::string got = tiers->Get(key);
      if (!got.empty()) {
        ++hits;
        const bool right =
            std::ranges::any_of(values[key], [&](std::uint64_t id) { return ValueOf(id) == got; });
        ASSERT_TRUE(right) << "key " << key << " at " << i;
      }
    } else if (what < 940) {
      const auto batch = tiers->BeginLoad(key);
      for (std::uint64_t k = random.Below(6); k > 0; --k) tiers->Step();
      const Status removed = tiers->Remove(key);
      ASSERT_TRUE(removed) << removed.error().ToString() << ", "
                           << tiers->tiering->use().state().why();
      values[key].clear();
      ASSERT_EQ(tiers->Get(key), "");
    } else if (what < 960) {
      const auto batch = tiers->BeginLoad(key);
      ASSERT_TRUE(tiers->RemoveMatching(key.substr(0, 1) + "*"));
      for (auto& [one, of] : values) {
        if (one.starts_with(key[0])) of.clear();
      }
    } else if (what < 970) {
      tiers->Reset();
      values.clear();
    } else if (what < 973) {
      tiers->Fail(random.Next());
      if (random.OneIn(2)) values[key].insert(next), (void)tiers->Put(key, next++);
      if (random.OneIn(3)) {
        (void)tiers->BeginRemove(key);
        values[key].clear();
      }
      (void)tiers->UseAgain();
    } else if (what < 977) {
      tiers = std::make_unique<Tiers>(tiers->Cut(random.Next()), tiers->generation());
    } else {
      tiers->Step();
    }
  }
  EXPECT_GT(hits, 50U);
}

TEST(TierTortureTest, NothingRemovedOrResetComesBack) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    ASSERT_NO_FATAL_FAILURE(Torture(seed));
  }
}

}  // namespace
}  // namespace kvcove::owner
