// SPDX-License-Identifier: Apache-2.0
// What the connectors do in a step, and what becomes of their loads and saves behind it.
#include <algorithm>

#include "kvcove/base/hash.h"
#include "kvcove/base/log.h"
#include "lab/replay/model.h"

namespace kvcove::lab {

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

}  // namespace kvcove::lab
