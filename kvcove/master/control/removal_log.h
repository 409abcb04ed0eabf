// SPDX-License-Identifier: Apache-2.0
// Removals that owners have to apply, numbered in one order, read in pages. A large removal is kept
// in parts, each with its own number. Bounded: a removal that is discarded raises the floor of its
// slot, and an owner that has not applied everything up to the floor drops the slot. Needs a lock.
//
// Numbers begin at the first of the term, so the numbers of an earlier master are all lower.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "kvcove/wire/owner_link.h"

namespace kvcove::master {

class RemovalLog {
 public:
  struct Limits {
    std::size_t bytes = 64 << 20;        // of keys, together
    std::size_t page_bytes = 512 << 10;  // of one answer
    std::size_t part_bytes = 128 << 10;  // of one part of a removal
  };

  explicit RemovalLog(std::uint64_t term) : RemovalLog(term, Limits()) {}
  RemovalLog(std::uint64_t term, const Limits& limits)
      : limits_(limits), first_(FirstOf(term)), last_(FirstOf(term)) {}

  static std::uint64_t FirstOf(std::uint64_t term) { return term << 40; }

  // Splits keys into parts of at most `part_bytes`; a part has at least one key.
  std::vector<std::vector<std::string>> PartsOf(std::vector<std::string> keys) const;
  // Appends the removal and returns its number. `held_back`: no page shows it, or a later one,
  // before Show.
  std::uint64_t Append(wire::Removal removal, bool held_back = false);
  void Show(std::uint64_t number) { held_back_.erase(number); }
  // Returns the last number that pages may show.
  std::uint64_t shown() const { return held_back_.empty() ? last_ : *held_back_.begin() - 1; }
  std::uint64_t last() const { return last_; }
  // Returns the last number of this slot; 0: none in this term, or since Void.
  std::uint64_t LastOf(SlotId slot) const;
  // Returns the slot's floor: removals up to this number may be missing here.
  std::uint64_t FloorOf(SlotId slot) const;
  // Discards the slot's removals and its floor. The slot has another generation now, which voids
  // everything that they removed.
  void Void(SlotId slot);
  // Discards removals up to `number`, except those that pages may not show yet.
  void Trim(std::uint64_t number);
  // Returns at least as many bytes as the removals after `number` have.
  std::size_t BytesAfter(std::uint64_t number) const;
  std::size_t bytes() const { return bytes_; }
  std::size_t size() const { return entries_.size(); }

  // Returns the removals after `after`, up to a page. `drop`: slots with a floor above `after`.
  wire::RemovalsPage After(std::uint64_t after) const;

 private:
  struct Entry {
    wire::Removal removal;
    std::uint64_t appended = 0;  // bytes appended up to and including this removal
  };
  static std::size_t SizeOf(const wire::Removal& removal);
  void Erase(std::map<std::uint64_t, Entry>::iterator at);
  struct Slot {
    std::uint64_t last = 0;
    std::uint64_t floor = 0;
    std::size_t bytes = 0;
    std::deque<std::uint64_t> numbers;
  };

  const Limits limits_;
  const std::uint64_t first_;
  std::uint64_t last_;
  std::map<std::uint64_t, Entry> entries_;
  std::set<std::uint64_t> held_back_;
  std::map<SlotId, Slot> slots_;
  std::size_t bytes_ = 0;
  std::uint64_t appended_ = 0;
};

}  // namespace kvcove::master
