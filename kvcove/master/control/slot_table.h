// SPDX-License-Identifier: Apache-2.0
// The generation table as owners follow it: each slot with the revision of its last change. An
// owner with any earlier revision, also one from another master, gets exactly the changes that it
// lacks, in pages. Needs a lock.
#pragma once

#include <map>
#include <optional>
#include <set>

#include "kvcove/wire/owner_link.h"

namespace kvcove::master {

class SlotTable {
 public:
  static constexpr std::size_t kPageBytes = 256 << 10;

  // Bounds pages to about `page_bytes`: names and 64 bytes a slot. A page has at least one
  // revision.
  explicit SlotTable(std::size_t page_bytes = kPageBytes) : page_bytes_(page_bytes) {}

  // Records a change. Returns true when the table already had the slot with another generation.
  bool Set(const SlotUpdate& update, std::uint64_t revision);
  // Returns the revision of the last change of any slot; 0: there was none.
  std::uint64_t revision() const { return by_revision_.empty() ? 0 : by_revision_.rbegin()->first; }
  // Returns the changes after revision `have`, oldest first; `more` is set when others follow. An
  // owner that serves one tenant sees the slots of other tenants as free: it holds nothing in
  // them, and must drop everything that it held there before the slot got another tenant.
  wire::Changes Since(std::uint64_t have, std::string_view only_tenant = {}) const;
  // Returns the revision at which the slot got its current generation, if that is another one than
  // `generation`; nothing for an unknown slot.
  std::optional<std::uint64_t> RaisedSince(SlotId slot, Generation generation) const;
  // Returns the slot's tenant; empty: it has none, or the slot is unknown.
  std::string_view TenantOfSlot(SlotId slot) const;

 private:
  struct Slot {
    SlotUpdate update;
    std::uint64_t revision = 0;
  };
  const std::size_t page_bytes_;
  std::map<SlotId, Slot> slots_;
  std::map<std::uint64_t, std::set<SlotId>> by_revision_;
};

}  // namespace kvcove::master
