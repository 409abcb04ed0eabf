// SPDX-License-Identifier: Apache-2.0
// What must be equal for two engines to share KV, and under which keys they do (docs/connector.md).
//
// The namespace names everything that must not be mixed and is the same for all ranks of an engine.
// A key names one shard of one chunk: "g0.h1of4.p0of2@<hex of the engine's block hash>". The weight
// version is in neither: it is the token's. KV that a LoRA adapter took part in has the digest of
// the adapter's tensors behind the hash ("...@<hash>+<digest>"), as a block hash knows its name
// only.
#pragma once

#include <cstdint>
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
  std::uint32_t chunk_tokens = 16;  // of one block, times PCP and DCP: what one object holds
  std::uint32_t window_tokens = 0;  // kWindow
  std::uint32_t heads = 1;          // KV heads of the whole model; 1: all TP ranks' bytes are equal
  std::string layout;               // what a block's bytes are, without the ranks' share
};

struct EngineShape {
  std::string space;       // the user's own prefix; may be empty
  std::string model_name;  // for people
  std::string model;       // fingerprint: configuration, revision or path, weight index
  std::string kv_dtype;
  std::string hashing;             // algorithm and seed of the block hashes
  std::uint32_t hash_tokens = 16;  // that one block hash covers
  std::uint32_t tp = 1;
  std::uint32_t pp = 1;
  std::uint32_t pcp = 1;
  std::uint32_t dcp = 1;  // within TP; with PCP: 1, across PCP, or across TP x PCP
  // With PCP or DCP: consecutive tokens that one rank keeps before the next rank's turn.
  std::uint32_t interleave = 1;
  // Which layers a block holds, a draft model's among them, in whatever words the engine has.
  // Blocks of other layers have other sizes, or the same size and other contents.
  std::string layers;
  // Objects are cut as if TP were this, so that engines whose TP divides it share. 0: as it is.
  std::uint32_t store_tp = 0;
  std::vector<GroupShape> groups;

  std::uint32_t world() const { return tp * pp * pcp; }
  // Hits end on multiples of this: a whole number of every group's chunks.
  std::uint64_t stride_tokens() const;
  bool all_full() const;
  // The chunks of a group that a hit which ends at `tokens` needs: first, and one behind the last.
  std::pair<std::uint64_t, std::uint64_t> Needed(std::uint32_t group, std::uint64_t tokens) const;
  // Errors: kInvalid with what does not fit and what would.
  Status Check() const;
  // The same for all engines that may share.
  std::string Namespace() const;
};

struct Rank {
  std::uint32_t tp = 0;
  std::uint32_t pp = 0;
  std::uint32_t pcp = 0;
};

// The part of a rank's block that is one object: heads [first, first + count) of its own.
struct Part {
  std::string tag;  // of the key
  std::uint32_t first_head = 0;
  std::uint32_t heads = 1;
};

// Immutable.
class Keys {
 public:
  // `shape` passed its Check.
  explicit Keys(const EngineShape& shape);

  // The tags of all shards of a group's chunk, those of every rank. Each begins with "g<group>.".
  const std::vector<std::string>& Tags(std::uint32_t group) const { return tags_[group]; }
  // What one rank holds of a group's block. A rank's own heads are numbered from 0.
  std::vector<Part> PartsOf(const Rank& rank, std::uint32_t group) const;
  // Ranks with equal bytes share the work: true for the one that stores this chunk.
  bool Stores(const Rank& rank, std::uint32_t group, std::uint64_t chunk) const;
  // How many ranks hold the same bytes.
  std::uint32_t Copies(std::uint32_t group) const { return copies_[group]; }

 private:
  std::uint32_t TpShards(std::uint32_t group) const;
  std::string Tag(std::uint32_t group, std::uint32_t shard, std::uint32_t of,
                  const Rank& rank) const;

  const EngineShape shape_;
  std::vector<std::vector<std::string>> tags_;
  std::vector<std::uint32_t> copies_;     // by group
  std::vector<std::uint32_t> tp_copies_;  // of them, those of one PCP rank
};

// Appends "<tag>@<hash in hex digits>" to `out`, and "+<adapter>" if it is not empty.
void AppendKey(std::string_view tag, std::string_view hash, std::string& out,
               std::string_view adapter = {});
// Writes the same to `to`, which has room for it; returns its end.
char* WriteKey(std::string_view tag, std::string_view hash, char* to,
               std::string_view adapter = {});
// How many bytes that is.
std::size_t KeyBytes(std::string_view tag, std::string_view hash, std::string_view adapter = {});

}  // namespace kvcove::connector
