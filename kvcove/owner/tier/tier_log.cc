// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/tier/tier_log.h"

#include <algorithm>
#include <utility>

#include "kvcove/policy/retention.h"

namespace kvcove::owner {

// ---- TierDemotions

HandedDemotion TierDemotions::First() {
  const MutexLock lock(parts_.mutex);
  return HandFirst();
}

HandedDemotion TierDemotions::HandFirst() {
  std::vector<std::shared_ptr<Demotion>> dropped;
  std::shared_ptr<Demotion> first = parts_.queue.First(dropped);
  for (const auto& one : dropped) EndPending(*one, /*written=*/false);
  if (first == nullptr) return {};
  std::string name = parts_.fences.NameOf(first->slot);
  const disklog::ShareNumber share = first->share;
  return {.demotion = std::move(first), .name = std::move(name), .share = share};
}

HandedDemotion TierDemotions::Take(Demotion& demotion, bool copied) {
  const MutexLock lock(parts_.mutex);
  if (parts_.queue.Take(demotion, copied)) {
    if (copied) {
      ++parts_.stat.demoted;
      parts_.stat.demoted_bytes += demotion.size_bytes;
    } else {
      ++parts_.stat.dropped_other;
      EndPending(demotion, /*written=*/false);
    }
  }
  return HandFirst();
}

void TierDemotions::Complete(Demotion& demotion, bool written) {
  const MutexLock lock(parts_.mutex);
  if (!written) ++parts_.stat.dropped_other;
  EndPending(demotion, written);
}

void TierDemotions::EndPending(Demotion& demotion, bool written) {
  for (const auto& load : std::exchange(demotion.awaited, {})) parts_.loads.Requeue(load);
  // It was removed, and its key stored and evicted again.
  if (!parts_.queue.End(demotion, parts_.state.era())) return;
  if (!written) parts_.common.tags.Remove(demotion.tag);
  if (!parts_.options.listed || parts_.header.tier().Holds(demotion.tag)) return;
  parts_.Lose({.slot = demotion.slot, .generation = demotion.generation, .key = demotion.key});
}

bool TierDemotions::Drained() const {
  const MutexLock lock(parts_.mutex);
  return parts_.queue.drained();
}

std::vector<std::shared_ptr<const Demotion>> TierDemotions::PendingOf(
    std::optional<SlotId> slot) const {
  const MutexLock lock(parts_.mutex);
  return parts_.queue.PendingOf(slot);
}

void TierDemotions::Close() {
  const MutexLock lock(parts_.mutex);
  parts_.queue.SetClosed(true);
}

// ---- TierLog

void TierLog::Attach() {
  parts_.common.tags.Clear(parts_.shares);
  const MutexLock lock(parts_.mutex);
  dropped_ = 0;
  former_ = parts_.stat.log;
}

disklog::DiskShares TierLog::Shares() const {
  const MutexLock lock(parts_.mutex);
  return {.limits = parts_.quotas.Limits(),
          .of = [this](std::string_view name) { return parts_.common.ShareOf(name); }};
}

bool TierLog::WorthMoving(const disklog::LiveObject& object,
                          const disklog::MoveFacts& facts) const {
  if (!facts.guaranteed && !policy::WorthMoving(facts.since_read, facts.budget)) return false;
  const segment::HeaderView& header = parts_.header;
  const segment::Found found = header.Find(
      object.slot, {.key = object.key, .hash = header.HashKey(object.slot, object.key)});
  return !found || found.generation != object.generation;
}

void TierLog::Dropped(TierObject object) {
  Lost(std::move(object));
  const MutexLock lock(parts_.mutex);
  ++dropped_;
}

void TierLog::NoteCounters(const disklog::Space& space, const disklog::Counters& counters,
                           std::vector<std::uint64_t> held) {
  const MutexLock lock(parts_.mutex);
  parts_.quotas.NoteHeld(std::move(held));
  parts_.queue.ForgetEnded();
  // The cleaner has dropped objects whose keys nobody knows, with a zone whose summary is damaged.
  if (parts_.options.listed && counters.dropped_objects > dropped_) parts_.inventory.LoseAll();
  dropped_ = std::max(dropped_, counters.dropped_objects);
  parts_.stat.space = space;
  parts_.stat.log = former_;
  parts_.stat.log += counters;
}

bool TierLog::Add(const Id128& hash, Generation generation) {
  const std::uint64_t tag = segment::TierTag(hash, generation);
  // A key that is another disk's by now is found in the log only, to be removed there
  // (RemoveMoved).
  if ((segment::ShareOf(tag) & parts_.shares) == 0) return true;
  return parts_.common.tags.Add(tag);
}

void TierLog::Remove(const Id128& hash, Generation generation) {
  parts_.common.tags.Remove(segment::TierTag(hash, generation));
}

}  // namespace kvcove::owner
