// SPDX-License-Identifier: Apache-2.0
// Which of the blocks that memory gives up are worth writing to a slower tier, where each write
// wears the device. Pure code, like the eviction policies: it is fed what memory stores, reads and
// gives up, and answers with yes or no.
//
// A block that memory gives up belongs to a class:
//
//   tail                nothing was stored behind it: the next turn mostly has another in its place
//   new x turn x length never asked for again; stored in a first or a later turn; by the length of
//                       its chain
//   used x how often x length
//
// A sample of these blocks is followed for as long as the tier would keep them, whether they were
// written or not: those that are asked for again teach their class how likely that is. A block is
// worth its write unless its class comes back clearly less often than what memory gives up on
// average. So a load whose blocks are all alike is written whole, and a scan that nobody repeats is
// not written beside conversations that go on. Nothing is tuned to a capacity.
//
// Ages are counted in bytes written to the tier. A class's chance is one minus the product of what
// survives each bucket of ages (Kaplan and Meier), so it can be told long before the tier has been
// full once; classes with few observations lean on the curve of all blocks.
//
// Belongs to one thread at a time. 12 bytes a block in memory, and up to 5 MiB. Every call takes a
// constant number of steps on average; one in 256 weighs all classes.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "kvcove/policy/policy.h"

namespace kvcove::policy {

struct WriteFilterOptions {
  std::uint64_t tier_bytes = 0;  // of the slower tier
  // A class is written from this share of the average chance on.
  double least_share = 0.94;
  double class_weight = 500;  // observations that the curve of all blocks counts as, in a class
  double limit = 20'000;      // observations; beyond, old ones are halved
  std::size_t most_followed = 65'536;
};

// What a block that memory gives up is worth.
struct Verdict {
  bool worth = true;
  // It is not worth a write, and nothing was stored behind it: where all is written, it lies apart,
  // where it gives way early.
  bool brief = false;
};

class WriteFilter {
 public:
  explicit WriteFilter(const WriteFilterOptions& options);

  // `returned`: it came up from the slower tier.
  void OnPut(const PutEvent& event, bool returned);
  void OnHit(ObjectId id);
  // It is gone, and nobody asks whether to write it.
  void OnRemove(ObjectId id);

  // Memory gives it up, and it is not in the slower tier: is it worth writing? `key` as in its put.
  // It is unknown afterwards.
  Verdict Judge(ObjectId id, std::uint64_t key);
  bool Worth(ObjectId id, std::uint64_t key) { return Judge(id, key).worth; }
  // The slower tier has it already.
  void OnKept(ObjectId id, std::uint64_t key) { (void)Give(id, key); }
  void OnWritten(std::uint64_t bytes) { written_ += bytes; }

  // For tests and figures.
  double average() const { return average_; }
  std::size_t followed() const { return followed_.size(); }

 private:
  static constexpr std::size_t kAges = 8;  // the last one ends where the tier forgets
  static constexpr std::size_t kLengths = 8;
  static constexpr std::size_t kKinds = 7;
  static constexpr std::size_t kClasses = kKinds * kLengths;
  static constexpr std::uint32_t kGivenAWeighing = 256;

  struct Block {
    ObjectId parent = kNoObject;
    std::uint16_t depth = 0;  // saturating
    std::uint16_t reach = 0;  // of the deepest block behind it that was given up
    std::uint8_t uses = 0;    // saturating; after it was stored first
    bool known : 1 = false;
    bool has_child : 1 = false;
    bool later_turn : 1 = false;
    bool returned : 1 = false;
  };
  static_assert(sizeof(Block) == 12);

  struct Followed {
    std::uint64_t key = 0;
    std::uint64_t at = 0;  // of written_
    std::uint8_t cls = 0;
    bool done = false;  // it came back, or was given up again
  };
  struct Counts {
    std::array<double, kAges> returned{};
    std::array<double, kAges> known{};  // returned, or still away at the bucket's end
  };

  static std::uint8_t ClassOf(const Block& block);
  std::uint8_t Give(ObjectId id, std::uint64_t key);
  void Follow(std::uint64_t key, std::uint8_t cls);
  void HalveSample();
  bool Returned(std::uint64_t key);
  void Age();
  void Weigh();
  std::uint64_t EndOf(std::size_t age) const { return options_.tier_bytes >> (kAges - 1 - age); }
  bool Sampled(std::uint64_t key) const;

  const WriteFilterOptions options_;
  std::vector<Block> blocks_;  // by ObjectId
  std::uint64_t written_ = 0;
  std::uint32_t given_ = 0;
  // Oldest first; each bucket's end has gone past those before `aged_`.
  std::deque<Followed> followed_;
  std::uint64_t first_ = 0;  // the number of the oldest one; they are counted on
  std::array<std::uint64_t, kAges> aged_{};
  std::unordered_map<std::uint64_t, std::uint64_t> numbers_;  // by key
  unsigned sample_shift_ = 0;                                 // one key in 2^this is followed
  Counts all_;
  std::array<Counts, kClasses> classes_;
  std::array<double, kClasses> chances_{};
  double average_ = 0;
};

}  // namespace kvcove::policy
