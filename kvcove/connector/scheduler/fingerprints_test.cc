// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/scheduler/fingerprints.h"

#include <gtest/gtest.h>

#include "kvcove/base/hash.h"

namespace kvcove::connector {
namespace {

// Two data-parallel engines of two ranks; four experts, one a rank.
const std::vector<std::string> kOneEngine{"a;4;0.0=p", "b;4;0.1=q"};
const std::vector<std::string> kOtherEngine{"a;4;0.2=r", "b;4;0.3=s"};

std::string EngineText(const std::vector<std::string>& ranks) { return TextOf(*Joined(ranks)); }
std::optional<std::string> Version(const std::vector<std::string>& own,
                                   const std::vector<std::vector<std::string>>& peers) {
  std::vector<std::string> texts;
  for (const auto& peer : peers) texts.push_back(EngineText(peer));
  return VersionWith(*Joined(own), texts);
}

TEST(FingerprintsTest, RanksWithoutExpertsApartHaveTheVersionOfTheirDigests) {
  EXPECT_EQ(Version({"a", "b"}, {}), "w" + ToHex(Hash128("a|b|", 0)));
  EXPECT_NE(Version({"a", "b"}, {}), Version({"b", "a"}, {}));
}

TEST(FingerprintsTest, DataParallelEnginesOfOneModelHaveOneVersion) {
  const auto version = Version(kOneEngine, {kOtherEngine});
  ASSERT_TRUE(version);
  EXPECT_EQ(Version(kOtherEngine, {kOneEngine}), version);
  EXPECT_EQ(Version({"a;4;0.0=p,0.1=q", "b;4;0.2=r,0.3=s"}, {}), version) << "all in one engine";
  EXPECT_NE(Version(kOneEngine, {{"a;4;0.2=x", "b;4;0.3=s"}}), version);
}

TEST(FingerprintsTest, WhereExpertsLieDoesNotMatterAndCopiesDoNot) {
  const auto version = Version(kOneEngine, {kOtherEngine});
  EXPECT_EQ(Version({"a;4;0.3=s,0.0=p", "b;4;0.1=q,0.3=s"}, {{"a;4;0.2=r", "b;4;0.0=p"}}), version);
}

TEST(FingerprintsTest, NothingIsKnownWhileExpertsAreMissingOrPeersDiffer) {
  EXPECT_FALSE(Version(kOneEngine, {}));
  EXPECT_FALSE(Version(kOneEngine, {{"a;4;0.2=r", "b;4;0.0=p"}})) << "0.3 is nowhere";
  EXPECT_FALSE(Version(kOneEngine, {{"a;4;0.2=r", "c;4;0.3=s"}})) << "another update";
  EXPECT_FALSE(VersionWith(*Joined(kOneEngine), {"a|b|;many"}));
}

TEST(FingerprintsTest, CopiesThatDifferAreAVersionOfTheirOwn) {
  const auto torn = Version(kOneEngine, {{"a;4;0.2=r,0.0=z", "b;4;0.3=s"}});
  ASSERT_TRUE(torn);
  EXPECT_NE(torn, Version(kOneEngine, {kOtherEngine}));
  EXPECT_EQ(torn, Version({"a;4;0.0=z,0.1=q", "b;4;0.2=r"}, {{"a;4;0.0=p", "b;4;0.3=s"}}));
}

TEST(FingerprintsTest, AnEngineAloneHasAVersionOfItsOwn) {
  EXPECT_NE(VersionAlone(*Joined(kOneEngine)), VersionAlone(*Joined(kOtherEngine)));
  EXPECT_NE(VersionAlone(*Joined(kOneEngine)), *Version(kOneEngine, {kOtherEngine}));
}

TEST(FingerprintsTest, TextsAreReadAsTheyWereWritten) {
  for (const char* text : {"a", "a;4;", "a;4;0.1=x,12.30=y"}) {
    const Result<WeightsPrint> print = ParsePrint(text);
    ASSERT_TRUE(print) << text;
    EXPECT_EQ(TextOf(*print), text);
  }
  for (const char* text : {"a;x;", "a;4;b", "a;4;=b", "a;4;b=", "a;-1;b=c"}) {
    EXPECT_FALSE(ParsePrint(text)) << text;
  }
}

// Engines of other builds find what was stored under it.
TEST(FingerprintsTest, AVersionsNameIsThis) {
  EXPECT_EQ(Version({"a", "b"}, {}), "w91cbb8036a24aebe044a4669a279d199");
  EXPECT_EQ(Version(kOneEngine, {kOtherEngine}), "w37c235c00d2a18803530135174655f0e");
}

}  // namespace
}  // namespace kvcove::connector
