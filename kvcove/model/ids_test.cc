// SPDX-License-Identifier: Apache-2.0
#include "kvcove/model/ids.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace kvcove {
namespace {

TEST(TokenTest, SurvivesItsText) {
  const Token token{.incarnation = {0x0123456789abcdef, 7}, .generation = 42, .slot = 4095};
  const auto parsed = Token::Parse(token.ToString());
  ASSERT_TRUE(parsed);
  EXPECT_EQ(*parsed, token);
}

TEST(TokenTest, RefusesOtherText) {
  for (const std::string& wrong : {std::string("x"), std::string(52, 'g'), std::string(51, '0')}) {
    EXPECT_EQ(Token::Parse(wrong).error().code, Code::kInvalid);
  }
}

TEST(LimitsTest, SayWhatWouldBeRight) {
  EXPECT_TRUE(CheckKey(std::string(kMaxKeyBytes, 'k')));
  EXPECT_NE(CheckKey(std::string(kMaxKeyBytes + 1, 'k')).error().detail.find("1024"),
            std::string::npos);
  EXPECT_FALSE(CheckKey(""));
  EXPECT_FALSE(CheckObjectSize(0));
  EXPECT_TRUE(CheckObjectSize(kMaxObjectBytes));
  EXPECT_FALSE(CheckObjectSize(kMaxObjectBytes + 1));
}

// Other processes parse the one, and find keys by the others.
TEST(TokenTest, ItsTextIsThis) {
  const Token token{.incarnation = {0x0123456789abcdef, 7}, .generation = 42, .slot = 4095};
  EXPECT_EQ(token.ToString(), "0123456789abcdef0000000000000007000000000000002a0fff");
}

TEST(NamesTest, TheseNumbersStandForKeysAndTenantsInEveryBuild) {
  const Id128 hash = DirectoryHash(3, "golden");
  EXPECT_EQ(fmt::format("{:016x} {:016x}", hash.high, hash.low),
            "ad5e0672c2ee46fb ebf11a55adfdef22");
  EXPECT_EQ(fmt::format("{:016x}", TenantTag("acme")), "44ad98655d8858e1");
  EXPECT_EQ(QualifiedName("acme", "m"), std::string_view("acme\x1Fm"));
}

}  // namespace
}  // namespace kvcove
