// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/worker/job.h"

#include <utility>

namespace kvcove::connector {

std::shared_ptr<Job> Job::Of(LoadOrder& order, std::shared_ptr<const Shards> shards) {
  auto job = std::make_shared<Job>();
  job->id = order.job;
  job->load = true;
  job->sync = order.sync;
  job->request = std::move(order.request);
  job->version = std::move(order.version);
  job->adapter = std::move(order.adapter.digest);
  job->chunks = std::move(order.chunks);
  job->shards = std::move(shards);
  return job;
}

std::shared_ptr<Job> Job::Of(SaveOrder& order, std::shared_ptr<const Shards> shards) {
  auto job = std::make_shared<Job>();
  job->id = order.job;
  job->request = std::move(order.request);
  job->version = std::move(order.version);
  job->adapter = std::move(order.adapter.digest);
  job->token = order.token;
  job->chunks = std::move(order.chunks);
  job->behind = order.behind;
  job->hints = order.hints;
  job->goes_on = order.goes_on;
  job->shards = std::move(shards);
  return job;
}

std::size_t Job::BatchEnd(std::uint64_t batch_bytes) const {
  std::size_t end = next;
  std::uint64_t bytes = 0;
  while (end < items.size() && (end == next || bytes + items[end].bytes <= batch_bytes)) {
    bytes += items[end++].bytes;
  }
  return end;
}

void Job::AddItems(std::uint32_t place, const Hints& chunk_hints) {
  const ChunkPlace& chunk = chunks[place];
  const std::span<const Shard> of_group = shards->At(chunk.group);
  const bool follows = !load && place > 0 && chunks[place - 1].group == chunk.group;
  // Whether the chunk before has items, whose keys are then used again: PutItem::after.
  const bool known = follows && !items.empty() && items.back().place == place - 1;
  const std::size_t before = known ? items.size() - of_group.size() : 0;
  const auto key_of = [this](const Shard& shard, const BlockHash& hash) {
    const std::size_t from = text.size();
    AppendKey(shard.part.tag, hash, text, adapter);
    return std::string_view(text).substr(from);
  };
  for (std::size_t s = 0; s < of_group.size(); ++s) {
    const Shard& shard = of_group[s];
    Item item{.place = place, .hints = chunk_hints, .bytes = shard.bytes, .shard = &shard};
    item.key = key_of(shard, chunk.hash);
    if (follows) {
      item.after = known ? items[before + s].key : key_of(shard, chunks[place - 1].hash);
    }
    // The engine's memory lacks this block in some layer: the chunk fails as a whole.
    if (chunk.block >= shard.blocks) bad.insert(place);
    items.push_back(item);
  }
}

void Job::Prepare(const EngineShape& shape, const Keys& keys, const Rank& rank,
                  NamespacePriority priority) {
  std::size_t objects = 0;
  std::size_t bytes = 0;
  for (const ChunkPlace& chunk : chunks) {
    for (const Shard& shard : shards->At(chunk.group)) {
      ++objects;
      bytes += KeyBytes(shard.part.tag, chunk.hash, adapter);
    }
  }
  // Reserves for all keys: items keep views into `text`, which must not be reallocated.
  items.reserve(objects);
  text.reserve(bytes);
  for (std::uint32_t i = 0; i < chunks.size(); ++i) {
    const ChunkPlace& place = chunks[i];
    if (load) {
      AddItems(i, {});
      continue;
    }
    if (place.block == kNullBlock || !keys.Stores(rank, place.group, place.chunk)) continue;
    const std::uint64_t first_token = place.chunk * shape.groups[place.group].chunk_tokens;
    const bool last = i + 1 == chunks.size() || chunks[i + 1].group != place.group;
    AddItems(i, {.output_tokens = hints.output_tokens,
                 .ephemeral = first_token >= hints.ephemeral_from,
                 .session_ends = hints.session_ends,
                 .request_goes_on = goes_on || !last,
                 .priority = priority});
  }
  prepared = true;
}

void Job::Place(std::size_t from, std::size_t to) {
  std::size_t count = 0;
  for (std::size_t i = from; i < to; ++i) count += items[i].shard->runs.size();
  pieces.clear();
  pieces.reserve(count);  // items keep spans of it, so it must not be reallocated
  for (std::size_t i = from; i < to; ++i) {
    Item& item = items[i];
    const std::uint64_t block = chunks[item.place].block;
    if (block >= item.shard->blocks) continue;
    const std::size_t first = pieces.size();
    for (const Shard::Descriptor& run : item.shard->runs) {
      const std::uintptr_t at = run.base + block * run.block_stride;
      pieces.push_back({.data = reinterpret_cast<void*>(at), .size = run.bytes});  // NOLINT
    }
    item.pieces = std::span(pieces).subspan(first);
  }
}

void Job::CountLoaded(Tally& tally, const Item& item, Tier tier) {
  ++tally.counters.loaded_keys;
  tally.counters.loaded_bytes += item.bytes;
  ++tally.counters.keys_by_tier[static_cast<std::size_t>(tier)];
  tally.counters.bytes_by_tier[static_cast<std::size_t>(tier)] += item.bytes;
}

void Job::DropItems(Tally& tally, std::span<const std::size_t> which) const {
  for (const std::size_t i : which) tally.bad.insert(items[i].place);
  tally.counters.dropped_keys += which.size();
}

void Job::SayTiers(LinesAfterLock& lines) const {
  const Counters& c = counters;
  const auto of = [](const auto& by_tier, Tier tier) {
    return by_tier[static_cast<std::size_t>(tier)];
  };
  lines.Info(
      "Mooncake load tier summary: request={} memory_keys={} disk_keys={} unknown_keys={} "
      "success_keys={} failed_keys={} "
      "bytes_by_tier={{memory={}, remote_memory={}, disk={}, unknown={}}}",
      request, of(c.keys_by_tier, Tier::kMemory) + of(c.keys_by_tier, Tier::kRemoteMemory),
      of(c.keys_by_tier, Tier::kDisk), of(c.keys_by_tier, Tier::kUnknown), c.loaded_keys,
      c.failed_keys, of(c.bytes_by_tier, Tier::kMemory), of(c.bytes_by_tier, Tier::kRemoteMemory),
      of(c.bytes_by_tier, Tier::kDisk), of(c.bytes_by_tier, Tier::kUnknown));
}

void Batch::PlanCopies(std::uint32_t layer_parts) {
  copies.resize(job->sync ? layer_parts : 1);
  for (const Value& value : values) {
    const Job::Item& item = job->items[value.item];
    const std::uint64_t block = job->chunks[item.place].block;
    HostCursor cursor(value.host);
    for (const Shard::Descriptor& run : item.shard->runs) {
      std::vector<transport::DeviceCopy>& of_part = copies[job->sync ? run.part : 0];
      std::uintptr_t device = run.base + block * run.block_stride;
      for (const std::span<std::byte> piece : cursor.Take(run.bytes)) {
        of_part.push_back({.host = piece.data(), .device = device, .bytes = piece.size()});
        device += piece.size();
      }
    }
  }
}

}  // namespace kvcove::connector
