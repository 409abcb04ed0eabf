// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/scheduler/cost_model.h"

#include <algorithm>

namespace kvcove::connector {
namespace {

constexpr double kKeepSteps = 0.98;  // weight kept at each step: some 50 steps count
constexpr double kKeepLoads = 0.8;   // weight kept at each load: some five loads count
// Below it, the ratios of tokens and context are too similar to separate their shares of the time.
constexpr double kLeastSpread = 0.02;

}  // namespace

void CostModel::AddStep(std::uint64_t tokens, double context_tokens, std::int64_t ns) {
  if (tokens < options_.least_step_tokens || ns <= 0) return;
  const auto t = static_cast<double>(tokens);
  const auto y = static_cast<double>(ns);
  for (double* sum : {&tt_, &tc_, &cc_, &ty_, &cy_}) *sum *= kKeepSteps;
  tt_ += t * t;
  tc_ += t * context_tokens;
  cc_ += context_tokens * context_tokens;
  ty_ += t * y;
  cy_ += context_tokens * y;
}

std::optional<CostModel::Fit> CostModel::Computing() const {
  if (tt_ <= 0) return std::nullopt;
  const Fit by_tokens{.token_ns = ty_ / tt_};
  const double determinant = tt_ * cc_ - tc_ * tc_;
  if (determinant <= kLeastSpread * tt_ * cc_) return by_tokens;
  const Fit fit{.token_ns = (ty_ * cc_ - cy_ * tc_) / determinant,
                .context_ns = (cy_ * tt_ - ty_ * tc_) / determinant};
  // Noise can make one of them negative, which no cost is.
  if (fit.context_ns < 0) return by_tokens;
  if (fit.token_ns < 0) return Fit{.context_ns = cy_ / cc_};
  return fit;
}

void CostModel::AddLoad(std::uint64_t tokens, const std::array<std::uint64_t, kTiers>& bytes,
                        std::int64_t ns, std::int64_t now_ns) {
  std::uint64_t all = 0;
  std::size_t slowest = 0;
  for (std::size_t i = 0; i < kTiers; ++i) {
    all += bytes[i];
    if (bytes[i] > 0) slowest = i;
  }
  if (tokens == 0 || all == 0 || ns <= 0) return;
  const auto share = [&](std::size_t tier) {
    return static_cast<double>(tokens) * static_cast<double>(bytes[tier]) /
           static_cast<double>(all);
  };
  // A mixed load measures its slowest tier: the figures of the faster ones are subtracted first.
  auto rest = static_cast<double>(ns);
  for (std::size_t i = 0; i < slowest; ++i) rest -= share(i) * tiers_[i].token_ns;
  if (rest <= 0) return;
  TierCost& cost = tiers_[slowest];
  const double sample = rest / share(slowest);
  const bool fresh = cost.last_ns == 0 || now_ns - cost.last_ns > options_.forget_ns;
  cost.token_ns = fresh ? sample : kKeepLoads * cost.token_ns + (1 - kKeepLoads) * sample;
  cost.last_ns = std::max<std::int64_t>(now_ns, 1);
}

void CostModel::AddWait(std::int64_t ns) {
  waits_[wait_count_++ % kWaits] = std::max<std::int64_t>(ns, 0);
}

std::int64_t CostModel::Wait() const {
  const std::size_t known = std::min(wait_count_, kWaits);
  if (known == 0) return 0;
  return *std::min_element(waits_.begin(), waits_.begin() + static_cast<std::ptrdiff_t>(known));
}

double CostModel::TierNs(Tier tier, std::int64_t now_ns) const {
  const TierCost& cost = tiers_[static_cast<std::size_t>(tier)];
  return cost.last_ns == 0 || now_ns - cost.last_ns > options_.forget_ns ? 0 : cost.token_ns;
}

std::size_t CostModel::Worth(std::uint64_t from_tokens, std::uint64_t stride_tokens,
                             std::span<const Tier> strides, bool whole, std::int64_t now_ns) const {
  const std::optional<Fit> computing = Computing();
  if (!computing || strides.empty()) return strides.size();
  for (const Tier tier : strides) {  // a tier without a figure has to be read to get one
    if (TierNs(tier, now_ns) == 0) return strides.size();
  }
  const auto tokens = static_cast<double>(stride_tokens);
  const auto compute_ns = [&](std::size_t stride) {
    const double middle =
        static_cast<double>(from_tokens) + tokens * (static_cast<double>(stride) + 0.5);
    return tokens * (computing->token_ns + middle * computing->context_ns);
  };
  // The time of loading the first i strides and computing the others, relative to loading none.
  double relative = static_cast<double>(Wait());
  double compute_all = 0;
  double best = 0;
  std::size_t best_count = 0;
  for (std::size_t i = 0; i < strides.size(); ++i) {
    relative += tokens * TierNs(strides[i], now_ns) - compute_ns(i);
    compute_all += compute_ns(i);
    const bool may_end = !whole || i + 1 == strides.size();
    if (may_end && relative <= best) {
      best = relative;
      best_count = i + 1;
    }
  }
  const double load_all = compute_all + relative;
  const double with_best = compute_all + best;
  return with_best < (1 - options_.margin) * load_all ? best_count : strides.size();
}

CostModel::Costs CostModel::costs(std::int64_t now_ns) const {
  Costs costs;
  if (const std::optional<Fit> fit = Computing()) {
    costs.token_ns = static_cast<std::uint64_t>(fit->token_ns);
    costs.context_ns = static_cast<std::uint64_t>(1000 * fit->context_ns);
  }
  costs.wait_ns = static_cast<std::uint64_t>(Wait());
  for (std::size_t i = 0; i < kTiers; ++i) {
    costs.tier_ns[i] = static_cast<std::uint64_t>(TierNs(static_cast<Tier>(i), now_ns));
  }
  return costs;
}

}  // namespace kvcove::connector
