// SPDX-License-Identifier: Apache-2.0
// Ends saves, and makes KV events of saves, look-ups and loads.
#include <utility>

#include "kvcove/connector/scheduler/scheduler.h"

namespace kvcove::connector {
namespace {

// Returns the hash before chunks[i], where the order names it.
std::string_view ParentIn(const std::vector<ChunkPlace>& chunks, std::size_t i) {
  const bool known =
      i > 0 && chunks[i - 1].group == chunks[i].group && chunks[i - 1].chunk + 1 == chunks[i].chunk;
  return known ? std::string_view(chunks[i - 1].hash) : std::string_view();
}

Events::Block BlockOf(std::string_view request, const std::vector<ChunkPlace>& chunks,
                      std::size_t i) {
  return {.request = request,
          .group = chunks[i].group,
          .chunk = chunks[i].chunk,
          .hash = chunks[i].hash,
          .parent = ParentIn(chunks, i)};
}

}  // namespace

void SchedulerRole::TakeSaves(const Report& report, LinesAfterLock& lines) {
  for (const SaveDone& done : report.saves) {
    const auto at = saves_.find(done.job);
    if (at == saves_.end()) continue;
    at->second.missing.insert(done.missing.begin(), done.missing.end());
    at->second.on_disk.insert(done.on_disk.begin(), done.on_disk.end());
    if (--at->second.ranks_left > 0) continue;
    EndSave(at->second, lines);
    saves_.erase(at);
  }
}

bool SchedulerRole::IsCurrent(const Save& save) const {
  return save.block_epoch == marks_.epoch() && adapters_.IsCurrent(save.order.adapter);
}

void SchedulerRole::EndSave(const Save& save, LinesAfterLock& lines) {
  const std::vector<ChunkPlace>& chunks = save.order.chunks;
  const bool current = IsCurrent(save);
  std::vector<ChunkPlace> missing;
  for (std::uint32_t i = 0; i < chunks.size(); ++i) {
    const ChunkPlace& place = chunks[i];
    if (place.block == kNullBlock) continue;
    unpins_.push_back(place.block);
    --stats_.pinned_blocks;
    if (save.missing.contains(i)) {
      // A later step of this request, or another one that finds the block in the engine's own
      // cache, may store it.
      marks_.Unstored(place.block);
      missing.push_back(place);
      continue;
    }
    if (!current) continue;
    const Events::Block block = BlockOf(save.order.request, chunks, i);
    if (save.on_disk.contains(i)) {
      events_.Found(block, Medium::kDisk, lines);
    } else {
      events_.Saved(block, lines);
    }
  }
  // Nobody must wait for what does not come.
  if (!missing.empty()) QueueNotice(SaveNotice::kEnd, save.order, missing);
}

void SchedulerRole::TellFound(std::string_view id, const Request& request, const Lookup& lookup,
                              LinesAfterLock& lines) {
  if (!events_.enabled()) return;
  for (const Lookup::Seen& seen : lookup.seen()) {
    const std::string_view hash = HashOf(request, seen.group, seen.chunk);
    const std::string_view parent =
        seen.chunk == 0 ? std::string_view() : HashOf(request, seen.group, seen.chunk - 1);
    const Events::Block block{
        .request = id, .group = seen.group, .chunk = seen.chunk, .hash = hash, .parent = parent};
    if (seen.where == Lookup::Where::kNowhere) {
      events_.Gone(block, lines);
    } else {
      events_.Found(block, seen.where == Lookup::Where::kDisk ? Medium::kDisk : Medium::kMemory,
                    lines);
    }
  }
}

void SchedulerRole::TellLoaded(const Load& load, LinesAfterLock& lines) {
  if (!events_.enabled()) return;
  const std::vector<ChunkPlace>& chunks = load.order.chunks;
  const auto request = requests_.find(load.order.request);
  bool failed = false;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    Events::Block block = BlockOf(load.order.request, chunks, i);
    // A load begins behind the engine's own blocks, and in a window's group at the window. A block
    // without a parent would pass for the first one of a prompt.
    if (block.parent.empty() && block.chunk > 0 && request != requests_.end()) {
      block.parent = HashOf(request->second, block.group, block.chunk - 1);
    }
    if (!load.failed.contains(chunks[i].block)) {
      events_.Loaded(block, lines);
    } else if (!std::exchange(failed, true)) {
      // Blocks behind the first failed one were not moved, so the pool may have them.
      events_.Gone(block, lines);
    }
  }
}

void SchedulerRole::OwnCacheCleared() {
  const MutexLock lock(mutex_);
  events_.TellAgain();
}

std::vector<PoolEvent> SchedulerRole::TakeEvents() {
  const MutexLock lock(mutex_);
  return events_.Take();
}

}  // namespace kvcove::connector
