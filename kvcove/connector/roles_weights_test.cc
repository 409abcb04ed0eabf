// SPDX-License-Identifier: Apache-2.0
// What is void: resets, other weights, other adapters.
#include "kvcove/connector/roles_fixture.h"

namespace kvcove::connector {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::UnorderedElementsAre;

// The block hash has an adapter's name only: its digest is in the keys.
TEST_F(RolesTest, KvOfAnAdapterIsFoundUnderItsContentOnly) {
  Adapters({{.id = 7, .digest = "one"}});
  EXPECT_TRUE(scheduler_->HasAdapter(7));
  StoreAll(8, /*adapter=*/7);
  EXPECT_EQ(pool_.values.size(), 4U);
  EXPECT_EQ(scheduler_->Matched(View("base", 10), 0).tokens, 0U);
  EXPECT_EQ(scheduler_->Matched(View("same", 10, {}, 7), 0).tokens, 8U);
  Adapters({{.id = 7, .digest = "two"}});
  EXPECT_EQ(scheduler_->Matched(View("other", 10, {}, 7), 0).tokens, 0U);
  EXPECT_EQ(scheduler_->Matched(View("same", 10, {}, 7), 0).tokens, 0U)
      << "asked before it changed";
  // Another number, the same content.
  Adapters({{.id = 7, .digest = "two"}, {.id = 8, .digest = "one"}});
  EXPECT_EQ(Load("again", 10, 20, /*adapter=*/8).tokens, 8U);
  for (const Ended& ended : Step()) EXPECT_THAT(ended.failed_blocks, IsEmpty());
  EXPECT_TRUE(scheduler_->LoadEnded("again"));
}

// Ranks mostly have the whole adapter each: engines of other sizes have the same digest then.
TEST_F(RolesTest, AnAdaptersDigestIsThatOfOneRankWhereAllHaveTheSame) {
  const auto digest = [&] {
    Compute("r", 0, 8, 1, /*started=*/true, /*adapter=*/7);
    std::string found = scheduler_->BuildPlan(pins_).saves.at(0).adapter.digest;
    scheduler_->Finished("r");
    return found;
  };
  Adapters({{.id = 7, .digest = "one"}});
  const std::string alike = digest();
  workers_[1]->SetAdapters({{.id = 7, .digest = "two"}});
  (void)Step();
  const std::string mixed = digest();
  EXPECT_NE(mixed, alike);
  workers_[0]->SetAdapters({{.id = 7, .digest = "two"}});
  workers_[1]->SetAdapters({{.id = 7, .digest = "one"}});
  (void)Step();
  EXPECT_NE(digest(), mixed) << "which rank has which matters";
  options_.shape.tp = 1;
  scheduler_ = std::make_unique<SchedulerRole>(options_, store_, *runner_, clock_);
  scheduler_->StartWith({"a"});
  scheduler_->OnReport({.adapters_number = 1, .adapters = {{.id = 7, .digest = "one"}}});
  EXPECT_EQ(digest(), alike);
}

TEST_F(RolesTest, WithAnUnknownAdapterNothingIsFoundOrStored) {
  StoreAll(8, /*adapter=*/7);
  EXPECT_THAT(pool_.values, IsEmpty());
  EXPECT_EQ(scheduler_->stats().unstored_requests, 1U);
  workers_[0]->SetAdapters({{.id = 7, .digest = "one"}});
  (void)Step();
  EXPECT_FALSE(scheduler_->HasAdapter(7)) << "one rank has not";
  // Nor does a request that begins on its blocks in the engine's own cache store anything.
  Adapters({{.id = 7, .digest = "one"}});
  Compute("next", 8, 8, 1, /*started=*/true, /*adapter=*/7);
  (void)Step();
  EXPECT_THAT(pool_.values, IsEmpty());
  Compute("whole", 0, 8, 20, /*started=*/true, /*adapter=*/7);
  (void)Step();
  EXPECT_EQ(pool_.values.size(), 4U);
  Adapters({});
  const Match gone = scheduler_->Matched(View("r", 10, {}, 7), 0);
  EXPECT_FALSE(gone.ask_again);
  EXPECT_EQ(gone.tokens, 0U) << "a rank that loads it again may get another one";
}

// The ranks have another adapter than the scheduler, which has not heard of it yet.
TEST_F(RolesTest, AnAdapterThatChangesUnderARequestSpoilsItsLoadAndItsSave) {
  Adapters({{.id = 7, .digest = "one"}});
  StoreAll(8, /*adapter=*/7);
  const std::size_t stored = pool_.values.size();
  EXPECT_EQ(Load("loads", 10, 20, /*adapter=*/7).tokens, 8U);
  Compute("saves", 0, 12, 30, /*started=*/true, /*adapter=*/7);
  workers_[1]->SetAdapters({{.id = 7, .digest = "two"}});
  const auto ended = Step();
  EXPECT_THAT(ended[1].failed_blocks, UnorderedElementsAre(20, 21));
  EXPECT_EQ(pool_.values.size(), stored + 1) << "rank 0 stored a chunk, under the digest of before";
  EXPECT_FALSE(scheduler_->LoadEnded("loads"));
  for (const Ended& again : Step()) {
    EXPECT_THAT(again.failed_blocks, UnorderedElementsAre(20, 21));
  }
  EXPECT_TRUE(scheduler_->LoadEnded("loads"));
  // It goes on with blocks of before.
  Compute("saves", 12, 8, 30, /*started=*/false, /*adapter=*/7);
  (void)Step();
  EXPECT_EQ(pool_.values.size(), stored + 1);
  // It has changed back: what was computed in between is in the engine's own cache.
  Adapters({{.id = 7, .digest = "one"}});
  Compute("begins on it", 12, 8, 30, /*started=*/true, /*adapter=*/7);
  (void)Step();
  EXPECT_EQ(pool_.values.size(), stored + 1);
  EXPECT_EQ(scheduler_->Matched(View("r", 10, {}, 7), 0).tokens, 8U);
}

// A step inside of a block, of which this role is told nothing, under weights that come and go.
TEST_F(RolesTest, NothingIsStoredOfRequestsThatAStepComputedUnderUnknownWeights) {
  Compute("r", 0, 6, 1);
  (void)Step();
  EXPECT_EQ(pool_.values.size(), 2U);
  scheduler_->WeightsChanging();
  (void)Step();
  scheduler_->WeightsChanged();
  for (int i = 0; i < 2; ++i) {
    (void)Step();
    workers_[0]->SetFingerprint("a");
    workers_[1]->SetFingerprint("b");
  }
  (void)Step();
  EXPECT_EQ(scheduler_->stats().closed, 0U) << "they are those of before";
  Compute("r", 7, 9, 1, /*started=*/false);
  (void)Step();
  EXPECT_EQ(pool_.values.size(), 2U);
  Compute("s", 0, 8, 20);
  (void)Step();
  EXPECT_EQ(pool_.values.size(), 4U) << "others go on";
}

// The ranks say which weights they have with the report of an engine's first step, that of its
// start.
TEST_F(RolesTest, AnEngineStepsOnceAtItsStartSoThatItsWeightsAreKnown) {
  auto fresh = std::make_unique<SchedulerRole>(options_, store_, *runner_, clock_);
  scheduler_.swap(fresh);
  EXPECT_TRUE(scheduler_->Pending());
  plan_ = scheduler_->BuildPlan(pins_);
  EXPECT_FALSE(scheduler_->Pending()) << "one step, not one after the other";
  for (auto& worker : workers_) {
    worker->Begin(plan_);
    ASSERT_TRUE(worker->FingerprintWanted());
    worker->SetFingerprint("the same");
    worker->FinishStep({});
    scheduler_->OnReport(worker->TakeReport());
  }
  EXPECT_FALSE(scheduler_->Matched(View("r", 10), 0).ask_again);
  EXPECT_FALSE(scheduler_->version().empty());
}

// After a start the pool binds the version, which may take longer than a step may wait.
TEST_F(RolesTest, AVersionsFirstRequestsWaitUntilItIsBoundAndAreStored) {
  options_.bind_in_thread = true;
  pool_.deaf = true;
  Start();
  EXPECT_TRUE(scheduler_->Matched(View("r", 10), 0).ask_again);
  pool_.deaf = false;
  while (scheduler_->Matched(View("r", 10), 0).ask_again) {  // the test's own limit ends it
  }
  Compute("r", 0, 10, 1);
  (void)Step();
  EXPECT_EQ(pool_.values.size(), 4U);
  EXPECT_EQ(scheduler_->stats().uncaptured_requests, 0U);
}

// A pool that is away costs them once, not each of them.
TEST_F(RolesTest, RequestsDoNotWaitForAVersionThatIsNotBoundInTime) {
  options_.bind_in_thread = true;
  pool_.deaf = true;
  Start();
  EXPECT_TRUE(scheduler_->Matched(View("r", 10), 0).ask_again);
  clock_.AdvanceNs(options_.bind_wait.count() * kMillisecond);
  EXPECT_FALSE(scheduler_->Matched(View("r", 10), 0).ask_again);
  EXPECT_FALSE(scheduler_->Matched(View("s", 10), 0).ask_again);
  Compute("r", 0, 8, 1);
  (void)Step();
  EXPECT_EQ(scheduler_->stats().uncaptured_requests, 1U);
  EXPECT_THAT(pool_.values, IsEmpty());
}

// A reset is like another version: nobody knows its generation yet.
TEST_F(RolesTest, TheFirstRequestsBehindAResetWaitUntilItIsBoundAndAreStored) {
  options_.bind_in_thread = true;
  Start();
  while (scheduler_->Matched(View("first", 10), 0).ask_again) {
  }
  Compute("first", 0, 10, 1);
  (void)Step();
  EXPECT_TRUE(scheduler_->Reset());
  pool_.deaf = true;
  EXPECT_TRUE(scheduler_->Matched(View("r", 10), 0).ask_again);
  pool_.deaf = false;
  while (scheduler_->Matched(View("r", 10), 0).ask_again) {
  }
  Compute("r", 0, 10, 10);
  (void)Step();
  EXPECT_EQ(pool_.values.size(), 4U);
  EXPECT_EQ(scheduler_->stats().uncaptured_requests, 0U);
}

TEST_F(RolesTest, ASlowOwnerHoldsTheSchedulerOnceAndRequestsAreStored) {
  Compute("first", 0, 4, 1);
  (void)Step();
  pool_.deaf = true;
  pool_.captures = 0;
  for (int i = 0; i < 8; ++i) Compute(std::to_string(i), 0, 8, 2 + 2 * i);
  EXPECT_EQ(pool_.captures, 1) << "of 8 requests";
  EXPECT_EQ(scheduler_->stats().uncaptured_requests, 0U);
  (void)Step();
  EXPECT_EQ(pool_.values.size(), 4U) << "under the token that was known";
  pool_.deaf = false;
  (void)Step();  // it is asked again
  Compute("later", 0, 12, 20);
  (void)Step();
  EXPECT_EQ(pool_.values.size(), 6U);
}

// Telling them is a call of the pool, which may be slow.
TEST_F(RolesTest, TheEnginesThreadTellsNoVersions) {
  options_.bind_in_thread = true;
  Start();
  clock_.AdvanceNs(kSecond);
  (void)Step();
  while (pool_.named_by.load() == std::thread::id()) {  // the test's own limit ends it
  }
  EXPECT_NE(pool_.named_by.load(), std::this_thread::get_id());
}

// The token that was known is of before somebody's reset: the pool refuses it.
TEST_F(RolesTest, ATokenThatIsTooOldStoresNothing) {
  Compute("first", 0, 4, 1);
  (void)Step();
  {
    const MutexLock lock(pool_.mutex);
    ++pool_.generation;
    pool_.values.clear();
  }
  pool_.deaf = true;
  Compute("r", 0, 8, 10);
  (void)Step();
  EXPECT_THAT(pool_.values, IsEmpty());
  EXPECT_GT(scheduler_->stats().ranks.stale_keys, 0U);
  pool_.deaf = false;
  (void)Step();
  Compute("s", 0, 8, 20);
  (void)Step();
  EXPECT_EQ(pool_.values.size(), 4U);
}

// 11.4: a reset that is not proven is no success.
TEST_F(RolesTest, AnUnprovenResetIsFalseUnlessClosedIsWanted) {
  pool_.resets = Code::kNotProven;
  EXPECT_FALSE(scheduler_->Reset());
  EXPECT_EQ(scheduler_->stats().closed, 1U);
  options_.closed_on_reset_failure = true;
  Start();
  EXPECT_TRUE(scheduler_->Reset());
  EXPECT_EQ(scheduler_->stats().resets_failed, 1U);
  EXPECT_EQ(scheduler_->stats().closed, 1U);
}

// It will not be proven later: a trainer that is told true would go on for ever.
TEST_F(RolesTest, AResetThatIsRefusedIsFalseAndIsToldOnce) {
  SetLogLevel(LogLevel::kInfo);
  for (const Code refused : {Code::kDenied, Code::kInvalid}) {
    for (const bool closed_is_wanted : {false, true}) {
      pool_.resets = Code::kOk;
      options_.closed_on_reset_failure = closed_is_wanted;
      Start();
      pool_.resets = refused;
      testing::internal::CaptureStderr();
      EXPECT_FALSE(scheduler_->Reset());
      EXPECT_FALSE(scheduler_->Reset());
      (void)Step();
      std::string told = testing::internal::GetCapturedStderr();
      EXPECT_EQ(scheduler_->stats().closed, 1U);
      EXPECT_EQ(scheduler_->stats().resets_failed, 2U);
      EXPECT_THAT(told, HasSubstr("the pool refuses the reset"));
      EXPECT_EQ(told.find("refuses"), told.rfind("refuses")) << told;
      EXPECT_THAT(told, Not(HasSubstr("background")));
      EXPECT_THAT(told, Not(HasSubstr("is proven after")));
      EXPECT_EQ(told.find("may not reset") != std::string::npos, refused == Code::kDenied) << told;
      // The token may reset now.
      pool_.resets = Code::kOk;
      testing::internal::CaptureStderr();
      EXPECT_TRUE(scheduler_->Reset());
      (void)Step();
      told = testing::internal::GetCapturedStderr();
      EXPECT_EQ(scheduler_->stats().closed, 0U);
      EXPECT_THAT(told, HasSubstr("look-ups and stores go on"));
    }
  }
}

// 11.7, DEF-5, RESET-13: any rank's late save.
TEST_F(RolesTest, ASaveThatWasQueuedBeforeAResetStoresNothing) {
  Compute("r", 0, 20, 1);
  (void)Step(/*move=*/false);
  EXPECT_TRUE(scheduler_->Reset());
  Move();
  (void)Step();
  EXPECT_THAT(pool_.values, IsEmpty());
  EXPECT_EQ(scheduler_->stats().ranks.stale_keys, 4U);  // the first batch of each; the rest drops
  EXPECT_FALSE(scheduler_->Pending() && scheduler_->TakeUnpins().empty());
}

TEST_F(RolesTest, AResetTellsWhatItVoidedAndHowLongItTook) {
  StoreAll(8);
  (void)Load("r", 10, 20);
  Compute("s", 0, 8, 30);
  pool_.clock = &clock_;
  pool_.reset_ns = 20 * kMillisecond;
  SetLogLevel(LogLevel::kInfo);
  testing::internal::CaptureStderr();
  EXPECT_TRUE(scheduler_->Reset());
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("reset in 20.0 ms (number 1); 1 loads and 1 saves were under way"));
  const SchedulerStats stats = scheduler_->stats();
  EXPECT_EQ(stats.reset_ns, 20U * kMillisecond);
  EXPECT_EQ(stats.reset_voided_jobs, 2U);
  EXPECT_EQ(std::accumulate(stats.reset_time.counts.begin(), stats.reset_time.counts.end(),
                            std::uint64_t{0}),
            1U);
}

// DESIGN, Token: "computed again" stores again, "kept its blocks" does not.
TEST_F(RolesTest, ARequestThatKeptItsBlocksAcrossAResetStoresNothingMore) {
  Compute("r", 0, 8, 1);
  (void)Step();
  EXPECT_TRUE(scheduler_->Reset());
  Compute("r", 8, 8, 1, /*started=*/false);
  (void)Step();
  EXPECT_THAT(pool_.values, IsEmpty());
  // Another one that begins on its blocks, from the engine's own cache, neither.
  Compute("s", 16, 8, 1);
  (void)Step();
  EXPECT_THAT(pool_.values, IsEmpty());
  EXPECT_EQ(scheduler_->stats().unstored_requests, 1U);
}
TEST_F(RolesTest, APreemptedRequestThatComputesAgainStoresAgain) {
  Compute("r", 0, 8, 1);
  (void)Step();
  EXPECT_TRUE(scheduler_->Reset());
  Compute("r", 0, 12, 20, /*started=*/true);
  (void)Step();
  EXPECT_EQ(pool_.values.size(), 6U);
}

TEST_F(RolesTest, ALoadThatAResetOvertookEndsAsFailed) {
  StoreAll(8);
  (void)Load("r", 10, 20);
  const auto ended = Step();
  EXPECT_THAT(ended[0].loaded, ElementsAre("r"));
  EXPECT_TRUE(scheduler_->Reset());
  EXPECT_FALSE(scheduler_->LoadEnded("r"));  // the engine must not learn of it
  for (const Ended& again : Step()) {
    EXPECT_THAT(again.loaded, ElementsAre("r"));
    EXPECT_THAT(again.failed_blocks, UnorderedElementsAre(20, 21));
  }
  EXPECT_TRUE(scheduler_->LoadEnded("r"));
  EXPECT_EQ(scheduler_->stats().loads_void, 1U);
  // The engine keeps blocks free for what it computes now: a second load would wait for them.
  StoreAll(8);
  EXPECT_EQ(scheduler_->Matched(View("r", 10), 0).tokens, 0U);
}

// Else values of the weights before would be taken for those of now.
TEST_F(RolesTest, ALoadWhoseAnswerTheWeightsOvertookEndsAsFailed) {
  for (const bool load_async : {true, false}) {
    for (const bool in_callback : {true, false}) {
      SCOPED_TRACE(testing::Message() << load_async << in_callback);
      options_.load_async = load_async;
      Start();
      StoreAll(8);
      ASSERT_EQ(scheduler_->Matched(View("r", 10), 0).tokens, 8U);
      if (!in_callback) scheduler_->WeightsChanging();
      scheduler_->Allocated("r", 8, [&] {
        if (in_callback) scheduler_->WeightsChanging();
        return Blocks(20, 10)();
      });
      for (const Ended& ended : Step()) {
        EXPECT_THAT(ended.failed_blocks, UnorderedElementsAre(20, 21));
      }
      if (load_async) {
        EXPECT_FALSE(scheduler_->LoadEnded("r"));
      }
      EXPECT_EQ(scheduler_->stats().loads_void, load_async ? 1U : 0U);
    }
  }
}

// 11.9, DEF-6: what was to be told before a reset is not told after it.
TEST_F(RolesTest, EventsOfBeforeAResetAreGone) {
  options_.events = true;
  Start();
  StoreAll(8);
  EXPECT_TRUE(scheduler_->Reset());
  auto events = scheduler_->TakeEvents();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].kind, PoolEvent::Kind::kRemoved);
  EXPECT_THAT(events[0].hashes, ElementsAre("h0", "h1"));
  StoreAll(8);
  events = scheduler_->TakeEvents();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].kind, PoolEvent::Kind::kStored);
  EXPECT_THAT(events[0].hashes, ElementsAre("h0", "h1"));
  // A block that turns out to be gone is told, too.
  pool_.lost.insert(pool_.values.begin()->first);
  (void)Load("r", 10, 20);
  (void)Step();
  EXPECT_TRUE(scheduler_->LoadEnded("r"));
  events = scheduler_->TakeEvents();
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events[0].kind, PoolEvent::Kind::kRemoved);
}

// The values are there before the reset, and a rank reports them after it.
TEST_F(RolesTest, ASaveOfBeforeAResetIsNotToldAfterIt) {
  options_.events = true;
  Start();
  Compute("r", 0, 8, 1);
  plan_ = scheduler_->BuildPlan(pins_);
  for (auto& worker : workers_) {
    worker->Begin(plan_);
    worker->FinishStep({});
  }
  Move();
  EXPECT_EQ(pool_.values.size(), 4U);
  EXPECT_TRUE(scheduler_->Reset());
  for (auto& worker : workers_) scheduler_->OnReport(worker->TakeReport());
  EXPECT_THAT(scheduler_->TakeUnpins(), UnorderedElementsAre(1, 2));
  EXPECT_THAT(scheduler_->TakeEvents(), IsEmpty());
}

// A router would go on to send requests here for KV that this engine cannot find.
TEST_F(RolesTest, WhatWasToldIsTakenBackWhenOthersResetAndWithOtherWeights) {
  options_.events = true;
  Start();
  StoreAll(8);
  EXPECT_EQ(scheduler_->TakeEvents().size(), 1U);
  {
    const MutexLock lock(pool_.mutex);
    ++pool_.generation;
    pool_.values.clear();
  }
  Compute("r", 0, 4, 10);
  auto events = scheduler_->TakeEvents();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].kind, PoolEvent::Kind::kRemoved);
  EXPECT_THAT(events[0].hashes, ElementsAre("h0", "h1"));
  (void)Step();
  EXPECT_EQ(scheduler_->TakeEvents().size(), 1U) << "stored again";
  for (const char* weights : {"new", "new"}) {
    for (auto& worker : workers_) worker->WeightsChanging();
    (void)Step();
    plan_ = scheduler_->BuildPlan(pins_);
    for (auto& worker : workers_) {
      worker->Begin(plan_);
      worker->SetFingerprint(weights);
      worker->FinishStep({});
      scheduler_->OnReport(worker->TakeReport());
    }
  }
  events = scheduler_->TakeEvents();
  ASSERT_EQ(events.size(), 1U) << "the second update brought equal ones";
  EXPECT_EQ(events[0].kind, PoolEvent::Kind::kRemoved);
}

TEST_F(RolesTest, WhatWasToldIsTakenBackWhenAnAdapterHasOtherTensors) {
  options_.events = true;
  Start();
  Adapters({{.id = 7, .digest = "one"}});
  StoreAll(8, /*adapter=*/7);
  EXPECT_EQ(scheduler_->TakeEvents().size(), 1U);
  Adapters({});  // a rank may load it again
  EXPECT_THAT(scheduler_->TakeEvents(), IsEmpty());
  Adapters({{.id = 7, .digest = "two"}});
  const auto events = scheduler_->TakeEvents();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].kind, PoolEvent::Kind::kRemoved);
}

// Some indexes take the engine's own AllBlocksCleared for every medium.
TEST_F(RolesTest, WhatIsFoundAfterTheOwnCacheWasClearedIsToldOnceMore) {
  options_.events = true;
  Start();
  StoreAll(8);
  (void)scheduler_->TakeEvents();
  EXPECT_EQ(Load("second", 10, 20).tokens, 8U);
  (void)Step();
  EXPECT_TRUE(scheduler_->LoadEnded("second"));
  EXPECT_THAT(scheduler_->TakeEvents(), IsEmpty());
  scheduler_->OwnCacheCleared();
  EXPECT_EQ(Load("third", 10, 20).tokens, 8U);
  const auto events = scheduler_->TakeEvents();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].kind, PoolEvent::Kind::kStored);
  EXPECT_THAT(events[0].hashes, ElementsAre("h0", "h1"));
}

// The ones behind it were not moved, and the pool has them still.
TEST_F(RolesTest, OfALoadThatFailedTheFirstBlockThatIsMissingIsTold) {
  options_.events = true;
  Start();
  StoreAll(20);
  (void)scheduler_->TakeEvents();
  std::string key;
  AppendKey("g0.h1of2", "h2", key);
  pool_.lost.insert(key);
  (void)Load("r", 22, 30);
  (void)Step();
  EXPECT_TRUE(scheduler_->LoadEnded("r"));
  const auto events = scheduler_->TakeEvents();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].kind, PoolEvent::Kind::kRemoved);
  EXPECT_THAT(events[0].hashes, ElementsAre("h2"));
}

// Else an index would take it for the first block of a prompt.
TEST_F(RolesTest, ABlockThatALoadBeginsWithHasItsParent) {
  options_.events = true;
  Start();
  StoreAll(12);
  pool_.on_disk = true;
  EXPECT_EQ(scheduler_->Matched(View("r", 14), 4).tokens, 8U);
  (void)scheduler_->TakeEvents();
  scheduler_->Allocated("r", 8, Blocks(20, 12));
  (void)Step();
  EXPECT_TRUE(scheduler_->LoadEnded("r"));
  const auto events = scheduler_->TakeEvents();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].first_chunk, 1U);
  EXPECT_THAT(events[0].hashes, ElementsAre("h1", "h2"));
  EXPECT_EQ(events[0].parent, "h0");
  EXPECT_EQ(events[0].medium, Medium::kMemory);
}

// The engine learns where a block lies when it looks it up, loads it, or need not save it.
TEST_F(RolesTest, EventsNameTheTierOfABlock) {
  options_.events = true;
  Start();
  StoreAll(8);
  (void)scheduler_->TakeEvents();
  pool_.on_disk = true;
  EXPECT_EQ(scheduler_->Matched(View("r", 10), 0).tokens, 8U);
  auto events = scheduler_->TakeEvents();
  ASSERT_EQ(events.size(), 4U);  // each of the two blocks has left memory, and is on the disk
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(events[i].kind, i % 2 == 0 ? PoolEvent::Kind::kRemoved : PoolEvent::Kind::kStored);
    EXPECT_EQ(events[i].medium, i % 2 == 0 ? Medium::kMemory : Medium::kDisk);
    EXPECT_THAT(events[i].hashes, ElementsAre(i < 2 ? "h0" : "h1"));
  }
  EXPECT_EQ(events[3].request, "r");
  EXPECT_EQ(events[3].parent, "h0");
  // The second question is answered from memory, and tells nothing again.
  (void)Load("r", 10, 20);
  (void)Step();
  EXPECT_TRUE(scheduler_->LoadEnded("r"));
  events = scheduler_->TakeEvents();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].kind, PoolEvent::Kind::kStored);
  EXPECT_EQ(events[0].medium, Medium::kMemory);
  EXPECT_THAT(events[0].hashes, ElementsAre("h0", "h1"));
  // Computed again, and not stored, as the disk has it.
  Compute("s", 0, 8, 30);
  (void)Step();
  events = scheduler_->TakeEvents();
  ASSERT_EQ(events.size(), 1U);  // that the disk has them is told
  EXPECT_EQ(events[0].kind, PoolEvent::Kind::kRemoved);
  EXPECT_EQ(events[0].medium, Medium::kMemory);
  EXPECT_THAT(events[0].hashes, ElementsAre("h0", "h1"));
  // What a look-up does not find any more is on no medium.
  pool_.values.clear();
  EXPECT_EQ(scheduler_->Matched(View("t", 10), 0).tokens, 0U);
  events = scheduler_->TakeEvents();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].kind, PoolEvent::Kind::kRemoved);
  EXPECT_EQ(events[0].medium, Medium::kDisk);
  EXPECT_THAT(events[0].hashes, ElementsAre("h0"));
}

TEST_F(RolesTest, NothingIsFoundOrStoredUntilTheNewWeightsAreKnown) {
  StoreAll(8);
  const std::string before = scheduler_->version();
  workers_[1]->WeightsChanging();
  // The scheduler learns of it with the step's report; what the rank computes is dropped at once.
  Compute("r", 0, 12, 20);
  (void)Step();
  EXPECT_EQ(pool_.values.size(), 5U);  // rank 0 stored one chunk more, under the version before
  EXPECT_TRUE(scheduler_->Matched(View("s", 10), 0).ask_again);
  plan_ = scheduler_->BuildPlan(pins_);
  EXPECT_NE(plan_.fingerprint, 0U);
  for (auto& worker : workers_) {
    worker->Begin(plan_);
    ASSERT_TRUE(worker->FingerprintWanted());
    worker->SetFingerprint("new");
    worker->FinishStep({});
    scheduler_->OnReport(worker->TakeReport());
  }
  EXPECT_NE(scheduler_->version(), before);
  EXPECT_FALSE(scheduler_->Matched(View("s", 10), 0).ask_again);
}

}  // namespace
}  // namespace kvcove::connector
