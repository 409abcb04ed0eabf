// SPDX-License-Identifier: Apache-2.0
// The keys whose values somebody has announced to save. A look-up that misses such a key may wait
// for it. A hint: nothing is found or refused because of it, and the worst that a wrong one costs
// is a wait, which the waiter bounds.
//
// An announcement ends with the value (a caller that stores it calls End, or finds it first), with
// its writer, with another generation of its slot, and after a fixed time.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>

#include "kvcove/model/ids.h"

namespace kvcove {

// Does no I/O. Needs a lock.
class SavesUnderWay {
 public:
  // A connection or a session; never used twice.
  using Writer = std::uint64_t;

  struct Options {
    // A save that has not ended by then is too slow to wait for.
    std::int64_t kept_ns = 2'000'000'000;
    // Announcements beyond these are left out, so that look-ups do not wait for their keys. 100
    // bytes each.
    std::size_t most = 1 << 17;
    std::size_t most_of_writer = 1 << 15;
  };
  SavesUnderWay() = default;
  explicit SavesUnderWay(const Options& options) : options_(options) {}

  // Notes that the writer is about to save these keys (DirectoryHash) of a slot. Removes two
  // expired ones at most for each of them.
  void Begin(Writer writer, SlotId slot, Generation generation, std::span<const Id128> hashes,
             std::int64_t now_ns);
  // Notes that the value is there, or will not be. A save that a reset has voided ends none of
  // those that began after the reset.
  void End(SlotId slot, Generation generation, const Id128& hash);
  // Notes that a writer has ended: it saves nothing more. O(1); its entries expire.
  void EndWriter(Writer writer) { writers_.erase(writer); }
  // Returns whether a save of the key under this generation is under way.
  bool Has(SlotId slot, Generation generation, const Id128& hash, std::int64_t now_ns) const;
  // Returns the time at which the last announcement of now expires; 0: there was none.
  std::int64_t until_ns() const { return until_ns_; }
  std::size_t size() const { return entries_.size(); }

 private:
  struct Key {
    Id128 hash;
    SlotId slot = 0;
    bool operator==(const Key&) const = default;
  };
  // Seeded: a caller chooses its keys, and must not crowd one bucket.
  struct Hasher {
    explicit Hasher(std::uint64_t of) : seed(of) {}
    std::uint64_t seed;
    std::size_t operator()(const Key& key) const {
      return Mix64(key.hash.low ^ Mix64(key.hash.high ^ Mix64(seed ^ key.slot)));
    }
  };
  struct Entry {
    Writer writer = 0;
    Generation generation = 0;
    std::int64_t until_ns = 0;
  };
  using Entries = std::unordered_map<Key, Entry, Hasher>;

  void Expire(std::int64_t now_ns);
  void Erase(Entries::iterator at);

  Options options_;
  Entries entries_{0, Hasher(RandomU64())};
  std::deque<std::pair<std::int64_t, Key>> expiries_;  // in order; an entry may have several
  std::unordered_map<Writer, std::size_t> writers_;    // entries of those that have not ended
  std::int64_t until_ns_ = 0;
};

}  // namespace kvcove
