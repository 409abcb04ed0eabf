// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/worker/shards.h"

#include <fmt/core.h>

#include <algorithm>

#include "kvcove/model/ids.h"

namespace kvcove::connector {

Shards::Shards(const EngineShape& shape, const Keys& keys, const Rank& rank, std::size_t layers,
               std::uint32_t parts)
    : layers_(layers), parts_(parts), groups_(shape.groups.size()) {
  for (std::uint32_t g = 0; g < groups_.size(); ++g) {
    for (Part& part : keys.PartsOf(rank, g)) groups_[g].push_back({.part = std::move(part)});
  }
}

Result<std::vector<BlockRuns>> Shards::RunsIn(const LayerMemory& layer) const {
  if (layer.group >= groups_.size()) {
    return Fail(Code::kInvalid,
                fmt::format("KV layer '{}': there is no KV group {}", layer.name, layer.group));
  }
  std::uint64_t heads = 1;
  for (const Axis& axis : layer.axes) {
    if (axis.kind == AxisKind::kHead) heads = axis.count;
  }
  const std::vector<Shard>& shards = groups_[layer.group];
  // A rank with one part has the whole tensor, also where the shape's number of heads differs from
  // the tensor's. Cut otherwise than the rest of its group, a layer would lose the heads behind the
  // last part.
  const bool whole = shards.size() == 1;
  std::uint64_t cut = 0;
  for (const Shard& shard : shards) cut += shard.part.heads;
  if (!whole && heads != cut) {
    return Fail(
        Code::kInvalid,
        fmt::format("KV layer '{}': store_tp cuts the {} heads of its group, but this layer "
                    "has {} here: leave store_tp out",
                    layer.name, cut, heads));
  }
  std::vector<BlockRuns> runs;
  for (const Shard& shard : shards) {
    KVCOVE_ASSIGN(BlockRuns of_shard,
                  RunsOf(layer, whole ? 0 : shard.part.first_head,
                         whole ? static_cast<std::uint32_t>(heads) : shard.part.heads));
    runs.push_back(std::move(of_shard));
  }
  return runs;
}

void Shards::Add(const LayerMemory& layer, const std::vector<BlockRuns>& runs, bool device) {
  const auto part = static_cast<std::uint32_t>(added_++ * parts_ / layers_);
  part_of_[layer.name] = part;
  std::vector<Shard>& shards = groups_[layer.group];
  for (std::size_t i = 0; i < shards.size(); ++i) {
    shards[i].device = device;
    Append(shards[i], runs[i], part);
  }
}

void Shards::Append(Shard& shard, const BlockRuns& layer, std::uint32_t part) {
  std::vector<Shard::Descriptor>& runs = shard.runs;
  shard.blocks = runs.empty() ? layer.blocks : std::min(shard.blocks, layer.blocks);
  for (const Run& run : layer.runs) {
    const Shard::Descriptor next{.base = layer.base + run.offset,
                                 .block_stride = layer.block_stride,
                                 .bytes = run.bytes,
                                 .part = part};
    if (!runs.empty() && runs.back().base + runs.back().bytes == next.base &&
        runs.back().block_stride == next.block_stride && runs.back().part == next.part) {
      runs.back().bytes += next.bytes;
    } else {
      runs.push_back(next);
    }
  }
  shard.bytes += layer.bytes;
}

Status Shards::Check() const {
  for (const auto& group : groups_) {
    for (const Shard& shard : group) KVCOVE_TRY(CheckObjectSize(shard.bytes));
  }
  return {};
}

bool Shards::device() const {
  for (const auto& group : groups_) {
    for (const Shard& shard : group) return shard.device;
  }
  return false;
}

std::vector<std::uint64_t> Shards::ChunkBytes() const {
  std::vector<std::uint64_t> bytes;
  for (const auto& group : groups_) bytes.push_back(group.empty() ? 0 : group.front().bytes);
  return bytes;
}

const std::uint32_t* Shards::PartOf(std::string_view layer) const {
  const auto at = part_of_.find(layer);
  return at == part_of_.end() ? nullptr : &at->second;
}

}  // namespace kvcove::connector
