// SPDX-License-Identifier: Apache-2.0
// A leader and shards of its directory, in virtual time and without sockets: what moves stays
// found, what is lost is a miss, and no key has two values.
#include "kvcove/master/shards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "kvcove/base/log.h"
#include "kvcove/master/control_fixture.h"
#include "kvcove/master/master.h"
#include "kvcove/master/shard_replica.h"

namespace kvcove::master {
namespace {

class ShardsTest : public testing::Test {
 protected:
  // A master that follows. Its calls take no time; `cut`: none arrives.
  struct Follower {
    Follower(ShardsTest& test, const std::string& address)
        : replica({.address = address, .directory = {}}, test.clock_) {}
    ShardReplica replica;
    bool cut = false;
    bool asked = false;
    std::uint64_t taken = 0;
  };

  struct Told {
    std::uint64_t session = 0;
    std::uint32_t epoch = 0;
    std::uint64_t sequence = 0;
  };

  ShardsTest() {
    SetLogLevel(LogLevel::kOff);
    const auto plan = PlanStart(store_.facts, store_.revision, kSecond, clock_.NowNs());
    master_ = std::make_unique<Master>(MasterOptions{.generations = {}, .shards = true}, *plan,
                                       store_, store_.revision, clock_);
    const Answer<void> ready;
    master_->Start(ready.Into());
    EXPECT_TRUE(ready.ok());
    Pass(2500 * kMillisecond);
    const Answer<Registration> answer;
    master_->generations().Register({.name = "m", .engine = "e", .follow_always = true},
                                    clock_.NowNs() + kSecond, answer.Into());
    Pass(50 * kMillisecond);
    EXPECT_TRUE(answer.ok());
    m_ = *answer;
    token_ = {.incarnation = m_.incarnation, .generation = m_.generation, .slot = m_.slot};
  }
  ~ShardsTest() override { master_->shards().Stop(); }

  void Follow(Follower& one) {
    if (one.cut || one.asked) return;
    one.asked = true;
    const std::int64_t sent = clock_.NowNs();
    master_->shards().Sync(
        one.replica.NextSync(), [&one, sent](const Result<wire::ShardSyncReply>& reply) {
          one.asked = false;
          if (one.cut || !reply) return;
          // Over the wire, as it would come.
          const std::string bytes = wire::Encode(*reply);
          const auto decoded = wire::DecodeShardSyncReply(std::as_bytes(std::span(bytes)));
          ASSERT_TRUE(decoded) << decoded.error().ToString();
          one.replica.Apply(*decoded, sent);
        });
  }
  void Take(Follower& one) {
    if (one.cut) return;
    const wire::ShardMove move = one.replica.Wanted();
    one.replica.Forget();
    if (move.id <= one.taken) return;
    one.taken = move.id;
    one.replica.BeginLoad(move);
    for (std::uint32_t cursor = 0;;) {
      const wire::ShardPullRequest request{
          .term = master_->term(), .move = move.id, .cursor = cursor};
      Result<wire::ShardPage> page = Fail(Code::kUnavailable, "nobody");
      if (move.from == 0) {
        page = master_->shards().Pull(request);
      } else {
        for (const auto& other : followers_) {
          if (other->replica.stat().number == move.from && !other->cut) {
            page = other->replica.Pull(request);
          }
        }
      }
      if (!page) return one.replica.LoadFailed(move.id);
      one.replica.Load(move.id, *page);
      if (page->done) return;
      cursor = page->cursor;
    }
  }
  Follower& AddFollower() {
    followers_.push_back(
        std::make_unique<Follower>(*this, "shard" + std::to_string(followers_.size()) + ":1"));
    return *followers_.back();
  }
  void Pass(std::int64_t ns) {
    for (; ns > 0; ns -= 5 * kMillisecond) {
      clock_.AdvanceNs(5 * kMillisecond);
      if (renewing_) Renew();
      for (const auto& one : followers_) {
        Follow(*one);
        Take(*one);
      }
      master_->Tick();
    }
  }
  // Of every owner, with all told under the map of now.
  void Renew() {
    for (const auto& [id, owner] : owners_) {
      if (away_ == id) continue;
      (void)master_->control().Renew(
          {.number = owner.number,
           .epoch = owner.epoch,
           .table = master_->control().Count().table,
           .told = tells_,
           .told_map = told_maps_.contains(id) ? told_maps_[id] : told_map_});
    }
  }
  void Join(std::uint64_t id) {
    wire::OwnerHello hello = Of(id);
    hello.fresh = !owners_.contains(id);
    if (!hello.fresh) {
      hello.pool = owners_[id].pool;
      hello.incarnation = owners_[id].incarnation;
      hello.seen = owners_[id].position;
      hello.number = owners_[id].number;
    }
    const Answer<wire::OwnerWelcome> answer;
    master_->control().Hello(hello, 0, answer.Into());
    ASSERT_TRUE(answer.ok()) << answer.detail();
    owners_[id] = *answer;
  }
  // The follower that serves the key; null: the leader.
  Follower* Of(const std::string& key) {
    const auto map = master_->shards().map();
    if (map == nullptr) return nullptr;
    const wire::ShardNumber number = map->ShardOf(DirectoryHash(m_.slot, key));
    for (const auto& one : followers_) {
      if (number != 0 && one->replica.stat().number == number) return one.get();
    }
    return nullptr;
  }
  using testing::Test::SetUp;
  wire::OwnerHello Of(std::uint64_t id) { return master::Of(id); }
  Code List(std::uint64_t id, const std::string& key, std::uint32_t group, bool inventory = false,
            bool gone = false) {
    const wire::OwnerWelcome& who = owners_[id];
    Follower* const at = Of(key);
    // As an owner's lanes: each map and epoch begin a session of their own.
    const auto map = master_->shards().map();
    Told& told = sequences_[{id, at}];
    const std::uint64_t session = map == nullptr ? 0 : map->revision;
    if (told.session != session || told.epoch != who.epoch) {
      told = {.session = session, .epoch = who.epoch};
    }
    wire::ListRequest request{.number = who.number,
                              .epoch = who.epoch,
                              .sequence = ++told.sequence,
                              .applied = applied_,
                              .session = session,
                              .items = {{.hash = DirectoryHash(m_.slot, key),
                                         .generation = m_.generation,
                                         .size_bytes = 1,
                                         .group = group,
                                         .slot = m_.slot,
                                         .gone = gone,
                                         .inventory = inventory,
                                         .removals = applied_}}};
    Code code = Code::kTimeout;
    const auto answer = [&](const Result<wire::ListReply>& reply) {
      code = reply ? reply->codes[0] : reply.error().code;
    };
    if (at == nullptr) {
      master_->List(request, answer);
    } else if (at->replica.Serving() == 0) {
      code = Code::kUnavailable;
    } else {
      at->replica.List(
          request,
          [&](const wire::ShardBarRequest& bar, Reply<wire::ShardBarReply> reply) {
            master_->control().AnswerBars(bar.values, std::move(reply));
          },
          answer);
    }
    if (code == Code::kInProgress || code == Code::kUnavailable) --told.sequence;
    return code;
  }
  wire::Place Find(const std::string& key) {
    const std::vector<Id128> hashes = {DirectoryHash(m_.slot, key)};
    Follower* const at = Of(key);
    const auto places =
        at == nullptr ? master_->Lookup(token_, hashes) : at->replica.Lookup(token_, hashes);
    if (at != nullptr && at->replica.Serving() == 0) return {.reason = MissReason::kShardAway};
    return places ? (*places)[0] : wire::Place{.reason = MissReason::kReset};
  }
  static std::string Key(int i) { return "key" + std::to_string(i); }
  int Found(int count) {
    int found = 0;
    for (int i = 0; i < count; ++i) found += Find(Key(i)).owner != wire::kNoOwner ? 1 : 0;
    return found;
  }

  FakeClock clock_;
  FakeStore store_;
  std::unique_ptr<Master> master_;
  std::vector<std::unique_ptr<Follower>> followers_;
  std::map<std::uint64_t, wire::OwnerWelcome> owners_;
  std::map<std::pair<std::uint64_t, Follower*>, Told> sequences_;
  std::uint64_t away_ = 0;
  bool renewing_ = true;
  bool tells_ = true;
  std::uint64_t told_map_ = ~0ULL;                    // "all of it"
  std::map<std::uint64_t, std::uint64_t> told_maps_;  // by owner, in place of that
  std::uint64_t applied_ = RemovalLog::FirstOf(1);
  Registration m_;
  Token token_;
};

TEST_F(ShardsTest, AShardGetsItsShareWithItsEntries) {
  Join(1);
  Pass(20 * kMillisecond);
  for (int i = 0; i < 200; ++i) ASSERT_EQ(List(1, Key(i), 1), Code::kOk);
  AddFollower();
  AddFollower();
  Pass(3 * kSecond);
  const auto shards = master_->shards().Describe();
  ASSERT_EQ(shards.size(), 3U);
  for (const ShardDescription& one : shards) EXPECT_NEAR(one.slices, wire::kSlices / 3, 70);
  EXPECT_EQ(Found(200), 200);
  int elsewhere = 0;
  for (int i = 0; i < 200; ++i) elsewhere += Of(Key(i)) != nullptr ? 1 : 0;
  EXPECT_GT(elsewhere, 80);
  // The leader lists and finds nothing of theirs any more.
  for (int i = 0; i < 200; ++i) {
    if (Of(Key(i)) == nullptr) continue;
    const std::vector<Id128> hashes = {DirectoryHash(m_.slot, Key(i))};
    EXPECT_EQ((*master_->Lookup(token_, hashes))[0].reason, MissReason::kShardAway);
  }
  for (int i = 200; i < 300; ++i) EXPECT_EQ(List(1, Key(i), 1), Code::kOk) << i;
  EXPECT_EQ(Found(300), 300);
}

TEST_F(ShardsTest, NoKeyHasTwoValues) {
  Join(1);
  Join(2);
  AddFollower();
  Pass(2 * kSecond);
  for (int i = 0; i < 50; ++i) {
    ASSERT_EQ(List(1, Key(i), 1), Code::kOk);
    EXPECT_EQ(List(2, Key(i), 2), Code::kExists);
    EXPECT_EQ(List(2, Key(i), 1), Code::kOk) << "a replica";
  }
}

TEST_F(ShardsTest, AnAbsentOwnersValueGivesWayOnceItIsBarred) {
  Join(1);
  Join(2);
  AddFollower();
  Pass(2 * kSecond);
  for (int i = 0; i < 50; ++i) ASSERT_EQ(List(1, Key(i), 1), Code::kOk);
  away_ = 1;
  Pass(1500 * kMillisecond);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(List(2, Key(i), 2), Code::kOk) << i;
  EXPECT_EQ(Found(50), 50);
  // It comes back, is told to tell everything again, and what it tells is refused.
  away_ = 0;
  tells_ = false;
  Join(1);
  Pass(200 * kMillisecond);
  for (int i = 0; i < 50; ++i) {
    EXPECT_NE(List(1, Key(i), 1, /*inventory=*/true), Code::kOk) << i;
  }
}

TEST_F(ShardsTest, ALostShardIsAMissUntilItIsToldAgain) {
  Join(1);
  Follower& shard = AddFollower();
  Pass(3 * kSecond);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(List(1, Key(i), 1), Code::kOk);
  int there = 0;
  for (int i = 0; i < 100; ++i) there += Of(Key(i)) != nullptr ? 1 : 0;
  ASSERT_GT(there, 20);
  shard.cut = true;
  told_map_ = 0;
  Pass(990 * kMillisecond);
  Pass(300 * kMillisecond);
  EXPECT_EQ(shard.replica.Serving(), 0U);
  EXPECT_EQ(master_->shards().Describe().size(), 1U);
  EXPECT_EQ(Found(100), 100 - there);
  EXPECT_TRUE(master_->control().Warming());
  for (int i = 0; i < 100; ++i) EXPECT_EQ(List(1, Key(i), 1, true), Code::kOk) << i;
  EXPECT_EQ(Found(100), 100);
  told_map_ = ~0ULL;
  Pass(100 * kMillisecond);
  EXPECT_FALSE(master_->control().Warming());
}

TEST_F(ShardsTest, WhatALostShardKnewOfValuesThatGaveWayIsMadeGoodByADrop) {
  Join(1);
  Join(2);
  Follower& shard = AddFollower();
  Pass(3 * kSecond);
  std::string key;
  for (int i = 0; Of(key = Key(i)) == nullptr; ++i) continue;
  ASSERT_EQ(List(1, key, 1), Code::kOk);
  away_ = 1;
  Pass(1500 * kMillisecond);
  ASSERT_EQ(List(2, key, 2), Code::kOk);
  EXPECT_TRUE(master_->control().DropsOf(owners_[1].number).empty());
  shard.cut = true;
  Pass(1300 * kMillisecond);
  ASSERT_EQ(Of(key), nullptr);
  // The leader has never heard of the second value; the first one must not come back.
  EXPECT_THAT(master_->control().DropsOf(owners_[1].number), testing::ElementsAre(m_.slot));
  away_ = 0;
  tells_ = false;
  Join(1);
  EXPECT_EQ(List(1, key, 1, /*inventory=*/true), Code::kStale);
  EXPECT_EQ(List(2, key, 2, /*inventory=*/true), Code::kOk);
}

TEST_F(ShardsTest, AnotherLeadersMovesAreTakenToo) {
  Join(1);
  Follower& shard = AddFollower();
  Pass(3 * kSecond);
  const std::uint64_t before = shard.replica.following_number();
  shard.cut = true;
  Pass(1300 * kMillisecond);
  shard.cut = shard.asked = false;
  Pass(3 * kSecond);
  EXPECT_GT(shard.replica.following_number(), before);
  EXPECT_EQ(shard.replica.stat().slices, wire::kSlices / 2);
}

TEST_F(ShardsTest, ARemovalIsProvenOverShardsAndOwners) {
  Join(1);
  Follower& shard = AddFollower();
  Pass(3 * kSecond);
  std::vector<std::string> keys;
  for (int i = 0; i < 40; ++i) {
    ASSERT_EQ(List(1, Key(i), 1), Code::kOk);
    keys.push_back(Key(i));
  }
  keys.push_back("other");
  shard.asked = false;
  const Answer<Master::Removed> removed;
  master_->Remove(token_, keys, "", clock_.NowNs() + 10 * kSecond, removed.Into());
  Pass(20 * kMillisecond);
  EXPECT_EQ(Found(40), 0);
  EXPECT_FALSE(removed.came());
  applied_ = master_->control().Count().removals;
  master_->control().Removals(
      {.number = owners_[1].number, .epoch = owners_[1].epoch, .after = applied_},
      [](const Result<wire::RemovalsPage>&) {});
  ASSERT_TRUE(removed.ok());
  ASSERT_EQ(removed->codes.size(), 41U);
  for (int i = 0; i < 40; ++i) EXPECT_EQ(removed->codes[static_cast<std::size_t>(i)], Code::kOk);
  EXPECT_EQ(removed->codes[40], Code::kMiss);
}

TEST_F(ShardsTest, ARemovalWaitsForAShardThatIsCutOffUntilItsLeaseIsOver) {
  Join(1);
  Follower& shard = AddFollower();
  Pass(3 * kSecond);
  for (int i = 0; i < 40; ++i) ASSERT_EQ(List(1, Key(i), 1), Code::kOk);
  shard.cut = true;
  const Answer<Master::Removed> removed;
  const std::uint64_t before = master_->control().shown();
  master_->Remove(token_, {Key(0)}, "", clock_.NowNs() + 10 * kSecond, removed.Into());
  Pass(500 * kMillisecond);
  EXPECT_EQ(master_->control().shown(), before) << "owners may not apply it yet";
  Pass(700 * kMillisecond);
  EXPECT_GT(master_->control().shown(), before);
  EXPECT_EQ(shard.replica.Serving(), 0U);
}

TEST_F(ShardsTest, AResetIsProvenWhenShardsKnowIt) {
  Join(1);
  Follower& shard = AddFollower();
  Pass(3 * kSecond);
  ASSERT_EQ(List(1, Key(0), 1), Code::kOk);
  shard.cut = true;
  const Answer<ResetOutcome> reset;
  master_->generations().Reset(
      {.name = "m", .engine = "e", .version = {}, .id = {.high = 1, .low = 1}},
      clock_.NowNs() + 3 * kSecond, reset.Into());
  Pass(500 * kMillisecond);
  EXPECT_FALSE(reset.came()) << "the shard finds what is void";
  Pass(700 * kMillisecond);
  EXPECT_TRUE(reset.ok()) << reset.detail();
}

TEST_F(ShardsTest, ADrainedShardGivesItsPartToTheOthers) {
  Join(1);
  AddFollower();
  AddFollower();
  Pass(3 * kSecond);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(List(1, Key(i), 1), Code::kOk);
  ASSERT_TRUE(master_->shards().SetDraining("shard0:1", true));
  EXPECT_FALSE(master_->shards().SetDraining("nobody:1", true));
  Pass(5 * kSecond);
  const auto shards = master_->shards().Describe();
  ASSERT_EQ(shards.size(), 3U);
  EXPECT_EQ(shards[1].slices, 0U);
  EXPECT_TRUE(shards[1].draining);
  EXPECT_EQ(Found(100), 100);
}

// Owners put, evict and tell again, while shards come, freeze, are lost and drained. When all is
// quiet, a key has one value, and what an owner holds is found.
TEST_F(ShardsTest, WhateverShardsDoAKeyHasOneValueAndWhatIsHeldIsFound) {
  const char* const seeds = std::getenv("KVCOVE_SHARD_SEEDS");
  constexpr std::uint64_t kOwners = 3;
  constexpr int kKeys = 120;
  for (std::uint64_t id = 1; id <= kOwners; ++id) Join(id);
  for (int i = 0; i < 3; ++i) AddFollower();
  Random random(seeds == nullptr ? 7 : std::strtoull(seeds, nullptr, 10));
  std::map<std::uint64_t, std::map<std::string, std::uint32_t>> held;
  for (std::uint64_t id = 1; id <= kOwners; ++id) told_maps_[id] = 0;
  std::uint32_t group = 0;
  int dropped = 0;
  int put = 0;
  // An owner tells what began anew; what is refused gives way.
  const auto tell = [&](std::uint64_t id) {
    const auto map = master_->shards().map();
    if (map == nullptr || told_maps_[id] >= map->revision) return;
    for (auto at = held[id].begin(); at != held[id].end();) {
      const auto slice = wire::SliceOf(DirectoryHash(m_.slot, at->first));
      if (map->fresh[slice] <= told_maps_[id]) {
        ++at;
        continue;
      }
      const Code code = List(id, at->first, at->second, /*inventory=*/true);
      if (code == Code::kExists) {
        ++dropped;
        at = held[id].erase(at);
      } else if (code == Code::kOk) {
        ++at;
      } else {
        return;  // once more, later
      }
    }
    told_maps_[id] = map->revision;
  };
  for (int step = 0; step < 4000; ++step) {
    const std::uint64_t id = 1 + random.Next() % kOwners;
    const std::string key = Key(static_cast<int>(random.Next() % kKeys));
    const std::uint64_t what = random.Next() % 1000;
    if (what < 600) {
      if (!held[id].contains(key) && List(id, key, ++group) == Code::kOk) {
        held[id][key] = group;
        ++put;
      }
    } else if (what < 800) {
      const auto at = held[id].find(key);
      if (at == held[id].end()) continue;
      const Code gone = List(id, key, at->second, false, /*gone=*/true);
      if (gone == Code::kOk) held[id].erase(at);
    } else if (what < 960) {
      Pass(5 * kMillisecond);
      for (std::uint64_t one = 1; one <= kOwners; ++one) {
        if (random.Next() % 2 == 0) tell(one);
      }
    } else if (what < 975) {
      Pass(200 * kMillisecond);
    } else if (what < 990) {
      Follower& one = *followers_[random.Next() % followers_.size()];
      one.cut = !one.cut;
      one.asked = false;
    } else {
      const auto shards = master_->shards().Describe();
      const ShardDescription& one = shards[random.Next() % shards.size()];
      if (!one.address.empty()) {
        (void)master_->shards().SetDraining(one.address, random.Next() % 2 == 0);
      }
    }
  }
  for (const auto& one : followers_) one->cut = one->asked = false;
  for (int i = 0; i < 100; ++i) {
    Pass(100 * kMillisecond);
    for (std::uint64_t id = 1; id <= kOwners; ++id) tell(id);
  }
  std::map<std::string, std::uint32_t> values;
  std::size_t objects = 0;
  for (const auto& [id, keys] : held) {
    for (const auto& [key, one] : keys) {
      ++objects;
      const auto [value, fresh] = values.try_emplace(key, one);
      EXPECT_EQ(value->second, one) << key << " has two values";
      EXPECT_NE(Find(key).owner, wire::kNoOwner) << key << " is held and not found";
    }
  }
  EXPECT_GT(objects, 20U);
  EXPECT_GT(put, 100);
  RecordProperty("dropped", dropped);
}

}  // namespace
}  // namespace kvcove::master
