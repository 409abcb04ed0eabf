// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/scheduler/lookup.h"

#include <gtest/gtest.h>

#include "kvcove/connector/test_store.h"

namespace kvcove::connector {
namespace {

constexpr std::chrono::milliseconds kHold{1000};

class LookupTest : public testing::Test {
 protected:
  void Use(std::vector<GroupShape> groups, std::uint32_t tp = 1) {
    shape_ = {.model = "m", .hash_tokens = 16, .tp = tp};
    shape_.groups = std::move(groups);
    ASSERT_TRUE(shape_.Check());
    keys_.emplace(shape_);
  }
  static std::string Hash(std::uint64_t i) { return "hash" + std::to_string(i); }
  // A chunk of a group, on all shards but `except`.
  void Have(std::uint32_t group, std::uint64_t chunk, std::size_t except = ~std::size_t{0}) {
    const std::uint64_t per = shape_.groups[group].chunk_tokens / shape_.hash_tokens;
    for (std::size_t t = 0; t < keys_->Tags(group).size(); ++t) {
      if (t == except) continue;
      std::string key;
      AppendKey(keys_->Tags(group)[t], Hash((chunk + 1) * per - 1), key);
      pool_.values[key] = "v";
    }
  }
  std::shared_ptr<Lookup> Ask(std::uint64_t tokens, std::uint64_t from = 0) {
    Lookup::Question question{.from_tokens = from, .limit_tokens = tokens, .drop_tokens = drop_};
    for (std::uint64_t i = 0; i < tokens / 16; ++i) question.hashes.Add(Hash(i));
    return std::make_shared<Lookup>(shape_, *keys_, std::move(question));
  }
  std::uint64_t Hit(std::uint64_t tokens, std::uint64_t from = 0) {
    const auto lookup = Ask(tokens, from);
    EXPECT_TRUE(lookup->Step(store_, clock_, clock_.NowNs() + kSecond, kHold));
    return lookup->hit_tokens();
  }

  EngineShape shape_;
  std::uint64_t drop_ = 0;
  std::optional<Keys> keys_;
  TestPool pool_;
  TestStore store_{pool_};
  FakeClock clock_;
};

TEST_F(LookupTest, TheLeadingRunThatAllShardsHave) {
  Use({{.heads = 8}}, 8);
  for (std::uint64_t c = 0; c < 20; ++c) Have(0, c);
  EXPECT_EQ(Hit(16 * 40), 16 * 20U);
  // One shard of one chunk is missing: what only rank 0 has is no hit.
  pool_.values.clear();
  for (std::uint64_t c = 0; c < 20; ++c) Have(0, c, c == 7 ? 5 : ~std::size_t{0});
  EXPECT_EQ(Hit(16 * 40), 16 * 7U);
  EXPECT_EQ(Hit(16 * 40, 16 * 8), 16 * 20U);
}

TEST_F(LookupTest, StopsAtTheFirstMiss) {
  Use({{.heads = 8}}, 8);
  EXPECT_EQ(Hit(16 * 4096), 0U);
  EXPECT_EQ(pool_.asked, 8U);
}

TEST_F(LookupTest, AsksNothingForLessThanOneChunk) {
  Use({{}});
  EXPECT_EQ(Hit(15), 0U);
  EXPECT_EQ(pool_.asked, 0U);
}

TEST_F(LookupTest, GoesOnWhereItsBudgetEnded) {
  Use({{}});
  for (std::uint64_t c = 0; c < 100; ++c) Have(0, c);
  const auto lookup = Ask(1600);
  pool_.slow = true;
  EXPECT_FALSE(lookup->Step(store_, clock_, clock_.NowNs() + kMillisecond, kHold));
  pool_.slow = false;
  EXPECT_FALSE(lookup->Step(store_, clock_, clock_.NowNs(), kHold));  // no time at all
  EXPECT_TRUE(lookup->Step(store_, clock_, clock_.NowNs() + kMillisecond, kHold));
  EXPECT_EQ(lookup->hit_tokens(), 1600U);
}

TEST_F(LookupTest, ASlidingWindowNeedsItsLastChunksOnly) {
  Use({{.chunk_tokens = 16},
       {.kind = GroupKind::kWindow, .chunk_tokens = 16, .window_tokens = 33}});
  for (std::uint64_t c = 0; c < 10; ++c) Have(0, c);
  for (std::uint64_t c = 5; c < 10; ++c) Have(1, c);
  EXPECT_EQ(Hit(16 * 12), 16 * 10U);
  // A hole in the window: the hit ends where no window covers it.
  pool_.values.clear();
  for (std::uint64_t c = 0; c < 10; ++c) Have(0, c);
  for (std::uint64_t c = 5; c < 9; ++c) Have(1, c);
  EXPECT_EQ(Hit(16 * 12), 16 * 9U);
  pool_.values.clear();
  for (std::uint64_t c = 0; c < 10; ++c) Have(0, c);
  Have(1, 0);
  Have(1, 1);
  Have(1, 9);
  EXPECT_EQ(Hit(16 * 12), 16 * 2U);
}

TEST_F(LookupTest, AStateIsNeededAtTheEndAlone) {
  Use({{.chunk_tokens = 16}, {.kind = GroupKind::kState, .chunk_tokens = 64}});
  for (std::uint64_t c = 0; c < 16; ++c) Have(0, c);
  Have(1, 1);  // at 128 tokens
  EXPECT_EQ(Hit(16 * 16), 128U);
  Have(1, 3);
  EXPECT_EQ(Hit(16 * 16), 256U);
  pool_.values.erase(pool_.values.begin(), pool_.values.end());
  for (std::uint64_t c = 0; c < 16; ++c) Have(0, c);
  EXPECT_EQ(Hit(16 * 16), 0U);
}

// A draft model that looks ahead has written into the last chunk of a prefix what follows another.
TEST_F(LookupTest, AHitEndsBeforeWhatADraftModelSpoiled) {
  Use({{}, {.kind = GroupKind::kWindow, .window_tokens = 32}});
  drop_ = 16;
  for (std::uint64_t c = 0; c < 10; ++c) Have(0, c);
  // The window's chunks are those of the end that is left, 144 tokens, not of 160.
  for (const std::uint64_t c : {7, 8}) Have(1, c);
  EXPECT_EQ(Hit(16 * 10), 16 * 9U);
  EXPECT_EQ(Hit(16 * 10, 16 * 9), 16 * 9U) << "nothing more";
  EXPECT_EQ(Hit(16), 0U);
}

TEST_F(LookupTest, AThreadGoesOnWhenTheBudgetIsSpent) {
  Use({{}});
  for (std::uint64_t c = 0; c < 100; ++c) Have(0, c);
  const auto runner =
      *RunInThread(store_, SystemClock::Instance(), kHold, std::chrono::milliseconds(200));
  pool_.slow = true;
  const auto lookup = Ask(1600);
  // It is not answered: given up after its timeout, and never waited for longer than the budget.
  bool ended = false;
  for (int i = 0; i < 1000 && !ended; ++i) {
    ended = runner->Run(lookup, std::chrono::milliseconds(5));
  }
  EXPECT_TRUE(ended);
  EXPECT_FALSE(lookup->done());
  pool_.slow = false;
  const auto again = Ask(1600);
  for (int i = 0; i < 1000 && !again->done(); ++i) {
    (void)runner->Run(again, std::chrono::milliseconds(5));
  }
  EXPECT_EQ(again->hit_tokens(), 1600U);
}

}  // namespace
}  // namespace kvcove::connector
