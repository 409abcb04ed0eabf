// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/control/slot_table.h"

namespace kvcove::master {

bool SlotTable::Set(const SlotUpdate& update, std::uint64_t revision) {
  Slot& slot = slots_[update.slot];
  const bool raised = slot.revision != 0 && slot.update.generation != update.generation;
  if (slot.revision != 0) {
    const auto at = by_revision_.find(slot.revision);
    at->second.erase(update.slot);
    if (at->second.empty()) by_revision_.erase(at);
  }
  slot = {.update = update, .revision = revision};
  by_revision_[revision].insert(update.slot);
  return raised;
}

wire::Changes SlotTable::Since(std::uint64_t have, std::string_view only_tenant) const {
  wire::Changes changes{.incarnation = {}, .from = have, .to = have, .slots = {}, .unnamed = {}};
  std::size_t bytes = 0;
  // A page never splits a revision: an owner acknowledges a page by its last revision, and half of
  // one has no number.
  for (auto at = by_revision_.upper_bound(have); at != by_revision_.end(); ++at) {
    if (bytes >= page_bytes_) {
      changes.more = true;
      break;
    }
    for (const SlotId slot : at->second) {
      SlotUpdate update = slots_.at(slot).update;
      if (!only_tenant.empty() && TenantOf(update.name) != only_tenant)
        update = {.slot = slot, .name = {}};
      bytes += update.name.size() + 64;
      changes.slots.push_back(std::move(update));
    }
    changes.to = at->first;
  }
  return changes;
}

std::optional<std::uint64_t> SlotTable::RaisedSince(SlotId slot, Generation generation) const {
  const auto at = slots_.find(slot);
  if (at == slots_.end() || at->second.update.generation == generation) return std::nullopt;
  return at->second.revision;
}

std::string_view SlotTable::TenantOfSlot(SlotId slot) const {
  const auto at = slots_.find(slot);
  return at == slots_.end() ? std::string_view() : TenantOf(at->second.update.name);
}

}  // namespace kvcove::master
