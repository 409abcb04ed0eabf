// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/directory/directory.h"

namespace kvcove::master {
namespace {

constexpr std::size_t kFirstEntries = 16;

}  // namespace

Directory::Directory(Standings& standings)
    : standings_(standings), shards_(kShards), ghosts_(kGhosts) {}

bool Directory::Counts(const Entry& entry) const {
  return entry.superseded == 0 && standings_.EpochIs(entry.owner, entry.epoch) &&
         standings_.Current(entry.slot, entry.generation());
}

bool Directory::Needed(const Entry& entry) const {
  return Counts(entry) || (standings_.Current(entry.slot, entry.generation()) &&
                           standings_.MayListAgain(entry.owner, entry.epoch));
}

bool Directory::Stands(const Entry& entry) const {
  if (entry.superseded != 0 || !Needed(entry)) return false;
  // No reader gets objects of a disk that is set aside. If the owner lists one again, it is the
  // older value and is refused.
  return standings_.EpochIs(entry.owner, entry.epoch) ||
         static_cast<Tier>(entry.tier) != Tier::kDisk || !standings_.DiskAway(entry.owner);
}

Code Directory::Blocks(const Entry& entry, const wire::ListItem& item,
                       std::vector<std::pair<wire::OwnerNumber, SlotId>>& to_bar) {
  if (entry.group == item.group || !Stands(entry)) return Code::kOk;
  // A value from an inventory may be the older one: its owner was away, or another master led, when
  // the other value was listed. So it replaces no value, even one of an absent owner.
  if (item.inventory) return Code::kExists;
  switch (standings_.GivesWay(entry.owner, entry.slot, entry.epoch)) {
    case Standings::Way::kYes:
      return Code::kOk;
    case Standings::Way::kNo:
      return Code::kExists;
    case Standings::Way::kAsk:
      break;
  }
  to_bar.emplace_back(entry.owner, entry.slot);
  return Code::kInProgress;
}

void Directory::Remember(SlotId slot, const Id128& hash, MissReason reason) {
  const std::uint64_t tag = Tag(slot, hash);
  ghosts_[tag % kGhosts] = {.tag = static_cast<std::uint32_t>(tag >> 32), .reason = reason};
}

void Directory::SweepNext() { Sweep(shards_[swept_++ % kShards], 0); }

void Directory::Count(const Entry& entry, int sign) {
  OfSlot& slot = of_slot_[entry.slot];
  entries_ += sign;
  slot.entries += sign;
  if (entry.generation() != slot.generation) {
    // A generation ends when another one is current, so a current one that is not the counted one
    // is its successor.
    if (sign < 0 || !standings_.Current(entry.slot, entry.generation())) return;
    slot.generation = entry.generation();
    slot.current = 0;
    slot.bytes = 0;
  }
  // An entry that was loaded before its generation was current here has not been counted.
  slot.current += sign > 0 ? 1 : slot.current > 0 ? -1 : 0;
  slot.bytes = sign > 0 ? slot.bytes + entry.size_bytes
                        : slot.bytes - std::min<std::uint64_t>(slot.bytes, entry.size_bytes);
}

std::uint64_t Directory::CurrentOf(SlotId slot) const {
  const OfSlot& of = of_slot_[slot];
  return standings_.Current(slot, of.generation) ? of.current : 0;
}

std::uint64_t Directory::BytesOf(SlotId slot) const {
  const OfSlot& of = of_slot_[slot];
  return standings_.Current(slot, of.generation) ? of.bytes : 0;
}

// Moves the needed entries into a new table: of the same room when enough entries are dead, else of
// twice that.
void Directory::Sweep(Shard& shard, std::size_t more) {
  if (shard.entries.empty() && more == 0) return;
  std::vector<Entry> old;
  old.swap(shard.entries);
  std::size_t needed = 0;
  for (Entry& entry : old) {
    if (entry.epoch == 0) continue;
    if (Needed(entry)) {
      ++needed;
      continue;
    }
    // Once the entry is removed, a later miss could not be blamed on the disk (WhyAway).
    if (static_cast<Tier>(entry.tier) == Tier::kDisk && standings_.DiskAway(entry.owner)) {
      Remember(entry.slot, entry.hash, MissReason::kDiskFailed);
    }
    entry.epoch = 0;
    Count(entry, -1);
  }
  std::size_t room = std::max(kFirstEntries, old.size());
  while (more > 0 && needed * 2 > room) room *= 2;
  shard.entries.resize(room);
  shard.used = 0;
  shard.several = false;
  for (const Entry& entry : old) {
    if (entry.epoch == 0) continue;
    std::size_t at = HomeOf(entry.hash, room);
    for (; shard.entries[at].epoch != 0; at = Next(at, room)) {
      const Entry& other = shard.entries[at];
      shard.several |= other.hash == entry.hash && other.slot == entry.slot;
    }
    shard.entries[at] = entry;
    ++shard.used;
  }
}

// Closes the gap: a search ends at the first free entry, so a gap would hide later entries of the
// same run. An entry moves into the hole unless its home is after the hole.
void Directory::Erase(Shard& shard, std::size_t at) {
  const std::size_t room = shard.entries.size();
  --shard.used;
  Count(shard.entries[at], -1);
  std::size_t hole = at;
  for (std::size_t next = Next(at, room); shard.entries[next].epoch != 0; next = Next(next, room)) {
    const std::size_t home = HomeOf(shard.entries[next].hash, room);
    const bool reachable =
        hole <= next ? (home > hole && home <= next) : (home > hole || home <= next);
    if (reachable) continue;
    shard.entries[hole] = shard.entries[next];
    hole = next;
  }
  shard.entries[hole] = {};
}

Code Directory::List(const wire::ListItem& item, wire::OwnerNumber owner, std::uint32_t epoch,
                     std::vector<std::pair<wire::OwnerNumber, SlotId>>& to_bar, bool may_grow) {
  if (!standings_.Current(item.slot, item.generation)) return Code::kStale;
  Shard& shard = ShardOf(item.hash);
  // Never full: every search runs until a free entry. All entries of the key are checked before any
  // changes, so a refusal leaves the table as it was.
  if ((shard.used + 1) * 100 > shard.entries.size() * 85) Sweep(shard, 1);
  const std::size_t room = shard.entries.size();
  std::size_t at = HomeOf(item.hash, room);
  Entry* own = nullptr;
  bool several = false;
  bool others = false;
  for (; shard.entries[at].epoch != 0; at = Next(at, room)) {
    Entry& entry = shard.entries[at];
    if (entry.hash != item.hash || entry.slot != item.slot) continue;
    if (entry.owner == owner) {
      // Another value replaced this one while the owner was away.
      if (entry.superseded != 0 && entry.group == item.group &&
          entry.generation() == item.generation) {
        return Code::kExists;
      }
      own = &entry;
      continue;
    }
    several = true;
    if (const Code blocked = Blocks(entry, item, to_bar); blocked != Code::kOk) return blocked;
    others = others || entry.group != item.group;
  }
  if (own == nullptr && !may_grow) return Code::kLimit;
  if (others) Supersede(shard, item, owner);
  if (own == nullptr) {
    own = &shard.entries[at];
    ++shard.used;
    shard.several |= several;
  } else {
    Count(*own, -1);
  }
  *own = {.hash = item.hash,
          .size_bytes = item.size_bytes,
          .tier = static_cast<std::uint32_t>(item.tier),
          .epoch = epoch,
          .group = item.group,
          .generation_low = static_cast<std::uint32_t>(item.generation),
          .owner = owner,
          .superseded = 0,
          .slot = item.slot,
          .generation_high = static_cast<std::uint32_t>(item.generation >> 32)};
  Count(*own, 1);
  return Code::kOk;
}

// Marks the other values of the key, none of which blocked the item (Blocks).
void Directory::Supersede(Shard& shard, const wire::ListItem& item, wire::OwnerNumber owner) {
  const std::size_t room = shard.entries.size();
  for (std::size_t at = HomeOf(item.hash, room); shard.entries[at].epoch != 0;
       at = Next(at, room)) {
    Entry& entry = shard.entries[at];
    if (entry.hash == item.hash && entry.slot == item.slot && entry.owner != owner &&
        entry.group != item.group) {
      entry.superseded = 1;
    }
  }
}

std::optional<std::uint32_t> Directory::Unlist(SlotId slot, const Id128& hash,
                                               wire::OwnerNumber owner, std::uint32_t group) {
  Shard& shard = ShardOf(hash);
  if (shard.entries.empty()) return std::nullopt;
  const std::size_t room = shard.entries.size();
  for (std::size_t at = HomeOf(hash, room); shard.entries[at].epoch != 0; at = Next(at, room)) {
    const Entry& entry = shard.entries[at];
    if (entry.hash != hash || entry.slot != slot || entry.owner != owner) continue;
    if (group != 0 && entry.group != group) return std::nullopt;
    const std::optional<std::uint32_t> went =
        Counts(entry) ? std::optional(entry.group) : std::nullopt;
    Remember(slot, hash, MissReason::kEvicted);
    Erase(shard, at);
    return went;
  }
  return std::nullopt;
}

bool Directory::Remove(SlotId slot, const Id128& hash, Generation generation) {
  Shard& shard = ShardOf(hash);
  if (shard.entries.empty()) return false;
  bool any = false;
  const std::size_t room = shard.entries.size();
  for (std::size_t at = HomeOf(hash, room); shard.entries[at].epoch != 0;) {
    const Entry& entry = shard.entries[at];
    if (entry.hash == hash && entry.slot == slot &&
        (generation == 0 || entry.generation() == generation)) {
      any = any || Stands(entry);
      Remember(slot, hash, MissReason::kRemoved);
      Erase(shard, at);  // which may have moved another entry here
    } else {
      at = Next(at, room);
    }
  }
  return any;
}

MissReason Directory::LastReason(SlotId slot, const Id128& hash) const {
  const std::uint64_t tag = Tag(slot, hash);
  const Ghost& ghost = ghosts_[tag % kGhosts];
  return ghost.tag == static_cast<std::uint32_t>(tag >> 32) && ghost.reason != MissReason::kNone
             ? ghost.reason
             : MissReason::kNeverPut;
}

// The owner does not list objects of a disk in the epoch that begins when the disk is set aside.
MissReason Directory::WhyAway(const Entry& entry, std::int64_t now_ns) const {
  const bool on_disk = static_cast<Tier>(entry.tier) == Tier::kDisk;
  return on_disk && standings_.LiveAt(entry.owner, now_ns) && standings_.DiskAway(entry.owner)
             ? MissReason::kDiskFailed
             : MissReason::kOwnerGone;
}

wire::Place Directory::Find(SlotId slot, const Id128& hash, std::int64_t now_ns) const {
  const Shard& shard = ShardOf(hash);
  wire::Place place;
  if (shard.entries.empty()) {
    place.reason = LastReason(slot, hash);
    return place;
  }
  const std::size_t room = shard.entries.size();
  for (std::size_t at = HomeOf(hash, room); shard.entries[at].epoch != 0; at = Next(at, room)) {
    const Entry& entry = shard.entries[at];
    if (entry.hash != hash || entry.slot != slot || entry.superseded != 0) continue;
    if (!standings_.Current(entry.slot, entry.generation())) {
      // The search continues: another owner may have a value of the current generation.
      if (place.owner == wire::kNoOwner && place.reason == MissReason::kNone) {
        place.reason = MissReason::kReset;
      }
      continue;
    }
    if (!standings_.EpochIs(entry.owner, entry.epoch) || !standings_.LiveAt(entry.owner, now_ns) ||
        standings_.Hidden(entry.owner, slot)) {
      if (place.owner == wire::kNoOwner) place.reason = WhyAway(entry, now_ns);
      continue;
    }
    if (place.owner != wire::kNoOwner) {
      place.second = entry.owner;
      break;
    }
    place.owner = entry.owner;
    place.size_bytes = entry.size_bytes;
    place.tier = static_cast<Tier>(entry.tier);
    place.reason = MissReason::kNone;
    if (!shard.several) break;  // no key of this part has a second entry
  }
  if (place.owner == wire::kNoOwner && place.reason == MissReason::kNone) {
    place.reason = LastReason(slot, hash);
  }
  return place;
}

void Directory::AddHolders(SlotId slot, const Id128& hash, std::int64_t now_ns,
                           std::vector<Holder>& to) const {
  const Shard& shard = ShardOf(hash);
  if (shard.entries.empty()) return;
  const std::size_t room = shard.entries.size();
  for (std::size_t at = HomeOf(hash, room); shard.entries[at].epoch != 0; at = Next(at, room)) {
    const Entry& entry = shard.entries[at];
    if (entry.hash == hash && entry.slot == slot && Counts(entry) &&
        standings_.LiveAt(entry.owner, now_ns) && !standings_.Hidden(entry.owner, slot)) {
      to.emplace_back(entry.owner, static_cast<Tier>(entry.tier));
      if (!shard.several) return;  // no key of this part has a second entry
    }
  }
}

std::vector<Directory::Holder> Directory::TiersOf(SlotId slot, const Id128& hash) const {
  std::vector<Holder> holders;
  AddHolders(slot, hash, standings_.NowNs(), holders);
  return holders;
}

std::vector<wire::OwnerNumber> Directory::HoldersOf(SlotId slot, const Id128& hash) const {
  std::vector<wire::OwnerNumber> holders;
  for (const auto& [owner, tier] : TiersOf(slot, hash)) holders.push_back(owner);
  return holders;
}

std::uint64_t Directory::bytes() const {
  std::uint64_t bytes = ghosts_.size() * sizeof(Ghost) + shards_.size() * sizeof(Shard);
  for (const Shard& shard : shards_) bytes += shard.entries.capacity() * sizeof(Entry);
  return bytes;
}

// ---- slices that move to another shard

void Directory::CopySlices(std::size_t number, const Slices& slices,
                           std::vector<wire::ShardEntry>& to) const {
  for (const Entry& entry : shards_[number].entries) {
    if (entry.epoch == 0 || !slices[wire::SliceOf(entry.hash)] || !Needed(entry)) continue;
    to.push_back({.hash = entry.hash,
                  .generation = entry.generation(),
                  .size_bytes = entry.size_bytes,
                  .group = entry.group,
                  .slot = entry.slot,
                  .tier = static_cast<Tier>(entry.tier),
                  .owner = entry.owner,
                  .epoch = entry.epoch,
                  .superseded = entry.superseded != 0});
  }
}

void Directory::LoadEntry(const wire::ShardEntry& from) {
  Shard& shard = ShardOf(from.hash);
  if ((shard.used + 1) * 100 > shard.entries.size() * 85) Sweep(shard, 1);
  const std::size_t room = shard.entries.size();
  std::size_t at = HomeOf(from.hash, room);
  bool several = false;
  for (; shard.entries[at].epoch != 0; at = Next(at, room)) {
    const Entry& entry = shard.entries[at];
    if (entry.hash != from.hash || entry.slot != from.slot) continue;
    if (entry.owner == from.owner) break;
    several = true;
  }
  if (shard.entries[at].epoch == 0) {
    ++shard.used;
    shard.several |= several;
  } else {
    Count(shard.entries[at], -1);
  }
  shard.entries[at] = {.hash = from.hash,
                       .size_bytes = from.size_bytes,
                       .tier = static_cast<std::uint32_t>(from.tier),
                       .epoch = from.epoch,
                       .group = from.group,
                       .generation_low = static_cast<std::uint32_t>(from.generation),
                       .owner = from.owner,
                       .superseded = static_cast<std::uint16_t>(from.superseded ? 1 : 0),
                       .slot = from.slot,
                       .generation_high = static_cast<std::uint32_t>(from.generation >> 32)};
  Count(shard.entries[at], 1);
}

void Directory::ForgetSlices(std::size_t number, const Slices& slices) {
  Shard& shard = shards_[number];
  bool any = false;
  for (Entry& entry : shard.entries) {
    if (entry.epoch == 0 || !slices[wire::SliceOf(entry.hash)]) continue;
    // No generation is 0, so the entry is not needed, and the sweep below removes it. Its bytes are
    // counted under the generation that it has now.
    Count(entry, -1);
    entry.generation_low = entry.generation_high = 0;
    Count(entry, 1);
    any = true;
  }
  if (any) Sweep(shard, 0);
}

}  // namespace kvcove::master
