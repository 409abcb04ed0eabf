// SPDX-License-Identifier: Apache-2.0
// What the master that leads and those that serve shards of its directory say to each other, as
// plain values, and their bytes. docs/ha.md has the prose. Decoding errors are kCorrupt.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvcove/wire/owner_link.h"
#include "kvcove/wire/shard_map.h"

namespace kvcove::wire {

// What a shard does with a slice.
enum class SliceState : std::uint8_t {
  kNone = 0,
  kServes = 1,
  kFrozen = 2,  // look-ups only: another shard is about to take it
  // Another shard may list it by now: what is not found may be there.
  kLeft = 3,
};

// Asks for what is new since `position`, and so acknowledges what came until then.
struct ShardSyncRequest {
  Id128 process;              // drawn by each process
  std::string address;        // where owners and requesters reach this shard
  std::uint64_t term = 0;     // of the leader that it follows; 0: none yet
  std::uint64_t session = 0;  // what that leader called this following
  std::uint64_t position = 0;
  std::uint64_t frozen = 0;  // the last move whose slices it has frozen
  std::uint64_t loaded = 0;  // the last move whose entries it has
  std::uint64_t failed = 0;  // the last move whose entries it could not get
  struct Removed {
    std::uint64_t number = 0;
    std::vector<Code> codes;  // by key: kOk, kMiss
  };
  std::vector<Removed> removed;  // since the last request that was answered
  std::uint64_t entries = 0;
  // Of each slot with entries; empty: as before.
  std::vector<std::pair<SlotId, std::uint64_t>> entries_of_slots;
  // Bytes of the values of each of these slots. Empty: a shard of an earlier build counts none.
  std::vector<std::uint64_t> bytes_of_slots;
};

struct ShardMove {
  std::uint64_t id = 0;  // 0: none is under way
  ShardNumber from = 0;
  ShardNumber to = 0;
  std::string address;  // of `from`; empty: the leader
  std::vector<SliceNumber> slices;
};

struct ShardSyncReply {
  struct Owner {
    OwnerNumber number = kNoOwner;
    std::uint32_t epoch = 0;
    std::uint32_t first_epoch = 0;
    std::uint32_t told_epoch = 0;
    std::int64_t live_ns = 0;     // what is left
    std::int64_t present_ns = 0;  // the same
    bool tells_first = false;
    bool disk_away = false;
    std::uint64_t tenant = 0;
    std::vector<SlotId> hidden;
    std::vector<SlotId> drops;  // nothing of these may be listed
  };
  struct Slot {
    SlotId slot = 0;
    Generation generation = 0;
    std::uint64_t tenant = 0;
  };
  std::uint64_t term = 0;
  std::uint64_t session = 0;
  ShardNumber number = 0;
  std::int64_t lease_ns = 0;  // from when the request was sent; 0: none
  std::uint64_t position = 0;
  bool all = false;  // what was known before counts no more
  std::vector<Owner> owners;
  std::vector<Slot> slots;
  std::vector<Removal> removals;
  std::uint64_t shown = 0;  // owners may have applied removals up to this one
  std::uint64_t floor = 0;  // listings that were begun before this removal are refused
  std::shared_ptr<const ShardMap> map = nullptr;
  std::vector<SliceState> serves;  // of each slice; empty: as before
  ShardMove move;
  std::uint64_t untold = 0;
  bool warming = false;
  // The directory as a whole has no room: for anybody, and for these tenants (TenantTag).
  bool full = false;
  std::vector<std::uint64_t> full_tenants;
};

struct ShardBarRequest {
  std::vector<std::pair<OwnerNumber, SlotId>> values;
};
enum class GivesWay : std::uint8_t { kNo = 0, kEarlier = 1, kThisToo = 2 };
struct ShardBarReply {
  struct One {
    GivesWay gives_way = GivesWay::kNo;
    std::uint32_t epoch = 0;
  };
  std::vector<One> answers;
};

struct ShardPullRequest {
  std::uint64_t term = 0;
  std::uint64_t move = 0;
  std::uint32_t cursor = 0;  // 0 at first
};
struct ShardEntry {
  Id128 hash;
  Generation generation = 0;
  std::uint32_t size_bytes = 0;
  std::uint32_t group = 0;
  SlotId slot = 0;
  Tier tier = Tier::kMemory;
  OwnerNumber owner = kNoOwner;
  std::uint32_t epoch = 0;
  bool superseded = false;
};
struct ShardPage {
  std::vector<ShardEntry> entries;
  std::uint32_t cursor = 0;
  bool done = false;
  // Every removal up to this one had been applied there before the page was read.
  std::uint64_t shown = 0;
};

struct ShardFindRequest {
  std::vector<std::pair<SlotId, Id128>> keys;  // at most kMaxBatch
};
// What a shard knows of one key.
struct HeldKey {
  MissReason reason = MissReason::kNone;  // kNone: somebody holds it
  std::uint32_t size_bytes = 0;
  std::vector<std::pair<OwnerNumber, Tier>> holders;  // live ones
  // Why look-ups missed it lately, and how often; kNone: none did.
  MissReason missed = MissReason::kNone;
  std::uint32_t misses = 0;
  std::int64_t missed_age_ns = 0;
  bool operator==(const HeldKey&) const = default;
};
struct ShardFindReply {
  std::vector<HeldKey> keys;
};

std::string Encode(const ShardSyncRequest& message);
std::string Encode(const ShardSyncReply& message);
std::string Encode(const ShardBarRequest& message);
std::string Encode(const ShardBarReply& message);
std::string Encode(const ShardPullRequest& message);
std::string Encode(const ShardPage& message);
std::string Encode(const ShardFindRequest& message);
std::string Encode(const ShardFindReply& message);
Result<ShardSyncRequest> DecodeShardSync(std::span<const std::byte> body);
Result<ShardSyncReply> DecodeShardSyncReply(std::span<const std::byte> body);
Result<ShardBarRequest> DecodeShardBar(std::span<const std::byte> body);
Result<ShardBarReply> DecodeShardBarReply(std::span<const std::byte> body, std::size_t expected);
Result<ShardPullRequest> DecodeShardPull(std::span<const std::byte> body);
Result<ShardPage> DecodeShardPage(std::span<const std::byte> body);
Result<ShardFindRequest> DecodeShardFind(std::span<const std::byte> body);
Result<ShardFindReply> DecodeShardFindReply(std::span<const std::byte> body, std::size_t expected);

}  // namespace kvcove::wire
