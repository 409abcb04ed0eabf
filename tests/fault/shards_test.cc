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

constexpr std::int64_t kSettlesMs = 20'000;

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
  std::size_t Found(const std::vector<std::string>& keys, std::int64_t for_ms = 10'000) {
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
  ASSERT_EQ(CountOk(Put(*session_, before)), before.size());
  ASSERT_TRUE(AwaitServing(2));
  // What moved is found where it is now, at once.
  const auto found = Get(*session_, before);
  EXPECT_EQ(CountOk(found), before.size()) << testing::PrintToString(Reasons(found));
  const auto after = Keys(300, "after");
  EXPECT_EQ(CountOk(Put(*session_, after)), after.size());
  EXPECT_EQ(CountOk(Get(*session_, after)), after.size());
  EXPECT_EQ(CountOk(Get(*near_, after)), after.size());
  // A removal is proven over all of them.
  const std::vector<std::string_view> views(after.begin(), after.end());
  std::vector<ItemResult> removed(views.size());
  ASSERT_TRUE(session_->Remove(views, removed, {}));
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
  ASSERT_EQ(CountOk(Put(*session_, kept)), kept.size());
  const auto shard = AShard();
  ASSERT_TRUE(shard);
  End(std::exchange(masters_[*shard], 0), SIGKILL);
  const auto missed = Get(*session_, kept);
  EXPECT_LT(CountOk(missed), kept.size());
  EXPECT_GT(CountOk(missed), 0U) << "others answer for their keys";
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
  ASSERT_EQ(CountOk(Put(*session_, kept)), kept.size());
  const auto shard = AShard();
  ASSERT_TRUE(shard);
  Freeze(masters_[*shard]);
  EXPECT_EQ(Found(kept), kept.size());
  // What is removed while it is frozen is not found through it when it thaws.
  const std::vector<std::string> gone(kept.begin(), kept.begin() + 50);
  const std::vector<std::string_view> views(gone.begin(), gone.end());
  std::vector<ItemResult> removed(views.size());
  ASSERT_TRUE(session_->Remove(views, removed, {}));
  kill(masters_[*shard], SIGCONT);
  for (int i = 0; i < 20; ++i) ExpectGone(gone);
  ASSERT_TRUE(AwaitServing(2));
  ExpectGone(gone);
  EXPECT_EQ(CountOk(Get(*session_, kept)), kept.size() - gone.size());
}

TEST_F(ShardsTest, AKilledLeaderIsReplacedAndShared) {
  ASSERT_TRUE(AwaitServing(2));
  for (int i = 0; i < 3 && !HasFatalFailure(); ++i) Round(i, SIGKILL);
  EXPECT_TRUE(AwaitServing(2));
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
      const auto results = Put(*near_, keys, std::nullopt, milliseconds(2000));
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

}  // namespace
}  // namespace kvcove
