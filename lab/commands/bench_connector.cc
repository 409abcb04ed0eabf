// SPDX-License-Identifier: Apache-2.0
// `kvcove bench connector`: what an engine's scheduler pays for look-ups, steps and resets. The
// limit of a look-up is the pool's own Exists over the same keys.
#include "lab/commands/bench_connector.h"

#include <fmt/core.h>
#include <time.h>

#include <cstring>

#include "kvcove/connector/scheduler/scheduler.h"

namespace kvcove::lab {
namespace {

constexpr std::uint64_t kChunks = 4096;
constexpr std::uint32_t kTokens = 16;

std::int64_t ThreadCpuNs() {
  timespec now{};
  (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

// A scheduler role on a pool that has all of one request's chunks.
class Bench {
 public:
  static Result<std::unique_ptr<Bench>> Open(Pool& pool, std::uint32_t tp) {
    std::unique_ptr<Bench> bench(new Bench);
    bench->options_.shape = {.model_name = "bench", .model = "bench", .tp = tp};
    bench->options_.shape.groups = {{.chunk_tokens = kTokens, .heads = tp}};
    bench->options_.versions = connector::VersionSource::kNone;
    bench->options_.lookup_budget = std::chrono::milliseconds(5);
    KVCOVE_ASSIGN(auto session, pool.OpenSession({.name = bench->options_.shape.Namespace(),
                                                  .engine = fmt::format("bench-{}", tp)}));
    bench->session_ = std::move(session);
    KVCOVE_TRY(bench->Fill());
    bench->store_ = connector::StoreOf(bench->session_);
    bench->runner_ =
        connector::RunHere(*bench->store_, SystemClock::Instance(), std::chrono::seconds(60));
    bench->role_ = std::make_unique<connector::SchedulerRole>(
        bench->options_, *bench->store_, *bench->runner_, SystemClock::Instance());
    return bench;
  }

  connector::RequestView View(std::string_view id, std::uint64_t chunks) const {
    return {.id = id,
            .tokens = chunks * kTokens + 1,
            .prompt_tokens = chunks * kTokens + 1,
            .hashes = chunks,
            .read_hashes = Hashes(0)};
  }
  // All but the first `less` bytes of each hash.
  std::function<void(std::size_t, std::size_t, connector::HashList&)> Hashes(
      std::size_t less) const {
    return [this, less](std::size_t from, std::size_t to, connector::HashList& into) {
      for (std::size_t i = from; i < to; ++i) into.Add(std::string_view(hashes_[i]).substr(less));
    };
  }
  // How long the scheduler's thread was held by single calls, and the processor's time of them: on
  // a host with few cores the first is the second and what others took meanwhile.
  struct Held {
    std::vector<double> us, cpu_us;
  };
  // Of all chunks, or (`miss`) of a request whose first one is not there. Returns the time until
  // the answer, all attempts together.
  std::int64_t Lookup(bool miss, Held& held) {
    connector::RequestView view = View("r", kChunks);
    if (miss) view.read_hashes = Hashes(1);
    std::int64_t total = 0;
    connector::Match match{.ask_again = true};
    while (match.ask_again) {
      const std::int64_t start = Now();
      const std::int64_t cpu_start = ThreadCpuNs();
      match = role_->Matched(view, 0);
      held.cpu_us.push_back(static_cast<double>(ThreadCpuNs() - cpu_start) / 1e3);
      const std::int64_t took = Now() - start;
      held.us.push_back(static_cast<double>(took) / 1e3);
      total += took;
      std::vector<connector::BlockId> pins;
      if (match.ask_again) (void)role_->BuildPlan(pins);
    }
    found_ = match.tokens;
    role_->Finished("r");
    std::vector<connector::BlockId> pins;
    (void)role_->BuildPlan(pins);
    return total;
  }
  std::uint64_t found() const { return found_; }
  // The same keys, asked for at once.
  void Exists() {
    std::vector<ItemResult> results(views_.size());
    (void)session_->Exists(views_, results,
                           {.timeout = kTimeout, .hold = std::chrono::seconds(60)});
  }
  // A step of `requests` that decode, none of which has anything to load or save. Each is at
  // another token of its block; the role is told of those that begin one or fill one.
  void Step(std::uint32_t requests, std::uint64_t at) {
    for (std::uint32_t i = 0; i < requests; ++i) {
      const std::uint64_t computed = 4 * kTokens + i + at;
      if (at != 0 && !connector::TouchesChunks(computed, 1, kTokens)) continue;
      const std::string id = std::to_string(i);
      role_->Schedule({.request = View(id, 4),
                       .computed_tokens = computed,
                       .scheduled_tokens = 1,
                       .started = at == 0,
                       .blocks = [] {
                         return connector::BlockTables{std::vector<connector::BlockId>(512, 1)};
                       }});
    }
    std::vector<connector::BlockId> pins;
    (void)connector::Encode(role_->BuildPlan(pins));
    role_->OnReport({});
  }

 private:
  Bench() = default;
  Status Fill() {
    const connector::Keys keys(options_.shape);
    for (std::uint64_t i = 0; i < kChunks; ++i) hashes_.push_back(BenchHash(i));
    for (const std::string& hash : hashes_) {
      for (const std::string& tag : keys.Tags(0)) {
        connector::AppendKey(tag, hash, keys_.emplace_back());
      }
    }
    const std::string value(64, 'v');
    const ConstBuffer piece{.data = value.data(), .size = value.size()};
    constexpr std::size_t kBatch = 1024;
    for (std::size_t from = 0; from < keys_.size(); from += kBatch) {
      std::vector<PutItem> items;
      for (std::size_t i = from; i < std::min(from + kBatch, keys_.size()); ++i) {
        items.push_back({.key = keys_[i], .value = {&piece, 1}});
      }
      std::vector<ItemResult> results(items.size());
      KVCOVE_TRY(session_->Put(items, results, {.timeout = kTimeout}));
    }
    views_.assign(keys_.begin(), keys_.end());
    return {};
  }

  connector::SchedulerOptions options_;
  std::shared_ptr<Session> session_;
  std::unique_ptr<connector::Store> store_;
  std::unique_ptr<connector::LookupRunner> runner_;
  std::unique_ptr<connector::SchedulerRole> role_;
  std::vector<std::string> hashes_, keys_;
  std::vector<std::string_view> views_;
  std::uint64_t found_ = 0;
};

}  // namespace

std::string BenchHash(std::uint64_t i) {
  std::string hash(32, '\0');
  for (std::size_t word = 0; word < 4; ++word) {
    const std::uint64_t mixed = Mix64(i * 4 + word);
    std::memcpy(hash.data() + 8 * word, &mixed, 8);
  }
  return hash;
}

Result<int> RunConnectorBench(const BenchOptions& options) {
  KVCOVE_ASSIGN(const cli::TemporaryDirectory directory, cli::TemporaryDirectory::Make());
  KVCOVE_ASSIGN(auto daemon, cli::ServeProcess::Start(directory.path() + "/kvcove.sock",
                                                      {"--memory", "256MiB"}));
  KVCOVE_ASSIGN(auto pool, Pool::Open(daemon->address(), kTimeout));
  for (const std::uint32_t tp : {1U, 8U}) {
    KVCOVE_ASSIGN(const auto bench, Bench::Open(*pool, tp));
    for (const bool miss : {false, true}) {
      Row row{.bench = miss ? "lookup_first_misses" : "lookup_all_hit",
              .form = "process",
              .objects = kChunks * tp,
              .object_bytes = 64,
              .batch = kChunks,
              .limit = "exists of the same keys"};
      Bench::Held held;
      std::vector<double> total_us;
      Measure(
          options, row, miss ? 0 : kChunks * tp * row.object_bytes,
          [&](std::size_t) {
            total_us.push_back(static_cast<double>(bench->Lookup(miss, held)) / 1e3);
          },
          [&](std::size_t) { bench->Exists(); });
      if (bench->found() != (miss ? 0 : kChunks * kTokens)) {
        return Fail(Code::kInternal, "the look-up does not find what is there");
      }
      row.extra = {{"tp", tp},
                   {"scheduler_us_p50", Quantile(total_us, 0.5)},
                   {"held_us_p99", Quantile(held.us, 0.99)},
                   {"held_us_most", Quantile(held.us, 1.0)},
                   {"held_cpu_us_most", Quantile(held.cpu_us, 1.0)}};
      Print(options, row);
    }
    Row row{.bench = "step_of_256_decoding",
            .form = "process",
            .batch = 256,
            .limit = "none",
            .extra = {{"tp", tp}}};
    Measure(
        options, row, 0, [&](std::size_t turn) { bench->Step(256, turn % 400); },
        [](std::size_t) {});
    Print(options, row);
  }
  KVCOVE_TRY(RunRanksBench(options, *pool));
  return 0;
}

}  // namespace kvcove::lab
