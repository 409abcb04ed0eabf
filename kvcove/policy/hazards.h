// SPDX-License-Identifier: Apache-2.0
// When blocks of a class come back: returns and losses by age, the hazards estimated from them, and
// the Gittins index computed from the hazards. Classes with few observations borrow from the group
// of classes that they belong to, and groups from all blocks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvcove::policy {

inline constexpr std::size_t kAges = 96;  // log buckets of ages, four an octave

// ---- classes of segments
inline constexpr std::size_t kUseBuckets = 5;  // used 0, 1, 2-3, 4-8, 9 or more times before
inline constexpr std::size_t kLengths = 7;
inline constexpr std::uint8_t kTailClass = 0;
inline constexpr std::size_t kClasses = 1 + 2 * kLengths + 2 * (kUseBuckets - 1);
inline constexpr std::size_t kGroups = 1 + kUseBuckets;  // the tail, and one a bucket of uses

std::uint8_t UseBucket(std::uint8_t uses);
std::uint8_t NewClass(bool later_turn, std::size_t request_blocks);
std::uint8_t UsedClass(std::uint8_t use_bucket, bool before_tail);
std::uint8_t GroupOf(std::uint8_t cls);

std::size_t AgeBucket(std::uint64_t age);
// The least age of a bucket.
std::uint64_t AgeOf(std::size_t bucket);

class HazardTables {
 public:
  HazardTables() { Update(); }

  void AddReturn(std::uint8_t cls, std::uint64_t age, float weight);
  // A block was followed up to this age without having returned.
  void AddLost(std::uint8_t cls, std::uint64_t age, float weight);

  // Between Begin and Update: what is followed now is at risk up to its age.
  void BeginUpdate();
  void AddLiving(std::uint8_t cls, std::size_t age_bucket, float weight) {
    living_[cls][age_bucket] += weight;
  }
  void Update();

  double Index(std::uint8_t cls, std::size_t age_bucket) const { return index_[cls][age_bucket]; }

 private:
  struct Counts {
    std::array<float, kAges> returns{};
    std::array<float, kAges> lost{};
    float total = 0;
    void Add(std::array<float, kAges>& to, std::size_t bucket, float weight, float limit);
  };
  using Curve = std::array<double, kAges>;
  void AddTo(std::uint8_t cls, std::uint64_t age, float weight, bool returned);
  static Curve Estimate(const Counts& counts, const Curve& living, const Curve& parent,
                        double parent_weight);
  static Curve IndexOf(const Curve& hazard);

  Counts all_;
  std::array<Counts, kGroups> groups_;
  std::array<Counts, kClasses> classes_;
  std::array<Curve, kClasses> living_{};
  std::array<Curve, kClasses> index_{};
};

}  // namespace kvcove::policy
