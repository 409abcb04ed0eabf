// SPDX-License-Identifier: Apache-2.0
// Whether KV that was found is worth loading: what loading costs by tier, what computing costs on
// this engine, both measured while the engine runs. A state machine without I/O: samples and time
// go in, the part of a hit that is worth loading comes out.
//
//   step   tokens t at a context of x tokens each take   t * (token_ns + x * context_ns)
//   load   t tokens of one tier take                     wait_ns + t * tier_ns
//
// What has not been measured costs nothing to load and is never refused, so an engine that starts,
// and a tier that was never read, load all that was found. A tier's figure is forgotten when it is
// old: else a slow minute of a disk would keep its KV from ever being read, and measured, again.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "kvcove/model/ids.h"

namespace kvcove::connector {

// Belongs to one thread, or needs a lock.
class CostModel {
 public:
  struct Options {
    std::int64_t forget_ns = 30'000'000'000;  // a tier's figure
    // Steps of fewer prompt tokens are not counted: their time is that of what they decode.
    std::uint64_t least_step_tokens = 64;
    // A load is refused only if computing is faster by so much.
    double margin = 0.1;
  };
  // Integers for counters; 0: not measured.
  struct Costs {
    std::uint64_t token_ns = 0;                   // to compute a token without any before it
    std::uint64_t context_ns = 0;                 // and more for each 1,000 tokens before it
    std::uint64_t wait_ns = 0;                    // of a load, beside what it moves
    std::array<std::uint64_t, kTiers> tier_ns{};  // to load a token, by Tier
    bool operator==(const Costs&) const = default;
  };

  CostModel() : CostModel(Options{}) {}
  explicit CostModel(const Options& options) : options_(options) {}

  // A step computed `tokens` prompt tokens in `ns`. `context_tokens`: the sum over them of the
  // tokens before each.
  void AddStep(std::uint64_t tokens, double context_tokens, std::int64_t ns);
  // A rank moved the KV of `tokens` tokens in `ns` of a mover's time, its bytes by Tier.
  void AddLoad(std::uint64_t tokens, const std::array<std::uint64_t, kTiers>& bytes,
               std::int64_t ns, std::int64_t now_ns);
  // What a load took beside its mover's time, from its order to its end: steps, queues, messages.
  // The least of the last ones counts, as the rest is the wait for other requests.
  void AddWait(std::int64_t ns);

  // A hit that begins behind `from_tokens` has strides[i] next, each of `stride_tokens` in the tier
  // named (the slowest of its values): how many of them to load so that all are there soonest.
  // O(strides). `whole`: all or none.
  std::size_t Worth(std::uint64_t from_tokens, std::uint64_t stride_tokens,
                    std::span<const Tier> strides, bool whole, std::int64_t now_ns) const;

  Costs costs(std::int64_t now_ns) const;

 private:
  static constexpr std::size_t kWaits = 32;
  struct Fit {
    double token_ns = 0;
    double context_ns = 0;
  };
  // Least squares over the steps, the older the less; none before the first step.
  std::optional<Fit> Computing() const;
  std::int64_t Wait() const;
  // Nanoseconds a token; 0: not known, or too long ago.
  double TierNs(Tier tier, std::int64_t now_ns) const;

  const Options options_;
  // Sums over steps: t tokens, c context, y nanoseconds.
  double tt_ = 0, tc_ = 0, cc_ = 0, ty_ = 0, cy_ = 0;
  struct TierCost {
    double token_ns = 0;
    std::int64_t last_ns = 0;
  };
  std::array<TierCost, kTiers> tiers_{};
  std::array<std::int64_t, kWaits> waits_{};
  std::size_t wait_count_ = 0;
};

}  // namespace kvcove::connector
