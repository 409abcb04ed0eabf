// SPDX-License-Identifier: Apache-2.0
// Both roles of one engine with two ranks, on a store with faults: what their tests share.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "kvcove/base/log.h"
#include "kvcove/connector/scheduler/scheduler.h"
#include "kvcove/connector/test_store.h"
#include "kvcove/connector/worker/worker.h"

namespace kvcove::connector {

inline constexpr std::uint32_t kBlocks = 64;
inline constexpr std::size_t kBlockBytes = 32;

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
                           .batch_bytes = 2 * kBlockBytes,
                           .priority = NamespacePriority::kLow};
      workers_.push_back(std::make_unique<WorkerRole>(worker, clock_));
      workers_[rank]->Connect(std::make_unique<TestStore>(pool_), /*ask_first=*/rank == 0);
      ASSERT_TRUE(workers_[rank]->Register(BlocksAt(AddressOf(memory_[rank]))));
    }
    scheduler_->StartWith({"a", "b"});
  }

  static std::uintptr_t AddressOf(const std::vector<char>& memory) {
    return reinterpret_cast<std::uintptr_t>(memory.data());
  }
  // The engine's KV memory, all of a block's bytes together.
  static std::vector<LayerMemory> BlocksAt(std::uintptr_t base) {
    return {{.name = "kv",
             .base = base,
             .element_bytes = kBlockBytes,
             .axes = {{.kind = AxisKind::kBlock, .count = kBlocks, .stride_bytes = kBlockBytes}}}};
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

}  // namespace kvcove::connector
