// SPDX-License-Identifier: Apache-2.0
// Look-ups over several masters: each is asked for its own keys, answers come back in order, and
// one that is away costs its own keys only. The masters are real servers that answer from a map.
#include "kvcove/requester/cluster/shard_lookup.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <set>
#include <thread>

#include "kvcove/base/interrupt_fixture.h"
#include "kvcove/base/log.h"
#include "kvcove/rpc/server.h"
#include "tests/becomes.h"

namespace kvcove::requester {
namespace {

constexpr Token kToken{.incarnation = {.low = 1}, .generation = 7, .slot = 3};

// The i-th key of a slice. Its size says which key a place is of.
Id128 KeyOf(wire::SliceNumber slice, std::uint32_t i) {
  return {.high = (static_cast<std::uint64_t>(slice) << 52) + i, .low = i};
}

// Finds each key of the slices that it serves, at an owner with its own number.
class Shard final : public rpc::Handler {
 public:
  explicit Shard(wire::OwnerNumber number) : number_(number) {
    auto server = rpc::Server::Open({.listen = {.host = "127.0.0.1", .port = 0}}, *this);
    EXPECT_TRUE(server) << server.error().ToString();
    server_ = std::move(*server);
    EXPECT_TRUE(server_->Start());
  }
  ~Shard() override { server_->Stop(); }
  void Serve(wire::SliceNumber slice, bool serves) {
    const MutexLock lock(mutex_);
    if (serves) {
      slices_.insert(slice);
    } else {
      slices_.erase(slice);
    }
  }
  // Keeps its answers back until it is called with false: those are errors.
  void Hold(bool holds) {
    std::vector<rpc::Responder> held;
    {
      const MutexLock lock(mutex_);
      holds_ = holds;
      if (!holds) held.swap(held_);
    }
    for (rpc::Responder& respond : held) respond(rpc::ErrorReply({Code::kUnavailable, "late"}));
  }
  std::string address() const { return server_->address().ToString(); }
  std::vector<wire::Place> Answer(std::span<const Id128> hashes, SaveNotice notice) {
    ++asked;
    std::vector<wire::Place> places;
    const MutexLock lock(mutex_);
    for (const Id128& hash : hashes) {
      if (notice == SaveNotice::kBegin) announced_.push_back(hash);
      if (!slices_.contains(wire::SliceOf(hash))) {
        places.push_back({.reason = MissReason::kShardAway});
      } else {
        places.push_back({.size_bytes = static_cast<std::uint32_t>(hash.low), .owner = number_});
      }
    }
    return places;
  }

  std::vector<Id128> announced() const {
    const MutexLock lock(mutex_);
    return announced_;
  }

  void OnOpen(rpc::ConnectionId, const rpc::Peer&) override {}
  void OnClose(rpc::ConnectionId) override {}
  void OnProcessGone(std::uint64_t) override {}
  bool Admitted(rpc::ConnectionId) const override { return true; }
  void OnRequest(rpc::ConnectionId, wire::Method method, std::span<const std::byte> body,
                 std::int64_t, rpc::Responder respond) override {
    if (method != wire::Method::kLookup) return respond({.code = Code::kOk});
    const auto request = wire::DecodeLookup(body);
    if (!request || says != Code::kOk) {
      return respond(rpc::ErrorReply({request ? says.load() : Code::kCorrupt, "as it was told"}));
    }
    const std::vector<wire::Place> places = Answer(request->hashes, request->notice);
    const MutexLock lock(mutex_);
    if (holds_) {
      held_.push_back(std::move(respond));
      return;
    }
    respond({.code = Code::kOk, .body = wire::Encode(std::span<const wire::Place>(places))});
  }

  std::atomic<int> asked{0};
  std::atomic<Code> says{Code::kOk};

 private:
  const wire::OwnerNumber number_;
  mutable Mutex mutex_;
  std::set<wire::SliceNumber> slices_ KVCOVE_GUARDED_BY(mutex_);
  std::vector<Id128> announced_ KVCOVE_GUARDED_BY(mutex_);
  bool holds_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::vector<rpc::Responder> held_ KVCOVE_GUARDED_BY(mutex_);
  std::unique_ptr<rpc::Server> server_;
};

// Slice 0 is the leader's, 1 and 2 those of two others.
class ShardLookupTest : public testing::Test {
 protected:
  ShardLookupTest() {
    SetLogLevel(LogLevel::kOff);
    leader_.Serve(0, true);
    first_.Serve(1, true);
    second_.Serve(2, true);
  }
  std::shared_ptr<wire::ShardMap> Map(std::uint64_t revision) const {
    auto map = std::make_shared<wire::ShardMap>();
    map->term = 1;
    map->revision = revision;
    map->addresses = {"", first_.address(), second_.address()};
    map->shards[1] = 1;
    map->shards[2] = 2;
    return map;
  }
  Result<std::vector<wire::Place>> Lookup(std::span<const Id128> hashes) {
    return lookup_.Lookup(kToken, hashes, SystemClock::Instance().NowNs() + 60 * kSecond);
  }

  Shard leader_{10};
  Shard first_{11};
  Shard second_{12};
  // What the leader would tell now.
  Mutex mutex_;
  std::shared_ptr<const wire::ShardMap> now_ KVCOVE_GUARDED_BY(mutex_);
  ShardLookup lookup_{{},
                      [this](const Token&, std::span<const Id128> hashes, std::int64_t,
                             SaveNotice notice) -> Result<std::vector<wire::Place>> {
                        return leader_.Answer(hashes, notice);
                      },
                      [this](std::int64_t) {
                        std::shared_ptr<const wire::ShardMap> map;
                        {
                          const MutexLock lock(mutex_);
                          map = now_;
                        }
                        lookup_.SetMap(std::move(map));
                      },
                      SystemClock::Instance()};
};

std::vector<Id128> Mixed(std::uint32_t count) {
  std::vector<Id128> hashes;
  for (std::uint32_t i = 0; i < count; ++i) {
    hashes.push_back(KeyOf(static_cast<wire::SliceNumber>(i % 3), i));
  }
  return hashes;
}

TEST_F(ShardLookupTest, AnswersComeBackInTheOrderOfTheKeys) {
  lookup_.SetMap(Map(1));
  const std::vector<Id128> hashes = Mixed(300);
  const auto places = Lookup(hashes);
  ASSERT_TRUE(places) << places.error().ToString();
  for (std::uint32_t i = 0; i < 300; ++i) {
    EXPECT_EQ((*places)[i].size_bytes, i);
    EXPECT_EQ((*places)[i].owner, 10 + i % 3);
  }
  EXPECT_EQ(leader_.asked, 1);
  EXPECT_EQ(first_.asked, 1);
  EXPECT_EQ(second_.asked, 1);
}

TEST_F(ShardLookupTest, EachShardLearnsWhichOfItsKeysAreBeingSaved) {
  lookup_.SetMap(Map(1));
  const std::vector<Id128> hashes = Mixed(9);
  ASSERT_TRUE(Lookup(hashes));
  EXPECT_EQ(leader_.announced().size() + first_.announced().size(), 0U) << "a look-up only asks";
  ASSERT_TRUE(lookup_.Lookup(kToken, hashes, SystemClock::Instance().NowNs() + 60 * kSecond,
                             SaveNotice::kBegin));
  for (const auto& [shard, slice] : {std::pair(&leader_, 0), {&first_, 1}, {&second_, 2}}) {
    const std::vector<Id128> announced = shard->announced();
    EXPECT_EQ(announced.size(), 3U);
    for (const Id128& hash : announced) EXPECT_EQ(wire::SliceOf(hash), slice);
  }
}

TEST_F(ShardLookupTest, AShardThatIsAwayCostsItsOwnKeysOnly) {
  auto map = Map(1);
  map->addresses[2] = "127.0.0.1:1";  // nobody is there
  lookup_.SetMap(map);
  const auto places = Lookup(Mixed(30));
  ASSERT_TRUE(places) << places.error().ToString();
  for (std::uint32_t i = 0; i < 30; ++i) {
    EXPECT_EQ((*places)[i].reason, i % 3 == 2 ? MissReason::kShardAway : MissReason::kNone) << i;
  }
}

// Its thread waits for the parts that other threads ask for: they use its memory.
TEST_F(ShardLookupTest, AnInterruptedLookUpEndsItsPartsAtShardsThatAreSilent) {
  rpc::Address silent{.host = "127.0.0.1", .port = 0};
  const auto listener = rpc::ListenTcp(silent);  // accepts nobody
  ASSERT_TRUE(listener) << listener.error().ToString();
  auto map = Map(1);
  map->addresses[2] = silent.ToString();
  lookup_.SetMap(map);
  const std::int64_t began_ns = SystemClock::Instance().NowNs();
  {
    AskedInterrupt interrupt(/*ends_at=*/50);  // the other shard has answered long before
    const auto places =
        lookup_.Lookup(kToken, Mixed(30), SystemClock::Instance().NowNs() + 600 * kSecond);
    ASSERT_TRUE(places) << places.error().ToString();
    EXPECT_EQ((*places)[2].reason, MissReason::kShardAway);
    EXPECT_EQ((*places)[1].size_bytes, 1U) << "what had come";
  }
  EXPECT_LT(SystemClock::Instance().NowNs() - began_ns, 300 * kSecond);
}

// Four look-ups wait for a shard on all of the workers.
TEST_F(ShardLookupTest, ALookUpEndsAtItsDeadlineWhileOthersHaveTheWorkers) {
  lookup_.SetMap(Map(1));
  second_.Hold(true);
  std::vector<std::thread> others;
  for (int t = 0; t < 4; ++t) {
    others.emplace_back([&] { (void)Lookup(std::vector{KeyOf(0, 1), KeyOf(2, 1)}); });
  }
  EXPECT_TRUE(Becomes([&] { return second_.asked == 4; }));
  std::promise<void> returned;
  auto in_time = returned.get_future();
  std::thread late([&] {
    const auto places =
        lookup_.Lookup(kToken, Mixed(2), SystemClock::Instance().NowNs() + 20 * kMillisecond);
    returned.set_value();
    ASSERT_TRUE(places) << places.error().ToString();
    EXPECT_EQ((*places)[0].owner, 10U);
    EXPECT_EQ((*places)[1].reason, MissReason::kShardAway);
  });
  EXPECT_EQ(in_time.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  second_.Hold(false);
  late.join();
  for (std::thread& thread : others) thread.join();
}

TEST_F(ShardLookupTest, ASliceThatHasMovedIsAskedForWhereItIs) {
  lookup_.SetMap(Map(1));
  auto moved = Map(2);
  moved->shards[1] = 2;
  {
    const MutexLock lock(mutex_);
    now_ = moved;
  }
  first_.Serve(1, false);
  second_.Serve(1, true);
  const auto places = Lookup(Mixed(30));
  ASSERT_TRUE(places) << places.error().ToString();
  for (std::uint32_t i = 0; i < 30; ++i) EXPECT_EQ((*places)[i].size_bytes, i);
  EXPECT_EQ((*places)[1].owner, 12);
}

TEST_F(ShardLookupTest, ASessionWithoutAMapFindsOneWhenTheLeaderHasNotAll) {
  {
    const MutexLock lock(mutex_);
    now_ = Map(1);
  }
  const auto places = Lookup(Mixed(30));
  ASSERT_TRUE(places) << places.error().ToString();
  for (std::uint32_t i = 0; i < 30; ++i) EXPECT_EQ((*places)[i].owner, 10 + i % 3);
}

TEST_F(ShardLookupTest, AnOldGenerationAtOneShardIsOldAtAll) {
  lookup_.SetMap(Map(1));
  second_.says = Code::kStale;
  EXPECT_EQ(Lookup(Mixed(30)).error().code, Code::kStale);
}

TEST_F(ShardLookupTest, MapsMayChangeWhileManyAsk) {
  lookup_.SetMap(Map(1));
  first_.Serve(2, true);  // both may answer for it
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      const std::vector<Id128> hashes = Mixed(60);
      while (!stop) {
        const auto places = Lookup(hashes);
        for (std::uint32_t i = 0; i < 60; ++i) {
          if (!places || (*places)[i].size_bytes != i) ++wrong;
        }
      }
    });
  }
  for (std::uint64_t revision = 2; revision < 200; ++revision) {
    auto map = Map(revision);
    map->shards[2] = revision % 2 == 0 ? 1 : 2;
    if (revision % 8 < 2) {  // its connections end, too
      map->shards[2] = 1;
      map->addresses.pop_back();
    }
    {
      const MutexLock lock(mutex_);
      now_ = map;
    }
    lookup_.SetMap(map);
    std::this_thread::yield();
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace kvcove::requester
