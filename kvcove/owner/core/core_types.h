// SPDX-License-Identifier: Apache-2.0
// The plain values that enter and leave an owner's core.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/owner/core/lower_tier.h"
#include "kvcove/policy/policy.h"
#include "kvcove/segment/layout.h"
#include "kvcove/wire/cluster.h"
#include "kvcove/wire/owner_link.h"
#include "kvcove/wire/tasks.h"

namespace kvcove::owner {

using policy::kNoObject;
using policy::ObjectId;
using segment::Place;
using segment::Version;
using wire::FinishItem;
using wire::ObjectStat;
using wire::PinKind;
using wire::PoolStat;
using wire::PutItem;
using wire::PutResult;
using wire::SessionNumber;

// The quota of one space (owner/core/spaces.h).
struct Quota {
  std::uint64_t maximum_bytes = ~0ULL;
  std::uint64_t guaranteed_bytes = 0;
  bool operator==(const Quota&) const = default;
};
using Quotas = std::unordered_map<std::string, Quota>;

// The quota of one namespace or tenant on all disks of an owner together.
struct DiskQuota {
  std::uint64_t maximum_bytes = ~0ULL;
  std::uint64_t guaranteed_bytes = 0;
  std::uint64_t read_rate = 0;  // bytes a second; 0: any rate
  std::uint64_t write_rate = 0;
  bool operator==(const DiskQuota&) const = default;
};
using DiskQuotas = std::unordered_map<std::string, DiskQuota>;

struct CoreOptions {
  std::uint64_t payload_bytes = 0;
  std::uint64_t max_objects = 0;
  std::string policy = "default";
  Quotas quotas;                           // by namespace, or by tenant
  std::int64_t key_deadline_ns = kSecond;  // how long a reservation holds its key
  // True: several tenants share this memory, so the core clears it before another one gets it.
  bool clear_foreign = false;
  // True in a cluster: an object becomes visible when the master has listed it, and the core
  // reports evicted and removed objects to the master.
  bool listed = false;
  LowerTier* lower = nullptr;  // takes evicted objects; ~Core makes no call of it
  // Most bytes of changes that wait for TakeKeyChanges. 0: nobody takes them, and none is kept.
  std::uint64_t key_changes_bytes = 0;
};

// A committed put that waits for the master to list it.
struct Pending {
  std::uint64_t reservation = 0;
  wire::ListItem item;
};

// An object lent to a transfer: its bytes remain unchanged until Return.
struct Loan {
  Code code = Code::kMiss;
  MissReason reason = MissReason::kNone;
  std::uint32_t size_bytes = 0;
  bool has_checksum = false;
  std::uint64_t checksum = 0;
  Place place = 0;  // 0: nothing was lent
  Version version = 0;
  bool hit = false;  // a reader asked for its key: Return counts it for the policy
  std::vector<Extent> extents;
};

// A loan with the facts that another owner needs to store a copy of the object.
struct CopyLoan {
  Loan loan;
  ObjectId id = kNoObject;
  Token token;
  std::string key;
  std::uint32_t group = 0;
  std::uint8_t copies = 1;
  bool hard_pinned = false;
  std::int64_t pin_left_ns = 0;  // of a hard pin; 0: it has no end
};

// An object as it is reported to the master.
struct InventoryItem {
  wire::ListItem item;
  ObjectId id = kNoObject;  // kNoObject: it is on a disk
  Version version = 0;
  std::string key = {};  // where there is a disk
};

struct Counters {
  std::uint64_t puts = 0;
  std::uint64_t put_bytes = 0;
  std::uint64_t hits = 0;
  std::uint64_t evictions = 0;
  std::uint64_t removals = 0;
  std::uint64_t resets = 0;        // generations that another one replaced
  std::uint64_t voided = 0;        // objects whose generation ended, for any reason
  std::uint64_t voided_bytes = 0;  // occupied by `voided`, whole granules
  std::uint64_t swept = 0;         // objects withdrawn because their generation is dead or unnamed
  std::uint64_t stale_puts = 0;    // rejected: begun before a reset
  std::uint64_t expired_puts = 0;  // reservations whose key went to another writer
  wire::SessionCounters local;     // of sessions that have ended
};

// The work that the core has done since it was created. Tests assert the difference over one call,
// so that no call grows with the number of other objects, sessions or puts.
struct Steps {
  std::uint64_t objects = 0;        // looked at by sweeps, walks and evictions
  std::uint64_t reservations = 0;   // looked at, beyond the one that a call names
  std::uint64_t holds = 0;          // ended
  std::uint64_t pages = 0;          // sessions' pages scanned for protected objects
  std::uint64_t withdrawn = 0;      // looked at to see whether anything still protects them
  std::uint64_t spaces = 0;         // asked for a victim
  std::uint64_t scratch_bytes = 0;  // largest size so far of the lists of withdrawn objects
};

}  // namespace kvcove::owner
