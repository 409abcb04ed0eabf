// SPDX-License-Identifier: Apache-2.0
// Places of a rank's objects in the memory that the engine has registered: for each shard of a
// group's block, the runs of bytes that make its object.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/base/result.h"
#include "kvcove/connector/shape.h"
#include "kvcove/connector/worker/layout.h"

namespace kvcove::connector {

struct Shard {
  // A run of bytes that every block has, at a place of its own.
  struct Descriptor {
    std::uintptr_t base = 0;  // of block 0
    std::uint64_t block_stride = 0;
    std::uint64_t bytes = 0;
    std::uint32_t part = 0;  // of the layers (Shards::PartOf)
  };
  Part part;
  std::vector<Descriptor> runs;  // in an object's order; runs that touch are joined, across layers
  std::uint64_t blocks = 0;      // blocks that all of its layers have
  std::uint64_t bytes = 0;
  bool device = false;  // its layers are in memory that the host cannot read
};

// Built by one thread, layer after layer, then immutable; each job keeps a reference to its own.
// Touches none of the memory.
class Shards {
 public:
  // The layers, `layers` of them, are cut into `parts` parts of layers that follow each other.
  Shards(const EngineShape& shape, const Keys& keys, const Rank& rank, std::size_t layers,
         std::uint32_t parts);

  // Returns the runs of the layer in each shard of its group, in the order of At(group). Errors:
  // kInvalid: there is no such group, or as RunsOf.
  Result<std::vector<BlockRuns>> RunsIn(const LayerMemory& layer) const;
  // Adds the next layer, with the runs that RunsIn returned. `device`: the host cannot read it.
  void Add(const LayerMemory& layer, const std::vector<BlockRuns>& runs, bool device);
  // Checks the sizes of objects. Errors: kInvalid: one is larger than the pool takes.
  Status Check() const;

  std::span<const Shard> At(std::uint32_t group) const { return groups_[group]; }
  // Returns whether the layers are in memory that the host cannot read.
  bool device() const;
  // Returns the bytes of one chunk's object, by group.
  std::vector<std::uint64_t> ChunkBytes() const;
  // Returns the part of a layer; nullptr: no layer has this name.
  const std::uint32_t* PartOf(std::string_view layer) const;

 private:
  static void Append(Shard& shard, const BlockRuns& layer, std::uint32_t part);

  const std::size_t layers_;
  const std::uint32_t parts_;
  std::size_t added_ = 0;
  std::vector<std::vector<Shard>> groups_;
  std::map<std::string, std::uint32_t, std::less<>> part_of_;
};

}  // namespace kvcove::connector
