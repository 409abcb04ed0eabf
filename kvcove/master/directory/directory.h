// SPDX-License-Identifier: Apache-2.0
// Which owner holds which key: soft state, rebuilt from the owners at any time. Keys are known by
// their 128-bit DirectoryHash; the owner compares whole keys. Needs a lock.
//
// An entry counts under its owner's current epoch and its slot's current generation. 40 bytes an
// entry in open-addressed shards that grow one by one, so that no call waits for the whole table.
//
// One value a key. A listing is refused while another owner that may be asked holds another value.
// The entry of an owner that nobody hears of (dead, frozen, cut off) blocks nothing; but that owner
// may come back and tell its inventory, long after the new value was evicted. Readers would then
// see the old value after the new one. So the entry is kept, as superseded, until its owner has
// told its inventory again, and refuses that value then.
//
// A hash belongs to a slot, and a slot to one tenant. XXH3 can be inverted for short keys, so a
// tenant can find a key with the hash of another tenant's key: nothing here compares hashes alone,
// and positions are derived with a secret.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kvcove/base/carry.h"
#include "kvcove/base/random.h"
#include "kvcove/master/control/standings.h"
#include "kvcove/wire/cluster.h"
#include "kvcove/wire/shards.h"

namespace kvcove::master {

class Directory {
 public:
  explicit Directory(Standings& standings);

  // kOk; kExists when another owner holds another value of the key, or another value took this
  // one's place while its owner was away; kStale for an old generation; kInProgress when the value
  // of an absent owner would give way that is not barred from bringing it back (Standings): it is
  // added to `to_bar`; kLimit when it needs one more entry and must not have it.
  Code List(const wire::ListItem& item, wire::OwnerNumber owner, std::uint32_t epoch,
            std::vector<std::pair<wire::OwnerNumber, SlotId>>& to_bar, bool may_grow = true);
  // Only the value of this group (0: any): the owner may have listed another one of the key since.
  // The value's group; nothing when the owner had none listed that counts.
  std::optional<std::uint32_t> Unlist(SlotId slot, const Id128& hash, wire::OwnerNumber owner,
                                      std::uint32_t group = 0);
  // Only values of this generation (0: of any). Whether there was one, at an owner that is here or
  // that may come back with it.
  bool Remove(SlotId slot, const Id128& hash, Generation generation = 0);
  // Up to two owners of it that are live at `now_ns` (Standings::NowNs, read once for a batch), or
  // the reason why there is none.
  wire::Place Find(SlotId slot, const Id128& hash, std::int64_t now_ns) const;
  wire::Place Find(SlotId slot, const Id128& hash) const {
    return Find(slot, hash, standings_.NowNs());
  }
  // Begins to bring what Find will look at into the cache.
  void Prefetch(const Id128& hash) const;
  // All live owners of it, and the tier in which each has it.
  std::vector<std::pair<wire::OwnerNumber, Tier>> TiersOf(SlotId slot, const Id128& hash) const;
  std::vector<wire::OwnerNumber> HoldersOf(SlotId slot, const Id128& hash) const;

  // A number for a key of a slot that nobody outside can foresee.
  std::uint64_t Tag(SlotId slot, const Id128& hash) const {
    return Mix64(hash.low ^ Mix64(hash.high ^ Mix64(secret_ ^ slot)));
  }

  std::uint64_t entries() const { return entries_; }
  // With those of earlier generations and of owners that are gone, until they are swept.
  std::uint64_t EntriesOf(SlotId slot) const { return of_slot_[slot]; }
  // Drops what nobody needs any more in one more part of the table: all of it is swept by
  // `kShards` calls.
  void SweepNext();
  static constexpr std::size_t kShards = 1024;
  std::uint64_t bytes() const;

  // ---- slices that move to another shard (docs/ha.md), one part of the table at a time
  using Slices = std::bitset<wire::kSlices>;
  void CopySlices(std::size_t number, const Slices& slices,
                  std::vector<wire::ShardEntry>& to) const;
  void LoadEntry(const wire::ShardEntry& entry);
  void ForgetSlices(std::size_t number, const Slices& slices);

  // ---- for a successor's process (docs/upgrade.md). The table may be large, so it is copied shard
  // by shard while calls are served; then, while none is, the shards that have changed since.
  struct Shard;
  using Shards = std::vector<Shard>;
  Shard CopyShard(std::size_t number) const;
  // `ahead`: Shard::changes of each as it was copied; may be empty.
  void SaveRest(StateWriter& ar, std::span<const std::uint64_t> ahead);
  // `ahead`: the copies.
  void LoadRest(StateReader& ar, Shards ahead);

 private:
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

  // Nobody outside knows where a hash goes, so nobody can crowd one place with chosen keys.
  std::size_t ShardNumber(const Id128& hash) const { return Mix64(hash.high ^ secret_) % kShards; }
  Shard& ShardOf(const Id128& hash);
  const Shard& ShardOf(const Id128& hash) const;
  // `room` is a power of two.
  std::size_t HomeOf(const Id128& hash, std::size_t room) const {
    return Mix64(hash.low ^ secret_) & (room - 1);
  }
  static std::size_t Next(std::size_t at, std::size_t room) { return (at + 1) & (room - 1); }
  bool Counts(const Entry& entry) const;
  // Counts, or is needed to refuse what its owner may list again.
  bool Needed(const Entry& entry) const;
  // A value that its owner may show, now or when it is back.
  bool Stands(const Entry& entry) const;
  // kExists: another owner's value stands in the way of `item`. That of an owner without a lease
  // does not; an absent owner is marked as overtaken, so that it cannot come back unnoticed.
  Code Blocks(const Entry& entry, const wire::ListItem& item,
              std::vector<std::pair<wire::OwnerNumber, SlotId>>& to_bar);
  void Supersede(Shard& shard, const wire::ListItem& item, wire::OwnerNumber owner);
  // Drops entries that nobody needs, and makes room for `more`.
  void Sweep(Shard& shard, std::size_t more);
  void Count(SlotId slot, int change);
  void Erase(Shard& shard, std::size_t at);
  void Remember(SlotId slot, const Id128& hash, MissReason reason);
  // Of an entry whose owner is not to be asked for it.
  MissReason WhyAway(const Entry& entry, std::int64_t now_ns) const;
  // Why it was dropped lately, as far as that is remembered; else kNeverPut.
  MissReason LastReason(SlotId slot, const Id128& hash) const;

  Standings& standings_;
  std::uint64_t secret_ = RandomU64();
  Shards shards_;
  std::uint64_t entries_ = 0;
  std::vector<std::uint32_t> of_slot_ = std::vector<std::uint32_t>(kMaxSlots);
  std::size_t swept_ = 0;
  // Why keys were dropped lately: a hint for misses.
  struct Ghost {
    std::uint32_t tag = 0;
    MissReason reason = MissReason::kNone;
  };
  std::vector<Ghost> ghosts_;
};

struct Directory::Shard {
  std::vector<Entry> entries;
  std::size_t used = 0;
  std::uint64_t changes = 0;  // counts them
  // Some key may have several entries; found out by each sweep. Else a search ends at the first
  // one.
  bool several = false;
  template <typename Ar>
  void Carry(Ar& ar) {
    CarryAll(ar, entries, used, changes);
  }
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
  // Half of all entries reach into the next line, and a search goes on there.
  __builtin_prefetch(reinterpret_cast<const std::byte*>(home) + 64);
}

}  // namespace kvcove::master
