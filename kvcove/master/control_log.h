// SPDX-License-Identifier: Apache-2.0
// What every owner must apply, in one order: generations and removals, numbered. Bounded: who is
// further behind gets the whole table, and drops what removals it may have missed. Needs a lock.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <vector>

#include "kvcove/wire/cluster.h"

namespace kvcove::master {

class ControlLog {
 public:
  // Versions of different masters never meet: they begin at a random number.
  explicit ControlLog(std::uint64_t first_version)
      : version_(first_version), slots_version_(first_version) {}

  // What changes nothing makes no version.
  void Append(const Id128& incarnation, const std::vector<SlotUpdate>& updates);
  void Append(wire::Removal removal);
  // Removals from these slots may be unknown to whoever needs the whole table.
  void SetMissed(const std::set<SlotId>& slots) { lost_.insert(slots.begin(), slots.end()); }

  std::uint64_t version() const { return version_; }
  // The last one that changed a slot: what came after are removals.
  std::uint64_t slots_version() const { return slots_version_; }
  // What leads from `have` to version(). Several changes of one slot are one.
  wire::Changes Since(std::uint64_t have) const;

 private:
  static constexpr std::size_t kMaxEntries = 4096;
  static constexpr std::size_t kMaxKeys = 1 << 20;  // of removals, together

  struct Entry {
    std::vector<SlotId> slots;
    std::vector<wire::Removal> removals;  // at most one
  };
  void Push(Entry entry);

  Id128 incarnation_;
  std::uint64_t version_;
  std::uint64_t slots_version_;
  std::map<SlotId, SlotUpdate> table_;
  std::deque<Entry> entries_;  // the last one made version_
  std::size_t keys_ = 0;
  std::set<SlotId> lost_;  // slots with removals that are in no entry any more
};

}  // namespace kvcove::master
