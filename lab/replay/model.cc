// SPDX-License-Identifier: Apache-2.0
#include "lab/replay/model.h"

#include <fmt/core.h>

#include <algorithm>

#include "kvcove/base/log.h"

namespace kvcove::lab {

std::uint64_t NextState(std::uint64_t before, std::uint32_t token, Weights weights) {
  const std::uint64_t state = Mix64(before ^ Mix64(token + 1) ^ Mix64(~weights));
  return state == 0 ? 1 : state;
}

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

}  // namespace kvcove::lab
