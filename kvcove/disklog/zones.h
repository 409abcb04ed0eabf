// SPDX-License-Identifier: Apache-2.0
// The zones of a disk, with their states and their live objects. No I/O. Not thread-safe; belongs
// to the Log's thread.
//
//   free -> open -> sealing -> sealed -> cleaning -> freeing -> free
//                                          \-> lost (set aside until the next start)
//
// A sealed zone has no summary if that could not be written. A zone is freed on the disk before it
// is opened again; tombstones that cover its records are kept until then.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "kvcove/disklog/scopes.h"

namespace kvcove::disklog {

enum class ZoneState : std::uint8_t { kFree, kOpen, kSealing, kSealed, kCleaning, kFreeing, kLost };

// The records of one scope in a zone, dead or alive.
struct ScopeUse {
  ScopeId scope = 0;
  std::uint32_t live = 0;  // objects
  std::uint64_t live_bytes = 0;
  std::uint64_t first_object = ~0ULL;  // lowest sequence of an object's record; ~0: none
  std::uint64_t last_tombstone = 0;    // highest sequence of a tombstone; 0: none
};

struct Zone {
  ZoneState state = ZoneState::kFree;
  std::uint8_t stream = 0;
  bool brief = false;     // its objects are not worth much: freed at a quarter of the age
  std::uint16_t use = 0;  // number of times that it was emptied; wraps (State::Abandon)
  std::uint64_t nonce = 0;
  std::uint64_t records_end = 0;  // bytes from the zone's start
  std::uint64_t opened_at = 0;    // sequence when it was opened, for its age
  std::uint32_t reads = 0;        // in flight; it is neither chosen as victim nor opened meanwhile
  bool summarized = false;        // its summary is on the disk
  ZoneTrailer trailer;            // place of its summary, if `summarized`
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
  // Notes that the zone holds a record of this kind and scope.
  ScopeUse& Note(std::uint32_t zone, ScopeId scope, RecordKind kind, std::uint64_t sequence);
  // Counts a live object; Note must have been called for its record. Ignored if the scope is dead.
  void AddLive(std::uint32_t zone, ScopeId scope, std::uint64_t bytes);
  void RemoveLive(std::uint32_t zone, ScopeId scope, std::uint64_t bytes);
  // Counts all objects of a scope as dead.
  void EndScope(ScopeId scope);
  // Forgets the zone's records.
  void Clear(std::uint32_t zone);

  // True if some zone holds an object's record of the scope, dead or alive: then a removal needs a
  // tombstone. Also true while a zone is lost: the next start may be able to read any record there.
  bool Holds(ScopeId scope) const;
  // True while another zone holds an older object's record of the scope: the tombstone must not be
  // freed before that record.
  bool TombstoneNeeded(std::uint32_t zone, ScopeId scope, std::uint64_t sequence) const;
  bool TombstonesNeeded(std::uint32_t zone) const;
  // Returns the live bytes of each share (disklog/shares.h); empty if there are no shares.
  std::vector<std::uint64_t> HeldByShare() const;
  // Returns the sealed zone to free next: one without live objects; otherwise, of the first class
  // of shares.h, the one with the highest age for each live byte, counted in sequences up to `now`.
  // None if no zone is sealed. `held`: HeldByShare().
  std::optional<std::uint32_t> Victim(std::uint64_t now,
                                      std::span<const std::uint64_t> held = {}) const;
  enum class ShareClass : std::uint8_t { kGuaranteed, kOrdinary, kReplaced };
  ShareClass ClassOf(const Zone& zone, std::span<const std::uint64_t> held) const;
  // True if the share holds no more than its guarantee.
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
