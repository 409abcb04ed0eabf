// SPDX-License-Identifier: Apache-2.0
// What owners, requesters and the master say to each other, as plain values, and their bytes.
// Decoding errors are kCorrupt: the caller closes that connection.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/model/ids.h"
#include "kvcove/wire/messages.h"

namespace kvcove::wire {

// The index of an owner in the master's table; valid with its epoch.
using OwnerNumber = std::uint16_t;
inline constexpr OwnerNumber kNoOwner = 0xFFFF;
inline constexpr std::size_t kMaxOwners = 4096;

struct OwnerHello {
  Id128 owner;          // random, one life of an owner's process
  std::string address;  // host:port of its data server
  std::string socket;   // of its Unix socket, for requesters of the same host
  std::string host;     // equal on one host, different on others
  std::uint64_t capacity_bytes = 0;
  std::string tenant;  // whom it serves alone; empty: all
  // What it followed before; an older master of the same pool is refused. 0: nothing.
  std::uint64_t term = 0;
  Id128 incarnation;
};

struct OwnerWelcome {
  OwnerNumber number = kNoOwner;
  std::uint32_t epoch = 0;  // of the number; new with every hello
  std::uint64_t term = 0;   // of the master; grows with each start
  Id128 incarnation;        // of the pool
  std::int64_t lease_ns = 0;
};

// What every owner does in the same order.
struct Removal {
  SlotId slot = 0;
  std::vector<std::string> keys;
  std::string pattern;    // if not empty
  bool drop_all = false;  // removals were missed: nothing of this slot may be kept
};

struct Changes {
  std::uint64_t version = 0;  // what is applied afterwards
  Id128 incarnation;
  bool complete = false;  // slots that are not named are free
  std::vector<SlotUpdate> slots;
  std::vector<Removal> removals;
};

struct RenewRequest {
  OwnerNumber number = kNoOwner;
  std::uint32_t epoch = 0;
  std::uint64_t applied = 0;
  std::uint64_t free_bytes = 0;
  bool inventory_done = false;
  std::uint64_t objects = 0;
  std::uint64_t hits = 0;
  std::uint64_t evictions = 0;
  std::uint64_t stale_puts = 0;
  std::uint64_t puts = 0;
  // Objects that removals by pattern removed and that were not told yet.
  std::uint64_t removed = 0;
};

struct RenewReply {
  bool granted = false;  // else: apply `changes` and ask again
  std::int64_t lease_ns = 0;
  Changes changes;
  bool draining = false;  // what comes new goes elsewhere
};

// An object that an owner holds, or (`gone`) holds no more.
struct ListItem {
  Id128 hash;  // DirectoryHash
  Generation generation = 0;
  std::uint32_t size_bytes = 0;
  std::uint32_t group = 0;  // the same for the replicas of one put
  SlotId slot = 0;
  bool gone = false;
  std::uint8_t copies = 1;      // on how many owners it is meant to be
  std::uint64_t copied_at = 0;  // see FinishItem
};

struct ListRequest {
  OwnerNumber number = kNoOwner;
  std::uint32_t epoch = 0;
  std::uint64_t applied = 0;
  std::vector<ListItem> items;
};

// Where a value is; `owner` is kNoOwner with the reason why it is nowhere.
struct Place {
  std::uint32_t size_bytes = 0;
  OwnerNumber owner = kNoOwner;
  OwnerNumber second = kNoOwner;
  MissReason reason = MissReason::kNone;
};

struct OwnerStat {
  OwnerNumber number = kNoOwner;
  std::uint32_t epoch = 0;
  std::string address;
  std::string socket;
  std::string host;
  std::uint64_t capacity_bytes = 0;
  std::uint64_t free_bytes = 0;
  bool live = false;
  std::uint64_t objects = 0;
  std::int64_t lease_age_ns = 0;
  std::string tenant;  // whom it serves alone; empty: all
  bool draining = false;
  std::uint64_t hits = 0;
  std::uint64_t evictions = 0;
  std::uint64_t stale_puts = 0;
  std::uint64_t puts = 0;
};

struct RemoveRequest {
  SlotId slot = 0;
  std::vector<std::string> keys;
  std::string pattern;
  std::int64_t budget_ns = 0;
};

struct DataGet {
  Token token;
  std::vector<std::string_view> keys;
  std::vector<std::uint64_t> room;  // bytes that the caller has for each
  bool no_checksum = false;
};

struct DataValue {
  Code code = Code::kMiss;
  MissReason reason = MissReason::kNone;
  std::uint32_t size_bytes = 0;
  std::uint64_t checksum = 0;
};

struct DataPutItem {
  std::string_view key;
  std::string_view after;
  std::uint32_t size_bytes = 0;
  std::uint64_t checksum = 0;
  std::uint32_t group = 0;
};

struct DataPut {
  Token token;
  std::vector<DataPutItem> items;
  bool no_checksum = false;
  std::uint32_t budget_ms = 0;
  std::uint8_t copies = 1;      // on how many owners each is meant to be
  bool no_evict = false;        // nothing may make room for it
  std::uint64_t copied_at = 0;  // see FinishItem
};

// What a requester tells when it asks who the owners are: of the time since it asked last.
struct RequesterReport {
  // Some of the keys that it missed for a reason that the master cannot know.
  struct Miss {
    Id128 hash;
    SlotId slot = 0;
    MissReason reason = MissReason::kNone;
  };

  std::array<std::uint64_t, kMissReasons> misses{};  // keys, by reason
  std::uint64_t fallbacks = 0;                       // puts that the preferred segment did not get
  std::vector<OwnerNumber> broken;                   // whom it passes over now
  std::vector<Miss> recent;
};

// Views in what is decoded point into `body`.
std::string Encode(const OwnerHello& message);
std::string Encode(const OwnerWelcome& message);
std::string Encode(const Changes& message);
std::string Encode(const RenewRequest& message);
std::string Encode(const RenewReply& message);
std::string Encode(const ListRequest& message);
std::string EncodeLookup(const Token& token, std::span<const Id128> hashes);
std::string Encode(std::span<const Place> places);
std::string Encode(std::span<const OwnerStat> owners);
std::string Encode(const RemoveRequest& message);
std::string Encode(const DataGet& message);
std::string Encode(std::span<const DataValue> values);
std::string Encode(const DataPut& message);
std::string Encode(std::span<const Code> codes);
std::string EncodeCount(std::uint64_t count);
std::string Encode(const RequesterReport& message);

Result<OwnerHello> DecodeOwnerHello(std::span<const std::byte> body);
Result<OwnerWelcome> DecodeOwnerWelcome(std::span<const std::byte> body);
Result<Changes> DecodeChanges(std::span<const std::byte> body);
Result<RenewRequest> DecodeRenew(std::span<const std::byte> body);
Result<RenewReply> DecodeRenewReply(std::span<const std::byte> body);
Result<ListRequest> DecodeList(std::span<const std::byte> body);
struct LookupRequest {
  Token token;
  std::vector<Id128> hashes;
};
Result<LookupRequest> DecodeLookup(std::span<const std::byte> body);
Result<std::vector<Place>> DecodePlaces(std::span<const std::byte> body, std::size_t expected);
Result<std::vector<OwnerStat>> DecodeOwners(std::span<const std::byte> body);
Result<RemoveRequest> DecodeRemove(std::span<const std::byte> body);
Result<DataGet> DecodeDataGet(std::span<const std::byte> body);
Result<std::vector<DataValue>> DecodeValues(std::span<const std::byte> body, std::size_t expected);
Result<DataPut> DecodeDataPut(std::span<const std::byte> body);
Result<std::vector<Code>> DecodeCodes(std::span<const std::byte> body, std::size_t expected);
Result<std::uint64_t> DecodeCount(std::span<const std::byte> body);
// Nothing for an empty body.
Result<RequesterReport> DecodeReport(std::span<const std::byte> body);

}  // namespace kvcove::wire
