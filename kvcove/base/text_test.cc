// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/text.h"

#include <gtest/gtest.h>

namespace kvcove {
namespace {

using namespace std::string_view_literals;

TEST(TextTest, TellsUtf8FromOtherBytes) {
  for (const std::string_view text :
       {""sv, "plain"sv, "\0\n"sv, "\xc3\xa9"sv, "\xe2\x82\xac"sv, "\xf0\x9f\x98\x80"sv,
        "\xef\xbf\xbd"sv, "\xf4\x8f\xbf\xbf"sv}) {
    EXPECT_TRUE(IsUtf8(text)) << Printable(text);
  }
  for (const std::string_view text :
       {"\xff"sv, "a\x80"sv, "\xc3"sv, "\xc3("sv, "\xe2\x82"sv, "\xc0\x80"sv, "\xe0\x80\xaf"sv,
        "\xed\xa0\x80"sv, "\xf4\x90\x80\x80"sv, "\xf8\x88\x80\x80\x80"sv}) {
    EXPECT_FALSE(IsUtf8(text)) << Printable(text);
  }
}

TEST(TextTest, ShowsNothingThatATerminalWouldObey) {
  EXPECT_EQ(Printable("model@4:0_\"x\"\\"), "model@4:0_\"x\"\\");
  EXPECT_EQ(Printable("\xc3\xa9"), "\xc3\xa9");
  EXPECT_EQ(Printable("a\nb"), "\"a\\nb\"");
  EXPECT_EQ(Printable("a\0b"sv), "\"a\\x00b\"");
  EXPECT_EQ(Printable("\x1b[2J"), "\"\\x1b[2J\"");
  EXPECT_EQ(Printable("\xe2\x80\xae"
                      "exe"),
            "\"\\u202eexe\"");
  EXPECT_EQ(Printable("\xff\"\\"), "\"\\xff\\\"\\\\\"");
}

TEST(TextTest, NoPasswordOfAnAddressIsShown) {
  EXPECT_EQ(WithoutPasswords("--memory=4GiB"), "--memory=4GiB");
  EXPECT_EQ(WithoutPasswords("master=\"kvcove://host:7400\""), "master=\"kvcove://host:7400\"");
  EXPECT_EQ(WithoutPasswords("store=\"etcd://me:secret@host:2379\""),
            "store=\"etcd://***@host:2379\"");
  EXPECT_EQ(WithoutPasswords("etcd://me:p@ss,w//ord@host"), "etcd://***@host");
  EXPECT_EQ(WithoutPasswords("etcd://me:secret@a:1,b:2"), "etcd://***@a:1,b:2");
  EXPECT_EQ(WithoutPasswords("http://me:one@a:1,https://me:t,wo@b:2,http://c:3"),
            "http://***@a:1,https://***@b:2,http://c:3");
  EXPECT_EQ(WithoutPasswords("disk=\"//mnt/a:1GiB\",\"/mnt/b@c:1GiB\""),
            "disk=\"//mnt/a:1GiB\",\"/mnt/b@c:1GiB\"");
}

}  // namespace
}  // namespace kvcove
