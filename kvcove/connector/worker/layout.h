// SPDX-License-Identifier: Apache-2.0
// Finds the bytes of a block: the engine names every axis of a layer's tensor when it registers the
// tensor, so that no meaning is guessed from strides.
//
//   FlashAttention  [kv 2][block][token][head][element]    {kKv, kBlock, kToken, kHead, kElement}
//   FlashInfer      [block][kv 2][token][head][element]    {kBlock, kKv, kToken, kHead, kElement}
//   head-major      [block][kv 2][head][token][element]    {kBlock, kKv, kHead, kToken, kElement}
//   MLA             [block][token][element]                {kBlock, kToken, kElement}
//   packed layers   [block][layer]...                      {kBlock, kLayer, ...}
//   state           [block][element]                       {kBlock, kElement}
//
// An object holds the bytes of a block in the order of memory, layer after layer, without the block
// axis: so engines with FlashAttention's and FlashInfer's orders share, head-major ones do not.
// Where a kernel has a block in pieces, tokens have two axes
// ([block][token][head][token][element]). Even then an object has all tokens of a head together, as
// the namespace does not depend on a kernel's pieces.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/base/result.h"

namespace kvcove::connector {

enum class AxisKind : std::uint8_t { kBlock, kLayer, kKv, kHead, kToken, kElement };
// Parses "block", "layer", "kv", "head", "token" or "element". Errors: kInvalid.
Result<AxisKind> ParseAxis(std::string_view name);
std::string_view AxisName(AxisKind kind);

struct Axis {
  AxisKind kind = AxisKind::kBlock;
  std::uint64_t count = 1;
  std::uint64_t stride_bytes = 0;
};

// One tensor of this rank: a layer's, or several layers' that are packed.
struct LayerMemory {
  std::string name;
  std::uint32_t group = 0;
  std::uintptr_t base = 0;
  std::uint64_t element_bytes = 1;
  std::vector<Axis> axes;
};

// A run of bytes, from a block's start.
struct Run {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// The runs of one part of every block of a tensor. Immutable.
struct BlockRuns {
  std::uintptr_t base = 0;
  std::uint64_t blocks = 0;
  std::uint64_t block_stride = 0;
  std::vector<Run> runs;
  std::uint64_t bytes = 0;
};

// Returns the runs of heads [first_head, first_head + heads). Errors: kInvalid with the layer's
// name: not exactly one block axis, axes that overlap, heads that it does not have.
Result<BlockRuns> RunsOf(const LayerMemory& layer, std::uint32_t first_head, std::uint32_t heads);

}  // namespace kvcove::connector
