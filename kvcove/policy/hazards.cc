// SPDX-License-Identifier: Apache-2.0
#include "kvcove/policy/hazards.h"

#include <algorithm>
#include <bit>

namespace kvcove::policy {
namespace {

constexpr double kUnknownHazard = 0.01;  // as long as nothing has been seen
constexpr double kUnknownWeight = 4;     // observations that each of these counts as
constexpr double kGroupWeight = 30;
constexpr double kRatioWeight = 1;
constexpr double kMostHazard = 0.9;

}  // namespace

std::uint8_t UseBucket(std::uint8_t uses) {
  if (uses < 2) return uses;
  if (uses < 4) return 2;
  return uses < 9 ? 3 : uses < 40 ? 4 : 5;
}

std::uint8_t NewClass(bool later_turn, std::size_t request_blocks) {
  const auto length = std::min<std::size_t>(std::bit_width(request_blocks >> 1), kLengths - 1);
  return static_cast<std::uint8_t>(1 + (later_turn ? kLengths : 0) + length);
}

std::uint8_t UsedClass(std::uint8_t use_bucket, bool before_tail) {
  return static_cast<std::uint8_t>(kFirstUsed + 2 * (use_bucket - 1) + (before_tail ? 1 : 0));
}

std::uint8_t BeforeTail(std::uint8_t cls) {
  const bool used = cls >= kFirstUsed && cls < kEphemeralClass;
  return used ? static_cast<std::uint8_t>(cls + 1) : cls;
}

std::uint8_t WithOutput(std::uint8_t cls, std::uint32_t output_tokens) {
  if (output_tokens == 0 || cls == kTailClass || cls >= kFirstUsed) return cls;
  const std::size_t output = output_tokens < 128 ? 0 : output_tokens < 512 ? 1 : 2;
  return static_cast<std::uint8_t>(kClasses + output * 2 * kLengths + cls - 1);
}

std::uint8_t WholeOf(std::uint8_t cls) {
  return cls < kClasses ? cls : static_cast<std::uint8_t>(1 + (cls - kClasses) % (2 * kLengths));
}

std::uint8_t GroupOf(std::uint8_t cls) {
  cls = WholeOf(cls);
  if (cls == kTailClass) return 0;
  if (cls < kFirstUsed) return 1;
  if (cls == kEphemeralClass) return kGroups - 2;
  if (cls == kEndedClass) return kGroups - 1;
  return static_cast<std::uint8_t>(2 + (cls - kFirstUsed) / 2);
}

std::size_t AgeBucket(std::uint64_t age) {
  age >>= kAgeUnit;
  if (age < 4) return static_cast<std::size_t>(age);
  const auto octave = static_cast<std::size_t>(std::bit_width(age) - 1);
  const std::size_t quarter = (age >> (octave - 2)) & 3;
  return std::min(4 * (octave - 1) + quarter, kAges - 1);
}

void HazardTables::Counts::Add(Counted& to, std::size_t bucket, float weight, float limit) {
  to[bucket] += weight;
  total += weight;
  if (total < limit) return;
  total /= 2;
  for (float& count : returns) count /= 2;
  for (float& count : lost) count /= 2;
}

HazardTables::HazardTables(const HazardOptions& options) : options_(options), classes_(kClasses) {
  Update();
}

void HazardTables::Reach(std::uint8_t cls) {
  if (cls < classes_.size()) return;
  classes_.resize(kAllClasses);
  for (std::size_t c = kClasses; c < kAllClasses; ++c) {
    classes_[c].index = classes_[WholeOf(static_cast<std::uint8_t>(c))].index;
  }
}

void HazardTables::AddTo(std::uint8_t cls, std::uint64_t age, float weight, bool returned) {
  Reach(cls);
  const std::size_t bucket = AgeBucket(age);
  const auto add = [&](Counts& counts, float limit) {
    counts.Add(returned ? counts.returns : counts.lost, bucket, weight, limit);
  };
  if (cls >= kClasses) add(classes_[cls].counts, options_.limit);
  add(classes_[WholeOf(cls)].counts, options_.limit);
  add(groups_[GroupOf(cls)], 2 * options_.limit);
  add(all_, 8 * options_.limit);
}

void HazardTables::AddReturn(std::uint8_t cls, std::uint64_t age, float weight) {
  AddTo(cls, age, weight, true);
}

void HazardTables::AddLost(std::uint8_t cls, std::uint64_t age, float weight) {
  AddTo(cls, age, weight, false);
}

void HazardTables::BeginUpdate() {
  for (Class& cls : classes_) cls.living.fill(0);
}

void HazardTables::AddLiving(std::uint8_t cls, std::size_t age_bucket, float weight) {
  if (!options_.count_living) return;
  Reach(cls);
  if (cls >= kClasses) classes_[cls].living[age_bucket] += weight;
  classes_[WholeOf(cls)].living[age_bucket] += weight;
}

HazardTables::Curve HazardTables::Estimate(const Counts& counts, const Counted& living,
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

// G(a) = max over T of sum S h / sum S width, both from a to T. From the oldest age down: the best
// stretch from `a` is `a` alone, joined with the best stretches behind it for as long as their
// ratio is better than what has been joined. Each age is joined once, so this is linear.
void HazardTables::IndexOf(const Curve& hazard, Counted& index) {
  struct Stretch {
    double gain;
    double cost;
  };
  std::array<Stretch, kAges> ages;
  double alive = 1;
  for (std::size_t b = 0; b < kAges; ++b) {
    const double width = b + 1 < kAges ? static_cast<double>(AgeOf(b + 1) - AgeOf(b))
                                       : static_cast<double>(AgeOf(b));
    ages[b] = {.gain = alive * hazard[b], .cost = alive * (1 - hazard[b] / 2) * width};
    alive *= 1 - hazard[b];
  }
  std::array<Stretch, kAges> best;  // a stack: the stretch behind `a` on top
  std::size_t stretches = 0;
  for (std::size_t a = kAges; a-- > 0;) {
    Stretch joined = ages[a];
    for (; stretches > 0; --stretches) {
      const Stretch& next = best[stretches - 1];
      if (next.gain * joined.cost <= joined.gain * next.cost) break;
      joined.gain += next.gain;
      joined.cost += next.cost;
    }
    best[stretches++] = joined;
    index[a] = static_cast<float>(joined.gain / joined.cost);
  }
}

void HazardTables::Update() {
  Counted living_all{};
  std::array<Counted, kGroups> living_groups{};
  for (std::size_t c = 0; c < kClasses; ++c) {
    const std::uint8_t group = GroupOf(static_cast<std::uint8_t>(c));
    for (std::size_t b = 0; b < kAges; ++b) {
      living_all[b] += classes_[c].living[b];
      living_groups[group][b] += classes_[c].living[b];
    }
  }
  Curve unknown;
  unknown.fill(kUnknownHazard);
  const Curve all = Estimate(all_, living_all, unknown, kUnknownWeight);
  std::array<Curve, kGroups> groups;
  for (std::size_t g = 0; g < kGroups; ++g) {
    groups[g] = Estimate(groups_[g], living_groups[g], all, kGroupWeight);
  }
  // What callers say that nobody asks for again is worth as much as a tail, until seen otherwise.
  for (const std::uint8_t told : {kEphemeralClass, kEndedClass}) {
    const std::uint8_t g = GroupOf(told);
    groups[g] = Estimate(groups_[g], living_groups[g], groups[GroupOf(kTailClass)], kGroupWeight);
  }
  std::array<Curve, kClasses> wholes;
  for (std::size_t c = 0; c < classes_.size(); ++c) {
    const auto cls = static_cast<std::uint8_t>(c);
    const Class& here = classes_[c];
    const bool part = c >= kClasses;
    const Curve curve =
        Estimate(here.counts, here.living, part ? wholes[WholeOf(cls)] : groups[GroupOf(cls)],
                 part ? options_.output_weight : options_.class_weight);
    IndexOf(curve, classes_[c].index);
    if (!part) wholes[c] = curve;
  }
}

}  // namespace kvcove::policy
