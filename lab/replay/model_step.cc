// SPDX-License-Identifier: Apache-2.0
// One step: which requests run, with which blocks, and what they compute.
#include <algorithm>

#include "kvcove/base/hash.h"
#include "lab/replay/model.h"

namespace kvcove::lab {

std::string NextHash(std::string_view before, std::span<const std::uint32_t> tokens) {
  std::string text(before);
  text.append(reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes());
  const Id128 hash = Hash128(text, 7);
  return {reinterpret_cast<const char*>(&hash), sizeof(hash)};
}

void ModelEngine::Hash(Running& request) {
  const std::uint32_t size = options_.shape.block_tokens;
  while ((request.hashes.size() + 1) * size <= request.request.tokens.size()) {
    const std::string before =
        request.hashes.empty() ? "salt:" + request.request.salt : request.hashes.back();
    const std::uint32_t* tokens = request.request.tokens.data() + request.hashes.size() * size;
    request.hashes.push_back(NextHash(before, {tokens, size}));
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

}  // namespace kvcove::lab
