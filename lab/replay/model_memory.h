// SPDX-License-Identifier: Apache-2.0
// The memory of a model engine: what its ranks keep, and which blocks of it are in use. Belongs to
// one thread.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "kvcove/connector/plan.h"
#include "kvcove/connector/shape.h"
#include "kvcove/connector/worker/layout.h"

namespace kvcove::lab {

using connector::BlockId;

struct ModelShape {
  std::uint32_t tp = 1;
  std::uint32_t block_tokens = 16;
  std::uint32_t layers = 2;
  std::uint32_t blocks = 1024;  // of the engine's own memory, with the null block
};
connector::EngineShape ShapeOf(const ModelShape& shape);

// One rank's memory: [block][layer][token] of 8 bytes.
class RankMemory {
 public:
  RankMemory(const ModelShape& shape, std::uint32_t rank);
  connector::LayerMemory Layer();
  void Write(BlockId block, std::uint32_t slot, std::uint64_t state);
  // What the token there left; every layer must agree, else 0.
  std::uint64_t Read(BlockId block, std::uint32_t slot) const;

 private:
  std::uint64_t& At(BlockId block, std::uint32_t layer, std::uint32_t slot);
  std::uint64_t At(BlockId block, std::uint32_t layer, std::uint32_t slot) const;
  std::uint64_t Mask(std::uint32_t layer) const;
  const ModelShape shape_;
  const std::uint32_t rank_;
  std::vector<std::uint64_t> words_;
};

// Blocks with reference counts; the hashes of whole ones; the least recently used free one goes
// first. Block 0 is the null block.
class BlockPool {
 public:
  explicit BlockPool(std::uint32_t blocks);
  // The leading run of blocks that are here; not referenced yet.
  std::vector<BlockId> Find(const std::vector<std::string>& hashes) const;
  void Touch(BlockId block);
  void Release(BlockId block);
  // Empty when there are not so many.
  std::optional<std::vector<BlockId>> Allocate(std::size_t count);
  void Cache(BlockId block, const std::string& hash);
  // False, and nothing happens, while blocks are in use.
  bool Reset();
  std::size_t in_use() const { return in_use_; }
  std::size_t free() const { return free_.size(); }

 private:
  struct Block {
    std::uint32_t references = 0;
    std::string hash;
    std::list<BlockId>::iterator place;
  };
  void Forget(Block& block, BlockId id);
  std::vector<Block> blocks_;
  std::list<BlockId> free_;  // the front goes first
  std::unordered_map<std::string, BlockId> by_hash_;
  std::size_t in_use_ = 0;
};

}  // namespace kvcove::lab
