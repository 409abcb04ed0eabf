// SPDX-License-Identifier: Apache-2.0
#include "kvcove/disklog/forgetting.h"

#include <memory>
#include <utility>

namespace kvcove::disklog {

IndexEntry* Forgetting::Find(const Forgotten& one) {
  IndexEntry* const entry = one.copy ? nullptr : state_.Find(one.hash);
  return entry != nullptr && entry->sequence() == one.sequence ? entry : nullptr;
}

// A copy's has the sequence of the copy, so that it does not cover what was stored since.
std::optional<Writer::Append> Forgetting::TombstoneOf(const Forgotten& one) {
  if (ZoneFreed(one) || (!one.copy && Find(one) == nullptr)) return std::nullopt;
  return Writer::Append{.slot = one.slot,
                        .generation = one.generation,
                        .version = state_.zones[one.place.zone].nonce,
                        .name = one.name,
                        .key = one.key,
                        .sequence = one.copy ? one.sequence : 0};
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
    if (status && one.copy && !ZoneFreed(one)) state_.zones.RemoveUncovered(one.place.zone);
    if (status && !one.copy) Drop(one);
    if (one.done) one.done(status);
  }
}

// First the entry: the owner asks whether the key is still there before it reports the loss. If
// there is no entry though the zone is in use, a removal, a reset or a newer record came first.
void Forgetting::Drop(const Forgotten& one) {
  IndexEntry* const entry = Find(one);
  if (entry != nullptr) state_.Drop(IndexEntry(*entry));
  if (!one.found || (entry == nullptr && !ZoneFreed(one))) return;
  ++state_.counters.dropped_objects;
  if (!on_forgotten_) return;
  on_forgotten_({.slot = one.slot, .generation = one.generation, .name = one.name, .key = one.key});
}

void Forgetting::GiveUp() {
  for (const Forgotten& one : std::exchange(state_.forgotten, {})) {
    if (one.done) one.done(Fail(Code::kUnavailable, "the disk failed to write"));
  }
}

}  // namespace kvcove::disklog
