// SPDX-License-Identifier: Apache-2.0
// When blocks of a class come back: returns and losses by age, the hazards estimated from them, and
// the Gittins index computed from the hazards. Classes with few observations borrow from the group
// of classes that they belong to, groups from all blocks, and the parts of a class from the class.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvcove/base/carry.h"

namespace kvcove::policy {

inline constexpr std::size_t kAges = 96;  // log buckets of ages, four an octave

// ---- classes of segments
inline constexpr std::size_t kUseBuckets = 6;  // used 0, 1, 2-3, 4-8, 9-39, 40 or more times before
inline constexpr std::size_t kLengths = 7;
inline constexpr std::uint8_t kTailClass = 0;
inline constexpr std::size_t kFirstUsed = 1 + 2 * kLengths;
// What callers say that nobody asks for again; what that is worth is learned like all else.
inline constexpr std::uint8_t kEphemeralClass = kFirstUsed + 2 * (kUseBuckets - 1);
inline constexpr std::uint8_t kEndedClass = kEphemeralClass + 1;
inline constexpr std::size_t kClasses = kEndedClass + 1;
// The tail, one a bucket of uses, and one each for what callers call ephemeral or ended.
inline constexpr std::size_t kGroups = 1 + kUseBuckets + 2;

// ---- new segments whose request's output length is known: parts of their class. Of other segments
// the uses say more.
inline constexpr std::size_t kOutputs = 3;  // below 128 tokens, below 512, more
inline constexpr std::size_t kAllClasses = kClasses + kOutputs * 2 * kLengths;

std::uint8_t UseBucket(std::uint8_t uses);
std::uint8_t NewClass(bool later_turn, std::size_t request_blocks);
std::uint8_t UsedClass(std::uint8_t use_bucket, bool before_tail);
// The class of what is the last before the tail: another one for what was used before.
std::uint8_t BeforeTail(std::uint8_t cls);
// A new class for a request with this output length (0: not known); others stay what they are.
std::uint8_t WithOutput(std::uint8_t cls, std::uint32_t output_tokens);
// The class that this one is a part of, or is.
std::uint8_t WholeOf(std::uint8_t cls);
std::uint8_t GroupOf(std::uint8_t cls);

std::size_t AgeBucket(std::uint64_t age);
inline constexpr int kAgeUnit =
    4;  // ages differ by 2^4 blocks at least: a request has about so many
// The least age of a bucket.
constexpr std::uint64_t AgeOf(std::size_t bucket) {
  if (bucket < 4) return bucket << kAgeUnit;
  return (4 + bucket % 4) << (bucket / 4 - 1 + kAgeUnit);
}

struct HazardOptions {
  double class_weight = 2000;  // observations that the group's curve counts as, in a class
  double output_weight = 300;  // and a class's curve, in its parts by output length
  float limit = 20'000;        // observations of a class; beyond, old ones are halved
  bool count_living = true;    // what has not returned yet is at risk, too
};

class HazardTables {
 public:
  explicit HazardTables(const HazardOptions& options = {});

  void AddReturn(std::uint8_t cls, std::uint64_t age, float weight);
  // A block was followed up to this age without having returned.
  void AddLost(std::uint8_t cls, std::uint64_t age, float weight);

  // Between Begin and Update: what is followed now is at risk up to its age.
  void BeginUpdate();
  void AddLiving(std::uint8_t cls, std::size_t age_bucket, float weight);
  void Update();

  // kClasses until a class with an output length is met, then kAllClasses: most callers tell none,
  // and an owner has tables for each namespace.
  std::size_t classes() const { return classes_.size(); }
  std::size_t bytes() const { return classes_.capacity() * sizeof(Class); }  // beside this object
  float Index(std::uint8_t cls, std::size_t age_bucket) const {
    return classes_[cls].index[age_bucket];
  }

  template <typename Ar>
  void Carry(Ar& ar) {
    CarryAll(ar, all_, groups_, classes_);
  }

 private:
  using Counted = std::array<float, kAges>;
  using Curve = std::array<double, kAges>;
  struct Counts {
    Counted returns{};
    Counted lost{};
    float total = 0;
    void Add(Counted& to, std::size_t bucket, float weight, float limit);
  };
  struct Class {
    Counts counts;  // of a class: those of its parts, too
    Counted living{};
    Counted index{};
  };
  void Reach(std::uint8_t cls);
  void AddTo(std::uint8_t cls, std::uint64_t age, float weight, bool returned);
  static Curve Estimate(const Counts& counts, const Counted& living, const Curve& parent,
                        double parent_weight);
  static void IndexOf(const Curve& hazard, Counted& index);

  const HazardOptions options_;
  Counts all_;
  std::array<Counts, kGroups> groups_;
  std::vector<Class> classes_;
};

}  // namespace kvcove::policy
