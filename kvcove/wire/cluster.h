// SPDX-License-Identifier: Apache-2.0
// What requesters say to the master and to owners' data servers, as plain values, and their bytes.
// Decoding errors are kCorrupt: the caller closes that connection.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/model/ids.h"
#include "kvcove/model/prefix_count.h"
#include "kvcove/wire/messages.h"
#include "kvcove/wire/owner_link.h"

namespace kvcove::wire {

// Where a value is; `owner` is kNoOwner with the reason why it is nowhere.
struct Place {
  std::uint32_t size_bytes = 0;
  OwnerNumber owner = kNoOwner;
  OwnerNumber second = kNoOwner;
  MissReason reason = MissReason::kNone;
  Tier tier = Tier::kMemory;  // of `owner`
  bool under_way = false;     // it is nowhere, and a save of it has begun
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
  bool told = false;  // all that it holds is listed
  std::uint64_t objects = 0;
  std::int64_t lease_age_ns = 0;
  std::string tenant;  // the only one that it serves; empty: all
  bool draining = false;
  std::uint64_t hits = 0;
  std::uint64_t evictions = 0;
  std::uint64_t stale_puts = 0;
  std::uint64_t puts = 0;
  std::uint32_t disks = 0;  // as of RenewRequest
  std::uint32_t disks_aside = 0;
  std::uint64_t disk_capacity_bytes = 0;
  std::uint64_t disk_bytes = 0;
  // At the master only; OwnersReply has none of these.
  std::uint64_t hit_bytes = 0;
  std::uint64_t put_bytes = 0;
  std::uint64_t disk_hits = 0;
  std::uint64_t disk_hit_bytes = 0;
};

struct RemoveRequest {
  Token token;  // another generation than the current one is refused: kStale
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
  Tier tier = Tier::kMemory;
};

struct DataPutItem {
  std::string_view key;
  std::string_view after;
  std::uint32_t size_bytes = 0;
  std::uint64_t checksum = 0;
  std::uint32_t group = 0;
  Hints hints;
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

// What a requester reports when it asks for the owners: counted since it asked before.
struct RequesterReport {
  // Some of the keys that it missed for a reason that the master cannot know.
  struct Miss {
    Id128 hash;
    SlotId slot = 0;
    MissReason reason = MissReason::kNone;
  };

  std::array<std::uint64_t, kMissReasons> misses{};  // keys, by reason
  std::uint64_t fallbacks = 0;                       // puts that the preferred segment did not get
  std::vector<OwnerNumber> broken;                   // that it passes over now
  std::vector<Miss> recent;
  Id128 holder;  // the process whose registrations this report keeps alive; zero: none
};

// What a master tells the processes that use it: how it was started, and what they may do.
struct MasterSettings {
  // For how long a drop-in store holds what it reads; 0: the master does not say.
  std::uint64_t read_hold_ms = 0;
  std::string admin;        // host:port of its admin endpoint; empty: there is none
  std::uint8_t scopes = 0;  // rpc::Scopes of the process that asked; 0: the master does not say
};

// The owners, and the term of the master that says so: another one has forgotten registrations.
struct OwnersReply {
  std::vector<OwnerStat> owners;
  std::uint64_t term = 0;
  MasterSettings settings;
  std::shared_ptr<const ShardMap> map =
      nullptr;  // of the directory; null: all of it is at this master
};

// Views in what is decoded point into `body`.
std::string EncodeLookup(const Token& token, std::span<const Id128> hashes,
                         SaveNotice notice = SaveNotice::kNone);
std::string Encode(std::span<const Place> places);
std::string Encode(const PrefixShares& message);
std::string Encode(const OwnersReply& message);
std::string Encode(const RemoveRequest& message);
std::string Encode(const DataGet& message);
std::string Encode(std::span<const DataValue> values);
std::string Encode(const DataPut& message);
std::string Encode(std::span<const Code> codes);
std::string EncodeCount(std::uint64_t count);
std::string Encode(const RequesterReport& message);

struct LookupRequest {
  Token token;
  std::vector<Id128> hashes;
  SaveNotice notice = SaveNotice::kNone;
};
Result<LookupRequest> DecodeLookup(std::span<const std::byte> body);
Result<std::vector<Place>> DecodePlaces(std::span<const std::byte> body, std::size_t expected);
Result<PrefixShares> DecodePrefixShares(std::span<const std::byte> body);
Result<OwnersReply> DecodeOwners(std::span<const std::byte> body);
Result<RemoveRequest> DecodeRemove(std::span<const std::byte> body);
Result<DataGet> DecodeDataGet(std::span<const std::byte> body);
Result<std::vector<DataValue>> DecodeValues(std::span<const std::byte> body, std::size_t expected);
Result<DataPut> DecodeDataPut(std::span<const std::byte> body);
Result<std::vector<Code>> DecodeCodes(std::span<const std::byte> body, std::size_t expected);
Result<std::uint64_t> DecodeCount(std::span<const std::byte> body);
// Nothing for an empty body.
Result<RequesterReport> DecodeReport(std::span<const std::byte> body);

}  // namespace kvcove::wire
