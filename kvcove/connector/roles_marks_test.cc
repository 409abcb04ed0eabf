// SPDX-License-Identifier: Apache-2.0
// What is known of a block's contents: nothing is stored that depends on a block of which it is
// not.
#include "kvcove/connector/roles_fixture.h"

namespace kvcove::connector {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

class MarksTest : public RolesTest {
 protected:
  // Whether a request that begins with so many tokens computed, on these blocks, stores anything.
  bool Stores(std::string_view id, std::uint64_t computed, std::vector<BlockId> blocks) {
    scheduler_->Schedule({.request = View(id, 4 * blocks.size()),
                          .computed_tokens = computed,
                          .scheduled_tokens = 4 * blocks.size() - computed,
                          .started = true,
                          .blocks = [&] { return BlockTables{blocks}; }});
    plan_ = scheduler_->BuildPlan(pins_);
    return !plan_.saves.empty();
  }
  void Lose(std::string_view hash) {
    std::string key;
    AppendKey("g0.h1of2", hash, key);
    pool_.lost.insert(key);
  }
};

// The shape says that a hit needs the last block. The engine has allocated one more, and will give
// it its hash when the load has ended.
TEST_F(MarksTest, ALoadWritesEveryBlockThatTheEngineAllocatedForIt) {
  shape_.groups = {{.kind = GroupKind::kWindow, .chunk_tokens = 4, .window_tokens = 5, .heads = 2}};
  Start();
  StoreAll(16);
  const auto table = [] { return BlockTables{{kNullBlock, kNullBlock, 22, 23, 24}}; };
  EXPECT_EQ(scheduler_->Matched(View("r", 18), 0).tokens, 16U);
  scheduler_->Allocated("r", 16, table);
  auto ended = Step();
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(ended[rank].failed_blocks, IsEmpty());
    EXPECT_EQ(std::memcmp(&memory_[rank][22 * kBlockBytes], &memory_[rank][3 * kBlockBytes],
                          2 * kBlockBytes),
              0);
  }
  EXPECT_TRUE(scheduler_->LoadEnded("r"));
  scheduler_->Finished("r");
  Lose("h2");
  EXPECT_EQ(scheduler_->Matched(View("s", 18), 0).tokens, 16U);
  scheduler_->Allocated("s", 16, table);
  ended = Step();
  EXPECT_THAT(ended[1].failed, ElementsAre("s")) << "the pool does not have it any more";
  EXPECT_TRUE(scheduler_->LoadEnded("s"));
}

// Its last chunk has no hash yet. Whatever the engine allocated it for, nothing writes it.
TEST_F(MarksTest, ABlockWithoutAHashFailsALoadThatIsToWriteIt) {
  StoreAll(8);
  EXPECT_EQ(scheduler_->Matched(View("r", 10), 0).tokens, 8U);
  scheduler_->Allocated("r", 12, Blocks(20, 12));
  const auto ended = Step();
  EXPECT_THAT(ended[0].failed_blocks, ElementsAre(22));
  EXPECT_TRUE(scheduler_->LoadEnded("r"));
}

// vLLM copies a block in which a hit ends: the new one held something else before.
TEST_F(MarksTest, ACopyOfABlockIsWorthWhatTheBlockIs) {
  Compute("old", 0, 8, 1);
  Compute("old too", 0, 4, 41);
  (void)Step();
  EXPECT_TRUE(scheduler_->Reset());
  Compute("new", 0, 4, 30);
  Compute("new too", 0, 4, 40);
  (void)Step();
  for (const char* id : {"old", "old too", "new", "new too"}) scheduler_->Finished(id);
  EXPECT_TRUE(Stores("before", 2, {40, 50}));
  scheduler_->Copied({{1, 30}, {40, 41}});
  EXPECT_FALSE(Stores("on a copy of an old block", 2, {30, 51}));
  EXPECT_TRUE(Stores("on a copy of a new block", 2, {41, 52}));
  EXPECT_EQ(plan_.saves.front().chunks.front().block, 41U) << "the copy was not stored";
}

TEST_F(MarksTest, ALoadThatTheEngineWasToldHasFailedLeavesNothingThatIsStored) {
  StoreAll(20);
  EXPECT_EQ(Load("r", 22, 10).tokens, 20U);
  (void)Step();
  scheduler_->LoadFailed("r", {12});
  EXPECT_TRUE(scheduler_->LoadEnded("r"));
  EXPECT_EQ(scheduler_->stats().loads_failed, 1U);
  EXPECT_EQ(scheduler_->Matched(View("r", 22), 0).tokens, 0U) << "it would be found again";
  EXPECT_TRUE(Stores("on what was loaded", 8, {10, 11, 60}));
  EXPECT_FALSE(Stores("on what was not", 12, {10, 11, 12, 61}));
  EXPECT_EQ(Load("s", 22, 20).tokens, 20U);
  (void)Step();
  scheduler_->LoadFailed("s", {});
  EXPECT_TRUE(scheduler_->LoadEnded("s"));
  EXPECT_FALSE(Stores("on nothing of it", 4, {20, 62}));
  scheduler_->LoadFailed("nobody", {});
}

// The blocks of one that is aborted are free at once; those of a session that goes on are its own.
TEST_F(MarksTest, ABlockThatALoadDidNotBringIsWorthNothingWhoeverHasItNext) {
  StoreAll(20);
  Lose("h2");
  EXPECT_EQ(Load("r", 22, 20).tokens, 20U);
  const auto ended = Step();
  EXPECT_THAT(ended[1].failed_blocks, UnorderedElementsAre(22, 24));
  EXPECT_TRUE(scheduler_->LoadEnded("r"));
  scheduler_->Finished("r");
  EXPECT_FALSE(Stores("aborted, and its blocks found", 12, {20, 21, 22, 50}));
  EXPECT_TRUE(Stores("the same block, computed", 8, {20, 21, 22, 51}));
  EXPECT_TRUE(Stores("a session that goes on", 16, {20, 21, 22, 51, 52}));
}

// A preempted request computes again, in other blocks; its load of before still ends.
TEST_F(MarksTest, APreemptedRequestsFailedLoadMarksNothingOfItsNewBlocks) {
  options_.load_async = false;
  Start();
  StoreAll(20);
  Lose("h2");
  EXPECT_EQ(Load("r", 22, 20).tokens, 20U);
  scheduler_->Schedule({.request = View("r", 22),
                        .computed_tokens = 20,
                        .scheduled_tokens = 2,
                        .started = true,
                        .blocks = Blocks(20, 22)});
  plan_ = scheduler_->BuildPlan(pins_);
  for (auto& worker : workers_) {
    worker->Begin(plan_);
    worker->FinishStep({});
  }
  // Preempted and begun anew before the report: nothing is known of what it begins with.
  EXPECT_FALSE(Stores("r", 4, {20, 50}));
  Move();
  for (auto& worker : workers_) {
    (void)worker->TakeEnded();
    scheduler_->OnReport(worker->TakeReport());
  }
  EXPECT_TRUE(Stores("on what came", 8, {20, 21, 51}));
  EXPECT_FALSE(Stores("on what did not", 12, {20, 21, 22, 52}));
}

}  // namespace
}  // namespace kvcove::connector
