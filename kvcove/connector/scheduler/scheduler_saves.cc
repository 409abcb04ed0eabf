// SPDX-License-Identifier: Apache-2.0
// Takes what a step computes: marks its blocks with the epoch, and orders saves of its chunks.
#include <algorithm>

#include "kvcove/connector/scheduler/scheduler.h"

namespace kvcove::connector {

void SchedulerRole::Schedule(const ScheduledPart& part) {
  const std::optional<Token> token = CaptureFor(part);
  std::size_t known = 0;
  {
    const MutexLock lock(mutex_);
    const Request& request = Find(part.request);
    const bool decodes = part.computed_tokens >= request.prompt_tokens;
    if (!decodes) steps_.AddPrompt(part.computed_tokens, part.scheduled_tokens);
    if (!Concerns(request, part)) return;
    known = request.hashes.size();
  }
  const NewHashes read =
      ReadHashes(part.request, known, part.computed_tokens + part.scheduled_tokens);
  ExpectNoLock("a callback of the engine");
  const BlockTables tables = part.blocks();
  if (tables.size() < options_.shape.groups.size()) return;
  const MutexLock lock(mutex_);
  // Looked up again: the lock was free while the engine gave hashes and block tables.
  Request& request = Find(part.request);
  if (!Keep(request, read) || (!part.started && request.marked_chunks.empty())) return;
  Compute(request, part, tables, token);
}

void SchedulerRole::Copied(const std::vector<std::pair<BlockId, BlockId>>& copies) {
  const MutexLock lock(mutex_);
  for (const auto& [from, to] : copies) {
    if (from == kNullBlock || to == kNullBlock) continue;
    const auto load = loads_.find(marks_.Copy(from, to));
    if (load != loads_.end()) load->second.dependent.push_back(to);
  }
}

std::optional<Token> SchedulerRole::CaptureFor(const ScheduledPart& part) {
  if (!part.started || !options_.save) return std::nullopt;
  std::string version;
  {
    const MutexLock lock(mutex_);
    version = weights_.VersionOf(part.request.salt);
    if (!weights_.known() || without_pool_) return std::nullopt;
  }
  return Capture(version);
}

bool SchedulerRole::Concerns(const Request& request, const ScheduledPart& part) const {
  if (part.started) return true;
  if (request.marked_chunks.empty()) return false;  // Begin() has not decided whether it may store
  const std::uint64_t after = part.computed_tokens + part.scheduled_tokens;
  const std::uint64_t savable = SavableTokens(request, part);
  for (std::uint32_t g = 0; g < options_.shape.groups.size(); ++g) {
    const std::uint64_t chunk_tokens = options_.shape.groups[g].chunk_tokens;
    if (CeilDiv(after, chunk_tokens) > request.marked_chunks[g]) return true;
    if (savable / chunk_tokens > request.saved_chunks[g]) return true;
  }
  return false;
}

void SchedulerRole::Compute(Request& request, const ScheduledPart& part, const BlockTables& tables,
                            const std::optional<Token>& token) {
  if (part.started) Begin(request, part, tables, token);
  const bool kept = request.epoch == marks_.epoch();
  // The step may run under other weights than those that the request's salt names.
  if (!kept || weights_.DifferFrom(request.version) || without_pool_ || !weights_.known()) {
    request.may_store = false;
  }
  Mark(request, part, tables);
  // A synchronous load may still fail, and this step computes on its blocks. Steps after the
  // reports of all ranks save.
  if (request.may_store && SyncLoadOf(part.request.id) == 0) OrderSave(request, part, tables);
}

void SchedulerRole::StopStoring(const std::function<bool(const Request&)>& matches) {
  for (auto& [id, request] : requests_) {
    if (matches(request)) request.may_store = false;
  }
}

void SchedulerRole::Begin(Request& request, const ScheduledPart& part, const BlockTables& tables,
                          const std::optional<Token>& token) {
  request.version = weights_.VersionOf(part.request.salt);
  request.may_store = BindAdapter(request, part.request.adapter) && token.has_value();
  request.token = token.value_or(Token{});
  request.epoch = marks_.epoch();
  DropLookup(request);
  request.lookup_over = false;
  request.marked_chunks.assign(tables.size(), 0);
  request.saved_chunks.assign(tables.size(), 0);
  MarkSiblings(request, part, tables);
  const JobId own_load = SyncLoadOf(part.request.id);
  for (std::uint32_t g = 0; g < options_.shape.groups.size(); ++g) {
    const std::uint64_t begun =
        CeilDiv(part.computed_tokens, options_.shape.groups[g].chunk_tokens);
    request.marked_chunks[g] = begun;
    for (std::uint64_t c = 0; c < begun && c < tables[g].size(); ++c) {
      const BlockId block = tables[g][c];
      if (block == kNullBlock) continue;
      // The engine's own cache may have blocks of an older epoch, of an adapter that has changed
      // since, or of another request's load that may still fail. KV that depends on them must not
      // be stored: other engines would find wrong values under a valid hash.
      if (!marks_.MayBeginOn(block, request.adapter_tag, own_load)) request.may_store = false;
    }
  }
  if (!options_.save || request.may_store) return;
  ++(token ? stats_.unstored_requests : stats_.uncaptured_requests);
}

void SchedulerRole::MarkSiblings(Request& request, const ScheduledPart& part,
                                 const BlockTables& tables) {
  const std::optional<std::uint64_t> known = std::exchange(request.known_tokens, std::nullopt);
  if (!known || part.computed_tokens <= *known) return;
  ++stats_.sibling_requests;
  // The sibling loaded since the last Matched. If an epoch has begun since then, its KV may be of
  // the older one.
  const bool trusted = options_.trust_siblings && request.known_epoch == marks_.epoch();
  for (std::uint32_t g = 0; g < options_.shape.groups.size(); ++g) {
    const std::uint64_t chunk_tokens = options_.shape.groups[g].chunk_tokens;
    const std::uint64_t end = CeilDiv(part.computed_tokens, chunk_tokens);
    for (std::uint64_t c = *known / chunk_tokens; c < end && c < tables[g].size(); ++c) {
      if (tables[g][c] == kNullBlock) continue;
      // Replaces the mark of the block's former contents.
      marks_.Computed(tables[g][c], trusted, request.adapter_tag);
    }
  }
}

void SchedulerRole::Mark(Request& request, const ScheduledPart& part, const BlockTables& tables) {
  const std::uint64_t after = part.computed_tokens + part.scheduled_tokens;
  const JobId awaits = request.may_store ? SyncLoadOf(part.request.id) : 0;
  const bool storable = request.may_store && awaits == 0;
  for (std::uint32_t g = 0; g < options_.shape.groups.size(); ++g) {
    const std::uint64_t chunk_tokens = options_.shape.groups[g].chunk_tokens;
    const std::uint64_t end =
        std::min<std::uint64_t>(CeilDiv(after, chunk_tokens), tables[g].size());
    // Includes the chunk that an earlier step has begun: this step computes on in it.
    const std::uint64_t first =
        std::min(request.marked_chunks[g], part.computed_tokens / chunk_tokens);
    for (std::uint64_t c = first; c < end; ++c) {
      if (tables[g][c] == kNullBlock) continue;
      if (c < request.marked_chunks[g]) {
        if (!storable) marks_.Void(tables[g][c]);
      } else {
        marks_.Computed(tables[g][c], storable, request.adapter_tag, awaits);
        if (awaits != 0) loads_.at(awaits).dependent.push_back(tables[g][c]);
      }
    }
    request.marked_chunks[g] = std::max(request.marked_chunks[g], end);
  }
}

std::uint64_t SchedulerRole::SavableTokens(const Request& request,
                                           const ScheduledPart& part) const {
  const std::uint64_t after = part.computed_tokens + part.scheduled_tokens;
  const std::uint64_t hashed = part.request.hashes * options_.shape.hash_tokens;
  return std::min({after, hashed, options_.save_decoded ? after : request.prompt_tokens});
}

std::vector<ChunkPlace> SchedulerRole::SavableChunks(Request& request, const ScheduledPart& part,
                                                     std::uint32_t group,
                                                     const BlockTables& tables) {
  const GroupShape& shape = options_.shape.groups[group];
  const std::uint64_t after = part.computed_tokens + part.scheduled_tokens;
  const std::uint64_t end = std::min<std::uint64_t>(
      SavableTokens(request, part) / shape.chunk_tokens, tables[group].size());
  std::vector<ChunkPlace> chunks;
  for (std::uint64_t c = request.saved_chunks[group]; c < end; ++c) {
    const BlockId block = tables[group][c];
    if (block == kNullBlock) continue;
    // A state has the value for a chunk's end only if the step ends there.
    if (shape.kind == GroupKind::kState && after != (c + 1) * shape.chunk_tokens) continue;
    if (!marks_.BeginSave(block)) continue;
    if (chunks.empty() && c > 0) {
      chunks.push_back({.group = group,
                        .chunk = c - 1,
                        .block = kNullBlock,  // not saved: names the chunk before the first one
                        .hash = HashOf(request, group, c - 1)});
    }
    chunks.push_back(
        {.group = group, .chunk = c, .block = block, .hash = HashOf(request, group, c)});
  }
  request.saved_chunks[group] = std::max(request.saved_chunks[group], end);
  return chunks;
}

void SchedulerRole::OrderSave(Request& request, const ScheduledPart& part,
                              const BlockTables& tables) {
  // Saves pin blocks until all ranks have ended them. Beyond a quarter of the blocks, pins would
  // take memory that the engine needs for its requests; chunks left out now are saved by a later
  // step.
  if (saves_.size() >= options_.most_save_jobs ||
      (options_.blocks > 0 && stats_.pinned_blocks > options_.blocks / 4)) {
    ++stats_.saves_postponed;
    return;
  }
  SaveOrder order{.request = std::string(part.request.id),
                  .token = request.token,
                  .version = request.version,
                  .adapter = request.adapter};
  for (std::uint32_t g = 0; g < options_.shape.groups.size(); ++g) {
    std::vector<ChunkPlace> chunks = SavableChunks(request, part, g, tables);
    std::move(chunks.begin(), chunks.end(), std::back_inserter(order.chunks));
  }
  if (order.chunks.empty()) return;
  order.hints = request.hints;
  // Decoded chunks may follow for as long as the request runs, and its end makes no save, so no
  // save is known to be the last one.
  order.goes_on =
      options_.save_decoded || part.computed_tokens + part.scheduled_tokens < request.prompt_tokens;
  order.job = ++last_job_;
  for (const ChunkPlace& place : order.chunks) {
    if (place.block == kNullBlock) {
      // Another request's save may be under way there.
      const BlockId before = tables[place.group][place.chunk];
      const JobId save = before == kNullBlock ? 0 : marks_.SaveOf(before);
      if (saves_.contains(save)) order.behind = std::max(order.behind, save);
      continue;
    }
    marks_.NoteSave(place.block, order.job);
    pins_.push_back(place.block);
    ++stats_.pinned_blocks;
  }
  ++stats_.saves;
  plan_.saves.push_back(order);
  const JobId job = order.job;
  saves_.emplace(job, Save{.order = std::move(order),
                           .block_epoch = marks_.epoch(),
                           .ranks_left = options_.shape.world()});
}

}  // namespace kvcove::connector
