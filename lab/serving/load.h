// SPDX-License-Identifier: Apache-2.0
// The load of `kvcove bench engine`: conversations of several turns, made from a seed. All values
// are immutable.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/base/result.h"

namespace kvcove::lab {

// Lengths are in tokens of the engine's model. In its turn a user writes a message and the engine
// answers. An agent's turn has `tool_steps` calls of tools between the two: the engine answers with
// a call, and the tool's result is the next message.
struct Load {
  std::string model;                   // empty: the only one of the engine
  std::string api = "completions";     // or "chat"
  std::string route = "conversation";  // all requests of one to the same engine; or "request"
  std::uint64_t conversations = 100;
  std::uint64_t turns = 3;
  std::uint64_t concurrency = 32;  // conversations at a time
  std::uint64_t system_prompts = 4;
  std::uint64_t system_tokens = 1000;  // of each system prompt
  std::uint64_t input_tokens = 2000;   // of a user's first message
  std::uint64_t turn_tokens = 200;     // of each later one
  std::uint64_t output_tokens = 128;   // of an answer
  std::uint64_t agents_percent = 25;   // of the conversations
  std::uint64_t tool_steps = 2;
  std::uint64_t tool_tokens = 400;        // of a tool's result
  std::uint64_t tool_output_tokens = 32;  // of a call
  std::uint64_t pause_ms = 0;             // between an answer and the user's next message
  std::uint64_t timeout_s = 600;          // of a request
  std::uint64_t seed = 1;

  // Returns the tokens of the longest request and its answer, without what a chat template adds.
  std::uint64_t LongestTokens() const;
  // Returns whether the conversation is an agent's: `agents_percent` of any 100 in a row are.
  bool IsAgent(std::uint64_t conversation) const;
  // Returns the engine of all requests of a conversation. Neighbours take the engines in turn, and
  // so do those that share a system prompt.
  std::uint64_t EngineOf(std::uint64_t conversation, std::uint64_t engines) const;
};

// A number and a text of a load, under the name that a file gives it; the option of the command
// has '-' for '_'.
struct LoadNumber {
  const char* key;
  std::uint64_t Load::* member;
  std::uint64_t least;
  std::uint64_t most;
  const char* help;
};
struct LoadText {
  const char* key;
  std::string Load::* member;
  std::vector<std::string> allowed;  // empty: any
  const char* help;
};
std::span<const LoadNumber> LoadNumbers();
std::span<const LoadText> LoadTexts();

// Changes what a TOML file names. Errors: kInvalid, for an unknown key with the nearest known one.
Status ReadLoad(std::string_view text, const std::string& path, Load& load);
// Errors: kInvalid for a value outside its bounds.
Status CheckLoad(const Load& load);

// One request of a conversation: what is added to it before the engine answers.
struct Step {
  std::string text;
  std::uint64_t output_tokens = 0;
  bool tool = false;         // a tool's result, not a user's message
  bool begins_turn = false;  // a user's message behind an answer
};
struct Conversation {
  std::string system;
  std::vector<Step> steps;
};

// Makes a conversation's texts, which follow from the load's seed and the number alone.
// `tokens_per_word` is that of the engine's tokenizer for the words of EveryWord.
Conversation MakeConversation(const Load& load, std::uint64_t number, double tokens_per_word);

// Returns all words of which texts are made, each once: on average a text has as many tokens a
// word.
std::string EveryWord();
constexpr std::uint64_t kDifferentWords = 64;

}  // namespace kvcove::lab
