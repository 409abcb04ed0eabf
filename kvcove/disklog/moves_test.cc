// SPDX-License-Identifier: Apache-2.0
// Objects that move out of a zone that is freed: what moves, what that may cost, and what wins over
// a move that is under way.
#include "kvcove/disklog/log_fixture.h"

namespace kvcove::disklog {
namespace {

constexpr std::size_t kSize = 4000;
constexpr std::uint32_t kMoveZones = 12;

std::string MovedKey(int i) { return "key-" + std::to_string(i); }
bool Hot(std::string_view key) { return key.starts_with("hot"); }

// How often an object was told as found and as gone.
class Told final : public Presence {
 public:
  bool Add(const Id128& hash, Generation /*generation*/) override {
    ++counts[{hash.high, hash.low}].first;
    return true;
  }
  void Remove(const Id128& hash, Generation /*generation*/) override {
    ++counts[{hash.high, hash.low}].second;
  }
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::pair<int, int>> counts;
};

class MovesTest : public testing::Test {
 protected:
  // What is "hot" moves.
  LogOptions Options() {
    LogOptions options = SmallLog();
    options.cleaner.worth_moving = [this](const LiveObject& object, const MoveFacts& facts) {
      if (!Hot(object.key)) return false;
      moving_ = object.key;
      facts_ = facts;
      return true;
    };
    options.cleaner.on_dropped = [this](const LiveObject& object) { dropped_.emplace(object.key); };
    return options;
  }
  void Open(LogOptions options, std::uint64_t seed = 1, std::uint32_t zones = kMoveZones) {
    device_ = FormattedDevice(zones, seed);
    log_ = OpenLog(*device_, std::move(options));
  }
  void Reopen() {
    log_.reset();
    device_ = std::make_unique<FakeDevice>(device_->CutPower(), 2);
    log_ = OpenLog(*device_, Options());
  }
  void PutOne(const std::string& key) {
    Status put = Put(*log_, *device_, key, 1, kSize);
    while (!put && put.error().code == Code::kNoSpace) {
      log_->Poll(0);
      put = Put(*log_, *device_, key, 1, kSize);
    }
    ASSERT_TRUE(put) << put.error().ToString();
  }
  // Puts until an object is being moved; what it did stays where it is.
  void PutUntilOneMoves() {
    for (int i = 0; i < 2000 && moving_.empty(); ++i) {
      PutOne(i % 10 == 0 ? "hot-" + std::to_string(i) : MovedKey(i));
      ++put_;
    }
    ASSERT_FALSE(moving_.empty()) << "nothing moves";
  }
  // A disk on which the object `moving_` began to move `polls` steps ago.
  void BeginAMove(int polls) {
    moving_.clear();
    Open(Options(), static_cast<std::uint64_t>(polls) + 1);
    PutUntilOneMoves();
    for (int i = 0; i < polls; ++i) log_->Poll(0);
  }
  void PutMore(int count) {
    for (int i = 0; i < count; ++i) PutOne(MovedKey(10'000 + i));
  }
  void ExpectHot(const std::string& key) {
    EXPECT_EQ(Get(*log_, *device_, key).value, ValueOf(key, 1, kSize)) << key;
  }

  std::string moving_;  // the last one that was found worth it
  MoveFacts facts_;
  int put_ = 0;
  std::set<std::string> dropped_;
  std::unique_ptr<FakeDevice> device_;
  std::unique_ptr<Log> log_;
};

// The index never forgets it meanwhile: a put of its key would be taken for the first one.
TEST_F(MovesTest, WhatMovesIsFoundAllTheWhile) {
  Told told;
  LogOptions options = Options();
  options.presence = &told;
  Open(std::move(options));
  PutUntilOneMoves();
  const std::string key = moving_;
  const std::uint64_t before = log_->counters().moved_objects;
  for (int i = 0; i < 200; ++i) {
    log_->Poll(0);
    ASSERT_TRUE(log_->Find(kSlot, kGeneration, key)) << i;
    ExpectHot(key);
  }
  PutMore(50);
  EXPECT_GT(log_->counters().moved_objects, before);
  const auto found = log_->Find(kSlot, kGeneration, key);
  ASSERT_TRUE(found);
  const Id128 hash = Hash128(key, Mix64(log_->superblock().hash_seed ^ kSlot));
  const std::pair<int, int> once = {1, 0};
  EXPECT_EQ((told.counts[{hash.high, hash.low}]), once);
  EXPECT_FALSE(dropped_.contains(key));
}

// At every moment of a move, from the decision on until long after it.
TEST_F(MovesTest, ARemovalDuringAMoveWins) {
  for (int polls = 0; polls < 60; ++polls) {
    SCOPED_TRACE(polls);
    BeginAMove(polls);
    const std::string key = moving_;
    ASSERT_TRUE(Remove(*log_, *device_, key));
    EXPECT_EQ(Get(*log_, *device_, key).miss, ReadMiss::kAbsent);
    for (int i = 0; i < 200; ++i) log_->Poll(0);
    EXPECT_EQ(Get(*log_, *device_, key).miss, ReadMiss::kAbsent);
    Reopen();
    EXPECT_EQ(Get(*log_, *device_, key).miss, ReadMiss::kAbsent) << "after a start";
    PutMore(100);
    Reopen();
    EXPECT_EQ(Get(*log_, *device_, key).miss, ReadMiss::kAbsent) << "its zones were used again";
  }
}

// The copy of an object that was removed meanwhile gets a tombstone of its own. Without it, every
// later removal in the zone's namespaces would need one, also of keys that are not there.
TEST_F(MovesTest, ARemovalDuringAMoveCostsLaterOnesNothing) {
  for (int polls = 0; polls < 60; ++polls) {
    SCOPED_TRACE(polls);
    BeginAMove(polls);
    const std::string key = moving_;
    ASSERT_TRUE(Remove(*log_, *device_, key));
    for (int i = 0; i < 2000; ++i) log_->Poll(0);
    const std::uint64_t tombstones = log_->counters().tombstones;
    ASSERT_TRUE(Remove(*log_, *device_, "absent"));
    EXPECT_EQ(log_->counters().tombstones, tombstones);
  }
}

// A copy of a sound read is on its way when another read finds the original damaged: the object
// ends all the same, and each zone's count of live bytes is right.
TEST_F(MovesTest, AReadThatFindsDamageDuringAMoveWins) {
  int all_ended = 0;
  for (int polls = 0; polls < 40; ++polls) {
    SCOPED_TRACE(polls);
    BeginAMove(polls);
    const std::string key = moving_;
    const auto found = log_->Find(kSlot, kGeneration, key);
    ASSERT_TRUE(found);
    device_->FlipBit(kZonesStart + (found->place.zone * kSmallZone) +
                         (found->place.offset_units * kUnitBytes) + 500,
                     2);
    (void)Get(*log_, *device_, key);
    const bool ended = !log_->Find(kSlot, kGeneration, key);  // else the copy counts already
    all_ended += ended ? 1 : 0;
    for (int i = 0; i < 500; ++i) log_->Poll(0);
    EXPECT_EQ(log_->Find(kSlot, kGeneration, key).has_value(), !ended);
    ASSERT_TRUE(WaitFor(*log_, *device_, [&](Done done) { log_->Stop(std::move(done)); }));
    const std::uint64_t live = log_->space().live_bytes;
    Reopen();
    EXPECT_EQ(log_->space().live_bytes, live);
    EXPECT_EQ(log_->Find(kSlot, kGeneration, key).has_value(), !ended);
  }
  EXPECT_GT(all_ended, 3);
}

TEST_F(MovesTest, ANewerValueDuringAMoveWins) {
  for (int polls = 0; polls < 40; ++polls) {
    SCOPED_TRACE(polls);
    BeginAMove(polls);
    const std::string key = moving_;
    const Status put = Put(*log_, *device_, key, 2, kSize);
    if (!put) continue;  // no free zone at this moment
    EXPECT_EQ(Get(*log_, *device_, key).value, ValueOf(key, 2, kSize));
    ASSERT_TRUE(WaitFor(*log_, *device_, [&](Done done) { log_->Sync(std::move(done)); }));
    for (int i = 0; i < 200; ++i) log_->Poll(0);
    EXPECT_EQ(Get(*log_, *device_, key).value, ValueOf(key, 2, kSize));
    Reopen();
    EXPECT_EQ(Get(*log_, *device_, key).value, ValueOf(key, 2, kSize)) << "after a start";
  }
}

TEST_F(MovesTest, AResetDuringAMoveWins) {
  for (int polls = 0; polls < 40; ++polls) {
    SCOPED_TRACE(polls);
    BeginAMove(polls);
    const std::string key = moving_;
    log_->SetGeneration(kSlot, kGeneration + 1);
    for (int i = 0; i < 400; ++i) log_->Poll(0);
    EXPECT_EQ(Get(*log_, *device_, key).miss, ReadMiss::kAbsent);
    log_.reset();
    device_ = std::make_unique<FakeDevice>(device_->CutPower(), 2);
    log_ = OpenLog(*device_, SmallLog({{kSlot, kGeneration + 1}}));
    EXPECT_EQ(Get(*log_, *device_, key, kGeneration + 1).miss, ReadMiss::kAbsent);
    EXPECT_EQ(log_->space().objects, 0U) << "all of it is of the generation before";
  }
}

// The bound holds in bytes, whatever is worth a move.
TEST_F(MovesTest, MovesKeepToTheBoundOfWriteAmplification) {
  for (const double bound : {1.15, 1.5}) {
    SCOPED_TRACE(bound);
    LogOptions options = Options();
    options.cleaner.write_amplification = bound;
    options.cleaner.worth_moving = [](const LiveObject&, const MoveFacts&) { return true; };
    Open(std::move(options));
    for (int i = 0; i < 400; ++i) {
      // Of the size of a few blocks, so that what else is written is little.
      const std::string value = ValueOf(MovedKey(i), 1, 40'000);
      const std::span<const std::byte> bytes = std::as_bytes(std::span(value));
      const auto put = [&] {
        return log_->Put({.slot = kSlot,
                          .generation = kGeneration,
                          .version = 1,
                          .name = "space",
                          .key = MovedKey(i),
                          .value = std::span(&bytes, 1)},
                         [](const Status&) {});
      };
      for (int tries = 0; tries < 10'000 && !put(); ++tries) log_->Poll(0);
      for (int polls = 0; polls < 40; ++polls) log_->Poll(0);
    }
    log_->Flush();
    PollUntil(*log_, *device_, [&] { return log_->space().queued_bytes == 0; });
    EXPECT_EQ(log_->counters().put_objects, 400U);
    const Counters& counters = log_->counters();
    // Zones of one record each: their headers, summaries and trailers are more than the lower
    // bound.
    const std::uint64_t others = counters.written_bytes - counters.moved_bytes;
    const auto most = static_cast<std::uint64_t>(bound * static_cast<double>(counters.put_bytes));
    if (others < most) {
      EXPECT_LE(counters.written_bytes, most + kSmallZone);
      EXPECT_GT(counters.moved_objects, 0U);
    } else {
      EXPECT_EQ(counters.moved_objects, 0U) << "the bound is reached without moves";
    }
  }
}

TEST(MoveBudgetTest, PutsEarnAndWritesSpend) {
  MoveBudget budget(1.25, 1000);
  Counters counters;
  EXPECT_FALSE(budget.Allows(1));
  counters.put_bytes = counters.written_bytes = 400;
  budget.Update(counters, 0);
  EXPECT_TRUE(budget.Allows(100));
  EXPECT_FALSE(budget.Allows(101));
  EXPECT_DOUBLE_EQ(budget.share(), .4);
  budget.Update(counters, 30);
  EXPECT_FALSE(budget.Allows(71)) << "what waits to be written counts as written";
  counters.written_bytes += 90;
  budget.Update(counters, 0);
  EXPECT_TRUE(budget.Allows(10));
  EXPECT_FALSE(budget.Allows(11));
  counters.put_bytes = counters.written_bytes = 1'000'000;
  budget.Update(counters, 0);
  EXPECT_TRUE(budget.Allows(250)) << "as much as a disk of puts earns";
  EXPECT_FALSE(budget.Allows(251));
  EXPECT_DOUBLE_EQ(budget.share(), 1);
}

// A full queue is never made longer by moves: what was worth it goes with its zone.
TEST_F(MovesTest, WhatWouldWaitForTheQueueIsDropped) {
  LogOptions options = Options();
  const std::uint64_t half = options.writer.queue_bytes / 2;
  const auto worth = options.cleaner.worth_moving;
  options.cleaner.worth_moving = [&](const LiveObject& object, const MoveFacts& facts) {
    EXPECT_LE(log_->space().queued_bytes, half);
    return worth(object, facts);
  };
  Open(std::move(options));
  PutUntilOneMoves();
  dropped_.clear();
  for (int i = 0; i < 2000; ++i) {
    const std::string key = (i % 4 == 0 ? "hot-x" : "cold-x") + std::to_string(i);
    const std::string value = ValueOf(key, 1, kSize);
    const std::span<const std::byte> bytes = std::as_bytes(std::span(value));
    // Nobody waits for the queue, so it is mostly full.
    (void)log_->Put({.slot = kSlot,
                     .generation = kGeneration,
                     .version = 1,
                     .name = "space",
                     .key = key,
                     .value = std::span(&bytes, 1)},
                    [](const Status&) {});
    log_->Poll(0);
  }
  EXPECT_TRUE(std::ranges::any_of(dropped_, [](const auto& key) { return Hot(key); }));
}

// A walk over the zones meets each object once, though objects would move behind its back.
TEST_F(MovesTest, AWalkThatHoldsMovesMeetsEveryObject) {
  Open(Options());
  PutUntilOneMoves();
  log_->HoldMoves();
  ASSERT_TRUE(PollUntil(*log_, *device_, [&] { return log_->MovesStill(); }));
  const std::uint64_t moved = log_->counters().moved_objects;
  std::multiset<std::string> met;
  for (std::uint32_t zone = 0; zone < kMoveZones; ++zone) {
    Status walked = Fail(Code::kInProgress, "not yet");
    while (!walked && walked.error().code == Code::kInProgress) {
      walked = WaitFor(*log_, *device_, [&](Done done) {
        log_->Walk(
            zone, [&](const LiveObject& object) { met.emplace(object.key); }, std::move(done));
      });
    }
    ASSERT_TRUE(walked);
    PutMore(1);
  }
  EXPECT_EQ(log_->counters().moved_objects, moved);
  for (int i = 0; i < put_; ++i) {
    const std::string key = i % 10 == 0 ? "hot-" + std::to_string(i) : MovedKey(i);
    if (log_->Find(kSlot, kGeneration, key)) {
      EXPECT_EQ(met.count(key), 1U) << key;
    }
  }
  log_->ReleaseMoves();
  PutMore(100);
  EXPECT_GT(log_->counters().moved_objects, moved);
}

// Reads by callers are what the hook hears of; those of the cleaner itself are not.
TEST_F(MovesTest, AMoveKnowsWhenTheObjectWasRead) {
  std::map<std::string, std::optional<double>> since;
  LogOptions options = SmallLog();
  options.cleaner.worth_moving = [&](const LiveObject& object, const MoveFacts& facts) {
    const auto [at, first] = since.try_emplace(std::string(object.key), facts.since_read);
    return first;
  };
  Open(std::move(options));
  PutOne("hot-never");
  PutOne("hot-early");
  ExpectHot("hot-early");
  PutOne("hot-late");
  PutMore(60);
  ExpectHot("hot-late");
  for (int i = 0; i < 500 && !since.contains("hot-late"); ++i) PutOne(MovedKey(i));
  ASSERT_TRUE(since.contains("hot-never") && since.contains("hot-early") &&
              since.contains("hot-late"));
  EXPECT_FALSE(since["hot-never"]);
  ASSERT_TRUE(since["hot-early"] && since["hot-late"]);
  EXPECT_GT(*since["hot-early"], *since["hot-late"]);
  EXPECT_LT(*since["hot-early"], 1.5);
  // The copy was not read.
  since.clear();
  for (int i = 500; i < 2000 && !since.contains("hot-late"); ++i) PutOne(MovedKey(i));
  ASSERT_TRUE(since.contains("hot-late"));
  EXPECT_FALSE(since["hot-late"]);
}

// ---- shares

class SharesTest : public MovesTest {
 protected:
  // Slot 7 is the first share's, slot 8 the second's.
  void OpenWith(std::vector<ShareLimits> limits, std::uint32_t zones = kMoveZones) {
    LogOptions options = SmallLog({{kSlot, kGeneration}, {kSlot + 1, kGeneration}});
    options.cleaner.worth_moving = [](const LiveObject&, const MoveFacts& facts) {
      return facts.guaranteed;
    };
    options.shares = {.limits = std::move(limits),
                      .of = [](std::string_view name) { return name == "space" ? 0U : 1U; }};
    Open(std::move(options), /*seed=*/1, zones);
  }
  void PutOther(const std::string& key) {
    const std::string value = ValueOf(key, 1, kSize);
    const std::span<const std::byte> bytes = std::as_bytes(std::span(value));
    bool done = false;
    while (!done) {
      const Status added = log_->Put({.slot = kSlot + 1,
                                      .generation = kGeneration,
                                      .version = 1,
                                      .name = "other",
                                      .key = key,
                                      .value = std::span(&bytes, 1),
                                      .stream = 1},
                                     [&](const Status& status) { done = status.has_value(); });
      log_->Flush();
      if (added) {
        ASSERT_TRUE(PollUntil(*log_, *device_, [&] { return done; }));
      } else {
        log_->Poll(0);
      }
    }
  }
  int Left(const std::string& prefix, int count) {
    int left = 0;
    for (int i = 0; i < count; ++i) {
      left += log_->Find(kSlot, kGeneration, prefix + std::to_string(i)).has_value() ? 1 : 0;
    }
    return left;
  }
};

TEST_F(SharesTest, AGreedyShareDoesNotPushOutWhatIsGuaranteed) {
  OpenWith({{.guaranteed_bytes = 4 * kSmallZone}, {}});
  for (int i = 0; i < 40; ++i) PutOne(MovedKey(i));
  for (int i = 0; i < 400; ++i) PutOther("greedy-" + std::to_string(i));
  EXPECT_EQ(Left("key-", 40), 40) << "the disk was written more than twice meanwhile";
  EXPECT_GT(log_->counters().dropped_objects, 200U);
}

TEST_F(SharesTest, WithoutAGuaranteeTheOldestGoes) {
  OpenWith({{}, {}});
  for (int i = 0; i < 40; ++i) PutOne(MovedKey(i));
  for (int i = 0; i < 400; ++i) PutOther("greedy-" + std::to_string(i));
  EXPECT_LT(Left("key-", 40), 8) << "but for the zone that is open";
}

TEST_F(SharesTest, AShareAtItsMaximumReplacesItsOwnOldest) {
  OpenWith({{}, {.maximum_bytes = 5 * kSmallZone}}, 2 * kMoveZones);
  for (int i = 0; i < 40; ++i) PutOne(MovedKey(i));
  std::uint64_t most = 0;
  for (int i = 0; i < 400; ++i) {
    // As the owner does: what is beyond the maximum is not written.
    ASSERT_TRUE(PollUntil(*log_, *device_, [&] {
      return log_->HeldByShare()[1] + 2 * kSize <= 5 * kSmallZone;
    })) << i;
    PutOther("greedy-" + std::to_string(i));
    most = std::max(most, log_->HeldByShare()[1]);
  }
  EXPECT_LE(most, 5 * kSmallZone);
  EXPECT_GT(most, 3 * kSmallZone);
  EXPECT_EQ(Left("key-", 40), 40) << "there were free zones all the time";
  EXPECT_TRUE(log_->Find(kSlot + 1, kGeneration, "greedy-399"));
  EXPECT_FALSE(log_->Find(kSlot + 1, kGeneration, "greedy-0"));
}

// Zones of tombstones, which are needed, belong to no share.
TEST_F(SharesTest, AnIdleDiskWithSharesWritesNothing) {
  OpenWith({{.guaranteed_bytes = 4 * kSmallZone}, {}});
  for (int i = 0; i < 40; ++i) PutOne(MovedKey(i));
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(Remove(*log_, *device_, MovedKey(i)));
  ASSERT_TRUE(WaitFor(*log_, *device_, [&](Done done) { log_->Stop(std::move(done)); }));
  log_.reset();
  LogOptions options = SmallLog({{kSlot, kGeneration}});
  options.shares = {.limits = {{.guaranteed_bytes = 4 * kSmallZone}, {}},
                    .of = [](std::string_view) { return 0U; }};
  log_ = OpenLog(*device_, std::move(options));
  for (int i = 0; i < 20'000; ++i) log_->Poll(0);
  EXPECT_GT(log_->space().tombstone_bytes, 0U);
  EXPECT_EQ(log_->counters().written_bytes, 0U);
}

TEST(ZonesTest, TheVictimHasTheMostAgeForItsBytes) {
  Scopes scopes;
  Zones zones(4, 1000, scopes);
  const ScopeId scope = *scopes.Intern(1, 1, "s");
  scopes.SetGeneration(1, 1);
  const auto set = [&](std::uint32_t number, std::uint64_t opened_at, std::uint64_t bytes) {
    zones[number].state = ZoneState::kSealed;
    zones[number].opened_at = opened_at;
    if (bytes == 0) return;
    zones.NoteObject(number, scope, opened_at);
    zones.AddLive(number, scope, bytes);
  };
  EXPECT_FALSE(zones.Victim(100));
  set(0, 50, 900);
  set(1, 10, 900);
  set(2, 30, 899);
  EXPECT_EQ(zones.Victim(100), 1U) << "a few bytes less make no zone old";
  zones[0].brief = true;
  EXPECT_EQ(zones.Victim(100), 0U);
  zones[0].brief = false;
  zones.RemoveLive(2, scope, 500);
  EXPECT_EQ(zones.Victim(100), 2U) << "half of it is dead";
  set(3, 99, 0);
  EXPECT_EQ(zones.Victim(100), 3U) << "nothing in it is alive";
}

}  // namespace
}  // namespace kvcove::disklog
