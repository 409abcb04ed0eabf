// SPDX-License-Identifier: Apache-2.0
#include "lab/serving/engine_metrics.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "kvcove/base/text.h"

namespace kvcove::lab {
namespace {

std::string_view NameOf(std::string_view series) { return series.substr(0, series.find('{')); }

// The value of a label; nothing where the series has no such label.
std::optional<std::string_view> LabelOf(std::string_view series, std::string_view label) {
  const std::string wanted = fmt::format("{}=\"", label);
  for (std::size_t at = series.find(wanted); at != std::string_view::npos;
       at = series.find(wanted, at + 1)) {
    if (at == 0 || (series[at - 1] != '{' && series[at - 1] != ',')) continue;
    const std::string_view value = series.substr(at + wanted.size());
    return value.substr(0, value.find('"'));
  }
  return std::nullopt;
}

// Returns the tiers of what vLLM's connector found, each with its weight. From 0.32 on vLLM asks
// each connector for them; before, KvcoveConnector's count of keys says it.
std::vector<TierTokens> PartsOfConnector(const Scrape& counts) {
  constexpr std::string_view kByTier = "vllm:prompt_tokens_cached_by_source_total";
  if (counts.Has(kByTier)) {
    return {{"pool, memory of this host", counts.Sum(kByTier, "source", "host")},
            {"pool, memory of other hosts", counts.Sum(kByTier, "source", "p2p")},
            {"pool, disk", counts.Sum(kByTier, "source", "disk")},
            {"connector", counts.Sum(kByTier, "source", "external_unspecified")}};
  }
  return {{"pool, memory of this host", counts.Sum("vllm:kvcove_hit_memory_keys_total")},
          {"pool, memory of other hosts", counts.Sum("vllm:kvcove_hit_remote_memory_keys_total")},
          {"pool, disk", counts.Sum("vllm:kvcove_hit_disk_keys_total")}};
}

FoundTokens FoundByVllm(const Scrape& counts) {
  FoundTokens found{.prompt_tokens = counts.Sum("vllm:prompt_tokens_total"), .tiers = {}};
  constexpr std::string_view kBySource = "vllm:prompt_tokens_by_source_total";
  const bool sources = counts.Has(kBySource);  // older versions have none
  const double own = sources ? counts.Sum(kBySource, "source", "local_cache_hit")
                             : counts.Sum("vllm:prefix_cache_hits_total");
  const double loaded = sources ? counts.Sum(kBySource, "source", "external_kv_transfer")
                                : counts.Sum("vllm:external_prefix_cache_hits_total");
  found.tiers.push_back({"engine's cache", own});
  const std::vector<TierTokens> parts = PartsOfConnector(counts);
  double all = 0;
  for (const TierTokens& part : parts) all += part.tokens;
  if (all == 0) {
    found.tiers.push_back({"connector", loaded});
    return found;
  }
  for (const TierTokens& part : parts) {
    found.tiers.push_back({part.tier, loaded * part.tokens / all});
  }
  return found;
}

FoundTokens FoundBySglang(const Scrape& counts) {
  FoundTokens found{.prompt_tokens = counts.Sum("sglang:prompt_tokens_total"), .tiers = {}};
  for (const auto& [source, tokens] : counts.By("sglang:cached_tokens_total", "cache_source")) {
    // Versions that do not tell the sources apart have no such label, or "total".
    const bool all = source.empty() || source == "total";
    found.tiers.push_back({all ? "engine's caches" : source, tokens});
  }
  return found;
}

}  // namespace

Scrape Scrape::Parse(std::string_view text) {
  Scrape scrape;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.front() == '#') continue;
    const std::size_t brace = line.rfind('}');  // a label's value may have spaces
    const std::size_t space = line.find(' ', brace == std::string_view::npos ? 0 : brace);
    if (space == std::string_view::npos) continue;
    const std::string_view behind = line.substr(space + 1);  // a time may follow the value
    const auto value = NumberOf<double>(behind.substr(0, behind.find(' ')));
    if (value) scrape.series_[std::string(line.substr(0, space))] = *value;
  }
  return scrape;
}

Scrape Scrape::Since(const Scrape& before) const {
  Scrape since;
  for (const auto& [series, value] : series_) {
    const auto old = before.series_.find(series);
    const double begin = old == before.series_.end() || old->second > value ? 0 : old->second;
    since.series_[series] = value - begin;
  }
  return since;
}

void Scrape::Add(const Scrape& other) {
  for (const auto& [series, value] : other.series_) series_[series] += value;
}

bool Scrape::Has(std::string_view name) const {
  return std::ranges::any_of(series_, [&](const auto& one) { return NameOf(one.first) == name; });
}

double Scrape::Sum(std::string_view name, std::string_view label, std::string_view value) const {
  double sum = 0;
  for (const auto& [series, count] : series_) {
    if (NameOf(series) == name && (label.empty() || LabelOf(series, label) == value)) sum += count;
  }
  return sum;
}

std::map<std::string, double> Scrape::By(std::string_view name, std::string_view label) const {
  std::map<std::string, double> sums;
  for (const auto& [series, count] : series_) {
    if (NameOf(series) == name) sums[std::string(LabelOf(series, label).value_or(""))] += count;
  }
  return sums;
}

std::map<std::string, double> Scrape::Between(std::string_view begin, std::string_view end) const {
  std::map<std::string, double> sums;
  for (const auto& [series, count] : series_) {
    std::string_view name = NameOf(series);
    if (!name.starts_with(begin) || !name.ends_with(end) || !(count > 0)) continue;
    name.remove_prefix(begin.size());
    name.remove_suffix(std::min(end.size(), name.size()));
    sums[std::string(name)] += count;
  }
  return sums;
}

double FoundTokens::found() const {
  double tokens = 0;
  for (const TierTokens& tier : tiers) tokens += tier.tokens;
  return tokens;
}

FoundTokens FoundIn(const Scrape& counts) {
  if (counts.Has("vllm:prompt_tokens_total")) return FoundByVllm(counts);
  if (counts.Has("sglang:prompt_tokens_total")) return FoundBySglang(counts);
  return {};
}

}  // namespace kvcove::lab
