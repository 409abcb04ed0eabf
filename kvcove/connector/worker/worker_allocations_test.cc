// SPDX-License-Identifier: Apache-2.0
// What a mover allocates: nothing for a block.
#include <gtest/gtest.h>

#include "kvcove/base/thread_sanitizer.h"
#include "kvcove/connector/counted_allocations.h"
#include "kvcove/connector/worker/worker.h"

namespace kvcove::connector {
namespace {

constexpr std::uint64_t kBlocks = 512;
constexpr std::uint64_t kBlockBytes = 64;

// Has everything, takes everything, and allocates nothing.
class EasyStore final : public Store {
 public:
  Result<Token> Capture(std::string_view, std::chrono::milliseconds) override { return Token{}; }
  Status Exists(std::span<const std::string_view>, std::span<ItemResult> results,
                const CallOptions&) override {
    return All(results, {.code = Code::kMiss});
  }
  Status Put(const Token&, std::span<const PutItem> items, std::span<ItemResult> results,
             const CallOptions&) override {
    for (const PutItem& item : items) chained += item.after.empty() ? 0 : 1;
    return All(results, {.code = Code::kOk});
  }
  Status Get(std::span<const GetItem>, std::span<ItemResult> results, const CallOptions&) override {
    return All(results, {.code = Code::kOk, .bytes = kBlockBytes, .tier = Tier::kMemory});
  }
  Status Remove(std::span<const std::string_view>, std::span<ItemResult> results,
                const CallOptions&) override {
    return All(results, {.code = Code::kOk});
  }
  Status Reset(const ResetOptions&) override { return {}; }
  Status NameVersions(std::span<const std::string>, std::chrono::milliseconds) override {
    return {};
  }
  bool closed() const override { return false; }

  std::uint64_t chained = 0;

 private:
  static Status All(std::span<ItemResult> results, const ItemResult& result) {
    std::ranges::fill(results, result);
    return {};
  }
};

class WorkerAllocationsTest : public testing::TestWithParam<bool> {
 protected:
  // Of the mover that loads or saves so many blocks.
  std::uint64_t AllocationsOf(bool load, std::uint64_t blocks) {
    EngineShape shape{.model = "m"};
    shape.groups = {{.chunk_tokens = 16, .heads = 1}};
    WorkerRole worker({.shape = shape, .threads = 0}, clock_);
    auto store = std::make_unique<EasyStore>();
    const EasyStore& seen = *store;
    worker.Connect(std::move(store), /*ask_first=*/GetParam());
    EXPECT_TRUE(worker.Register(
        {{.name = "kv",
          .base = reinterpret_cast<std::uintptr_t>(memory_.data()),
          .element_bytes = kBlockBytes,
          .axes = {{.kind = AxisKind::kBlock, .count = kBlocks, .stride_bytes = kBlockBytes}}}}));
    std::vector<ChunkPlace> chunks;
    for (std::uint32_t c = 0; c < blocks; ++c) {
      chunks.push_back({.chunk = c, .block = c + 1, .hash = std::string(32, 'h')});
    }
    Plan plan;
    if (load) {
      plan.loads.push_back({.job = 1, .request = "r", .chunks = chunks});
    } else {
      plan.saves.push_back({.job = 1, .request = "r", .chunks = chunks});
    }
    worker.Begin(std::move(plan));
    worker.FinishStep({});
    const std::uint64_t before = allocations;
    while (worker.RunOne()) {
    }
    const std::uint64_t made = allocations - before;
    const Report report = worker.TakeReport();
    EXPECT_EQ(load ? report.counters.loaded_keys : report.counters.saved_keys, blocks);
    EXPECT_EQ(seen.chained, load ? 0 : blocks - 1) << "each but the first follows another";
    return made;
  }

  FakeClock clock_;
  std::vector<char> memory_ = std::vector<char>(kBlocks * kBlockBytes);
};
INSTANTIATE_TEST_SUITE_P(AskFirst, WorkerAllocationsTest, testing::Bool());

TEST_P(WorkerAllocationsTest, AMoverAllocatesNothingForABlock) {
  if (KVCOVE_THREAD_SANITIZER) GTEST_SKIP() << "nothing counts the allocations in this build";
  for (const bool load : {true, false}) {
    const std::uint64_t few = AllocationsOf(load, 4);
    EXPECT_EQ(AllocationsOf(load, 256), few) << (load ? "a load" : "a save");
  }
}

}  // namespace
}  // namespace kvcove::connector
