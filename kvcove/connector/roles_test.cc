// SPDX-License-Identifier: Apache-2.0
// Loads and saves: what one request computes, the next one loads.
#include <sys/resource.h>

#include "kvcove/connector/roles_fixture.h"
#include "kvcove/connector/scheduler/counts.h"

namespace kvcove::connector {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

TEST_F(RolesTest, WhatOneRequestComputesTheNextOneLoads) {
  StoreAll(20);
  EXPECT_EQ(pool_.values.size(), 10U);  // five chunks of two ranks
  EXPECT_THAT(unpins_, UnorderedElementsAre(1, 2, 3, 4, 5));
  const Match match = Load("second", 22, 10);
  EXPECT_EQ(match.tokens, 20U);
  EXPECT_TRUE(match.async);
  const auto ended = Step();
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(ended[rank].loaded, ElementsAre("second"));
    EXPECT_THAT(ended[rank].failed_blocks, IsEmpty());
    EXPECT_EQ(
        std::memcmp(&memory_[rank][10 * kBlockBytes], &memory_[rank][kBlockBytes], 5 * kBlockBytes),
        0);
  }
  EXPECT_TRUE(scheduler_->LoadEnded("second"));
  EXPECT_EQ(scheduler_->stats().ranks.bytes_by_tier[1], 10 * kBlockBytes);
}

// Whether this is the key of a part of chunk `hash`.
bool IsOf(std::string_view key, std::string_view hash) {
  std::string part;
  AppendKey("", hash, part);
  return key.ends_with(part);
}

// What the caller says of a request comes with its chunks; the last one ends it.
TEST_F(RolesTest, HintsOfARequestComeWithItsChunks) {
  scheduler_->Hint("first", {.output_tokens = 300, .ephemeral_from = 9, .session_ends = true});
  StoreAll(20);
  ASSERT_EQ(pool_.hints.size(), 10U);
  for (const auto& [key, hints] : pool_.hints) {
    const bool last = IsOf(key, "h4");
    const bool ephemeral = IsOf(key, "h3") || last;  // chunks of four tokens
    EXPECT_EQ(hints, (Hints{.output_tokens = 300,
                            .ephemeral = ephemeral,
                            .session_ends = true,
                            .request_goes_on = !last,
                            .priority = NamespacePriority::kLow}))
        << key;
  }
}

TEST_F(RolesTest, ARequestThatIsComputedInPartsGoesOnUntilItsPromptIsStored) {
  const auto part = [&](std::uint64_t computed, std::uint64_t scheduled) {
    scheduler_->Schedule({.request = View("parts", 20),
                          .computed_tokens = computed,
                          .scheduled_tokens = scheduled,
                          .started = computed == 0,
                          .blocks = Blocks(1, 20)});
    (void)Step();
  };
  part(0, 12);
  ASSERT_EQ(pool_.hints.size(), 6U);
  for (const auto& [key, hints] : pool_.hints) EXPECT_TRUE(hints.request_goes_on) << key;
  part(12, 8);
  for (const auto& [key, hints] : pool_.hints) {
    EXPECT_EQ(hints.request_goes_on, !IsOf(key, "h4")) << key;
  }
}

TEST_F(RolesTest, TheLastTokenIsAlwaysComputed) {
  StoreAll(20);
  EXPECT_EQ(scheduler_->Matched(View("all", 20), 0).tokens, 19U);
  EXPECT_EQ(scheduler_->Matched(View("own", 22), 20).tokens, 0U);
  EXPECT_EQ(scheduler_->Matched(View("part", 22), 8).tokens, 12U);
  EXPECT_EQ(scheduler_->Matched(View("less", 3), 0).tokens, 0U);
}

// DEF-9: a request that this role has never seen, or has forgotten.
TEST_F(RolesTest, RequestsThatAreNotKnownEndAndLoadNothing) {
  StoreAll(8);
  scheduler_->Finished("nobody");
  scheduler_->Finished("first");
  scheduler_->Allocated("nobody", 4, Blocks(10, 8));
  EXPECT_TRUE(scheduler_->LoadEnded("nobody"));
  EXPECT_THAT(scheduler_->TiersOf("nobody"), Each(0U));
  const auto ended = Step();
  EXPECT_THAT(ended[0].loaded, IsEmpty());
  EXPECT_FALSE(scheduler_->Pending());
}

// vllm-connector.md 11.1: a batch that is split, and one part of it fails.
TEST_F(RolesTest, FailedBlocksAreReportedExactlyWhenABatchIsSplit) {
  StoreAll(32);
  std::string key;
  AppendKey("g0.h1of2", "h2", key);
  pool_.lost.insert(key);
  (void)Load("r", 34, 20);
  const auto ended = Step();
  EXPECT_THAT(ended[0].failed_blocks, IsEmpty());
  // 23 came in the same part. What comes behind is of no use: it is not loaded, and said so.
  EXPECT_THAT(ended[1].failed_blocks, UnorderedElementsAre(22, 24, 25, 26, 27));
  EXPECT_THAT(ended[1].failed, ElementsAre("r"));
  EXPECT_TRUE(scheduler_->LoadEnded("r"));
  // It would be found again: the request computes.
  EXPECT_EQ(scheduler_->Matched(View("r", 34), 0).tokens, 0U);
}

// a disk that fails does not look like a host that fails.
TEST_F(RolesTest, ValuesThatAreNotGivenAreCountedByWhereTheyWere) {
  StoreAll(32);
  const auto key = [](const char* tag, const char* hash) {
    std::string text;
    AppendKey(tag, hash, text);
    return text;
  };
  const auto failed = [this] { return scheduler_->stats().ranks.failed_by_tier; };
  // What the look-up found on a disk fails there, whatever the reason.
  pool_.disk = {key("g0.h1of2", "h2")};
  pool_.lost = pool_.disk;
  (void)Load("a", 34, 20);
  (void)Step();
  EXPECT_TRUE(scheduler_->LoadEnded("a"));
  EXPECT_THAT(failed(), ElementsAre(0, 0, 0, 1));
  EXPECT_EQ(scheduler_->stats().ranks.failed_keys, 5U) << "four behind it were not tried";
  // Memory's, of the other rank.
  pool_.lost = {key("g0.h0of2", "h3")};
  (void)Load("b", 34, 20);
  (void)Step();
  EXPECT_TRUE(scheduler_->LoadEnded("b"));
  EXPECT_THAT(failed(), ElementsAre(0, 1, 0, 1));
  // It was in memory for the look-up, and on a disk for the load.
  pool_.lost_reason = MissReason::kDiskFailed;
  (void)Load("c", 34, 20);
  (void)Step();
  EXPECT_TRUE(scheduler_->LoadEnded("c"));
  EXPECT_THAT(failed(), ElementsAre(0, 1, 0, 2));
}

// The engine computes on the blocks of a synchronous load before a rank says that it has failed. A
// model with a sliding window: what comes behind needs the blocks no more, so it does not show.
class SyncLoadTest : public RolesTest {
 protected:
  void SetUp() override {
    options_.load_async = false;
    RolesTest::SetUp();
    shape_.groups = {
        {.kind = GroupKind::kWindow, .chunk_tokens = 4, .window_tokens = 5, .heads = 2}};
    Start();
    StoreAll(8);
  }
  // The last two of the request's blocks, from 20 on.
  static std::function<BlockTables()> Window(std::uint64_t tokens) {
    return [tokens] {
      BlockTables tables = Blocks(20, tokens)();
      std::fill(tables[0].begin(), tables[0].end() - 2, kNullBlock);
      return tables;
    };
  }
  void ComputeFour(std::string_view id, std::uint64_t computed, bool started = true) {
    scheduler_->Schedule({.request = View(id, computed + 4),
                          .computed_tokens = computed,
                          .scheduled_tokens = 4,
                          .started = started,
                          .blocks = Window(computed + 4)});
  }
  // The request loads what the next token needs of 8, and computes 4 more in the same step.
  void LoadAndCompute(bool fails) {
    std::string key;
    AppendKey("g0.h0of2", "h1", key);
    if (fails) pool_.lost.insert(key);
    const Match match = scheduler_->Matched(View("r", 12), 0);
    EXPECT_EQ(match.tokens, 8U);
    scheduler_->Allocated("r", match.tokens, Window(12));
    ComputeFour("r", 8);
  }
  // By a request that has the first `computed` tokens of the engine's own cache.
  std::size_t StoredBehind(std::uint64_t computed) {
    const std::size_t before = pool_.values.size();
    EXPECT_EQ(scheduler_->Matched(View("s", computed + 4), computed).tokens, 0U);
    ComputeFour("s", computed);
    (void)Step();
    return pool_.values.size() - before;
  }
};

TEST_F(SyncLoadTest, AShortAnswerOnALoadThatFailedLeavesNothingThatIsStored) {
  LoadAndCompute(/*fails=*/true);
  EXPECT_THAT(Step()[0].failed_blocks, ElementsAre(21));
  // The answer ends before it begins or fills another block: no step of it is told any more.
  scheduler_->Finished("r");
  EXPECT_EQ(StoredBehind(12), 0U);
  EXPECT_EQ(scheduler_->stats().unstored_requests, 1U);
}

TEST_F(SyncLoadTest, AnAnswerThatEndsBeforeTheReportLeavesNothingThatIsStored) {
  LoadAndCompute(/*fails=*/true);
  plan_ = scheduler_->BuildPlan(pins_);
  for (auto& worker : workers_) {
    worker->Begin(plan_);
    worker->FinishStep({});
  }
  Move();
  scheduler_->Finished("r");
  for (auto& worker : workers_) scheduler_->OnReport(worker->TakeReport());
  EXPECT_EQ(StoredBehind(12), 0U);
}

TEST_F(SyncLoadTest, ARequestOfTheSameStepThatBeginsOnALoadThatFailsStoresNothing) {
  LoadAndCompute(/*fails=*/true);
  EXPECT_EQ(StoredBehind(12), 0U);
}

TEST_F(SyncLoadTest, ARequestThatLoadedStoresWhatItAndOthersComputeBehind) {
  LoadAndCompute(/*fails=*/false);
  (void)Step();
  ComputeFour("r", 12, /*started=*/false);
  (void)Step();
  EXPECT_EQ(pool_.values.size(), 8U) << "also the chunk that was computed beside the load";
  scheduler_->Finished("r");
  EXPECT_EQ(StoredBehind(16), 2U);
}

TEST_F(SyncLoadTest, ALoadThatAResetOvertookLeavesNothingThatIsStored) {
  LoadAndCompute(/*fails=*/false);
  EXPECT_TRUE(scheduler_->Reset());
  (void)Step();
  EXPECT_EQ(StoredBehind(12), 0U);
}

// 11.2, DEF-3: whatever throws, a job ends, and once.
TEST_F(RolesTest, AJobWhoseThreadThrowsEndsOnce) {
  StoreAll(8);
  pool_.throws = true;
  (void)Load("r", 10, 20);
  const auto ended = Step();
  EXPECT_THAT(ended[0].loaded, ElementsAre("r"));
  EXPECT_THAT(ended[0].failed_blocks, UnorderedElementsAre(20, 21));
  EXPECT_TRUE(scheduler_->LoadEnded("r"));
  pool_.values.clear();
  Compute("s", 0, 8, 30);
  (void)Step();
  EXPECT_THAT(scheduler_->TakeUnpins(), UnorderedElementsAre(30, 31));
  EXPECT_FALSE(scheduler_->Pending());
  for (const Ended& again : Step()) EXPECT_THAT(again.loaded, IsEmpty());
}

// Its token is refused, or an address is wrong: waiting for the pool would keep the blocks for
// ever.
TEST_F(RolesTest, ARankThatCanNeverOpenThePoolKeepsNoBlocks) {
  workers_[1] = std::make_unique<WorkerRole>(
      WorkerOptions{.shape = shape_, .rank = {.tp = 1}, .number = 1, .threads = 0}, clock_);
  ASSERT_TRUE(workers_[1]->Register(BlocksAt(AddressOf(memory_[1]))));
  Compute("r", 0, 8, 1);
  (void)Step();
  EXPECT_THAT(scheduler_->TakeUnpins(), IsEmpty()) << "it may open in a moment";
  workers_[1]->DoWithout();
  (void)Step();
  EXPECT_THAT(scheduler_->TakeUnpins(), UnorderedElementsAre(1, 2));
  // What the other rank has stored is half of a value.
  EXPECT_EQ(scheduler_->Matched(View("s", 12), 0).tokens, 0U);
  EXPECT_EQ(scheduler_->stats().lookups, 0U);
  Compute("s", 0, 12, 10);
  (void)Step();
  EXPECT_THAT(pins_, IsEmpty());
  EXPECT_FALSE(scheduler_->Pending());
}

// Its owner starts later than the engine, or never.
TEST_F(RolesTest, ARankWhosePoolIsNotThereYetKeepsNoBlocksForLong) {
  const WorkerOptions options{.shape = shape_, .rank = {.tp = 1}, .number = 1, .threads = 0};
  workers_[1] = std::make_unique<WorkerRole>(options, clock_);
  ASSERT_TRUE(workers_[1]->Register(BlocksAt(AddressOf(memory_[1]))));
  for (const char* request : {"r", "s"}) {
    Compute(request, 0, 8, 1);
    (void)Step();
    EXPECT_THAT(scheduler_->TakeUnpins(), IsEmpty()) << "it may open in a moment";
    workers_[1]->FailWaiting();
    (void)Step();
    EXPECT_THAT(scheduler_->TakeUnpins(), UnorderedElementsAre(1, 2));
    EXPECT_FALSE(scheduler_->Pending());
  }
  workers_[1]->Connect(std::make_unique<TestStore>(pool_));
  workers_[1]->FailWaiting();
  Compute("t", 0, 8, 1);
  (void)Step();
  EXPECT_THAT(scheduler_->TakeUnpins(), UnorderedElementsAre(1, 2));
  EXPECT_EQ(scheduler_->Matched(View("t", 12), 0).tokens, 8U) << "it stores from now on";
}

TEST_F(RolesTest, AVersionThatThePoolRefusesIsAskedForOnceAndToldOnce) {
  for (const bool in_thread : {false, true}) {
    pool_.refuses = Code::kDenied;
    pool_.captures = 0;
    options_.bind_in_thread = in_thread;
    SetLogLevel(LogLevel::kError);
    testing::internal::CaptureStderr();
    Start();
    while (scheduler_->Matched(View("r", 10), 0).ask_again) {  // the test's own limit ends it
    }
    for (int i = 0; i < 20; ++i) {
      Compute("r" + std::to_string(i), 0, 8, 1);
      (void)Step();
      EXPECT_THAT(pins_, IsEmpty());
    }
    EXPECT_EQ(pool_.captures, 1);
    // After a reset it is asked again.
    pool_.refuses = Code::kOk;
    EXPECT_TRUE(scheduler_->Reset());
    while (scheduler_->Matched(View("s", 10), 0).ask_again) {
    }
    Compute("s", 0, 8, 1);
    (void)Step();
    EXPECT_THAT(pins_, UnorderedElementsAre(1, 2));
    scheduler_.reset();  // its thread has said all
    const std::string told = testing::internal::GetCapturedStderr();
    EXPECT_NE(told.find("gives no generation"), std::string::npos) << told;
    EXPECT_EQ(told.find("gives no generation"), told.rfind("gives no generation")) << told;
  }
}

// A thread that an exception leaves ends the engine's process.
TEST_F(RolesTest, AnExceptionInARoleThreadEndsNothing) {
  SetLogLevel(LogLevel::kOff);
  StoreAll(8);
  options_.bind_in_thread = true;
  Start();
  auto runner = RunInThread(store_, clock_, std::chrono::seconds(1), std::chrono::seconds(1));
  ASSERT_TRUE(runner) << runner.error().ToString();
  runner_ = std::move(*runner);
  scheduler_ = std::make_unique<SchedulerRole>(options_, store_, *runner_, clock_);
  pool_.call_throws = true;
  pool_.captures = 0;
  scheduler_->StartWith({"a", "b"});
  while (pool_.captures < 3) {  // the binder goes on; the test's own limit ends it
  }
  clock_.AdvanceNs(10 * kSecond);  // its requests wait for it no more
  Match match;
  do {
    match = scheduler_->Matched(View("r", 10), 0);
    (void)Step();
  } while (match.ask_again);
  EXPECT_EQ(match.tokens, 0U) << "a miss";
  pool_.call_throws = false;
  const int before = pool_.captures;
  while (pool_.captures == before) {
  }
  do {
    match = scheduler_->Matched(View("s", 10), 0);
    (void)Step();
  } while (match.ask_again);
  EXPECT_EQ(match.tokens, 8U);
  scheduler_.reset();  // before its runner
}

// 11.3, DEF-1, DEF-4: a pool that does not answer never holds the scheduler.
TEST_F(RolesTest, ALookupThatIsNotAnsweredIsAskedAgainAndThenAMiss) {
  StoreAll(8);
  pool_.slow = true;
  EXPECT_TRUE(scheduler_->Matched(View("r", 10), 0).ask_again);
  clock_.AdvanceNs(2 * kSecond);
  EXPECT_FALSE(scheduler_->Matched(View("r", 10), 0).ask_again);
  EXPECT_EQ(scheduler_->Matched(View("r", 10), 0).tokens, 0U);
  EXPECT_EQ(scheduler_->stats().lookup_timeouts, 1U);
}

// 11.10: a waiting request is not looked up again at every attempt.
TEST_F(RolesTest, AWaitingRequestsLookupIsRemembered) {
  StoreAll(20);
  EXPECT_EQ(scheduler_->Matched(View("r", 22), 0).tokens, 20U);
  const std::uint64_t asked = pool_.asked;
  for (int i = 0; i < 10; ++i) EXPECT_EQ(scheduler_->Matched(View("r", 22), 4).tokens, 16U);
  EXPECT_EQ(pool_.asked, asked);
}

TEST_F(RolesTest, AnAbortedRequestsLoadStillEnds) {
  StoreAll(8);
  (void)Load("r", 10, 20);
  (void)Step(/*move=*/false);
  scheduler_->Finished("r");
  for (const Ended& ended : Step(/*move=*/false)) EXPECT_THAT(ended.loaded, ElementsAre("r"));
  EXPECT_TRUE(scheduler_->LoadEnded("r"));
  EXPECT_FALSE(scheduler_->Pending());
}

TEST_F(RolesTest, NothingIsSavedTwiceOrUnderPressure) {
  StoreAll(8);
  const std::uint64_t puts = pool_.puts;
  Compute("again", 0, 8, 30);  // the same chunks, computed by another
  (void)Step();
  EXPECT_EQ(pool_.puts, puts);
  EXPECT_EQ(scheduler_->stats().ranks.existing_keys, 4U);
  pool_.values.clear();
  pool_.full = true;
  Compute("full", 0, 8, 40);
  (void)Step();
  pool_.full = false;
  Compute("soon", 0, 8, 50);
  (void)Step();
  EXPECT_THAT(pool_.values, IsEmpty());  // for a while
  clock_.AdvanceNs(kSecond);
  Compute("later", 0, 8, 44);
  (void)Step();
  EXPECT_EQ(pool_.values.size(), 4U);
}

TEST_F(RolesTest, UnregisteringEndsWhatIsQueued) {
  StoreAll(8);
  (void)Load("r", 10, 20);
  (void)Step(/*move=*/false);
  for (auto& worker : workers_) worker->Unregister();
  for (const Ended& ended : Step(/*move=*/false)) {
    EXPECT_THAT(ended.loaded, ElementsAre("r"));
    EXPECT_THAT(ended.failed_blocks, UnorderedElementsAre(20, 21));
  }
}

TEST_F(RolesTest, PlansAndReportsSurviveTheirWay) {
  Adapters({{.id = 7, .digest = "one"}});
  StoreAll(8, /*adapter=*/7);
  Compute("r", 0, 12, 20);
  (void)Load("s", 10, 40, /*adapter=*/7);
  scheduler_->Finished("s");
  const Plan plan = scheduler_->BuildPlan(pins_);
  ASSERT_FALSE(plan.loads.empty());
  EXPECT_EQ(plan.loads[0].chunks.at(0).tier, Tier::kMemory);
  ASSERT_FALSE(plan.saves.empty());
  ASSERT_FALSE(plan.cancelled.empty());
  EXPECT_EQ(plan.loads[0].adapter.id, 7U);
  EXPECT_THAT(plan.adapters, Each(1U));
  EXPECT_GT(plan.step, 0U);
  const std::string bytes = Encode(plan);
  EXPECT_EQ(*DecodePlan(bytes), plan);
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
    EXPECT_FALSE(DecodePlan(std::string_view(bytes).substr(0, cut)));
  }
  // A tier that no version knows.
  std::string spoiled = bytes;
  const std::size_t hash = spoiled.find("h0");
  spoiled.at(hash - 5) = 4;
  EXPECT_FALSE(DecodePlan(spoiled));
  EXPECT_FALSE(DecodePlan(bytes + "x"));
  const Report report{.rank = 3,
                      .weight_changes = 2,
                      .fingerprint_asked = 9,
                      .fingerprint = "f",
                      .adapters_number = 3,
                      .adapters = {{.id = 7, .digest = "d"}},
                      .saves = {{.job = 1, .missing = {1, 2}}},
                      .loads = {{.job = 2, .failed = {7}, .ns = 8, .bytes = {0, 9, 0, 4}}},
                      .counters = {.failed_by_tier = {0, 1, 2, 3}, .saved_bytes = 5},
                      .step = 6};
  EXPECT_EQ(*DecodeReport(Encode(report)), report);
  EXPECT_FALSE(DecodeReport(bytes));
}

TEST_F(RolesTest, WhatADraftModelSpoiledIsComputedAgain) {
  options_.drop_last_stride = true;
  Start();
  StoreAll(16);
  EXPECT_EQ(scheduler_->Matched(View("r", 18), 0).tokens, 12U);
  EXPECT_EQ(scheduler_->Matched(View("s", 18), 12).tokens, 0U);
  EXPECT_EQ(scheduler_->Matched(View("t", 6), 0).tokens, 0U);
}

// Another connector of the engine has loaded 8 tokens for the request.
TEST_F(RolesTest, KvThatASiblingLoadedIsStoredOnlyWhereItIsTrusted) {
  for (const bool trusted : {false, true}) {
    options_.trust_siblings = trusted;
    pool_.values.clear();
    Start();
    Compute("before", 0, 8, 1);  // its blocks are used again
    (void)Step();
    scheduler_->Finished("before");
    pool_.values.clear();
    EXPECT_EQ(scheduler_->Matched(View("r", 16), 0).tokens, 0U);
    scheduler_->Allocated("r", 0, Blocks(1, 16));
    Compute("r", 8, 8, 1);
    (void)Step();
    EXPECT_EQ(pool_.values.size(), trusted ? 8U : 0U);
    EXPECT_EQ(scheduler_->stats().sibling_requests, 1U);
    // A reset came while it loaded.
    (void)scheduler_->Matched(View("s", 16), 0);
    EXPECT_TRUE(scheduler_->Reset());
    Compute("s", 8, 8, 20);
    (void)Step();
    EXPECT_THAT(pool_.values, IsEmpty());
  }
}

TEST_F(RolesTest, KvOfTheOwnCacheAndOfALoadIsNoSiblings) {
  StoreAll(8);
  (void)Load("r", 18, 20);
  (void)Step();
  EXPECT_TRUE(scheduler_->LoadEnded("r"));
  Compute("r", 8, 8, 20);
  (void)Step();
  (void)scheduler_->Matched(View("own", 20), 16);
  Compute("own", 16, 4, 20);
  (void)Step();
  EXPECT_EQ(pool_.values.size(), 10U);
  EXPECT_EQ(scheduler_->stats().sibling_requests, 0U);
}

TEST_F(RolesTest, LatenciesAndMissesAreCountedByWhatTheyWere) {
  StoreAll(8);
  EXPECT_EQ(scheduler_->Matched(View("r", 10), 0).tokens, 8U);
  clock_.AdvanceNs(50 * kMillisecond);
  scheduler_->Allocated("r", 8, Blocks(20, 10));
  plan_ = scheduler_->BuildPlan(pins_);
  for (auto& worker : workers_) worker->Begin(plan_);
  clock_.AdvanceNs(20 * kMillisecond);
  pool_.lost.insert(pool_.values.begin()->first);
  Move();
  for (auto& worker : workers_) scheduler_->OnReport(worker->TakeReport());
  (void)scheduler_->Matched(View("long", 20), 0);
  std::map<std::string, std::uint64_t> counts;
  for (const Count& count : CountsOf(scheduler_->stats())) counts[count.name] = count.value;
  EXPECT_EQ(counts["lookup_seconds_le_0.0001"], 2U);
  EXPECT_EQ(counts["load_seconds_le_0.03"], 2U) << "one a rank";
  EXPECT_EQ(counts["save_seconds_le_0.0001"], 2U);
  EXPECT_EQ(counts["load_missed_evicted"], 1U);
  EXPECT_EQ(counts["lookup_missed_evicted"], 1U);
  EXPECT_TRUE(counts.contains("lookup_missed_owner_gone"));
}

// A forward pass may last a second, and its saves wait for it: a load that comes meanwhile does
// not.
TEST_F(RolesTest, ALoadDoesNotWaitForAStepThatSavesWaitFor) {
  StoreAll(8);
  (void)Load("r", 10, 20);
  const Plan load = scheduler_->BuildPlan(pins_);
  std::atomic<bool> computed{false};
  std::vector<char> memory(kBlocks * kBlockBytes, 'x');
  WorkerOptions options{.shape = shape_, .threads = 2};
  WorkerRole worker(options, SystemClock::Instance());
  worker.Connect(std::make_unique<TestStore>(pool_));
  ASSERT_TRUE(worker.Register(BlocksAt(AddressOf(memory))));
  Plan saves;
  for (JobId job = 101; job <= 104; ++job) {
    SaveOrder order{.job = job, .token = {.generation = 1}};
    order.chunks.push_back({.block = 1, .hash = std::to_string(job)});
    saves.saves.push_back(order);
  }
  worker.Begin(saves);
  worker.FinishStep([&] { computed.wait(false); });
  worker.Begin(load);
  Ended ended;
  while (ended.loaded.empty()) ended = worker.TakeEnded();  // the test's own limit ends it
  EXPECT_THAT(ended.loaded, ElementsAre("r"));
  EXPECT_THAT(ended.failed_blocks, IsEmpty());
  Report report = worker.TakeReport();
  EXPECT_THAT(report.saves, IsEmpty());
  EXPECT_EQ(report.counters.queued_jobs, 4U);
  computed = true;
  computed.notify_all();
  std::size_t saved = 0;
  while (saved < 4) saved += worker.TakeReport().saves.size();
}

// A forward pass on the host's processors goes before saves, and loads go before it.
TEST_F(RolesTest, SavesOfHostMemoryRunAtLowPriorityAndLoadsDoNot) {
  class Watching final : public TestStore {
   public:
    using TestStore::TestStore;
    Status Put(const Token& token, std::span<const PutItem> items, std::span<ItemResult> results,
               const CallOptions& options) override {
      put = getpriority(PRIO_PROCESS, 0);
      return TestStore::Put(token, items, results, options);
    }
    Status Get(std::span<const GetItem> items, std::span<ItemResult> results,
               const CallOptions& options) override {
      got = getpriority(PRIO_PROCESS, 0);
      return TestStore::Get(items, results, options);
    }
    std::atomic<int> put = -99, got = -99;
  };
  const int usual = getpriority(PRIO_PROCESS, 0);
  StoreAll(8);
  (void)Load("r", 10, 20);
  const Plan load = scheduler_->BuildPlan(pins_);
  WorkerRole worker({.shape = shape_, .threads = 2}, SystemClock::Instance());
  auto owned = std::make_unique<Watching>(pool_);
  Watching& store = *owned;
  worker.Connect(std::move(owned));
  ASSERT_TRUE(worker.Register(BlocksAt(AddressOf(memory_[0]))));
  Plan saves;
  SaveOrder order{.job = 101, .token = {.generation = 1}};
  order.chunks.push_back({.block = 1, .hash = "new"});
  saves.saves.push_back(order);
  worker.Begin(saves);
  worker.FinishStep({});
  worker.Begin(load);
  while (worker.TakeReport().saves.empty()) {
  }
  while (worker.TakeEnded().loaded.empty()) {
  }
  EXPECT_EQ(store.put, std::max(usual, 10));
  EXPECT_EQ(store.got, usual);
}

TEST_F(RolesTest, SavesOfAStepThatFailedEndAsNotStored) {
  StoreAll(8);
  Compute("r", 0, 16, 20);
  plan_ = scheduler_->BuildPlan(pins_);
  for (auto& worker : workers_) {
    worker->Begin(plan_);
    worker->FinishStep([] { throw std::runtime_error("the device is gone"); });
  }
  Move();
  for (auto& worker : workers_) scheduler_->OnReport(worker->TakeReport());
  EXPECT_EQ(pool_.values.size(), 4U);
  EXPECT_EQ(scheduler_->TakeUnpins().size(), 4U);
  EXPECT_FALSE(scheduler_->Pending());
}

// 11.5 is about sockets: engine_server_test.cc; 11.6 about an engine's own cache: model_test.cc.
TEST_F(RolesTest, ManyThreadsMoveEverythingOnce) {
  std::vector<char> memory(kBlocks * kBlockBytes, 'x');
  WorkerOptions options{.shape = shape_, .threads = 4, .batch_bytes = kBlockBytes};
  WorkerRole worker(options, SystemClock::Instance());
  worker.Connect(std::make_unique<TestStore>(pool_));
  ASSERT_TRUE(worker.Register(BlocksAt(AddressOf(memory))));
  Plan plan;
  for (JobId job = 1; job <= 200; ++job) {
    SaveOrder order{.job = job, .token = {.generation = 1}};
    for (BlockId block = 1; block < 9; ++block) {
      order.chunks.push_back(
          {.chunk = block, .block = block, .hash = std::to_string(job * 100 + block)});
    }
    plan.saves.push_back(order);
  }
  worker.Begin(plan);
  worker.FinishStep({});
  std::set<JobId> ended;
  while (ended.size() < 200) {
    for (const SaveDone& done : worker.TakeReport().saves) {
      EXPECT_TRUE(ended.insert(done.job).second);
      EXPECT_THAT(done.missing, IsEmpty());
    }
  }
  EXPECT_EQ(pool_.values.size(), 1600U);
}

}  // namespace
}  // namespace kvcove::connector
