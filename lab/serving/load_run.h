// SPDX-License-Identifier: Apache-2.0
// Runs a load against engines and measures it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "lab/serving/load.h"
#include "lab/serving/openai.h"

namespace kvcove::lab {

// What the engines serve, found out before anything is measured.
struct Served {
  std::string model;
  double tokens_per_word = 1;  // of the texts of a load
};
// Asks every engine for its models and the first one for the length of a text. Errors: kUnavailable
// for an engine that does not answer; kInvalid for a model that an engine does not serve, or whose
// context is shorter than the load's longest request.
Result<Served> LookAtEngines(const Load& load, std::span<const OpenAiClient> engines);

struct LoadResult {
  std::uint64_t completed = 0;                // conversations
  std::map<std::string, std::uint64_t> lost;  // conversations, by the reason
  std::uint64_t unfinished = 0;               // begun or not, when the run was interrupted
  std::vector<double> first_ttft_ms;          // of the first request of each conversation
  std::vector<double> later_ttft_ms;          // of all others
  std::vector<double> e2e_ms;                 // of all requests
  std::uint64_t prompt_tokens = 0;
  std::uint64_t output_tokens = 0;
  std::uint64_t short_answers = 0;  // with fewer tokens than they were asked for
  double seconds = 0;
  bool interrupted = false;

  std::uint64_t lost_conversations() const;
};

struct LoadRun {
  // Waits for a moment; returns true when the run is to end early. Called by RunLoad's thread until
  // all conversations have ended.
  std::function<bool()> interrupted;
  // Called now and then by the same thread, with the conversations that have ended.
  std::function<void(std::uint64_t ended)> progress;
};

// Runs all conversations, `load.concurrency` at a time, each in a thread of its own (kvcove-load).
// A conversation whose request fails is lost, and the others continue. Errors: kInvalid when an
// engine refuses a request as such, for which every conversation would be lost; as StartThread.
Result<LoadResult> RunLoad(const Load& load, const Served& served,
                           std::span<const OpenAiClient> engines, const LoadRun& run);

}  // namespace kvcove::lab
