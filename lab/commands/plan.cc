// SPDX-License-Identifier: Apache-2.0
// `kvcove plan`: what hosts with this memory and these disks keep of a model's KV.
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "kvcove/base/size.h"
#include "kvcove/base/text.h"
#include "lab/commands/commands.h"
#include "lab/sizing/sizing.h"

namespace kvcove::lab {
namespace {

struct PlanCommand {
  std::string model;
  std::string dtype = "auto";
  cli::SizeOption memory{""};
  cli::SizeOption disk{"0"};
  std::string trace;
  std::string format = "mooncake";
  SizingOptions sizing;
  bool json = false;
};

// "2,097,152"
std::string Grouped(std::uint64_t number) {
  std::string text = fmt::format("{}", number);
  for (std::size_t at = text.size(); at > 3;) text.insert(at -= 3, ",");
  return text;
}

// "1 host", "4 hosts"
std::string CountText(std::uint64_t count, std::string_view one) {
  return fmt::format("{} {}{}", Grouped(count), one, count == 1 ? "" : "s");
}

void Line(std::string_view name, const std::string& text) { fmt::print("{:<16} {}\n", name, text); }

// The layers of a kind: how many, and their window.
std::string LayersText(const ModelKv& model) {
  std::uint64_t windows = 0;
  std::uint64_t window_tokens = 0;
  for (const KvGroup& group : model.groups) {
    if (group.kind != connector::GroupKind::kWindow) continue;
    windows += group.layers;
    window_tokens = group.window_tokens;
  }
  std::string text = CountText(model.layers(), "layer");
  if (windows > 0) {
    text += fmt::format(", {} with a window of {} tokens", windows, Grouped(window_tokens));
  }
  return text;
}

std::string TierText(const PlanCommand& command, const TierSizing& tier, std::uint64_t host_bytes) {
  return fmt::format("{} x {}: {}, {}", CountText(command.sizing.hosts, "host"),
                     FormatSize(host_bytes), CountText(tier.tokens, "token"),
                     CountText(tier.objects, "object"));
}

void PrintHits(const PlanCommand& command, const ExpectedHits& hits) {
  Line("trace", fmt::format("{}, prompts of {}, {} of them different: {}",
                            CountText(hits.requests, "request"), CountText(hits.tokens, "token"),
                            Grouped(hits.distinct_tokens), Printable(command.trace)));
  std::string found = fmt::format("{:.4f}", hits.ratio);
  if (command.sizing.disk_bytes > 0) {
    found += fmt::format(", of which {:.4f} in memory", hits.memory_ratio);
  }
  Line("hit ratio", found);
  Line("", fmt::format("half the size {:.4f}, twice {:.4f}, any size {:.4f}", hits.half, hits.twice,
                       hits.any));
}

void PrintText(const PlanCommand& command, const ModelKv& model, const Sizing& sizing,
               const std::optional<ExpectedHits>& hits) {
  const SizingOptions& options = command.sizing;
  Line("model",
       fmt::format("{}{}: {} in {}", model.type.empty() ? "" : Printable(model.type) + ", ",
                   LayersText(model), model.layer_text, model.dtype));
  Line("a token",
       fmt::format("{} ({} bytes)", FormatSize(model.token_bytes()), Grouped(model.token_bytes())));
  Line("a chunk", fmt::format("of {}: {} of {} at most", CountText(options.chunk_tokens, "token"),
                              CountText(sizing.objects_per_chunk, "object"),
                              FormatSize(sizing.largest_object_bytes)));
  Line("memory", TierText(command, sizing.memory, options.memory_bytes));
  if (options.disk_bytes > 0) Line("disks", TierText(command, sizing.disk, options.disk_bytes));
  Line("at the master",
       fmt::format("a directory of at most {}", FormatSize(sizing.directory_bytes)));
  std::string index = FormatSize(sizing.memory_index_bytes) + " of index for its memory";
  if (options.disk_bytes > 0) index += ", " + FormatSize(sizing.disk_index_bytes) + " for its disk";
  Line("at each owner", "at most " + index + ", beside --memory");
  if (hits) PrintHits(command, *hits);
}

nlohmann::json TierJson(const TierSizing& tier) {
  return {{"bytes", tier.bytes}, {"tokens", tier.tokens}, {"objects", tier.objects}};
}

nlohmann::json HitsJson(const PlanCommand& command, const ExpectedHits& hits) {
  return {{"trace", command.trace},  {"requests", hits.requests},
          {"tokens", hits.tokens},   {"distinct_tokens", hits.distinct_tokens},
          {"hit_ratio", hits.ratio}, {"memory_hit_ratio", hits.memory_ratio},
          {"half", hits.half},       {"twice", hits.twice},
          {"any", hits.any}};
}

void PrintJson(const PlanCommand& command, const ModelKv& model, const Sizing& sizing,
               const std::optional<ExpectedHits>& hits) {
  const SizingOptions& options = command.sizing;
  nlohmann::json groups = nlohmann::json::array();
  for (const KvGroup& group : model.groups) {
    groups.push_back({{"layers", group.layers},
                      {"heads", group.heads},
                      {"window_tokens", group.window_tokens},
                      {"token_bytes", group.token_bytes}});
  }
  const nlohmann::json line = {
      {"schema", "kvcove.plan.1"},
      {"model", command.model},
      {"type", model.type},
      {"kv_dtype", model.dtype},
      {"layers", model.layers()},
      {"groups", groups},
      {"token_bytes", model.token_bytes()},
      {"hosts", options.hosts},
      {"chunk_tokens", options.chunk_tokens},
      {"tp", options.tp},
      {"pp", options.pp},
      {"objects_per_chunk", sizing.objects_per_chunk},
      {"largest_object_bytes", sizing.largest_object_bytes},
      {"memory", TierJson(sizing.memory)},
      {"disk", options.disk_bytes == 0 ? nlohmann::json() : TierJson(sizing.disk)},
      {"directory_bytes", sizing.directory_bytes},
      {"owner_memory_index_bytes", sizing.memory_index_bytes},
      {"owner_disk_index_bytes", sizing.disk_index_bytes},
      {"expected", hits ? HitsJson(command, *hits) : nlohmann::json()}};
  fmt::print("{}\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

Result<int> RunPlan(PlanCommand command) {
  KVCOVE_ASSIGN(command.sizing.memory_bytes, command.memory.Bytes("--memory"));
  KVCOVE_ASSIGN(command.sizing.disk_bytes, command.disk.Bytes("--disk"));
  KVCOVE_ASSIGN(const ModelKv model, ReadModelKv(command.model, command.dtype));
  KVCOVE_ASSIGN(const Sizing sizing, SizeOf(model, command.sizing));
  std::optional<ExpectedHits> hits;
  if (!command.trace.empty()) {
    const TraceFormat format = TraceFormats().at(command.format);
    KVCOVE_ASSIGN(const auto requests, ReadTrace(command.trace, ~std::size_t{0}, format));
    KVCOVE_ASSIGN(hits, ExpectHits(requests, format, sizing.memory.tokens, sizing.disk.tokens));
  }
  (command.json ? PrintJson : PrintText)(command, model, sizing, hits);
  return 0;
}

}  // namespace

void AddPlan(CLI::App& app, cli::Action& chosen) {
  auto options = std::make_shared<PlanCommand>();
  CLI::App* command = app.add_subcommand(
      "plan",
      "Say how much of a model's KV a pool keeps, what that costs, and what a trace finds.");
  const auto add = [command](const char* name, auto& value, const char* text) {
    return command->add_option(name, value, text)->group(cli::kOfThisCall);
  };
  std::vector<std::string> formats;
  for (const auto& [name, format] : TraceFormats()) formats.push_back(name);
  add("--model", options->model, "config.json of the model, as Hugging Face has it")->required();
  add("--memory", options->memory.text, "memory that the owner of each host gives, such as 64GiB")
      ->required();
  add("--disk", options->disk.text, "size of the disks of each host, such as 2TiB")
      ->capture_default_str();
  add("--hosts", options->sizing.hosts, "number of hosts")->capture_default_str();
  add("--kv-dtype", options->dtype,
      "type of the KV: auto (the config's), bfloat16, float16, float32 or fp8")
      ->check(CLI::IsMember(KvDtypes()))
      ->capture_default_str();
  add("--chunk-tokens", options->sizing.chunk_tokens,
      "tokens of a block: of vLLM's --block-size, SGLang's --page-size")
      ->capture_default_str();
  add("--tp", options->sizing.tp, "tensor-parallel ranks of an engine")->capture_default_str();
  add("--pp", options->sizing.pp, "pipeline stages of an engine")->capture_default_str();
  add("--trace", options->trace, "request trace whose hit ratio is simulated");
  add("--trace-format", options->format, "mooncake, bailian or vllm, as of 'kvcove policy'")
      ->check(CLI::IsMember(formats))
      ->capture_default_str();
  command->add_flag("--json", options->json, "print one JSON object on stdout (docs/json.md)")
      ->group(cli::kOfThisCall);
  command->callback([options, &chosen] { chosen = [options] { return RunPlan(*options); }; });
}

}  // namespace kvcove::lab
