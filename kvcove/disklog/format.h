// SPDX-License-Identifier: Apache-2.0
// Encodes and parses the structures of a disk, which FORMAT.md describes. No I/O, no state. Every
// parser accepts any bytes, and returns std::nullopt for those that are not valid: only the caller
// knows whether that is damage or the end of a zone.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/disklog/aligned.h"
#include "kvcove/model/ids.h"

namespace kvcove::disklog {

inline constexpr std::uint32_t kFormatVersion = 2;
inline constexpr std::uint64_t kUnitBytes = 64;  // records begin at multiples, within a zone
inline constexpr std::uint64_t kSuperblockBytes = 256ULL << 10;  // space of each of the two copies
inline constexpr std::uint64_t kZonesStart = 1ULL << 20;
inline constexpr std::uint64_t kDefaultZoneBytes = 64ULL << 20;
inline constexpr std::uint64_t kMinZoneBytes = 64ULL << 10;
inline constexpr std::uint64_t kMaxZoneBytes = 4ULL << 30;
// Longest name of a namespace with its weight version.
inline constexpr std::uint32_t kMaxSpaceNameBytes = (2 * kMaxNameBytes) + 64;
inline constexpr std::uint32_t kMaxScopesOfZone = 4096;
inline constexpr std::uint32_t kMaxLostZones = 4096;

// ---- superblock

// The last removal of a slot's log that the disk has applied.
struct RemovalMark {
  SlotId slot = 0;
  Generation generation = 0;
  std::uint64_t term = 0;
  std::uint64_t number = 0;
  bool operator==(const RemovalMark&) const = default;
};

// Identity, geometry and facts of a disk.
//
// `opening` tells a disk from a copy of it, which has the same `disk`. It is drawn at each opening
// of the log, at its clean end, and from time to time in between; the caller notes the new number
// elsewhere once it is on the disk. A disk is the one that the note means if the noted number is
// one of the two here:
//
//   crash                                    | opening, opening_before | noted
//   before the superblock is written         | N, -                    | N
//   before the new number is noted           | N+1, N                  | N
//   before `opening_before` is cleared       | N+1, N                  | N+1
//   later                                    | N+1, -                  | N+1
//
// A copy from before the last of these lines has N alone, and so is another disk.
struct Superblock {
  std::uint64_t sequence = 0;  // the valid copy with the higher one counts
  Id128 pool;
  Id128 incarnation;
  Id128 identity;  // of the owner
  Id128 disk;      // drawn when the disk is formatted, or starts empty
  std::uint64_t hash_seed = 0;
  std::uint64_t device_bytes = 0;
  std::uint64_t zone_bytes = 0;
  // This and `removals` are of the format alone: nothing sets them.
  std::uint64_t generation_counter = 0;
  bool clean = false;                 // every zone has its summary
  std::vector<RemovalMark> removals;  // at most kMaxSlots
  // Zones that could not be freed. Nothing in them counts, and they are not used.
  std::vector<std::uint32_t> lost_zones;  // at most kMaxLostZones
  Id128 opening;                          // zero: written by a kvcove that draws no such number
  Id128 opening_before;  // the noted one, until the caller has noted `opening`; else zero

  // Returns true if this is the disk that was noted with this number, and not a copy of it. Zero:
  // it was noted by a kvcove that draws no such number, so nobody knows.
  bool HasOpening(const Id128& noted) const {
    return noted == Id128{} || noted == opening || noted == opening_before;
  }
  std::uint32_t zones() const {
    return static_cast<std::uint32_t>((device_bytes - kZonesStart) / zone_bytes);
  }
  bool operator==(const Superblock&) const = default;
};

// Returns whole blocks.
std::string EncodeSuperblock(const Superblock& superblock);
std::optional<Superblock> ParseSuperblock(std::string_view bytes);
// Returns the version that a superblock of any format names; nullopt if it is no superblock.
std::optional<std::uint32_t> SuperblockVersion(std::string_view bytes);

// ---- zone header: the first block of a zone

// Ties the zone to pool, incarnation and disk, and its records to this use of the zone.
struct ZoneHeader {
  std::uint32_t zone = 0;
  bool free = false;        // the zone's records no longer count
  std::uint8_t stream = 0;  // stream of its records (Writer)
  std::uint64_t nonce = 0;  // drawn at each opening; every record and the trailer repeat it
  Id128 pool;
  Id128 incarnation;
  Id128 disk;
  bool operator==(const ZoneHeader&) const = default;
};

std::string EncodeZoneHeader(const ZoneHeader& header);  // one block
std::optional<ZoneHeader> ParseZoneHeader(std::string_view block);

// ---- records

enum class RecordKind : std::uint8_t { kObject = 1, kTombstone = 2 };

inline constexpr std::uint64_t kRecordHeadBytes = 64;

// The head of an object or a tombstone; its views point into the bytes that were parsed.
struct Record {
  RecordKind kind = RecordKind::kObject;
  SlotId slot = 0;
  Generation generation = 0;
  std::uint64_t version = 0;  // of a tombstone: the nonce of the zone whose record it covers
  std::uint64_t sequence = 0;
  std::uint64_t nonce = 0;
  std::string_view name;  // of the namespace, with its weight version
  std::string_view key;
  std::uint32_t value_bytes = 0;
  Id128 checksum;  // over head, name, key and value

  std::uint64_t value_offset() const { return kRecordHeadBytes + name.size() + key.size(); }
  std::uint64_t bytes() const { return value_offset() + value_bytes; }
};

// Returns the first 48 bytes, those before the checksum; the checksum covers them.
std::array<std::byte, 48> EncodeRecordHead(const Record& record);
// Returns all bytes before the value: head, `record.checksum`, name and key.
std::string EncodeRecordFront(const Record& record);
// Returns the record if its head is well formed and all of it fits `bytes`. The result points into
// `bytes`. Does not verify the checksum; VerifyRecord does.
std::optional<Record> ParseRecord(std::string_view bytes);
// Verifies the checksum. `bytes` must begin with the record that ParseRecord returned.
bool VerifyRecord(const Record& record, std::string_view bytes);

// ---- summary: between the last record and the trailer

// A record in a summary: all that the index needs, so that a start reads no records.
struct SummaryEntry {
  Id128 hash;
  std::uint64_t sequence = 0;
  std::uint64_t version = 0;
  std::uint32_t offset_units = 0;  // from the zone's start
  std::uint32_t value_bytes = 0;
  std::uint16_t scope = 0;  // index into Summary::scopes
  std::uint16_t key_bytes = 0;
  RecordKind kind = RecordKind::kObject;
  bool operator==(const SummaryEntry&) const = default;
};
inline constexpr std::uint64_t kSummaryEntryBytes = 48;

struct SummaryScope {
  SlotId slot = 0;
  Generation generation = 0;
  std::string name;
  bool operator==(const SummaryScope&) const = default;
};

struct Summary {
  std::vector<SummaryScope> scopes;
  std::vector<SummaryEntry> entries;
  std::string keys;  // concatenated, in the order of the entries; empty if not read
};

// The last block of a sealed zone: place, sizes and checksums of its summary.
struct ZoneTrailer {
  std::uint32_t zone = 0;
  std::uint64_t nonce = 0;
  std::uint64_t summary_offset = 0;  // from the zone's start, whole blocks
  std::uint32_t entries = 0;
  std::uint32_t scopes = 0;
  std::uint64_t table_bytes = 0;  // scopes and entries; the keys begin at the next block
  std::uint64_t keys_bytes = 0;
  std::uint64_t last_sequence = 0;
  std::uint64_t last_tombstone = 0;  // highest sequence of a tombstone; 0: none
  Id128 table_checksum;
  Id128 keys_checksum;
  bool operator==(const ZoneTrailer&) const = default;
};

struct EncodedSummary {
  ZoneTrailer trailer;  // zone, nonce and summary_offset are not set
  std::string bytes;    // whole blocks
};
EncodedSummary EncodeSummary(const Summary& summary);
std::string EncodeZoneTrailer(const ZoneTrailer& trailer);  // one block
// Also checks that all places that the trailer names are within a zone of `zone_bytes`.
std::optional<ZoneTrailer> ParseZoneTrailer(std::string_view block, std::uint64_t zone_bytes);
// Verifies and parses a summary. `table`: trailer.table_bytes bytes; `keys`: trailer.keys_bytes, or
// empty to leave them out. The record of every entry ends before trailer.summary_offset.
std::optional<Summary> ParseSummary(const ZoneTrailer& trailer, std::string_view table,
                                    std::string_view keys);
// Returns an upper bound of the bytes of EncodeSummary's result.
std::uint64_t SummaryBytes(std::uint64_t entries, std::uint64_t scope_bytes, std::uint64_t keys);
std::uint64_t ScopeBytes(std::string_view name);

}  // namespace kvcove::disklog
