// SPDX-License-Identifier: Apache-2.0
// The spaces that share an owner's payload, and the share of each. All namespaces of a tenant are
// one space, with one quota; every other namespace is a space of its own. No I/O. Not thread-safe:
// needs the core's lock.
//
//   attached (a slot uses it) -> detached -> (no object, no reservation left) -> its entry is
//   reused
//
// A space's bytes are those of its objects and of its reservations, in whole granules: a
// reservation becomes an object without a change of the sum, so the check at its begin still holds
// when it is published. A put that waits for the master counts as an object: its writer is done,
// and it may be evicted. Reservations cannot be evicted. Three bounds keep them from taking memory
// that is guaranteed to others:
//   - objects and reservations of a space together stay below its maximum;
//   - reservations of a space take at most half of the payload, over however many sessions;
//   - beyond their own guarantees, the reservations of all spaces together take at most the memory
//     that no guarantee covers, so a guarantee can always be met by evicting objects.
// One reservation is always allowed, so that a large object can be put into a small segment.
//
// Hard pins, which are never evicted, take at most half of the payload. Half of each guarantee is
// kept for its space's own pins; the spaces share the rest of that half. So the pins of one space
// never use up the memory that another space with a guarantee may pin.
//
// Spaces without a tenant may have a priority: their bytes above their guarantee count four times
// or a quarter when a victim is chosen, so under pressure their shares become 4 : 1 : 1/4.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "kvcove/owner/core/core_types.h"

namespace kvcove::owner {

class Spaces {
 public:
  using Number = std::uint16_t;
  static constexpr Number kNone = 0xFFFF;
  // More than the slots that an owner has, so only spaces whose objects remain after their last
  // slot was freed can use them up.
  static constexpr std::size_t kMaxSpaces = 8192;

  Spaces(const std::string& policy, std::uint64_t payload_bytes, const Quotas& quotas);

  // Counts one slot more for the space of namespace `of`. kNone: all entries are in use.
  Number Attach(const std::string& of);
  // Counts one slot less. The entry remains while the space has objects or reservations.
  void Detach(Number number);

  // Returns the name of the namespace, or of the tenant.
  const std::string& name(Number number) const { return At(number).name; }

  // ---- room
  bool Fits(Number number, std::uint64_t bytes) const {
    return At(number).used() + bytes <= At(number).quota.maximum_bytes;
  }
  // Returns the bytes that the space has left below its maximum.
  std::uint64_t left_bytes(Number number) const {
    const Space& space = At(number);
    return space.quota.maximum_bytes - std::min(space.quota.maximum_bytes, space.used());
  }
  std::uint64_t maximum_bytes(Number number) const { return At(number).quota.maximum_bytes; }
  bool MayReserve(Number number, std::uint64_t bytes) const;
  void Reserve(Number number, std::uint64_t bytes) { Change(number, 0, Signed(bytes), 0); }
  void Unreserve(Number number, std::uint64_t bytes);
  // Counts reserved bytes as an object's from now on, or as those of a put that waits to be one.
  void Publish(Number number, std::uint64_t bytes) {
    Change(number, Signed(bytes), -Signed(bytes), 0);
  }
  // `pinned`: the object was hard-pinned.
  void RemoveObject(Number number, std::uint64_t bytes, bool pinned);
  bool MayPin(Number number, std::uint64_t bytes) const;
  // Counts bytes as hard-pinned, or no longer: Victim skips spaces that have no others.
  void SetPinned(Number number, std::uint64_t bytes, bool pinned) {
    Change(number, 0, 0, pinned ? Signed(bytes) : -Signed(bytes));
  }
  // Sets the priority that one of the space's writers gives; the latest counts. No effect for a
  // tenant's space.
  void SetPriority(Number number, NamespacePriority priority);
  // Returns the space to evict from when `asking` needs room: itself at its maximum, else the space
  // that is most above its guarantee, weighed by priority. Nothing: no object can be evicted. O(1).
  std::optional<Number> Victim(Number asking, std::uint64_t bytes) const;

  policy::EvictionPolicy& policy(Number number) { return *spaces_[number].policy; }
  // Returns the space's serial number, which is never reused, unlike its number.
  std::uint32_t serial(Number number) const { return At(number).serial; }

  std::uint64_t object_bytes(Number number) const { return At(number).objects; }
  std::uint64_t object_bytes() const { return object_bytes_; }
  std::uint64_t reserved_bytes() const { return reserved_bytes_; }
  std::uint64_t pinned_bytes() const { return pinned_bytes_; }
  // Adds the statistics of at most `at_most` entries from `cursor` on, and moves the cursor.
  void StatSome(std::size_t& cursor, std::size_t at_most,
                std::vector<wire::NamespaceStat>& stats) const;
  std::size_t entries() const { return spaces_.size(); }

  // Without the policies' knowledge, whose format is their own: each space has its policy, and
  // `policies` what it knows. Quotas are this process's.
  void Save(StateWriter& ar, StateWriter& policies);
  void Load(StateReader& ar);
  // False, and nothing was read: the knowledge is another policy's, or another version's.
  bool LoadPolicies(StateReader& policies);
  // They know nothing again.
  void ForgetPolicies();

 private:
  struct Space {
    std::string name;
    Quota quota;
    std::unique_ptr<policy::EvictionPolicy> policy;
    std::uint32_t serial = 0;
    std::uint32_t slots = 0;
    NamespacePriority priority = NamespacePriority::kUnsaid;
    std::uint64_t objects = 0;   // bytes of its objects, and of puts that wait for the master
    std::uint64_t reserved = 0;  // bytes that are being written
    std::uint64_t pinned = 0;    // bytes of hard-pinned objects, within `objects`
    std::uint64_t used() const { return objects + reserved; }
    std::uint64_t beyond_guarantee() const {
      return reserved > quota.guaranteed_bytes ? reserved - quota.guaranteed_bytes : 0;
    }
    // Returns the hard-pinned bytes, with `more`, beyond the half of its guarantee kept for them.
    std::uint64_t pinned_beyond(std::uint64_t more = 0) const {
      const std::uint64_t kept = quota.guaranteed_bytes / 2;
      return pinned + more > kept ? pinned + more - kept : 0;
    }
  };
  static std::int64_t Signed(std::uint64_t bytes) { return static_cast<std::int64_t>(bytes); }
  const Space& At(Number number) const { return spaces_[number]; }
  // Returns how far the space is above its guarantee, weighed by its priority; 0 if it has no bytes
  // that can be evicted.
  static std::uint64_t Over(const Space& space);
  void Change(Number number, std::int64_t objects, std::int64_t reserved, std::int64_t pinned);
  // Moves the space within `by_over_`, where it was at `over_before`.
  void Rank(Number number, std::uint64_t over_before);
  void FreeIfUnused(Number number);

  const std::string policy_;
  const std::uint64_t payload_bytes_;
  const Quotas quotas_;
  std::uint64_t guaranteed_bytes_ = 0;  // sum over all quotas
  std::vector<Space> spaces_;
  std::vector<Number> free_;
  std::unordered_map<std::string, Number> by_name_;
  std::set<std::pair<std::uint64_t, Number>> by_over_;  // spaces with Over() > 0
  std::uint32_t next_serial_ = 1;
  std::uint64_t object_bytes_ = 0;
  std::uint64_t reserved_bytes_ = 0;
  std::uint64_t pinned_bytes_ = 0;
  std::uint64_t pinned_beyond_ = 0;      // sum of pinned_beyond() over all spaces
  std::uint64_t beyond_guarantees_ = 0;  // sum of beyond_guarantee() over all spaces
};

}  // namespace kvcove::owner
