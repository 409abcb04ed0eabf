// SPDX-License-Identifier: Apache-2.0
// Estimates what a cache of another size would have found: miniature caches, one for each size,
// that run the same eviction policy over a sample of the objects. No object's value is kept, a key
// and its size only. docs/eviction.md says how well it estimates, and at what cost.
//
// An object is sampled if the low `shift()` bits of its key are 0, and a miniature of a cache of C
// bytes has C / 2^shift() bytes. The shift is 0 at first, so a cache of few objects is simulated
// whole. When the largest miniature has more than `most_sampled` objects, the shift grows by one,
// and every second key is dropped. Thin() does the same for a caller that has no time for so much
// work. So memory and work have a bound, whatever the cache's size.
//
// A sample has more or fewer of the often asked keys than its share. All others are asked the same
// in the sample as outside of it, so the difference between what was asked and what the sample
// stands for is of keys that every size has: Read counts it as hits (the correction of SHARDS,
// Waldspurger et al., FAST 2015).
//
// Pure code: no clock, no thread. One caller at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/base/result.h"
#include "kvcove/policy/id_list.h"
#include "kvcove/policy/policy.h"

namespace kvcove::policy {

// What happened to a sampled object, in order.
struct Access {
  enum class Kind : std::uint8_t {
    kRead,        // it was read from memory
    kReadUp,      // it was read, and had come up from the disk for that
    kStored,      // it was stored because nobody had it
    kTouched,     // it was stored again: its policy counts a use, but nobody asked for it
    kRequestEnd,  // the request whose latest sampled object this is has ended
    kRemoved,     // it was removed, and not to make room
    kVoided,      // all objects of `slot` were: a reset
    kWentDown,    // memory gave it up, and the disk has it now
  };
  std::uint32_t key = 0;
  std::uint32_t parent = 0;  // the sampled object before it in its chain; 0: none, or not known
  std::uint32_t bytes = 0;   // that it occupies
  std::uint16_t slot = 0;    // of its namespace
  Kind kind = Kind::kRead;

  // Somebody asked for it.
  bool asked() const { return kind <= Kind::kStored; }
};
static_assert(sizeof(Access) == 16);

// Takes all kVoided at the front, and returns their slots, sorted. A new incarnation voids each
// slot: who looks at all objects for each of thousands does nothing else for seconds.
std::vector<std::uint16_t> TakeVoided(std::span<const Access>& accesses);

// The sizes that are estimated, as multiples of the cache's own.
struct WhatIfSize {
  std::string_view name;
  double times;
};
inline constexpr std::array<WhatIfSize, 4> kWhatIfSizes = {
    {{"half", 0.5}, {"same", 1}, {"double", 2}, {"quadruple", 4}}};

struct WhatIfCounts {
  std::uint64_t asked = 0;
  std::array<std::uint64_t, kWhatIfSizes.size()> hits{};  // of `asked`, by size
};

// Counts hits by size, and corrects them.
struct WhatIfTally {
  std::uint64_t asked = 0;    // all
  std::uint64_t sampled = 0;  // what the sampled ones stand for
  std::array<std::uint64_t, kWhatIfSizes.size()> hits{};
  WhatIfCounts told;

  // None of the counts decreases.
  WhatIfCounts Read();
};

class WhatIf {
 public:
  struct Options {
    std::string policy = "default";
    std::uint64_t capacity_bytes = 0;
    std::size_t most_sampled = 32'768;
  };
  // A key keeps enough bits to be told from others.
  static constexpr unsigned kMostShift = 8;

  // Errors: kInvalid for an unknown policy.
  static Result<std::unique_ptr<WhatIf>> Make(const Options& options);

  // Applies what happened. `asked`: how many objects were asked for meanwhile, sampled or not.
  void Apply(std::span<const Access> accesses, std::uint64_t asked);
  // Raises shift() by one, up to kMostShift.
  void Thin();
  // The caller need not report a key whose low shift() bits are not 0.
  unsigned shift() const { return shift_; }
  static bool Sampled(std::uint32_t key, unsigned shift) {
    return (key & ((std::uint32_t{1} << shift) - 1)) == 0;
  }

  // Returns the counts since the start; none decreases.
  WhatIfCounts Read() { return tally_.Read(); }
  std::size_t sampled() const { return size_; }
  // Of memory, about.
  std::size_t bytes() const;

 private:
  struct Entry {
    std::uint32_t key = 0;
    std::uint32_t parent = 0;
    std::uint32_t bytes = 0;
    ObjectId next = kNoObject;  // of the same head, or of the free ones
    std::uint16_t slot = 0;
    std::uint8_t caches = 0;  // a bit for each miniature that has it; 0: this number is free
  };
  struct Cache {
    std::unique_ptr<EvictionPolicy> policy;
    std::uint64_t used_bytes = 0;
    std::size_t objects = 0;
  };

  explicit WhatIf(const Options& options);
  static std::uint8_t BitOf(std::size_t cache) { return static_cast<std::uint8_t>(1U << cache); }
  ObjectId& HeadOf(std::uint32_t key);
  ObjectId Find(std::uint32_t key) { return FindFrom(HeadOf(key), key); }
  ObjectId FindFrom(ObjectId at, std::uint32_t key) const;
  ObjectId Add(const Access& access);
  void Use(const Access& access, bool asked);
  void Put(std::size_t cache, ObjectId id);
  bool MakeRoom(std::size_t cache, std::uint64_t bytes);
  void Take(std::size_t cache, ObjectId id, bool evicted);
  void Free(ObjectId id);
  void Drop(ObjectId id);
  template <typename Which>
  void DropAll(const Which& which);

  const Options options_;
  unsigned shift_ = 0;
  std::array<Cache, kWhatIfSizes.size()> caches_;
  std::vector<Entry> entries_;
  std::vector<ObjectId> heads_;
  ObjectId free_ = kNoObject;
  std::size_t size_ = 0;
  WhatIfTally tally_;
};

}  // namespace kvcove::policy
