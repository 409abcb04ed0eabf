// SPDX-License-Identifier: Apache-2.0
#include "kvcove/top/keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvcove::top {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

Key Text(std::string text) { return {.kind = Key::Kind::kText, .text = std::move(text)}; }
Key Of(Key::Kind kind) { return {.kind = kind}; }

TEST(KeysTest, SequencesAreKeysWhereverTheirBytesAreCut) {
  KeyReader reader;
  EXPECT_THAT(reader.Take("q\x1b[A\x1b[6~\x1bOB\t"),
              ElementsAre(Text("q"), Of(Key::Kind::kUp), Of(Key::Kind::kPageDown),
                          Of(Key::Kind::kDown), Of(Key::Kind::kTab)));
  for (const char* byte : {"\x1b", "[", "5"}) EXPECT_THAT(reader.Take(byte), IsEmpty());
  EXPECT_THAT(reader.Take("~x"), ElementsAre(Of(Key::Kind::kPageUp), Text("x")));
  EXPECT_FALSE(reader.pending());
}

TEST(KeysTest, EscapeIsAKeyWhenNothingFollows) {
  KeyReader reader;
  EXPECT_THAT(reader.Take("\x1b"), IsEmpty());
  EXPECT_TRUE(reader.pending());
  EXPECT_THAT(reader.Flush(), ElementsAre(Of(Key::Kind::kEscape)));
  EXPECT_FALSE(reader.pending());
  EXPECT_THAT(reader.Take("\x1bz"), ElementsAre(Of(Key::Kind::kEscape), Text("z")));
  EXPECT_THAT(reader.Take("\x1b["), IsEmpty());
  EXPECT_THAT(reader.Flush(), ElementsAre(Of(Key::Kind::kEscape), Text("[")));
}

TEST(KeysTest, UnknownKeysAndControlCharactersDoNothing) {
  KeyReader reader;
  EXPECT_THAT(reader.Take("\x1b[25~\x1b[1;5Cok\x01"), ElementsAre(Text("o"), Text("k")));
  EXPECT_THAT(reader.Take("\x1b[" + std::string(100, '1')), IsEmpty());
  EXPECT_FALSE(reader.pending()) << "no key is so long";
}

TEST(KeysTest, CharactersArriveWhole) {
  KeyReader reader;
  EXPECT_THAT(reader.Take("\xc3"), IsEmpty());
  EXPECT_THAT(reader.Take("\xa9\r\x7f"),
              ElementsAre(Text("\u00e9"), Of(Key::Kind::kEnter), Of(Key::Kind::kBackspace)));
}

}  // namespace
}  // namespace kvcove::top
