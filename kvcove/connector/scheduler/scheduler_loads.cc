// SPDX-License-Identifier: Apache-2.0
// Loads: ordered when the engine has given blocks, over when all ranks have ended them.
#include <algorithm>

#include "kvcove/connector/scheduler/scheduler.h"

namespace kvcove::connector {

void SchedulerRole::Allocated(std::string_view id, std::uint64_t external_tokens,
                              const std::function<BlockTables()>& blocks) {
  // Of the answer that the engine acts on; an epoch that has begun since made it 0. The load is
  // then one that the epoch overtook, whatever begins while the engine gives its block tables.
  std::uint64_t found_in = 0;
  {
    const MutexLock lock(mutex_);
    const auto at = requests_.find(id);
    if (at == requests_.end()) return;
    found_in = at->second.lookup_epoch;
    DropLookup(at->second);
    if (external_tokens == 0) return;
  }
  ExpectNoLock("a callback of the engine");
  const BlockTables tables = blocks();
  const MutexLock lock(mutex_);
  const auto at = requests_.find(id);
  if (at == requests_.end()) return;
  Request& request = at->second;
  request.known_tokens = request.computed_tokens + external_tokens;
  Load load = LoadOf(request, id, external_tokens, tables);
  load.epoch = found_in;
  stats_.hit_tokens += external_tokens;
  for (std::size_t i = 0; i < kTiers; ++i) stats_.hit_keys[i] += request.tiers[i];
  ++stats_.loads;
  plan_.loads.push_back(load.order);
  load.tokens = external_tokens;
  load.ordered_ns = clock_.NowNs();
  load_of_[std::string(id)] = load.order.job;
  loads_.emplace(load.order.job, std::move(load));
}

SchedulerRole::Load SchedulerRole::LoadOf(const Request& request, std::string_view id,
                                          std::uint64_t external_tokens,
                                          const BlockTables& tables) {
  const std::uint64_t end = request.computed_tokens + external_tokens;
  Load load{.order = {.job = ++last_job_,
                      .request = std::string(id),
                      .version = request.version,
                      .adapter = request.adapter,
                      .sync = !options_.load_async},
            .adapter_tag = request.adapter_tag,
            .block_epoch = marks_.epoch()};
  for (std::uint32_t g = 0; g < options_.shape.groups.size() && g < tables.size(); ++g) {
    const std::uint64_t chunk_tokens = options_.shape.groups[g].chunk_tokens;
    // Loads every block that the engine has allocated for the hit, not only those that the shape
    // needs: the engine gives each its hash when the load has ended, so a block that is left out
    // would be found with its former contents. A block that the pool lacks makes the load fail.
    const std::uint64_t own = request.computed_tokens / chunk_tokens;
    const std::uint64_t hashed =
        request.hashes.size() / (chunk_tokens / options_.shape.hash_tokens);
    const std::uint64_t last =
        std::min<std::uint64_t>(CeilDiv(end, chunk_tokens), tables[g].size());
    for (std::uint64_t c = own; c < last; ++c) {
      if (tables[g][c] == kNullBlock) continue;
      // The mark of the former contents is void: a mover may write to the block at any time. The
      // block is marked again when the load has ended.
      marks_.BeginLoad(tables[g][c], load.order.sync ? load.order.job : 0);
      // A chunk without a hash gets the empty one, which no value has: the load fails.
      load.order.chunks.push_back(
          {.group = g,
           .chunk = c,
           .block = tables[g][c],
           .tier = TierOf(request, c * chunk_tokens),
           .hash = c < hashed ? HashOf(request, g, c) : std::string_view()});
    }
  }
  return load;
}

void SchedulerRole::LoadFailed(std::string_view id, const std::vector<BlockId>& blocks) {
  const MutexLock lock(mutex_);
  const auto job = load_of_.find(id);
  if (job == load_of_.end()) return;
  Load& load = loads_.at(job->second);
  for (const ChunkPlace& place : load.order.chunks) {
    if (blocks.empty() || std::ranges::find(blocks, place.block) != blocks.end()) {
      load.failed.insert(place.block);
    }
  }
}

bool SchedulerRole::LoadEnded(std::string_view id) {
  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  const auto job = load_of_.find(id);
  if (job == load_of_.end()) return true;
  Load& load = loads_.at(job->second);
  if (load.wanted && load.epoch != epoch_ && !load.refused) {
    load.refused = true;
    ++stats_.loads_void;
    plan_.refused.push_back(load.order);
    return false;
  }
  if (!load.failed.empty()) ++stats_.loads_failed;
  if (!load.refused && load.epoch == epoch_) {
    if (load.wanted && load.failed.empty()) {
      costs_.AddWait(clock_.NowNs() - load.ordered_ns - static_cast<std::int64_t>(load.mover_ns));
    }
    if (load.wanted) TellLoaded(load, lines);  // a cancelled load has loaded nothing
    for (const ChunkPlace& place : load.order.chunks) {
      if (!load.failed.contains(place.block)) marks_.Loaded(place.block, load.adapter_tag);
    }
  }
  const auto request = requests_.find(id);
  // Ends the request's look-ups, so that it is computed: values that were found and could not be
  // loaded would be found again. Also after a reset: vLLM keeps the blocks of a request whose load
  // has failed until it is computed, and wants as many free ones for another load. A request that
  // needs more than half of all blocks would then wait for ever.
  if (request != requests_.end() && (load.refused || !load.failed.empty())) {
    request->second.lookup_over = true;
  }
  loads_.erase(job->second);
  load_of_.erase(job);
  return true;
}

void SchedulerRole::TakeLoads(const Report& report) {
  for (const LoadDone& done : report.loads) {
    const auto at = loads_.find(done.job);
    if (at == loads_.end()) continue;
    Load& load = at->second;
    load.failed.insert(done.failed.begin(), done.failed.end());
    load.mover_ns = std::max(load.mover_ns, done.ns);
    if (done.failed.empty()) {
      costs_.AddLoad(load.tokens, done.bytes, static_cast<std::int64_t>(done.ns), clock_.NowNs());
    }
    if (!load.order.sync || ++load.ranks < options_.shape.world()) continue;
    EndSyncLoad(load);
    // A request that was preempted may have a later load by now, which must remain.
    const auto current = load_of_.find(load.order.request);
    if (current != load_of_.end() && current->second == load.order.job) load_of_.erase(current);
    loads_.erase(at);
  }
}

JobId SchedulerRole::SyncLoadOf(std::string_view request) const {
  const auto job = load_of_.find(request);
  return job != load_of_.end() && loads_.at(job->second).order.sync ? job->second : 0;
}

void SchedulerRole::EndSyncLoad(const Load& load) {
  if (!load.failed.empty()) ++stats_.loads_failed;
  const bool current = load.epoch == epoch_ && load.block_epoch == marks_.epoch();
  bool dependent = current && load.failed.empty();
  const auto request = load.wanted ? requests_.find(load.order.request) : requests_.end();
  if (request != requests_.end()) {
    // The engine computes again from the first block that failed, into the blocks behind it: their
    // marks would not tell the former contents from those of its next steps.
    if (!dependent) request->second.may_store = false;
    dependent = request->second.may_store;
  }
  // In another epoch nothing is marked: the blocks keep the void marks of BeginLoad().
  if (!current) return;
  const JobId job = load.order.job;
  for (const ChunkPlace& place : load.order.chunks) {
    if (load.failed.contains(place.block)) continue;
    marks_.Settle(place.block, job, /*loaded=*/true, load.adapter_tag);
  }
  // If the load failed, the blocks that were computed on it remain without a mark, also in the
  // engine's own cache: no KV that begins on them is stored.
  if (!dependent) return;
  for (const BlockId block : load.dependent) {
    marks_.Settle(block, job, /*loaded=*/false, load.adapter_tag);
  }
}

}  // namespace kvcove::connector
