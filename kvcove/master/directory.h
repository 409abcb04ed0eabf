// SPDX-License-Identifier: Apache-2.0
// Which owner holds which key: soft state, rebuilt from the owners at any time. Keys are known by
// their 128-bit DirectoryHash; the owner compares whole keys. Needs a lock.
//
// An entry counts under its owner's current epoch and its slot's current generation; others are
// dropped when they are met. 40 bytes an entry in open-addressed shards that grow one by one, so
// that no call waits for the whole table.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "kvcove/base/random.h"
#include "kvcove/wire/cluster.h"

namespace kvcove::master {

class Directory {
 public:
  // What makes an entry count. Both look at the caller's tables.
  struct Rules {
    std::function<bool(wire::OwnerNumber number, std::uint32_t epoch)> current_owner;
    std::function<bool(wire::OwnerNumber number)> live_owner;
    std::function<bool(SlotId slot, Generation generation)> current_generation;
  };
  explicit Directory(Rules rules);

  // kOk; kExists when another owner holds another value of the key; kStale for an old generation.
  Code List(const wire::ListItem& item, wire::OwnerNumber owner, std::uint32_t epoch);
  void Unlist(const Id128& hash, wire::OwnerNumber owner);
  void Remove(const Id128& hash);
  // Up to two live owners of it, or the reason why there is none.
  wire::Place Find(SlotId slot, const Id128& hash) const;
  // Begins to bring what Find will look at into the cache.
  void Prefetch(const Id128& hash) const {
    const Shard& shard = shards_[hash.high % kShards];
    if (shard.entries.empty()) return;
    __builtin_prefetch(&shard.entries[HomeOf(hash, shard.entries.size())]);
  }
  // All live owners of it.
  std::vector<wire::OwnerNumber> HoldersOf(SlotId slot, const Id128& hash) const;

  std::uint64_t entries() const { return entries_; }
  std::uint64_t bytes() const;

 private:
  struct Entry {
    Id128 hash;
    std::uint32_t size_bytes = 0;
    std::uint32_t epoch = 0;  // 0: free
    std::uint32_t group = 0;
    std::uint32_t generation_low = 0;
    wire::OwnerNumber owner = 0;
    SlotId slot = 0;
    std::uint32_t generation_high = 0;
    Generation generation() const { return (Generation{generation_high} << 32) | generation_low; }
  };
  static_assert(sizeof(Entry) == 40);
  struct Shard {
    std::vector<Entry> entries;
    std::size_t used = 0;
  };
  static constexpr std::size_t kShards = 1024;
  static constexpr std::size_t kGhosts = 1 << 16;

  Shard& ShardOf(const Id128& hash) { return shards_[hash.high % kShards]; }
  // Nobody outside knows where a hash goes, so nobody can crowd one place with keys of his choice.
  std::size_t HomeOf(const Id128& hash, std::size_t room) const {
    return Mix64(hash.low ^ secret_) % room;
  }
  bool Counts(const Entry& entry) const;
  void Grow(Shard& shard);
  void Erase(Shard& shard, std::size_t at);
  void Remember(const Id128& hash, MissReason reason);

  const Rules rules_;
  const std::uint64_t secret_ = RandomU64();
  std::vector<Shard> shards_;
  std::uint64_t entries_ = 0;
  // Why keys went lately, by hash: a hint for whoever asks.
  struct Ghost {
    std::uint32_t tag = 0;
    MissReason reason = MissReason::kNone;
  };
  std::vector<Ghost> ghosts_;
};

}  // namespace kvcove::master
