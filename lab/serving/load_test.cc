// SPDX-License-Identifier: Apache-2.0
#include "lab/serving/load.h"

#include <gmock/gmock.h>

#include <map>
#include <set>
#include <sstream>

namespace kvcove::lab {
namespace {

using ::testing::HasSubstr;

std::uint64_t CountWords(const std::string& text) {
  return text.empty() ? 0 : 1 + static_cast<std::uint64_t>(std::ranges::count(text, ' '));
}

TEST(LoadTest, TheSeedMakesTheTexts) {
  Load load;
  const Conversation made = MakeConversation(load, 7, 1.0);
  EXPECT_EQ(MakeConversation(load, 7, 1.0).steps[0].text, made.steps[0].text);
  EXPECT_NE(MakeConversation(load, 8, 1.0).steps[0].text, made.steps[0].text);
  EXPECT_NE(made.steps[1].text, made.steps[2].text);
  load.seed = 2;
  EXPECT_NE(MakeConversation(load, 7, 1.0).steps[0].text, made.steps[0].text);
  EXPECT_NE(MakeConversation(load, 7, 1.0).system, made.system);
}

TEST(LoadTest, ConversationsShareSystemPrompts) {
  Load load;
  load.system_prompts = 3;
  std::set<std::string> prompts;
  for (std::uint64_t i = 0; i < 30; ++i) prompts.insert(MakeConversation(load, i, 1.0).system);
  EXPECT_EQ(prompts.size(), 3);
  EXPECT_EQ(MakeConversation(load, 1, 1.0).system, MakeConversation(load, 4, 1.0).system);
}

TEST(LoadTest, AnAgentsTurnHasCallsOfTools) {
  Load load{.model = {}, .turns = 2, .system_tokens = 10, .input_tokens = 20, .turn_tokens = 5};
  load.output_tokens = 8;
  load.agents_percent = 100;
  load.tool_steps = 2;
  load.tool_tokens = 6;
  load.tool_output_tokens = 3;
  const Conversation made = MakeConversation(load, 0, 1.0);
  ASSERT_EQ(made.steps.size(), 6);
  std::uint64_t tokens = CountWords(made.system);
  for (std::size_t i = 0; i < made.steps.size(); ++i) {
    const Step& step = made.steps[i];
    EXPECT_EQ(step.tool, i % 3 != 0) << i;
    EXPECT_EQ(step.begins_turn, i == 3) << i;
    EXPECT_EQ(step.output_tokens, i % 3 == 2 ? 8 : 3) << i;
    EXPECT_EQ(CountWords(step.text), i == 0 ? 20 : i == 3 ? 5 : 6) << i;
    tokens += CountWords(step.text) + step.output_tokens;
  }
  EXPECT_EQ(load.LongestTokens(), tokens);
  load.agents_percent = 0;
  EXPECT_EQ(MakeConversation(load, 0, 1.0).steps.size(), 2);
  EXPECT_EQ(load.LongestTokens(), 10 + 20 + 5 + 2 * 8);
}

TEST(LoadTest, SoManyOfAHundredAreAgents) {
  Load load;
  load.agents_percent = 30;
  int agents = 0;
  for (std::uint64_t i = 45; i < 145; ++i) agents += load.IsAgent(i) ? 1 : 0;
  EXPECT_EQ(agents, 30);
}

TEST(LoadTest, AgentsHaveAllSystemPromptsAndEngines) {
  for (const std::uint64_t shared : {1, 2, 4}) {
    Load load;
    load.system_prompts = shared;
    std::map<std::uint64_t, int> of_prompt;
    std::map<std::uint64_t, int> of_engine;
    for (std::uint64_t i = 0; i < 400; ++i) {
      if (!load.IsAgent(i)) continue;
      ++of_prompt[i % shared];
      ++of_engine[load.EngineOf(i, 4)];
    }
    EXPECT_EQ(of_prompt.size(), shared);
    EXPECT_EQ(of_engine.size(), 4);
    for (const auto& [prompt, agents] : of_prompt) EXPECT_NEAR(agents, 100.0 / shared, 10);
    for (const auto& [engine, agents] : of_engine) EXPECT_NEAR(agents, 25, 10);
  }
}

TEST(LoadTest, EachEngineServesEachSystemPrompt) {
  Load load;
  load.system_prompts = 4;
  std::map<std::pair<std::uint64_t, std::uint64_t>, int> conversations;
  for (std::uint64_t i = 0; i < 96; ++i) ++conversations[{i % 4, load.EngineOf(i, 4)}];
  EXPECT_EQ(conversations.size(), 16);
  for (const auto& [which, count] : conversations) EXPECT_EQ(count, 6);
}

TEST(LoadTest, EveryWordIsThereOnce) {
  const std::string words = EveryWord();
  EXPECT_EQ(CountWords(words), kDifferentWords);
  std::set<std::string> different;
  std::istringstream stream(words);
  for (std::string word; stream >> word;) different.insert(word);
  EXPECT_EQ(different.size(), kDifferentWords);
}

TEST(LoadTest, LengthsAreThoseOfTheTokenizer) {
  const Load load{.model = {}, .input_tokens = 1000};
  EXPECT_EQ(CountWords(MakeConversation(load, 0, 2.5).steps[0].text), 400);
}

TEST(LoadTest, AFileNamesWhatItChanges) {
  Load load;
  ASSERT_TRUE(ReadLoad("turns = 5\nmodel = \"m\"\napi = \"chat\"\n", "l.toml", load));
  EXPECT_EQ(load.turns, 5);
  EXPECT_EQ(load.model, "m");
  EXPECT_EQ(load.api, "chat");
  EXPECT_EQ(load.conversations, Load().conversations);
  EXPECT_TRUE(CheckLoad(load));
}

TEST(LoadTest, AWrongFileIsNamedWithItsLine) {
  const struct {
    const char* text;
    const char* error;
  } cases[] = {
      {"turns = 5\nconversation = 3\n",
       "unknown key of the load 'l.toml' 'conversation'; did you mean "
       "'conversations'?"},
      {"turns = \"5\"\n", "l.toml:1: turns: write a number from 1 to 1000"},
      {"\nturns = -1\n", "l.toml:2: turns: write a number from 1 to 1000"},
      {"turns = 1.5\n", "l.toml:1: turns: write a number"},
      {"model = 3\n", "l.toml:1: model: write a text in quotes"},
      {"turns = \n", "l.toml:1: "},
      {"# \xc3\xa4\n", "l.toml:1: a byte that is not ASCII"},
  };
  for (const auto& wrong : cases) {
    Load load;
    const Status read = ReadLoad(wrong.text, "l.toml", load);
    ASSERT_FALSE(read) << wrong.text;
    EXPECT_THAT(read.error().detail, HasSubstr(wrong.error));
  }
}

TEST(LoadTest, ValuesHaveBounds) {
  Load load{.model = {}, .turns = 0};
  EXPECT_THAT(CheckLoad(load).error().detail, HasSubstr("turns is 0: it may be 1 to 1000"));
  load = {.model = {}, .route = "random"};
  EXPECT_THAT(CheckLoad(load).error().detail,
              HasSubstr("route is 'random': it may be conversation or request"));
}

}  // namespace
}  // namespace kvcove::lab
