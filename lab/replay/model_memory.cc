// SPDX-License-Identifier: Apache-2.0
#include "lab/replay/model_memory.h"

#include <fmt/core.h>

#include "kvcove/base/random.h"
#include "lab/replay/model.h"

namespace kvcove::lab {

connector::EngineShape ShapeOf(const ModelShape& shape) {
  connector::EngineShape result{.space = {},
                                .model_name = "model",
                                .model = fmt::format("model-{}", shape.tp),
                                .kv_dtype = "u64",
                                .hashing = "replay",
                                .hash_tokens = shape.block_tokens,
                                .tp = shape.tp,
                                .layers = fmt::format("{}", shape.layers)};
  result.groups = {{.kind = connector::GroupKind::kFull,
                    .chunk_tokens = shape.block_tokens,
                    .heads = shape.tp,
                    .layout = "replay"}};
  return result;
}

RankMemory::RankMemory(const ModelShape& shape, std::uint32_t rank)
    : shape_(shape),
      rank_(rank),
      words_(static_cast<std::size_t>(shape.blocks) * shape.layers * shape.block_tokens) {}

connector::LayerMemory RankMemory::Layer() {
  using connector::AxisKind;
  const std::uint64_t layer_bytes = 8ULL * shape_.block_tokens;
  return {.name = fmt::format("rank {}", rank_),
          .group = 0,
          .base = reinterpret_cast<std::uintptr_t>(words_.data()),
          .element_bytes = 8,
          .axes = {{.kind = AxisKind::kBlock,
                    .count = shape_.blocks,
                    .stride_bytes = layer_bytes * shape_.layers},
                   {.kind = AxisKind::kLayer, .count = shape_.layers, .stride_bytes = layer_bytes},
                   {.kind = AxisKind::kToken, .count = shape_.block_tokens, .stride_bytes = 8}}};
}

std::uint64_t& RankMemory::At(BlockId block, std::uint32_t layer, std::uint32_t slot) {
  return words_[(static_cast<std::size_t>(block) * shape_.layers + layer) * shape_.block_tokens +
                slot];
}
std::uint64_t RankMemory::At(BlockId block, std::uint32_t layer, std::uint32_t slot) const {
  return words_[(static_cast<std::size_t>(block) * shape_.layers + layer) * shape_.block_tokens +
                slot];
}
std::uint64_t RankMemory::Mask(std::uint32_t layer) const {
  return Mix64((static_cast<std::uint64_t>(rank_) << 32) | layer);
}
void RankMemory::Write(BlockId block, std::uint32_t slot, std::uint64_t state) {
  for (std::uint32_t layer = 0; layer < shape_.layers; ++layer) {
    At(block, layer, slot) = state ^ Mask(layer);
  }
}
std::uint64_t RankMemory::Read(BlockId block, std::uint32_t slot) const {
  const std::uint64_t state = At(block, 0, slot) ^ Mask(0);
  for (std::uint32_t layer = 1; layer < shape_.layers; ++layer) {
    if ((At(block, layer, slot) ^ Mask(layer)) != state) return 0;
  }
  return state;
}

BlockPool::BlockPool(std::uint32_t blocks) : blocks_(blocks) {
  for (BlockId id = 1; id < blocks; ++id) blocks_[id].place = free_.insert(free_.end(), id);
}

std::vector<BlockId> BlockPool::Find(const std::vector<std::string>& hashes) const {
  std::vector<BlockId> found;
  for (const std::string& hash : hashes) {
    const auto at = by_hash_.find(hash);
    if (at == by_hash_.end()) break;
    found.push_back(at->second);
  }
  return found;
}

void BlockPool::Touch(BlockId id) {
  Block& block = blocks_[id];
  if (block.references++ > 0) return;
  free_.erase(block.place);
  ++in_use_;
}

void BlockPool::Release(BlockId id) {
  Block& block = blocks_[id];
  if (--block.references > 0) return;
  block.place = free_.insert(free_.end(), id);
  --in_use_;
}

void BlockPool::Forget(Block& block, BlockId id) {
  const auto at = by_hash_.find(block.hash);
  if (at != by_hash_.end() && at->second == id) by_hash_.erase(at);
  block.hash.clear();
}

std::optional<std::vector<BlockId>> BlockPool::Allocate(std::size_t count) {
  if (free_.size() < count) return std::nullopt;
  std::vector<BlockId> ids;
  for (std::size_t i = 0; i < count; ++i) {
    const BlockId id = free_.front();
    Touch(id);
    Forget(blocks_[id], id);
    ids.push_back(id);
  }
  return ids;
}

void BlockPool::Cache(BlockId id, const std::string& hash) {
  if (by_hash_.contains(hash)) return;
  blocks_[id].hash = hash;
  by_hash_.emplace(hash, id);
}

bool BlockPool::Reset() {
  if (in_use_ > 0) return false;
  for (BlockId id = 1; id < blocks_.size(); ++id) blocks_[id].hash.clear();
  by_hash_.clear();
  return true;
}

}  // namespace kvcove::lab
