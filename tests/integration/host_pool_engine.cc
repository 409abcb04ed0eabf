// SPDX-License-Identifier: Apache-2.0
#include "tests/integration/host_pool_engine.h"

#include <fmt/core.h>

#include <algorithm>

#include "kvcove/base/hash.h"

namespace kvcove::lab {
namespace {

constexpr int kMostSteps = 1000;  // that a request waits for an answer

}  // namespace

HostPoolEngine::HostPoolEngine(const HostPoolOptions& options, ModelConnector connector,
                               std::function<void()> move)
    : options_(options),
      connector_(std::move(connector)),
      move_(std::move(move)),
      device_(options.shape.tp, std::vector<std::uint64_t>(options.slots)),
      pages_(options.shape.blocks) {
  for (std::uint32_t rank = 0; rank < options_.shape.tp; ++rank) {
    host_.emplace_back(options_.shape, rank);
  }
  for (Slot slot = 0; slot < options_.slots; ++slot) free_slots_.push_back(slot);
}

Status HostPoolEngine::Start(Weights weights) {
  weights_ = weights;
  for (std::uint32_t rank = 0; rank < options_.shape.tp; ++rank) {
    KVCOVE_TRY(connector_.workers[rank]->Register({host_[rank].Layer()}));
  }
  return {};
}

void HostPoolEngine::ChangeWeights(Weights weights) {
  connector_.scheduler->WeightsChanging();
  weights_ = weights;
  connector_.scheduler->WeightsChanged();
}

connector::RequestView HostPoolEngine::ViewOf(const Request& request) const {
  return {.id = request.id,
          .tokens = request.tokens.size(),
          .prompt_tokens = request.tokens.size(),
          .salt = {},
          .hashes = request.hashes.size(),
          .read_hashes = [&request](std::size_t from, std::size_t to, connector::HashList& into) {
            for (std::size_t i = from; i < to; ++i) into.Add(request.hashes[i]);
          }};
}

Status HostPoolEngine::TakeSlots(Request& request) {
  if (free_slots_.size() < request.tokens.size()) {
    return Fail(Code::kNoSpace, "the device has not so many slots");
  }
  // From both ends in turn: neighbours in a prompt are none in memory.
  for (std::size_t i = 0; i < request.tokens.size(); ++i) {
    const auto at = i % 2 == 0 ? free_slots_.begin() : std::prev(free_slots_.end());
    request.table.push_back(*at);
    free_slots_.erase(at);
  }
  return {};
}

void HostPoolEngine::Step(Request* request, connector::Ended& ended) {
  const std::uint32_t size = options_.shape.block_tokens;
  std::uint64_t first_page = 0;
  if (request != nullptr) {
    first_page = request->computed / size;
    connector_.scheduler->Schedule(
        {.request = ViewOf(*request),
         .computed_tokens = request->computed,
         .scheduled_tokens = request->tokens.size() - request->computed,
         .started = true,
         .blocks = [&] { return connector::BlockTables{request->backed}; }});
  }
  std::vector<BlockId> pins;
  const connector::Plan plan = connector_.scheduler->BuildPlan(pins);
  for (const BlockId page : pins) pages_.Touch(page);
  for (std::uint32_t rank = 0; rank < options_.shape.tp; ++rank) {
    connector::WorkerRole& worker = *connector_.workers[rank];
    worker.Begin(plan);
    if (worker.FingerprintWanted()) {
      worker.SetFingerprint(fmt::format("{:016x}", Mix64(weights_ * 64 + rank)));
    }
  }
  if (request != nullptr) {
    Compute(*request);
    ToHost(*request, first_page);  // the saves of this step read it there
  }
  for (connector::WorkerRole* worker : connector_.workers) worker->FinishStep({});
  move_();
  for (connector::WorkerRole* worker : connector_.workers) {
    connector::Ended end = worker->TakeEnded();
    std::ranges::move(end.loaded, std::back_inserter(ended.loaded));
    std::ranges::move(end.failed_blocks, std::back_inserter(ended.failed_blocks));
    connector_.scheduler->OnReport(worker->TakeReport());
  }
  for (const BlockId page : connector_.scheduler->TakeUnpins()) pages_.Release(page);
}

Status HostPoolEngine::Load(Request& request) {
  const std::uint32_t size = options_.shape.block_tokens;
  connector::Match match{.ask_again = true};
  for (int i = 0; i < kMostSteps && match.ask_again; ++i) {
    match = connector_.scheduler->Matched(ViewOf(request), 0);
    connector::Ended none;
    if (match.ask_again) Step(nullptr, none);
  }
  if (match.ask_again) return Fail(Code::kTimeout, "the pool gives no answer");
  // Pages for what is loaded, and for what will be written through.
  const auto pages = pages_.Allocate(request.tokens.size() / size);
  if (!pages) return Fail(Code::kNoSpace, "the host has not so many pages");
  request.backed = *pages;
  // The last token is computed, on a page that is loaded whole.
  const std::uint64_t found = connector::CeilDiv(match.tokens, size);
  connector_.scheduler->Allocated(request.id, match.tokens,
                                  [&] { return connector::BlockTables{request.backed}; });
  if (match.tokens == 0) return {};
  connector::Ended ended;
  for (int i = 0; i < kMostSteps; ++i) {
    Step(nullptr, ended);
    if (ended.loaded.size() < options_.shape.tp) continue;
    ended.loaded.clear();
    if (!connector_.scheduler->LoadEnded(request.id)) continue;  // void: it ends once more
    ToDevice(request, found, ended.failed_blocks);
    return {};
  }
  return Fail(Code::kTimeout, "a load does not end");
}

void HostPoolEngine::ToDevice(Request& request, std::uint64_t count,
                              const std::vector<BlockId>& failed) {
  const std::uint32_t size = options_.shape.block_tokens;
  std::uint64_t good = 0;
  while (good < count && std::ranges::find(failed, request.backed[good]) == failed.end()) {
    ++good;
  }
  counts_.loaded_pages += good;
  counts_.failed_pages += count - good;
  for (std::uint32_t rank = 0; rank < options_.shape.tp; ++rank) {
    for (std::uint64_t t = 0; t < good * size; ++t) {
      At(rank, request.table[t]) =
          host_[rank].Read(request.backed[t / size], static_cast<std::uint32_t>(t % size));
    }
  }
  request.computed = std::min<std::uint64_t>(good * size, request.tokens.size() - 1);
  Verify(request);
}

void HostPoolEngine::Verify(const Request& request) {
  std::uint64_t state = 0;
  for (std::uint64_t t = 0; t < request.computed; ++t) {
    state = NextState(state, request.tokens[t], weights_);
    for (std::uint32_t rank = 0; rank < options_.shape.tp; ++rank) {
      if (At(rank, request.table[t]) != state) ++counts_.wrong_tokens;
    }
  }
}

void HostPoolEngine::Compute(Request& request) {
  std::uint64_t before = request.computed == 0 ? 0 : At(0, request.table[request.computed - 1]);
  for (; request.computed < request.tokens.size(); ++request.computed) {
    before = NextState(before, request.tokens[request.computed], weights_);
    for (std::uint32_t rank = 0; rank < options_.shape.tp; ++rank) {
      At(rank, request.table[request.computed]) = before;
    }
    ++counts_.computed_tokens;
  }
}

void HostPoolEngine::ToHost(const Request& request, std::uint64_t first_page) {
  const std::uint32_t size = options_.shape.block_tokens;
  for (std::uint64_t t = first_page * size; t < request.backed.size() * size; ++t) {
    for (std::uint32_t rank = 0; rank < options_.shape.tp; ++rank) {
      host_[rank].Write(request.backed[t / size], static_cast<std::uint32_t>(t % size),
                        At(rank, request.table[t]));
    }
  }
}

void HostPoolEngine::Free(Request& request) {
  connector_.scheduler->Finished(request.id);
  for (const BlockId page : request.backed) pages_.Release(page);
  free_slots_.insert(free_slots_.end(), request.table.begin(), request.table.end());
}

Result<std::uint64_t> HostPoolEngine::Serve(const std::string& id,
                                            const std::vector<std::uint32_t>& tokens) {
  Request request{.id = id, .tokens = tokens};
  const std::uint32_t size = options_.shape.block_tokens;
  for (std::size_t at = 0; at + size <= tokens.size(); at += size) {
    const std::string before = request.hashes.empty() ? "salt:" : request.hashes.back();
    request.hashes.push_back(NextHash(before, {tokens.data() + at, size}));
  }
  KVCOVE_TRY(TakeSlots(request));
  if (const Status loaded = Load(request); !loaded) {
    Free(request);
    return std::unexpected(loaded.error());
  }
  connector::Ended ended;
  Step(&request, ended);
  const std::uint64_t state = At(0, request.table.back());
  Free(request);
  for (int i = 0; i < kMostSteps && connector_.scheduler->Pending(); ++i) Step(nullptr, ended);
  return state;
}

}  // namespace kvcove::lab
