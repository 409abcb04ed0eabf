// SPDX-License-Identifier: Apache-2.0
// Three masters on one etcd that share the directory, two owners and sessions, all real processes:
// masters join and leave, shards are killed and frozen, leaders are killed, while somebody writes
// and somebody reads. Nothing stale is found, and nothing that was acknowledged is lost.
#include <atomic>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/fault/masters_fixture.h"

namespace kvcove {
namespace {

constexpr std::int64_t kSettlesMs = 60'000;

class ShardsTest : public MastersTest {
 protected:
  std::string Shards() const override { return "on"; }

  // What this master says of itself; null: nothing.
  nlohmann::json StatusOf(std::size_t i) const {
    if (masters_[i] == 0) return {};
    return nlohmann::json::parse(AdminSays(i, "--json status"), nullptr, false);
  }
  std::size_t SlicesOf(std::size_t i) const {
    const nlohmann::json status = StatusOf(i);
    if (!status.is_object() || !status.contains("shard")) return 0;
    const auto& shard = status["shard"];
    return shard.value("serves", false) ? shard.value("slices", std::size_t{0}) : 0;
  }
  // How many masters that do not lead serve about their share.
  std::size_t Serving() const {
    std::size_t serving = 0;
    for (std::size_t i = 0; i < kMasters; ++i) serving += SlicesOf(i) > 1000 ? 1 : 0;
    return serving;
  }
  bool AwaitServing(std::size_t count) const {
    const std::int64_t until = NowMs() + kSettlesMs;
    while (NowMs() < until) {
      if (Serving() == count) return true;
      std::this_thread::sleep_for(milliseconds(50));
    }
    return false;
  }
  // One that serves a part and does not lead.
  std::optional<std::size_t> AShard() const {
    for (std::size_t i = 0; i < kMasters; ++i) {
      if (SlicesOf(i) > 1000) return i;
    }
    return std::nullopt;
  }
  std::size_t Found(const std::vector<std::string>& keys, std::int64_t for_ms = 60'000) {
    const std::int64_t until = NowMs() + for_ms;
    std::size_t found = 0;
    while (NowMs() < until && found < keys.size()) {
      found = CountOk(Get(*session_, keys));
      if (found < keys.size()) std::this_thread::sleep_for(milliseconds(20));
    }
    return found;
  }
  static std::map<std::string, int> Reasons(const std::vector<ItemResult>& results) {
    std::map<std::string, int> reasons;
    for (const ItemResult& result : results) ++reasons[std::string(MissReasonName(result.reason))];
    return reasons;
  }
};

TEST_F(ShardsTest, StandbysServePartsAndAllIsFound) {
  const auto before = Keys(300, "before");
  ASSERT_TRUE(PutAll(*session_, before));
  ASSERT_TRUE(AwaitServing(2));
  // What moved is found where it is now, at once.
  const auto found = Get(*session_, before);
  EXPECT_EQ(CountOk(found), before.size()) << testing::PrintToString(Reasons(found));
  const auto after = Keys(300, "after");
  EXPECT_EQ(CountOk(Put(*session_, after)), after.size());
  EXPECT_EQ(CountOk(Get(*session_, after)), after.size());
  EXPECT_EQ(CountOk(Get(*near_, after)), after.size());
  // The leader counts a prefix over all of them.
  const std::vector<std::string_view> prefix(after.begin(), after.end());
  // It waits for none of them for long, so on a busy machine it may leave one out.
  LocatedPrefix located;
  EXPECT_TRUE(Becomes([&] {
    located = Must(session_->Locate(prefix, {.timeout = kCallTime}));
    return located.keys == after.size();
  })) << located.keys
      << ": " << MissReasonName(located.reason);
  // A removal is proven over all of them.
  const std::vector<std::string_view> views(after.begin(), after.end());
  std::vector<ItemResult> removed(views.size());
  ASSERT_TRUE(session_->Remove(views, removed, {.timeout = kCallTime}));
  EXPECT_EQ(CountOk(removed), removed.size());
  ExpectGone(after);
  // And a reset.
  ExpectReset(*session_);
  ExpectReset(*near_);
  ExpectGone(before);
}

TEST_F(ShardsTest, AKilledShardIsAMissUntilOwnersHaveToldItAgain) {
  ASSERT_TRUE(AwaitServing(2));
  const auto kept = Keys(300, "kept");
  ASSERT_TRUE(PutAll(*session_, kept));
  const auto shard = AShard();
  ASSERT_TRUE(shard);
  const Slowness slowness;
  const std::int64_t killed_ms = NowMs();
  End(std::exchange(masters_[*shard], 0), SIGKILL);
  std::vector<ItemResult> missed;
  EXPECT_TRUE(slowness.Holds([&] {
    missed = Get(*session_, kept, milliseconds(1000));
    return CountOk(missed) > 0;
  })) << "others answer for their keys";
  // Nobody serves its slices before its lease of a second is over, which it renewed at most a
  // quarter of a second before.
  EXPECT_TRUE(CountOk(missed) < kept.size() || NowMs() >= killed_ms + 750);
  EXPECT_EQ(Found(kept), kept.size()) << testing::PrintToString(Reasons(Get(*session_, kept)));
  const auto after = Keys(100, "after");
  EXPECT_EQ(CountOk(Put(*session_, after)), after.size());
  StartMasterAt(*shard);
  ASSERT_TRUE(AwaitServing(2));
  EXPECT_EQ(CountOk(Get(*session_, kept)), kept.size());
  EXPECT_EQ(CountOk(Get(*session_, after)), after.size());
}

TEST_F(ShardsTest, AFrozenShardIsReplacedAndAnswersNothingWhenItThaws) {
  ASSERT_TRUE(AwaitServing(2));
  const auto kept = Keys(200, "kept");
  ASSERT_TRUE(PutAll(*session_, kept));
  const auto shard = AShard();
  ASSERT_TRUE(shard);
  Freeze(masters_[*shard]);
  EXPECT_EQ(Found(kept), kept.size());
  // What is removed while it is frozen is not found through it when it thaws.
  const std::vector<std::string> gone(kept.begin(), kept.begin() + 50);
  const std::vector<std::string_view> views(gone.begin(), gone.end());
  std::vector<ItemResult> removed(views.size());
  ASSERT_TRUE(session_->Remove(views, removed, {.timeout = kCallTime}));
  kill(masters_[*shard], SIGCONT);
  for (int i = 0; i < 20; ++i) ExpectGone(gone);
  ASSERT_TRUE(AwaitServing(2));
  ExpectGone(gone);
  EXPECT_EQ(CountOk(Get(*session_, kept)), kept.size() - gone.size());
}

// With a part missing, instead of an error when the caller's time is over.
TEST_F(ShardsTest, APrefixIsAnsweredInTimeWhileAShardIsSilent) {
  ASSERT_TRUE(AwaitServing(2));
  const auto kept = Keys(200, "kept");
  ASSERT_TRUE(PutAll(*session_, kept));
  const std::vector<std::string_view> prefix(kept.begin(), kept.end());
  const Slowness slowness;
  EXPECT_TRUE(slowness.Holds([&] {
    if (!AwaitServing(2) || Found(kept) < kept.size()) return false;
    const auto shard = AShard();
    if (!shard) return false;
    Freeze(masters_[*shard]);
    const auto located = session_->Locate(prefix, {.timeout = milliseconds(1000)});
    kill(masters_[*shard], SIGCONT);
    return located && located->keys < prefix.size() && located->reason == MissReason::kShardAway;
  }));
}

TEST_F(ShardsTest, AKilledLeaderIsReplacedAndShared) {
  ASSERT_TRUE(AwaitServing(2));
  for (int i = 0; i < 3 && !HasFatalFailure(); ++i) Round(i, SIGKILL);
  EXPECT_TRUE(AwaitServing(2));
}

// Slices move when a master joins and when one is drained. A reader misses nothing meanwhile, and a
// writer's puts are all listed.
TEST_F(ShardsTest, NothingIsMissedWhileSlicesMoveAsPlanned) {
  ASSERT_TRUE(AwaitServing(2));
  const auto kept = Keys(400, "kept");
  ASSERT_TRUE(PutAll(*session_, kept));
  const auto joins = AShard();
  ASSERT_TRUE(joins);
  End(std::exchange(masters_[*joins], 0), SIGTERM);
  ASSERT_EQ(Found(kept), kept.size());
  ASSERT_TRUE(AwaitServing(1));
  std::atomic<bool> stop{false};
  const Slowness slowness;
  std::map<std::string, int> missed;
  std::atomic<int> rounds = 0;
  std::thread reader([&] {
    for (; !stop; ++rounds) {
      std::vector<ItemResult> results;
      const bool all = slowness.Holds([&] {
        results = Get(*session_, kept);
        return CountOk(results) == kept.size();
      });
      if (!all) missed = Reasons(results);
    }
  });
  std::vector<std::string> written;
  std::map<std::string, int> refused;
  std::thread writer([&] {
    for (int round = 0; !stop; ++round) {
      std::vector<std::string> left = Keys(8, fmt::format("w{}", round));
      std::map<std::string, int> codes;
      const bool all = slowness.Holds([&] {
        codes.clear();
        const auto results = Put(*near_, left);
        std::vector<std::string> again;
        for (std::size_t i = 0; i < left.size(); ++i) {
          if (results[i].ok() && results[i].listed) {
            written.push_back(left[i]);
          } else {
            ++codes[results[i].ok() ? "not listed" : std::string(CodeName(results[i].code))];
            again.push_back(fmt::format("{}+", left[i]));  // the old one may be stored already
          }
        }
        left = again;
        return left.empty();
      });
      if (!all) refused = codes;
      std::this_thread::sleep_for(milliseconds(3));
    }
  });
  StartMasterAt(*joins);
  EXPECT_TRUE(AwaitServing(2));
  const auto leader = AwaitLeader();
  ASSERT_TRUE(leader);
  EXPECT_THAT(AdminSays(*leader, "masters"), testing::HasSubstr(all_.list()[*joins].ToString()));
  AdminSays(*leader, "drain-master " + all_.list()[*joins].ToString());
  const std::int64_t until = NowMs() + kSettlesMs;
  while (NowMs() < until && SlicesOf(*joins) > 0) std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(SlicesOf(*joins), 0U);
  // Then the other one: the leader gets everything back.
  const auto last = AShard();
  ASSERT_TRUE(last);
  AdminSays(*leader, "drain-master " + all_.list()[*last].ToString());
  while (NowMs() < until + kSettlesMs && SlicesOf(*last) > 0) {
    std::this_thread::sleep_for(milliseconds(50));
  }
  EXPECT_EQ(SlicesOf(*last), 0U);
  std::this_thread::sleep_for(milliseconds(200));
  EXPECT_TRUE(Becomes([&] { return rounds > 3; }));
  stop = true;
  reader.join();
  writer.join();
  EXPECT_TRUE(missed.empty()) << testing::PrintToString(missed) << " in " << rounds << " rounds";
  EXPECT_TRUE(refused.empty()) << testing::PrintToString(refused);
  EXPECT_EQ(CountOk(Get(*session_, written)), written.size());
}

// Whatever shard a key belongs to, the leader's admin says where it is, and how many there are; and
// that nobody knows it, while that shard is away.
TEST_F(ShardsTest, AdminSeesAllShards) {
  ASSERT_TRUE(AwaitServing(2));
  const auto kept = Keys(30, "kept");
  ASSERT_TRUE(PutAll(*session_, kept));
  const auto leader = AwaitLeader();
  ASSERT_TRUE(leader);
  const auto says = [&](const std::string& key) {
    const auto body =
        nlohmann::json::parse(AdminSays(*leader, "--json key " + key), nullptr, false);
    for (const auto& in : body.is_object() ? body["in"] : nlohmann::json::array()) {
      if (in.value("found", false) && in["locations"].size() == 1) return std::string("found");
      if (in.contains("away")) return "away: " + in["away"].get<std::string>();
    }
    return body.dump();
  };
  for (const std::string& key : kept) {
    EXPECT_TRUE(Becomes([&] { return says(key) == "found"; })) << key << ": " << says(key);
  }
  EXPECT_EQ(says("nothing").find("away"), std::string::npos);
  const std::int64_t until = NowMs() + kSettlesMs;
  std::size_t entries = 0;
  while (NowMs() < until && entries != kept.size()) {
    entries = StatusOf(*leader).value("directory_entries", std::size_t{0});
    std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_EQ(entries, kept.size());
  // Its lease is a second, and a look takes longer than that to find out. A machine that stands
  // still meanwhile sees the lease end first: then all is settled again before the next try.
  const Slowness slowness;
  EXPECT_TRUE(slowness.Holds([&] {
    if (!AwaitServing(2) || Found(kept) < kept.size()) return false;
    const auto shard = AShard();
    if (!shard) return false;
    Freeze(masters_[*shard]);
    const bool away = std::ranges::any_of(
        kept, [&](const auto& key) { return says(key).starts_with("away: the master at"); });
    kill(masters_[*shard], SIGCONT);
    return away;
  }));
  EXPECT_EQ(Found(kept), kept.size());
  for (const std::string& key : kept) {
    EXPECT_TRUE(Becomes([&] { return says(key) == "found"; })) << key << ": " << says(key);
  }
}

// Somebody writes and reads all the while: what was acknowledged is found in the end, and while
// nobody has failed it is never missed.
TEST_F(ShardsTest, MastersJoinAndLeaveUnderAWriterAndAReader) {
  ASSERT_TRUE(AwaitServing(2));
  std::atomic<bool> stop{false};
  std::vector<std::string> acknowledged;
  std::atomic<int> batches{0};
  std::thread writer([&] {
    for (int round = 0; !stop; ++round) {
      const auto keys = Keys(20, fmt::format("w{}", round));
      const auto results = Put(*near_, keys);
      for (std::size_t i = 0; i < keys.size(); ++i) {
        if (results[i].ok() && results[i].listed) acknowledged.push_back(keys[i]);
      }
      ++batches;
      std::this_thread::sleep_for(milliseconds(10));
    }
  });
  while (batches < 5) std::this_thread::sleep_for(milliseconds(10));
  for (int round = 0; round < 3; ++round) {
    const auto shard = AShard();
    ASSERT_TRUE(shard);
    End(std::exchange(masters_[*shard], 0), round % 2 == 0 ? SIGKILL : SIGTERM);
    std::this_thread::sleep_for(milliseconds(1500));
    StartMasterAt(*shard);
    EXPECT_TRUE(AwaitServing(2));
  }
  stop = true;
  writer.join();
  EXPECT_GT(acknowledged.size(), 200U);
  EXPECT_EQ(Found(acknowledged), acknowledged.size())
      << testing::PrintToString(Reasons(Get(*session_, acknowledged)));
}

// With KVCOVE_TEST_TIMES: how long a look-up of 4,096 keys takes.
class LookupTimes : public ShardsTest {
 protected:
  void Measure(const char* name, std::size_t shards) {
    if (std::getenv("KVCOVE_TEST_TIMES") == nullptr) GTEST_SKIP() << "KVCOVE_TEST_TIMES=1";
    if (shards > 1) {
      ASSERT_TRUE(AwaitServing(2));
      const auto shard = AShard();
      ASSERT_TRUE(shard);
      End(std::exchange(masters_[*shard], 0), SIGTERM);
      std::this_thread::sleep_for(milliseconds(2500));
      ASSERT_TRUE(AwaitServing(1));
    }
    const auto keys = Keys(4096, "many");
    for (std::size_t from = 0; from < keys.size(); from += 256) {
      const std::vector<std::string> part(keys.begin() + static_cast<std::ptrdiff_t>(from),
                                          keys.begin() + static_cast<std::ptrdiff_t>(from + 256));
      ASSERT_TRUE(PutAll(*session_, part));
    }
    const std::vector<std::string_view> views(keys.begin(), keys.end());
    std::vector<ItemResult> found(views.size());
    std::vector<std::int64_t> times_us;
    for (int i = 0; i < 400; ++i) {
      const std::int64_t began = SystemClock::Instance().NowNs();
      ASSERT_TRUE(session_->Exists(views, found, {.timeout = kCallTime}));
      times_us.push_back((SystemClock::Instance().NowNs() - began) / kMicrosecond);
      ASSERT_EQ(CountOk(found), found.size());
    }
    std::ranges::sort(times_us);
    fmt::print("{}: exists of 4,096 keys: p50 {} us, p90 {} us\n", name, times_us[200],
               times_us[360]);
  }
};
class WithoutShards : public LookupTimes {
 protected:
  std::string Shards() const override { return "off"; }
};
TEST_F(WithoutShards, TimesOfLookups) { Measure("one master", 1); }
TEST_F(LookupTimes, TimesOfLookups) { Measure("two shards", 2); }

}  // namespace
}  // namespace kvcove
