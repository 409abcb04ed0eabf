// SPDX-License-Identifier: Apache-2.0
// Maps keys to the owners that hold them: soft state, rebuilt from the owners at any time. A key is
// known by its 128-bit DirectoryHash; the owner compares whole keys. Needs a lock.
//
// An entry counts under its owner's current epoch and its slot's current generation. 40 bytes an
// entry in open-addressed shards that grow one by one, so that no call waits for the whole table.
//
// One value a key. A listing is refused while a present owner holds another value. The entry of an
// absent owner (dead, frozen, cut off) blocks no listing; but that owner may return and list its
// inventory, long after the new value was evicted. Readers would then see the old value after the
// new one. So the entry is kept, as superseded, until its owner has listed its inventory again, and
// refuses that value then.
//
// A hash belongs to a slot, and a slot to one tenant. XXH3 can be inverted for short keys, so a
// tenant can find a key with the hash of another tenant's key: nothing here compares hashes alone,
// and positions are derived with a secret.
#pragma once

#include <bitset>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "kvcove/base/random.h"
#include "kvcove/master/control/standings.h"
#include "kvcove/wire/cluster.h"
#include "kvcove/wire/shards.h"

namespace kvcove::master {

class Directory {
 public:
  explicit Directory(Standings& standings);

  // Lists an owner's value. Returns kOk; kExists when another owner holds another value of the key,
  // or another value replaced this one while its owner was away; kStale for an old generation;
  // kInProgress when it would replace a value of an absent owner whose slot has no barrier yet
  // (Standings::GivesWay): these are added to `to_bar`; kLimit when it needs a new entry and
  // `may_grow` is false.
  Code List(const wire::ListItem& item, wire::OwnerNumber owner, std::uint32_t epoch,
            std::vector<std::pair<wire::OwnerNumber, SlotId>>& to_bar, bool may_grow = true);
  // Removes the owner's entry of the key, if it is of this group (0: any): the owner may have
  // listed another value since. Returns the value's group; nothing when no entry that counts was
  // removed.
  std::optional<std::uint32_t> Unlist(SlotId slot, const Id128& hash, wire::OwnerNumber owner,
                                      std::uint32_t group = 0);
  // Removes all entries of the key with this generation (0: any). Returns true if there was one at
  // an owner that is present or may return with it.
  bool Remove(SlotId slot, const Id128& hash, Generation generation = 0);
  // Returns up to two owners of the key that are live at `now_ns` (Standings::NowNs, read once for
  // a batch), or the reason why there is none.
  wire::Place Find(SlotId slot, const Id128& hash, std::int64_t now_ns) const;
  wire::Place Find(SlotId slot, const Id128& hash) const {
    return Find(slot, hash, standings_.NowNs());
  }
  // Prefetches the first entries that Find will read into the cache.
  void Prefetch(const Id128& hash) const;
  using Holder = std::pair<wire::OwnerNumber, Tier>;
  // Appends all owners of the key that are live at `now_ns`, and the tier in which each has it.
  void AddHolders(SlotId slot, const Id128& hash, std::int64_t now_ns,
                  std::vector<Holder>& to) const;
  // Returns all live owners of the key, and the tier in which each has it.
  std::vector<Holder> TiersOf(SlotId slot, const Id128& hash) const;
  std::vector<wire::OwnerNumber> HoldersOf(SlotId slot, const Id128& hash) const;

  // Returns a number for a key in its slot that no caller outside can predict.
  std::uint64_t Tag(SlotId slot, const Id128& hash) const {
    return Mix64(hash.low ^ Mix64(hash.high ^ Mix64(secret_ ^ slot)));
  }

  std::uint64_t entries() const { return entries_; }
  // Returns the slot's entries. Includes dead ones, of earlier generations and of owners that have
  // ended, until a sweep.
  std::uint64_t EntriesOf(SlotId slot) const { return of_slot_[slot].entries; }
  // Returns the slot's entries of its current generation. Includes those of owners that have ended,
  // until a sweep.
  std::uint64_t CurrentOf(SlotId slot) const;
  // Returns the bytes of the slot's values of its current generation, each copy by itself. Includes
  // those of owners that have ended, until a sweep.
  std::uint64_t BytesOf(SlotId slot) const;
  // Removes unneeded entries from the next part of the table; `kShards` calls sweep all of it.
  void SweepNext();
  static constexpr std::size_t kShards = 1024;
  std::uint64_t bytes() const;

  // ---- slices that move to another shard (docs/ha.md), one part of the table at a time
  using Slices = std::bitset<wire::kSlices>;
  // Adds the needed entries of these slices in one part of the table. `number`: below kShards.
  void CopySlices(std::size_t number, const Slices& slices,
                  std::vector<wire::ShardEntry>& to) const;
  // Adds an entry, or replaces the owner's entry of the key.
  void LoadEntry(const wire::ShardEntry& entry);
  void ForgetSlices(std::size_t number, const Slices& slices);

 private:
  struct Shard;
  struct Entry {
    Id128 hash;
    std::uint32_t size_bytes : 29 = 0;
    std::uint32_t tier : 3 = 0;
    std::uint32_t epoch = 0;  // 0: free
    std::uint32_t group = 0;
    std::uint32_t generation_low = 0;
    wire::OwnerNumber owner : 15 = 0;  // below kMaxOwners
    std::uint16_t superseded : 1 = 0;
    SlotId slot = 0;
    std::uint32_t generation_high = 0;
    Generation generation() const { return (Generation{generation_high} << 32) | generation_low; }
  };
  static_assert(sizeof(Entry) == 40);
  static_assert(kMaxObjectBytes < 1U << 29);
  static_assert(kTiers <= 1U << 3);
  static_assert(wire::kMaxOwners <= 1 << 15);
  static constexpr std::size_t kGhosts = 1 << 16;

  // Returns the part of a hash. A secret hides it, so that chosen keys cannot crowd one part.
  std::size_t ShardNumber(const Id128& hash) const { return Mix64(hash.high ^ secret_) % kShards; }
  Shard& ShardOf(const Id128& hash);
  const Shard& ShardOf(const Id128& hash) const;
  // Returns the first place for a hash in a part with `room` places, a power of two.
  std::size_t HomeOf(const Id128& hash, std::size_t room) const {
    return Mix64(hash.low ^ secret_) & (room - 1);
  }
  static std::size_t Next(std::size_t at, std::size_t room) { return (at + 1) & (room - 1); }
  bool Counts(const Entry& entry) const;
  // Returns true if the entry counts, or is needed to refuse a value that its owner may list again.
  bool Needed(const Entry& entry) const;
  // Returns true if the owner may show the value, now or when it returns.
  bool Stands(const Entry& entry) const;
  // Returns kExists if the entry blocks `item`, kInProgress if its owner must be barred first.
  // Marks an absent owner as overtaken before its value is replaced.
  Code Blocks(const Entry& entry, const wire::ListItem& item,
              std::vector<std::pair<wire::OwnerNumber, SlotId>>& to_bar);
  void Supersede(Shard& shard, const wire::ListItem& item, wire::OwnerNumber owner);
  // Removes unneeded entries, and makes room for `more`.
  void Sweep(Shard& shard, std::size_t more);
  // Counts an entry that was added (`sign` 1) or removed (-1).
  void Count(const Entry& entry, int sign);
  void Erase(Shard& shard, std::size_t at);
  void Remember(SlotId slot, const Id128& hash, MissReason reason);
  // Returns the miss reason for an entry whose owner cannot be read.
  MissReason WhyAway(const Entry& entry, std::int64_t now_ns) const;
  // Returns why the key was removed lately, if that is remembered; else kNeverPut.
  MissReason LastReason(SlotId slot, const Id128& hash) const;

  Standings& standings_;
  std::uint64_t secret_ = RandomU64();
  std::vector<Shard> shards_;
  std::uint64_t entries_ = 0;
  // Counts of a slot's entries. Bytes are those of one generation, the latest that was listed: the
  // entries of earlier ones may remain for long, and nobody can read their values.
  struct OfSlot {
    std::uint32_t entries = 0;
    std::uint32_t current = 0;  // of these, those of `generation`; `bytes`: of their values
    Generation generation = 0;
    std::uint64_t bytes = 0;
  };
  std::vector<OfSlot> of_slot_ = std::vector<OfSlot>(kMaxSlots);
  std::size_t swept_ = 0;
  // Why keys were removed lately: a hint for misses, which a later one of the same place replaces.
  struct Ghost {
    std::uint32_t tag = 0;
    MissReason reason = MissReason::kNone;
  };
  std::vector<Ghost> ghosts_;
};

struct Directory::Shard {
  std::vector<Entry> entries;
  std::size_t used = 0;
  // True if some key may have several entries; each sweep computes it anew. False: a search ends at
  // the first live entry.
  bool several = false;
};

inline Directory::Shard& Directory::ShardOf(const Id128& hash) {
  return shards_[ShardNumber(hash)];
}
inline const Directory::Shard& Directory::ShardOf(const Id128& hash) const {
  return shards_[ShardNumber(hash)];
}

inline void Directory::Prefetch(const Id128& hash) const {
  const Shard& shard = ShardOf(hash);
  if (shard.entries.empty()) return;
  const Entry* home = &shard.entries[HomeOf(hash, shard.entries.size())];
  __builtin_prefetch(home);
  // Half of all entries reach into the next cache line, and a search continues there.
  __builtin_prefetch(reinterpret_cast<const std::byte*>(home) + 64);
}

}  // namespace kvcove::master
