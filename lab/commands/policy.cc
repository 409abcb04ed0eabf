// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "lab/commands/commands.h"
#include "lab/policy/ablations.h"
#include "lab/policy/two_tiers.h"
#include "lab/policy/workload.h"
#include "lab/replay/trace.h"

namespace kvcove::lab {
namespace {

struct PolicyOptions {
  std::string trace;
  std::vector<std::uint64_t> capacities;
  std::uint64_t disk_capacity = 0;  // 0: no disk
  std::size_t limit = 0;
  std::string workload;  // empty: the trace as it is
  std::uint64_t seed = 1;
  std::string format = "mooncake";
  bool ablations = false;
  bool hints = false;
  bool json = false;
};

std::vector<std::string> TraceFormatNames() {
  std::vector<std::string> names;
  for (const auto& [name, format] : TraceFormats()) names.push_back(name);
  return names;
}

// A row of the table: a policy, by a name of its own.
struct Row {
  std::string name;
  std::function<Result<HitCount>(std::uint64_t capacity)> count;
};

// What they simulate must outlive the rows.
std::vector<Row> RowsOf(const PolicyOptions& options, const std::vector<Chain>& chains,
                        const std::vector<Hints>& hints) {
  std::vector<Row> rows;
  if (options.ablations) {
    for (const Ablation& ablation : Ablations()) {
      rows.push_back({std::string(ablation.name), [&, ablation](std::uint64_t capacity) {
                        return Simulate(std::make_unique<policy::SegmentPolicy>(ablation.options),
                                        chains, capacity);
                      }});
    }
  } else {
    for (const std::string_view name : SimulatedPolicies()) {
      rows.push_back({std::string(name), [&, name](std::uint64_t capacity) {
                        return Simulate(name, chains, capacity);
                      }});
    }
  }
  if (options.hints) {
    rows.push_back({"told-output", [&](std::uint64_t capacity) -> Result<HitCount> {
                      return Simulate(std::make_unique<policy::SegmentPolicy>(), chains, capacity,
                                      hints);
                    }});
  }
  rows.push_back({"optimum", [&](std::uint64_t capacity) -> Result<HitCount> {
                    return SimulateOptimum(chains, capacity);
                  }});
  return rows;
}

// Two tiers, a table for each size of memory.
Result<int> RunTwoTiers(const PolicyOptions& options, const std::vector<Chain>& chains) {
  struct Kind {
    std::string_view name;
    std::string_view policy;
    Descent descent;
    bool zones = false;
    bool moves = false;
  };
  constexpr Kind kKinds[] = {{"apart", "default", Descent::kApart},
                             {"victims", "default", Descent::kVictims},
                             {"used", "default", Descent::kUsed},
                             {"worth", "default", Descent::kWorth},
                             {"admitted", "default", Descent::kAdmitted},
                             {"stored", "default", Descent::kStored},
                             {"lru-victims", "lru", Descent::kVictims},
                             {"s3fifo-victims", "s3fifo", Descent::kVictims},
                             {"zones-victims", "default", Descent::kVictims, true},
                             {"zones-admitted", "default", Descent::kAdmitted, true},
                             {"moves-victims", "default", Descent::kVictims, true, true},
                             {"moves-admitted", "default", Descent::kAdmitted, true, true}};
  const auto row = [&](std::string_view name, std::uint64_t memory, const TwoTierCount& count) {
    const HitCount& all = count.together;
    if (!options.json) {
      fmt::print("{:<16} {:>9.4f} {:>9.4f} {:>9.4f} {:>9.4f} {:>9.3f}\n", name, all.ratio(),
                 count.memory_ratio(), count.written_ratio(), count.evicted_ratio(),
                 count.write_amplification());
      std::fflush(stdout);
      return;
    }
    const nlohmann::json line = {{"schema", "kvcove.policy.1"},
                                 {"policy", name},
                                 {"capacity", memory},
                                 {"disk_capacity", options.disk_capacity},
                                 {"hit_ratio", all.ratio()},
                                 {"hit_blocks", all.hit_blocks},
                                 {"blocks", all.blocks},
                                 {"memory_hit_ratio", count.memory_ratio()},
                                 {"written_ratio", count.written_ratio()},
                                 {"written_of_evicted", count.evicted_ratio()},
                                 {"write_amplification", count.write_amplification()},
                                 {"workload", options.workload}};
    fmt::print("{}\n", line.dump());
  };
  for (const std::uint64_t memory : options.capacities) {
    if (!options.json) {
      fmt::print(
          "Memory of {} blocks, disk of {}; {} requests.\n\n{:<16} {:>9} {:>9} {:>9} {:>9} {:>9}\n",
          memory, options.disk_capacity, chains.size(), "policy", "hits", "in memory", "written",
          "/evicted", "amplif.");
    }
    KVCOVE_ASSIGN(const HitCount sum, Simulate("default", chains, memory + options.disk_capacity));
    row("sum", memory, {.together = sum, .memory_hits = sum.hit_blocks});
    for (const Kind& kind : kKinds) {
      KVCOVE_ASSIGN(const TwoTierCount count,
                    SimulateTwoTiers({.memory_policy = kind.policy,
                                      .disk_policy = kind.policy,
                                      .descent = kind.descent,
                                      .zones = kind.zones,
                                      .moves = kind.moves,
                                      .memory_blocks = memory,
                                      .disk_blocks = options.disk_capacity},
                                     chains));
      row(kind.name, memory, count);
    }
    if (!options.json) fmt::print("\n");
  }
  return 0;
}

Result<int> Run(PolicyOptions options) {
  KVCOVE_ASSIGN(const auto requests,
                ReadTrace(options.trace, options.limit == 0 ? ~std::size_t{0} : options.limit,
                          TraceFormats().at(options.format)));
  std::vector<Chain> chains = ChainsOf(requests);
  std::vector<Hints> hints;
  if (options.hints) {
    if (!options.workload.empty()) {
      return Fail(Code::kInvalid, "--hints: only a trace has output lengths, no --workload");
    }
    for (const Request& request : requests) {
      hints.push_back({.output_tokens = static_cast<std::uint32_t>(
                           std::min<std::uint64_t>(request.output_tokens, 1U << 30))});
    }
  }
  if (!options.workload.empty()) {
    KVCOVE_ASSIGN(chains, MakeWorkload(options.workload, chains, options.seed));
  }
  std::vector<std::uint64_t>& capacities = options.capacities;
  if (capacities.empty()) capacities = {1000, 3000, 10000, 30000};
  if (options.disk_capacity > 0) {
    if (options.ablations || options.hints) {
      return Fail(Code::kInvalid, "--disk-capacity: without --ablations and --hints");
    }
    return RunTwoTiers(options, chains);
  }
  if (!options.json) {
    fmt::print("Hit ratio by the prefix rule, {} requests; capacity in blocks.\n\n{:<16}",
               chains.size(), "policy");
    for (const std::uint64_t capacity : capacities) fmt::print(" {:>9}", capacity);
    fmt::print("\n");
  }
  for (const Row& row : RowsOf(options, chains, hints)) {
    if (!options.json) fmt::print("{:<16}", row.name);
    for (const std::uint64_t capacity : capacities) {
      if (capacity == 0) return Fail(Code::kInvalid, "--capacity: give at least one block");
      KVCOVE_ASSIGN(const HitCount count, row.count(capacity));
      if (options.json) {
        const nlohmann::json line = {{"schema", "kvcove.policy.1"},    {"policy", row.name},
                                     {"capacity", capacity},           {"hit_ratio", count.ratio()},
                                     {"hit_blocks", count.hit_blocks}, {"blocks", count.blocks},
                                     {"workload", options.workload}};
        fmt::print("{}\n", line.dump());
      } else {
        fmt::print(" {:>9.4f}", count.ratio());
        std::fflush(stdout);
      }
    }
    if (!options.json) fmt::print("\n");
  }
  if (!options.json) {
    fmt::print("\n'optimum' is Belady's: it knows the future. What lies between is money.\n");
  }
  return 0;
}

}  // namespace

void AddPolicy(CLI::App& app, cli::Action& chosen) {
  auto options = std::make_shared<PolicyOptions>();
  CLI::App* command = app.add_subcommand(
      "policy", "Simulate eviction policies on a trace, beside the clairvoyant optimum.");
  command->add_option("TRACE", options->trace, "file of a request trace")->required();
  command
      ->add_option("--trace-format", options->format,
                   "mooncake (JSON lines of the FAST'25 release), bailian (of the Qwen-Bailian "
                   "release) or vllm (a log of vLLM with --enable-log-requests)")
      ->check(CLI::IsMember(TraceFormatNames()))
      ->capture_default_str();
  command->add_option("--capacity", options->capacities,
                      "capacity in blocks; may be repeated (default: 1000 3000 10000 30000)");
  command->add_option("--disk-capacity", options->disk_capacity,
                      "blocks of a disk below: what both tiers find together, against one tier of "
                      "the sum, for each way to choose what is written to the disk (0: no disk)");
  command->add_option("--limit", options->limit,
                      "number of first requests that are simulated (0: all)");
  command
      ->add_option("--workload", options->workload,
                   "in place of the trace: reversed, shuffled, scan or shift (made from it), loop, "
                   "zipf, agents or sessions (made from the seed)")
      ->check(CLI::IsMember(WorkloadNames()));
  command->add_option("--seed", options->seed, "seed of the workload")->capture_default_str();
  command->add_flag("--ablations", options->ablations,
                    "in place of other policies: the default with one part taken away, a row each");
  command->add_flag(
      "--hints", options->hints,
      "one more row: the default policy, with each request's output length as a hint");
  command->add_flag("--json", options->json, "print JSON lines on stdout (docs/json.md)");
  command->callback([options, &chosen] { chosen = [options] { return Run(*options); }; });
}

}  // namespace kvcove::lab
