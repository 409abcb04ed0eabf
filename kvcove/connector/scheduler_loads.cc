// SPDX-License-Identifier: Apache-2.0
// Loads: ordered when the engine has given blocks, over when all ranks have ended them.
#include <algorithm>

#include "kvcove/base/hash.h"
#include "kvcove/connector/scheduler.h"

namespace kvcove::connector {

void SchedulerRole::Allocated(std::string_view id, std::uint64_t external_tokens,
                              const std::function<BlockTables()>& blocks) {
  {
    const MutexLock lock(mutex_);
    const auto at = requests_.find(id);
    if (at == requests_.end()) return;
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
            .epoch = epoch_,
            .adapter_tag = request.adapter_tag};
  for (std::uint32_t g = 0; g < options_.shape.groups.size() && g < tables.size(); ++g) {
    const std::uint64_t chunk_tokens = options_.shape.groups[g].chunk_tokens;
    const auto [needed, behind] = options_.shape.Needed(g, end);
    const std::uint64_t own = request.computed_tokens / chunk_tokens;
    const std::uint64_t hashed =
        request.hashes.size() / (chunk_tokens / options_.shape.hash_tokens);
    const std::uint64_t last = std::min<std::uint64_t>({behind, tables[g].size(), hashed});
    load.order.chunks.reserve(load.order.chunks.size() + last -
                              std::min(last, std::max(needed, own)));
    for (std::uint64_t c = std::max(needed, own); c < last; ++c) {
      if (tables[g][c] == kNullBlock) continue;
      // The blocks of a synchronous load hold the values when the step begins, or are reported and
      // computed again; those of another one are marked when it has ended.
      MarkOf(tables[g][c]) = load.order.sync ? BlockMark{.epoch = block_epoch_,
                                                         .stored = block_epoch_,
                                                         .adapter_tag = load.adapter_tag}
                                             : BlockMark{};
      load.order.chunks.push_back(
          {.group = g, .chunk = c, .block = tables[g][c], .hash = HashOf(request, g, c)});
    }
  }
  return load;
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
    if (load.wanted) TellLoaded(load, lines);  // one that was cancelled brought nothing
    for (const ChunkPlace& place : load.order.chunks) {
      if (load.failed.contains(place.block)) continue;
      MarkOf(place.block) = {
          .epoch = block_epoch_, .stored = block_epoch_, .adapter_tag = load.adapter_tag};
    }
  }
  const auto request = requests_.find(id);
  // What was found and is not there would be found again: compute.
  if (request != requests_.end() && !load.refused && !load.failed.empty()) {
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
    if (!load.failed.empty()) {
      ++stats_.loads_failed;
      const auto request = requests_.find(load.order.request);
      if (request != requests_.end()) request->second.spoiled = true;
      for (const BlockId block : load.failed) MarkOf(block) = {};
    }
    load_of_.erase(load.order.request);
    loads_.erase(at);
  }
}

}  // namespace kvcove::connector
