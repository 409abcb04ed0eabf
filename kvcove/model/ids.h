// SPDX-License-Identifier: Apache-2.0
// The nouns that every part shares. Plain values, no I/O.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kvcove/base/random.h"
#include "kvcove/base/result.h"

namespace kvcove {

inline constexpr std::uint32_t kMaxKeyBytes = 1024;
inline constexpr std::uint64_t kMaxObjectBytes = 256ULL << 20;
// Values up to this size travel with their put in one round trip.
inline constexpr std::uint64_t kInlineBytes = 16ULL << 10;
inline constexpr std::uint32_t kMaxNameBytes = 512;  // of a namespace, a version, an engine
inline constexpr std::uint32_t kMaxBatch = 65536;    // items of one call
inline constexpr std::uint32_t kMaxSlots = 4096;     // namespaces x weight versions in use

// The index of one (namespace, weight version) in the pool's generation table.
using SlotId = std::uint16_t;
// Never reused within an incarnation of the pool; 0 = none. Compared for equality only.
using Generation = std::uint64_t;

// A piece of a segment's payload, in its granules (segment/payload.h).
struct Extent {
  std::uint32_t start = 0;
  std::uint32_t count = 0;
  bool operator==(const Extent&) const = default;
};

// What a put is begun under. Captured when the oldest KV that the value depends on was scheduled.
struct Token {
  Id128 incarnation;  // of the pool
  Generation generation = 0;
  SlotId slot = 0;

  bool operator==(const Token&) const = default;
  // 52 lower-case hex digits, to hand a token to another process.
  KVCOVE_API std::string ToString() const;
  // Errors: kInvalid.
  KVCOVE_API static Result<Token> Parse(std::string_view text);
};

// What an owner must know of a slot; the master publishes it before it answers anybody.
struct SlotUpdate {
  SlotId slot = 0;
  Generation generation = 0;  // 0: the slot is free
  std::string name;           // of the namespace, for quotas
  bool named = true;  // false: no engine uses this version any more, so it is reclaimed first
  bool operator==(const SlotUpdate&) const = default;
};

// Why a lookup or a get found nothing. Fixed values: counters in shared pages are indexed by them.
enum class MissReason : std::uint8_t {
  kNone = 0,         // a hit
  kNeverPut = 1,     // nothing known under this key (or forgotten long ago)
  kEvicted = 2,      // made room for others
  kRemoved = 3,      // somebody removed it
  kReset = 4,        // computed before a reset
  kLease = 5,        // its owner's lease ran out, or it is back and does not show the slot yet
  kClosed = 6,       // this session must reset first
  kUnavailable = 7,  // no connection to the pool
  kRaced = 8,        // it went away between lookup and get
  kLimited = 9,      // over a limit: what readers protect, or calls and bytes of a tenant
  kOwnerGone = 10,   // the owner that held it is dead, frozen, cut off, or not fully back yet
  kWarmingUp = 11,   // the master has just started and does not know all owners' objects yet
  kTimeout = 12,     // its owner did not answer in time
  kDenied = 13,      // this credential may not read it
  // Of the disk tier, which had it:
  kDiskDamaged = 14,  // its record is not what was written; it is dropped
  kDiskFailed = 15,   // the disk could not read it, or is set aside
  kDiskTimeout = 16,  // the disk did not answer in time
  kNoRoom = 17,       // memory had no room to bring it up
  // Of the directory:
  kShardAway = 18,  // the master that knows where this key is does not answer, or has just changed
};
inline constexpr std::size_t kMissReasons = 19;
KVCOVE_API std::string_view MissReasonName(MissReason reason);

// Where a value was found.
enum class Tier : std::uint8_t {
  kUnknown = 0,
  kMemory = 1,        // of this host
  kRemoteMemory = 2,  // of another
  kDisk = 3,
};
inline constexpr std::size_t kTiers = 4;

// A namespace's name as the pool knows it: that of a tenant's is its own, whatever it is called.
// Nobody but the master makes such names: CheckName refuses them.
std::string QualifiedName(std::string_view tenant, std::string_view name);
// Empty for a namespace of nobody.
std::string_view TenantOf(std::string_view qualified);
std::string_view NameWithinTenant(std::string_view qualified);
// "tenant:name", for people.
std::string ReadableName(std::string_view qualified);
// Stands for a tenant's name; 0 for the empty one.
std::uint64_t TenantTag(std::string_view tenant);

// What the master knows a key of a slot by. The owners compare whole keys.
Id128 DirectoryHash(SlotId slot, std::string_view key);

// kInvalid unless 1 <= size <= kMaxKeyBytes.
Status CheckKey(std::string_view key);
// kInvalid when it is longer than kMaxNameBytes or holds a control character; `what` names it in
// the message.
Status CheckName(std::string_view name, std::string_view what);
// kInvalid unless 1 <= size <= kMaxObjectBytes.
Status CheckObjectSize(std::uint64_t size_bytes);

}  // namespace kvcove
