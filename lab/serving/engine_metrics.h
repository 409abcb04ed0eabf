// SPDX-License-Identifier: Apache-2.0
// Where an engine has found its prompts' tokens, of its own metrics. All types are values.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace kvcove::lab {

// Counters of one scrape: the value of each series of Prometheus' text form.
class Scrape {
 public:
  // Lines that are no samples count for nothing.
  static Scrape Parse(std::string_view text);
  // Returns what was counted since `before`; a counter that has begun anew (a restarted engine)
  // counts from 0.
  Scrape Since(const Scrape& before) const;
  // Adds the counts of another engine.
  void Add(const Scrape& other);

  // Return the sum of a metric over all of its series: of those whose labels have this one.
  double Sum(std::string_view name) const { return Sum(name, {}, {}); }
  double Sum(std::string_view name, std::string_view label, std::string_view value) const;
  bool Has(std::string_view name) const;
  // Returns the sums of a metric by the value of a label.
  std::map<std::string, double> By(std::string_view name, std::string_view label) const;
  // Returns the sums, above 0, of all metrics whose names begin and end so, by what is between.
  std::map<std::string, double> Between(std::string_view begin, std::string_view end) const;

 private:
  std::map<std::string, double, std::less<>> series_;  // by name and labels, as they are written
};

struct TierTokens {
  std::string tier;
  double tokens = 0;
};
struct FoundTokens {
  double prompt_tokens = 0;  // 0: the engine has no metrics that are known here
  std::vector<TierTokens> tiers;
  double found() const;
  double ratio() const { return prompt_tokens > 0 ? found() / prompt_tokens : 0; }
};
// Reads the counts of vLLM (what its connector found by tier, where vLLM or KvcoveConnector says
// it) and of SGLang.
FoundTokens FoundIn(const Scrape& counts);

}  // namespace kvcove::lab
