// SPDX-License-Identifier: Apache-2.0
// Remembers the keys that were removed lately, so that a listing that was begun before a removal
// and arrives after it is refused. Bounded: a removal that is forgotten raises the floor of its
// slot, and listings that were begun below the floor are refused, too. Needs a lock.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "kvcove/model/ids.h"

namespace kvcove::master {

class RemovalMemory {
 public:
  explicit RemovalMemory(std::size_t at_most = 1 << 18) : at_most_(at_most), slots_(kMaxSlots) {}

  // Remembers the removal of a key. `tag`: of the key in its slot (Directory::Tag).
  void Remember(SlotId slot, std::uint64_t tag, std::uint64_t number) {
    removed_at_[tag] = number;
    slots_[slot].order.push_back({.tag = tag, .number = number});
    ++size_;
    while (size_ > at_most_) Forget();
  }
  // Remembers a removal by pattern, whose keys are unknown.
  void RememberPattern(SlotId slot, std::uint64_t number) { slots_[slot].pattern = number; }

  // Returns true if the key was removed after `number`, or if that is not known any more.
  bool RemovedSince(SlotId slot, std::uint64_t tag, std::uint64_t number) const {
    if (number < slots_[slot].floor) return true;
    const auto at = removed_at_.find(tag);
    return at != removed_at_.end() && at->second > number;
  }
  bool PatternSince(SlotId slot, std::uint64_t number) const {
    return slots_[slot].pattern > number;
  }
  std::size_t size() const { return size_; }

 private:
  struct Removed {
    std::uint64_t tag = 0;
    std::uint64_t number = 0;
  };
  struct Slot {
    std::deque<Removed> order;
    std::uint64_t floor = 0;
    std::uint64_t pattern = 0;
  };
  // Forgets the oldest removal of the slot with the most, so that one tenant's removals do not
  // raise another tenant's floor. Searches for that slot again only when the last one found has
  // less than an average share.
  void Forget() {
    if (largest_ >= slots_.size() || slots_[largest_].order.size() * slots_.size() < size_) {
      largest_ = 0;
      for (std::size_t i = 1; i < slots_.size(); ++i) {
        if (slots_[i].order.size() > slots_[largest_].order.size()) largest_ = i;
      }
    }
    Slot& slot = slots_[largest_];
    const Removed oldest = slot.order.front();
    slot.order.pop_front();
    --size_;
    const auto at = removed_at_.find(oldest.tag);
    // Removed again since: the later removal is still remembered, so the floor stays.
    if (at == removed_at_.end() || at->second != oldest.number) return;
    slot.floor = oldest.number;
    removed_at_.erase(at);
  }

  const std::size_t at_most_;
  std::size_t size_ = 0;
  std::size_t largest_ = 0;
  std::unordered_map<std::uint64_t, std::uint64_t> removed_at_;
  std::vector<Slot> slots_;
};

}  // namespace kvcove::master
