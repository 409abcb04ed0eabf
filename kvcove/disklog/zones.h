// SPDX-License-Identifier: Apache-2.0
// The zones of a disk: what each is doing and what is alive in it. No I/O. Needs a lock.
//
//   free -> open -> sealing -> sealed -> cleaning -> freeing -> free
//              \________________/  (a write failed: sealed without a summary)
//
// A zone is freed on the disk before its number is used again: only then may tombstones that cover
// its records be forgotten.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "kvcove/disklog/scopes.h"

namespace kvcove::disklog {

enum class ZoneState : std::uint8_t { kFree, kOpen, kSealing, kSealed, kCleaning, kFreeing, kLost };

// What a zone holds of one scope, dead or alive.
struct ScopeUse {
  ScopeId scope = 0;
  std::uint32_t live = 0;  // objects
  std::uint64_t live_bytes = 0;
  std::uint64_t first_object = ~0ULL;  // the lowest sequence of an object's record
  std::uint64_t last_tombstone = 0;    // the highest of a tombstone's, or 0
};

struct Zone {
  ZoneState state = ZoneState::kFree;
  std::uint8_t stream = 0;
  bool brief = false;     // of objects that are not worth much: freed at a quarter of the age
  std::uint16_t use = 0;  // counts its openings
  std::uint64_t nonce = 0;
  std::uint64_t records_end = 0;  // bytes from the zone's start
  std::uint64_t opened_at = 0;    // the sequence then: its age
  std::uint32_t reads = 0;        // in flight: it is not used again meanwhile
  bool summarized = false;
  ZoneTrailer trailer;  // where its summary is, if it has one
  std::vector<ScopeUse> uses;

  std::uint64_t live_bytes() const {
    std::uint64_t bytes = 0;
    for (const ScopeUse& use : uses) bytes += use.live_bytes;
    return bytes;
  }
  std::uint32_t live() const {
    std::uint32_t count = 0;
    for (const ScopeUse& use : uses) count += use.live;
    return count;
  }
};

class Zones {
 public:
  Zones(std::uint32_t count, std::uint64_t zone_bytes, Scopes& scopes)
      : scopes_(scopes), zone_bytes_(zone_bytes), zones_(count) {}

  Zone& operator[](std::uint32_t number) { return zones_[number]; }
  const Zone& operator[](std::uint32_t number) const { return zones_[number]; }
  std::uint32_t count() const { return static_cast<std::uint32_t>(zones_.size()); }
  std::uint64_t zone_bytes() const { return zone_bytes_; }
  std::uint64_t OffsetOf(std::uint32_t zone) const { return kZonesStart + (zone * zone_bytes_); }

  std::uint32_t free() const { return CountOf(ZoneState::kFree); }
  std::uint32_t CountOf(ZoneState state) const;
  std::optional<std::uint32_t> AnyFree() const;
  // A record of this kind and scope lies in the zone from now on.
  ScopeUse& Note(std::uint32_t zone, ScopeId scope, RecordKind kind, std::uint64_t sequence);
  void AddLive(std::uint32_t zone, ScopeId scope, std::uint64_t bytes);
  void RemoveLive(std::uint32_t zone, ScopeId scope, std::uint64_t bytes);
  // The scope has ended: nothing of it is alive.
  void EndScope(ScopeId scope);
  // The zone holds nothing any more.
  void Clear(std::uint32_t zone);

  // Some zone holds an object's record of the scope: a removal needs a tombstone. A lost zone may
  // hold anything that the next start can read.
  bool Holds(ScopeId scope) const;
  // A tombstone outlives every older record of its scope in another zone.
  bool TombstoneNeeded(std::uint32_t zone, ScopeId scope, std::uint64_t sequence) const;
  bool TombstonesNeeded(std::uint32_t zone) const;
  // Live bytes, by share (disklog/shares.h); nothing where there are none.
  std::vector<std::uint64_t> HeldByShare() const;
  // The sealed zone to free next: one without live objects, else of the first class of shares.h the
  // one with the most age, counted in sequences up to `now`, for each live byte. None when no zone
  // is sealed. `held`: HeldByShare.
  std::optional<std::uint32_t> Victim(std::uint64_t now,
                                      std::span<const std::uint64_t> held = {}) const;
  enum class ShareClass : std::uint8_t { kGuaranteed, kOrdinary, kReplaced };
  ShareClass ClassOf(const Zone& zone, std::span<const std::uint64_t> held) const;
  // What the share holds is within its guarantee.
  bool Guaranteed(ShareNumber share, std::span<const std::uint64_t> held) const {
    return share < held.size() && held[share] <= scopes_.limits()[share].guaranteed_bytes;
  }

 private:
  ScopeUse* Find(std::uint32_t zone, ScopeId scope);

  Scopes& scopes_;
  const std::uint64_t zone_bytes_;
  std::vector<Zone> zones_;
};

}  // namespace kvcove::disklog
