// SPDX-License-Identifier: Apache-2.0
#include "kvcove/disklog/zones.h"

#include <algorithm>
#include <utility>

namespace kvcove::disklog {

std::uint32_t Zones::CountOf(ZoneState state) const {
  return static_cast<std::uint32_t>(
      std::ranges::count_if(zones_, [&](const Zone& zone) { return zone.state == state; }));
}

std::uint32_t Zones::openable() const {
  return static_cast<std::uint32_t>(std::ranges::count_if(
      zones_, [](const Zone& zone) { return zone.state == ZoneState::kFree && zone.reads == 0; }));
}

void Zones::ReadAgain() {
  for (Zone& zone : zones_) zone.unreadable = false;
}

std::optional<std::uint32_t> Zones::AnyFree() const {
  for (std::uint32_t i = 0; i < count(); ++i) {
    if (zones_[i].state == ZoneState::kFree && zones_[i].reads == 0) return i;
  }
  return std::nullopt;
}

std::optional<std::uint32_t> Zones::AnyUncovered() const {
  for (std::uint32_t i = 0; uncovered_ > 0 && i < count(); ++i) {
    const Zone& zone = zones_[i];
    if (zone.state == ZoneState::kSealed && zone.uncovered > 0 && zone.reads == 0) return i;
  }
  return std::nullopt;
}

ScopeUse* Zones::Find(std::uint32_t zone, ScopeId scope) {
  for (ScopeUse& use : zones_[zone].uses) {
    if (use.scope == scope) return &use;
  }
  return nullptr;
}

ScopeUse& Zones::Use(std::uint32_t zone, ScopeId scope) {
  if (ScopeUse* const use = Find(zone, scope)) return *use;
  scopes_.Use(scope);
  ScopeUse& use = zones_[zone].uses.emplace_back();
  use.scope = scope;
  return use;
}

void Zones::AddUncovered(std::uint32_t number) {
  Zone& zone = zones_[number];
  if (zone.uncovered++ == 0 && !zone.untaken) ++uncovered_;
}

void Zones::RemoveUncovered(std::uint32_t number) {
  Zone& zone = zones_[number];
  if (--zone.uncovered == 0 && !zone.untaken) --uncovered_;
}

void Zones::Doom(std::uint32_t number, bool untaken) {
  Zone& zone = zones_[number];
  // A zone whose summary is being written is sealed once that is there.
  if (zone.state == ZoneState::kFree) zone.state = ZoneState::kSealed;
  zone.doomed = true;
  if (!untaken || zone.untaken) return;
  zone.untaken = true;
  if (zone.uncovered == 0) ++uncovered_;
}

void Zones::SetNonce(std::uint32_t zone, std::uint64_t nonce) {
  zones_[zone].nonce = nonce;
  nonces_.insert(nonce);
}

void Zones::NoteObject(std::uint32_t zone, ScopeId scope, std::uint64_t sequence) {
  ScopeUse& use = Use(zone, scope);
  use.first_object = std::min(use.first_object, sequence);
}

void Zones::NoteTombstone(std::uint32_t zone, ScopeId scope, std::uint64_t sequence,
                          std::uint64_t covers, std::uint64_t bytes) {
  ScopeUse& use = Use(zone, scope);
  use.last_tombstone = std::max(use.last_tombstone, sequence);
  use.tombstone_bytes += bytes;
  if (nonces_.contains(covers)) use.covers[covers] += bytes;
}

void Zones::AddLive(std::uint32_t zone, ScopeId scope, std::uint64_t bytes) {
  ScopeUse* const use = Find(zone, scope);
  if (use == nullptr || scopes_.dead(scope)) return;
  ++use->live;
  use->live_bytes += bytes;
}

void Zones::RemoveLive(std::uint32_t zone, ScopeId scope, std::uint64_t bytes) {
  ScopeUse* const use = Find(zone, scope);
  if (use == nullptr || use->live == 0) return;  // EndScope has uncounted it
  --use->live;
  use->live_bytes -= bytes;
}

void Zones::EndScope(ScopeId scope) {
  for (std::uint32_t i = 0; i < count(); ++i) {
    if (ScopeUse* const use = Find(i, scope)) {
      use->live = 0;
      use->live_bytes = 0;
      use->covers.clear();
    }
  }
}

// Frees the zone's uses of its scopes; a dead scope without users then gives its number back. The
// tombstones that name this use of the zone have nothing to cover any more.
void Zones::Clear(std::uint32_t number) {
  Zone& zone = zones_[number];
  for (const ScopeUse& use : zone.uses) scopes_.Unuse(use.scope);
  zone.uses.clear();
  if (zone.uncovered > 0 || zone.untaken) --uncovered_;
  zone.summarized = zone.doomed = zone.untaken = zone.unreadable = false;
  zone.uncovered = zone.free_failures = 0;
  const std::uint64_t nonce = std::exchange(zone.nonce, 0);
  if (nonces_.erase(nonce) == 0) return;
  for (Zone& other : zones_) {
    for (ScopeUse& use : other.uses) use.covers.erase(nonce);
  }
}

bool Zones::Uncovered(ScopeId scope, std::uint64_t sequence) const {
  // Asked for each zone with tombstones, again and again: mostly there is none.
  if (uncovered_ == 0) return false;
  return std::ranges::any_of(zones_, [&](const Zone& zone) {
    if (zone.untaken) return true;
    return zone.uncovered > 0 && std::ranges::any_of(zone.uses, [&](const ScopeUse& use) {
             return use.scope == scope && use.first_object < sequence;
           });
  });
}

bool Zones::TombstoneNeeded(ScopeId scope, std::uint64_t covers, std::uint64_t sequence) const {
  return !scopes_.dead(scope) && (nonces_.contains(covers) || Uncovered(scope, sequence));
}

std::uint64_t Zones::NeededBytes(std::uint32_t zone) const {
  std::uint64_t needed = 0;
  for (const ScopeUse& use : zones_[zone].uses) {
    if (use.last_tombstone == 0 || scopes_.dead(use.scope)) continue;
    if (Uncovered(use.scope, use.last_tombstone)) {
      needed += use.tombstone_bytes;
      continue;
    }
    for (const auto& [nonce, bytes] : use.covers) needed += bytes;
  }
  return needed;
}

std::vector<std::uint64_t> Zones::HeldByShare() const {
  std::vector<std::uint64_t> held(scopes_.limits().size());
  if (held.empty()) return held;
  for (const Zone& zone : zones_) {
    for (const ScopeUse& use : zone.uses) {
      const ShareNumber share = scopes_[use.scope].share;
      if (share < held.size()) held[share] += use.live_bytes;
    }
  }
  return held;
}

Zones::ShareClass Zones::ClassOf(const Zone& zone, std::span<const std::uint64_t> held) const {
  if (held.empty()) return ShareClass::kOrdinary;
  std::uint64_t guaranteed = 0;
  std::uint64_t replaced = 0;
  for (const ScopeUse& use : zone.uses) {
    const ShareNumber share = scopes_[use.scope].share;
    if (share >= held.size()) continue;
    const std::uint64_t maximum = scopes_.limits()[share].maximum_bytes;
    if (Guaranteed(share, held)) guaranteed += use.live_bytes;
    // One zone below the maximum, so that a zone is free before the share's new objects are
    // refused.
    if (held[share] >= maximum - std::min(maximum, zone_bytes_)) replaced += use.live_bytes;
  }
  const std::uint64_t live = zone.live_bytes();
  if (live == 0) return ShareClass::kOrdinary;  // only tombstones: to move them gives nobody space
  if (replaced * 2 >= live) return ShareClass::kReplaced;
  return guaranteed * 4 >= live ? ShareClass::kGuaranteed : ShareClass::kOrdinary;
}

// Age alone would choose full zones before half-empty ones; live bytes alone would choose a young
// zone for the few bytes that are unused at its end.
std::optional<std::uint32_t> Zones::Victim(std::uint64_t now,
                                           std::span<const std::uint64_t> held) const {
  constexpr double kBriefAges = 4;
  const std::uint32_t empty = free();
  const bool mends = std::ranges::any_of(
      zones_, [](const Zone& zone) { return zone.doomed && !zone.untaken && !zone.unreadable; });
  std::optional<std::uint32_t> best;
  ShareClass best_class = ShareClass::kGuaranteed;
  double most = -1;
  for (std::uint32_t i = 0; i < count(); ++i) {
    const Zone& zone = zones_[i];
    if (zone.state != ZoneState::kSealed || zone.reads > 0) continue;
    const std::uint64_t needed = NeededBytes(i);
    const std::uint64_t live = zone.live_bytes() + needed;
    if (zone.untaken && mends && empty >= 2) continue;
    if (live == 0) return i;
    // Its tombstones may find no room. Objects can be dropped, tombstones cannot. Those of a doomed
    // zone are written to two zones.
    if (needed > 0 && (empty < (zone.doomed ? 2U : 1U) || zone.unreadable)) continue;
    if (zone.doomed) return i;
    // Its tombstones would fill another zone.
    if (needed * 2 > zone_bytes_) continue;
    const double age = static_cast<double>(now - std::min(now, zone.opened_at)) + 1;
    const double gain = age * (zone.brief ? kBriefAges : 1) / static_cast<double>(live);
    const ShareClass its = ClassOf(zone, held);
    if (its < best_class || (its == best_class && gain <= most)) continue;
    best = i;
    best_class = its;
    most = gain;
  }
  return best;
}

}  // namespace kvcove::disklog
