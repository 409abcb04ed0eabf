// SPDX-License-Identifier: Apache-2.0
#include "kvcove/model/ids.h"

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

}  // namespace
}  // namespace kvcove
