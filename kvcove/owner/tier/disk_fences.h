// SPDX-License-Identifier: Apache-2.0
// Removals and resets that one disk must apply, the keys that they fence until then, and the
// removals and values that the disk has missed.
//
// clang-format off
//   a key:       Remove --(fenced)--> Applied: the log has forgotten it --> Proven: synced
//   a pattern:   BeginMatching --(hidden: memory is walked)--> RemoveMatching
//                 --(hidden: the disk is walked)--> Proven; EndMatching if memory's walk ends early
//   a reset:     SetSlots: the next order of the disk's thread
// clang-format on
//
// A fenced key is not read from the disk, and an evicted value of the key is not kept there,
// because the log might still find the value that is being removed. A key that matches a hidden
// pattern is not promoted: a value promoted behind the walk over memory would survive the removal.
//
// While the disk is set aside, the keys that are stored or removed meanwhile are remembered. Up to
// a bound, the disk may be used again with its contents, once these keys are removed from it.
// Beyond the bound, or after a missed removal that cannot be remembered, the disk starts empty.
//
// Needs the lock of its holder. Does no I/O.
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

// A removal for which a caller waits until the disk has proven it.
struct TierRemoval {
  std::size_t open = 0;  // parts that are not proven yet
  std::uint64_t removed = 0;
  bool collect = false;           // whether the caller wants `keys`
  std::vector<std::string> keys;  // that a pattern matched, if `collect`
  // Set by DiskFences alone:
  std::uint64_t era = 0;  // of the disk when the last part was added
  bool missed = false;    // the disk has missed a part
};

// An order to the disk's thread, which carries out orders in sequence, before reads and demotions.
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

  // `remembered`: most keys, stored or removed while the disk is not on, that are remembered.
  explicit DiskFences(std::size_t remembered) : remembered_(remembered) {}

  // ---- generations
  // Notes generations and names of slots, and orders a reset for each slot whose generation
  // changed.
  void SetSlots(const std::vector<SlotUpdate>& updates);
  // Returns the name of the slot's namespace; empty for an unknown slot.
  std::string NameOf(SlotId slot) const;
  const std::map<SlotId, SlotUpdate>& slots() const { return slots_; }

  // ---- removals
  // Adds one part, of this era, to the removal. False: the disk is `aside` and misses the part.
  bool Join(TierRemoval& removal, std::uint64_t era, bool aside);
  // Orders a removal of keys and fences their `tags` until Applied. Call Join first.
  void Remove(TierOrder order, std::span<const std::uint64_t> tags);
  // Orders the removal of a value that is older than the one that was stored. No caller waits for
  // the removal; the disk stays out of the note until older_proven().
  void RemoveOlder(StoredKey stored, std::uint64_t tag);
  // Hides keys that match, while memory is walked.
  void BeginMatching(SlotId slot, std::string_view pattern);
  // Undoes BeginMatching for a removal that is not ordered.
  void EndMatching(SlotId slot, std::string_view pattern);
  // Returns how many removals by pattern hide keys.
  std::size_t patterns() const { return matching_.size(); }
  // Orders the walk over the disk; keys that match stay hidden until Proven. Call Join first.
  void RemoveMatching(TierOrder order);

  // ---- what they fence
  // Returns true if the log has not applied a removal of the key yet.
  bool Removes(std::uint64_t tag) const { return removing_.contains(tag); }
  // Returns true if a removal by pattern is about to remove the key.
  bool Hides(SlotId slot, std::string_view key) const;

  // ---- the disk's thread
  // Takes all orders, in sequence.
  std::vector<TierOrder> TakeOrders() { return std::exchange(orders_, {}); }
  // Drops orders that set generations: a log that is opened now knows the current ones. Orders that
  // remove keys remain, for that log must apply them.
  void DropGenerationOrders();
  // Lifts the fences of keys that the log no longer finds.
  void Applied(std::span<const std::uint64_t> tags);
  // Ends one part of a removal, whose tombstones are synced. `removed`: objects that it removed.
  void Proven(const TierOrder& order, std::uint64_t removed);
  bool orders() const { return !orders_.empty(); }
  // Returns true if a removal is not proven.
  bool unproven() const { return unproven_ > 0; }
  // Returns true once every value that is older than one stored while the disk was not on is
  // removed durably.
  bool older_proven() const { return older_->open == 0; }

  // ---- what the disk misses
  // Remembers a key that was stored or removed while the disk is not on.
  void Remember(SlotId slot, Generation generation, std::string_view key);
  // Makes the disk start empty.
  void Miss() { missed_ = true; }
  // Returns true if the disk may be used with its contents, once the remembered keys are removed.
  bool Reusable() const { return !missed_ && stored_.size() <= remembered_; }
  // Returns true if a process that remembers nothing may use the disk with its contents.
  bool Whole() const { return !missed_ && stored_.empty(); }
  // Begins a use of the disk, which misses nothing from here on. Returns the remembered keys:
  // values that the disk has of these are older.
  std::vector<StoredKey> UseAgain();
  // Ends the disk's use: the disk misses every removal that is not proven. Removals by pattern that
  // still walk over memory remain.
  void EndEra();

 private:
  // A removal by pattern that walks over memory or, once `ordered`, over the disk.
  struct Matching {
    SlotId slot = 0;
    std::string pattern;
    bool ordered = false;
  };
  // Returns one of several equal entries; end() if EndEra has erased them.
  std::vector<Matching>::iterator Find(SlotId slot, std::string_view pattern, bool ordered);

  const std::size_t remembered_;
  std::map<SlotId, SlotUpdate> slots_;
  std::vector<TierOrder> orders_;
  std::unordered_map<std::uint64_t, std::uint32_t> removing_;  // by tag: number of removals
  std::vector<Matching> matching_;
  std::uint64_t unproven_ = 0;  // parts of removals
  // While the disk is not on:
  bool missed_ = false;
  std::vector<StoredKey> stored_;
  // Removals of older values; `open` until all are durable.
  std::shared_ptr<TierRemoval> older_ = std::make_shared<TierRemoval>();
};

}  // namespace kvcove::owner
