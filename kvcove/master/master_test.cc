// SPDX-License-Identifier: Apache-2.0
// A master as a whole, over a store that may hang and go back: what it proves, what comes back.
#include "kvcove/master/master.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "kvcove/base/log.h"
#include "kvcove/master/control/control_fixture.h"

namespace kvcove::master {
namespace {

constexpr Id128 kOwner{.high = 100, .low = 1};

class MasterTest : public testing::Test {
 protected:
  MasterTest() {
    SetLogLevel(LogLevel::kOff);
    Start();
  }
  // Another master reads the store.
  void Start() {
    master_.reset();
    const auto plan = PlanStart(store_.facts, store_.revision, kSecond, clock_.NowNs());
    ASSERT_TRUE(plan) << plan.error().ToString();
    master_ = std::make_unique<Master>(MasterOptions{.generations = {}}, *plan, store_,
                                       store_.revision, clock_);
    const Answer<void> ready;
    master_->Start(ready.Into());
    ASSERT_TRUE(ready.ok());
  }
  Registration Register(const std::string& name = "m") {
    const Answer<Registration> answer;
    master_->generations().Register({.name = name, .engine = "e", .follow_always = true},
                                    clock_.NowNs() + kSecond, answer.Into());
    Pass(50 * kMillisecond);
    EXPECT_TRUE(answer.ok()) << answer.detail();
    return answer.ok() ? *answer : Registration{};
  }
  Answer<ResetOutcome> Reset(std::uint64_t id, std::int64_t for_ns = 10 * kSecond) {
    const Answer<ResetOutcome> answer;
    master_->generations().Reset(
        {.name = "m", .engine = "e", .version = {}, .id = {.high = 1, .low = id}},
        clock_.NowNs() + for_ns, answer.Into());
    return answer;
  }
  Answer<wire::OwnerWelcome> Hello(wire::OwnerHello hello) {
    hello.process = {.high = 200, .low = hello.owner.low};
    hello.address = "host:" + std::to_string(hello.owner.low);
    const Answer<wire::OwnerWelcome> answer;
    master_->control().Hello(hello, 0, answer.Into());
    return answer;
  }
  wire::OwnerWelcome Join(std::uint64_t id = 1) {
    const auto answer = Hello({.owner = {.high = 100, .low = id}, .fresh = true});
    EXPECT_TRUE(answer.ok()) << answer.detail();
    return answer.ok() ? *answer : wire::OwnerWelcome{};
  }
  static wire::OwnerHello Again(const wire::OwnerWelcome& before) {
    return {.pool = before.pool,
            .incarnation = before.incarnation,
            .seen = before.position,
            .owner = kOwner,
            .number = before.number,
            .epoch = before.epoch};
  }
  // With all generations published.
  bool Renew(const wire::OwnerWelcome& who) {
    const auto reply = master_->control().Renew(
        {.number = who.number, .epoch = who.epoch, .table = master_->control().Count().table});
    return reply && reply->granted;
  }
  Token TokenOf(const Registration& of) const {
    return {.incarnation = of.incarnation, .generation = of.generation, .slot = of.slot};
  }
  Code List(const wire::OwnerWelcome& who, const Registration& of, const std::string& key,
            std::uint64_t sequence = 1) {
    Code code = Code::kInternal;
    master_->List({.number = who.number,
                   .epoch = who.epoch,
                   .sequence = sequence,
                   .items = {{.hash = DirectoryHash(of.slot, key),
                              .generation = of.generation,
                              .size_bytes = 1,
                              .group = 1,
                              .slot = of.slot}}},
                  [&](const Result<wire::ListReply>& reply) {
                    code = reply ? reply->codes[0] : reply.error().code;
                  });
    return code;
  }
  bool Found(const Registration& of, const std::string& key) {
    const std::vector<Id128> hashes = {DirectoryHash(of.slot, key)};
    const auto places = master_->Lookup(TokenOf(of), hashes);
    return places && (*places)[0].owner != wire::kNoOwner;
  }
  Answer<Master::Removed> Remove(const Registration& of, std::vector<std::string> keys,
                                 const std::string& pattern = "") {
    const Answer<Master::Removed> answer;
    master_->Remove(TokenOf(of), std::move(keys), pattern, clock_.NowNs() + 10 * kSecond,
                    answer.Into());
    return answer;
  }
  void Acknowledge(const wire::OwnerWelcome& who, std::uint64_t after, std::uint64_t matched = 0) {
    master_->control().Removals({.number = who.number,
                                 .epoch = who.epoch,
                                 .after = after,
                                 .matched = {{.number = after, .objects = matched}}},
                                [](const Result<wire::RemovalsPage>&) {});
  }
  void Pass(std::int64_t ns) {
    clock_.AdvanceNs(ns);
    master_->Tick();
  }

  FakeClock clock_;
  FakeStore store_;
  std::unique_ptr<Master> master_;
};

TEST_F(MasterTest, NothingIsAnsweredBeforeTheStartIsStored) {
  const auto plan = PlanStart(store_.facts, store_.revision, kSecond, clock_.NowNs());
  Master another({.generations = {}}, *plan, store_, store_.revision, clock_);
  store_.failures = 1;
  const Answer<void> ready;
  another.Start(ready.Into());
  EXPECT_EQ(ready.code(), Code::kUnavailable);
}

TEST_F(MasterTest, APutIsFoundUntilItIsRemoved) {
  Pass(2 * kSecond);  // owners that a new store does not know may hold leases
  const auto owner = Join();
  const Registration m = Register();
  ASSERT_TRUE(Renew(owner));
  ASSERT_EQ(List(owner, m, "k"), Code::kOk);
  EXPECT_TRUE(Found(m, "k"));
  const auto removed = Remove(m, {"k", "other"});
  EXPECT_FALSE(Found(m, "k"));
  EXPECT_FALSE(removed.came()) << "the owner still shows it to engines on its host";
  Acknowledge(owner, master_->control().Count().removals);
  ASSERT_TRUE(removed.ok());
  EXPECT_THAT(removed->codes, testing::ElementsAre(Code::kOk, Code::kMiss));
}

TEST_F(MasterTest, WhatIsPutAfterARemovalWasAppliedStaysListed) {
  Pass(2 * kSecond);
  const auto owner = Join();
  const auto other = Join(2);
  const Registration m = Register();
  ASSERT_TRUE(Renew(owner));
  ASSERT_TRUE(Renew(other));
  const auto put = [&](const wire::OwnerWelcome& who, std::uint64_t sequence, std::uint32_t group,
                       std::uint64_t removals) {
    Code code = Code::kInternal;
    master_->List({.number = who.number,
                   .epoch = who.epoch,
                   .sequence = sequence,
                   .items = {{.hash = DirectoryHash(m.slot, "k"),
                              .generation = m.generation,
                              .size_bytes = 1,
                              .group = group,
                              .slot = m.slot,
                              .removals = removals}}},
                  [&](const Result<wire::ListReply>& reply) {
                    code = reply ? reply->codes[0] : reply.error().code;
                  });
    return code;
  };
  const std::uint64_t before = RemovalLog::FirstOf(master_->term());
  ASSERT_EQ(put(owner, 1, 1, before), Code::kOk);
  // The owner hears of the removal as soon as it may, and stores the key again at once.
  Code again = Code::kInternal;
  master_->control().Removals(
      {.number = owner.number, .epoch = owner.epoch, .after = before, .matched = {}},
      [&](const Result<wire::RemovalsPage>& page) {
        ASSERT_TRUE(page);
        ASSERT_EQ(page->removals.size(), 1U);
        again = put(owner, 2, 2, page->upto);
      });
  const auto removed = Remove(m, {"k"});
  EXPECT_EQ(again, Code::kOk);
  EXPECT_TRUE(Found(m, "k"));
  EXPECT_EQ(put(other, 1, 3, before + 1), Code::kExists) << "a second value of the key";
}

TEST_F(MasterTest, AStoreThatFailsHoldsUpNoPutButThoseOfAnAbsentOwnersKeys) {
  Pass(2 * kSecond);
  const auto dead = Join();
  const auto owner = Join(2);
  const Registration m = Register();
  ASSERT_TRUE(Renew(dead));
  ASSERT_EQ(List(dead, m, "k"), Code::kOk);
  Pass(2 * kSecond);  // its lease runs out
  ASSERT_TRUE(Renew(owner));
  const auto item = [&](const std::string& key) {
    return wire::ListItem{.hash = DirectoryHash(m.slot, key),
                          .generation = m.generation,
                          .size_bytes = 1,
                          .group = 2,
                          .slot = m.slot};
  };
  const auto list = [&](std::uint64_t sequence) {
    const Answer<wire::ListReply> answer;
    master_->List({.number = owner.number,
                   .epoch = owner.epoch,
                   .sequence = sequence,
                   .items = {item("k"), item("other" + std::to_string(sequence))}},
                  answer.Into());
    return answer;
  };
  store_.failures = 1;
  const auto refused = list(1);
  ASSERT_TRUE(refused.ok()) << refused.detail();
  EXPECT_EQ(refused->codes, (std::vector{Code::kExists, Code::kOk}));
  EXPECT_TRUE(Found(m, "other1"));
  store_.hangs = true;
  const auto hangs = list(2);
  Pass(3 * kSecond);
  ASSERT_TRUE(hangs.ok()) << hangs.detail();
  EXPECT_EQ(hangs->codes, (std::vector{Code::kExists, Code::kOk}));
  store_.hangs = false;
  store_.Release();
  const auto works = list(3);
  ASSERT_TRUE(works.ok());
  EXPECT_EQ(works->codes, (std::vector{Code::kOk, Code::kOk}));
}

// A later master that finds it in the store takes it back, with the value.
TEST_F(MasterTest, NothingTakesThePlaceOfWhatAMemberListedBeforeItsEndIsStored) {
  Pass(2 * kSecond);
  const auto ended = Join();
  const auto owner = Join(2);
  const Registration m = Register();
  ASSERT_TRUE(Renew(ended));
  ASSERT_EQ(List(ended, m, "k"), Code::kOk);
  Pass(2 * kSecond);
  ASSERT_TRUE(Renew(owner));
  const auto list = [&](std::uint64_t sequence) {
    const Answer<wire::ListReply> answer;
    master_->List({.number = owner.number,
                   .epoch = owner.epoch,
                   .sequence = sequence,
                   .items = {{.hash = DirectoryHash(m.slot, "k"),
                              .generation = m.generation,
                              .size_bytes = 1,
                              .group = 2,
                              .slot = m.slot}}},
                  answer.Into());
    return answer;
  };
  store_.hangs = true;
  ASSERT_TRUE(master_->control().Forget(ended.number));
  const auto refused = list(1);
  EXPECT_FALSE(refused.came());
  store_.RefuseOne();
  ASSERT_TRUE(refused.ok()) << refused.detail();
  EXPECT_EQ(refused->codes, std::vector{Code::kExists}) << "the member is still there";
  ASSERT_TRUE(master_->control().Forget(ended.number));
  const auto listed = list(2);
  EXPECT_FALSE(listed.came());
  store_.hangs = false;
  store_.Release();
  ASSERT_TRUE(listed.ok()) << listed.detail();
  EXPECT_EQ(listed->codes, std::vector{Code::kOk});
  EXPECT_EQ(std::ranges::count_if(
                store_.facts, [](const auto& fact) { return fact.first.starts_with("barrier/"); }),
            0)
      << "a barrier outlives its member";
}

TEST_F(MasterTest, APatternCountsWhatOwnersRemoved) {
  Pass(2 * kSecond);  // owners that a new store does not know may hold leases
  const auto owner = Join();
  const Registration m = Register();
  ASSERT_TRUE(Renew(owner));
  const auto removed = Remove(m, {}, "x*");
  Acknowledge(owner, master_->control().Count().removals, /*matched=*/7);
  ASSERT_TRUE(removed.ok());
  EXPECT_EQ(removed->matches, 7U);
}

// The owner has applied both, and still walks over its disks for the pattern.
TEST_F(MasterTest, ARemovalOfKeysAndOfAPatternIsProvenOnceBothAre) {
  Pass(2 * kSecond);  // owners that a new store does not know may hold leases
  const auto owner = Join();
  const Registration m = Register();
  ASSERT_TRUE(Renew(owner));
  const std::uint64_t before = RemovalLog::FirstOf(master_->term());
  const auto removed = Remove(m, {"k"}, "x*");
  std::vector<wire::Removal> parts;
  master_->control().Removals(
      {.number = owner.number, .epoch = owner.epoch, .after = before, .matched = {}},
      [&](const Result<wire::RemovalsPage>& page) {
        if (page) parts = page->removals;
      });
  ASSERT_EQ(parts.size(), 2U);
  const auto pattern = std::ranges::find(parts, "x*", &wire::Removal::pattern);
  ASSERT_NE(pattern, parts.end());
  master_->control().Removals({.number = owner.number,
                               .epoch = owner.epoch,
                               .after = pattern->number - 1,
                               .matched = {},
                               .ahead = before + 2,
                               .open = {pattern->number}},
                              [](const Result<wire::RemovalsPage>&) {});
  EXPECT_FALSE(removed.came());
  Acknowledge(owner, before + 2);
  EXPECT_TRUE(removed.ok());
}

TEST_F(MasterTest, AnOldTokenFindsAndRemovesNothing) {
  Join();
  const Registration before = Register();
  Reset(1);
  EXPECT_EQ(Remove(before, {"k"}).code(), Code::kStale);
  const std::vector<Id128> hashes(1);
  EXPECT_EQ(master_->Lookup(TokenOf(before), hashes).error().code, Code::kStale);
}

TEST_F(MasterTest, AListingOfAnotherMastersOwnerIsStale) {
  const Registration m = Register();
  EXPECT_EQ(List({.number = 4000, .epoch = 77}, m, "k"), Code::kStale);
}

TEST_F(MasterTest, AResetWaitsForAnOwnerThatWasAwayWhenTheMasterRestarted) {
  const auto owner = Join();
  Register();
  ASSERT_TRUE(Renew(owner));
  Start();
  const auto reset = Reset(1);
  EXPECT_FALSE(reset.came()) << "the earlier master's lease may be running";
  Pass(kSecond / 100 * 101);
  EXPECT_TRUE(reset.ok());
}

TEST_F(MasterTest, ARemovalThatWasProvenDoesNotComeUndoneByRestarts) {
  const auto owner = Join();
  const Registration m = Register();
  ASSERT_TRUE(Renew(owner));
  ASSERT_EQ(List(owner, m, "k"), Code::kOk);
  // The owner is frozen; the master restarts, proves a removal, and restarts again.
  Start();
  Pass(2 * kSecond);
  ASSERT_TRUE(Remove(m, {"k"}).ok());
  Start();
  const auto again = Hello(Again(owner));
  ASSERT_TRUE(again.ok()) << again.detail();
  const auto renewed = master_->control().Renew(
      {.number = again->number, .epoch = again->epoch, .table = master_->control().Count().table});
  ASSERT_TRUE(renewed);
  EXPECT_THAT(renewed->hidden, testing::ElementsAre(m.slot));
  EXPECT_EQ(List(*again, m, "k"), Code::kStale) << "it must drop the slot first";
}

TEST_F(MasterTest, AStoreThatWentBackBeginsAnotherIncarnation) {
  const auto owner = Join();
  const FakeStore early = store_;
  Register();
  ASSERT_TRUE(Renew(owner));
  wire::OwnerHello hello = Again(owner);
  hello.seen.revision = store_.revision;
  store_.facts = early.facts;
  store_.revision = early.revision;
  Start();
  EXPECT_EQ(Hello(hello).code(), Code::kStale);
  const auto welcome = Hello(hello);
  ASSERT_TRUE(welcome.ok()) << welcome.detail();
  EXPECT_NE(welcome->incarnation, owner.incarnation) << "what it holds is void";
  EXPECT_TRUE(Renew(*welcome));
}

TEST_F(MasterTest, APoolWhoseStoreIsLostTakesItsOwnersInAgain) {
  const auto owner = Join();
  store_.facts.clear();
  store_.revision = 0;
  Start();
  EXPECT_EQ(Hello(Again(owner)).code(), Code::kStale);
  const auto welcome = Hello(Again(owner));
  ASSERT_TRUE(welcome.ok()) << welcome.detail();
  EXPECT_TRUE(welcome->forgotten);
  EXPECT_EQ(welcome->pool, owner.pool);
  EXPECT_EQ(Decode(store_.facts)->pool->pool, owner.pool);
  EXPECT_TRUE(Renew(Join(2)));
}

TEST_F(MasterTest, AMasterWithoutLeasesEndsCleanly) {
  const auto owner = Join();
  ASSERT_TRUE(Renew(owner));
  const Answer<void> refused;
  master_->Stop(refused.Into());
  EXPECT_FALSE(refused.ok()) << "a lease is running";
  EXPECT_FALSE(Decode(store_.facts)->pool->clean_end);
  Start();
  Pass(2 * kSecond);
  const Answer<void> ended;
  master_->Stop(ended.Into());
  EXPECT_TRUE(ended.ok());
  EXPECT_TRUE(Decode(store_.facts)->pool->clean_end);
  EXPECT_FALSE(Renew(owner));
}

TEST_F(MasterTest, AfterAStartNothingIsCalledNeverPut) {
  const Registration m = Register();
  const std::vector<Id128> hashes = {DirectoryHash(m.slot, "k")};
  EXPECT_EQ((*master_->Lookup(TokenOf(m), hashes))[0].reason, MissReason::kWarmingUp);
  Pass(2 * kSecond);
  EXPECT_EQ((*master_->Lookup(TokenOf(m), hashes))[0].reason, MissReason::kNeverPut);
  EXPECT_EQ(master_->directory().Why(m.slot, "k")->count, 2U);
}

TEST_F(MasterTest, AnAnnouncedSaveIsNoLookUpAndNoMiss) {
  const Registration m = Register();
  const Token token = TokenOf(m);
  const std::vector<Id128> hashes = {DirectoryHash(m.slot, "k")};
  ASSERT_TRUE(master_->NoteSaves(/*writer=*/1, token, hashes, SaveNotice::kBegin));
  EXPECT_FALSE(master_->directory().Why(m.slot, "k"));
  EXPECT_EQ(master_->directory().lookups(), 0U);
  EXPECT_TRUE((*master_->Lookup(token, hashes))[0].under_way);
  Token old = token;
  ++old.generation;
  EXPECT_EQ(master_->NoteSaves(1, old, hashes, SaveNotice::kEnd).error().code, Code::kStale);
}

}  // namespace
}  // namespace kvcove::master
