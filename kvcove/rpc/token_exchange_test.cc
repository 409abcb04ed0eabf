// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/token_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvcove/rpc/credentials.h"

namespace kvcove::rpc {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string Token(char digit) { return std::string(64, digit); }

std::vector<std::string> TokensOf(const std::string& text, const std::string& tenant) {
  const auto table = ParseTenants(text, "servers.toml");
  return table ? table->at(tenant).tokens : std::vector<std::string>{table.error().ToString()};
}

// The ways in which a file may write a list of tokens; %s stands for them.
std::vector<std::string> Forms(const std::string& tokens, const std::string& in_lines) {
  const std::string other =
      "[tenants.other]\ntokens = [\"" + Token('0') + "\"]\nscopes = [\"read\"]\n";
  return {
      "# of acme\n" + other + "[tenants.acme] # ours\ntokens = [" + tokens +
          "] # one\nscopes = [\"read\"]\n",
      "[tenants.\"acme\"]\r\nscopes = [\"read\"]\r\ntokens = [ " + tokens + " ]\r\n" + other,
      "[tenants.acme]\ntokens = [\n" + in_lines + "]\nscopes = [\"write\"]\n" + other,
      "[tenants]\nother = {tokens = [\"" + Token('0') +
          "\"], scopes = [\"read\"]}\nacme = {scopes = [\"read\"], tokens = [" + tokens + "]}\n",
  };
}

TEST(TokenExchangeTest, ATokenIsAddedBehindTheOthersAndTheRestStays) {
  for (const std::string& text :
       Forms("'" + Token('a') + "'", "\t\"" + Token('a') + "\", # old\n")) {
    const auto added = WithTokenAdded(text, "servers.toml", "acme", Token('b'));
    ASSERT_TRUE(added) << text << added.error().ToString();
    EXPECT_THAT(TokensOf(*added, "acme"), ElementsAre(Token('a'), Token('b'))) << *added;
    EXPECT_THAT(TokensOf(*added, "other"), ElementsAre(Token('0')));
    std::string rest = *added;
    const std::string news = ", \"" + Token('b') + "\"";
    ASSERT_NE(rest.find(news), std::string::npos);
    EXPECT_EQ(rest.erase(rest.find(news), news.size()), text);
  }
}

TEST(TokenExchangeTest, TheLastTokenStaysWhenTheOthersAreStruckOff) {
  const std::string lines = "  \"" + Token('a') + "\", # old\n  \"" + Token('b') + "\",\n  \"" +
                            Token('c') + "\", # new\n";
  for (const std::string& text :
       Forms("\"" + Token('a') + "\", \"" + Token('b') + "\",\"" + Token('c') + "\"", lines)) {
    const auto left = WithLastToken(text, "servers.toml", "acme");
    ASSERT_TRUE(left) << text << left.error().ToString();
    EXPECT_THAT(TokensOf(*left, "acme"), ElementsAre(Token('c'))) << *left;
    EXPECT_THAT(TokensOf(*left, "other"), ElementsAre(Token('0')));
  }
}

TEST(TokenExchangeTest, TheOnlyTokenIsNotStruckOff) {
  const std::string text = Forms("\"" + Token('a') + "\"", "").front();
  EXPECT_THAT(WithLastToken(text, "servers.toml", "acme").error().detail,
              HasSubstr("has one token only"));
}

TEST(TokenExchangeTest, ATenantWithoutAnEntryAndAFileWithAMistakeAreRefused) {
  const std::string text = Forms("\"" + Token('a') + "\"", "").front();
  EXPECT_THAT(WithTokenAdded(text, "servers.toml", "acne", Token('b')).error().detail,
              HasSubstr("has no tenant 'acne'"));
  EXPECT_THAT(WithTokenAdded(text + "]", "servers.toml", "acme", Token('b')).error().detail,
              HasSubstr("servers.toml:"));
}

}  // namespace
}  // namespace kvcove::rpc
