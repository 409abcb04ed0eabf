// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/owner.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "kvcove/base/size.h"

namespace kvcove::owner {
namespace {

using testing::HasSubstr;

// The master places objects by it: an owner that said "no room" at first got none for a renewal.
TEST(OwnerTest, ReportsItsRoomBeforeAnyThreadRuns) {
  const auto owner = Owner::Open({.memory_bytes = 16 * kMiB}, SystemClock::Instance());
  ASSERT_TRUE(owner) << owner.error().ToString();
  EXPECT_EQ((*owner)->link_side().Report().free_bytes, 16 * kMiB);
}

// A page that the requester touched first would be charged to its control group.
TEST(OwnerTest, WhatAPutIsGivenHasMemoryBeforeAnybodyWritesThere) {
  const auto owner = *Owner::Open({.memory_bytes = 16 * kMiB, .huge_pages = HugePages::kOff},
                                  SystemClock::Instance());
  owner->link_side().Publish({1, 1}, {{.slot = 3, .generation = 1ULL << 24, .name = "m"}});
  const SessionNumber session = owner->memory().AddSession(getpid())->number;
  const PutItem item{.key = "k", .size_bytes = 3 * kMiB, .value = {}, .after = {}};
  const Token token{.incarnation = {1, 1}, .generation = 1ULL << 24, .slot = 3};
  const PutResult result =
      owner->Put(session, token, {&item, 1}, SystemClock::Instance().NowNs() + 30 * kSecond)
          .front();
  ASSERT_EQ(result.code, Code::kOk);
  ASSERT_FALSE(result.extents.empty());
  for (const Extent& extent : result.extents) {
    const std::uint64_t page = SystemPageBytes();
    const segment::Granule granule = owner->data_side().payload().granule;
    const std::uint64_t begin = granule.BytesOf(extent.start) / page * page;
    const std::uint64_t size = (granule.BytesOf(extent.count) + page - 1) / page * page;
    const auto present = PresentRuns(owner->data_side().payload().data + begin, size);
    ASSERT_EQ(present.size(), 1U);
    EXPECT_EQ(present[0].second, size);
  }
  EXPECT_LT(PresentRuns(owner->data_side().payload().data, 16 * kMiB).front().second, 5 * kMiB)
      << "and no more";
}

bool HasThread(const std::string& name) {
  return std::ranges::any_of(std::filesystem::directory_iterator("/proc/self/task"),
                             [&](const auto& task) {
                               std::ifstream file(task.path() / "comm");
                               std::string comm;
                               return std::getline(file, comm) && comm == name;
                             });
}

// An upgrade's puts waited up to 370 ms for a new thread's stack: the populating thread, of idle
// priority, held the lock of the address space without a core.
TEST(OwnerTest, NothingIsPopulatedBeforeItsUserSaysThatAllElseIsStarted) {
  const auto owner = *Owner::Open({.memory_bytes = 512 * kMiB, .huge_pages = HugePages::kOff},
                                  SystemClock::Instance());
  EXPECT_TRUE(owner->Start());
  EXPECT_FALSE(HasThread("kvcove-pages"));
  owner->memory().StartPopulating();
  EXPECT_TRUE(HasThread("kvcove-pages") || owner->memory().Populated());
}

// An owner that hands over answers nobody, and its successor may be of a build that does not know
// the call.
TEST(OwnerTest, RequestersAskAFrozenOwnerForNoSaves) {
  const auto owner = *Owner::Open({.memory_bytes = 16 * kMiB}, SystemClock::Instance());
  const auto until = [&] { return owner->memory().header().header().saves_until_ns.load(); };
  ASSERT_TRUE(owner->Start());
  EXPECT_EQ(until(), 1) << "it takes announcements";
  const Id128 hash{1, 2};
  (void)owner->NoteSaves(1, {.generation = 1, .slot = 3}, {&hash, 1}, SaveNotice::kBegin);
  EXPECT_GT(until(), SystemClock::Instance().NowNs());
  owner->Freeze();
  EXPECT_EQ(until(), 0);
  owner->Thaw();
  EXPECT_EQ(until(), 1);
}

// By this a requester finds the owner that need not evict: a hint that a timer published let a fast
// writer fill one owner of two.
TEST(OwnerTest, APutShowsAtOnceHowMuchRoomIsLeft) {
  const auto owner = *Owner::Open({.memory_bytes = 16 * kMiB}, SystemClock::Instance());
  owner->link_side().Publish({1, 1}, {{.slot = 3, .generation = 1ULL << 24, .name = "m"}});
  const SessionNumber session = owner->memory().AddSession(getpid())->number;
  const Token token{.incarnation = {1, 1}, .generation = 1ULL << 24, .slot = 3};
  const auto room = [&] { return owner->memory().header().header().free_bytes.load(); };
  PutItem item{.key = "a", .size_bytes = 2 * kMiB, .value = {}, .after = {}};
  const std::int64_t deadline_ns = SystemClock::Instance().NowNs() + 30 * kSecond;
  ASSERT_EQ(owner->Put(session, token, {&item, 1}, deadline_ns).front().code, Code::kOk);
  EXPECT_EQ(room(), 14 * kMiB);
  item.key = "b";
  ASSERT_EQ(owner->data_side().Reserve(session, token, {&item, 1}).front().code, Code::kOk);
  EXPECT_EQ(room(), 12 * kMiB);
}

// A loop over more than memory has: LRU finds nothing of it, and twice the memory finds all.
TEST(OwnerTest, EstimatesWhatMoreMemoryWouldBring) {
  constexpr std::uint64_t kKeys = 1500;
  constexpr std::uint32_t kBytes = 16 * kKiB;  // so few that each is sampled
  const std::vector<std::byte> value(kBytes);
  const auto owner =
      *Owner::Open({.memory_bytes = 16 * kMiB, .policy = "lru"}, SystemClock::Instance());
  owner->link_side().Publish({1, 1}, {{.slot = 3, .generation = 1ULL << 24, .name = "m"}});
  ASSERT_TRUE(owner->Start());
  const SessionNumber session = owner->memory().AddSession(getpid())->number;
  const Token token{.incarnation = {1, 1}, .generation = 1ULL << 24, .slot = 3};
  const std::int64_t deadline_ns = SystemClock::Instance().NowNs() + 60 * kSecond;
  for (int round = 0; round < 2; ++round) {
    for (std::uint64_t i = 0; i < kKeys; ++i) {
      const std::string key = std::to_string(i);
      const PutItem item{.key = key, .size_bytes = kBytes, .value = value, .after = {}};
      ASSERT_EQ(owner->Put(session, token, {&item, 1}, deadline_ns).front().code, Code::kOk);
    }
  }
  // The janitor estimates.
  PoolStat stat = owner->Stat();
  while (stat.asked < 2 * kKeys && SystemClock::Instance().NowNs() < deadline_ns) {
    Memory::LetOthersIn();
    stat = owner->Stat();
  }
  EXPECT_EQ(stat.asked, 2 * kKeys);
  EXPECT_EQ(stat.half_hits, 0U);
  EXPECT_EQ(stat.same_hits, 0U);
  EXPECT_EQ(stat.double_hits, kKeys);
  EXPECT_EQ(stat.quadruple_hits, kKeys);
  EXPECT_NEAR(*stat.most_ratio(), 0.5, 0.05);
  owner->Stop();
}

// an operator sees whether new weights voided nothing or millions of values.
TEST(OwnerTest, SaysWhatAResetVoided) {
  const auto owner = *Owner::Open({.memory_bytes = 16 * kMiB}, SystemClock::Instance());
  const SessionNumber session = owner->memory().AddSession(getpid())->number;
  constexpr Generation kOne = 1ULL << 24;
  const auto publish = [&](std::vector<std::pair<SlotId, Generation>> slots) {
    std::vector<SlotUpdate> updates;
    for (const auto& [slot, generation] : slots) {
      updates.push_back({.slot = slot,
                         .generation = generation,
                         .name = QualifiedName("acme", fmt::format("m{}", slot))});
    }
    owner->link_side().Publish({1, 1}, updates);
    // The janitor has said all when it has ended.
    testing::internal::CaptureStderr();
    EXPECT_TRUE(owner->Start());
    owner->Stop();
    return testing::internal::GetCapturedStderr();
  };
  const auto put = [&](SlotId slot, const std::string& key) {
    const std::vector<std::byte> value(4096, std::byte{5});
    const PutItem item{.key = key, .size_bytes = 4096, .value = value, .after = {}};
    const Token token{.incarnation = {1, 1}, .generation = kOne, .slot = slot};
    const std::int64_t deadline_ns = SystemClock::Instance().NowNs() + 30 * kSecond;
    return owner->Put(session, token, {&item, 1}, deadline_ns).front().code;
  };
  SetLogLevel(LogLevel::kInfo);
  EXPECT_EQ(publish({{3, kOne}, {4, kOne}, {5, kOne}}), "") << "nothing was there";
  for (const char* key : {"a", "b", "c"}) ASSERT_EQ(put(3, key), Code::kOk);
  ASSERT_EQ(put(4, "a"), Code::kOk);
  ASSERT_EQ(put(5, "a"), Code::kOk);
  EXPECT_THAT(publish({{3, 2 * kOne}}),
              HasSubstr("reset of 'acme:m3': 3 values (12KiB) of this host's memory are void"));
  EXPECT_THAT(publish({{3, 3 * kOne}}), HasSubstr("reset of 'acme:m3': 0 values"));
  EXPECT_THAT(publish({{3, 4 * kOne}, {4, 4 * kOne}}),
              HasSubstr("reset of 'acme:m3' and 1 more: 1 values (4KiB)"))
      << "all of one round of the janitor";
  EXPECT_THAT(publish({{5, 0}}), HasSubstr("without a reset: 1 values (4KiB)"));
  SetLogLevel(LogLevel::kWarn);
}

TEST(OwnerTest, TheFilesRoundingIsNoCapacity) {
  const auto owner = *Owner::Open({.memory_bytes = 5 * kMiB + 64}, SystemClock::Instance());
  EXPECT_EQ(owner->link_side().capacity_bytes(), 5 * kMiB + 64);
  EXPECT_EQ(owner->memory().header().header().payload_bytes, 5 * kMiB + 64);
}

// An owner whose janitor rests for an hour, unless somebody ends the rest.
class RestingOwnerTest : public testing::Test {
 protected:
  static constexpr SlotId kSlot = 3;
  static constexpr Generation kOne = 1ULL << 24;
  RestingOwnerTest() {
    Publish(kOne);
    EXPECT_TRUE(owner_->Start());
  }
  void Publish(Generation generation) {
    owner_->link_side().Publish({1, 1}, {{.slot = kSlot, .generation = generation, .name = "m"}});
  }
  static std::string JanitorsSwitches() {
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      std::ifstream comm(task.path() / "comm");
      std::string line;
      if (!std::getline(comm, line) || line != "kvcove-janitor") continue;
      std::ifstream status(task.path() / "status");
      while (std::getline(status, line)) {
        if (line.starts_with("voluntary_ctxt_switches:")) return line;
      }
    }
    return {};
  }
  // Waits for a period in which the janitor has not woken; one that does not rest wakes 20 times.
  static bool Rests() {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    std::string before = JanitorsSwitches();
    while (std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      const std::string now = JanitorsSwitches();
      if (!now.empty() && now == before) return true;
      before = now;
    }
    return false;
  }
  // Waits until a report of the janitor says so. Does not use the core, which would end its rest.
  template <typename Says>
  bool Reports(Says says) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (std::chrono::steady_clock::now() < until) {
      if (says(owner_->link_side().Report())) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }
  Code Put(SessionNumber session) {
    const std::vector<std::byte> value(4096, std::byte{5});
    const PutItem item{.key = "k", .size_bytes = 4096, .value = value, .after = {}};
    const Token token{.incarnation = {1, 1}, .generation = kOne, .slot = kSlot};
    const std::int64_t deadline_ns = SystemClock::Instance().NowNs() + 30 * kSecond;
    return owner_->Put(session, token, {&item, 1}, deadline_ns).front().code;
  }
  std::unique_ptr<Owner> owner_ =
      *Owner::Open({.memory_bytes = kMiB, .janitor_rest_ns = 3600 * kSecond, .log_resets = false},
                   SystemClock::Instance());
};

// An idle owner woke 200 times a second.
TEST_F(RestingOwnerTest, TheJanitorRestsWhileNobodyUsesTheOwner) {
  EXPECT_TRUE(Rests());
  owner_->Freeze();
  owner_->Thaw();
  EXPECT_TRUE(Rests());
  owner_->Stop();
}

// A hit is written into the session's page only: nobody tells the owner of it.
TEST_F(RestingOwnerTest, ASessionEndsTheRestAndItsEventsArePolledAsBefore) {
  ASSERT_TRUE(Rests());
  const Memory::Grant grant = *owner_->memory().AddSession(getpid());
  ASSERT_EQ(Put(grant.number), Code::kOk);
  ASSERT_TRUE(Reports([](const auto& report) { return report.objects == 1; }));
  const segment::HeaderView view = owner_->memory().header();
  for (std::uint64_t hits = 1; hits < 4; ++hits) {
    const auto found = view.Find(kSlot, {.key = "k", .hash = view.HashKey(kSlot, "k")});
    ASSERT_TRUE(found);
    segment::PushEvent(
        *grant.mapped,
        {.kind = segment::EventKind::kHit, .place = found.place, .version = found.version});
    EXPECT_TRUE(Reports([&](const auto& report) { return report.hits == hits; })) << hits;
  }
  owner_->memory().EndSession(grant.number);
  EXPECT_TRUE(Rests());
}

TEST_F(RestingOwnerTest, WhatAResetLeavesIsSweptAfterARest) {
  const SessionNumber session = owner_->memory().AddSession(getpid())->number;
  ASSERT_EQ(Put(session), Code::kOk);
  owner_->memory().EndSession(session);
  ASSERT_TRUE(Rests());
  ASSERT_LT(owner_->link_side().Report().free_bytes, kMiB);
  Publish(2 * kOne);
  EXPECT_TRUE(Reports([](const auto& report) { return report.free_bytes == kMiB; }));
  EXPECT_TRUE(Rests());
}

class LateOwnerTest : public testing::Test {
 protected:
  static constexpr SlotId kSlot = 3;
  static constexpr Generation kOld = 1ULL << 24;
  static constexpr Generation kNew = 2ULL << 24;
  LateOwnerTest() {
    Publish(kOld);
    session_ = owner_->data_side().AddRemoteSession();
  }
  void Publish(Generation generation) {
    owner_->link_side().Publish({1, 1}, {{.slot = kSlot, .generation = generation, .name = "m"}});
  }
  Code Put(Generation generation, std::int64_t timeout_ns) {
    const PutItem item{.key = "k", .size_bytes = 1000, .value = {}, .after = {}};
    const Token token{.incarnation = {1, 1}, .generation = generation, .slot = kSlot};
    return owner_->Put(session_, token, {&item, 1}, SystemClock::Instance().NowNs() + timeout_ns)
        .front()
        .code;
  }
  std::unique_ptr<Owner> owner_ =
      *Owner::Open({.memory_bytes = kMiB, .cluster = true}, SystemClock::Instance());
  SessionNumber session_ = 0;
};

TEST_F(LateOwnerTest, APutWaitsForItsGeneration) {
  // The put is begun by then or not: it is taken in both cases.
  std::thread master([this] { Publish(kNew); });
  EXPECT_EQ(Put(kNew, 30 * kSecond), Code::kOk);
  master.join();
  EXPECT_EQ(Put(kOld, 30 * kSecond), Code::kStale) << "at once";
}

TEST_F(LateOwnerTest, APutDoesNotWaitLongerThanItsDeadlineOrForAMasterThatIsAway) {
  EXPECT_EQ(Put(kNew, kMillisecond), Code::kUnavailable);
  owner_->link_side().SetMasterReachable(false);
  EXPECT_EQ(Put(kNew, 30 * kSecond), Code::kUnavailable);
}

// The first slice is done whatever the time is: a caller with little time gets what there is.
TEST_F(LateOwnerTest, PinsAndStatisticsOfObjectsEndWithTheCallersTime) {
  const std::vector<std::string> names(1000, "k");
  const std::vector<std::string_view> keys(names.begin(), names.end());
  const Token token{.incarnation = {1, 1}, .generation = kOld, .slot = kSlot};
  const std::vector<Code> codes = owner_->Pin(token, keys, {.kind = PinKind::kHard}, /*past*/ 1);
  ASSERT_EQ(codes.size(), keys.size());
  EXPECT_EQ(codes.front(), Code::kMiss);
  EXPECT_EQ(codes.back(), Code::kTimeout);
  EXPECT_EQ(owner_->StatObjects(token, keys, /*past*/ 1).error().code, Code::kTimeout);
  const std::int64_t soon_ns = SystemClock::Instance().NowNs() + 30 * kSecond;
  EXPECT_EQ(owner_->Pin(token, keys, {.kind = PinKind::kHard}, soon_ns).back(), Code::kMiss);
  EXPECT_EQ(owner_->StatObjects(token, keys, soon_ns)->size(), keys.size());
}

// The same calls without a thread that waits.
class ListedLaterTest : public LateOwnerTest {
 protected:
  ListedLaterTest() { EXPECT_TRUE(owner_->Start()); }
  // Of a whole value; the answer comes to `answers_`.
  void PutThen(const std::string& key, std::int64_t timeout_ns) {
    const std::vector<std::byte> value(1000);
    const PutItem item{.key = key, .size_bytes = 1000, .value = value, .after = {}};
    owner_->PutThen(session_, {.incarnation = {1, 1}, .generation = kOld, .slot = kSlot},
                    {&item, 1}, SystemClock::Instance().NowNs() + timeout_ns,
                    [this](const std::vector<PutResult>& results) {
                      const MutexLock lock(mutex_);
                      answers_.push_back(results.front().code);
                      changed_.NotifyAll();
                    });
  }
  // After so many have come.
  std::vector<Code> Answers(std::size_t count) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    const MutexLock lock(mutex_);
    while (answers_.size() < count && changed_.WaitUntil(mutex_, until)) {
    }
    return answers_;
  }
  Mutex mutex_;
  CondVar changed_;
  std::vector<Code> answers_ KVCOVE_GUARDED_BY(mutex_);
};

TEST_F(ListedLaterTest, APutIsAnsweredWhenTheMasterHasListedIt) {
  PutThen("k", 30 * kSecond);
  EXPECT_TRUE(Answers(0).empty());
  std::vector<Listing> listings = owner_->link_side().TakeListings(10);
  ASSERT_EQ(listings.size(), 1U);
  owner_->link_side().CompleteListing(std::move(listings.front()), std::vector<Code>{Code::kOk});
  EXPECT_EQ(Answers(1), std::vector<Code>{Code::kOk});
  PutThen("k", 30 * kSecond);
  EXPECT_EQ(Answers(2).back(), Code::kExists) << "at once";
}

TEST_F(ListedLaterTest, APutIsAnsweredAtItsDeadlineAndItsListingGoesOn) {
  PutThen("k", kMillisecond);
  EXPECT_EQ(Answers(1), std::vector<Code>{Code::kNotListed});
  std::vector<Listing> listings = owner_->link_side().TakeListings(10);
  ASSERT_EQ(listings.size(), 1U);
  owner_->link_side().CompleteListing(std::move(listings.front()), std::vector<Code>{Code::kOk});
  PutThen("k", 30 * kSecond);
  EXPECT_EQ(Answers(2), (std::vector<Code>{Code::kNotListed, Code::kExists})) << "and once";
}

TEST_F(ListedLaterTest, NobodyWaitsForAMasterThatIsAwayOrWhenWaitsEnd) {
  PutThen("a", 30 * kSecond);
  owner_->link_side().SetMasterReachable(false);
  EXPECT_EQ(Answers(1).back(), Code::kNotListed);
  PutThen("b", 30 * kSecond);
  EXPECT_EQ(Answers(2).back(), Code::kNotListed);
  owner_->link_side().SetMasterReachable(true);
  PutThen("c", 30 * kSecond);
  owner_->outbox().EndWaits();
  EXPECT_EQ(Answers(3).back(), Code::kNotListed);
}

TEST_F(ListedLaterTest, ACommitIsAnsweredInTheOrderOfItsItems) {
  std::vector<PutItem> items;
  for (const char* key : {"a", "b"}) items.push_back({.key = key, .size_bytes = 1000});
  const auto grants = owner_->data_side().Reserve(
      session_, {.incarnation = {1, 1}, .generation = kOld, .slot = kSlot}, items);
  const std::vector<FinishItem> commits = {{.reservation = grants[1].reservation, .commit = true},
                                           {.reservation = 12345, .commit = true},
                                           {.reservation = grants[0].reservation, .commit = true}};
  std::vector<Code> codes;
  owner_->FinishThen(session_, commits, SystemClock::Instance().NowNs() + 30 * kSecond,
                     [&](std::vector<Code> answer) { codes = std::move(answer); });
  std::vector<Listing> listings = owner_->link_side().TakeListings(10);
  ASSERT_EQ(listings.size(), 1U);
  owner_->link_side().CompleteListing(std::move(listings.front()),
                                      std::vector<Code>{Code::kExists, Code::kOk});
  EXPECT_EQ(codes, (std::vector<Code>{Code::kExists, Code::kInvalid, Code::kOk}));
}

// The listings of puts that gave way would pile up for as long as the master is away.
TEST_F(LateOwnerTest, TheOutboxKeepsWhatStillWaits) {
  owner_->link_side().SetMasterReachable(false);
  EXPECT_TRUE(owner_->Start());
  const std::vector<std::byte> value(kInlineBytes);
  const Token token{.incarnation = {1, 1}, .generation = kOld, .slot = kSlot};
  for (int i = 0; i < 5000; ++i) {
    const std::string key = "key-" + std::to_string(i);
    const PutItem item{.key = key, .size_bytes = kInlineBytes, .value = value, .after = {}};
    ASSERT_EQ(
        owner_->Put(session_, token, {&item, 1}, SystemClock::Instance().NowNs() + 30 * kSecond)
            .front()
            .code,
        Code::kNotListed)
        << i;
  }
  const std::int64_t until_ns = SystemClock::Instance().NowNs() + 60 * kSecond;
  std::size_t waiting = 0;
  do {
    std::vector<Listing> listings = owner_->link_side().TakeListings(~std::size_t{0});
    waiting = listings.size();
    owner_->link_side().ReturnListings(std::move(listings));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    // None: the janitor has them all while it trims.
  } while ((waiting > 300 || waiting == 0) && SystemClock::Instance().NowNs() < until_ns);
  EXPECT_LE(waiting, 300U) << "64 fit, and as many again and a half may be over";
  EXPECT_GE(waiting, 1U);
  owner_->Stop();
}

}  // namespace
}  // namespace kvcove::owner
