// SPDX-License-Identifier: Apache-2.0
#include "lab/replay/replay.h"

#include <algorithm>
#include <deque>
#include <thread>

#include "kvcove/base/clock.h"

namespace kvcove::lab {
namespace {

constexpr std::size_t kUnderWay = 2;  // requests an engine has at a time
constexpr std::uint64_t kBinMs = 60'000;

class Driver {
 public:
  Driver(const std::vector<Request>& requests,
         const std::vector<std::unique_ptr<EngineLink>>& engines, const ReplayOptions& options)
      : requests_(requests), engines_(engines), options_(options), under_way_(engines.size(), 0) {}

  Result<ReplayResult> Run() {
    const std::int64_t start = SystemClock::Instance().NowNs();
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (options_.update_every > 0 && i > 0 && i % options_.update_every == 0) {
        KVCOVE_TRY(Update());
      }
      WaitForTime(start, requests_[i].timestamp_ms);
      const std::size_t engine = i % engines_.size();
      while (under_way_[engine] >= kUnderWay) KVCOVE_TRY(ReceiveFrom(engine));
      KVCOVE_TRY(engines_[engine]->Send(static_cast<std::uint32_t>(i)));
      ++under_way_[engine];
    }
    KVCOVE_TRY(Drain());
    result_.seconds = static_cast<double>(SystemClock::Instance().NowNs() - start) / 1e9;
    for (auto* latencies : {&result_.lookup_us, &result_.load_us, &result_.store_us}) {
      std::sort(latencies->begin(), latencies->end());
    }
    return std::move(result_);
  }

 private:
  void WaitForTime(std::int64_t start_ns, std::uint64_t timestamp_ms) const {
    if (options_.time_scale <= 0) return;
    const auto due = start_ns + static_cast<std::int64_t>(static_cast<double>(timestamp_ms) * 1e6 /
                                                          options_.time_scale);
    const std::int64_t left = due - SystemClock::Instance().NowNs();
    if (left > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(left));
  }

  Status Drain() {
    for (std::size_t engine = 0; engine < engines_.size(); ++engine) {
      while (under_way_[engine] > 0) KVCOVE_TRY(ReceiveFrom(engine));
    }
    return {};
  }

  // All engines stop, take the new weights, and reset, each of them; then they go on.
  Status Update() {
    KVCOVE_TRY(Drain());
    const std::int64_t start = SystemClock::Instance().NowNs();
    for (const auto& engine : engines_) KVCOVE_TRY(engine->SendUpdate());
    for (std::size_t engine = 0; engine < engines_.size(); ++engine) {
      under_way_[engine] = 1;
      KVCOVE_TRY(ReceiveFrom(engine));
    }
    result_.update_ms.push_back(static_cast<double>(SystemClock::Instance().NowNs() - start) / 1e6);
    ++result_.updates;
    return {};
  }

  Status ReceiveFrom(std::size_t engine) {
    bool update_ok = true;
    KVCOVE_ASSIGN(const Served served, engines_[engine]->Receive(update_ok));
    --under_way_[engine];
    if (!update_ok) return Fail(Code::kUnavailable, "an engine's reset failed");
    Add(served);
    return {};
  }

  void Add(const Served& served) {
    result_.late_rejected += served.late_rejected;
    result_.late_accepted += served.late_accepted;
    if (served.blocks == 0) return;  // a weight update
    const Request& request = requests_[served.request];
    const std::uint64_t hits = served.own_hits + served.pool_hits;
    ++result_.requests;
    result_.blocks += served.blocks;
    result_.own_hits += served.own_hits;
    result_.pool_hits += served.pool_hits;
    result_.stored += served.stored;
    result_.failed += served.failed;
    result_.wrong_blocks += served.wrong_blocks;
    result_.stale_blocks += served.stale_blocks;
    result_.load_bytes += served.load_bytes;
    result_.store_bytes += served.store_bytes;
    result_.tokens_saved += std::min(hits * kTokensPerBlock, request.input_tokens);
    result_.tokens_asked += request.input_tokens;
    const auto keep = [](std::vector<double>& into, std::uint64_t ns) {
      if (ns > 0) into.push_back(static_cast<double>(ns) / 1e3);
    };
    keep(result_.lookup_us, served.lookup_ns);
    keep(result_.load_us, served.load_ns);
    keep(result_.store_us, served.store_ns);
    const std::size_t bin = std::min<std::size_t>(request.timestamp_ms / kBinMs, 10'000);
    if (bin >= result_.bins.size()) result_.bins.resize(bin + 1);
    Bin& minute = result_.bins[bin];
    minute.blocks += served.blocks;
    minute.own_hits += served.own_hits;
    minute.pool_hits += served.pool_hits;
    minute.load_bytes += served.load_bytes;
    minute.store_bytes += served.store_bytes;
    if (options_.progress) options_.progress(result_.requests, requests_.size());
  }

  const std::vector<Request>& requests_;
  const std::vector<std::unique_ptr<EngineLink>>& engines_;
  const ReplayOptions& options_;
  std::vector<std::size_t> under_way_;
  ReplayResult result_;
};

class LocalLink final : public EngineLink {
 public:
  LocalLink(std::unique_ptr<Engine> engine, const std::vector<Request>& requests)
      : engine_(std::move(engine)), requests_(requests) {}
  Status Send(std::uint32_t request) override {
    answers_.push_back({engine_->Serve(request, requests_[request]), true});
    return {};
  }
  Status SendUpdate() override {
    Served served;
    const bool ok = engine_->UpdateWeights(served).has_value();
    answers_.push_back({served, ok});
    return {};
  }
  Result<Served> Receive(bool& update_ok) override {
    const auto [served, ok] = answers_.front();
    answers_.pop_front();
    update_ok = ok;
    return served;
  }

 private:
  std::unique_ptr<Engine> engine_;
  const std::vector<Request>& requests_;
  std::deque<std::pair<Served, bool>> answers_;
};

}  // namespace

Percentiles PercentilesOf(const std::vector<double>& sorted) {
  if (sorted.empty()) return {};
  const auto at = [&](double q) {
    return sorted[static_cast<std::size_t>(q * static_cast<double>(sorted.size() - 1))];
  };
  return {.p50_us = at(0.5), .p99_us = at(0.99)};
}

Result<ReplayResult> Replay(const std::vector<Request>& requests,
                            const std::vector<std::unique_ptr<EngineLink>>& engines,
                            const ReplayOptions& options) {
  return Driver(requests, engines, options).Run();
}

std::unique_ptr<EngineLink> LinkTo(std::unique_ptr<Engine> engine,
                                   const std::vector<Request>& requests) {
  return std::make_unique<LocalLink>(std::move(engine), requests);
}

}  // namespace kvcove::lab
