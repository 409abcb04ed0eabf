// SPDX-License-Identifier: Apache-2.0
#include "lab/replay/replay.h"

#include <fmt/core.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "kvcove/base/clock.h"
#include "kvcove/base/size.h"
#include "kvcove/policy/policy.h"
#include "kvcove/server/daemon.h"
#include "lab/commands/commands.h"
#include "lab/replay/report.h"

namespace kvcove::lab {
namespace {

struct ReplayFlags {
  std::string trace;
  std::string pool;                 // empty: a serve of its own
  std::vector<std::string> launch;  // before each engine's command, in turn
  cli::SizeOption memory{""};       // empty: blocks x block bytes
  std::uint64_t blocks = 10000;
  cli::SizeOption block_bytes{"64KiB"};
  std::string policy = "default";
  std::string disk;
  std::string disk_admit = "policy";
  std::string disk_write_rate = "0";
  std::uint32_t engines = 4;
  std::uint32_t tp = 1;
  std::string flow = "verl";
  std::uint64_t own_blocks = 1000;
  std::uint32_t update_every = 0;
  double time_scale = 0;
  std::size_t limit = 0;
  bool quick = false;
  bool json = false;
  std::string report;
};

struct EngineArguments {
  std::string trace;
  std::string pool;
  std::string engine;
  std::size_t limit = 0;
  std::uint64_t own_blocks = 0;
  std::uint64_t block_bytes = 0;
  std::uint32_t tp = 1;
  std::string flow;
  bool late_stores = false;
};

// Of one engine, wherever it runs.
Result<EngineOptions> OptionsOf(const EngineArguments& arguments,
                                const std::vector<Request>& requests) {
  KVCOVE_ASSIGN(const Flow flow, ParseFlow(arguments.flow));
  std::size_t longest = 1;
  for (const Request& request : requests) {
    longest = std::max(longest, request.blocks.size());
  }
  return EngineOptions{.engine = arguments.engine,
                       .tp = arguments.tp,
                       .own_blocks = arguments.own_blocks,
                       .longest_request = longest,
                       .block_bytes = arguments.block_bytes,
                       .flow = flow,
                       .late_stores = arguments.late_stores};
}

std::size_t LimitOf(std::size_t limit) { return limit == 0 ? ~std::size_t{0} : limit; }

Result<int> RunEngine(const EngineArguments& arguments) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  KVCOVE_ASSIGN(const auto requests, ReadTrace(arguments.trace, LimitOf(arguments.limit)));
  KVCOVE_ASSIGN(auto pool, Pool::Open(arguments.pool, std::chrono::seconds(10)));
  KVCOVE_ASSIGN(const EngineOptions options, OptionsOf(arguments, requests));
  KVCOVE_ASSIGN(auto engine, Engine::Open(options, std::move(pool)));
  KVCOVE_TRY(ServeEngine(*engine, requests, kEngineSocket));
  return 0;
}

// Tells where it is once a second at most; a line that is written over where somebody watches.
class Progress {
 public:
  void operator()(std::size_t done, std::size_t all) {
    const std::int64_t now = SystemClock::Instance().NowNs();
    if (done < all && now - last_ns_ < (terminal_ ? kSecond / 4 : 5 * kSecond)) return;
    last_ns_ = now;
    fmt::print(stderr, "{}  {:>6} of {} requests ({:.0f} %){}", terminal_ ? "\r" : "", done, all,
               100.0 * static_cast<double>(done) / static_cast<double>(all),
               terminal_ && done < all ? "" : "\n");
    std::fflush(stderr);
  }

 private:
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  std::int64_t last_ns_ = SystemClock::Instance().NowNs();
};

struct Baselines {
  double own = 0;
  double lru = 0;
  double same = 0;  // with the pool's policy
  double optimum = 0;
};

Result<Baselines> Simulate(const ReplayFlags& options, std::uint64_t shared_blocks,
                           const std::vector<Request>& requests) {
  const auto chains = ChainsOf(requests);
  KVCOVE_ASSIGN(const TwoLevelCount lru, SimulateTwoLevels("lru", chains, options.engines,
                                                           options.own_blocks, shared_blocks));
  KVCOVE_ASSIGN(const TwoLevelCount same, SimulateTwoLevels(options.policy, chains, options.engines,
                                                            options.own_blocks, shared_blocks));
  // One clairvoyant cache with the room of all caches together: nothing with this room can find
  // more.
  const HitCount optimum =
      SimulateOptimum(chains, shared_blocks + options.own_blocks * options.engines);
  return Baselines{.own = lru.own.ratio(),
                   .lru = lru.together.ratio(),
                   .same = same.together.ratio(),
                   .optimum = optimum.ratio()};
}

nlohmann::json ToJson(const TierResult& tiers) {
  return {{"blocks", tiers.disk_blocks},
          {"hit_ratio_memory", tiers.memory_ratio()},
          {"hit_ratio_disk", tiers.disk_ratio()},
          {"hit_ratio_simulated", tiers.simulated},
          {"evicted", tiers.evicted},
          {"written", tiers.written},
          {"refused", tiers.refused},
          {"dropped", tiers.dropped},
          {"written_of_evicted", tiers.written_ratio()},
          {"written_of_evicted_simulated", tiers.simulated_written},
          {"put_bytes", tiers.put_bytes},
          {"written_bytes", tiers.written_bytes},
          {"write_amplification", tiers.write_amplification()}};
}

nlohmann::json ToJson(const ReplayResult& result, const Baselines& baselines) {
  const auto latency = [](const std::vector<double>& sorted) {
    const Percentiles p = PercentilesOf(sorted);
    return nlohmann::json{{"p50_us", p.p50_us}, {"p99_us", p.p99_us}, {"count", sorted.size()}};
  };
  return {{"schema", "kvcove.replay.1"},
          {"requests", result.requests},
          {"blocks", result.blocks},
          {"hit_ratio", result.hit_ratio()},
          {"hit_ratio_own", baselines.own},
          {"hit_ratio_lru", baselines.lru},
          {"hit_ratio_simulated", baselines.same},
          {"hit_ratio_optimum", baselines.optimum},
          {"own_hits", result.own_hits},
          {"pool_hits", result.pool_hits},
          {"stored_blocks", result.stored},
          {"failed_blocks", result.failed},
          {"wrong_bytes", result.wrong_blocks},
          {"stale_hits", result.stale_blocks},
          {"weight_updates", result.updates},
          {"late_stores_rejected", result.late_rejected},
          {"late_stores_accepted", result.late_accepted},
          {"prefill_tokens", result.tokens_asked},
          {"prefill_tokens_saved", result.tokens_saved},
          {"seconds", result.seconds},
          {"bytes", {{"loaded", result.load_bytes}, {"stored", result.store_bytes}}},
          {"latencies",
           {{"lookup", latency(result.lookup_us)},
            {"load", latency(result.load_us)},
            {"store", latency(result.store_us)}}}};
}

void PrintResult(const ReplayFlags& options, const ReplayResult& result,
                 const Baselines& baselines) {
  const auto row = [](const char* name, double ratio) {
    fmt::print("  {:<34} {:>7.2f} %\n", name, 100 * ratio);
  };
  const auto latency = [](const char* name, const std::vector<double>& sorted) {
    const Percentiles p = PercentilesOf(sorted);
    fmt::print("  {:<34} {:>9.1f} us   p99 {:>10.1f} us\n", name, p.p50_us, p.p99_us);
  };
  fmt::print("\n{} requests, {} blocks of {}, in {:.1f} s\n", result.requests, result.blocks,
             options.block_bytes.text, result.seconds);
  fmt::print("Hit ratio (blocks of the longest leading run that was there, over all blocks)\n");
  row("own caches only (simulated)", baselines.own);
  row("with a shared LRU (simulated)", baselines.lru);
  row("with this policy (simulated)", baselines.same);
  row("with kvcove (real bytes)", result.hit_ratio());
  row("optimum (knows the future)", baselines.optimum);
  fmt::print("Bytes\n  {:<34} {:>9}\n  {:<34} {:>9}\n", "loaded and verified",
             FormatSize(result.load_bytes), "stored", FormatSize(result.store_bytes));
  fmt::print("Latency of a request's part (p50)\n");
  latency("lookup", result.lookup_us);
  latency("load", result.load_us);
  latency("store", result.store_us);
  fmt::print("Prefill tokens saved                 {:>9} of {} ({:.1f} %)\n", result.tokens_saved,
             result.tokens_asked,
             100.0 * static_cast<double>(result.tokens_saved) /
                 static_cast<double>(std::max<std::uint64_t>(result.tokens_asked, 1)));
  if (result.updates > 0) {
    double longest = 0;
    for (const double ms : result.update_ms) longest = std::max(longest, ms);
    fmt::print("Weight updates                       {:>9} (longest {:.1f} ms)\n", result.updates,
               longest);
    fmt::print("Stores begun before a reset, refused {:>9} (let in: {})\n", result.late_rejected,
               result.late_accepted);
  }
  if (result.failed > 0) fmt::print("Blocks whose call failed             {:>9}\n", result.failed);
  fmt::print("Wrong blocks                         {:>9}\n", result.wrong_blocks);
  fmt::print("Stale hits                           {:>9}\n", result.stale_blocks);
}

void PrintTiers(const TierResult& tiers) {
  fmt::print("Disk of {} blocks\n", tiers.disk_blocks);
  const auto row = [](const char* name, double ratio) {
    fmt::print("  {:<34} {:>7.2f} %\n", name, 100 * ratio);
  };
  row("found in memory", tiers.memory_ratio());
  row("found on the disk", tiers.disk_ratio());
  row("both, no own caches (simulated)", tiers.simulated);
  row("written, of the evicted", tiers.written_ratio());
  row("the same, simulated", tiers.simulated_written);
  fmt::print("  {:<34} {:>9}\n  {:<34} {:>9.3f}\n", "values written", FormatSize(tiers.put_bytes),
             "write amplification", tiers.write_amplification());
  if (tiers.dropped > 0) {
    fmt::print("  {:<34} {:>9}\n", "dropped: the disk was too slow", tiers.dropped);
  }
}

// The file of a replay's disk; it goes with this object.
class ReplayDisk {
 public:
  // Nothing for an empty text. Errors: kInvalid.
  static Result<std::unique_ptr<ReplayDisk>> Make(const std::string& text) {
    if (text.empty()) return std::unique_ptr<ReplayDisk>();
    KVCOVE_ASSIGN(const disklog::DiskSpec spec, owner::ParseDisk("--disk", text));
    if (!std::filesystem::is_directory(spec.path)) {
      return Fail(Code::kInvalid, fmt::format("--disk: '{}' is no directory; the replay makes a "
                                              "file of its own in it, and removes it",
                                              spec.path));
    }
    auto disk = std::make_unique<ReplayDisk>();
    disk->path_ = fmt::format("{}/kvcove-replay-{}.disk", spec.path, getpid());
    disk->size_bytes_ = spec.size_bytes;
    return disk;
  }
  ReplayDisk() = default;
  ReplayDisk(const ReplayDisk&) = delete;
  ReplayDisk& operator=(const ReplayDisk&) = delete;
  ~ReplayDisk() { unlink(path_.c_str()); }
  std::string option() const { return fmt::format("{}:{}", path_, size_bytes_); }

 private:
  std::string path_;
  std::uint64_t size_bytes_ = 0;
};

Result<std::unique_ptr<cli::ServeProcess>> StartDaemon(const ReplayFlags& options,
                                                       const std::string& directory,
                                                       std::uint64_t memory,
                                                       const ReplayDisk* disk) {
  std::vector<std::string> arguments = {"--memory", std::to_string(memory),
                                        "--policy", options.policy,
                                        "--data",   directory + "/data"};
  if (disk != nullptr) {
    for (const std::string& word :
         {std::string("--disk"), disk->option(), std::string("--disk-admit"), options.disk_admit,
          std::string("--disk-write-rate"), options.disk_write_rate}) {
      arguments.push_back(word);
    }
  }
  return cli::ServeProcess::Start(directory + "/kvcove.sock", arguments);
}

constexpr std::int64_t kWrittenWithinNs = 30 * kSecond;

// After the replay, while the pool is there: what waits for the disk is written first.
Result<TierResult> ReadTiers(const ReplayFlags& options, const std::string& address,
                             std::uint64_t block_bytes, const ReplayResult& result) {
  KVCOVE_ASSIGN(const auto pool, Pool::Open(address, std::chrono::seconds(10)));
  const Clock& clock = SystemClock::Instance();
  const std::int64_t until_ns = clock.NowNs() + kWrittenWithinNs;
  KVCOVE_ASSIGN(PoolStat stat, pool->Stat());
  while (stat.disk_queued_bytes > 0 && stat.disk_aside == 0 && clock.NowNs() < until_ns) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    KVCOVE_ASSIGN(stat, pool->Stat());
  }
  return TiersOf(stat, result, options.tp, block_bytes);
}

Result<std::vector<std::unique_ptr<EngineLink>>> StartEngines(
    const ReplayFlags& options, const std::string& address, std::uint64_t block_bytes,
    const std::vector<Request>& requests) {
  std::vector<std::unique_ptr<EngineLink>> engines;
  for (std::uint32_t i = 0; i < options.engines; ++i) {
    const std::string name = fmt::format("engine-{}", i);
    if (address.starts_with("embedded")) {
      KVCOVE_ASSIGN(auto pool, Pool::Open(address, std::chrono::seconds(10)));
      KVCOVE_ASSIGN(const EngineOptions engine_options,
                    OptionsOf({.engine = name,
                               .own_blocks = options.own_blocks,
                               .block_bytes = block_bytes,
                               .tp = options.tp,
                               .flow = options.flow,
                               .late_stores = options.update_every > 0},
                              requests));
      KVCOVE_ASSIGN(auto engine, Engine::Open(engine_options, std::move(pool)));
      engines.push_back(LinkTo(std::move(engine), requests));
      continue;
    }
    std::vector<std::string> arguments;
    if (!options.launch.empty()) {
      arguments = CLI::detail::split_up(options.launch[i % options.launch.size()]);
    }
    for (const std::string& word :
         {cli::SelfPath(), std::string("--log"), std::string("warn"), std::string("replay-engine"),
          options.trace, std::string("--pool"), address, std::string("--engine"), name,
          std::string("--limit"), std::to_string(options.limit), std::string("--own-blocks"),
          std::to_string(options.own_blocks), std::string("--block-bytes"),
          std::to_string(block_bytes), std::string("--tp"), std::to_string(options.tp),
          std::string("--flow"), options.flow}) {
      arguments.push_back(word);
    }
    if (options.update_every > 0) arguments.emplace_back("--late-stores");
    KVCOVE_ASSIGN(auto link, StartEngineProcess(arguments));
    engines.push_back(std::move(link));
  }
  return engines;
}

Result<int> Run(ReplayFlags options) {
  if (options.quick) {
    options.engines = 1;
    if (options.limit == 0) options.limit = 2000;
  }
  if (options.engines == 0 || options.engines > 64) {
    return Fail(Code::kInvalid, "--engines: give 1 to 64");
  }
  KVCOVE_ASSIGN(const std::uint64_t block_bytes, options.block_bytes.Bytes("--block-bytes"));
  if (options.tp == 0 || options.tp > 64) return Fail(Code::kInvalid, "--tp: give 1 to 64");
  if (block_bytes == 0 || block_bytes % (64ULL * options.tp) != 0 || block_bytes > 256 * kMiB) {
    return Fail(Code::kInvalid,
                fmt::format("--block-bytes: give a multiple of {} (64 for each rank), at most "
                            "256MiB",
                            64 * options.tp));
  }
  KVCOVE_TRY(ParseFlow(options.flow));
  // Each rank's part is an object, in granules of 64 bytes.
  std::uint64_t memory = options.blocks * block_bytes;
  if (!options.memory.text.empty()) {
    KVCOVE_ASSIGN(memory, options.memory.Bytes("--memory"));
  }
  KVCOVE_ASSIGN(const auto requests, ReadTrace(options.trace, LimitOf(options.limit)));
  KVCOVE_ASSIGN(const cli::TemporaryDirectory directory, cli::TemporaryDirectory::Make());
  if (!options.disk.empty() && !options.pool.empty()) {
    return Fail(Code::kInvalid, "--disk: the pool of --pool has its own disk, or none");
  }
  KVCOVE_ASSIGN(const auto disk, ReplayDisk::Make(options.disk));
  std::unique_ptr<cli::ServeProcess> daemon;
  std::string address = options.pool;
  if (options.quick && address.empty() && disk == nullptr) {
    address = fmt::format("embedded:?memory={}&policy={}", memory, options.policy);
  } else if (address.empty()) {
    KVCOVE_ASSIGN(daemon, StartDaemon(options, directory.path(), memory, disk.get()));
    address = daemon->address();
  }
  if (options.engines > 1 && address.starts_with("embedded")) {
    return Fail(Code::kInvalid,
                "an embedded pool serves one engine; use --engines 1 or another pool");
  }
  fmt::print(stderr, "Replaying {} requests of {} with {} engine{} on {} ({}, policy {}){}\n",
             requests.size(), options.trace, options.engines, options.engines == 1 ? "" : "s",
             address.starts_with("embedded")  ? "an embedded pool"
             : address.starts_with("kvcove:") ? "a cluster"
                                              : "one host's pool",
             FormatSize(memory), options.policy,
             options.update_every > 0
                 ? fmt::format(", new weights every {} requests", options.update_every)
                 : "");
  KVCOVE_ASSIGN(auto engines, StartEngines(options, address, block_bytes, requests));
  KVCOVE_ASSIGN(const ReplayResult result, Replay(requests, engines,
                                                  {.update_every = options.update_every,
                                                   .time_scale = options.time_scale,
                                                   .progress = Progress()}));
  engines.clear();
  std::optional<TierResult> tiers;
  if (disk != nullptr) {
    KVCOVE_ASSIGN(tiers, ReadTiers(options, address, block_bytes, result));
    KVCOVE_TRY(SimulateTiers(ChainsOf(requests), options.policy, memory / block_bytes,
                             options.disk_admit == "policy", *tiers));
  }
  daemon.reset();
  KVCOVE_ASSIGN(const Baselines baselines, Simulate(options, memory / block_bytes, requests));
  if (options.json) {
    nlohmann::json json = ToJson(result, baselines);
    if (tiers) json["disk"] = ToJson(*tiers);
    fmt::print("{}\n", json.dump());
  } else {
    PrintResult(options, result, baselines);
    if (tiers) PrintTiers(*tiers);
  }
  if (!options.report.empty()) {
    KVCOVE_TRY(WriteReport(options.report,
                           {.title = options.trace,
                            .engines = options.engines,
                            .own_blocks = options.own_blocks,
                            .shared_blocks = memory / block_bytes,
                            .block_bytes = block_bytes,
                            .policy = options.policy,
                            .hit_ratio_own = baselines.own,
                            .hit_ratio_lru = baselines.lru,
                            .hit_ratio_optimum = baselines.optimum,
                            .tiers = tiers},
                           result, ChainsOf(requests)));
    fmt::print(stderr, "Report: {}\n", options.report);
  }
  const bool right =
      result.wrong_blocks == 0 && result.stale_blocks == 0 && result.late_accepted == 0;
  if (!right) fmt::print(stderr, "kvcove: WRONG OR STALE BYTES WERE READ\n");
  return right ? 0 : 1;
}

}  // namespace

void AddReplay(CLI::App& app, cli::Action& chosen) {
  auto options = std::make_shared<ReplayFlags>();
  CLI::App* replay = app.add_subcommand(
      "replay", "Replay a request trace through a real pool with real bytes, and verify each.");
  replay->add_option("TRACE", options->trace, "file of a request trace (JSON lines)")->required();
  replay->add_option("--pool", options->pool,
                     "use this pool instead of starting one (unix:/path, kvcove://host:7400, "
                     "embedded:?memory=1GiB)");
  replay->add_option("--blocks", options->blocks, "number of blocks that the pool holds")
      ->capture_default_str();
  replay->add_option("--memory", options->memory.text, "memory of the pool, instead of --blocks");
  replay->add_option("--block-bytes", options->block_bytes.text, "bytes of a block of 512 tokens")
      ->capture_default_str();
  replay->add_option("--policy", options->policy, policy::ListPolicies(policy::PolicyNames()))
      ->capture_default_str();
  replay->add_option(
      "--disk", options->disk,
      "DIRECTORY:SIZE, such as /mnt/nvme0:10GiB: a disk below the pool's memory, in a "
      "file there that is removed at the end; found by tier, bytes written");
  replay
      ->add_option("--disk-admit", options->disk_admit,
                   "evicted values that are written to the disk, as for 'kvcove serve'")
      ->check(CLI::IsMember({"policy", "all", "never"}))
      ->capture_default_str();
  replay
      ->add_option("--disk-write-rate", options->disk_write_rate,
                   "highest rate of writes to the disk, as for 'kvcove serve'")
      ->capture_default_str();
  replay->add_option("--engines", options->engines, "number of engine processes")
      ->capture_default_str();
  replay->add_option("--tp", options->tp, "number of tensor-parallel ranks of each engine")
      ->capture_default_str();
  replay->add_option("--launch", options->launch,
                     "words before an engine's command, such as 'ip netns exec host1' or 'env "
                     "KVCOVE_HOST_ID=host1'; may be repeated: the engines take them in turn");
  replay
      ->add_option("--own-blocks", options->own_blocks,
                   "number of blocks of each engine's own cache")
      ->capture_default_str();
  replay
      ->add_option("--update-every", options->update_every,
                   "number of requests after which every engine gets new weights (0: never)")
      ->capture_default_str();
  replay
      ->add_option(
          "--flow", options->flow,
          "steps of an update: verl (abort, reset, sync, wake up, reset) or prime-rl (no pause, "
          "the version is the salt)")
      ->capture_default_str();
  replay
      ->add_option("--time-scale", options->time_scale,
                   "seconds of the trace that are replayed in a second (0: as fast as possible)")
      ->capture_default_str();
  replay->add_option("--limit", options->limit,
                     "number of first requests that are replayed (0: all)");
  replay->add_flag("--quick", options->quick,
                   "replay 2,000 requests of one engine with an embedded pool");
  replay->add_option("--report", options->report, "write an HTML report to this file");
  replay->add_flag("--json", options->json, "print one JSON object on stdout (docs/json.md)");
  replay->callback([options, &chosen] { chosen = [options] { return Run(*options); }; });

  auto arguments = std::make_shared<EngineArguments>();
  CLI::App* engine = app.add_subcommand("replay-engine", "One engine of a replay.");
  engine->group("");
  engine->add_option("TRACE", arguments->trace)->required();
  engine->add_option("--pool", arguments->pool)->required();
  engine->add_option("--engine", arguments->engine)->required();
  engine->add_option("--limit", arguments->limit);
  engine->add_option("--own-blocks", arguments->own_blocks);
  engine->add_option("--block-bytes", arguments->block_bytes);
  engine->add_option("--tp", arguments->tp);
  engine->add_option("--flow", arguments->flow);
  engine->add_flag("--late-stores", arguments->late_stores);
  engine->callback(
      [arguments, &chosen] { chosen = [arguments] { return RunEngine(*arguments); }; });
}

}  // namespace kvcove::lab
