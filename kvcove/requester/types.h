// SPDX-License-Identifier: Apache-2.0
// What callers hand in and get back. Keys and buffers must stay valid until the call, or its
// completion, ends. Each member has an initializer, so that callers may name only those they mean.
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

// One value from one or several pieces, in order. 1 B to 256 MiB together.
struct PutItem {
  std::string_view key{};
  std::span<const ConstBuffer> value{};
  // The key of the chunk before it in its chain. Empty: the item before it in the batch (for the
  // first item: CallOptions::after).
  std::string_view after{};
  // Of this chunk and its request, for eviction: optional, and harmless when wrong.
  Hints hints{};
};

// One value into one or several pieces, in order. They may be larger together than the value.
struct GetItem {
  std::string_view key{};
  std::span<const MutableBuffer> into{};
};

// What became of one item.
struct ItemResult {
  Code code = Code::kInternal;
  MissReason reason = MissReason::kNone;  // with kMiss
  std::uint64_t bytes = 0;                // of the value, where it is known
  Tier tier = Tier::kUnknown;             // look-ups and gets: where it was found
  std::uint32_t replicas = 1;             // puts: on how many owners it is
  bool listed = true;  // puts: false where the master has not listed it yet, so others miss it
  // Borrows and reservations in a cluster: not on this host. Get or Put reaches the others.
  bool elsewhere = false;
  bool ok() const { return code == Code::kOk; }
};

// An owner that has a value.
struct ObjectPlace {
  std::string owner;          // host:port; "local" in a pool of one host
  Tier tier = Tier::kMemory;  // kMemory or kDisk: of that owner
  std::uint64_t bytes = 0;    // of the value; 0: nobody knows it without reading the disk
};

// One of the objects that a session can list.
struct StoredObject {
  std::string key;
  std::uint64_t size_bytes = 0;
  bool hard_pinned = false;
  bool soft_pinned = false;
  bool held = false;
  Tier tier = Tier::kMemory;  // of the owner that has it; kDisk: it lies there only
};

// How many objects one namespace and version has, as the owners that answer say.
struct ObjectCount {
  Generation generation = 0;
  std::uint64_t objects = 0;
  std::uint64_t voided = 0;  // by the reset that began this generation
};

struct CallOptions {
  std::chrono::milliseconds timeout{1000};
  std::string_view version{};  // of the weights; lookups, gets, pins, removals
  std::string_view after{};    // puts: the chunk before the first item
  // Look-ups and gets hold what they find on this host for this long, from then on. For a look-up,
  // other hosts' owners read what is on their disks, and hold that as long (Session::Hold).
  std::chrono::milliseconds hold{0};
};

struct ResetOptions {
  std::chrono::milliseconds timeout{2500};
  // The version that this engine has from now on. A change of version erases nothing; the current
  // one, or none, voids what was stored.
  std::optional<std::string> version{};
  // An operator or trainer says that all is void: every session follows at once.
  bool all_void = false;
};

// What the master of a cluster told last: how it was started, and what this process may do.
struct PoolSettings {
  std::chrono::milliseconds read_hold{0};  // of stores that say none themselves; 0: as they like
  std::string admin{};                     // host:port of its admin endpoint, if there is one
  // The scopes of this process's token, such as "read"; empty: all, or the master does not say.
  std::vector<std::string> scopes{};
};

// Which owner of a cluster a put goes to, where no segment is preferred.
enum class Placement : std::uint8_t {
  kLocalFirst = 0,      // the one on this host, else by chance in proportion to what is free
  kFreeRatioFirst = 1,  // the one with the largest free share
  kRandom = 2,          // any, all alike
};
// "local-first", "free-ratio-first", "random". Errors: kInvalid with the nearest right name.
KVCOVE_API Result<Placement> ParsePlacement(std::string_view name);
KVCOVE_API std::string_view PlacementName(Placement placement);

struct SessionOptions {
  std::string name{};    // of the namespace: tenant and model fingerprint
  std::string engine{};  // all processes of an engine give the same; empty: this session alone
  // Never close when another engine resets: this session's weights always follow.
  bool follow_always = false;
  // On a namespace that engines reset, start open: the caller vouches for the weights.
  bool assume_weights = false;
  // In a cluster: the owners (host:port, commas between them) that puts go to, best first. Empty:
  // $KVCOVE_PREFERRED_SEGMENT, else $MOONCAKE_PREFERRED_SEGMENT, else the owner on this host, else
  // the one with most free space. Where none of them is there or has room, that is counted, logged
  // once, and another taken.
  std::string preferred_segment{};
  // Empty: the pool's (`placement=` in its address), else local-first.
  std::optional<Placement> placement{};
  // In a cluster: on how many hosts each value is stored. Fewer may be there: ItemResult::replicas.
  std::uint32_t replicas = 1;
  // Of each owner's memory, at the same time (Session::Borrow); 0: as much as the process may. One
  // value may always be borrowed.
  std::uint64_t borrow_bytes = 0;
};

}  // namespace kvcove
