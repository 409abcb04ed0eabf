// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/control_log.h"

namespace kvcove::master {

void ControlLog::Append(const Id128& incarnation, const std::vector<SlotUpdate>& updates) {
  if (incarnation != incarnation_) {
    incarnation_ = incarnation;
    table_.clear();
  }
  Entry entry;
  for (const SlotUpdate& update : updates) {
    const auto [at, fresh] = table_.try_emplace(update.slot, update);
    if (!fresh && at->second == update) continue;
    at->second = update;
    entry.slots.push_back(update.slot);
  }
  if (entry.slots.empty()) return;
  Push(std::move(entry));
  slots_version_ = version_;
}

void ControlLog::Append(wire::Removal removal) {
  Entry entry;
  keys_ += removal.keys.size();
  entry.removals.push_back(std::move(removal));
  Push(std::move(entry));
}

void ControlLog::Push(Entry entry) {
  ++version_;
  entries_.push_back(std::move(entry));
  while (entries_.size() > kMaxEntries || (keys_ > kMaxKeys && entries_.size() > 1)) {
    for (const wire::Removal& removal : entries_.front().removals) {
      keys_ -= removal.keys.size();
      lost_.insert(removal.slot);
    }
    entries_.pop_front();
  }
}

wire::Changes ControlLog::Since(std::uint64_t have) const {
  wire::Changes changes{.version = version_,
                        .incarnation = incarnation_,
                        .complete = false,
                        .slots = {},
                        .removals = {}};
  const std::uint64_t behind = version_ - have;
  if (have > version_ || behind > entries_.size()) {
    changes.complete = true;
    for (const auto& [slot, update] : table_) changes.slots.push_back(update);
    for (const SlotId slot : lost_) {
      changes.removals.push_back({.slot = slot, .keys = {}, .pattern = {}, .drop_all = true});
    }
    // Those that are still known are exact, and come after.
    for (const Entry& entry : entries_) {
      changes.removals.insert(changes.removals.end(), entry.removals.begin(), entry.removals.end());
    }
    return changes;
  }
  std::set<SlotId> slots;
  for (std::size_t i = entries_.size() - behind; i < entries_.size(); ++i) {
    slots.insert(entries_[i].slots.begin(), entries_[i].slots.end());
    changes.removals.insert(changes.removals.end(), entries_[i].removals.begin(),
                            entries_[i].removals.end());
  }
  for (const SlotId slot : slots) {
    if (const auto at = table_.find(slot); at != table_.end()) changes.slots.push_back(at->second);
  }
  return changes;
}

}  // namespace kvcove::master
