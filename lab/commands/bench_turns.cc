// SPDX-License-Identifier: Apache-2.0
// `kvcove bench turns`: the next turn of a conversation reaches another engine at the moment when
// the first engine's request ends, while that engine still saves the turn's KV. The limit is the
// same look-up once all of it is stored.
#include <fmt/core.h>

#include <algorithm>
#include <thread>

#include "kvcove/base/size.h"
#include "kvcove/connector/scheduler/scheduler.h"
#include "kvcove/connector/worker/worker.h"
#include "lab/commands/bench_cluster.h"
#include "lab/commands/bench_connector.h"
#include "lab/commands/delay_proxy.h"

namespace kvcove::lab {
namespace {

constexpr std::uint64_t kBlockTokens = 16;
constexpr int kTurns = 3;
constexpr std::uint64_t kBusyBytes = 512 * kMiB;   // that a busy saver has yet to store
constexpr std::chrono::milliseconds kStep{1};      // pause between two steps of a scheduler
constexpr std::chrono::milliseconds kForward{20};  // forward pass of a step that computes a turn

struct TurnCase {
  std::string form;           // "process": one host; "cluster": two
  std::int64_t delay_ms = 0;  // of all TCP, each way
  bool saves_away = false;    // the first engine's host has no owner
  bool busy = false;
  std::uint64_t blocks = 0;
  std::uint64_t block_bytes = 0;
};

connector::EngineShape TurnShape(const TurnCase& turn) {
  connector::EngineShape shape{.model_name = "bench",
                               .model = fmt::format("bench-turns-{}", turn.block_bytes)};
  shape.groups = {{.chunk_tokens = kBlockTokens, .heads = 1}};
  return shape;
}

// The processes of one case.
class TurnHosts {
 public:
  static Result<std::unique_ptr<TurnHosts>> Start(const TurnCase& turn) {
    std::unique_ptr<TurnHosts> hosts(new TurnHosts);
    KVCOVE_ASSIGN(auto directory, cli::TemporaryDirectory::Make());
    hosts->directory_ = std::make_unique<cli::TemporaryDirectory>(std::move(directory));
    if (turn.form == "process") {
      KVCOVE_ASSIGN(hosts->daemon_,
                    cli::ServeProcess::Start(hosts->directory_->path() + "/kvcove.sock",
                                             {"--memory", "4GiB"}));
      hosts->addresses_ = {hosts->daemon_->address(), hosts->daemon_->address()};
      return hosts;
    }
    const std::int64_t delay_ns = turn.delay_ms * kMillisecond;
    KVCOVE_ASSIGN(const std::string master, hosts->Serve({"master", "--admin", "off", "--data",
                                                          hosts->directory_->path() + "/master"},
                                                         delay_ns, {}));
    for (int i = turn.saves_away ? 1 : 0; i < 2; ++i) {
      KVCOVE_TRY(hosts->Serve(
          {"owner", "--admin", "off", "--master", master, "--memory", "4GiB", "--socket",
           fmt::format("{}/owner{}/kvcove.sock", hosts->directory_->path(), i)},
          delay_ns, fmt::format("host{}", i)));
    }
    for (int i = 0; i < 2; ++i) {
      hosts->addresses_.push_back(fmt::format("kvcove://{}?host=host{}", master, i));
    }
    return hosts;
  }
  // The pool as engine `number`'s host sees it, once all owners are there.
  Result<std::unique_ptr<Pool>> Open(std::size_t number, std::uint64_t owners) const {
    for (int tries = 0; tries < 500; ++tries) {
      auto pool = Pool::Open(addresses_[number], kTimeout);
      const auto stat = pool ? (*pool)->Stat() : Result<PoolStat>(Fail(Code::kTimeout, ""));
      if (stat && stat->payload_bytes >= owners * 4 * kGiB) return pool;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return Fail(Code::kTimeout, "the owners did not start");
  }

 private:
  TurnHosts() = default;
  // Starts a server whose address for others is that of a proxy, which it returns.
  Result<std::string> Serve(std::vector<std::string> arguments, std::int64_t delay_ns,
                            const std::string& host) {
    rpc::Address listen{.host = "127.0.0.1", .port = 0};
    {
      KVCOVE_ASSIGN(const UniqueFd free_port, rpc::ListenTcp(listen));
    }
    KVCOVE_ASSIGN(auto proxy, DelayProxy::Open({.host = "127.0.0.1", .port = 0}, listen, delay_ns));
    const std::string address = proxy->address().ToString();
    arguments.insert(arguments.begin(), {"--log", "error"});
    arguments.insert(arguments.end(), {"--exit-with-parent", "--listen", listen.ToString()});
    cli::ProcessOptions options;
    if (!host.empty()) {
      arguments.insert(arguments.end(), {"--advertise", address});
      options.environment = {{"KVCOVE_HOST_ID", host}};
    }
    KVCOVE_ASSIGN(auto process, BenchProcess::Start(arguments, options));
    proxies_.push_back(std::move(proxy));
    processes_.push_back(std::move(process));
    return address;
  }

  std::unique_ptr<cli::TemporaryDirectory> directory_;
  std::unique_ptr<cli::ServeProcess> daemon_;
  std::vector<std::unique_ptr<DelayProxy>> proxies_;
  std::vector<std::unique_ptr<BenchProcess>> processes_;
  std::vector<std::string> addresses_;  // by engine
};

// An engine that computes turns and saves them: both roles, one rank.
class SavingEngine {
 public:
  static Result<std::unique_ptr<SavingEngine>> Open(const TurnCase& turn,
                                                    std::unique_ptr<Pool> pool) {
    std::unique_ptr<SavingEngine> engine(new SavingEngine(turn, std::move(pool)));
    const std::uint64_t blocks = std::max(turn.blocks, kBusyBytes / turn.block_bytes) + 1;
    engine->memory_.assign(blocks * turn.block_bytes, 'k');
    KVCOVE_TRY(
        engine->worker_.Register({{.name = "layers.00",
                                   .base = reinterpret_cast<std::uintptr_t>(engine->memory_.data()),
                                   .axes = {{.kind = connector::AxisKind::kBlock,
                                             .count = blocks,
                                             .stride_bytes = turn.block_bytes},
                                            {.kind = connector::AxisKind::kElement,
                                             .count = turn.block_bytes,
                                             .stride_bytes = 1}}}}));
    const auto open = [&]() -> Result<std::unique_ptr<connector::Store>> {
      KVCOVE_ASSIGN(auto session, engine->pool_->OpenSession({.name = TurnShape(turn).Namespace(),
                                                              .engine = "first",
                                                              .assume_weights = true}));
      return connector::StoreOf(std::move(session));
    };
    KVCOVE_ASSIGN(engine->store_, open());
    KVCOVE_ASSIGN(auto of_rank, open());
    engine->worker_.Connect(std::move(of_rank), turn.form == "cluster");
    const Clock& clock = SystemClock::Instance();
    engine->runner_ = connector::RunHere(*engine->store_, clock, std::chrono::milliseconds(0));
    connector::SchedulerOptions options{
        .engine = "first", .versions = connector::VersionSource::kNone, .bind_in_thread = true};
    options.shape = TurnShape(turn);
    engine->role_ = std::make_unique<connector::SchedulerRole>(options, *engine->store_,
                                                               *engine->runner_, clock);
    KVCOVE_TRY(engine->role_->started());
    // Until the pool has told its generation, requests store nothing.
    const connector::RequestView view{.id = "first", .tokens = 1, .prompt_tokens = 1};
    while (engine->role_->Matched(view, 0).ask_again) std::this_thread::sleep_for(kStep);
    engine->role_->Finished(view.id);
    return engine;
  }
  // Computes a request of `blocks` blocks in one step, with hashes from `first` on. It has finished
  // when this returns.
  Status Compute(std::uint64_t first, std::uint64_t blocks) {
    const std::string id = fmt::format("r{}", first);
    const connector::ScheduledPart part{
        .request = {.id = id,
                    .tokens = blocks * kBlockTokens,
                    .prompt_tokens = blocks * kBlockTokens,
                    .hashes = blocks,
                    .read_hashes =
                        [first](std::size_t from, std::size_t to, connector::HashList& into) {
                          for (std::size_t i = from; i < to; ++i) into.Add(BenchHash(first + i));
                        }},
        .scheduled_tokens = blocks * kBlockTokens,
        .started = true,
        .blocks = [blocks] {
          std::vector<connector::BlockId> table;
          for (std::uint64_t i = 0; i < blocks; ++i) {
            table.push_back(static_cast<connector::BlockId>(i + 1));
          }
          return connector::BlockTables{std::move(table)};
        }};
    role_->Schedule(part);
    std::vector<connector::BlockId> pins;
    connector::Plan plan = role_->BuildPlan(pins);
    if (plan.saves.empty()) return Fail(Code::kInternal, "a turn is not saved");
    left_ += plan.saves.size();
    worker_.Begin(std::move(plan));
    std::this_thread::sleep_for(kForward);
    worker_.FinishStep({});
    role_->Finished(id);
    return {};
  }
  // Waits until all saves have ended.
  Status Drain() {
    const std::int64_t until = Now() + 60 * kSecond;
    while (left_ > 0) {
      const connector::Report report = worker_.TakeReport();
      left_ -= report.saves.size();
      for (const connector::SaveDone& save : report.saves) {
        if (!save.missing.empty()) return Fail(Code::kInternal, "a save has left blocks out");
      }
      role_->OnReport(report);
      (void)role_->TakeUnpins();
      if (Now() > until) return Fail(Code::kTimeout, "a save does not end");
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    return {};
  }

 private:
  SavingEngine(const TurnCase& turn, std::unique_ptr<Pool> pool)
      : pool_(std::move(pool)),
        worker_({.shape = TurnShape(turn), .engine = "first", .fingerprints = false},
                SystemClock::Instance()) {}

  std::unique_ptr<Pool> pool_;
  std::unique_ptr<connector::Store> store_;
  std::unique_ptr<connector::LookupRunner> runner_;
  std::unique_ptr<connector::SchedulerRole> role_;
  std::vector<char> memory_;
  connector::WorkerRole worker_;
  std::size_t left_ = 0;
};

// The scheduler of the engine that gets the next turn.
class AskingEngine {
 public:
  static Result<std::unique_ptr<AskingEngine>> Open(const TurnCase& turn,
                                                    std::chrono::milliseconds save_wait,
                                                    std::unique_ptr<Pool> pool) {
    std::unique_ptr<AskingEngine> engine(new AskingEngine);
    engine->pool_ = std::move(pool);
    connector::SchedulerOptions options{.engine = "second",
                                        .versions = connector::VersionSource::kNone,
                                        .save_wait = save_wait,
                                        .blocks = 4096};
    options.shape = TurnShape(turn);
    KVCOVE_ASSIGN(auto session, engine->pool_->OpenSession({.name = options.shape.Namespace(),
                                                            .engine = "second",
                                                            .assume_weights = true}));
    engine->store_ = connector::StoreOf(std::move(session));
    const Clock& clock = SystemClock::Instance();
    const std::chrono::milliseconds hold(0);
    if (turn.form == "cluster") {
      KVCOVE_ASSIGN(engine->runner_,
                    connector::RunInThread(*engine->store_, clock, hold, options.lookup_timeout));
    } else {
      engine->runner_ = connector::RunHere(*engine->store_, clock, hold);
    }
    engine->role_ = std::make_unique<connector::SchedulerRole>(options, *engine->store_,
                                                               *engine->runner_, clock);
    return engine;
  }
  struct Answer {
    std::uint64_t blocks = 0;
    double ms = 0;
  };
  // Looks a prefix up, step after step, until the scheduler has its answer.
  Answer Ask(std::uint64_t first, std::uint64_t blocks) {
    const std::string id = fmt::format("r{}", ++requests_);
    const connector::RequestView view{
        .id = id,
        .tokens = blocks * kBlockTokens + 1,
        .prompt_tokens = blocks * kBlockTokens + 1,
        .hashes = blocks,
        .read_hashes = [first](std::size_t from, std::size_t to, connector::HashList& into) {
          for (std::size_t i = from; i < to; ++i) into.Add(BenchHash(first + i));
        }};
    const std::int64_t start = Now();
    connector::Match match = role_->Matched(view, 0);
    while (match.ask_again) {
      std::vector<connector::BlockId> pins;
      (void)role_->BuildPlan(pins);
      std::this_thread::sleep_for(kStep);
      match = role_->Matched(view, 0);
    }
    role_->Finished(id);
    return {.blocks = match.tokens / kBlockTokens, .ms = static_cast<double>(Now() - start) / 1e6};
  }

 private:
  AskingEngine() = default;

  std::unique_ptr<Pool> pool_;
  std::unique_ptr<connector::Store> store_;
  std::unique_ptr<connector::LookupRunner> runner_;
  std::unique_ptr<connector::SchedulerRole> role_;
  std::uint64_t requests_ = 0;
};

Status BenchTurn(const BenchOptions& options, const TurnCase& turn) {
  KVCOVE_ASSIGN(const auto hosts, TurnHosts::Start(turn));
  const std::uint64_t owners = turn.form == "process" || turn.saves_away ? 1 : 2;
  KVCOVE_ASSIGN(auto first_pool, hosts->Open(0, owners));
  KVCOVE_ASSIGN(auto second_pool, hosts->Open(1, owners));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  KVCOVE_ASSIGN(const auto first, SavingEngine::Open(turn, std::move(first_pool)));
  KVCOVE_ASSIGN(const auto second,
                AskingEngine::Open(turn, std::chrono::milliseconds(options.save_wait_ms),
                                   std::move(second_pool)));
  // Connects, binds, and touches memory.
  KVCOVE_TRY(first->Compute(1ULL << 40, turn.blocks));
  KVCOVE_TRY(first->Drain());
  (void)second->Ask(1ULL << 40, turn.blocks);

  std::vector<double> shares, waited_ms, saved_ms, answer_ms;
  for (std::uint64_t i = 0; i < kTurns; ++i) {
    const std::uint64_t hashes = (i + 1) << 32;
    if (turn.busy) {
      KVCOVE_TRY(first->Compute(hashes + (1ULL << 31), kBusyBytes / turn.block_bytes));
    }
    const std::int64_t start = Now();
    KVCOVE_TRY(first->Compute(hashes, turn.blocks));
    const AskingEngine::Answer at_once = second->Ask(hashes, turn.blocks);
    KVCOVE_TRY(first->Drain());
    saved_ms.push_back(static_cast<double>(Now() - start) / 1e6);
    std::this_thread::sleep_for(std::chrono::nanoseconds(start + kSecond - Now()));
    const AskingEngine::Answer later = second->Ask(hashes, turn.blocks);
    if (later.blocks != turn.blocks) return Fail(Code::kInternal, "a saved turn is not found");
    shares.push_back(static_cast<double>(at_once.blocks) / static_cast<double>(later.blocks));
    waited_ms.push_back(at_once.ms);
    answer_ms.push_back(later.ms);
  }
  Row row{.bench = "next_turn",
          .form = turn.form,
          .objects = turn.blocks,
          .object_bytes = turn.block_bytes,
          .batch = turn.blocks,
          .limit = "the look-up after a second",
          .extra = {{"delay_ms", turn.delay_ms},
                    {"saves_to", turn.saves_away ? "another host" : "this host"},
                    {"saver", turn.busy ? "busy" : "idle"},
                    {"save_wait_ms", options.save_wait_ms},
                    {"share", Quantile(shares, 0.5)},
                    {"share_least", Quantile(shares, 0)},
                    {"saved_ms", Quantile(saved_ms, 0.5)}}};
  for (std::vector<double>* times : {&waited_ms, &answer_ms}) {
    for (double& ms : *times) ms *= 1e3;
  }
  Summarize(row, 0, waited_ms, answer_ms);
  Print(options, row);
  return {};
}

}  // namespace

Result<int> RunTurnsBench(const BenchOptions& options) {
  struct Hosts {
    std::string form;
    std::int64_t delay_ms;
    bool saves_away;
  };
  for (const Hosts& hosts : {Hosts{"process", 0, false}, Hosts{"cluster", 0, false},
                             Hosts{"cluster", 5, false}, Hosts{"cluster", 5, true}}) {
    for (const bool busy : {false, true}) {
      for (const auto& [blocks, bytes] : {std::pair{256ULL, 64 * kKiB}, {512ULL, kMiB}}) {
        KVCOVE_TRY(BenchTurn(options, {.form = hosts.form,
                                       .delay_ms = hosts.delay_ms,
                                       .saves_away = hosts.saves_away,
                                       .busy = busy,
                                       .blocks = blocks,
                                       .block_bytes = bytes}));
      }
    }
  }
  return 0;
}

}  // namespace kvcove::lab
