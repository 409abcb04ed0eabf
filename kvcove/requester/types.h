// SPDX-License-Identifier: Apache-2.0
// Arguments and results of a session's calls. Keys and buffers must stay valid until the call ends,
// or its final completion. Each member has an initializer, so that callers may set only some.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/model/hints.h"
#include "kvcove/model/ids.h"
#include "kvcove/model/stats.h"

namespace kvcove {

struct ConstBuffer {
  const void* data = nullptr;
  std::size_t size = 0;
};
struct MutableBuffer {
  void* data = nullptr;
  std::size_t size = 0;
};

// A value to store, in one or several pieces, in order. 1 B to 256 MiB together.
struct PutItem {
  std::string_view key{};
  std::span<const ConstBuffer> value{};
  // Key of the previous chunk in its chain. Empty: the previous item of the batch (for the first
  // item: CallOptions::after).
  std::string_view after{};
  // Hints about this chunk and its request, for eviction: optional, and harmless if wrong.
  Hints hints{};
};

// Buffers for one value, in order. Together they may be larger than the value.
struct GetItem {
  std::string_view key{};
  std::span<const MutableBuffer> into{};
};

// Outcome of one item.
struct ItemResult {
  Code code = Code::kInternal;
  MissReason reason = MissReason::kNone;  // with kMiss
  std::uint64_t bytes = 0;                // size of the value, if known
  Tier tier = Tier::kUnknown;             // look-ups and gets: tier in which it was found
  std::uint32_t replicas = 1;             // puts: number of owners that have it
  bool listed = true;  // puts: false if the master has not listed it yet, so other hosts miss it
  // Borrows and reservations in a cluster: not possible on this host. Get or Put reaches others.
  bool elsewhere = false;
  // Look-ups with CallOptions::under_way: a miss whose save somebody has announced, or may have: an
  // owner of this host that knows of saves did not answer in time.
  bool under_way = false;
  bool ok() const { return code == Code::kOk; }
};

// An owner that has a value.
struct ObjectPlace {
  std::string owner;          // host:port; "local" in a pool of one host
  Tier tier = Tier::kMemory;  // of that owner; kMemory or kDisk
  std::uint64_t bytes = 0;    // size of the value; 0: not known without a read of the disk
};

// An owner's part of a prefix (Session::Locate), in keys.
struct OwnerPrefix {
  std::string owner{};            // host:port; "local" in a pool of one host
  std::size_t prefix = 0;         // leading keys that it has
  std::size_t memory_prefix = 0;  // leading keys that it has in memory
  std::size_t memory = 0;         // of the found keys those that it has in memory
  std::size_t disk = 0;           // and those that it has on a disk only
};

// The leading keys of a prefix that have an owner.
struct LocatedPrefix {
  std::size_t keys = 0;                   // their number
  MissReason reason = MissReason::kNone;  // why the next key has no owner; kNone: each key has one
  std::vector<OwnerPrefix> owners{};      // longest prefix first
};

// An object in Session::List.
struct StoredObject {
  std::string key;
  std::uint64_t size_bytes = 0;
  bool hard_pinned = false;
  bool soft_pinned = false;
  bool held = false;
  Tier tier = Tier::kMemory;  // kDisk: on a disk only
};

// Number of objects of one namespace and version at the owners that answer.
struct ObjectCount {
  Generation generation = 0;
  std::uint64_t objects = 0;
  std::uint64_t voided = 0;  // objects that the reset voided which began this generation
};

struct CallOptions {
  std::chrono::milliseconds timeout{1000};
  std::string_view version{};  // weight version; lookups, gets, pins, removals
  std::string_view after{};    // puts: key of the chunk before the first item
  // Look-ups and gets hold the values that they find on this host for this long. For a look-up,
  // owners of other hosts also promote such values from their disks, and hold them as long
  // (Session::Hold).
  std::chrono::milliseconds hold{0};
  // Look-ups also report which missing values are being saved (Session::Announce). Costs one call
  // if the pool is on this host, a key is missing and a save was announced within 2 s; else none.
  bool under_way = false;
  // Captures also prove that their generation is the present one: by the lease of an owner of this
  // host, else by a call to the master. For callers that put it into keys, and look up by these. A
  // put needs no proof, because the owner that stores checks the token.
  bool leased = false;
};

struct ResetOptions {
  std::chrono::milliseconds timeout{2500};
  // Version of this engine's weights from now on. A change of version voids nothing; the current
  // version, or none, voids the stored objects.
  std::optional<std::string> version{};
  // For an operator or trainer: all objects are void, and every session follows to the new
  // generation without a reset of its own.
  bool all_void = false;
};

// Settings that the master of a cluster last sent: its options, and this process's permissions.
struct PoolSettings {
  std::chrono::milliseconds read_hold{0};  // default of stores that set none; 0: their own default
  std::string admin{};                     // host:port of its admin endpoint, if it has one
  // Scopes of this process's token, such as "read"; empty: all, or the master sent none.
  std::vector<std::string> scopes{};
};

// Choice of the owner for a put in a cluster, if no segment is preferred.
enum class Placement : std::uint8_t {
  kLocalFirst = 0,      // the owner on this host, else at random in proportion to free bytes
  kFreeRatioFirst = 1,  // the owner with the largest fraction of free memory
  kRandom = 2,          // at random, all owners alike
};
// Parses "local-first", "free-ratio-first", "random". Errors: kInvalid with the nearest valid name.
KVCOVE_API Result<Placement> ParsePlacement(std::string_view name);
KVCOVE_API std::string_view PlacementName(Placement placement);

struct SessionOptions {
  std::string name{};    // namespace: tenant and model fingerprint
  std::string engine{};  // the same for all processes of an engine; empty: this session alone
  // Stay open when another engine resets: this session's weights always follow.
  bool follow_always = false;
  // Start open on a namespace that engines reset: the caller vouches for the weights. Counts for
  // the session's first registration only.
  bool assume_weights = false;
  // In a cluster: owners (host:port, separated by commas) for puts, best first. Empty:
  // $KVCOVE_PREFERRED_SEGMENT, else $MOONCAKE_PREFERRED_SEGMENT, else the owner on this host, else
  // the one with most free space. If no preferred owner is known or has room, the session counts
  // that, logs it once, and uses another owner.
  std::string preferred_segment{};
  // Empty: the pool's (`placement=` in its address), else local-first.
  std::optional<Placement> placement{};
  // In a cluster: number of hosts that store each value. May become fewer: ItemResult::replicas.
  std::uint32_t replicas = 1;
  // Bytes of each owner's memory that may be borrowed at the same time (Session::Borrow); 0: up to
  // the process's bound. One value may always be borrowed.
  std::uint64_t borrow_bytes = 0;
};

}  // namespace kvcove
