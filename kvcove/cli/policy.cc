// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "kvcove/cli/command.h"
#include "kvcove/policy/workload.h"
#include "kvcove/replay/trace.h"

namespace kvcove::cli {
namespace {

struct PolicyOptions {
  std::string trace;
  std::vector<std::uint64_t> capacities;
  std::size_t limit = 0;
  std::string workload;  // empty: the trace as it is
  std::uint64_t seed = 1;
  bool json = false;
};

Result<int> Run(const PolicyOptions& options) {
  KVCOVE_ASSIGN(
      const auto requests,
      replay::ReadTrace(options.trace, options.limit == 0 ? ~std::size_t{0} : options.limit));
  std::vector<policy::Chain> chains = replay::ChainsOf(requests);
  if (!options.workload.empty()) {
    KVCOVE_ASSIGN(chains, policy::MakeWorkload(options.workload, chains, options.seed));
  }
  std::vector<std::uint64_t> capacities = options.capacities;
  if (capacities.empty()) capacities = {1000, 3000, 10000, 30000};
  std::vector<std::string> names;
  for (const std::string_view name : policy::PolicyNames()) names.emplace_back(name);
  names.emplace_back("optimum");
  if (!options.json) {
    fmt::print("Hit ratio by the prefix rule, {} requests; capacity in blocks.\n\n{:<10}",
               chains.size(), "policy");
    for (const std::uint64_t capacity : capacities) fmt::print(" {:>9}", capacity);
    fmt::print("\n");
  }
  for (const std::string& name : names) {
    if (!options.json) fmt::print("{:<10}", name);
    for (const std::uint64_t capacity : capacities) {
      if (capacity == 0) return Fail(Code::kInvalid, "--capacity: give at least one block");
      policy::HitCount count;
      if (name == "optimum") {
        count = policy::SimulateOptimum(chains, capacity);
      } else {
        KVCOVE_ASSIGN(count, policy::Simulate(name, chains, capacity));
      }
      if (options.json) {
        const nlohmann::json row = {{"schema", "kvcove.policy.1"},    {"policy", name},
                                    {"capacity", capacity},           {"hit_ratio", count.ratio()},
                                    {"hit_blocks", count.hit_blocks}, {"blocks", count.blocks},
                                    {"workload", options.workload}};
        fmt::print("{}\n", row.dump());
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

void AddPolicy(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<PolicyOptions>();
  CLI::App* command = app.add_subcommand(
      "policy", "Simulate eviction policies on a trace, beside the clairvoyant optimum.");
  command->add_option("TRACE", options->trace, "a request trace (JSON lines)")->required();
  command->add_option("--capacity", options->capacities,
                      "blocks; may be repeated (default: 1000 3000 10000 30000)");
  command->add_option("--limit", options->limit, "only the first requests (0: all)");
  command
      ->add_option("--workload", options->workload,
                   "in place of the trace: reversed, shuffled or scan (made from it), loop, zipf "
                   "or agents (made from the seed)")
      ->check(CLI::IsMember(policy::WorkloadNames()));
  command->add_option("--seed", options->seed, "of the workload")->capture_default_str();
  command->add_flag("--json", options->json, "JSON lines on stdout (docs/json.md)");
  command->callback([options, &chosen] { chosen = [options] { return Run(*options); }; });
}

}  // namespace kvcove::cli
