// SPDX-License-Identifier: Apache-2.0
#include "lab/replay/engine.h"

#include <fmt/core.h>

#include <algorithm>

#include "kvcove/base/clock.h"
#include "kvcove/base/interrupt.h"
#include "kvcove/base/text.h"

namespace kvcove::lab {
namespace {

using connector::SchedulerStats;

constexpr std::uint32_t kTokensInModel = 8;  // that stand for a block of the trace
constexpr std::chrono::milliseconds kTimeout{5000};
constexpr std::int64_t kStuckNs = 120 * kSecond;
constexpr std::int64_t kLookNs = 20 * kMicrosecond;  // how often a wait for movers looks

std::string SaltOf(Weights weights) { return fmt::format("step-{}", weights); }

std::uint32_t Narrow(std::uint64_t count) { return static_cast<std::uint32_t>(count); }

}  // namespace

Result<Flow> ParseFlow(std::string_view name) {
  if (name == "verl") return Flow::kVerl;
  if (name == "prime-rl") return Flow::kPrimeRl;
  return Fail(Code::kInvalid, fmt::format("flow '{}': give verl or prime-rl", name));
}

Result<std::unique_ptr<Engine>> Engine::Open(const EngineOptions& options,
                                             std::unique_ptr<Pool> pool) {
  const std::uint64_t unit = 8ULL * kTokensInModel * options.tp;
  if (options.tp == 0 || options.block_bytes == 0 || options.block_bytes % unit != 0) {
    return Fail(Code::kInvalid, fmt::format("blocks of {} bytes on {} ranks: give a multiple of {}",
                                            options.block_bytes, options.tp, unit));
  }
  std::unique_ptr<Engine> engine(new Engine(options, std::move(pool)));
  const ModelShape shape{
      .tp = options.tp,
      .block_tokens = kTokensInModel,
      .layers = Narrow(options.block_bytes / unit),
      .blocks = Narrow(std::max(options.own_blocks, options.longest_request) + 2)};
  const connector::EngineShape engine_shape = ShapeOf(shape);
  KVCOVE_TRY(engine_shape.Check());
  const Clock& clock = SystemClock::Instance();
  const auto open = [&]() -> Result<std::unique_ptr<connector::Store>> {
    KVCOVE_ASSIGN(auto session, engine->pool_->OpenSession({.name = engine_shape.Namespace(),
                                                            .engine = options.engine,
                                                            .assume_weights = true}));
    return connector::StoreOf(std::move(session));
  };
  KVCOVE_ASSIGN(engine->store_, open());
  // Without holds: what is evicted is the policy's choice alone.
  engine->runner_ = connector::RunHere(*engine->store_, clock, std::chrono::milliseconds(0));
  const bool salt = options.flow == Flow::kPrimeRl;
  const auto versions =
      salt ? connector::VersionSource::kSalt : connector::VersionSource::kFingerprint;
  engine->scheduler_ = std::make_unique<connector::SchedulerRole>(
      connector::SchedulerOptions{.shape = engine_shape,
                                  .engine = options.engine,
                                  .versions = versions,
                                  .lookup_budget = kTimeout,
                                  .lookup_timeout = kTimeout},
      *engine->store_, *engine->runner_, clock);
  for (std::uint32_t rank = 0; rank < options.tp; ++rank) {
    engine->workers_.push_back(std::make_unique<connector::WorkerRole>(
        connector::WorkerOptions{.shape = engine_shape,
                                 .rank = {.tp = rank},
                                 .number = rank,
                                 .engine = options.engine,
                                 .threads = 1,
                                 .timeout = kTimeout,
                                 .pressure = std::chrono::milliseconds(0),
                                 .fingerprints = !salt},
        clock));
    KVCOVE_TRY(engine->workers_.back()->started());
    KVCOVE_ASSIGN(auto store, open());
    engine->workers_.back()->Connect(std::move(store), engine->pool_->form() == "cluster");
  }
  ModelOptions model{.shape = shape,
                     .name = options.engine,
                     .versions = versions,
                     .batch_tokens = 1 << 30,
                     .keeps_cache = options.own_blocks > 0};
  if (salt) {
    model.weights_of_salt = [](const std::string& name) {
      return static_cast<Weights>(LeadingNumber(std::string_view(name).substr(5)));
    };
  }
  model.saves_ordered = [raw = engine.get()](const std::string& plan) { raw->last_saves_ = plan; };
  ModelConnector roles{.scheduler = engine->scheduler_.get()};
  for (const auto& worker : engine->workers_) roles.workers.push_back(worker.get());
  engine->model_ = std::make_unique<ModelEngine>(model, std::vector<ModelConnector>{roles});
  KVCOVE_TRY(engine->model_->Start(engine->weights_));
  if (salt) engine->scheduler_->SetVersion(SaltOf(engine->weights_));
  return engine;
}

Status Engine::Drain() {
  const std::int64_t until = SystemClock::Instance().NowNs() + kStuckNs;
  while (model_->has_work()) {
    const std::uint64_t computed = model_->counts().computed_tokens;
    model_->Step();
    model_->Finish();
    // Only the movers are at work. To yield would cost a whole round of all that wants to run on a
    // host that is busy, for each look.
    if (model_->counts().computed_tokens == computed) SleepNs(kLookNs);
    if (SystemClock::Instance().NowNs() > until) {
      return Fail(Code::kTimeout, fmt::format("{}: a request is stuck", options_.engine));
    }
  }
  return {};
}

Served Engine::Serve(std::uint32_t number, const Request& request) {
  Served served{.request = number, .blocks = Narrow(request.blocks.size())};
  ModelRequest asked{.id = std::to_string(number),
                     .salt = options_.flow == Flow::kPrimeRl ? SaltOf(weights_) : std::string()};
  asked.tokens.reserve(request.blocks.size() * kTokensInModel);
  for (const std::uint64_t block : request.blocks) {
    for (std::uint32_t t = 0; t < kTokensInModel; ++t) {
      asked.tokens.push_back(Narrow(Mix64(block * kTokensInModel + t)));
    }
  }
  asked.generate = 0;
  const ModelCounts before = model_->counts();
  const SchedulerStats stats = scheduler_->stats();
  if (!asked.tokens.empty()) model_->Add(std::move(asked));
  if (!Drain()) ++served.failed;
  const ModelCounts& after = model_->counts();
  const SchedulerStats now = scheduler_->stats();
  const std::uint64_t ranks = options_.tp;
  served.own_hits = Narrow(after.own_hit_blocks - before.own_hit_blocks);
  served.pool_hits = Narrow(after.loaded_blocks - before.loaded_blocks);
  served.wrong_blocks = Narrow(after.wrong_blocks - before.wrong_blocks);
  served.stale_blocks = Narrow(after.stale_blocks - before.stale_blocks);
  served.stored = Narrow((now.ranks.saved_keys - stats.ranks.saved_keys) / ranks);
  served.failed += Narrow(now.ranks.refused_keys - stats.ranks.refused_keys);
  served.lookup_ns = now.lookup_ns - stats.lookup_ns;
  served.load_ns = (now.ranks.load_ns - stats.ranks.load_ns) / ranks;
  served.store_ns = (now.ranks.save_ns - stats.ranks.save_ns) / ranks;
  served.load_bytes = now.ranks.loaded_bytes - stats.ranks.loaded_bytes;
  served.store_bytes = now.ranks.saved_bytes - stats.ranks.saved_bytes;
  return served;
}

void Engine::SaveLate(Served& served) {
  const auto plan = connector::DecodePlan(last_saves_);
  if (!plan) return;
  connector::Plan late{.saves = plan->saves};
  for (auto& worker : workers_) {
    worker->Begin(late);
    worker->FinishStep({});
  }
  for (auto& worker : workers_) {
    connector::Report report;
    for (std::size_t ended = 0; ended < late.saves.size(); ended += report.saves.size()) {
      report = worker->TakeReport();
      served.late_rejected += Narrow(report.counters.stale_keys + report.counters.dropped_keys);
      served.late_accepted += Narrow(report.counters.saved_keys);
      SleepNs(kLookNs);
    }
  }
  last_saves_.clear();
}

Status Engine::UpdateWeights(Served& served) {
  ++weights_;
  if (options_.flow == Flow::kPrimeRl) {
    model_->ChangeWeights(weights_, /*told=*/false);
    scheduler_->SetVersion(SaltOf(weights_));
    return {};
  }
  if (!model_->PauseGeneration(ModelEngine::PauseMode::kAbort, /*clear_cache=*/true)) {
    return Fail(Code::kNotProven, "the reset of a pause failed");
  }
  // Before the ranks know of other weights: nothing but the token refuses it.
  if (options_.late_stores) SaveLate(served);
  model_->ChangeWeights(weights_, /*told=*/true);
  if (!model_->WakeUp()) return Fail(Code::kNotProven, "the reset of a wake-up failed");
  model_->ResumeGeneration();
  return {};
}

}  // namespace kvcove::lab
