// SPDX-License-Identifier: Apache-2.0
// Decides whether found KV is worth loading, by the cost of loading from each tier and of computing
// on this engine, both measured while the engine runs. A state machine without I/O: samples and
// time are its input, the part of a hit that is worth loading its output.
//
//   step   tokens t at a context of x tokens each take   t * (token_ns + x * context_ns)
//   load   t tokens of one tier take                     wait_ns + t * tier_ns
//
// A tier without a figure is always loaded from: else it would never be read, and never be
// measured. For the same reason a figure is forgotten when it is old: after a slow minute of a
// disk, no load would measure that it has recovered.
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
    std::int64_t forget_ns = 30'000'000'000;  // age at which a tier's figure is forgotten
    // Steps of fewer prompt tokens are not counted: decoding takes most of their time.
    std::uint64_t least_step_tokens = 64;
    // A load is refused only if computing is faster by so much.
    double margin = 0.1;
  };
  // Integers for counters; 0: not measured.
  struct Costs {
    std::uint64_t token_ns = 0;                   // computing a token without any before it
    std::uint64_t context_ns = 0;                 // in addition, for each 1,000 tokens before it
    std::uint64_t wait_ns = 0;                    // a load's time beside its movers' time
    std::array<std::uint64_t, kTiers> tier_ns{};  // loading a token, by Tier
    bool operator==(const Costs&) const = default;
  };

  CostModel() : CostModel(Options{}) {}
  explicit CostModel(const Options& options) : options_(options) {}

  // Adds a step that computed `tokens` prompt tokens in `ns`. `context_tokens`: the sum over them
  // of the tokens before each.
  void AddStep(std::uint64_t tokens, double context_tokens, std::int64_t ns);
  // Adds a load: a rank moved the KV of `tokens` tokens in `ns` of a mover's time, its bytes by
  // Tier.
  void AddLoad(std::uint64_t tokens, const std::array<std::uint64_t, kTiers>& bytes,
               std::int64_t ns, std::int64_t now_ns);
  // Adds a load's time beside its mover's time, from its order to its end: steps, queues, messages.
  // The least of the last ones counts, as the others include waits for other requests.
  void AddWait(std::int64_t ns);

  // Returns the number of strides to load, so that the KV of all is ready soonest. The hit begins
  // behind `from_tokens`; strides[i] has `stride_tokens` tokens, and is the slowest tier of their
  // values. `whole`: all or none. O(strides).
  std::size_t Worth(std::uint64_t from_tokens, std::uint64_t stride_tokens,
                    std::span<const Tier> strides, bool whole, std::int64_t now_ns) const;

  Costs costs(std::int64_t now_ns) const;

 private:
  static constexpr std::size_t kWaits = 32;
  struct Fit {
    double token_ns = 0;
    double context_ns = 0;
  };
  // Fits the steps by least squares, older ones with less weight; none before the first step.
  std::optional<Fit> Computing() const;
  std::int64_t Wait() const;
  // Returns nanoseconds a token; 0: not measured, or too long ago.
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
