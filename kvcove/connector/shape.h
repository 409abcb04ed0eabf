// SPDX-License-Identifier: Apache-2.0
// The properties that must be equal for two engines to share KV, and the keys of the shared KV
// (docs/connector.md).
//
// The namespace has all properties that must not be mixed, and is the same for all ranks of an
// engine. A key names one shard of one chunk: "g0.h1of4.p0of2@<hex of the engine's block hash>".
// Neither has the weight version: the token has it. The key of KV that was computed with a LoRA
// adapter ends with the digest of the adapter's tensors ("...@<hash>+<digest>"), as the block hash
// depends on the adapter's name only.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvcove/base/result.h"

namespace kvcove::connector {

inline constexpr std::uint32_t kMaxGroups = 64;
inline constexpr std::uint32_t kMaxRanks = 4096;

enum class GroupKind : std::uint8_t {
  kFull = 0,    // attention over everything: every chunk up to the hit is needed
  kWindow = 1,  // the chunks of the last `window_tokens`
  kState = 2,   // one state at the hit's end (Mamba): its last chunk
};

// One KV cache group of a model.
struct GroupShape {
  GroupKind kind = GroupKind::kFull;
  std::uint32_t chunk_tokens = 16;  // tokens of one object: a block's, times PCP and DCP
  std::uint32_t window_tokens = 0;  // kWindow
  std::uint32_t heads = 1;          // KV heads of the whole model; 1: all TP ranks' bytes are equal
  std::string layout;               // describes a block's bytes, whatever share a rank has
};

struct EngineShape {
  std::string space;       // the user's own prefix; may be empty
  std::string model_name;  // for readers of the namespace
  std::string model;       // fingerprint: configuration, revision or path, weight index
  std::string kv_dtype;
  std::string hashing;             // algorithm and seed of the block hashes
  std::uint32_t hash_tokens = 16;  // tokens that one block hash covers
  std::uint32_t tp = 1;
  std::uint32_t pp = 1;
  std::uint32_t pcp = 1;
  std::uint32_t dcp = 1;  // within TP; with PCP: 1, across PCP, or across TP x PCP
  // With PCP or DCP: consecutive tokens that one rank keeps before the next rank's turn.
  std::uint32_t interleave = 1;
  // The layers of a block, a draft model's among them, in the engine's own words. Blocks of other
  // layers have other sizes, or the same size and other contents.
  std::string layers;
  // Objects are cut as if TP were this, so that all engines whose TP divides it share. 0: `tp`.
  std::uint32_t store_tp = 0;
  std::vector<GroupShape> groups;

  std::uint32_t world() const { return tp * pp * pcp; }
  // Returns the number of tokens on whose multiples hits end: whole chunks of every group.
  std::uint64_t stride_tokens() const;
  // Returns whether all groups have full attention.
  bool all_full() const;
  // Returns the chunks of a group that a hit which ends at `tokens` needs: the first, and one
  // behind the last.
  std::pair<std::uint64_t, std::uint64_t> Needed(std::uint32_t group, std::uint64_t tokens) const;
  // Checks the shape. Errors: kInvalid with the value that does not fit and those that would.
  Status Check() const;
  // Returns the namespace, equal for all engines that may share.
  std::string Namespace() const;
};

struct Rank {
  std::uint32_t tp = 0;
  std::uint32_t pp = 0;
  std::uint32_t pcp = 0;
};

// The part of a rank's block that is one object: heads [first, first + count) of its own.
struct Part {
  std::string tag;  // begins its keys
  std::uint32_t first_head = 0;
  std::uint32_t heads = 1;
};

// Immutable.
class Keys {
 public:
  // `shape` passed its Check.
  explicit Keys(const EngineShape& shape);

  // Returns the tags of all shards of a group's chunk, those of every rank. Each begins with
  // "g<group>.".
  const std::vector<std::string>& Tags(std::uint32_t group) const { return tags_[group]; }
  // Returns the parts of a group's block that one rank holds. Its own heads are numbered from 0.
  std::vector<Part> PartsOf(const Rank& rank, std::uint32_t group) const;
  // Returns whether this rank stores the chunk: ranks with equal bytes share that work.
  bool Stores(const Rank& rank, std::uint32_t group, std::uint64_t chunk) const;
  // Returns the number of ranks that hold the same bytes.
  std::uint32_t Copies(std::uint32_t group) const { return copies_[group]; }

 private:
  std::uint32_t TpShards(std::uint32_t group) const;
  std::string Tag(std::uint32_t group, std::uint32_t shard, std::uint32_t of,
                  const Rank& rank) const;

  const EngineShape shape_;
  std::vector<std::vector<std::string>> tags_;
  std::vector<std::uint32_t> copies_;     // by group
  std::vector<std::uint32_t> tp_copies_;  // those within one PCP rank
};

// The beginnings of the keys of a prefix's chunk, for callers that ask which owners have a prefix
// (Session::Locate): the tags of all groups with full attention. The other groups need the end of a
// prefix alone, so no chain of keys names theirs.
struct PrefixTags {
  std::vector<std::string> tags;
  std::uint32_t hashes_per_chunk = 1;  // the last of them is in the chunk's keys
};
// Errors: kInvalid for an engine without such a group, or whose groups have chunks of other sizes.
Result<PrefixTags> PrefixTagsOf(const EngineShape& shape);
// Returns the keys of the whole chunks that these block hashes cover, chunk by chunk, each with one
// key for each tag.
std::vector<std::string> PrefixKeys(const PrefixTags& of, std::span<const std::string_view> hashes,
                                    std::string_view adapter = {});

// Appends "<tag>@<hash in hex digits>" to `out`, and "+<adapter>" if it is not empty.
void AppendKey(std::string_view tag, std::string_view hash, std::string& out,
               std::string_view adapter = {});
// Writes the same key to `to`, which has room for KeyBytes(); returns the key's end.
char* WriteKey(std::string_view tag, std::string_view hash, char* to,
               std::string_view adapter = {});
// Returns the key's size in bytes.
std::size_t KeyBytes(std::string_view tag, std::string_view hash, std::string_view adapter = {});

}  // namespace kvcove::connector
