// SPDX-License-Identifier: Apache-2.0
// `kvcove bench connector`, second half: what a rank's model thread pays for a plan, what a load
// pays for a step that is being computed, and what a slow pool costs the scheduler.
#include <fmt/core.h>

#include <algorithm>
#include <thread>

#include "kvcove/connector/scheduler/scheduler.h"
#include "kvcove/connector/worker/worker.h"
#include "lab/commands/bench_connector.h"

namespace kvcove::lab {
namespace {

using connector::BlockId;

constexpr std::uint32_t kBlocks = 640;
constexpr std::uint64_t kLayers = 80;
constexpr std::uint64_t kLayerBytes = 8192;  // of a block, as at TP 8
constexpr std::uint64_t kBlockBytes = kLayers * kLayerBytes;

// One rank with the KV memory of `kBlocks` blocks.
class Rank {
 public:
  explicit Rank(std::uint32_t threads)
      : memory_(new char[kBlocks * kBlockBytes]),  // not touched before it is used
        shape_{.model_name = "bench", .model = "bench-ranks"} {
    shape_.groups = {{.chunk_tokens = 16, .heads = 1}};
    worker_ = std::make_unique<connector::WorkerRole>(
        connector::WorkerOptions{
            .shape = shape_, .engine = "bench", .threads = threads, .fingerprints = false},
        SystemClock::Instance());
  }
  Status Register() {
    std::vector<connector::LayerMemory> layers;
    for (std::uint64_t layer = 0; layer < kLayers; ++layer) {
      layers.push_back(
          {.name = fmt::format("layers.{:02}", layer),
           .base = reinterpret_cast<std::uintptr_t>(memory_.get()) + layer * kBlocks * kLayerBytes,
           .axes = {
               {.kind = connector::AxisKind::kBlock, .count = kBlocks, .stride_bytes = kLayerBytes},
               {.kind = connector::AxisKind::kElement, .count = kLayerBytes, .stride_bytes = 1}}});
    }
    return worker_->Register(layers);
  }
  const connector::EngineShape& shape() const { return shape_; }
  connector::WorkerRole& role() { return *worker_; }

 private:
  const std::unique_ptr<char[]> memory_;  // NOLINT(modernize-avoid-c-arrays): a vector clears it
  connector::EngineShape shape_;
  std::unique_ptr<connector::WorkerRole> worker_;
};

std::vector<connector::ChunkPlace> Chunks(std::uint64_t count, std::uint64_t first = 0) {
  std::vector<connector::ChunkPlace> chunks;
  for (std::uint64_t i = 0; i < count; ++i) {
    chunks.push_back(
        {.chunk = i, .block = static_cast<BlockId>(first + i + 1), .hash = BenchHash(first + i)});
  }
  return chunks;
}

connector::Plan LoadPlan(connector::JobId job, std::uint64_t count) {
  connector::LoadOrder order{.job = job, .request = "r"};
  order.chunks = Chunks(count);
  connector::Plan plan;
  plan.loads.push_back(std::move(order));
  return plan;
}

// 8,192 tokens: the plan's bytes come from the scheduler; nothing is moved, as there is no pool.
Status PlanOfALoad(const BenchOptions& options) {
  Rank rank(/*threads=*/0);
  KVCOVE_TRY(rank.Register());
  connector::JobId job = 0;
  std::string bytes;
  std::vector<double> ours;
  const std::int64_t until = Now() + static_cast<std::int64_t>(options.seconds * 1e9);
  while (Now() < until) {
    // What is ordered in one turn is cancelled in the next.
    const connector::JobId last = job++;
    bytes = connector::Encode(LoadPlan(job, 512));
    const std::string cancel = connector::Encode(connector::Plan{.cancelled = {last}});
    rank.role().Begin(*connector::DecodePlan(cancel));
    (void)rank.role().TakeEnded();
    (void)rank.role().TakeReport();
    const std::int64_t start = Now();
    auto decoded = connector::DecodePlan(bytes);
    rank.role().Begin(std::move(*decoded));
    rank.role().FinishStep({});
    ours.push_back(static_cast<double>(Now() - start) / 1e3);
  }
  Row row{.bench = "plan_of_a_load",
          .form = "rank",
          .objects = 512,
          .object_bytes = kBlockBytes,
          .batch = 512,
          .limit = "none"};
  std::vector<double> none;
  row.extra = {{"layers", kLayers}, {"plan_bytes", bytes.size()}, {"least_us", Quantile(ours, 0)}};
  Summarize(row, 0, ours, none);
  Print(options, row);
  return {};
}

// Until the load of `count` blocks has ended.
Result<double> LoadOnce(Rank& rank, connector::JobId job, std::uint64_t count) {
  const std::int64_t start = Now();
  rank.role().Begin(LoadPlan(job, count));
  rank.role().FinishStep({});
  while (true) {
    const connector::Ended ended = rank.role().TakeEnded();
    if (!ended.failed.empty()) return Fail(Code::kInternal, "a load fails");
    if (!ended.loaded.empty()) return static_cast<double>(Now() - start) / 1e3;
    if (Now() - start > 10 * kSecond) return Fail(Code::kTimeout, "a load does not end");
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

// Two saves wait until a step of a second is computed; a load comes, and must not.
Status LoadBesideAStep(const BenchOptions& options, Pool& pool) {
  constexpr std::uint64_t kLoaded = 32;  // 20 MiB
  Rank rank(/*threads=*/2);
  KVCOVE_TRY(rank.Register());
  KVCOVE_ASSIGN(auto opened,
                pool.OpenSession({.name = rank.shape().Namespace(), .engine = "bench-ranks"}));
  const std::shared_ptr<Session> session = std::move(opened);
  rank.role().Connect(connector::StoreOf(session));
  KVCOVE_ASSIGN(const Token token, session->Capture({.timeout = kTimeout}));
  const auto save = [&](connector::JobId job, std::uint64_t count, std::uint64_t first) {
    connector::SaveOrder order{.job = job, .request = "s", .token = token};
    order.chunks = Chunks(count, first);
    connector::Plan plan;
    plan.saves.push_back(std::move(order));
    return plan;
  };
  rank.role().Begin(save(1, kLoaded, 0));
  rank.role().FinishStep({});
  while (rank.role().TakeReport().saves.empty()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::vector<double> ours;
  std::vector<double> theirs;
  connector::JobId job = 1;
  for (std::uint64_t turn = 0; turn < 7; ++turn) {
    KVCOVE_ASSIGN(const double alone, LoadOnce(rank, ++job, kLoaded));
    const std::int64_t computed_ns = Now() + kSecond;
    for (std::uint64_t i = 0; i < 2; ++i) {
      rank.role().Begin(save(++job, 8, 100 + 16 * turn + 8 * i));
      rank.role().FinishStep([computed_ns] {
        std::this_thread::sleep_for(std::chrono::nanoseconds(computed_ns - Now()));
      });
    }
    KVCOVE_ASSIGN(const double beside, LoadOnce(rank, ++job, kLoaded));
    if (Now() >= computed_ns) return Fail(Code::kInternal, "the load has waited for the step");
    std::this_thread::sleep_for(std::chrono::nanoseconds(computed_ns + kSecond / 10 - Now()));
    if (turn == 0) continue;  // touches the memory
    theirs.push_back(alone);
    ours.push_back(beside);
  }
  Row row{.bench = "load_beside_a_step",
          .form = "process",
          .objects = kLoaded,
          .object_bytes = kBlockBytes,
          .batch = kLoaded,
          .limit = "the load alone"};
  Summarize(row, kLoaded * kBlockBytes, ours, theirs);
  Print(options, row);
  return {};
}

// A pool that answers look-ups, and does not say a version's generation in time.
class SlowStore final : public connector::Store {
 public:
  explicit SlowStore(connector::Store& store) : store_(store) {}
  Result<Token> Capture(std::string_view /*version*/, std::chrono::milliseconds timeout) override {
    std::this_thread::sleep_for(timeout);
    return Fail(Code::kTimeout, "slow");
  }
  Status Exists(std::span<const std::string_view> keys, std::span<ItemResult> results,
                const CallOptions& options) override {
    return store_.Exists(keys, results, options);
  }
  Status Put(const Token& token, std::span<const PutItem> items, std::span<ItemResult> results,
             const CallOptions& options) override {
    return store_.Put(token, items, results, options);
  }
  Status Get(std::span<const GetItem> items, std::span<ItemResult> results,
             const CallOptions& options) override {
    return store_.Get(items, results, options);
  }
  Status Remove(std::span<const std::string_view> keys, std::span<ItemResult> results,
                const CallOptions& options) override {
    return store_.Remove(keys, results, options);
  }
  Status Reset(const ResetOptions& options) override { return store_.Reset(options); }
  Status NameVersions(std::span<const std::string> /*versions*/,
                      std::chrono::milliseconds timeout) override {
    std::this_thread::sleep_for(timeout);
    return Fail(Code::kTimeout, "slow");
  }
  bool closed() const override { return store_.closed(); }

 private:
  connector::Store& store_;
};

// 256 requests come at once, with weights whose generation the pool does not say.
Status RequestsAndASlowOwner(const BenchOptions& options, Pool& pool) {
  constexpr std::size_t kRequests = 256;
  constexpr std::uint64_t kChunks = 4;
  connector::SchedulerOptions scheduler{.engine = "bench-slow",
                                        .versions = connector::VersionSource::kEngine,
                                        .blocks = 2048,
                                        .bind_in_thread = true};
  scheduler.shape = {.model_name = "bench", .model = "bench-slow"};
  scheduler.shape.groups = {{.chunk_tokens = 16, .heads = 1}};
  KVCOVE_ASSIGN(auto session,
                pool.OpenSession({.name = scheduler.shape.Namespace(), .engine = "bench-slow"}));
  const auto fast = connector::StoreOf(std::move(session));
  SlowStore store(*fast);
  const Clock& clock = SystemClock::Instance();
  const auto runner = connector::RunHere(store, clock, std::chrono::seconds(60));
  connector::SchedulerRole role(scheduler, store, *runner, clock);
  role.SetVersion("new");
  const auto view = [](const std::string& id) {
    return connector::RequestView{
        .id = id,
        .tokens = 16 * kChunks + 1,
        .prompt_tokens = 16 * kChunks + 1,
        .hashes = kChunks,
        .read_hashes = [&id](std::size_t from, std::size_t to, connector::HashList& into) {
          for (std::size_t i = from; i < to; ++i) into.Add(id + std::to_string(i));
        }};
  };
  std::vector<std::string> waiting;
  for (std::size_t i = 0; i < kRequests; ++i) waiting.push_back(std::to_string(1000 + i));
  std::vector<double> held;
  double start_us = 0;  // of the step in which they start
  while (!waiting.empty()) {
    const std::size_t before = waiting.size();
    const std::int64_t start = Now();
    std::erase_if(waiting, [&](const std::string& id) {
      if (role.Matched(view(id), 0).ask_again) return false;
      role.Schedule(
          {.request = view(id),
           .scheduled_tokens = 16 * kChunks + 1,
           .started = true,
           .blocks = [] { return connector::BlockTables{std::vector<BlockId>{1, 2, 3, 4, 5}}; }});
      return true;
    });
    std::vector<BlockId> pins;
    (void)connector::Encode(role.BuildPlan(pins));
    held.push_back(static_cast<double>(Now() - start) / 1e3);
    if (waiting.size() != before) start_us = std::max(start_us, held.back());
    if (held.size() > 100'000) return Fail(Code::kTimeout, "the requests do not start");
  }
  Row row{.bench = "requests_and_a_slow_owner",
          .form = "process",
          .batch = kRequests,
          .limit = "none",
          .extra = {{"steps", held.size()},
                    {"held_us_most", Quantile(held, 1)},
                    {"held_us_start", start_us}}};
  std::vector<double> none;
  Summarize(row, 0, held, none);
  Print(options, row);
  return {};
}

}  // namespace

Status RunRanksBench(const BenchOptions& options, Pool& pool) {
  KVCOVE_TRY(PlanOfALoad(options));
  KVCOVE_TRY(LoadBesideAStep(options, pool));
  return RequestsAndASlowOwner(options, pool);
}

}  // namespace kvcove::lab
