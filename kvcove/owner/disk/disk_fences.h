// SPDX-License-Identifier: Apache-2.0
// Removals and resets that one disk must apply, what they fence until then, and what the disk has
// missed.
//
// clang-format off
//   a key:       Remove --(fenced)--> Applied: the log has forgotten it --> Proven: synced
//   a pattern:   BeginMatching --(hidden: memory is walked)--> RemoveMatching
//                 --(hidden: the disk is walked)--> Proven; EndMatching if memory's walk ends early
//   a reset:     SetSlots: the next order of the disk's thread
// clang-format on
//
// A key that is fenced is not read from the disk, and what is evicted of it is not kept there: the
// log might answer with a value that is being removed. What matches a hidden pattern does not come
// up behind the walk over memory.
//
// What a disk that is set aside misses, and what is stored meanwhile over what it holds, is
// remembered: up to a bound the disk may be used with what it holds, once this is removed from it;
// beyond it, or after a removal that it has missed, it starts empty.
//
// Needs the lock of its holder. No I/O.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kvcove/disklog/log.h"
#include "kvcove/owner/core/core_types.h"

namespace kvcove::owner {

// What somebody waits for until the disk has proven it.
struct TierRemoval {
  std::size_t open = 0;  // parts that are not proven yet
  std::uint64_t removed = 0;
  bool collect = false;
  std::vector<std::string> keys;  // that a pattern matched, if `collect`
  // Set by DiskFences alone:
  std::uint64_t era = 0;  // how often the disk had been set aside
  bool missed = false;    // by the disk
};

// What the disk's thread does before anything else, in order.
struct TierOrder {
  enum class Kind { kGeneration, kRemove, kRemoveMatching } kind = Kind::kGeneration;
  SlotId slot = 0;
  Generation generation = 0;
  std::vector<std::string> keys;
  std::string pattern;
  std::shared_ptr<TierRemoval> removal;
};

class DiskFences {
 public:
  struct StoredKey {
    SlotId slot = 0;
    Generation generation = 0;
    std::string key;
  };

  // `remembered`: keys stored or removed while the disk is not on.
  explicit DiskFences(std::size_t remembered) : remembered_(remembered) {}

  // ---- generations
  void SetSlots(const std::vector<SlotUpdate>& updates);
  std::string NameOf(SlotId slot) const;
  const std::map<SlotId, SlotUpdate>& slots() const { return slots_; }

  // ---- removals
  // The removal has one more part, of this era. False: the disk is `aside`, and misses it.
  bool Join(TierRemoval& removal, std::uint64_t era, bool aside);
  // After Join. `tags`: of the order's keys.
  void Remove(TierOrder order, std::span<const std::uint64_t> tags);
  // Removes an older value than the one that was stored: nobody waits for that but the disk's note.
  void RemoveOlder(StoredKey stored, std::uint64_t tag);
  void BeginMatching(SlotId slot, std::string_view pattern);
  // Nothing matches any more, unless it is ordered.
  void EndMatching(SlotId slot, std::string_view pattern);
  // After Join.
  void RemoveMatching(TierOrder order);

  // ---- what they fence
  bool Removes(std::uint64_t tag) const { return removing_.contains(tag); }
  // A removal by pattern is about to take the key.
  bool Hides(SlotId slot, std::string_view key) const;

  // ---- the disk's thread
  std::vector<TierOrder> TakeOrders() { return std::exchange(orders_, {}); }
  // A log that is about to be opened knows the generations of now. Removals are for it.
  void DropGenerationOrders();
  void Applied(std::span<const std::uint64_t> tags);
  void Proven(const TierOrder& order, std::uint64_t removed);
  bool orders() const { return !orders_.empty(); }
  // Some removal is not proven.
  bool unproven() const { return unproven_ > 0; }
  // All that is older than what was stored while the disk was not on is removed, durably.
  bool older_proven() const { return older_->open == 0; }

  // ---- what the disk misses
  // The key was stored, or removed, while the disk was not on.
  void Remember(SlotId slot, Generation generation, std::string_view key);
  // The disk must start empty.
  void Miss() { missed_ = true; }
  // It may be used with what it holds, once what is remembered is removed from it.
  bool Reusable() const { return !missed_ && stored_.size() <= remembered_; }
  // It may be used with what it holds, by one who remembers nothing.
  bool Whole() const { return !missed_ && stored_.empty(); }
  // It is used again, and has missed nothing from here on. Returns what was remembered: whatever it
  // has of that is older.
  std::vector<StoredKey> UseAgain();
  // The disk is used no more: it misses what it has not proven. Removals by pattern that walk over
  // memory remain.
  void EndEra();

 private:
  // A removal by pattern that walks over memory, or, once it is ordered, over the disk.
  struct Matching {
    SlotId slot = 0;
    std::string pattern;
    bool ordered = false;
  };
  // One of those that are alike; none when the disk was set aside.
  std::vector<Matching>::iterator Find(SlotId slot, std::string_view pattern, bool ordered);

  const std::size_t remembered_;
  std::map<SlotId, SlotUpdate> slots_;
  std::vector<TierOrder> orders_;
  std::unordered_map<std::uint64_t, std::uint32_t> removing_;  // by tag: how many removals
  std::vector<Matching> matching_;
  std::uint64_t unproven_ = 0;  // parts of removals
  // While the disk is not on:
  bool missed_ = false;
  std::vector<StoredKey> stored_;
  // Removals of older values: open until they are durable.
  std::shared_ptr<TierRemoval> older_ = std::make_shared<TierRemoval>();
};

}  // namespace kvcove::owner
