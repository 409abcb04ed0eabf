// SPDX-License-Identifier: Apache-2.0
// What an owner and its master say to each other, as plain values, and their bytes.
// docs/control-plane.md has the prose. Decoding errors are kCorrupt: the caller closes that
// connection.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvcove/model/ids.h"
#include "kvcove/wire/messages.h"
#include "kvcove/wire/shard_map.h"

namespace kvcove::wire {

// The index of an owner in the master's table; valid with its epoch.
using OwnerNumber = std::uint16_t;
inline constexpr OwnerNumber kNoOwner = 0xFFFF;
inline constexpr std::size_t kMaxOwners = 4096;

// How much of the control store's history somebody has seen. A master that knows less than an owner
// of its own pool has lost facts.
struct Position {
  std::uint64_t term = 0;      // of a master: grows with each start
  std::uint64_t tag = 0;       // drawn with the term, so that a term that was lost is recognised
  std::uint64_t revision = 0;  // of the store, the highest that was heard of in that term
  bool operator==(const Position&) const = default;
};

struct OwnerHello {
  Id128 pool;         // what it followed before; zero: nothing
  Id128 incarnation;  // of that pool
  Position seen;
  Id128 owner;                    // the identity of its memory
  bool fresh = false;             // the identity has just been drawn and holds nothing
  Id128 process;                  // drawn by each process
  Id128 predecessor;              // an identity whose memory nobody maps any more; zero: none
  OwnerNumber number = kNoOwner;  // what the master of `seen.term` called it
  std::uint32_t epoch = 0;
  std::string address;  // host:port of its data server
  std::string socket;   // of its Unix socket, for requesters of the same host
  std::string host;     // equal on one host, different on others
  std::string tenant;   // the only one that it serves; empty: all
  std::uint64_t capacity_bytes = 0;
  bool disk = false;  // its identity outlives the process
  // The opening that the owner's data directory has, and the one that the master may have stored
  // instead, because it has not confirmed the first yet. Zero: none, or an earlier version.
  Id128 opening;
  Id128 opening_before;
};

struct OwnerWelcome {
  Id128 pool;
  Id128 incarnation;
  Position position;       // of this master
  bool forgotten = false;  // the identity is no member: drop everything, come back under another
  OwnerNumber number = kNoOwner;
  std::uint32_t epoch = 0;
  std::int64_t lease_ns = 0;
  bool resumed = false;        // the epoch goes on: what was listed stands
  bool tell_first = false;     // no lease before the inventory is told
  std::uint64_t removals = 0;  // the last removal that need not be asked for
  // The owner's opening as the master has stored it, zero if it has none. Nothing: a master of an
  // earlier version, which stores no openings.
  std::optional<Id128> opening = std::nullopt;
  // Forgotten, because the hello names no opening that the master has stored: the owner's data
  // directory was put back from a copy.
  bool rolled_back = false;
};

// What leads from one revision of the generation table to another.
struct Changes {
  Id128 incarnation;
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  bool more = false;              // `to` is not the latest: ask again
  std::vector<SlotUpdate> slots;  // `named` is not told here
  std::uint64_t naming = 0;
  bool names_changed = false;   // then `unnamed` is valid as of `naming`
  std::vector<SlotId> unnamed;  // slots of versions that no engine uses any more
  // Of the directory, where it is another one than the owner named; null: no news.
  std::shared_ptr<const ShardMap> map = nullptr;
};

struct RenewRequest {
  OwnerNumber number = kNoOwner;
  std::uint32_t epoch = 0;
  std::uint64_t table = 0;  // the revision of the generation table that it has published
  std::uint64_t naming = 0;
  bool told = false;  // all of its inventory is listed
  std::uint64_t free_bytes = 0;
  std::uint64_t objects = 0;
  std::uint64_t hits = 0;
  std::uint64_t evictions = 0;
  std::uint64_t stale_puts = 0;
  std::uint64_t puts = 0;
  bool partial = false;  // see WatchRequest
  // A disk of its is set aside, or works again and is not told yet: see ListItem::returns.
  bool disk_away = false;
  // The revision of the shard map that it knows, and that under which all was told. 0: none.
  std::uint64_t map = 0;
  std::uint64_t told_map = 0;
  // Of all its disks; for operators.
  std::uint32_t disks = 0;
  std::uint32_t disks_aside = 0;
  std::uint64_t disk_capacity_bytes = 0;
  std::uint64_t disk_bytes = 0;  // in use
  // Its last lease, from whichever master of this incarnation, has not run out.
  bool leased = false;
  // The next process under its identity must not use what its disks hold, and its note cannot say
  // so.
  bool disks_void = false;
  Id128 opening;  // which the master is to store: the owner's data directory has it; zero: none
  // Counted since the owner's start; for operators.
  std::uint64_t hit_bytes = 0;
  std::uint64_t put_bytes = 0;
  std::uint64_t disk_hits = 0;  // values that came back into memory
  std::uint64_t disk_hit_bytes = 0;
};

struct RenewReply {
  bool granted = false;  // else: apply `changes` and ask again
  std::int64_t lease_ns = 0;
  std::uint64_t revision = 0;  // of the store
  // Slots whose removals the owner may have missed: nobody may read them before the owner has
  // applied what the removal log says. Published before the lease.
  std::vector<SlotId> hidden;
  bool draining = false;  // new values go elsewhere
  Changes changes;
  // Another value took the place of one of this owner's while it was away: say hello again.
  bool tell_again = false;
  // Not granted: the master does not know yet whether its store lacks what was proven while this
  // owner had no lease. Ask again in a moment.
  bool doubted = false;
  // The master has stored RenewRequest::disks_void.
  bool disks_void = false;
  Id128 opening;  // of this owner, as the master has stored it; zero: none
};

struct WatchRequest {
  OwnerNumber number = kNoOwner;
  std::uint32_t epoch = 0;
  std::uint64_t table = 0;
  std::uint64_t naming = 0;
  // More pages follow the one that led to `table`, so nothing is acknowledged yet: a slot that
  // changed before `table` and again since is in a later page only.
  bool partial = false;
  std::uint64_t map = 0;  // see RenewRequest
  Id128 opening;          // of a goodbye: see RenewRequest
};

// One removal, or a part of a large one.
struct Removal {
  std::uint64_t number = 0;
  SlotId slot = 0;
  Generation generation = 0;  // what it was asked for under
  std::vector<std::string> keys;
  std::string pattern;  // if not empty
  bool operator==(const Removal&) const = default;
};

// Asks for the removals after `ahead`. Acknowledges those up to `after`, and those up to `ahead`
// that are neither in `open` nor of a slot in `dropping`. A master of an earlier version knows
// `after` alone: it sends the removals after that, and takes nothing for acknowledged beyond it.
struct RemovalsRequest {
  struct Count {
    std::uint64_t number = 0;
    std::uint64_t objects = 0;
  };
  OwnerNumber number = kNoOwner;
  std::uint32_t epoch = 0;
  std::uint64_t after = 0;
  std::vector<Count> matched;  // by removals with a pattern, since the last request
  std::uint64_t dropped = 0;   // the latest RemovalsPage::drop_number whose slots are dropped
  // The last removal that memory has applied; below `after`: the same as `after`.
  std::uint64_t ahead = 0;
  // Removals by pattern for which disks are still being walked; at most kMaxOpenRemovals.
  std::vector<std::uint64_t> open = {};
  // Slots of a page's `drop` that disks are still being walked for: no removal behind `after` is
  // acknowledged in them.
  std::vector<SlotId> dropping = {};
  std::uint64_t seen() const { return std::max(after, ahead); }
};
inline constexpr std::size_t kMaxOpenRemovals = 64;

struct RemovalsPage {
  // Slots whose removals are not all known any more: drop what they hold, first.
  std::vector<SlotId> drop;
  std::uint64_t drop_number = 0;  // 0: nothing to be acknowledged
  std::vector<Removal> removals;  // in the order of their numbers
  std::uint64_t upto = 0;         // applied with this page
  bool more = false;
  // The master takes RemovalsRequest::dropping. One of an earlier version does not: the slots must
  // be dropped before the next request.
  bool takes_dropping = false;
};

// An object that an owner holds, or (`gone`) holds no more.
struct ListItem {
  Id128 hash;  // DirectoryHash
  Generation generation = 0;
  std::uint32_t size_bytes = 0;
  std::uint32_t group = 0;  // the same for the replicas of one put
  SlotId slot = 0;
  bool gone = false;
  bool inventory = false;  // told again, not put just now
  // It lies on a disk that was set aside, so others may have stored and lost another value since.
  bool returns = false;
  std::uint8_t copies = 1;  // on how many owners it is meant to be
  Tier tier = Tier::kMemory;
  // The last removal that its owner had applied when the put began: a later one that matches voids
  // the listing.
  std::uint64_t removals = 0;
  std::uint64_t copied_at = 0;  // see FinishItem
};

struct ListRequest {
  OwnerNumber number = kNoOwner;
  std::uint32_t epoch = 0;
  // Counts the requests of an epoch from 1 on. One that got no answer is repeated under its number.
  std::uint64_t sequence = 0;
  // The last removal that the owner had applied before it took the items.
  std::uint64_t applied = 0;
  // Of sequences at one shard: a later one has a higher number, and begins with sequence 1. 0: the
  // only one, where there are no shards.
  std::uint64_t session = 0;
  std::vector<ListItem> items;
};

struct ListReply {
  std::vector<Code> codes;  // by item
  // How much more of its inventory the owner may tell now. 0: it asks again a little later.
  std::uint32_t credit = 0;
};

std::string Encode(const OwnerHello& message);
std::string Encode(const OwnerWelcome& message);
std::string Encode(const Changes& message);
std::string Encode(const RenewRequest& message);
std::string Encode(const RenewReply& message);
std::string Encode(const WatchRequest& message);
std::string Encode(const RemovalsRequest& message);
std::string Encode(const RemovalsPage& message);
std::string Encode(const ListRequest& message);
std::string Encode(const ListReply& message);

Result<OwnerHello> DecodeOwnerHello(std::span<const std::byte> body);
Result<OwnerWelcome> DecodeOwnerWelcome(std::span<const std::byte> body);
Result<Changes> DecodeChanges(std::span<const std::byte> body);
Result<RenewRequest> DecodeRenew(std::span<const std::byte> body);
Result<RenewReply> DecodeRenewReply(std::span<const std::byte> body);
Result<WatchRequest> DecodeWatch(std::span<const std::byte> body);
Result<RemovalsRequest> DecodeRemovalsRequest(std::span<const std::byte> body);
Result<RemovalsPage> DecodeRemovalsPage(std::span<const std::byte> body);
Result<ListRequest> DecodeList(std::span<const std::byte> body);
Result<ListReply> DecodeListReply(std::span<const std::byte> body, std::size_t expected);

}  // namespace kvcove::wire
