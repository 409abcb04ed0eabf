// SPDX-License-Identifier: Apache-2.0
// Layout of a segment's header file and of a session's page. Both are shared between processes, so
// every field is a fixed-width little-endian number, every field that changes is atomic, and the
// header has a magic and a layout version. docs/segment.md describes them.
//
// The header file is mapped read-only by requesters. The owner is its only writer.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "kvcove/model/ids.h"

namespace kvcove::segment {

inline constexpr std::uint64_t kHeaderMagic = 0x31676573766b766bULL;   // "kvkvseg1"
inline constexpr std::uint64_t kSessionMagic = 0x31736573766b766bULL;  // "kvkvses1"
inline constexpr std::uint32_t kLayoutVersion = 4;

inline constexpr std::uint32_t kMaxExtents = 64;  // of one object
inline constexpr std::uint64_t kRecordUnit = 8;   // bytes; unit of a Place

// Place of an entry: its offset in the record area, in units of kRecordUnit. 0 = no entry.
using Place = std::uint32_t;
// Names one value of one key; never reused in a segment. 0 = no value.
using Version = std::uint64_t;

struct Header {
  std::uint64_t magic;
  std::uint32_t layout_version;
  std::uint32_t slot_count;
  Id128 segment_id;  // drawn when the segment is created
  std::uint64_t header_bytes;
  std::uint64_t payload_bytes;
  std::uint32_t granule_bytes;      // see segment/payload.h
  std::uint32_t record_unit_bytes;  // kRecordUnit
  std::uint64_t hash_seed;
  // Offsets from the header's start.
  std::uint64_t slots_offset;    // slot_count x Slot
  std::uint64_t ghosts_offset;   // ghost_count x atomic u64
  std::uint64_t ghost_count;     // a power of two
  std::uint64_t buckets_offset;  // bucket_limit x Bucket
  std::uint64_t bucket_limit;
  std::uint64_t overflow_offset;  // overflow_limit x Bucket; number 0 is not used
  std::uint64_t overflow_limit;
  std::uint64_t records_offset;
  std::uint64_t record_units;

  // CLOCK_BOOTTIME ns. After this time readers must not trust anything in the segment.
  alignas(64) std::atomic<std::int64_t> lease_deadline_ns;
  // Number of buckets in use (linear hashing). Raised before elements leave a bucket that is split.
  alignas(64) std::atomic<std::uint64_t> bucket_count;
  // Free bytes of payload at the last put or later: a hint for the choice between owners. 0: not
  // known.
  alignas(64) std::atomic<std::uint64_t> free_bytes;

  // The disk tier (segment/tier_table.h). Zeros for an owner without a disk.
  std::uint64_t tier_offset;  // tier_limit x TierBucket
  std::uint64_t tier_limit;
  std::uint64_t tier_seed;                  // of the disks' hashes; set before tier_on
  std::atomic<std::uint64_t> tier_on;       // shares whose tags count; 0: no disk
  std::atomic<std::uint64_t> tier_buckets;  // in use

  // CLOCK_BOOTTIME ns until which a save that was announced to this owner may be under way; 1: none
  // was. 0: the owner's build takes no announcements. A look-up that misses asks the owner only
  // before that time.
  std::atomic<std::int64_t> saves_until_ns;
};

// Generation of one (namespace, weight version). 0 = not in use, or hidden.
struct Slot {
  std::atomic<Generation> generation;
};

inline constexpr std::uint32_t kBucketEntries = 7;
// An element is (high half of the key's hash << 32) | place; 0 = free.
struct alignas(64) Bucket {
  std::atomic<std::uint64_t> element[kBucketEntries];
  std::atomic<std::uint64_t> overflow;  // number of the next bucket in the overflow area, 0 = none
};
static_assert(sizeof(Bucket) == 64);

// One object. After it: extents (only if there are two or more), then the key padded to 8 bytes.
// Read it as a sequence lock: version, fields, version again.
struct Entry {
  std::atomic<Version> version;
  std::atomic<Generation> generation;
  std::atomic<std::uint64_t> meta;   // see EntryMeta
  std::atomic<std::uint64_t> first;  // (first granule << 32) | object number of the owner
};
static_assert(sizeof(Entry) == 32);

// Size of the value (29 bits: 1 to 256 MiB), of the key (11 bits: 1 to 1024), number of extents (1
// to 64) and the slot, in one word. Found keeps the word, too: if it were stored in parts, it could
// not be loaded again at once.
struct EntryMeta {
  std::uint64_t word = 0;

  static EntryMeta Make(std::uint32_t size_bytes, std::size_t key_bytes, std::size_t extents,
                        SlotId slot) {
    return {std::uint64_t{size_bytes} | (std::uint64_t{key_bytes} << 29) |
            (std::uint64_t{extents} << 40) | (std::uint64_t{slot} << 48)};
  }
  std::uint32_t size_bytes() const { return static_cast<std::uint32_t>(word & 0x1FFFFFFF); }
  std::uint32_t key_bytes() const { return static_cast<std::uint32_t>(word >> 29) & 0x7FF; }
  std::uint32_t extents() const { return static_cast<std::uint32_t>(word >> 40) & 0x7F; }
  SlotId slot() const { return static_cast<SlotId>(word >> 48); }
  // Words of the extent list behind the entry.
  std::uint32_t extent_words() const { return extents() > 1 ? extents() : 0; }
};

// The session's page: the slots in which its readers name the entries that they read, its counters,
// and its events. The session's process and the owner both write it; the owner trusts nothing in
// it.
inline constexpr std::uint32_t kLanes = 16;      // reads of a session at the same time
inline constexpr std::uint32_t kLaneSlots = 64;  // objects of one window
inline constexpr std::uint32_t kRingEvents = 16384;

struct ProtectedSlot {
  std::atomic<std::uint64_t> place;
  std::atomic<Version> version;
};

struct alignas(64) Lane {
  std::atomic<std::uint32_t> used;  // number of slots that the owner must look at
  alignas(64) ProtectedSlot slots[kLaneSlots];
};

enum class EventKind : std::uint8_t { kHit = 1, kHold = 2 };  // a hit may hold, too
inline constexpr std::uint32_t kHoldEndBits = 30;

struct RingEvent {
  std::atomic<std::uint64_t> word;  // (kind << 62) | (end of a hold, see Event << 32) | place
  std::atomic<Version> version;
};

struct SessionPage {
  std::uint64_t magic;
  std::uint32_t layout_version;
  std::uint32_t reserved;
  alignas(64) std::atomic<std::uint64_t> lookups;
  std::atomic<std::uint64_t> gets;
  std::atomic<std::uint64_t> bytes_read;
  std::atomic<std::uint64_t> misses[kMissReasons];
  alignas(64) std::atomic<std::uint64_t> ring_written;  // number of events written by the session
  std::atomic<std::uint64_t> ring_dropped;
  alignas(64) std::atomic<std::uint64_t> ring_read;  // number of events read by the owner
  Lane lanes[kLanes];
  RingEvent ring[kRingEvents];
};

// The area after the page in the session's file, from kStagingOffset on. A session writes values of
// a put there, so that no socket copies them. The session raises `sequence` before it writes again,
// and sends the new number with its put. The owner copies a value and then reads the number: if it
// has changed, the put was too late, its caller has given up, and the copied bytes are not used.
struct Staging {
  static constexpr std::uint64_t kBytes = 1ULL << 20;
  alignas(64) std::atomic<std::uint64_t> sequence;
  alignas(64) std::byte bytes[kBytes];
};
inline constexpr std::uint64_t kStagingOffset = (sizeof(SessionPage) + 4095) / 4096 * 4096;
inline constexpr std::uint64_t kSessionFileBytes = kStagingOffset + sizeof(Staging);

}  // namespace kvcove::segment
