// SPDX-License-Identifier: Apache-2.0
#include "kvcove/http/logins.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace kvcove::http {
namespace {

using ::testing::HasSubstr;

TEST(LoginsTest, ALoginIsFoundUntilItExpires) {
  Logins logins;
  const std::string value = logins.Begin("Bearer a", 1000);
  EXPECT_EQ(value.size(), 64U);
  EXPECT_EQ(logins.Find(value, 1000).authorization, "Bearer a");
  EXPECT_EQ(logins.Find(value, 1000).left_ns, Logins::kLifetimeNs);
  EXPECT_EQ(logins.Find(value, 999 + Logins::kLifetimeNs).left_ns, 1);
  EXPECT_EQ(logins.Find(value, 1000 + Logins::kLifetimeNs).authorization, "");
}

TEST(LoginsTest, NoOtherValueIsFound) {
  Logins logins;
  const std::string value = logins.Begin("Bearer a", 0);
  std::string other = value;
  other.back() = other.back() == '0' ? '1' : '0';
  for (const std::string& wrong : {other, value.substr(1), value + "0", std::string()}) {
    EXPECT_EQ(logins.Find(wrong, 1).authorization, "") << wrong;
  }
}

TEST(LoginsTest, ALoginEndsAlone) {
  Logins logins;
  const std::string first = logins.Begin("Bearer a", 0);
  const std::string second = logins.Begin("Bearer b", 0);
  logins.End(first);
  EXPECT_EQ(logins.Find(first, 1).authorization, "");
  EXPECT_EQ(logins.Find(second, 1).authorization, "Bearer b");
}

TEST(LoginsTest, AtTheLimitTheOldestEnds) {
  Logins logins;
  std::vector<std::string> values;
  for (std::size_t i = 0; i <= Logins::kMax; ++i) values.push_back(logins.Begin("Bearer a", 0));
  EXPECT_EQ(logins.Find(values[0], 1).authorization, "");
  EXPECT_EQ(logins.Find(values[1], 1).authorization, "Bearer a");
  EXPECT_EQ(logins.Find(values.back(), 1).authorization, "Bearer a");
  EXPECT_EQ(std::set<std::string>(values.begin(), values.end()).size(), values.size());
}

TEST(CookieTest, TwoPortsOfAHostHaveTwoCookies) {
  EXPECT_EQ(CookieName("127.0.0.1:7480"), "kvcove_login_7480");
  EXPECT_EQ(CookieName("localhost"), "kvcove_login_80");
  EXPECT_EQ(CookieName("[::1]:9"), "kvcove_login_9");
  EXPECT_EQ(CookieName("[::1]"), "kvcove_login_80");
}

TEST(CookieTest, IsFoundAmongOthers) {
  EXPECT_EQ(CookieIn("a=1; kvcove_login_9=x; b=2", "kvcove_login_9"), "x");
  EXPECT_EQ(CookieIn("kvcove_login_90=y;kvcove_login_9=x", "kvcove_login_9"), "x");
  EXPECT_EQ(CookieIn("kvcove_login_90=y", "kvcove_login_9"), "");
  EXPECT_EQ(CookieIn("kvcove_login_9", "kvcove_login_9"), "");
  EXPECT_EQ(CookieIn("", "kvcove_login_9"), "");
  EXPECT_EQ(CookieIn(";;;", "kvcove_login_9"), "");
}

TEST(CookieTest, NoScriptAndNoOtherSiteHasIt) {
  EXPECT_EQ(SetCookie("n", "v", false), "n=v; Path=/; Max-Age=28800; HttpOnly; SameSite=Strict");
  EXPECT_THAT(SetCookie("n", "v", true), HasSubstr("; Secure"));
  EXPECT_THAT(SetCookie("n", "", false), HasSubstr("Max-Age=0;"));
}

}  // namespace
}  // namespace kvcove::http
