// SPDX-License-Identifier: Apache-2.0
#include "kvcove/replay/model.h"

#include <fmt/core.h>

#include <algorithm>

#include "kvcove/base/hash.h"
#include "kvcove/base/log.h"

namespace kvcove::replay {

std::uint64_t NextState(std::uint64_t before, std::uint32_t token, Weights weights) {
  const std::uint64_t state = Mix64(before ^ Mix64(token + 1) ^ Mix64(~weights));
  return state == 0 ? 1 : state;
}

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

// ---- memory

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

// ---- block pool

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

// ---- engine

ModelEngine::ModelEngine(const ModelOptions& options, std::vector<ModelConnector> connectors)
    : options_(options), connectors_(std::move(connectors)), pool_(options.shape.blocks) {
  for (std::uint32_t rank = 0; rank < options_.shape.tp; ++rank) {
    memory_.emplace_back(options_.shape, rank);
  }
}

std::string ModelEngine::FingerprintOf(std::uint32_t rank) const {
  return fmt::format("{:016x}", Mix64(weights_ * 64 + rank));
}

Status ModelEngine::Start(Weights weights) {
  weights_ = weights;
  std::vector<std::string> fingerprints;
  for (std::uint32_t rank = 0; rank < options_.shape.tp; ++rank) {
    fingerprints.push_back(FingerprintOf(rank));
  }
  for (const ModelConnector& each : connectors_) {
    for (std::uint32_t rank = 0; rank < options_.shape.tp; ++rank) {
      KVCOVE_TRY(each.workers[rank]->Register({memory_[rank].Layer()}));
    }
    each.scheduler->StartWith(fingerprints);
  }
  return {};
}

void ModelEngine::Add(ModelRequest request) {
  std::string id = request.id;
  Running running{.request = std::move(request)};
  running.prompt_tokens = running.request.tokens.size();
  waiting_.push_back(id);
  requests_.emplace(std::move(id), std::move(running));
}

void ModelEngine::Hash(Running& request) {
  const std::uint32_t size = options_.shape.block_tokens;
  while ((request.hashes.size() + 1) * size <= request.request.tokens.size()) {
    std::string text =
        request.hashes.empty() ? "salt:" + request.request.salt : request.hashes.back();
    const std::uint32_t* tokens = request.request.tokens.data() + request.hashes.size() * size;
    text.append(reinterpret_cast<const char*>(tokens), size * sizeof(std::uint32_t));
    const Id128 hash = Hash128(text, 7);
    request.hashes.emplace_back(reinterpret_cast<const char*>(&hash), sizeof(hash));
  }
}

connector::RequestView ModelEngine::ViewOf(Running& request) {
  Hash(request);
  return {.id = request.request.id,
          .tokens = request.request.tokens.size(),
          .prompt_tokens = request.prompt_tokens,
          .salt = request.request.salt,
          .hashes = request.hashes.size(),
          .read_hashes = [&request](std::size_t from, std::size_t to, connector::HashList& into) {
            for (std::size_t i = from; i < to; ++i) into.Add(request.hashes[i]);
          }};
}

bool ModelEngine::Grow(Running& request, std::uint64_t tokens) {
  const std::uint64_t size = options_.shape.block_tokens;
  const std::uint64_t wanted = (tokens + size - 1) / size;
  if (wanted <= request.blocks.size()) return true;
  const auto more = pool_.Allocate(wanted - request.blocks.size());
  if (!more) return false;
  request.blocks.insert(request.blocks.end(), more->begin(), more->end());
  return true;
}

std::uint64_t ModelEngine::Promised(const Running& next) const {
  const std::uint64_t size = options_.shape.block_tokens;
  const auto all = [&](const Running& request) {
    return (request.request.tokens.size() + size - 1) / size;
  };
  std::uint64_t blocks = all(next);
  for (const auto& [id, request] : requests_) {
    const bool waits = request.state != State::kRunning && !request.aborted && &request != &next;
    if (waits && !request.blocks.empty()) blocks += all(request) - request.blocks.size();
  }
  return blocks;
}

void ModelEngine::Free(Running& request) {
  // The last ones go first: a chain is of no use without its beginning.
  for (auto at = request.blocks.rbegin(); at != request.blocks.rend(); ++at) pool_.Release(*at);
  request.blocks.clear();
}

void ModelEngine::Preempt(Running& request) {
  Free(request);
  request.computed = 0;
  request.scheduled = 0;
  request.state = State::kWaiting;
  waiting_.push_front(request.request.id);
  ++counts_.preempted;
}

void ModelEngine::ScheduleRunning(std::uint64_t& budget) {
  for (std::size_t i = 0; i < running_.size() && budget > 0; ++i) {
    Running& request = requests_.at(running_[i]);
    const std::uint64_t left = request.request.tokens.size() - request.computed;
    const std::uint64_t now = std::min(left, budget);
    while (!Grow(request, request.computed + now)) {
      Running& victim = requests_.at(running_.back());
      running_.pop_back();
      if (victim.scheduled > 0) budget += victim.scheduled;
      Preempt(victim);
      if (&victim == &request) return;
    }
    request.scheduled = now;
    budget -= now;
  }
}

connector::Match ModelEngine::MatchAll(Running& request, std::uint64_t computed,
                                       std::size_t& whose) {
  connector::Match best;
  whose = connectors_.size();
  for (std::size_t i = 0; i < connectors_.size(); ++i) {
    const connector::Match match = connectors_[i].scheduler->Matched(ViewOf(request), computed);
    if (match.ask_again) return match;
    if (match.tokens == 0 || whose != connectors_.size()) continue;
    best = match;
    whose = i;
  }
  return best;
}

bool ModelEngine::StartWaiting(Running& request, std::uint64_t& budget, bool& blocked) {
  const std::uint64_t size = options_.shape.block_tokens;
  Hash(request);
  const std::uint64_t tokens = request.request.tokens.size();
  std::uint64_t external = 0;
  std::size_t whose = connectors_.size();
  bool async = false;
  const bool fresh = request.computed == 0;
  std::vector<BlockId> own;
  if (fresh) {
    if (options_.keeps_cache) own = pool_.Find(request.hashes);
    while (own.size() * size >= tokens) own.pop_back();  // the last token is always computed
    const connector::Match match = MatchAll(request, own.size() * size, whose);
    if (match.ask_again) {
      blocked = true;
      return true;
    }
    external = match.tokens;
    async = match.async && external > 0;
    for (const BlockId block : own) pool_.Touch(block);
    request.blocks = own;
    request.computed = request.own_tokens = own.size() * size;
  }
  const std::uint64_t computed = request.computed + external;
  const std::uint64_t now = async ? 0 : std::min(tokens - computed, budget);
  // Who waits with blocks is not preempted, so what such requests will need must be there for all.
  const bool room = !async || pool_.free() + request.blocks.size() >= Promised(request);
  if (!room || !Grow(request, computed + now)) {
    if (fresh) {
      Free(request);
      request.computed = 0;
    }
    return false;
  }
  for (std::size_t i = 0; i < connectors_.size(); ++i) {
    connectors_[i].scheduler->Allocated(request.request.id, i == whose ? external : 0,
                                        [&] { return connector::BlockTables{request.blocks}; });
  }
  if (fresh) counts_.own_hit_blocks += own.size();
  request.computed = computed;
  if (async) {
    request.state = State::kRemote;
    loads_left_[request.request.id] = {.connector = whose, .ranks = options_.shape.tp};
    return true;
  }
  request.state = State::kRunning;
  request.started = true;
  request.scheduled = now;
  budget -= now;
  running_.push_back(request.request.id);
  return true;
}

void ModelEngine::ScheduleWaiting(std::uint64_t& budget) {
  std::deque<std::string> later;
  while (!waiting_.empty() && budget > 0 && running_.size() < options_.most_running) {
    const std::string id = waiting_.front();
    waiting_.pop_front();
    bool blocked = false;
    if (!StartWaiting(requests_.at(id), budget, blocked)) {
      waiting_.push_front(id);
      break;
    }
    if (blocked) later.push_back(id);
  }
  for (auto at = later.rbegin(); at != later.rend(); ++at) waiting_.push_front(*at);
}

void ModelEngine::Compute(Running& request) {
  const std::uint32_t size = options_.shape.block_tokens;
  for (std::uint64_t t = request.computed; t < request.computed + request.scheduled; ++t) {
    // What ranks compute depends on all of them.
    std::uint64_t before = 0;
    for (std::size_t rank = 0; t > 0 && rank < memory_.size(); ++rank) {
      const std::uint64_t state = memory_[rank].Read(request.blocks[(t - 1) / size],
                                                     static_cast<std::uint32_t>((t - 1) % size));
      before = rank == 0 || state == before ? state : Mix64(before ^ state);
    }
    const std::uint64_t state = NextState(before, request.request.tokens[t], weights_);
    for (RankMemory& memory : memory_) {
      memory.Write(request.blocks[t / size], static_cast<std::uint32_t>(t % size), state);
    }
    ++counts_.computed_tokens;
  }
}

void ModelEngine::Step() {
  ++counts_.steps;
  std::uint64_t budget = options_.batch_tokens;
  if (!paused_) {
    ScheduleRunning(budget);
    ScheduleWaiting(budget);
  }
  Outcome outcome{.weights = weights_};
  for (std::size_t i = 0; i < connectors_.size(); ++i) RunConnector(i, outcome);
  for (const std::string& id : running_) {
    Running& request = requests_.at(id);
    request.started = request.started && request.scheduled == 0;
    Compute(request);
  }
  for (std::size_t i = 0; i < connectors_.size(); ++i) FinishConnector(i, outcome);
  outcome_ = std::move(outcome);
}

void ModelEngine::RunConnector(std::size_t index, Outcome& outcome) {
  const ModelConnector& each = connectors_[index];
  for (const std::string& id : running_) {
    Running& request = requests_.at(id);
    if (request.scheduled == 0) continue;
    each.scheduler->Schedule(
        {.request = ViewOf(request),
         .computed_tokens = request.computed,
         .scheduled_tokens = request.scheduled,
         .started = request.started,
         .blocks = [&request] { return connector::BlockTables{request.blocks}; }});
  }
  std::vector<BlockId> pins;
  const connector::Plan made = each.scheduler->BuildPlan(pins);
  const std::string plan = connector::Encode(made);
  if (options_.saves_ordered && !made.saves.empty()) options_.saves_ordered(plan);
  for (const BlockId block : pins) {
    pool_.Touch(block);
    ++pinned_[block];
  }
  // Every rank has its own copy.
  for (std::uint32_t rank = 0; rank < each.workers.size(); ++rank) {
    const Result<connector::Plan> mine = connector::DecodePlan(plan);
    connector::WorkerRole& worker = *each.workers[rank];
    worker.Begin(*mine);
    if (worker.FingerprintWanted()) worker.SetFingerprint(FingerprintOf(rank));
    worker.WaitForSyncLoads();
  }
  outcome.reports.emplace_back();
}

void ModelEngine::FinishConnector(std::size_t index, Outcome& outcome) {
  std::map<std::string, std::uint32_t> ended;
  for (connector::WorkerRole* worker : connectors_[index].workers) {
    worker->FinishStep({});
    connector::Ended end = worker->TakeEnded();
    for (std::string& id : end.loaded) ++ended[std::move(id)];
    outcome.failed_blocks.insert(outcome.failed_blocks.end(), end.failed_blocks.begin(),
                                 end.failed_blocks.end());
    outcome.reports[index].push_back(connector::Encode(worker->TakeReport()));
  }
  for (const auto& [id, ranks] : ended) {
    const auto left = loads_left_.find(id);
    if (left == loads_left_.end() || left->second.ranks < ranks) {
      LogError("{}: request {} ended more often than it was loaded", options_.name, id);
      ++counts_.wrong_blocks;
      continue;
    }
    left->second.ranks -= ranks;
    if (left->second.ranks == 0) outcome.loaded.push_back(id);
  }
}

void ModelEngine::HandleFailed(const std::vector<BlockId>& blocks) {
  const std::uint64_t size = options_.shape.block_tokens;
  for (auto& [id, request] : requests_) {
    if (request.state != State::kRemote && request.scheduled == 0) continue;
    for (std::size_t i = 0; i < request.blocks.size() && i * size < request.computed; ++i) {
      if (std::find(blocks.begin(), blocks.end(), request.blocks[i]) == blocks.end()) continue;
      request.computed = i * size;
      request.scheduled = 0;  // what this step computed stands on nothing
      request.load_failed = true;
      ++counts_.failed_blocks;
      break;
    }
  }
}

void ModelEngine::HandleLoaded(const Outcome& outcome) {
  for (const std::string& id : outcome.loaded) {
    LoadLeft& left = loads_left_.at(id);
    if (!connectors_[left.connector].scheduler->LoadEnded(id)) {
      left.ranks = options_.shape.tp;
      continue;
    }
    loads_left_.erase(id);
    const auto at = requests_.find(id);
    if (at == requests_.end()) continue;
    Running& request = at->second;
    if (request.aborted) {
      Free(request);
      requests_.erase(at);
      continue;
    }
    Verify(request, outcome.weights);
    if (request.computed == 0) Free(request);
    const std::uint64_t tokens = request.request.tokens.size();
    for (std::size_t i = 0; (i + 1) * options_.shape.block_tokens <= request.computed; ++i) {
      pool_.Cache(request.blocks[i], request.hashes[i]);
    }
    if (request.computed == tokens) request.computed = tokens - 1;
    request.load_failed = false;
    request.state = State::kWaiting;
    waiting_.push_front(id);
  }
}

void ModelEngine::Verify(const Running& request, Weights weights) {
  const std::uint32_t size = options_.shape.block_tokens;
  if (options_.weights_of_salt) weights = options_.weights_of_salt(request.request.salt);
  std::uint64_t state = 0;
  std::uint64_t bad_block = ~0ULL;
  for (std::uint64_t t = 0; t < request.computed; ++t) {
    state = NextState(state, request.request.tokens[t], weights);
    if (t < request.own_tokens) continue;
    if (t % size == 0) ++counts_.loaded_blocks;
    for (const RankMemory& memory : memory_) {
      const std::uint64_t found =
          memory.Read(request.blocks[t / size], static_cast<std::uint32_t>(t % size));
      if (found == state || bad_block == t / size) continue;
      bad_block = t / size;
      // Whole layers that agree were computed by somebody, under other weights; else torn.
      ++(found != 0 ? counts_.stale_blocks : counts_.wrong_blocks);
    }
  }
}

void ModelEngine::Finish() {
  const Outcome outcome = std::move(*outcome_);
  outcome_.reset();
  if (!outcome.failed_blocks.empty()) HandleFailed(outcome.failed_blocks);
  const std::uint32_t size = options_.shape.block_tokens;
  std::vector<std::string> still;
  for (const std::string& id : std::exchange(running_, {})) {
    const auto at = requests_.find(id);
    if (at == requests_.end()) continue;  // aborted meanwhile
    Running& request = at->second;
    const std::uint64_t first = request.computed / size;
    request.computed += std::exchange(request.scheduled, 0);
    Hash(request);
    for (std::uint64_t i = first; (i + 1) * size <= request.computed; ++i) {
      pool_.Cache(request.blocks[i], request.hashes[i]);
    }
    if (request.computed == request.request.tokens.size()) {
      if (request.request.tokens.size() - request.prompt_tokens >= request.request.generate) {
        ++counts_.finished;
        Free(request);
        Erase(id);
        continue;
      }
      const std::uint64_t last = request.computed - 1;
      const std::uint64_t state =
          memory_[0].Read(request.blocks[last / size], static_cast<std::uint32_t>(last % size));
      request.request.tokens.push_back(static_cast<std::uint32_t>(state % 1009));
    }
    still.push_back(id);
  }
  running_.insert(running_.begin(), still.begin(), still.end());
  for (std::size_t i = 0; i < connectors_.size(); ++i) {
    for (const std::string& bytes : outcome.reports[i]) {
      if (const auto report = connector::DecodeReport(bytes)) {
        connectors_[i].scheduler->OnReport(*report);
      }
    }
  }
  HandleLoaded(outcome);
  for (const ModelConnector& each : connectors_) {
    for (const BlockId block : each.scheduler->TakeUnpins()) {
      pool_.Release(block);
      if (--pinned_[block] == 0) pinned_.erase(block);
    }
  }
}

void ModelEngine::Erase(const std::string& id) {
  for (const ModelConnector& each : connectors_) each.scheduler->Finished(id);
  requests_.erase(id);
}

bool ModelEngine::Abort(const std::string& id) {
  const auto at = requests_.find(id);
  if (at == requests_.end() || at->second.aborted) return false;
  Running& request = at->second;
  ++counts_.aborted;
  std::erase(running_, id);
  std::erase(waiting_, id);
  for (const ModelConnector& each : connectors_) each.scheduler->Finished(id);
  if (request.state == State::kRemote) {
    request.aborted = true;  // something may still land in its blocks
    return true;
  }
  Free(request);
  requests_.erase(at);
  return true;
}

void ModelEngine::AbortAllRequests() {
  std::vector<std::string> ids;
  for (const auto& [id, request] : requests_) ids.push_back(id);
  for (const std::string& id : ids) (void)Abort(id);
}

bool ModelEngine::has_work() const {
  return !requests_.empty() ||
         std::any_of(connectors_.begin(), connectors_.end(),
                     [](const ModelConnector& each) { return each.scheduler->Pending(); });
}

bool ModelEngine::ResetPrefixCache(bool reset_running_requests, bool reset_connector) {
  if (reset_running_requests) {
    while (!running_.empty()) {
      Running& request = requests_.at(running_.back());
      running_.pop_back();
      Preempt(request);
    }
  }
  // Every part is tried, whatever became of the one before.
  bool ok = ResetOwnCache();
  if (reset_connector && connectors_.empty()) {
    LogDebug("{}: no connector is configured: nothing to reset", options_.name);
  }
  for (const ModelConnector& each : connectors_) {
    if (reset_connector) ok = each.scheduler->Reset() && ok;
  }
  return ok;
}

bool ModelEngine::ResetOwnCache() {
  // What only saves, and loads of requests that are gone, still keep is nobody's cache: it need not
  // be free to be forgotten.
  std::vector<BlockId> kept;
  for (const auto& [block, pins] : pinned_) kept.insert(kept.end(), pins, block);
  for (const auto& [id, request] : requests_) {
    if (request.aborted) kept.insert(kept.end(), request.blocks.begin(), request.blocks.end());
  }
  for (const BlockId block : kept) pool_.Release(block);
  const bool ok = pool_.Reset();
  for (const BlockId block : kept) pool_.Touch(block);
  return ok;
}

bool ModelEngine::ResetCaches(bool reset_running_requests, bool reset_connector) {
  return ResetPrefixCache(reset_running_requests, reset_connector);
}

bool ModelEngine::PauseGeneration(PauseMode mode, bool clear_cache) {
  if (mode == PauseMode::kAbort) AbortAllRequests();
  if (mode == PauseMode::kWait && !requests_.empty()) return false;
  paused_ = true;
  return !clear_cache || ResetCaches(/*reset_running_requests=*/true, /*reset_connector=*/true);
}

bool ModelEngine::ClearKvCache() {
  return ResetPrefixCache(/*reset_running_requests=*/false, /*reset_connector=*/true);
}

void ModelEngine::ChangeWeights(Weights weights, bool told) {
  for (const ModelConnector& each : connectors_) {
    if (told) each.scheduler->WeightsChanging();
    for (connector::WorkerRole* worker : each.workers) worker->WeightsChanging();
  }
  weights_ = weights;
  for (const ModelConnector& each : connectors_) {
    if (told) each.scheduler->WeightsChanged();
  }
}

std::string ModelEngine::Leaks() const {
  if (!requests_.empty()) return "requests are left";
  if (!pinned_.empty()) return fmt::format("{} blocks are still pinned", pinned_.size());
  if (pool_.in_use() != 0) return fmt::format("{} blocks are still in use", pool_.in_use());
  return {};
}

std::vector<std::string> ModelEngine::Unfinished() const {
  std::vector<std::string> ids;
  for (const auto& [id, request] : requests_) ids.push_back(id);
  return ids;
}

}  // namespace kvcove::replay
