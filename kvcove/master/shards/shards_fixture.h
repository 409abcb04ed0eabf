// SPDX-License-Identifier: Apache-2.0
// For tests: a leader, masters that follow it and owners, in virtual time and without sockets.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvcove/base/log.h"
#include "kvcove/master/control/control_fixture.h"
#include "kvcove/master/master.h"
#include "kvcove/master/shards/shard_replica.h"

namespace kvcove::master {

class ShardsTest : public testing::Test {
 protected:
  // A master that follows. Its calls take no time; `cut`: none arrives.
  struct Follower {
    Follower(ShardsTest& test, const std::string& address)
        : address(address), replica({.address = address, .directory = {}}, test.clock_) {}
    const std::string address;
    ShardReplica replica;
    bool cut = false;
    bool asked = false;
  };

  struct Told {
    std::uint64_t session = 0;
    std::uint32_t epoch = 0;
    std::uint64_t sequence = 0;
  };

  ShardsTest() {
    SetLogLevel(LogLevel::kOff);
    Use({.generations = {}, .shards = true});
  }
  // A pool begins.
  void Use(const MasterOptions& options, const std::string& name = "m") {
    if (master_ != nullptr) master_->shards().Stop();
    store_.facts.clear();
    const auto plan = PlanStart(store_.facts, store_.revision, kSecond, clock_.NowNs());
    master_ = std::make_unique<Master>(options, *plan, store_, store_.revision, clock_);
    const Answer<void> ready;
    master_->Start(ready.Into());
    EXPECT_TRUE(ready.ok());
    Pass(2500 * kMillisecond);
    const Answer<Registration> answer;
    master_->generations().Register({.name = name, .engine = "e", .follow_always = true},
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
          one.replica.Tick();
        });
  }
  void Take(Follower& one) {
    if (one.cut) return;
    const wire::ShardMove move = one.replica.Wanted();
    one.replica.Forget();
    if (move.id == 0) return;
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
      // The giver has not heard of it yet.
      if (!page && page.error().code == Code::kStale) return;
      if (!page) return one.replica.LoadFailed(move.id);
      one.replica.Load(move.id, *page);
      if (page->done) return;
      cursor = page->cursor;
    }
  }
  void TakeBack() {
    const wire::ShardMove move = master_->shards().Wanted();
    if (move.id == 0) return;
    for (const auto& one : followers_) {
      if (one->address != move.address || one->cut) continue;
      wire::ShardPullRequest request{.term = master_->term(), .move = move.id, .cursor = 0};
      while (const auto page = one->replica.Pull(request)) {
        if (!master_->shards().Load(move.id, *page) || page->done) return;
        request.cursor = page->cursor;
      }
      return;  // it has not heard of the move yet
    }
    master_->shards().LoadFailed(move.id);
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
      if (takes_back_) TakeBack();
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
  bool takes_back_ = true;
  bool renewing_ = true;
  bool tells_ = true;
  std::uint64_t told_map_ = ~0ULL;                    // "all of it"
  std::map<std::uint64_t, std::uint64_t> told_maps_;  // by owner, in place of that
  std::uint64_t applied_ = RemovalLog::FirstOf(1);
  Registration m_;
  Token token_;
};

}  // namespace kvcove::master
