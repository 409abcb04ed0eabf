// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/shape.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace kvcove::connector {
namespace {

EngineShape Shape(std::uint32_t tp, std::uint32_t heads, std::uint32_t store_tp = 0) {
  EngineShape shape{.model_name = "m",
                    .model = "abc",
                    .kv_dtype = "bf16",
                    .hashing = "sha256",
                    .tp = tp,
                    .store_tp = store_tp};
  shape.groups = {{.heads = heads, .layout = "HNC"}};
  return shape;
}

std::set<std::string> TagsOfAllRanks(const EngineShape& shape) {
  const Keys keys(shape);
  std::set<std::string> tags;
  for (std::uint32_t pp = 0; pp < shape.pp; ++pp) {
    for (std::uint32_t tp = 0; tp < shape.tp; ++tp) {
      for (const Part& part : keys.PartsOf({.tp = tp, .pp = pp}, 0)) tags.insert(part.tag);
    }
  }
  return tags;
}

TEST(ShapeTest, NothingThatMustNotBeMixedIsInOneNamespace) {
  const EngineShape base = Shape(1, 8);
  std::set<std::string> names = {base.Namespace()};
  const auto other = [&](auto change) {
    EngineShape shape = base;
    change(shape);
    EXPECT_TRUE(names.insert(shape.Namespace()).second);
  };
  other([](EngineShape& s) { s.model = "abd"; });  // of the same base name
  other([](EngineShape& s) { s.kv_dtype = "fp8"; });
  other([](EngineShape& s) { s.hashing = "sha256:other seed"; });
  other([](EngineShape& s) { s.hash_tokens = 8; });
  other([](EngineShape& s) { s.groups[0].chunk_tokens = 32; });
  other([](EngineShape& s) { s.groups[0].layout = "NHC"; });
  other([](EngineShape& s) { s.groups[0].kind = GroupKind::kState; });
  other([](EngineShape& s) { s.space = "acme"; });
  other([](EngineShape& s) { s.pp = 2; });
  other([](EngineShape& s) { s.layers = "layers.0,layers.1"; });
  other([](EngineShape& s) { s.layers = "layers.0,layers.1,draft.0"; });
  // How context-parallel ranks take turns.
  for (const std::uint32_t interleave : {1U, 4U}) {
    other([&](EngineShape& s) { s.dcp = 2, s.interleave = interleave; });
    other([&](EngineShape& s) { s.pcp = 2, s.interleave = interleave; });
  }
  // Ranks are told apart by the key, so that sizes that permit it share.
  EngineShape tp = base;
  tp.tp = 2;
  EXPECT_EQ(tp.Namespace(), base.Namespace());
  // Without context parallelism nobody takes turns.
  EngineShape alone = base;
  alone.interleave = 4;
  EXPECT_EQ(alone.Namespace(), base.Namespace());
}

TEST(ShapeTest, ALookupAsksForEveryShardThatRanksHold) {
  for (const auto& [tp, heads] : std::vector<std::pair<std::uint32_t, std::uint32_t>>{
           {1, 8}, {2, 8}, {8, 8}, {8, 2}, {8, 1}, {4, 1}}) {
    const EngineShape shape = Shape(tp, heads);
    ASSERT_TRUE(shape.Check());
    const Keys keys(shape);
    const std::set<std::string> asked(keys.Tags(0).begin(), keys.Tags(0).end());
    EXPECT_EQ(asked, TagsOfAllRanks(shape)) << "TP " << tp << ", " << heads << " heads";
    EXPECT_EQ(keys.Copies(0), tp / std::min(tp, heads));
  }
}

// DEF-2: fewer KV heads than ranks.
TEST(ShapeTest, RanksWithEqualBytesShareKeysAndTheWork) {
  const EngineShape shape = Shape(8, 2);
  const Keys keys(shape);
  EXPECT_EQ(keys.PartsOf({.tp = 0}, 0)[0].tag, keys.PartsOf({.tp = 3}, 0)[0].tag);
  EXPECT_NE(keys.PartsOf({.tp = 3}, 0)[0].tag, keys.PartsOf({.tp = 4}, 0)[0].tag);
  for (std::uint64_t chunk = 0; chunk < 8; ++chunk) {
    int writers = 0;
    for (std::uint32_t tp = 0; tp < 4; ++tp) writers += keys.Stores({.tp = tp}, 0, chunk) ? 1 : 0;
    EXPECT_EQ(writers, 1);
  }
}

TEST(ShapeTest, OtherParallelSizesShareWhereTheyAreCutAlike) {
  EXPECT_EQ(TagsOfAllRanks(Shape(2, 8, 4)), TagsOfAllRanks(Shape(4, 8, 4)));
  EXPECT_EQ(TagsOfAllRanks(Shape(1, 8, 4)), TagsOfAllRanks(Shape(4, 8)));
  const Keys keys(Shape(2, 8, 4));
  const std::vector<Part> parts = keys.PartsOf({.tp = 1}, 0);
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0].tag, "g0.h2of4");
  EXPECT_EQ(parts[0].first_head, 0U);
  EXPECT_EQ(parts[1].first_head, 2U);
  EXPECT_EQ(parts[1].heads, 2U);
}

TEST(ShapeTest, ContextParallelRanksHaveKeysOfTheirOwn) {
  EngineShape shape = Shape(4, 8);
  shape.dcp = 2;
  shape.pcp = 2;
  ASSERT_TRUE(shape.Check());
  const Keys keys(shape);
  EXPECT_EQ(keys.Tags(0).size(), 8U);
  EXPECT_EQ(keys.Copies(0), 1U);
  EXPECT_EQ(keys.PartsOf({.tp = 3, .pcp = 1}, 0)[0].tag, "g0.h3of4.c1of2.d1of2");
}

// Without DCP each of them has the KV of all tokens.
TEST(ShapeTest, PrefillContextParallelRanksStoreOnceAndTakeTurns) {
  EngineShape shape = Shape(4, 2);
  shape.pcp = 2;
  ASSERT_TRUE(shape.Check());
  const Keys keys(shape);
  EXPECT_EQ(keys.Tags(0), (std::vector<std::string>{"g0.h0of2", "g0.h1of2"}));
  EXPECT_EQ(keys.Copies(0), 4U);
  for (std::uint64_t chunk = 0; chunk < 8; ++chunk) {
    std::map<std::string, int> writers;
    for (std::uint32_t tp = 0; tp < 4; ++tp) {
      for (std::uint32_t pcp = 0; pcp < 2; ++pcp) {
        const Rank rank{.tp = tp, .pcp = pcp};
        writers[keys.PartsOf(rank, 0)[0].tag] += keys.Stores(rank, 0, chunk) ? 1 : 0;
      }
    }
    EXPECT_EQ(writers, (std::map<std::string, int>{{"g0.h0of2", 1}, {"g0.h1of2", 1}}));
  }
}

TEST(ShapeTest, DecodeContextParallelRanksMaySpanPrefillOnes) {
  EngineShape shape = Shape(3, 1);
  shape.pcp = 2;
  for (const std::uint32_t dcp : {1U, 2U, 6U}) {
    shape.dcp = dcp;
    EXPECT_TRUE(shape.Check()) << dcp;
  }
  shape.dcp = 3;
  EXPECT_FALSE(shape.Check());
  shape.dcp = 6;
  const Keys keys(shape);
  std::set<std::string> held;
  for (std::uint32_t tp = 0; tp < 3; ++tp) {
    for (std::uint32_t pcp = 0; pcp < 2; ++pcp) {
      held.insert(keys.PartsOf({.tp = tp, .pcp = pcp}, 0)[0].tag);
    }
  }
  EXPECT_EQ(held, std::set<std::string>(keys.Tags(0).begin(), keys.Tags(0).end()));
  EXPECT_EQ(keys.PartsOf({.tp = 1, .pcp = 1}, 0)[0].tag, "g0.h1of3.c1of2.d3of6");
}

TEST(ShapeTest, WhatDoesNotFitIsRefused) {
  EXPECT_FALSE(Shape(3, 8).Check());
  EXPECT_FALSE(Shape(2, 8, 3).Check());
  EngineShape shape = Shape(1, 8);
  shape.groups[0].chunk_tokens = 24;
  EXPECT_FALSE(shape.Check());
  shape = Shape(1, 8);
  shape.groups.clear();
  EXPECT_FALSE(shape.Check());
  shape = Shape(1, 8);
  shape.interleave = 0;
  EXPECT_FALSE(shape.Check());
  shape = Shape(1, 8);
  shape.model.clear();
  EXPECT_FALSE(shape.Check());
}

// Routers make the same keys of POST /v1/prefix's fields (master/server/prefix_route.cc).
TEST(KeysTest, APrefixHasAKeyForEachShardOfEachChunk) {
  EngineShape shape = Shape(2, 8);
  shape.hash_tokens = 8;
  shape.groups.push_back({.kind = GroupKind::kWindow, .chunk_tokens = 64, .window_tokens = 9});
  const auto of = PrefixTagsOf(shape);
  ASSERT_TRUE(of) << of.error().ToString();
  EXPECT_EQ(of->tags, (std::vector<std::string>{"g0.h0of2", "g0.h1of2"}));
  EXPECT_EQ(of->hashes_per_chunk, 2U);
  const std::vector<std::string_view> hashes = {"\x01", "\xa1", "\x02", "\xb3", "\x04"};
  EXPECT_EQ(PrefixKeys(*of, hashes, "d"),
            (std::vector<std::string>{"g0.h0of2@a1+d", "g0.h1of2@a1+d", "g0.h0of2@b3+d",
                                      "g0.h1of2@b3+d"}));
  EXPECT_TRUE(PrefixKeys(*of, std::span(hashes).first(1)).empty());
  // The keys that a look-up of the engine asks for.
  for (std::uint32_t tp = 0; tp < 2; ++tp) {
    EXPECT_EQ(Keys(shape).PartsOf({.tp = tp}, 0).front().tag, of->tags[tp]);
  }
}

TEST(KeysTest, WithoutOneChainOfChunksThereIsNoPrefix) {
  EngineShape shape = Shape(1, 8);
  shape.groups.push_back({.chunk_tokens = 32});
  EXPECT_EQ(PrefixTagsOf(shape).error().code, Code::kInvalid) << "two sizes";
  shape.groups.pop_back();
  shape.groups[0].kind = GroupKind::kState;
  EXPECT_EQ(PrefixTagsOf(shape).error().code, Code::kInvalid) << "no full attention";
}

TEST(KeysTest, AKeyHasItsHashInHexDigitsWhateverItsLength) {
  std::string hash;
  std::string digits;
  for (int i = 0; i <= 64; ++i) {
    std::string key = "before ";
    AppendKey("g0.h1of2", hash, key, i % 2 == 0 ? "" : "lora");
    EXPECT_EQ(key, "before g0.h1of2@" + digits + (i % 2 == 0 ? "" : "+lora"));
    const int byte = (37 * i + 11) % 256;
    hash += static_cast<char>(byte);
    digits += "0123456789abcdef"[byte / 16];
    digits += "0123456789abcdef"[byte % 16];
  }
}

// Engines of other builds look for the same namespace and the same keys. The version of the weights
// is in fingerprints_test.cc.
TEST(KeysTest, EnginesOfEveryBuildMeetUnderTheseNames) {
  EngineShape shape = Shape(2, 8);
  EXPECT_EQ(shape.Namespace(), "m@3cbfece888f70aa98b26a4fe2d586093");
  shape.space = "acme";
  shape.pp = 2;
  shape.layers = "layers.0,layers.1";
  shape.groups.push_back({.kind = GroupKind::kWindow,
                          .chunk_tokens = 32,
                          .window_tokens = 64,
                          .heads = 4,
                          .layout = "NHC"});
  EXPECT_EQ(shape.Namespace(), "acme/m@8e1e0e49312e1a43948e359023ce7561");
  EXPECT_EQ(TagsOfAllRanks(shape), (std::set<std::string>{"g0.h0of2.p0of2", "g0.h0of2.p1of2",
                                                          "g0.h1of2.p0of2", "g0.h1of2.p1of2"}));
}

}  // namespace
}  // namespace kvcove::connector
