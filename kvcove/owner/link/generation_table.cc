// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/link/generation_table.h"

#include <algorithm>

namespace kvcove::owner {

std::optional<std::vector<SlotUpdate>> GenerationTable::Take(const wire::Changes& changes) {
  const bool next = Continues(changes);
  const bool names = changes.names_changed && changes.naming != naming_;
  if (!next && !names) return std::nullopt;
  const auto named = [&](SlotId slot) {
    return !std::ranges::binary_search(changes.unnamed, slot);
  };
  std::vector<SlotUpdate> updates;
  if (names) {
    for (auto& [slot, update] : slots_) {
      if (update.named == named(slot)) continue;
      update.named = named(slot);
      updates.push_back(update);
    }
  }
  // After the names: their updates have the generations that were known before this page.
  if (next) updates.insert(updates.end(), changes.slots.begin(), changes.slots.end());
  for (SlotUpdate& update : updates) {
    const auto known = slots_.find(update.slot);
    update.named = names ? named(update.slot) : known == slots_.end() || known->second.named;
    if (next) slots_[update.slot] = update;
  }
  return updates;
}

bool GenerationTable::Acknowledge(const wire::Changes& changes) {
  bool known = false;
  if (Continues(changes)) {
    revision_ = changes.to;
    partial_ = changes.more;
    known = !partial_;
  }
  if (changes.names_changed) naming_ = changes.naming;
  return known;
}

std::vector<SlotUpdate> GenerationTable::Void() {
  std::vector<SlotUpdate> nothing;
  for (const auto& [slot, update] : slots_) nothing.push_back({.slot = slot, .name = {}});
  slots_.clear();
  revision_ = 0;
  partial_ = false;
  naming_ = 0;
  return nothing;
}

}  // namespace kvcove::owner
