// SPDX-License-Identifier: Apache-2.0
#include "kvcove/policy/hazards.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace kvcove::policy {
namespace {

constexpr float kClassLimit = 20'000;    // observations; beyond, old ones are halved
constexpr double kUnknownHazard = 0.01;  // as long as nothing has been seen
constexpr double kUnknownWeight = 4;     // observations that each of these counts as
constexpr double kGroupWeight = 30;
constexpr double kClassWeight = 2000;
constexpr double kRatioWeight = 1;
constexpr double kMostHazard = 0.9;
constexpr int kAgeUnit = 4;  // ages differ by 2^4 blocks at least: a request has about so many

}  // namespace

std::uint8_t UseBucket(std::uint8_t uses) {
  if (uses < 2) return uses;
  if (uses < 4) return 2;
  return uses < 9 ? 3 : 4;
}

std::uint8_t NewClass(bool later_turn, std::size_t request_blocks) {
  const auto length = std::min<std::size_t>(std::bit_width(request_blocks >> 1), kLengths - 1);
  return static_cast<std::uint8_t>(1 + (later_turn ? kLengths : 0) + length);
}

std::uint8_t UsedClass(std::uint8_t use_bucket, bool before_tail) {
  return static_cast<std::uint8_t>(1 + 2 * kLengths + 2 * (use_bucket - 1) + (before_tail ? 1 : 0));
}

std::uint8_t GroupOf(std::uint8_t cls) {
  if (cls == kTailClass) return 0;
  if (cls <= 2 * kLengths) return 1;
  return static_cast<std::uint8_t>(2 + (cls - 1 - 2 * kLengths) / 2);
}

std::size_t AgeBucket(std::uint64_t age) {
  age >>= kAgeUnit;
  if (age < 4) return static_cast<std::size_t>(age);
  const auto octave = static_cast<std::size_t>(std::bit_width(age) - 1);
  const std::size_t quarter = (age >> (octave - 2)) & 3;
  return std::min(4 * (octave - 1) + quarter, kAges - 1);
}

std::uint64_t AgeOf(std::size_t bucket) {
  if (bucket < 4) return bucket << kAgeUnit;
  return (4 + bucket % 4) << (bucket / 4 - 1 + kAgeUnit);
}

void HazardTables::Counts::Add(std::array<float, kAges>& to, std::size_t bucket, float weight,
                               float limit) {
  to[bucket] += weight;
  total += weight;
  if (total < limit) return;
  total /= 2;
  for (float& count : returns) count /= 2;
  for (float& count : lost) count /= 2;
}

void HazardTables::AddTo(std::uint8_t cls, std::uint64_t age, float weight, bool returned) {
  const std::size_t bucket = AgeBucket(age);
  const auto add = [&](Counts& counts, float limit) {
    counts.Add(returned ? counts.returns : counts.lost, bucket, weight, limit);
  };
  add(classes_[cls], kClassLimit);
  add(groups_[GroupOf(cls)], 2 * kClassLimit);
  add(all_, 8 * kClassLimit);
}

void HazardTables::AddReturn(std::uint8_t cls, std::uint64_t age, float weight) {
  AddTo(cls, age, weight, true);
}

void HazardTables::AddLost(std::uint8_t cls, std::uint64_t age, float weight) {
  AddTo(cls, age, weight, false);
}

void HazardTables::BeginUpdate() {
  for (Curve& curve : living_) curve.fill(0);
}

HazardTables::Curve HazardTables::Estimate(const Counts& counts, const Curve& living,
                                           const Curve& parent, double parent_weight) {
  Curve at_risk;
  double risk = 0;
  double returned = 0;
  double expected = 0;
  for (std::size_t b = kAges; b-- > 0;) {
    risk += counts.returns[b] + counts.lost[b] + living[b];
    at_risk[b] = risk;
    returned += counts.returns[b];
    expected += risk * parent[b];
  }
  // The parent's curve has the shape; this class may return more or less often altogether.
  const double ratio = (returned + kRatioWeight) / (expected + kRatioWeight);
  Curve hazard;
  for (std::size_t b = 0; b < kAges; ++b) {
    const double prior = std::min(ratio * parent[b], kMostHazard);
    hazard[b] = (counts.returns[b] + parent_weight * prior) / (at_risk[b] + parent_weight);
  }
  return hazard;
}

// G(a) = max over T of sum S h / sum S width, both from a to T.
HazardTables::Curve HazardTables::IndexOf(const Curve& hazard) {
  Curve gain;
  Curve cost;
  double alive = 1;
  for (std::size_t b = 0; b < kAges; ++b) {
    const double width = b + 1 < kAges ? static_cast<double>(AgeOf(b + 1) - AgeOf(b))
                                       : static_cast<double>(AgeOf(b));
    gain[b] = alive * hazard[b];
    cost[b] = alive * (1 - hazard[b] / 2) * width;
    alive *= 1 - hazard[b];
  }
  Curve index;
  for (std::size_t a = 0; a < kAges; ++a) {
    double best = 0;
    double gains = 0;
    double costs = 0;
    for (std::size_t b = a; b < kAges; ++b) {
      gains += gain[b];
      costs += cost[b];
      best = std::max(best, gains / costs);
    }
    index[a] = best;
  }
  return index;
}

void HazardTables::Update() {
  Curve living_all{};
  std::array<Curve, kGroups> living_groups{};
  for (std::size_t c = 0; c < kClasses; ++c) {
    for (std::size_t b = 0; b < kAges; ++b) {
      living_all[b] += living_[c][b];
      living_groups[GroupOf(static_cast<std::uint8_t>(c))][b] += living_[c][b];
    }
  }
  Curve unknown;
  unknown.fill(kUnknownHazard);
  const Curve all = Estimate(all_, living_all, unknown, kUnknownWeight);
  std::array<Curve, kGroups> groups;
  for (std::size_t g = 0; g < kGroups; ++g) {
    groups[g] = Estimate(groups_[g], living_groups[g], all, kGroupWeight);
  }
  for (std::size_t c = 0; c < kClasses; ++c) {
    const auto cls = static_cast<std::uint8_t>(c);
    index_[c] = IndexOf(Estimate(classes_[c], living_[c], groups[GroupOf(cls)], kClassWeight));
  }
}

}  // namespace kvcove::policy
