// SPDX-License-Identifier: Apache-2.0
#include "lab/serving/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "kvcove/base/keys.h"
#include "kvcove/base/random.h"
#include "kvcove/rpc/toml.h"

namespace kvcove::lab {
namespace {

constexpr std::uint64_t kMostTokens = 10'000'000;

constexpr std::array kLoadNumbers = {
    LoadNumber{"conversations", &Load::conversations, 1, 1'000'000, "number of conversations"},
    LoadNumber{"turns", &Load::turns, 1, 1000, "user's messages of a conversation"},
    LoadNumber{"concurrency", &Load::concurrency, 1, 1024, "conversations at a time"},
    LoadNumber{"system_prompts", &Load::system_prompts, 1, 1'000'000,
               "different system prompts, which the conversations share in turn"},
    LoadNumber{"system_tokens", &Load::system_tokens, 0, kMostTokens, "tokens of a system prompt"},
    LoadNumber{"input_tokens", &Load::input_tokens, 1, kMostTokens,
               "tokens of a user's first message"},
    LoadNumber{"turn_tokens", &Load::turn_tokens, 1, kMostTokens,
               "tokens of each later message of a user"},
    LoadNumber{"output_tokens", &Load::output_tokens, 1, kMostTokens, "tokens of an answer"},
    LoadNumber{"agents_percent", &Load::agents_percent, 0, 100,
               "percent of the conversations that are agents, whose turns have calls of tools"},
    LoadNumber{"tool_steps", &Load::tool_steps, 0, 1000, "calls of tools in each turn of an agent"},
    LoadNumber{"tool_tokens", &Load::tool_tokens, 1, kMostTokens, "tokens of a tool's result"},
    LoadNumber{"tool_output_tokens", &Load::tool_output_tokens, 1, kMostTokens,
               "tokens with which the engine calls a tool"},
    LoadNumber{"pause_ms", &Load::pause_ms, 0, 3'600'000,
               "milliseconds between an answer and the user's next message"},
    LoadNumber{"timeout_s", &Load::timeout_s, 1, 86'400,
               "seconds that a request may take; its conversation is lost then"},
    LoadNumber{"seed", &Load::seed, 0, std::uint64_t{1} << 62, "seed of all texts"},
};

const std::array<LoadText, 3>& Texts() {
  static const std::array<LoadText, 3> texts = {
      LoadText{"model", &Load::model, {}, "name of the model (default: the engine's only one)"},
      LoadText{"api", &Load::api, {"completions", "chat"}, "path of the requests below /v1"},
      LoadText{"route",
               &Load::route,
               {"conversation", "request"},
               "engine of a request, where there are several: one for all requests of a "
               "conversation, or the next one for each request"}};
  return texts;
}

// Short words of which most tokenizers have one token each, with the space before it.
constexpr std::array<std::string_view, kDifferentWords> kWords = {
    "time",     "year",  "people", "way",     "day",    "man",      "thing",  "woman",
    "life",     "child", "world",  "school",  "state",  "family",   "group",  "country",
    "hand",     "part",  "place",  "case",    "week",   "company",  "system", "program",
    "question", "work",  "number", "night",   "point",  "home",     "water",  "room",
    "mother",   "area",  "money",  "story",   "fact",   "month",    "lot",    "right",
    "study",    "book",  "eye",    "job",     "word",   "business", "issue",  "side",
    "kind",     "head",  "house",  "service", "friend", "father",   "power",  "hour",
    "game",     "line",  "end",    "member",  "law",    "car",      "city",   "name"};

// What a text is for; texts of different uses differ.
enum class Use : std::uint64_t { kSystem, kStep };

std::uint64_t SeedOf(const Load& load, Use use, std::uint64_t a, std::uint64_t b) {
  const std::uint64_t which = Mix64(load.seed * 2 + static_cast<std::uint64_t>(use));
  return Mix64(Mix64(which + a) + b);
}

// Returns a text of so many words, which follow from `seed`.
std::string WordsOf(std::uint64_t seed, std::uint64_t words) {
  Random random(seed);
  std::string text;
  for (std::uint64_t i = 0; i < words; ++i) {
    if (i > 0) text += ' ';
    text += kWords[random.Below(kWords.size())];
  }
  return text;
}

std::uint64_t WordsFor(std::uint64_t tokens, double tokens_per_word) {
  const double words = std::round(static_cast<double>(tokens) / tokens_per_word);
  return tokens == 0 ? 0 : std::max<std::uint64_t>(1, static_cast<std::uint64_t>(words));
}

std::vector<std::string_view> KeysOfLoad() {
  std::vector<std::string_view> keys;
  for (const LoadText& text : LoadTexts()) keys.emplace_back(text.key);
  for (const LoadNumber& number : LoadNumbers()) keys.emplace_back(number.key);
  return keys;
}

}  // namespace

std::span<const LoadNumber> LoadNumbers() { return kLoadNumbers; }
std::span<const LoadText> LoadTexts() { return Texts(); }

std::uint64_t Load::LongestTokens() const {
  const std::uint64_t tools =
      agents_percent > 0 ? tool_steps * (tool_tokens + tool_output_tokens) : 0;
  return system_tokens + input_tokens + (turns - 1) * turn_tokens + turns * (output_tokens + tools);
}

bool Load::IsAgent(std::uint64_t conversation) const {
  // 61 and 100 have no divisor in common, so 100 in a row have each remainder once. Were every n-th
  // conversation an agent's, all agents could have one system prompt and one engine.
  return conversation * 61 % 100 < agents_percent;
}

std::uint64_t Load::EngineOf(std::uint64_t conversation, std::uint64_t engines) const {
  return (conversation % system_prompts + conversation / system_prompts) % engines;
}

Status ReadLoad(std::string_view text, const std::string& path, Load& load) {
  KVCOVE_ASSIGN(const toml::table table, rpc::ParseToml(text, path));
  for (const auto& [key, value] : table) {
    const auto number = std::ranges::find(LoadNumbers(), key.str(), &LoadNumber::key);
    const auto named = std::ranges::find(LoadTexts(), key.str(), &LoadText::key);
    const std::string where = fmt::format("{}:{}: {}", path, value.source().begin.line, key.str());
    if (number != LoadNumbers().end()) {
      const auto read = value.value_exact<std::int64_t>();
      if (!read || *read < 0) {
        return Fail(Code::kInvalid, fmt::format("{}: write a number from {} to {}", where,
                                                number->least, number->most));
      }
      load.*number->member = static_cast<std::uint64_t>(*read);
    } else if (named != LoadTexts().end()) {
      if (!value.is_string()) {
        return Fail(Code::kInvalid, fmt::format("{}: write a text in quotes", where));
      }
      load.*named->member = value.as_string()->get();
    } else {
      return UnknownKey(fmt::format("key of the load '{}'", path), key.str(), KeysOfLoad());
    }
  }
  return {};
}

Status CheckLoad(const Load& load) {
  for (const LoadNumber& number : LoadNumbers()) {
    const std::uint64_t value = load.*number.member;
    if (value >= number.least && value <= number.most) continue;
    return Fail(Code::kInvalid, fmt::format("{} is {}: it may be {} to {}", number.key, value,
                                            number.least, number.most));
  }
  for (const LoadText& text : LoadTexts()) {
    const std::string& value = load.*text.member;
    if (text.allowed.empty() || std::ranges::find(text.allowed, value) != text.allowed.end()) {
      continue;
    }
    return Fail(Code::kInvalid, fmt::format("{} is '{}': it may be {} or {}", text.key, value,
                                            text.allowed[0], text.allowed[1]));
  }
  return {};
}

std::string EveryWord() { return fmt::format("{}", fmt::join(kWords, " ")); }

Conversation MakeConversation(const Load& load, std::uint64_t number, double tokens_per_word) {
  const auto words = [&](std::uint64_t tokens) { return WordsFor(tokens, tokens_per_word); };
  const std::uint64_t system = number % load.system_prompts;
  Conversation made;
  made.system = WordsOf(SeedOf(load, Use::kSystem, system, 0), words(load.system_tokens));
  const std::uint64_t tools = load.IsAgent(number) ? load.tool_steps : 0;
  for (std::uint64_t turn = 0; turn < load.turns; ++turn) {
    for (std::uint64_t step = 0; step <= tools; ++step) {
      const std::uint64_t tokens = step > 0    ? load.tool_tokens
                                   : turn == 0 ? load.input_tokens
                                               : load.turn_tokens;
      const std::uint64_t seed = SeedOf(load, Use::kStep, number, made.steps.size());
      made.steps.push_back(
          {.text = WordsOf(seed, words(tokens)),
           .output_tokens = step == tools ? load.output_tokens : load.tool_output_tokens,
           .tool = step > 0,
           .begins_turn = step == 0 && turn > 0});
    }
  }
  return made;
}

}  // namespace kvcove::lab
