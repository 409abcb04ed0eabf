// SPDX-License-Identifier: Apache-2.0
// What a token's KV of a model takes, by the model's config.json as Hugging Face publishes it.
//
// A field that decides the size and is not there is an error: the model's class in Python has a
// default for it, which nothing here knows. So is a field of a cache that has another shape.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/base/result.h"
#include "kvcove/connector/shape.h"

namespace kvcove::lab {

// Layers whose KV of a chunk is one object of the pool, as vLLM groups them.
struct KvGroup {
  connector::GroupKind kind = connector::GroupKind::kFull;
  std::uint32_t window_tokens = 0;  // kWindow
  std::uint32_t layers = 0;
  std::uint32_t heads = 1;        // KV heads; 1: all ranks of TP have the same bytes
  std::uint64_t token_bytes = 0;  // of all of its layers
};

struct ModelKv {
  std::string type;        // "llama"
  std::string dtype;       // of the KV: "bfloat16"
  std::string layer_text;  // what a layer keeps of a token, for people
  std::vector<KvGroup> groups;

  std::uint32_t layers() const;
  std::uint64_t token_bytes() const;  // what is stored of a token
  // What a hit of so many tokens loads: of a layer with a window its last tokens alone.
  std::uint64_t HitBytes(std::uint64_t tokens) const;
};

// What --kv-dtype may be: "auto", "bfloat16", "float16", "float32", "fp8".
std::vector<std::string> KvDtypes();

// `dtype`: one of KvDtypes(); "auto" is the config's own, and 16 bits for float32 weights, as
// engines compute with these. Errors: kInvalid, which names the field and says what would be right.
Result<ModelKv> ParseModelKv(std::string_view config, std::string_view dtype);
// The same of a file. Errors name it.
Result<ModelKv> ReadModelKv(const std::string& path, std::string_view dtype);

}  // namespace kvcove::lab
