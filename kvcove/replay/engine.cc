// SPDX-License-Identifier: Apache-2.0
#include "kvcove/replay/engine.h"

#include <algorithm>

#include "kvcove/base/clock.h"
#include "kvcove/replay/content.h"

namespace kvcove::replay {
namespace {

constexpr std::size_t kWindowBlocks = 128;  // loaded or stored in one call
constexpr std::chrono::milliseconds kTimeout{5000};

std::int64_t Now() { return SystemClock::Instance().NowNs(); }

}  // namespace

Result<std::unique_ptr<Engine>> Engine::Open(const EngineOptions& options,
                                             std::unique_ptr<Pool> pool) {
  std::unique_ptr<Engine> engine(new Engine(options, std::move(pool)));
  KVCOVE_ASSIGN(engine->session_, engine->pool_->OpenSession({.name = "replay/model",
                                                              .engine = options.engine,
                                                              .follow_always = false,
                                                              .assume_weights = true}));
  engine->buffer_.resize(kWindowBlocks * options.block_bytes);
  return engine;
}

void Engine::ClearOwnCache() {
  own_.reset();
  if (options_.own_blocks > 0) own_.emplace(std::make_unique<policy::Lru>(), options_.own_blocks);
}

void Engine::Load(const std::vector<std::string>& keys, const std::vector<std::uint64_t>& hashes,
                  std::size_t first, std::size_t count, Served& served) {
  std::vector<MutableBuffer> buffers(count);
  std::vector<GetItem> items(count);
  std::vector<ItemResult> results(count);
  for (std::size_t i = 0; i < count; ++i) {
    buffers[i] = {.data = buffer_.data() + i * options_.block_bytes, .size = options_.block_bytes};
    items[i] = {.key = keys[first + i], .into = {&buffers[i], 1}};
  }
  const std::int64_t start = Now();
  (void)session_->Get(items, results, {.timeout = kTimeout});
  served.load_ns += static_cast<std::uint64_t>(Now() - start);
  for (std::size_t i = 0; i < count; ++i) {
    if (!results[i].ok() || results[i].bytes != options_.block_bytes) {
      if (results[i].code != Code::kMiss) ++served.failed;
      // A hit that went: it and all behind it must be computed.
      return;
    }
    const auto block =
        std::span<const std::byte>(buffer_).subspan(i * options_.block_bytes, options_.block_bytes);
    switch (CheckBlock(block, hashes[first + i], version_)) {
      case Verdict::kRight:
        break;
      case Verdict::kStale:
        ++served.stale_blocks;
        break;
      case Verdict::kWrong:
        ++served.wrong_blocks;
        break;
    }
    served.load_bytes += options_.block_bytes;
    ++served.pool_hits;
  }
}

void Engine::Store(const Stores& stores, Served& served, bool late) {
  std::vector<std::string> keys;
  keys.reserve(stores.hashes.size());
  for (const std::uint64_t hash : stores.hashes) keys.push_back(BlockKey(hash));
  for (std::size_t from = 0; from < keys.size(); from += kWindowBlocks) {
    const std::size_t count = std::min(kWindowBlocks, keys.size() - from);
    std::vector<ConstBuffer> buffers(count);
    std::vector<PutItem> items(count);
    std::vector<ItemResult> results(count);
    for (std::size_t i = 0; i < count; ++i) {
      std::byte* block = buffer_.data() + i * options_.block_bytes;
      FillBlock({block, options_.block_bytes}, stores.hashes[from + i], stores.version);
      buffers[i] = {.data = block, .size = options_.block_bytes};
      items[i] = {.key = keys[from + i], .value = {&buffers[i], 1}, .after = {}};
    }
    const std::int64_t start = Now();
    (void)session_->Put(
        stores.token, items, results,
        {.timeout = kTimeout,
         .version = {},
         .after = from == 0 ? std::string_view(stores.after) : std::string_view(keys[from - 1])});
    served.store_ns += static_cast<std::uint64_t>(Now() - start);
    for (const ItemResult& result : results) {
      if (late) {
        ++(result.code == Code::kStale ? served.late_rejected : served.late_accepted);
      } else if (result.ok()) {
        ++served.stored;
        served.store_bytes += options_.block_bytes;
      } else if (result.code != Code::kExists && result.code != Code::kInProgress) {
        ++served.failed;
      }
    }
  }
}

Served Engine::Serve(std::uint32_t number, const Request& request) {
  Served served{.request = number, .blocks = static_cast<std::uint32_t>(request.blocks.size())};
  const Result<Token> token = session_->Capture({}, kTimeout);
  const std::vector<std::uint64_t> hashes = ChainHashes(request.blocks);
  std::vector<std::string> keys;
  keys.reserve(hashes.size());
  for (const std::uint64_t hash : hashes) keys.push_back(BlockKey(hash));

  const std::size_t own = own_ ? own_->LeadingRun(request.blocks) : 0;
  served.own_hits = static_cast<std::uint32_t>(own);
  std::vector<std::string_view> wanted(keys.begin() + static_cast<std::ptrdiff_t>(own), keys.end());
  std::size_t present = 0;
  if (!wanted.empty()) {
    const std::int64_t start = Now();
    present = session_->LongestPrefix(wanted, {.timeout = kTimeout}).value_or(0);
    served.lookup_ns = static_cast<std::uint64_t>(Now() - start);
  }
  for (std::size_t at = 0; at < present; at += kWindowBlocks) {
    const std::size_t count = std::min(kWindowBlocks, present - at);
    Load(keys, hashes, own + at, count, served);
    if (served.pool_hits < at + count) break;
  }
  const std::size_t loaded = own + served.pool_hits;
  if (own_) own_->Access(request.blocks);

  Stores stores{.token = token.value_or(Token{}),
                .version = version_,
                .hashes = {hashes.begin() + static_cast<std::ptrdiff_t>(loaded), hashes.end()},
                .after = loaded == 0 ? std::string() : keys[loaded - 1]};
  if (!token) {
    served.failed += static_cast<std::uint32_t>(stores.hashes.size());
  } else {
    Store(stores, served, /*late=*/false);
    if (options_.late_stores && !stores.hashes.empty()) late_ = std::move(stores);
  }
  return served;
}

Status Engine::UpdateWeights(Served& served) {
  ++version_;
  ClearOwnCache();
  KVCOVE_TRY(session_->Reset());
  if (late_) {
    Store(*late_, served, /*late=*/true);
    late_.reset();
  }
  return {};
}

}  // namespace kvcove::replay
