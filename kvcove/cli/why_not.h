// SPDX-License-Identifier: Apache-2.0
// Why two engines share no KV: from the facts that each leaves in the pool when it starts
// (python/kvcove/engines/_facts.py), and from the weights that the admin endpoint knows of.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/base/result.h"

namespace kvcove::cli {

struct EngineFacts {
  std::string engine;
  std::string kind;        // "vLLM", "SGLang"
  std::string name_space;  // within its tenant
  // Of each fact, all of them strings: what the engine has, and what makes two engines equal.
  nlohmann::ordered_json facts = nlohmann::ordered_json::object();
  nlohmann::ordered_json advice = nlohmann::ordered_json::object();
  // Not set: the engine is not registered, or no admin endpoint has answered.
  std::optional<std::string> version;  // of its weights
  std::optional<bool> open;            // false: it finds and stores nothing before its next reset
};
// Reads what an engine has left. Errors: kCorrupt.
Result<EngineFacts> ParseFacts(const std::string& engine, std::string_view text);

struct Difference {
  std::string fact;
  std::string one;
  std::string other;
  std::string advice;
};
// Returns why the engines share nothing now; empty: they share. A fact that only one of them has
// left is none.
std::vector<Difference> DifferencesOf(const EngineFacts& one, const EngineFacts& other);

}  // namespace kvcove::cli
