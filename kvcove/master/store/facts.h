// SPDX-License-Identifier: Apache-2.0
// The facts of the control store as types: their keys and their values. Plain values, no I/O.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/master/store/control_store.h"
#include "kvcove/model/ids.h"

namespace kvcove::master {

// key "pool". `pool` is drawn once, `incarnation` again with each loss of facts and each restore.
struct PoolFact {
  Id128 pool;
  Id128 incarnation;
  // The counter of the last generation number that is known to have been given.
  std::uint64_t counter = 0;
  // The longest lease that any master of this pool may have given.
  std::int64_t longest_lease_ns = 0;
  // The last master ended when no lease was running.
  bool clean_end = false;
  // Owners that this store does not know may hold leases, from a master that it does not know.
  bool unknown_leases = false;
  bool operator==(const PoolFact&) const = default;
};

// key "terms": the latest masters, oldest first. A term ends before the next one's first revision.
struct TermFact {
  std::uint64_t term = 0;
  std::uint64_t tag = 0;
  std::uint64_t first_revision = 0;
  bool operator==(const TermFact&) const = default;
};
inline constexpr std::size_t kTermsKept = 256;

// key "slot/NNNNN": one namespace and weight version. A free slot keeps its fact: by the fact's
// revision owners learn that the slot is free, and its generation is never given again.
struct SlotFact {
  Generation generation = 0;
  bool free = false;
  std::string name;
  std::string version;
  bool operator==(const SlotFact&) const = default;
};

// key "member/ID": the identity of an owner's memory.
struct MemberFact {
  std::uint16_t number = 0;
  bool disk = false;
  std::string address;
  std::string host;
  std::string tenant;
  std::int64_t joined_s = 0;  // Unix time
  bool operator==(const MemberFact&) const = default;
};

// key "barrier/ID/NNNNN": removals from the slot were proven, or values replaced, although the
// member had not applied that. `acknowledged`: the last removal that the member had applied.
struct BarrierFact {
  std::uint64_t term = 0;
  std::uint64_t acknowledged = 0;
  bool operator==(const BarrierFact&) const = default;
};

// key "opening/ID": the last opening of a member's data directory (wire::OwnerHello::opening). Not
// a part of MemberFact: masters of earlier versions could not read that, and ignore this key.
struct OpeningFact {
  Id128 opening;
  bool operator==(const OpeningFact&) const = default;
};

// key "version/NAMESPACE/VERSION", hashes: a weight version that an engine has named. `number`: the
// counter of the first generation that the version had, so it says which of two was named first.
struct VersionFact {
  std::uint64_t number = 0;
  std::string name;  // of the namespace
  std::string version;
  bool operator==(const VersionFact&) const = default;
};

// key "pruned/NAMESPACE", a hash: versions of the namespace with lower numbers are dead.
struct PrunedFact {
  std::uint64_t before = 0;
  std::string name;
  bool operator==(const PrunedFact&) const = default;
};

// key "tombstones/TENANT/NNNNN", the tenant's hash: dead versions of which nothing but a hash is
// kept, in the order in which they got here. Facts with higher numbers are later.
struct TombstonesFact {
  std::uint32_t number = 0;
  std::string tenant;
  std::vector<std::uint64_t> versions;  // VersionHash
  bool operator==(const TombstonesFact&) const = default;
};
inline constexpr std::size_t kTombstonesInFact = 4096;

inline constexpr std::string_view kPoolKey = "pool";
inline constexpr std::string_view kTermsKey = "terms";
std::string SlotKey(SlotId slot);
std::string MemberKey(const Id128& member);
std::string BarrierKey(const Id128& member, SlotId slot);
std::string OpeningKey(const Id128& member);
// Returns the key of a reset that was carried out. Each tenant has a share of these.
std::string ResetKey(std::string_view tenant, const Id128& id);
// Returns the key that says that an engine has reset the namespace.
std::string EngineResetKey(std::string_view name);
std::string VersionKey(std::string_view name, std::string_view version);
std::string PrunedKey(std::string_view name);
std::string TombstonesKey(std::string_view tenant, std::uint32_t number);
// Stands for a version of a namespace in a tombstone.
std::uint64_t VersionHash(std::string_view name, std::string_view version);

std::string Encode(const PoolFact& fact);
std::string Encode(const std::vector<TermFact>& terms);
std::string Encode(const SlotFact& fact);
std::string Encode(const MemberFact& fact);
std::string Encode(const BarrierFact& fact);
std::string Encode(const OpeningFact& fact);
std::string Encode(const VersionFact& fact);
std::string Encode(const PrunedFact& fact);
std::string Encode(const TombstonesFact& fact);

// All facts, decoded.
struct StoredState {
  std::optional<PoolFact> pool;
  std::vector<TermFact> terms;
  struct Slot {
    SlotId slot = 0;
    SlotFact fact;
    std::uint64_t revision = 0;
  };
  std::vector<Slot> slots;
  struct Member {
    Id128 id;
    MemberFact fact;
  };
  std::vector<Member> members;
  struct Barrier {
    Id128 member;
    SlotId slot = 0;
    BarrierFact fact;
  };
  std::vector<Barrier> barriers;
  struct Opening {
    Id128 member;
    OpeningFact fact;
  };
  std::vector<Opening> openings;
  struct ResetId {
    std::string tenant;
    Id128 id;
    std::uint64_t revision = 0;
  };
  std::vector<ResetId> reset_ids;          // by revision
  std::vector<std::string> engine_resets;  // keys
  std::vector<VersionFact> versions;
  std::vector<PrunedFact> pruned;
  std::vector<TombstonesFact> tombstones;
};
// Decodes all facts; ignores keys of later versions. Errors: kCorrupt, with the key.
Result<StoredState> Decode(const Facts& facts);

}  // namespace kvcove::master
