// SPDX-License-Identifier: Apache-2.0
// `kvcove bench engine`: servers with OpenAI's interface under a load of conversations.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "kvcove/base/text.h"
#include "lab/commands/bench.h"
#include "lab/serving/engine_metrics.h"
#include "lab/serving/load_run.h"

namespace kvcove::lab {
namespace {

constexpr std::size_t kShownReasons = 5;
constexpr int kInterrupted = 130;  // as a shell reports SIGINT

struct EngineBench {
  std::vector<std::string> engines;
  std::string file;
  bool json = false;
  Load given;  // by the command's options
  std::vector<std::pair<const CLI::Option*, std::function<void(Load&)>>> options;

  // Returns the file's load, changed by the options that were given.
  Result<Load> Read() const {
    Load load;
    if (!file.empty()) {
      std::error_code error;
      std::ifstream stream(file);
      if (!stream || !std::filesystem::is_regular_file(file, error)) {
        return Fail(Code::kInvalid, fmt::format("--load: '{}' is no file, or not readable", file));
      }
      const std::string text{std::istreambuf_iterator<char>(stream), {}};
      KVCOVE_TRY(ReadLoad(text, file, load));
    }
    for (const auto& [option, apply] : options) {
      if (option->count() > 0) apply(load);
    }
    KVCOVE_TRY(CheckLoad(load));
    return load;
  }
};

// Scrapes all engines. Errors: as OpenAiClient::Metrics.
Result<std::vector<Scrape>> ScrapeAll(std::span<const OpenAiClient> engines) {
  std::vector<Scrape> scrapes;
  for (const OpenAiClient& engine : engines) {
    KVCOVE_ASSIGN(const std::string text, engine.Metrics());
    scrapes.push_back(Scrape::Parse(text));
  }
  return scrapes;
}

// Returns the counts of all engines together since `before`; nothing, with a line on stderr, where
// an engine's metrics cannot be had.
std::optional<Scrape> CountsSince(const Result<std::vector<Scrape>>& before,
                                  std::span<const OpenAiClient> engines) {
  const Result<std::vector<Scrape>> after = before ? ScrapeAll(engines) : before;
  if (!after) {
    fmt::print(stderr, "No hit ratio: {}\n", Printable(after.error().detail));
    return std::nullopt;
  }
  Scrape counts;
  for (std::size_t i = 0; i < engines.size(); ++i) counts.Add((*after)[i].Since((*before)[i]));
  if (FoundIn(counts).prompt_tokens > 0) return counts;
  fmt::print(stderr,
             "No hit ratio: the engines' /metrics count no prompt tokens (SGLang counts "
             "them with --enable-metrics)\n");
  return std::nullopt;
}

// Says on stderr that the counts are not those of the run's answers, where they differ.
void WarnOfOthers(const LoadResult& result, const Scrape& counts) {
  // Requests without a whole answer are counted by the engines alone.
  if (!result.lost.empty() || result.interrupted || result.prompt_tokens == 0) return;
  const double counted = FoundIn(counts).prompt_tokens;
  const auto answered = static_cast<double>(result.prompt_tokens);
  if (std::abs(counted - answered) <= answered / 100) return;
  fmt::print(stderr,
             "The hit ratio is not that of this run: the engines' /metrics count {:.0f} prompt "
             "tokens, and the answers {:.0f}. Other clients asked meanwhile, an engine started "
             "anew, or an address has several engines behind it.\n",
             counted, answered);
}

std::vector<double> AllTtft(const LoadResult& result) {
  std::vector<double> all = result.first_ttft_ms;
  all.insert(all.end(), result.later_ttft_ms.begin(), result.later_ttft_ms.end());
  return all;
}

nlohmann::json Quantiles(std::vector<double> values) {
  return {{"p50", Quantile(values, 0.5)},
          {"p90", Quantile(values, 0.9)},
          {"p99", Quantile(values, 0.99)},
          {"count", values.size()}};
}

nlohmann::json JsonOf(const Load& load) {
  nlohmann::json json = nlohmann::json::object();
  for (const LoadText& text : LoadTexts()) json[text.key] = load.*text.member;
  for (const LoadNumber& number : LoadNumbers()) json[number.key] = load.*number.member;
  return json;
}

double PerSecond(std::uint64_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

void PrintJson(const EngineBench& bench, const Load& load, const Served& served,
               const LoadResult& result, const std::optional<Scrape>& counts) {
  nlohmann::json json = {
      {"schema", "kvcove.bench.engine.1"},
      {"engines", bench.engines},
      {"model", served.model},
      {"load", JsonOf(load)},
      {"tokens_per_word", served.tokens_per_word},
      {"interrupted", result.interrupted},
      {"completed", result.completed},
      {"lost", result.lost_conversations()},
      {"lost_because", result.lost},
      {"unfinished", result.unfinished},
      {"seconds", result.seconds},
      {"prompt_tokens", result.prompt_tokens},
      {"output_tokens", result.output_tokens},
      {"short_answers", result.short_answers},
      {"prompt_tokens_per_second", PerSecond(result.prompt_tokens, result.seconds)},
      {"output_tokens_per_second", PerSecond(result.output_tokens, result.seconds)},
      {"ttft_ms", Quantiles(AllTtft(result))},
      {"ttft_first_ms", Quantiles(result.first_ttft_ms)},
      {"ttft_later_ms", Quantiles(result.later_ttft_ms)},
      {"e2e_ms", Quantiles(result.e2e_ms)},
      {"hits", nullptr},
      {"kvcove", nullptr}};
  if (counts) {
    const FoundTokens found = FoundIn(*counts);
    nlohmann::json tiers = nlohmann::json::object();
    for (const TierTokens& tier : found.tiers) tiers[tier.tier] = tier.tokens / found.prompt_tokens;
    json["hits"] = {
        {"prompt_tokens", found.prompt_tokens}, {"ratio", found.ratio()}, {"tiers", tiers}};
    const auto pool = counts->Between("vllm:kvcove_", "_total");
    if (!pool.empty()) json["kvcove"] = pool;
  }
  fmt::print("{}\n", json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void PrintTimes(const char* name, std::vector<double> values) {
  if (values.empty()) return;
  fmt::print("  {:<30} {:>12.1f} {:>12.1f} {:>12.1f}   {} requests\n", name, Quantile(values, 0.5),
             Quantile(values, 0.9), Quantile(values, 0.99), values.size());
}

void PrintText(const EngineBench& bench, const Load& load, const Served& served,
               const LoadResult& result, const std::optional<Scrape>& counts) {
  fmt::print(
      "{} conversations of {} turns, {} at a time, {} percent agents; {} engine{}, {}, seed {}\n",
      load.conversations, load.turns, load.concurrency, load.agents_percent, bench.engines.size(),
      bench.engines.size() == 1 ? "" : "s", Printable(served.model), load.seed);
  const auto row = [](const char* name, const std::string& value) {
    fmt::print("  {:<30} {:>12}\n", name, value);
  };
  if (result.interrupted)
    fmt::print("  Interrupted: the figures are of the requests until then.\n");
  row("conversations completed", std::to_string(result.completed));
  row("lost", std::to_string(result.lost_conversations()));
  if (result.unfinished > 0) row("unfinished", std::to_string(result.unfinished));
  row("seconds", fmt::format("{:.1f}", result.seconds));
  row("prompt tokens a second",
      fmt::format("{:.0f}", PerSecond(result.prompt_tokens, result.seconds)));
  row("output tokens a second",
      fmt::format("{:.1f}", PerSecond(result.output_tokens, result.seconds)));
  if (result.short_answers > 0) {
    row("answers that ended early", std::to_string(result.short_answers));
  }
  fmt::print("\n  {:<30} {:>12} {:>12} {:>12}\n", "milliseconds", "p50", "p90", "p99");
  PrintTimes("first token (TTFT)", AllTtft(result));
  PrintTimes("  of a conversation's first", result.first_ttft_ms);
  PrintTimes("  of its later ones", result.later_ttft_ms);
  PrintTimes("whole answer (E2E)", result.e2e_ms);
  if (counts) {
    const FoundTokens found = FoundIn(*counts);
    fmt::print("\n  of {:.0f} prompt tokens, found in\n", found.prompt_tokens);
    for (const TierTokens& tier : found.tiers) {
      row(tier.tier.c_str(), fmt::format("{:.2f} %", 100 * tier.tokens / found.prompt_tokens));
    }
    row("hit ratio", fmt::format("{:.2f} %", 100 * found.ratio()));
  }
  std::size_t shown = 0;
  for (const auto& [reason, count] : result.lost) {
    if (++shown > kShownReasons) break;
    fmt::print("  lost {}: {}\n", count, Printable(reason));
  }
  if (shown > kShownReasons) fmt::print("  ... --json has all reasons\n");
}

Result<std::vector<OpenAiClient>> ClientsOf(const EngineBench& bench, const Load& load) {
  const char* key = std::getenv("OPENAI_API_KEY");
  std::vector<OpenAiClient> clients;
  for (const std::string& text : bench.engines) {
    KVCOVE_ASSIGN(Endpoint endpoint, ParseEndpoint(text));
    clients.emplace_back(std::move(endpoint), key == nullptr ? "" : key,
                         static_cast<std::int64_t>(load.timeout_s) * kSecond);
  }
  return clients;
}

Result<int> RunEngineBench(const EngineBench& bench) {
  KVCOVE_ASSIGN(const Load load, bench.Read());
  KVCOVE_ASSIGN(const std::vector<OpenAiClient> engines, ClientsOf(bench, load));
  KVCOVE_ASSIGN(const Served served, LookAtEngines(load, engines));
  const Result<std::vector<Scrape>> before = ScrapeAll(engines);
  cli::StopSignal stop;
  LoadRun run{.interrupted = [&] { return stop.WaitFor(std::chrono::milliseconds(100)); },
              .progress = {}};
  const bool terminal = isatty(STDERR_FILENO) != 0;
  if (terminal) {
    run.progress = [&](std::uint64_t ended) {
      fmt::print(stderr, "\r{} of {} conversations ", ended, load.conversations);
    };
  }
  const Result<LoadResult> result = RunLoad(load, served, engines, run);
  if (terminal) fmt::print(stderr, "\r");
  if (!result) return std::unexpected(result.error());
  const std::optional<Scrape> counts = CountsSince(before, engines);
  if (counts) WarnOfOthers(*result, *counts);
  (bench.json ? PrintJson : PrintText)(bench, load, served, *result, counts);
  if (result->interrupted) return kInterrupted;
  return result->lost.empty() ? 0 : 1;
}

std::string FlagOf(std::string key) {
  std::ranges::replace(key, '_', '-');
  return "--" + key;
}

}  // namespace

void AddEngineBench(CLI::App& bench, cli::Action& chosen) {
  auto options = std::make_shared<EngineBench>();
  CLI::App* engine = bench.add_subcommand(
      "engine",
      "Drive engines (vLLM, SGLang, any server with OpenAI's interface) with conversations: time "
      "to the first token and to the end, hit ratio by tier, lost conversations.");
  engine
      ->add_option("ENGINE", options->engines,
                   "address of an engine, such as http://127.0.0.1:8000; several share the load. "
                   "$OPENAI_API_KEY is shown to each")
      ->required();
  engine->add_option("--load", options->file,
                     "TOML file of the options below, with '_' for '-' (bench/README.md); options "
                     "that are given count first");
  engine->add_flag("--json", options->json, "print one JSON object on stdout (docs/json.md)");
  for (const LoadText& text : LoadTexts()) {
    CLI::Option* option =
        engine->add_option(FlagOf(text.key), options->given.*text.member, text.help)
            ->capture_default_str();
    if (!text.allowed.empty()) option->check(CLI::IsMember(text.allowed));
    options->options.emplace_back(option, [given = &options->given, text](Load& load) {
      load.*text.member = given->*text.member;
    });
  }
  for (const LoadNumber& number : LoadNumbers()) {
    const CLI::Option* option =
        engine->add_option(FlagOf(number.key), options->given.*number.member, number.help)
            ->capture_default_str();
    options->options.emplace_back(option, [given = &options->given, number](Load& load) {
      load.*number.member = given->*number.member;
    });
  }
  engine->callback([options, &chosen] { chosen = [options] { return RunEngineBench(*options); }; });
}

}  // namespace kvcove::lab
