// SPDX-License-Identifier: Apache-2.0
// What the parts of a Log share: the index, the zones, the scopes and the counters, and the rules
// that keep them in step. Belongs to the Log's thread.
#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "kvcove/base/hash.h"
#include "kvcove/disklog/device.h"
#include "kvcove/disklog/disk_index.h"
#include "kvcove/disklog/scopes.h"
#include "kvcove/disklog/zones.h"

namespace kvcove::disklog {

// Since the log was opened.
struct Counters {
  std::uint64_t put_objects = 0;
  std::uint64_t put_bytes = 0;      // keys and values that callers gave
  std::uint64_t written_bytes = 0;  // that went to the device, whatever they were
  std::uint64_t padding_bytes = 0;  // of these: to a block's end, and between records
  std::uint64_t summary_bytes = 0;  // of these: summaries, headers and trailers of zones
  std::uint64_t moved_objects = 0;
  std::uint64_t moved_bytes = 0;  // records that were copied from a zone that was to be freed
  std::uint64_t tombstones = 0;
  std::uint64_t refused_full = 0;   // puts that found the write queue full
  std::uint64_t refused_space = 0;  // puts that found no free zone
  std::uint64_t write_errors = 0;
  std::uint64_t read_errors = 0;
  std::uint64_t reads = 0;
  std::uint64_t read_bytes = 0;
  std::uint64_t corrupt = 0;  // records that were not what was written
  std::uint64_t raced = 0;    // reads whose object went meanwhile
  std::uint64_t syncs = 0;
  std::uint64_t zones_freed = 0;
  std::uint64_t zones_freed_unread = 0;  // of these: nothing in them was alive
  std::uint64_t zones_sealed = 0;
  std::uint64_t dropped_objects = 0;  // live ones that went with their zone
  std::uint64_t voided_objects = 0;   // live ones whose generation ended
  std::uint64_t voided_bytes = 0;     // of their records

  // Of a log that was open before.
  Counters& operator+=(const Counters& more);
  // Bytes written for each byte that callers gave.
  double write_amplification() const {
    return put_bytes == 0 ? 0 : static_cast<double>(written_bytes) / static_cast<double>(put_bytes);
  }
};

// Where an object's record lies. It stays right until its zone is freed: `use` tells.
struct Place {
  std::uint32_t zone = 0;
  std::uint16_t use = 0;
  std::uint32_t offset_units = 0;
  std::uint32_t record_bytes = 0;
  bool operator==(const Place&) const = default;
};

// Who keeps a copy of what Find finds, for others to look at. Called on the log's thread, once for
// each change; an object that lies under a dead scope is told as gone when it is swept.
class Presence {
 public:
  virtual ~Presence() = default;
  // `hash`: State::HashOf. False: there is no room for it. The log forgets the object then.
  virtual bool Add(const Id128& hash, Generation generation) = 0;
  virtual void Remove(const Id128& hash, Generation generation) = 0;
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
  std::uint64_t stale = 0;     // index entries that may have gone with their zone or scope
  bool recovering = true;      // tombstones stay in the index until every zone has been read
  std::uint32_t failures = 0;  // writes that failed, one after the other
  Presence* presence = nullptr;

  // A slot is part of what is hashed: equal keys of two namespaces are two objects.
  Id128 HashOf(SlotId slot, std::string_view key) const {
    return Hash128(key, Mix64(super.hash_seed ^ slot));
  }
  // Now, for IndexEntry::read_at: counted in bytes put, 64 units a disk. It goes round after four
  // disks; an object's zone is freed, which forgets it, long before.
  std::uint8_t ReadTime() const {
    return static_cast<std::uint8_t>(1 + (counters.put_bytes / ReadUnit() % kReadTimes));
  }
  // Bytes put since the object was read, as a share of the disk; none: not since it was written.
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
  bool Stale(const IndexEntry& entry) const {
    return zones[entry.zone].use != entry.use || scopes.dead(entry.scope);
  }
  // The entry of the hash, or null; one that went with its zone or scope is erased here.
  IndexEntry* Find(const Id128& hash) {
    IndexEntry* const entry = index.Find(hash);
    if (entry == nullptr || !Stale(*entry)) return entry;
    Drop(*entry);
    return nullptr;
  }
  // The object can be found from now on.
  void TellFound(IndexEntry& entry) {
    entry.pending = false;
    if (presence == nullptr || entry.kind != RecordKind::kObject) return;
    if (!presence->Add(entry.id(), scopes[entry.scope].generation)) Drop(IndexEntry(entry));
  }
  void TellGone(const IndexEntry& entry) {
    if (presence == nullptr || entry.kind != RecordKind::kObject || entry.pending) return;
    presence->Remove(entry.id(), scopes[entry.scope].generation);
  }
  // Ends an entry, with its share of its zone.
  void Drop(const IndexEntry& entry) {
    TellGone(entry);
    if (entry.kind == RecordKind::kObject && zones[entry.zone].use == entry.use) {
      zones.RemoveLive(entry.zone, entry.scope, entry.record_bytes);
    }
    const ScopeId scope = entry.scope;
    index.Erase(entry.id());
    scopes.Unuse(scope);
  }
  // The newest record of a hash wins; an older one is dead from the start. True if it was taken.
  bool Offer(const IndexEntry& entry) {
    if (const IndexEntry* const known = Find(entry.id())) {
      if (known->sequence() >= entry.sequence()) return false;
      Drop(*known);
    }
    IndexEntry& kept = index.Insert(entry);
    scopes.Use(entry.scope);
    if (entry.kind == RecordKind::kObject) {
      zones.AddLive(entry.zone, entry.scope, entry.record_bytes);
    }
    if (!entry.pending) TellFound(kept);
    return true;
  }
  // The object lies where `to` says from now on. It is found all the while: in a gap, a put of its
  // key would be taken for the first one.
  void Move(IndexEntry& entry, const IndexEntry& to) {
    zones.RemoveLive(entry.zone, entry.scope, entry.record_bytes);
    entry.zone = to.zone;
    entry.use = to.use;
    entry.offset_units = to.offset_units;
    zones.AddLive(entry.zone, entry.scope, entry.record_bytes);
  }
  // The zone holds nothing any more, and no entry that names it counts. Its number is `freeing`.
  void Abandon(std::uint32_t number) {
    Zone& zone = zones[number];
    stale += zone.live();
    zones.Clear(number);
    // An entry of 65536 openings ago would look alive: nothing stale is left at a wrap.
    if (++zone.use == 0) SweepAll();
  }
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
  bool Sweep(std::uint64_t steps) {
    return index.Sweep(steps, [&](const IndexEntry& entry) {
      const bool gone = Stale(entry) || (!recovering && entry.kind == RecordKind::kTombstone);
      // Sweep erases the entry itself.
      if (gone) {
        TellGone(entry);
        scopes.Unuse(entry.scope);
      }
      return gone;
    });
  }
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
