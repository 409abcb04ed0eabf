// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/shape.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "kvcove/base/hash.h"

namespace kvcove::connector {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::uint64_t kSeed = 0x6b76636f7665;

// Returns a rank's number within DCP. Ranks take turns within PCP first, then within TP.
std::uint32_t DcpRank(const EngineShape& shape, std::uint32_t tp, std::uint32_t pcp) {
  return (tp * shape.pcp + pcp) % shape.dcp;
}

bool DcpFits(const EngineShape& shape) {
  if (shape.pcp == 1) return shape.tp % shape.dcp == 0;
  return shape.dcp == 1 || shape.dcp == shape.pcp || shape.dcp == shape.tp * shape.pcp;
}

bool Splits(const EngineShape& shape, const GroupShape& group) {
  return shape.dcp == 1 && group.kind != GroupKind::kState;
}

}  // namespace

std::uint64_t EngineShape::stride_tokens() const {
  std::uint64_t stride = 1;
  for (const GroupShape& group : groups) stride = std::lcm(stride, group.chunk_tokens);
  return stride;
}

bool EngineShape::all_full() const {
  return std::all_of(groups.begin(), groups.end(),
                     [](const GroupShape& group) { return group.kind == GroupKind::kFull; });
}

std::pair<std::uint64_t, std::uint64_t> EngineShape::Needed(std::uint32_t group,
                                                            std::uint64_t tokens) const {
  const GroupShape& shape = groups[group];
  const std::uint64_t end = (tokens + shape.chunk_tokens - 1) / shape.chunk_tokens;
  if (shape.kind == GroupKind::kFull) return {0, end};
  if (shape.kind == GroupKind::kState) return {end == 0 ? 0 : end - 1, end};
  // The next token attends to the last window_tokens - 1 before it.
  const std::uint64_t reach = shape.window_tokens - 1;
  return {tokens > reach ? (tokens - reach) / shape.chunk_tokens : 0, end};
}

Status EngineShape::Check() const {
  if (model.empty()) return Fail(Code::kInvalid, "the model needs a fingerprint");
  if (groups.empty() || groups.size() > kMaxGroups) {
    return Fail(Code::kInvalid,
                fmt::format("an engine has 1 to {} KV groups, not {}", kMaxGroups, groups.size()));
  }
  if (tp == 0 || pp == 0 || pcp == 0 || dcp == 0 || world() > kMaxRanks || !DcpFits(*this)) {
    return Fail(Code::kInvalid,
                fmt::format("TP {}, PP {}, PCP {}, DCP {}: each is at least 1, DCP divides TP or, "
                            "with PCP, is 1, PCP or TP x PCP, and an engine has at most {} ranks",
                            tp, pp, pcp, dcp, kMaxRanks));
  }
  if (interleave == 0) return Fail(Code::kInvalid, "a rank keeps at least one token in its turn");
  if (hash_tokens == 0) return Fail(Code::kInvalid, "a block hash covers at least one token");
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const GroupShape& group = groups[g];
    if (group.chunk_tokens == 0 || group.chunk_tokens % hash_tokens != 0) {
      return Fail(Code::kInvalid,
                  fmt::format("KV group {}: its chunk of {} tokens is no multiple of the {} that a "
                              "block hash covers",
                              g, group.chunk_tokens, hash_tokens));
    }
    if (group.kind == GroupKind::kWindow && group.window_tokens == 0) {
      return Fail(Code::kInvalid, fmt::format("KV group {}: a sliding window has a size", g));
    }
    if (group.heads == 0 || !Splits(*this, group)) continue;
    const std::uint32_t most = std::max(group.heads, tp);
    const std::uint32_t least = std::min(group.heads, tp);
    if (most % least != 0) {
      return Fail(Code::kInvalid, fmt::format("KV group {}: {} KV heads do not spread over TP {}",
                                              g, group.heads, tp));
    }
    const std::uint32_t shards = std::min(group.heads, tp);
    if (store_tp != 0 && group.heads > 1 &&
        (store_tp % tp != 0 || std::min(group.heads, store_tp) % shards != 0 ||
         std::max(group.heads, store_tp) % std::min(group.heads, store_tp) != 0)) {
      return Fail(Code::kInvalid,
                  fmt::format("store_tp {}: give a multiple of TP {} that fits {} KV heads",
                              store_tp, tp, group.heads));
    }
  }
  return {};
}

std::string EngineShape::Namespace() const {
  std::string all =
      fmt::format("2|{}|{}|{}|{}|{}|{}|", model, kv_dtype, hashing, hash_tokens, pp, layers);
  if (pcp * dcp > 1) all += fmt::format("{},{},{}|", pcp, dcp, interleave);
  for (const GroupShape& group : groups) {
    all += fmt::format("{},{},{},{},{}|", static_cast<int>(group.kind), group.chunk_tokens,
                       group.window_tokens, group.heads, group.layout);
  }
  const Id128 hash = Hash128(all, kSeed);
  std::string name = space.empty() ? std::string() : space + "/";
  name += fmt::format("{}@{}", model_name.empty() ? "model" : model_name, ToHex(hash));
  return name;
}

Keys::Keys(const EngineShape& shape) : shape_(shape) {
  for (std::uint32_t g = 0; g < shape_.groups.size(); ++g) {
    const std::uint32_t shards = TpShards(g);
    const bool splits = Splits(shape_, shape_.groups[g]);
    tp_copies_.push_back(splits ? shape_.tp / std::min(shape_.tp, shape_.groups[g].heads) : 1);
    // Without DCP every PCP rank has the KV of all tokens.
    copies_.push_back(tp_copies_[g] * (splits ? shape_.pcp : 1));
    std::vector<std::string>& tags = tags_.emplace_back();
    for (std::uint32_t pp = 0; pp < shape_.pp; ++pp) {
      for (std::uint32_t pcp = 0; pcp < (splits ? 1 : shape_.pcp); ++pcp) {
        for (std::uint32_t s = 0; s < shards; ++s) {
          tags.push_back(Tag(g, s, shards, {.tp = s, .pp = pp, .pcp = pcp}));
        }
      }
    }
  }
}

std::uint32_t Keys::TpShards(std::uint32_t group) const {
  const GroupShape& shape = shape_.groups[group];
  if (!Splits(shape_, shape)) return shape_.tp;
  const std::uint32_t tp = shape_.store_tp == 0 ? shape_.tp : shape_.store_tp;
  return std::min(shape.heads, tp);
}

std::string Keys::Tag(std::uint32_t group, std::uint32_t shard, std::uint32_t of,
                      const Rank& rank) const {
  std::string tag = fmt::format("g{}.h{}of{}", group, shard, of);
  if (shape_.pp > 1) tag += fmt::format(".p{}of{}", rank.pp, shape_.pp);
  if (Splits(shape_, shape_.groups[group])) return tag;
  if (shape_.pcp > 1) tag += fmt::format(".c{}of{}", rank.pcp, shape_.pcp);
  if (shape_.dcp > 1) {
    tag += fmt::format(".d{}of{}", DcpRank(shape_, rank.tp, rank.pcp), shape_.dcp);
  }
  return tag;
}

std::vector<Part> Keys::PartsOf(const Rank& rank, std::uint32_t group) const {
  const GroupShape& shape = shape_.groups[group];
  const std::uint32_t shards = TpShards(group);
  if (!Splits(shape_, shape)) {
    return {{.tag = Tag(group, rank.tp, shards, rank),
             .first_head = 0,
             .heads = std::max(1U, shape.heads / shape_.tp)}};
  }
  const std::uint32_t own = std::min(shape.heads, shape_.tp);  // shards as TP cuts them
  const std::uint32_t mine = rank.tp / tp_copies_[group];
  const std::uint32_t parts = shards / own;
  const std::uint32_t heads = shape.heads / shards;
  std::vector<Part> result;
  for (std::uint32_t i = 0; i < parts; ++i) {
    result.push_back({.tag = Tag(group, mine * parts + i, shards, rank),
                      .first_head = i * heads,
                      .heads = heads});
  }
  return result;
}

bool Keys::Stores(const Rank& rank, std::uint32_t group, std::uint64_t chunk) const {
  if (copies_[group] == 1) return true;
  const std::uint32_t tp = rank.tp % tp_copies_[group];
  return chunk % copies_[group] == rank.pcp * tp_copies_[group] + tp;
}

namespace {

// Returns the eight hex digits of four bytes as one word: spreads each byte to two, a half in each,
// and turns all eight into digits at once. A look-up writes thousands of hashes on the engine's
// thread.
std::uint64_t HexOf(std::uint32_t bytes) {
  std::uint64_t halves = bytes;
  halves = (halves & 0xFFFF0000) << 16 | (halves & 0xFFFF);
  halves = (halves & 0x0000FF000000FF00) << 8 | (halves & 0x000000FF000000FF);
  halves = (halves & 0x00F000F000F000F0) >> 4 | (halves & 0x000F000F000F000F) << 8;
  const std::uint64_t letters = (halves + 0x0606060606060606) >> 4 & 0x0101010101010101;
  return halves + 0x3030303030303030 + letters * ('a' - '0' - 10);
}

char* WriteHash(std::string_view hash, char* to) {
  // Each memcpy has a constant size, so the compiler makes an instruction of it and not a call.
  const char* from = hash.data();
  std::size_t left = hash.size();
  for (; left >= 4; left -= 4, from += 4, to += 8) {
    std::uint32_t bytes = 0;
    std::memcpy(&bytes, from, 4);
    const std::uint64_t digits = HexOf(bytes);
    std::memcpy(to, &digits, 8);
  }
  for (; left > 0; --left, ++from, to += 2) {
    const std::uint64_t digits = HexOf(static_cast<unsigned char>(*from));
    std::memcpy(to, &digits, 2);
  }
  return to;
}

char* Write(std::string_view text, char* to) { return to + text.copy(to, text.size()); }

}  // namespace

std::size_t KeyBytes(std::string_view tag, std::string_view hash, std::string_view adapter) {
  return tag.size() + 1 + 2 * hash.size() + (adapter.empty() ? 0 : 1 + adapter.size());
}

char* WriteKey(std::string_view tag, std::string_view hash, char* to, std::string_view adapter) {
  to = Write(tag, to);
  *to++ = '@';
  to = WriteHash(hash, to);
  if (adapter.empty()) return to;
  *to++ = '+';
  return Write(adapter, to);
}

void AppendKey(std::string_view tag, std::string_view hash, std::string& out,
               std::string_view adapter) {
  const std::size_t from = out.size();
  out.resize(from + KeyBytes(tag, hash, adapter));
  (void)WriteKey(tag, hash, out.data() + from, adapter);
}

Result<PrefixTags> PrefixTagsOf(const EngineShape& shape) {
  const Keys keys(shape);
  PrefixTags of;
  std::uint32_t chunk_tokens = 0;
  for (std::uint32_t g = 0; g < shape.groups.size(); ++g) {
    const GroupShape& group = shape.groups[g];
    if (group.kind != GroupKind::kFull) continue;
    if (chunk_tokens != 0 && group.chunk_tokens != chunk_tokens) {
      return Fail(
          Code::kInvalid,
          fmt::format("the KV groups with full attention have chunks of {} and {} tokens, so "
                      "no chain of keys names a prefix",
                      chunk_tokens, group.chunk_tokens));
    }
    chunk_tokens = group.chunk_tokens;
    of.tags.insert(of.tags.end(), keys.Tags(g).begin(), keys.Tags(g).end());
  }
  if (of.tags.empty()) {
    return Fail(Code::kInvalid,
                "no KV group has full attention, so no chain of keys names a prefix");
  }
  of.hashes_per_chunk = chunk_tokens / shape.hash_tokens;
  return of;
}

std::vector<std::string> PrefixKeys(const PrefixTags& of, std::span<const std::string_view> hashes,
                                    std::string_view adapter) {
  std::vector<std::string> keys;
  keys.reserve(hashes.size() / of.hashes_per_chunk * of.tags.size());
  for (std::size_t end = of.hashes_per_chunk; end <= hashes.size(); end += of.hashes_per_chunk) {
    for (const std::string& tag : of.tags) {
      AppendKey(tag, hashes[end - 1], keys.emplace_back(), adapter);
    }
  }
  return keys;
}

}  // namespace kvcove::connector
