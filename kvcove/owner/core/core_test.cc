// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/core/core.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "kvcove/owner/core/core_fixture.h"

namespace kvcove::owner {
namespace {

constexpr SlotId kSlot = 2;
constexpr Id128 kIncarnation = kTestIncarnation;
constexpr std::uint64_t kPayload = kMiB;

// An owner's core over memory of its own, as a part of a cluster.
class CoreTest : public testing::Test {
 protected:
  CoreTest() { test_.SetSlot(kSlot, 7); }
  // Begins a put; its reservation.
  std::uint64_t Reserve(const std::string& key) {
    const PutItem item{.key = key, .size_bytes = 100, .value = {}, .after = {}};
    const Token token{.incarnation = kIncarnation, .generation = 7, .slot = kSlot};
    return core_->Put(session_, token, {&item, 1}, /*evict=*/true).front().reservation;
  }
  Code Finish(std::uint64_t reservation) {
    const FinishItem item{.reservation = reservation, .commit = true};
    return core_->Finish(session_, {&item, 1}).front();
  }

  TestCore test_{{.payload_bytes = kPayload, .max_objects = 100, .listed = true}};
  FakeClock& clock_ = test_.clock;
  Core* core_ = test_.core.get();
  SessionNumber session_ = test_.session;
};

TEST_F(CoreTest, AListingHasTheNumberOfTheLastRemovalBeforeItsPutBegan) {
  core_->SetApplied(10);
  const std::uint64_t reservation = Reserve("a");
  ASSERT_NE(reservation, 0U);
  core_->SetApplied(20);
  Finish(reservation);
  const std::vector<Pending> pending = core_->TakePending();
  ASSERT_EQ(pending.size(), 1U);
  EXPECT_EQ(pending[0].item.removals, 10U);
}

// The source of a copy that moves drops its own for kExists.
TEST_F(CoreTest, WhatIsHiddenIsNotSaidToExist) {
  Finish(Reserve("a"));
  for (const Pending& pending : core_->TakePending()) core_->FinishListing(pending, Code::kOk);
  const PutItem item{.key = "a", .size_bytes = 100, .value = {}, .after = {}};
  const Token token{.incarnation = kIncarnation, .generation = 7, .slot = kSlot};
  const auto put = [&] { return core_->Put(session_, token, {&item, 1}).front().code; };
  EXPECT_EQ(put(), Code::kExists);
  core_->SetHidden(std::vector{kSlot});
  EXPECT_EQ(put(), Code::kInProgress) << "it may have been removed";
  core_->Remove(kSlot, "a");
  EXPECT_EQ(put(), Code::kOk);
}

TEST_F(CoreTest, AMissSaysThatAResetCameOnlyWhereOneCame) {
  Finish(Reserve("a"));
  for (const Pending& pending : core_->TakePending()) core_->FinishListing(pending, Code::kOk);
  const auto reason = [&](Generation generation) {
    const Token token{.incarnation = kIncarnation, .generation = generation, .slot = kSlot};
    const std::string_view key = "a";
    const Loan loan = core_->Lend(token, {&key, 1}).front();
    core_->Return({&loan, 1});
    EXPECT_EQ(core_->Unreadable(token), loan.reason);
    return loan.reason;
  };
  test_.SetSlot(kSlot, kFirst);
  EXPECT_EQ(core_->Unreadable({.incarnation = kIncarnation, .generation = kFirst, .slot = kSlot}),
            MissReason::kNone);
  EXPECT_EQ(reason(kLater), MissReason::kLease) << "this owner has not learned of it yet";
  core_->SetHidden(std::vector{kSlot});
  EXPECT_EQ(reason(kFirst), MissReason::kLease);
  core_->SetHidden({});
  test_.SetSlot(kSlot, kLater);
  EXPECT_EQ(reason(kFirst), MissReason::kReset);
}

TEST_F(CoreTest, APutThatWasBegunBeforeARemovalOfItsKeyIsRefused) {
  const std::uint64_t one = Reserve("a");
  const std::uint64_t other = Reserve("b");
  EXPECT_EQ(core_->Remove(kSlot, "a"), Code::kOk);
  Core::Walk walk;
  while (!walk.done) core_->RemoveMatching(kSlot, "b*", walk);
  EXPECT_EQ(Finish(one), Code::kStale);
  EXPECT_EQ(Finish(other), Code::kStale);
  EXPECT_TRUE(core_->TakePending().empty());
}

TEST_F(CoreTest, APutThatWasBegunBeforeAResetIsRefused) {
  const std::uint64_t one = Reserve("a");
  const std::uint64_t other = Reserve("b");
  Finish(other);
  const std::vector<Pending> pending = core_->TakePending();
  core_->SetSlots(kIncarnation, {{.slot = kSlot, .generation = 8, .name = "m"}});
  EXPECT_EQ(Finish(one), Code::kStale);
  EXPECT_EQ(core_->FinishListing(pending.at(0), Code::kOk), Code::kStale);
  EXPECT_EQ(core_->TakeGone(10).size(), 1U) << "the master must forget what it has listed";
  EXPECT_EQ(Reserve("c"), 0U) << "under the old token";
  EXPECT_EQ(core_->Stat().stale_puts, 3U);
}

// The master tells sessions and owners at the same time, so a session may come first.
TEST_F(CoreTest, APutUnderANewerGenerationThanTheOwnersIsNotStale) {
  const auto put = [&](const Token& token) {
    const PutItem item{.key = "a", .size_bytes = 100, .value = {}, .after = {}};
    return core_->Put(session_, token, {&item, 1}).front().code;
  };
  test_.SetSlot(kSlot, kLater);
  Token token{.incarnation = kIncarnation, .generation = kLater + (1 << 24), .slot = kSlot};
  EXPECT_TRUE(core_->Awaits(token));
  EXPECT_EQ(put(token), Code::kUnavailable);
  token.generation = kFirst;
  EXPECT_FALSE(core_->Awaits(token)) << "older";
  EXPECT_EQ(put(token), Code::kStale);
  token.generation = kLater + 1;
  EXPECT_FALSE(core_->Awaits(token)) << "one counter has one number: this is none of this pool";
  EXPECT_EQ(put(token), Code::kStale);
  token = {.incarnation = kIncarnation, .generation = kFirst, .slot = kSlot + 1};
  EXPECT_TRUE(core_->Awaits(token)) << "a slot that this owner knows nothing of";
  EXPECT_EQ(put(token), Code::kUnavailable);
  EXPECT_EQ(core_->Stat().stale_puts, 2U);
}

TEST_F(CoreTest, APutOfANewerIncarnationIsNotStale) {
  const Id128 next{.high = 9, .low = 9};
  const Token before{.incarnation = kIncarnation, .generation = 7, .slot = kSlot};
  const Token after{.incarnation = next, .generation = 5, .slot = kSlot};
  EXPECT_TRUE(core_->Awaits(after));
  core_->SetSlots(next, {{.slot = kSlot, .generation = 5, .name = "m"}});
  EXPECT_FALSE(core_->Awaits(after));
  EXPECT_EQ(core_->CheckToken(after), Code::kOk);
  EXPECT_FALSE(core_->Awaits(before)) << "this owner has left that one";
}

TEST(LoneCoreTest, AnOwnerWithoutAMasterElsewhereAwaitsNothing) {
  TestCore test({.payload_bytes = kPayload, .max_objects = 100});
  test.SetSlot(kSlot, kFirst);
  EXPECT_FALSE(
      test.core->Awaits({.incarnation = kIncarnation, .generation = kLater, .slot = kSlot}));
}

// The deadline frees the key, and the bytes belong to nobody else.
TEST_F(CoreTest, AWriterThatIsLateLosesItsKeyOnly) {
  const std::uint64_t late = Reserve("a");
  clock_.AdvanceNs(2 * kSecond);
  const std::uint64_t other = Reserve("a");
  ASSERT_NE(other, 0U);
  EXPECT_EQ(core_->Stat().reserved_bytes, 256U);
  EXPECT_EQ(Finish(late), Code::kTimeout);
  EXPECT_EQ(Finish(late), Code::kTimeout) << "a repeat answers the same";
  EXPECT_EQ(Finish(other), Code::kOk);
}

TEST_F(CoreTest, ASessionReservesAtMostAQuarterInWholeGranules) {
  for (std::uint64_t i = 0; i < kPayload / 4 / 128; ++i) {
    ASSERT_NE(Reserve(fmt::format("key-{}", i)), 0U) << i;
  }
  EXPECT_EQ(Reserve("one more"), 0U);
  core_->EndSession(session_);
  while (core_->Tick()) {
  }
  EXPECT_EQ(core_->Stat().reserved_bytes, 0U);
}

class MasterAwayTest : public testing::Test {
 protected:
  static constexpr std::uint64_t kObjects = 64;  // fill the payload
  MasterAwayTest() {
    test_.SetSlot(kSlot, kFirst, "m");
    test_.SetSlot(kOther, kFirst, "other");
  }
  // A put that nobody lists; in one request, or reserved and committed.
  Code Put(const std::string& key, bool whole, SlotId slot = kSlot) {
    if (!whole) {
      const PutResult result = test_.Reserve(test_.session, slot, key, kSize);
      if (result.code != Code::kOk) return result.code;
      if (const Code code = test_.Finish(test_.session, result.reservation); code != Code::kOk) {
        return code;
      }
    } else {
      const std::vector<std::byte> value(kSize);
      const PutItem item{.key = key, .size_bytes = kSize, .value = value, .after = {}};
      const Code code =
          test_.core->Put(test_.session, test_.TokenOf(slot), {&item, 1}).front().code;
      if (code != Code::kOk) return code;
    }
    const std::vector<Pending> pending = test_.core->TakePending();
    pending_.insert(pending_.end(), pending.begin(), pending.end());
    return Code::kOk;
  }
  static constexpr SlotId kOther = 3;
  static constexpr std::uint32_t kSize = 1024;
  TestCore test_{{.payload_bytes = kObjects * kSize,
                  .max_objects = 1000,
                  .policy = "lru",
                  .quotas = {{"other", {.guaranteed_bytes = 16 * kSize}}},
                  .listed = true}};
  std::vector<Pending> pending_;
};

TEST_F(MasterAwayTest, PutsGoOnAndTheOldestOfThemGiveWay) {
  for (std::uint64_t i = 0; i < 3 * kObjects; ++i) {
    ASSERT_EQ(Put(fmt::format("key-{}", i), /*whole=*/i % 2 == 0), Code::kOk) << i;
    test_.core->CheckInvariants();
  }
  EXPECT_EQ(test_.core->TakeGaveWay(), 2 * kObjects);
  EXPECT_EQ(test_.core->TakeGaveWay(), 0U);
  EXPECT_EQ(test_.core->Stat().evictions, 2 * kObjects);
  EXPECT_EQ(test_.core->Stat().reserved_bytes, 0U) << "nobody writes any more";
  // The master is back. It lists all that it is told of, and forgets what is not there.
  for (std::uint64_t i = 0; i < pending_.size(); ++i) {
    const bool there = i >= 2 * kObjects;
    EXPECT_EQ(test_.core->Waits(pending_[i]), there);
    EXPECT_EQ(test_.core->FinishListing(pending_[i], Code::kOk),
              there ? Code::kOk : Code::kNoSpace);
    EXPECT_EQ(test_.Has(kSlot, fmt::format("key-{}", i)), there);
  }
  EXPECT_EQ(test_.core->TakeGone(1000).size(), 2 * kObjects);
  test_.core->CheckInvariants();
}

TEST_F(MasterAwayTest, HalfOfTheMemoryStaysWhatThePolicyKept) {
  for (std::uint64_t i = 0; i < kObjects; ++i) {
    ASSERT_EQ(test_.Put(kSlot, fmt::format("listed-{}", i), kSize), Code::kOk);
  }
  for (std::uint64_t i = 0; i < 4 * kObjects; ++i) {
    ASSERT_EQ(Put(fmt::format("key-{}", i), /*whole=*/true), Code::kOk) << i;
  }
  std::uint64_t left = 0;
  for (std::uint64_t i = 0; i < kObjects; ++i) {
    left += test_.Has(kSlot, fmt::format("listed-{}", i)) ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(left), kObjects / 2, 1);
}

TEST_F(MasterAwayTest, WhatIsGuaranteedToOthersStays) {
  for (int i = 0; i < 16; ++i) {
    ASSERT_EQ(Put(fmt::format("key-{}", i), /*whole=*/true, kOther), Code::kOk);
  }
  const std::vector<Pending> guaranteed = pending_;
  for (std::uint64_t i = 0; i < 3 * kObjects; ++i) {
    ASSERT_EQ(Put(fmt::format("key-{}", i), /*whole=*/true), Code::kOk) << i;
  }
  for (const Pending& one : guaranteed) EXPECT_TRUE(test_.core->Waits(one));
}

// A writer that is late loses nothing but its key, and what gave way is answered so.
TEST_F(MasterAwayTest, APutThatGaveWayAnswersSoWhenItIsRepeated) {
  const PutResult first = test_.Reserve(test_.session, kSlot, "first", kSize);
  ASSERT_EQ(test_.Finish(test_.session, first.reservation), Code::kOk);
  (void)test_.core->TakePending();
  for (std::uint64_t i = 0; i < kObjects; ++i) {
    ASSERT_EQ(Put(fmt::format("key-{}", i), /*whole=*/true), Code::kOk) << i;
  }
  EXPECT_EQ(test_.Finish(test_.session, first.reservation), Code::kNoSpace);
  EXPECT_EQ(Put("first", /*whole=*/true), Code::kOk) << "its key is free";
}

TEST(MasterAwayIndexTest, WhatWaitsNeedsAnEntryWhenItIsListed) {
  TestCore test({.payload_bytes = kPayload, .max_objects = 8, .policy = "lru", .listed = true});
  test.SetSlot(kSlot, kFirst);
  std::vector<Pending> pending;
  for (int i = 0; i < 20; ++i) {
    const PutResult result = test.Reserve(test.session, kSlot, fmt::format("key-{}", i), 64);
    ASSERT_EQ(result.code, Code::kOk);
    ASSERT_EQ(test.Finish(test.session, result.reservation), Code::kOk);
    for (const Pending& one : test.core->TakePending()) pending.push_back(one);
  }
  for (std::size_t i = 12; i < 20; ++i) {
    EXPECT_EQ(test.core->FinishListing(pending[i], Code::kOk), Code::kOk) << i;
  }
}

TEST_F(CoreTest, StatisticsComeInSlices) {
  for (int i = 0; i < 1000; ++i) core_->AddSession(nullptr, i);
  PoolStat stat;
  Core::StatWalk walk;
  std::size_t seen = 0;
  std::size_t slices = 1;
  while (core_->StatSome(walk, stat)) {
    ++slices;
    EXPECT_LE(stat.sessions.size() - seen, Core::kStatSlice);
    seen = stat.sessions.size();
  }
  EXPECT_EQ(stat.sessions.size(), 1001U);
  EXPECT_GE(slices, 1001 / Core::kStatSlice);
  EXPECT_EQ(stat.namespaces.size(), 1U);
}

// A session with a page that ends in between would be counted twice, or not at all.
TEST_F(CoreTest, CountersNeverGoBackWhenASessionEndsWhileTheyAreRead) {
  for (int i = 0; i < 500; ++i) core_->AddSession(nullptr, i);
  TestPage late;
  const SessionNumber last = core_->AddSession(late.get(), 1);
  test_.page.get()->gets.store(5);
  late.get()->gets.store(7);
  PoolStat stat;
  Core::StatWalk walk;
  for (int slice = 0; slice < 3; ++slice) ASSERT_TRUE(core_->StatSome(walk, stat));
  core_->EndSession(last);
  while (core_->StatSome(walk, stat)) {
  }
  EXPECT_EQ(stat.local.gets, 12U);
  EXPECT_EQ(stat.sessions.size(), 501U);
}

// The items of a frame may share one name, and each reservation keeps its own copy.
TEST_F(CoreTest, APutBehindAnythingLongerThanAKeyIsRefused) {
  const Token token{.incarnation = kIncarnation, .generation = 7, .slot = kSlot};
  const std::string long_name(kMaxKeyBytes + 1, 'a');
  PutItem item{.key = "k", .size_bytes = 100, .value = {}, .after = long_name};
  EXPECT_EQ(core_->Put(session_, token, {&item, 1}, /*evict=*/true).front().code, Code::kInvalid);
  item.after = std::string_view(long_name).substr(1);
  EXPECT_EQ(core_->Put(session_, token, {&item, 1}, /*evict=*/true).front().code, Code::kOk);
}

// ---- values that a session has staged

class StagedPutTest : public testing::Test {
 protected:
  StagedPutTest() {
    test_.SetSlot(kSlot, kFirst);
    session_ = test_.core->AddSession(page_.get(), 2, &staging());
    staging().sequence = 5;
    for (std::size_t i = 0; i < 300; ++i) staging().bytes[i] = static_cast<std::byte>(i);
  }
  segment::Staging& staging() { return *reinterpret_cast<segment::Staging*>(memory_.data()); }
  Code Put(SessionNumber session, const PutItem& item) {
    return test_.core->Put(session, test_.TokenOf(kSlot), {&item, 1}).front().code;
  }

  TestCore test_{{.payload_bytes = kPayload, .max_objects = 100}};
  const ZeroedMemory memory_{sizeof(segment::Staging)};
  TestPage page_;
  SessionNumber session_ = 0;
};

TEST_F(StagedPutTest, IsStoredAsItLiesThere) {
  PutItem item{.key = "k", .size_bytes = 100};
  item.staged = {.sequence = 5, .offset = 64};
  ASSERT_EQ(Put(session_, item), Code::kOk);
  const segment::Found found = test_.Find(kSlot, "k");
  ASSERT_TRUE(found);
  const std::byte* stored =
      test_.segment.payload.data() + test_.segment.view.granule().BytesOf(found.first_granule);
  EXPECT_EQ(std::memcmp(stored, staging().bytes + 64, 100), 0);
}

// Its caller has given up, and something else lies there now.
TEST_F(StagedPutTest, IsRefusedOnceTheAreaIsWrittenAnew) {
  const std::uint64_t free = test_.core->Stat().free_bytes;
  PutItem item{.key = "k", .size_bytes = 100};
  item.staged = {.sequence = 4, .offset = 0};
  EXPECT_EQ(Put(session_, item), Code::kTimeout);
  EXPECT_FALSE(test_.Has(kSlot, "k"));
  EXPECT_EQ(test_.core->Stat().free_bytes, free);
  test_.core->CheckInvariants();
}

TEST_F(StagedPutTest, NeverReachesBeyondTheArea) {
  PutItem item{.key = "k", .size_bytes = 100};
  item.staged = {.sequence = 5, .offset = segment::Staging::kBytes - 99};
  EXPECT_EQ(Put(session_, item), Code::kInvalid);
  item.staged.offset = 0xFFFFFFFF;
  EXPECT_EQ(Put(session_, item), Code::kInvalid);
  item.staged.offset = segment::Staging::kBytes - 100;
  EXPECT_EQ(Put(session_, item), Code::kOk);
}

TEST_F(StagedPutTest, NeedsAnAreaAndNoValueBesides) {
  PutItem item{.key = "k", .size_bytes = 100};
  item.staged = {.sequence = 5, .offset = 0};
  EXPECT_EQ(Put(test_.session, item), Code::kInvalid) << "that session has no area";
  const std::byte value[100] = {};
  item.value = value;
  EXPECT_EQ(Put(session_, item), Code::kInvalid);
}

// 16 TiB, of which nothing is written: places count up to the end, and no byte is lost on the way.
TEST(LargeCoreTest, GivesOutAllOf16TiB) {
  constexpr std::uint64_t kObject = kMaxObjectBytes;
  constexpr std::uint64_t kObjects = segment::kMaxPayloadBytes / kObject;
  const segment::HeaderSizes sizes{.max_objects = kObjects + 10,
                                   .payload_bytes = segment::kMaxPayloadBytes};
  const ZeroedMemory header(segment::HeaderFileBytes(sizes));
  ASSERT_TRUE(segment::FormatHeader(header.data(), sizes, {.high = 1, .low = 2}, /*hash_seed=*/3));
  FakeClock clock;
  const auto core =
      *Core::Open({.payload_bytes = sizes.payload_bytes, .max_objects = sizes.max_objects},
                  *segment::HeaderView::Open(header.data(), header.size()), nullptr, clock);
  core->AddPayloadBelow(sizes.payload_bytes);
  EXPECT_EQ(core->Stat().free_bytes, sizes.payload_bytes);
  core->SetSlots(kTestIncarnation, {{.slot = kSlot, .generation = kFirst, .name = "m"}});
  const SessionNumber session = core->AddSession(nullptr, 1);
  const Token token{.incarnation = kTestIncarnation, .generation = kFirst, .slot = kSlot};
  std::uint64_t last = 0;
  for (std::uint64_t i = 0; i <= kObjects; ++i) {
    const std::string key = fmt::format("k{}", i);
    const PutItem item{.key = key, .size_bytes = kObject, .value = {}, .after = {}};
    const PutResult result = core->Put(session, token, {&item, 1}).front();
    ASSERT_EQ(result.code, Code::kOk);
    for (const Extent& extent : result.extents) {
      last = std::max(last, std::uint64_t{extent.start} + extent.count);
    }
    const FinishItem finish{.reservation = result.reservation, .commit = true};
    ASSERT_EQ(core->Finish(session, {&finish, 1}).front(), Code::kOk);
    if (i + 1 == kObjects) {
      EXPECT_EQ(core->Stat().free_bytes, 0U);
      EXPECT_EQ(core->Stat().evictions, 0U);
    }
  }
  EXPECT_EQ(last, 1ULL << 32);
  EXPECT_EQ(core->Stat().evictions, 1U);
  core->CheckInvariants();
}

// A granule larger than a value costs room, and nothing else.
TEST(LargeCoreTest, ValuesOccupyWholeGranulesOfTheHeader) {
  TestCore test({.payload_bytes = 1 << 20, .max_objects = 1000}, /*granule_bytes=*/4096);
  test.SetSlot(kSlot, kFirst);
  ASSERT_EQ(test.Put(kSlot, "small", 1), Code::kOk);
  ASSERT_EQ(test.Put(kSlot, "large", 4097), Code::kOk);
  EXPECT_EQ(test.core->Stat().object_bytes, 3 * 4096U);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(test.Put(kSlot, fmt::format("k{}", i), 5000), Code::kOk);
  test.core->CheckInvariants();
  EXPECT_EQ(test.core->Stat().object_bytes, 1U << 20);
}

// Takes all that is evicted, and keeps it for its generation.
class KeepingTier final : public LowerTier {
 public:
  bool Holds(SlotId /*slot*/, Generation generation, std::string_view key) const override {
    return kept.contains({generation, std::string(key)});
  }
  bool Evicted(const EvictedObject& object) override {
    return kept.emplace(object.generation, object.key).second;
  }
  void Stored(SlotId /*slot*/, Generation /*generation*/, std::string_view /*key*/,
              const policy::PutEvent& /*event*/, bool /*comes_up*/) override {}
  void Asked(policy::ObjectId /*id*/) override {}
  void Forgotten(policy::ObjectId /*id*/) override {}

  bool Covers(SlotId /*slot*/, Generation generation, std::string_view key) override {
    return covered.contains({generation, std::string(key)});
  }

  std::set<std::pair<Generation, std::string>> kept;
  std::set<std::pair<Generation, std::string>> covered;
};

// A disk that is set aside may never return its value, and a move drops its source for `exists`.
TEST(LowerTierTest, ACopyIsNotAnsweredExistsForAValueThatNobodyCanRead) {
  KeepingTier lower;
  TestCore test({.payload_bytes = 4096, .max_objects = 8, .policy = "lru", .lower = &lower});
  test.SetSlot(1, kFirst);
  lower.kept.emplace(kFirst, "held");
  lower.covered.emplace(kFirst, "covered");
  const auto code = [&](const std::string& key, bool copy) {
    return test.Reserve(test.session, 1, key, 64, /*evict=*/!copy).code;
  };
  EXPECT_EQ(code("held", true), Code::kExists);
  EXPECT_EQ(code("covered", true), Code::kInProgress);
  EXPECT_EQ(code("covered", false), Code::kExists) << "a put does not replace it";
  EXPECT_EQ(code("free", true), Code::kOk);
}

TEST(LowerTierTest, APinnedObjectGoesDownWhenItsPinHasEnded) {
  KeepingTier lower;
  TestCore test(
      {.payload_bytes = 4096, .max_objects = 8, .policy = "lru", .listed = true, .lower = &lower});
  test.SetSlot(1, kFirst);
  ASSERT_EQ(test.Put(1, "pinned", 2048), Code::kOk);
  ASSERT_EQ(test.core->Pin(1, "pinned", PinKind::kHard, kSecond), Code::kOk);
  for (const char* key : {"a", "b"}) ASSERT_EQ(test.Put(1, key, 2048), Code::kOk);
  EXPECT_TRUE(test.Has(1, "pinned"));
  EXPECT_TRUE(lower.Holds(1, kFirst, "a")) << "others are demoted as before";
  EXPECT_FALSE(lower.Holds(1, kFirst, "pinned"));
  test.clock.AdvanceNs(kSecond);
  test.core->Tick();
  for (const char* key : {"c", "d"}) ASSERT_EQ(test.Put(1, key, 2048), Code::kOk);
  EXPECT_FALSE(test.Has(1, "pinned"));
  EXPECT_TRUE(lower.Holds(1, kFirst, "pinned"));
}

// What was on its way down when a reset came is lost a little later. By then the key may have been
// put again, and be on the disk under the new generation.
TEST(LowerTierTest, WhatAnEarlierGenerationLosesTakesNoListingOfTheCurrentOne) {
  KeepingTier lower;
  TestCore test(
      {.payload_bytes = 4096, .max_objects = 8, .policy = "lru", .listed = true, .lower = &lower});
  test.SetSlot(1, kFirst);
  ASSERT_EQ(test.Put(1, "k", 2048), Code::kOk);
  test.SetSlot(1, kLater);
  ASSERT_EQ(test.Put(1, "k", 2048), Code::kOk);
  for (const char* key : {"a", "b"}) ASSERT_EQ(test.Put(1, key, 2048), Code::kOk);
  ASSERT_FALSE(test.Has(1, "k"));
  ASSERT_TRUE(lower.Holds(1, kLater, "k")) << "memory gave it up";
  (void)test.core->TakeGone(100);
  test.core->NoteLost(1, "k");
  EXPECT_TRUE(test.core->TakeGone(100).empty());
  // What nobody has any more is told.
  lower.kept.clear();
  test.core->NoteLost(1, "k");
  const auto gone = test.core->TakeGone(100);
  ASSERT_EQ(gone.size(), 1U);
  EXPECT_TRUE(gone[0].item.gone);
}

}  // namespace
}  // namespace kvcove::owner
