// SPDX-License-Identifier: Apache-2.0
// The generation table as owners follow it: each slot with the revision of its last change, so that
// an owner with any earlier revision, also one from another master, gets exactly what it lacks, in
// pages. Needs a lock.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "kvcove/wire/carry_fields.h"

namespace kvcove::master {

class SlotTable {
 public:
  static constexpr std::size_t kPageBytes = 256 << 10;

  // Bytes of names in one page; a page has at least one slot.
  explicit SlotTable(std::size_t page_bytes = kPageBytes) : page_bytes_(page_bytes) {}

  // True when the slot had another generation here before.
  bool Set(const SlotUpdate& update, std::uint64_t revision);
  // Of the last change of any slot.
  std::uint64_t revision() const { return by_revision_.empty() ? 0 : by_revision_.rbegin()->first; }
  // What leads from `have` on, oldest change first; `more` when that is not all. To an
  // owner that serves one tenant other tenants' slots are free ones: it holds nothing in them, and
  // nothing that it held there before a slot changed its tenant.
  wire::Changes Since(std::uint64_t have, std::string_view only_tenant = {}) const;
  // The revision at which the slot got another generation than this one, if it has.
  std::optional<std::uint64_t> RaisedSince(SlotId slot, Generation generation) const;
  // Empty: without a tenant, or unknown.
  std::string_view TenantOfSlot(SlotId slot) const;

  template <typename Ar>
  void Carry(Ar& ar) {
    CarryAll(ar, slots_, by_revision_);
  }

 private:
  struct Slot {
    SlotUpdate update;
    std::uint64_t revision = 0;
    template <typename Ar>
    void Carry(Ar& ar) {
      CarryAll(ar, update, revision);
    }
  };
  const std::size_t page_bytes_;
  std::map<SlotId, Slot> slots_;
  std::map<std::uint64_t, std::set<SlotId>> by_revision_;
};

}  // namespace kvcove::master
