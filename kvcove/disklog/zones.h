// SPDX-License-Identifier: Apache-2.0
// The zones of a disk, with their states and their live objects. No I/O. Not thread-safe; belongs
// to the Log's thread.
//
//   free -> open -> sealing -> sealed -> cleaning -> freeing -> free
//                                                        \-> lost (the superblock voids it)
//
// A sealed zone has no summary if that could not be written. A zone is freed on the disk before it
// is opened again; tombstones that cover its records are kept until then.
//
// Which tombstones are needed. A tombstone names the nonce of the zone with the record that it
// covers, and is needed while that use of the zone lasts. Records end without a tombstone in two
// ways: a newer record of the key replaces them, and the cleaner copies them. Such a zone is
// `uncovered`: while it is in use, every younger tombstone of its scopes is needed, too.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <unordered_set>
#include <vector>

#include "kvcove/disklog/scopes.h"

namespace kvcove::disklog {

enum class ZoneState : std::uint8_t { kFree, kOpen, kSealing, kSealed, kCleaning, kFreeing, kLost };

// Returns the bytes of a tombstone with its part of its zone's summary.
inline std::uint64_t TombstoneBytes(std::size_t name_bytes, std::size_t key_bytes) {
  return AlignUp(kRecordHeadBytes + name_bytes + key_bytes, kUnitBytes) + kSummaryEntryBytes +
         key_bytes;
}

// The records of one scope in a zone, dead or alive.
struct ScopeUse {
  ScopeId scope = 0;
  std::uint32_t live = 0;  // objects
  std::uint64_t live_bytes = 0;
  std::uint64_t first_object = ~0ULL;  // lowest sequence of an object's record; ~0: none
  std::uint64_t last_tombstone = 0;    // highest sequence of a tombstone; 0: none
  std::uint64_t tombstone_bytes = 0;   // of all tombstones, with their part of the summary
  std::map<std::uint64_t, std::uint64_t> covers;  // bytes of needed ones, by the nonce they name
};

struct Zone {
  ZoneState state = ZoneState::kFree;
  std::uint8_t stream = 0;
  bool brief = false;     // its objects are not worth much: freed at a quarter of the age
  std::uint16_t use = 0;  // number of times that it was emptied; wraps (State::Abandon)
  std::uint64_t nonce = 0;
  std::uint64_t records_end = 0;   // bytes from the zone's start
  std::uint64_t opened_at = 0;     // sequence when it was opened, for its age
  std::uint32_t reads = 0;         // in flight; it is neither chosen as victim nor opened meanwhile
  bool summarized = false;         // its summary is on the disk
  std::uint32_t uncovered = 0;     // records that may have ended in it without a tombstone
  std::uint8_t free_failures = 0;  // failed attempts to free it
  bool doomed = false;      // it must be freed: it may have records that the index does not know
  bool untaken = false;     // doomed, and its records are not known: any tombstone may cover one
  bool unreadable = false;  // needed tombstones could not be read: it stays until none is needed
  ZoneTrailer trailer;      // place of its summary, if `summarized`
  std::vector<ScopeUse> uses;

  std::uint64_t live_bytes() const {
    std::uint64_t bytes = 0;
    for (const ScopeUse& use : uses) bytes += use.live_bytes;
    return bytes;
  }
  std::uint64_t tombstone_bytes() const {
    std::uint64_t bytes = 0;
    for (const ScopeUse& use : uses) bytes += use.tombstone_bytes;
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

  // Returns a sealed zone that is uncovered, and that nobody reads.
  std::optional<std::uint32_t> AnyUncovered() const;
  std::uint32_t free() const { return CountOf(ZoneState::kFree); }
  // Returns the number of free zones that nobody reads, so that they can be opened.
  std::uint32_t openable() const;
  // Has zones that could not be read tried again.
  void ReadAgain();
  std::uint32_t CountOf(ZoneState state) const;
  std::optional<std::uint32_t> AnyFree() const;
  // Notes that a record ended in the zone without a tombstone, or that it has one after all.
  void AddUncovered(std::uint32_t zone);
  void RemoveUncovered(std::uint32_t zone);
  // Has the cleaner free the zone, whatever it holds. `untaken`: its records are not known.
  void Doom(std::uint32_t zone, bool untaken);
  // Ties the zone to the nonce of its present use.
  void SetNonce(std::uint32_t zone, std::uint64_t nonce);
  // Notes that the zone holds an object's record, or a tombstone of `bytes` that names a nonce.
  void NoteObject(std::uint32_t zone, ScopeId scope, std::uint64_t sequence);
  void NoteTombstone(std::uint32_t zone, ScopeId scope, std::uint64_t sequence,
                     std::uint64_t covers, std::uint64_t bytes);
  // Counts a live object; Note must have been called for its record. Ignored if the scope is dead.
  void AddLive(std::uint32_t zone, ScopeId scope, std::uint64_t bytes);
  void RemoveLive(std::uint32_t zone, ScopeId scope, std::uint64_t bytes);
  // Counts all objects of a scope as dead.
  void EndScope(ScopeId scope);
  // Forgets the zone's records.
  void Clear(std::uint32_t zone);

  // True if an uncovered zone may have a record of the scope that is older than `sequence`.
  bool Uncovered(ScopeId scope, std::uint64_t sequence = ~0ULL) const;
  // True while a record that the tombstone covers may be on the disk: the tombstone must not be
  // freed before that record.
  bool TombstoneNeeded(ScopeId scope, std::uint64_t covers, std::uint64_t sequence) const;
  // Returns the bytes of the zone's needed tombstones, with their part of the summary.
  std::uint64_t NeededBytes(std::uint32_t zone) const;
  // True if the zone has nothing that must be kept.
  bool Dead(std::uint32_t zone) const { return zones_[zone].live() == 0 && NeededBytes(zone) == 0; }
  bool AnyDoomed() const {
    return std::ranges::any_of(zones_, [](const Zone& zone) { return zone.doomed; });
  }
  // Returns the live bytes of each share (disklog/shares.h); empty if there are no shares.
  std::vector<std::uint64_t> HeldByShare() const;
  // Returns the sealed zone to free next: a doomed or a dead one; otherwise, of the first class of
  // shares.h, the one with the highest age for each byte to keep, counted in sequences up to `now`.
  // None if no sealed zone would give space: tombstones move, and one of which they take half gives
  // too little. A doomed zone of tombstones comes before lost ones: its tombstones have no twin,
  // and if it were lost, too, the next start would not know of the first loss any more. `held`:
  // HeldByShare().
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
  ScopeUse& Use(std::uint32_t zone, ScopeId scope);

  Scopes& scopes_;
  const std::uint64_t zone_bytes_;
  std::vector<Zone> zones_;
  std::unordered_set<std::uint64_t> nonces_;  // of zones in use
  std::uint32_t uncovered_ = 0;               // zones that are uncovered or untaken
};

}  // namespace kvcove::disklog
