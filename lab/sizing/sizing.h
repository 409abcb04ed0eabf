// SPDX-License-Identifier: Apache-2.0
// How much of a model's KV a pool of some hosts keeps, what keeping it costs, and what a trace
// would find in it.
//
// An object is one shard of a chunk of tokens, as the connector cuts it (docs/connector.md): its
// keys are made here by the connector's own code, what an object occupies in memory by the
// segment's granules and on a disk by the sizes of the log's format.
#pragma once

#include <cstdint>
#include <optional>

#include "kvcove/base/result.h"
#include "lab/replay/trace.h"
#include "lab/sizing/model_kv.h"

namespace kvcove::lab {

struct SizingOptions {
  std::uint32_t hosts = 1;
  std::uint64_t memory_bytes = 0;  // of each host, as an owner's --memory
  std::uint64_t disk_bytes = 0;    // of each host, as an owner's --disk; 0: none
  std::uint32_t chunk_tokens = 16;
  std::uint32_t tp = 1;
  std::uint32_t pp = 1;
};

// Of all hosts together.
struct TierSizing {
  std::uint64_t bytes = 0;
  std::uint64_t objects = 0;
  std::uint64_t tokens = 0;
};

struct Sizing {
  std::uint64_t objects_per_chunk = 0;
  std::uint64_t largest_object_bytes = 0;
  TierSizing memory;
  TierSizing disk;  // zeros without one
  // At the master, if each object of either tier is another one: an upper bound.
  std::uint64_t directory_bytes = 0;
  // At the owner of one host, beside its payload: for objects in memory, and for those on disks.
  std::uint64_t memory_index_bytes = 0;
  std::uint64_t disk_index_bytes = 0;
};

// Errors: kInvalid, which names the option and says what would be right: ranks over which the KV
// heads do not spread, objects that are too large, a tier without room for one chunk.
Result<Sizing> SizeOf(const ModelKv& model, const SizingOptions& options);

// Hit ratios by the prefix rule: blocks of the leading run that is present, over blocks asked for.
struct ExpectedHits {
  std::uint64_t requests = 0;
  std::uint64_t tokens = 0;           // of prompts
  std::uint64_t distinct_tokens = 0;  // of blocks that differ
  double ratio = 0;
  double memory_ratio = 0;  // found in memory
  double half = 0;          // with half of both tiers
  double twice = 0;         // with twice of both tiers
  double any = 0;           // with room for all: the first time is a miss
};

// Simulates the pool of these tokens as one cache of whole blocks of the trace, with the policy and
// the disk's admission that are an owner's defaults. Errors: kInvalid: memory or disk hold no
// block, or the prompts have other blocks than those of `format`.
Result<ExpectedHits> ExpectHits(const std::vector<Request>& requests, TraceFormat format,
                                std::uint64_t memory_tokens, std::uint64_t disk_tokens);

}  // namespace kvcove::lab
