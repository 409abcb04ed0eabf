// SPDX-License-Identifier: Apache-2.0
#include "kvcove/disklog/forgetting.h"

#include <memory>
#include <utility>

namespace kvcove::disklog {

IndexEntry* Forgetting::Find(const Forgotten& one) {
  IndexEntry* const entry = state_.Find(one.hash);
  return entry != nullptr && entry->sequence() == one.sequence ? entry : nullptr;
}

// A copy's has the sequence of the copy, so that it does not cover what was stored since.
std::optional<Writer::Append> Forgetting::TombstoneOf(const Forgotten& one) {
  if (one.copy) {
    const Zone& zone = state_.zones[one.copy->place.zone];
    if (zone.use != one.copy->place.use) return std::nullopt;
    return Writer::Append{.slot = one.copy->slot,
                          .generation = one.copy->generation,
                          .version = zone.nonce,
                          .name = one.copy->name,
                          .key = one.key,
                          .sequence = one.sequence};
  }
  const IndexEntry* const entry = Find(one);
  if (entry == nullptr) return std::nullopt;
  const Scope& scope = state_.scopes[entry->scope];
  return Writer::Append{.slot = scope.slot,
                        .generation = scope.generation,
                        .version = state_.zones[entry->zone].nonce,
                        .name = scope.name,
                        .key = one.key};
}

void Forgetting::Step() {
  if (state_.forgotten.empty()) return;
  if (writer_.unproven()) return GiveUp();
  auto written = std::make_shared<std::vector<Forgotten>>();
  while (!state_.forgotten.empty()) {
    Forgotten& one = state_.forgotten.front();
    if (const auto tombstone = TombstoneOf(one)) {
      const Status added = writer_.AddTombstone(*tombstone);
      if (!added) {
        // A full queue and a full disk pass. A device that fails is the owner's to set aside.
        if (added.error().code == Code::kUnavailable) writer_.SetUnproven();
        break;
      }
    }
    written->push_back(std::move(one));
    state_.forgotten.pop_front();
  }
  if (written->empty()) return writer_.Flush();
  ++syncing_;
  writer_.Sync([this, written](const Status& status) {
    --syncing_;
    Synced(*written, status);
  });
}

void Forgetting::Synced(const std::vector<Forgotten>& written, const Status& status) {
  if (!status) writer_.SetUnproven();
  for (const Forgotten& one : written) {
    // Of what is not proven the entry stays, and so its key counts as present.
    if (status && one.copy) {
      const Place& place = one.copy->place;
      if (state_.zones[place.zone].use == place.use) state_.zones.RemoveUncovered(place.zone);
    } else if (IndexEntry* const entry = Find(one); status && entry != nullptr) {
      Drop(*entry, one);
    }
    if (one.done) one.done(status);
  }
}

// First the entry: the owner asks whether the key is still there before it reports the loss.
void Forgetting::Drop(const IndexEntry& entry, const Forgotten& one) {
  const Scope& scope = state_.scopes[entry.scope];
  const SlotId slot = scope.slot;
  const Generation generation = scope.generation;
  const std::string name = scope.name;  // the scope may end with its last entry
  const bool found_before = !entry.pending;
  state_.Drop(IndexEntry(entry));
  if (!found_before) return;
  ++state_.counters.dropped_objects;
  if (!on_forgotten_) return;
  on_forgotten_({.slot = slot, .generation = generation, .name = name, .key = one.key});
}

void Forgetting::GiveUp() {
  for (const Forgotten& one : std::exchange(state_.forgotten, {})) {
    if (one.done) one.done(Fail(Code::kUnavailable, "the disk failed to write"));
  }
}

}  // namespace kvcove::disklog
