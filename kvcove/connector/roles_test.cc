// SPDX-License-Identifier: Apache-2.0
// Both roles of one engine with two ranks, on a store with faults.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "kvcove/base/log.h"
#include "kvcove/connector/scheduler.h"
#include "kvcove/connector/test_store.h"
#include "kvcove/connector/worker.h"

namespace kvcove::connector {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

int Lines(const std::string& text, const std::string& with) {
  int lines = 0;
  for (std::size_t at = text.find(with); at != std::string::npos; at = text.find(with, at + 1)) {
    ++lines;
  }
  return lines;
}

constexpr std::uint32_t kBlocks = 64;
constexpr std::size_t kBlockBytes = 32;

class RolesTest : public testing::Test {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kOff);
    shape_ = {.model = "m", .hash_tokens = 4, .tp = 2};
    shape_.groups = {{.chunk_tokens = 4, .heads = 2}};
    Start();
  }
  void TearDown() override { SetLogLevel(LogLevel::kWarn); }

  void Start() {
    options_.shape = shape_;
    options_.blocks = kBlocks;
    runner_ = RunHere(store_, clock_, std::chrono::seconds(1));
    scheduler_ = std::make_unique<SchedulerRole>(options_, store_, *runner_, clock_);
    workers_.clear();
    memory_.assign(2, std::vector<char>(kBlocks * kBlockBytes));
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      WorkerOptions worker{.shape = shape_,
                           .rank = {.tp = rank},
                           .number = rank,
                           .threads = 0,
                           .batch_bytes = 2 * kBlockBytes};
      workers_.push_back(std::make_unique<WorkerRole>(worker, clock_));
      workers_[rank]->Connect(std::make_unique<TestStore>(pool_), /*ask_first=*/rank == 0);
      ASSERT_TRUE(workers_[rank]->Register(
          {{.name = "kv",
            .base = reinterpret_cast<std::uintptr_t>(memory_[rank].data()),
            .element_bytes = kBlockBytes,
            .axes = {{.kind = AxisKind::kBlock, .count = kBlocks, .stride_bytes = kBlockBytes}}}}));
    }
    scheduler_->StartWith({"a", "b"});
  }

  static RequestView View(std::string_view id, std::uint64_t tokens, std::string_view salt = {},
                          AdapterId adapter = 0) {
    return {.id = id,
            .tokens = tokens,
            .prompt_tokens = tokens,
            .salt = salt,
            .adapter = adapter,
            .hashes = tokens / 4,
            .read_hashes = [](std::size_t from, std::size_t to, HashList& into) {
              for (std::size_t i = from; i < to; ++i) {
                into.Add(std::string_view("h0h1h2h3h4h5h6h7h8h9").substr(2 * i, 2));
              }
            }};
  }
  // Blocks first, first + 1, ... for `tokens` tokens.
  static std::function<BlockTables()> Blocks(BlockId first, std::uint64_t tokens) {
    return [first, tokens] {
      std::vector<BlockId> ids((tokens + 3) / 4);
      std::iota(ids.begin(), ids.end(), first);
      return BlockTables{ids};
    };
  }
  void Compute(std::string_view id, std::uint64_t computed, std::uint64_t scheduled, BlockId first,
               bool started = true, AdapterId adapter = 0) {
    const std::uint64_t all = computed + scheduled;
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      for (std::uint64_t c = computed / 4; c < (all + 3) / 4; ++c) {
        const BlockId block = first + static_cast<BlockId>(c);
        std::fill_n(memory_[rank].begin() + block * kBlockBytes, kBlockBytes,
                    static_cast<char>('a' + c + 13 * rank));
      }
    }
    scheduler_->Schedule({.request = View(id, all, {}, adapter),
                          .computed_tokens = computed,
                          .scheduled_tokens = scheduled,
                          .started = started,
                          .blocks = Blocks(first, all)});
  }
  // One step of all ranks; movers run when told. Returns what both ranks have ended.
  std::vector<Ended> Step(bool move = true) {
    plan_ = scheduler_->BuildPlan(pins_);
    std::vector<Ended> ended;
    for (auto& worker : workers_) {
      worker->Begin(plan_);
      worker->FinishStep({});
    }
    if (move) Move();
    for (auto& worker : workers_) {
      ended.push_back(worker->TakeEnded());
      scheduler_->OnReport(worker->TakeReport());
    }
    return ended;
  }
  void Move() {
    for (auto& worker : workers_) {
      while (worker->RunOne()) {
      }
    }
  }
  void StoreAll(std::uint64_t tokens, AdapterId adapter = 0) {
    Compute("first", 0, tokens, 1, /*started=*/true, adapter);
    (void)Step();
    scheduler_->Finished("first");
    unpins_ = scheduler_->TakeUnpins();
  }
  Match Load(std::string_view id, std::uint64_t tokens, BlockId first, AdapterId adapter = 0) {
    const Match match = scheduler_->Matched(View(id, tokens, {}, adapter), 0);
    scheduler_->Allocated(id, match.tokens, Blocks(first, tokens));
    return match;
  }

  // What every rank has of adapters from now on, and the scheduler knows it.
  void Adapters(const std::vector<AdapterPrint>& adapters) {
    for (auto& worker : workers_) worker->SetAdapters(adapters);
    (void)Step();
  }

  EngineShape shape_;
  SchedulerOptions options_;
  TestPool pool_;
  TestStore store_{pool_};
  FakeClock clock_;
  std::unique_ptr<LookupRunner> runner_;
  std::unique_ptr<SchedulerRole> scheduler_;
  std::vector<std::unique_ptr<WorkerRole>> workers_;
  std::vector<std::vector<char>> memory_;
  Plan plan_;
  std::vector<BlockId> pins_, unpins_;
};

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
                            .request_goes_on = !last}))
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

// Memory that the host cannot touch: every address of it is another one than the host's.
class FakeDevice final : public DeviceMemory {
 public:
  static constexpr std::uintptr_t kFar = std::uintptr_t{1} << 60;
  bool Owns(std::uintptr_t address) const override { return address >= kFar; }
  Status ToHost(void* host, std::uintptr_t device, std::size_t bytes) const override {
    if (broken || device + bytes > end) return Fail(Code::kInternal, "error 700");
    std::memcpy(host, reinterpret_cast<const void*>(device - kFar), bytes);
    return {};
  }
  Status FromHost(std::uintptr_t device, const void* host, std::size_t bytes) const override {
    if (broken) return Fail(Code::kInternal, "error 700");
    std::memcpy(reinterpret_cast<void*>(device - kFar), host, bytes);
    return {};
  }
  std::atomic<bool> broken{false};
  std::uintptr_t end = UINTPTR_MAX;  // nothing at and behind it can be read
};

TEST_F(RolesTest, DeviceMemoryIsCopiedByTheDeviceAndItsFailuresAreFailedBlocks) {
  FakeDevice device;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    workers_[rank] = std::make_unique<WorkerRole>(
        WorkerOptions{
            .shape = shape_, .rank = {.tp = rank}, .number = rank, .device = &device, .threads = 0},
        clock_);
    workers_[rank]->Connect(std::make_unique<TestStore>(pool_));
    const auto base = reinterpret_cast<std::uintptr_t>(memory_[rank].data()) + FakeDevice::kFar;
    ASSERT_TRUE(workers_[rank]->Register(
        {{.name = "kv",
          .base = base,
          .element_bytes = kBlockBytes,
          .axes = {{.kind = AxisKind::kBlock, .count = kBlocks, .stride_bytes = kBlockBytes}}}}));
  }
  StoreAll(12);
  EXPECT_EQ(pool_.values.size(), 6U);
  (void)Load("r", 14, 10);
  (void)Step();
  EXPECT_TRUE(scheduler_->LoadEnded("r"));
  EXPECT_EQ(std::memcmp(&memory_[1][10 * kBlockBytes], &memory_[1][kBlockBytes], 3 * kBlockBytes),
            0);
  EXPECT_EQ(scheduler_->stats().ranks.copy_errors, 0U);
  device.broken = true;
  SetLogLevel(LogLevel::kWarn);
  testing::internal::CaptureStderr();
  clock_.AdvanceNs(kSecond);
  (void)Load("s", 14, 20);
  EXPECT_THAT(Step()[0].failed_blocks, UnorderedElementsAre(20, 21, 22));
  EXPECT_EQ(scheduler_->stats().ranks.copy_errors, 2U * 3);
  Compute("t", 0, 20, 30);  // of it, two chunks are new
  (void)Step();
  EXPECT_EQ(pool_.values.size(), 6U);
  EXPECT_EQ(scheduler_->stats().ranks.refused_keys, 4U);
  EXPECT_EQ(scheduler_->stats().ranks.copy_errors, 2U * 3 + 4);
  std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(Lines(said, "error 700"), 2) << "each rank says it once: " << said;
  testing::internal::CaptureStderr();
  clock_.AdvanceNs(60 * kSecond);
  Compute("u", 0, 20, 40);
  (void)Step();
  said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(Lines(said, "error 700"), 2) << "and again later: " << said;
}

TEST_F(RolesTest, DeviceMemoryThatCannotBeCopiedIsToldWhenItIsRegistered) {
  FakeDevice device;
  WorkerRole worker({.shape = shape_, .device = &device, .threads = 0}, clock_);
  const auto base = reinterpret_cast<std::uintptr_t>(memory_[0].data()) + FakeDevice::kFar;
  const std::vector<LayerMemory> layers = {
      {.name = "kv",
       .base = base,
       .element_bytes = kBlockBytes,
       .axes = {{.kind = AxisKind::kBlock, .count = kBlocks, .stride_bytes = kBlockBytes}}}};
  ASSERT_TRUE(worker.Register(layers));
  device.end = base + kBlocks * kBlockBytes - 1;
  const Status last = worker.Register(layers);
  ASSERT_FALSE(last) << "its last byte";
  EXPECT_THAT(last.error().detail, testing::HasSubstr("KV layer 'kv'"));
  EXPECT_THAT(last.error().detail, testing::HasSubstr("error 700"));
}

// 11.14: the size of what was read is compared with what was asked for.
TEST_F(RolesTest, AValueOfAnotherSizeIsAFailedBlock) {
  StoreAll(8);
  pool_.values.begin()->second += "more";
  (void)Load("r", 10, 20);
  const auto ended = Step();
  EXPECT_EQ(ended[0].failed_blocks.size() + ended[1].failed_blocks.size(), 1U);
}

// Values of another size than this engine's go, and what it computes takes their place.
TEST_F(RolesTest, AValueOfAnotherSizeIsReplacedByTheNextSave) {
  for (const bool larger : {true, false}) {
    pool_.values.clear();
    StoreAll(8);
    for (auto& [key, value] : pool_.values) value = larger ? value + "more" : value.substr(1);
    const auto misfits = scheduler_->stats().ranks.misfit_keys;
    (void)Load("r", 10, 20);
    (void)Step();
    EXPECT_TRUE(scheduler_->LoadEnded("r"));
    EXPECT_EQ(scheduler_->stats().ranks.misfit_keys - misfits, 4U);
    EXPECT_THAT(pool_.values, IsEmpty());
    Compute("r", 0, 8, 30);
    (void)Step();
    EXPECT_EQ(pool_.values.size(), 4U);
    scheduler_->Finished("r");
    (void)Load("s", 10, 40);
    for (const Ended& ended : Step()) EXPECT_THAT(ended.failed_blocks, IsEmpty());
    scheduler_->Finished("s");
    clock_.AdvanceNs(60 * kSecond);
  }
}

// An engine that only stores never loads what is in its way. Rank 0 asks first, rank 1 does not.
TEST_F(RolesTest, ASaveReplacesAValueOfAnotherSize) {
  StoreAll(8);
  for (auto& [key, value] : pool_.values) value += "more";
  SetLogLevel(LogLevel::kWarn);
  testing::internal::CaptureStderr();
  Compute("again", 0, 8, 30);
  (void)Step();
  const std::string said = testing::internal::GetCapturedStderr();
  ASSERT_EQ(pool_.values.size(), 4U);
  for (const auto& [key, value] : pool_.values) EXPECT_EQ(value.size(), kBlockBytes) << key;
  EXPECT_EQ(scheduler_->stats().ranks.misfit_keys, 4U);
  EXPECT_EQ(Lines(said, "has 36 bytes, not the 32"), 2) << said;
}

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

// A step inside of a block, which this role is not told of, under weights that come and go.
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

// 11.4: a reset that is not proven is no success.
TEST_F(RolesTest, AnUnprovenResetIsFalseUnlessClosedIsWanted) {
  pool_.unproven = true;
  EXPECT_FALSE(scheduler_->Reset());
  EXPECT_EQ(scheduler_->stats().closed, 1U);
  options_.closed_on_reset_failure = true;
  Start();
  EXPECT_TRUE(scheduler_->Reset());
  EXPECT_EQ(scheduler_->stats().resets_failed, 1U);
  EXPECT_EQ(scheduler_->stats().closed, 1U);
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

// 11.9, DEF-6: what was to be told before a reset is not told after it.
TEST_F(RolesTest, EventsOfBeforeAResetAreGone) {
  options_.events = true;
  Start();
  StoreAll(8);
  EXPECT_TRUE(scheduler_->Reset());
  auto events = scheduler_->TakeEvents();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].kind, PoolEvent::Kind::kAllCleared);
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
  ASSERT_FALSE(plan.saves.empty());
  ASSERT_FALSE(plan.cancelled.empty());
  EXPECT_EQ(plan.loads[0].adapter.id, 7U);
  EXPECT_THAT(plan.adapters, Each(1U));
  const std::string bytes = Encode(plan);
  EXPECT_EQ(*DecodePlan(bytes), plan);
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
    EXPECT_FALSE(DecodePlan(std::string_view(bytes).substr(0, cut)));
  }
  EXPECT_FALSE(DecodePlan(bytes + "x"));
  const Report report{.rank = 3,
                      .weight_changes = 2,
                      .fingerprint_asked = 9,
                      .fingerprint = "f",
                      .adapters_number = 3,
                      .adapters = {{.id = 7, .digest = "d"}},
                      .saves = {{.job = 1, .missing = {1, 2}}},
                      .loads = {{.job = 2, .failed = {7}}},
                      .counters = {.saved_bytes = 5}};
  EXPECT_EQ(*DecodeReport(Encode(report)), report);
  EXPECT_FALSE(DecodeReport(bytes));
}

// 11.5 is about sockets: engine_server_test.cc; 11.6 about an engine's own cache: model_test.cc.
TEST_F(RolesTest, ManyThreadsMoveEverythingOnce) {
  std::vector<char> memory(kBlocks * kBlockBytes, 'x');
  WorkerOptions options{.shape = shape_, .threads = 4, .batch_bytes = kBlockBytes};
  WorkerRole worker(options, SystemClock::Instance());
  worker.Connect(std::make_unique<TestStore>(pool_));
  ASSERT_TRUE(worker.Register(
      {{.name = "kv",
        .base = reinterpret_cast<std::uintptr_t>(memory.data()),
        .element_bytes = kBlockBytes,
        .axes = {{.kind = AxisKind::kBlock, .count = kBlocks, .stride_bytes = kBlockBytes}}}}));
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
