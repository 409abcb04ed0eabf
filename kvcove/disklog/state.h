// SPDX-License-Identifier: Apache-2.0
// The state that the parts of a Log share (index, zones, scopes, counters), and the rules that keep
// these consistent. Belongs to the Log's thread.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>

#include "kvcove/base/hash.h"
#include "kvcove/disklog/device.h"
#include "kvcove/disklog/disk_index.h"
#include "kvcove/disklog/scopes.h"
#include "kvcove/disklog/zones.h"
#include "kvcove/model/disk_stat.h"

namespace kvcove::disklog {

using Counters = DiskLogCounters;

// Place of an object's record. Valid while its zone's `use` is the same: freeing a zone changes it.
struct Place {
  std::uint32_t zone = 0;
  std::uint16_t use = 0;
  std::uint32_t offset_units = 0;
  std::uint32_t record_bytes = 0;
  bool operator==(const Place&) const = default;
};

// Keeps a copy of the set of objects that Find finds, for other threads and processes. Called on
// the log's thread, once for each change. An object of a dead scope is removed when the sweep
// reaches it.
class Presence {
 public:
  virtual ~Presence() = default;
  // Adds an object. `hash`: State::HashOf. False: there is no room, and the log forgets the object.
  virtual bool Add(const Id128& hash, Generation generation) = 0;
  // Removes an object. Also called for one that Add has refused.
  virtual void Remove(const Id128& hash, Generation generation) = 0;
};

// A record that remains on the disk although its object is not found any more.
struct Forgotten {
  Id128 hash;
  std::uint64_t sequence = 0;
  SlotId slot = 0;
  Generation generation = 0;
  std::string name;
  std::string key;
  Place place;
  bool found = false;  // the object was found before, so that its end is reported
  bool copy = false;   // the index does not name it: its object ended while it was being copied
  std::function<void(const Status&)> done = {};  // may be empty; an error if the log is unproven
};

struct State {
  State(Device& device_in, Superblock superblock)
      : device(device_in),
        super(std::move(superblock)),
        zones(super.zones(), super.zone_bytes, scopes) {}

  Device& device;
  Superblock super;
  Scopes scopes;
  Zones zones;
  DiskIndex index;
  Counters counters;
  std::uint64_t next_sequence = 1;
  std::uint64_t stale = 0;     // count of index entries that ended with their zone or scope
  bool recovering = true;      // until every zone has been read; the index has tombstones meanwhile
  bool opening = true;         // until what recovery has found and left out is durable
  std::uint32_t failures = 0;  // failed writes since the last one that succeeded
  Presence* presence = nullptr;
  // Needed tombstones of which a start has found one copy (CoveredBy). The cleaner writes both.
  std::unordered_set<std::uint64_t> single_tombstones;
  // The start does not know what was removed: the disk is to be emptied (Log::Empty).
  bool emptying = false;
  // Tombstones that were written for keys without an entry; see Cleaner::Costly.
  std::uint64_t blind_tombstones = 0;
  // Writes that have ended, but those of superblocks that differ in their opening numbers alone. A
  // copy of the disk that was made after the last of them equals the disk.
  std::uint64_t changes = 0;
  bool voiding = false;  // a zone was lost, and no superblock that names it is durable yet
  std::deque<Forgotten> forgotten;  // what Forgetting writes tombstones for

  // Hashes a key with its slot: equal keys of two namespaces are two objects.
  Id128 HashOf(SlotId slot, std::string_view key) const {
    return Hash128(key, Mix64(super.hash_seed ^ slot));
  }
  // Hashes what a tombstone covers: the records of a key in one use of a zone.
  static std::uint64_t CoveredBy(const Id128& hash, std::uint64_t nonce) {
    return Mix64(hash.low ^ nonce);
  }
  // Returns the present time for IndexEntry::read_at, in 64ths of a disk of bytes put. The time
  // wraps after four disks; before that, the object's zone is freed.
  std::uint8_t ReadTime() const {
    return static_cast<std::uint8_t>(1 + (counters.put_bytes / ReadUnit() % kReadTimes));
  }
  // Returns the bytes put since the object was last read, as a fraction of the disk; none: not read
  // since it was written.
  std::optional<double> SinceRead(const IndexEntry& entry) const {
    if (entry.read_at == 0) return std::nullopt;
    const unsigned units = (ReadTime() + kReadTimes - entry.read_at) % kReadTimes;
    return static_cast<double>(units) / kReadUnits;
  }
  Place PlaceOf(const IndexEntry& entry) const {
    return {.zone = entry.zone,
            .use = entry.use,
            .offset_units = entry.offset_units,
            .record_bytes = entry.record_bytes};
  }
  // True if the entry ended with its zone or scope. Such entries remain in the index until Find or
  // Sweep reaches them, so that freeing a zone and ending a scope cost no walk over the index.
  bool Stale(const IndexEntry& entry) const {
    return zones[entry.zone].use != entry.use || scopes.dead(entry.scope);
  }
  // Returns the entry of the hash, or null. Erases a stale one.
  IndexEntry* Find(const Id128& hash) {
    IndexEntry* const entry = index.Find(hash);
    if (entry == nullptr || !Stale(*entry)) return entry;
    Drop(*entry);
    return nullptr;
  }
  // Returns the entry if the index names the record at this place and its object can be found; else
  // null. A summary also names records that were replaced, removed or forgotten.
  IndexEntry* FindAt(const Id128& hash, std::uint32_t zone, std::uint32_t offset_units) {
    IndexEntry* const entry = Find(hash);
    const bool named = entry != nullptr && !entry->forgotten && entry->zone == zone &&
                       entry->offset_units == offset_units;
    return named ? entry : nullptr;
  }
  // Makes the object found, and reports it to `presence`. False: there is no room for it there, and
  // the caller must forget it, as its record is on the disk.
  bool TellFound(IndexEntry& entry) {
    entry.pending = false;
    if (presence == nullptr || entry.kind != RecordKind::kObject) return true;
    return presence->Add(entry.id(), scopes[entry.scope].generation);
  }
  // Hides an object whose record remains. Its entry stays, and so `presence` keeps its key, until
  // the record cannot come back: an owner that stored the key again meanwhile would find the older
  // value after a crash.
  void Hide(IndexEntry& entry) {
    if (entry.forgotten) return;
    if (zones[entry.zone].use == entry.use) {
      zones.RemoveLive(entry.zone, entry.scope, entry.record_bytes);
    }
    entry.forgotten = true;
  }
  // Hides an object, and has a tombstone written for its record (Forgetting). `done` runs once that
  // is durable.
  void Forget(IndexEntry& entry, std::string_view key, std::function<void(const Status&)> done) {
    Hide(entry);
    const Scope& scope = scopes[entry.scope];
    forgotten.push_back({.hash = entry.id(),
                         .sequence = entry.sequence(),
                         .slot = scope.slot,
                         .generation = scope.generation,
                         .name = scope.name,
                         .key = std::string(key),
                         .place = PlaceOf(entry),
                         .found = !entry.pending,
                         .done = std::move(done)});
  }
  // Reports the end of an object. A pending one has not been reported as found.
  void TellGone(const IndexEntry& entry) {
    if (presence == nullptr || entry.kind != RecordKind::kObject || entry.pending) return;
    presence->Remove(entry.id(), scopes[entry.scope].generation);
  }
  // Erases an entry, and subtracts its bytes from its zone. `entry` may be the index's own: it is
  // not read any more once Erase has overwritten it.
  void Drop(const IndexEntry& entry) {
    TellGone(entry);
    if (entry.kind == RecordKind::kObject && !entry.forgotten &&
        zones[entry.zone].use == entry.use) {
      zones.RemoveLive(entry.zone, entry.scope, entry.record_bytes);
    }
    const ScopeId scope = entry.scope;
    index.Erase(entry.id());
    scopes.Unuse(scope);
  }
  // Inserts a record unless the index has a newer one, or the same, of its hash. Returns the
  // index's entry, valid until the next change of the index; null if not inserted.
  IndexEntry* Offer(const IndexEntry& entry) {
    if (const IndexEntry* const known = Find(entry.id())) {
      if (known->sequence() >= entry.sequence()) return nullptr;
      // No tombstone names the record that is replaced. (Recovery looks for one itself.)
      if (!recovering) zones.AddUncovered(known->zone);
      Drop(*known);
    }
    IndexEntry& kept = index.Insert(entry);
    scopes.Use(entry.scope);
    if (entry.kind == RecordKind::kObject) {
      zones.AddLive(entry.zone, entry.scope, entry.record_bytes);
    }
    return &kept;
  }
  // Points the entry at its copy. There is no moment in which the object is not found: `presence`
  // would report it as removed, and a put of its key would be accepted as the first one.
  void Move(IndexEntry& entry, const IndexEntry& to) {
    zones.AddUncovered(entry.zone);  // until it is freed, which a failing disk may refuse
    zones.RemoveLive(entry.zone, entry.scope, entry.record_bytes);
    entry.zone = to.zone;
    entry.use = to.use;
    entry.offset_units = to.offset_units;
    zones.AddLive(entry.zone, entry.scope, entry.record_bytes);
  }
  // Empties the zone: all index entries that name it become stale.
  void Abandon(std::uint32_t number) {
    Zone& zone = zones[number];
    stale += zone.live() + 1;  // one more: forgotten objects are not counted as live
    zones.Clear(number);
    // `use` wraps after 65,536 openings. An old entry with the same number would look alive, so all
    // stale entries are swept out at the wrap.
    if (++zone.use == 0) SweepAll();
  }
  // Has the superblock void a zone that cannot be freed. Until that is durable its objects remain
  // here, so that their keys are not stored again and the tombstones of the others are kept.
  void Lose(std::uint32_t number) {
    zones[number].state = ZoneState::kLost;
    zones.Doom(number, /*untaken=*/false);
    super.lost_zones.push_back(number);
    voiding = true;
  }
  // Ends the other scopes of the slot, and counts their live objects as voided.
  void SetGeneration(SlotId slot, Generation generation) {
    for (const ScopeId scope : scopes.SetGeneration(slot, generation)) {
      for (std::uint32_t i = 0; i < zones.count(); ++i) {
        for (const ScopeUse& use : zones[i].uses) {
          if (use.scope != scope) continue;
          stale += use.live;
          counters.voided_objects += use.live;
          counters.voided_bytes += use.live_bytes;
        }
      }
      zones.EndScope(scope);
    }
  }
  // Erases stale entries among the next `steps`, and tombstones once recovery has ended. True at
  // the end of a round.
  bool Sweep(std::uint64_t steps) {
    return index.Sweep(steps, [&](const IndexEntry& entry) {
      const bool gone = Stale(entry) || (!recovering && entry.kind == RecordKind::kTombstone);
      // DiskIndex::Sweep erases the entry, so Drop must not. The entry's zone counts it no more.
      if (gone) {
        TellGone(entry);
        scopes.Unuse(entry.scope);
      }
      return gone;
    });
  }
  // Sweeps until a whole round has been made: the first loop only ends the round that had begun.
  void SweepAll() {
    while (!Sweep(1 << 20)) {
    }
    while (!Sweep(1 << 20)) {
    }
  }

 private:
  static constexpr unsigned kReadUnits = 64;
  static constexpr unsigned kReadTimes = 255;
  std::uint64_t ReadUnit() const { return zones.count() * zones.zone_bytes() / kReadUnits; }
};

}  // namespace kvcove::disklog
