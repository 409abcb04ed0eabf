// SPDX-License-Identifier: Apache-2.0
// The order in which engines have first named the weight versions of each namespace, and which of
// them are dead: those before the version up to which the namespace was pruned. A plain state
// machine; needs a lock. See docs/generations.md.
//
// The order is bounded. A version that leaves it for want of room is forgotten, unless it is dead:
// a dead version leaves its hash, a tombstone, so that no later naming revives it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_set>
#include <vector>

#include "kvcove/master/store/facts.h"

namespace kvcove::master {

class VersionOrder {
 public:
  // Versions whose order is known, in all and of one tenant. More than there are slots, so there is
  // always one without a slot that can leave.
  static constexpr std::size_t kKept = 2 * kMaxSlots;
  static constexpr std::size_t kKeptOfTenant = kKept / 4;
  // Dead versions that leave together. With one at a time, each naming would write a whole fact of
  // tombstones. Small enough for one transaction of etcd (docs/control-store.md).
  static constexpr std::size_t kBuriedAtOnce = 64;
  // Facts of tombstones of one tenant: 262,144 dead versions. The oldest fact gives its place up.
  static constexpr std::size_t kTombstonesKept = 64;

  void Load(const StoredState& state);

  // Returns the number of a version that an engine has named; of two the earlier one has the lower
  // number. Equal numbers: an earlier build has not said which was first.
  std::optional<std::uint64_t> NumberOf(std::string_view name, std::string_view version) const;
  bool Dead(std::string_view name, std::string_view version) const;
  // Returns the namespaces that have versions in the order.
  std::vector<std::string> Names() const;
  std::size_t size() const { return all_.size(); }
  std::size_t dead() const { return dead_ + buried_.size(); }

  // A decision. Plan...() makes it and adds the facts to be stored to `changes`; Apply carries it
  // out once they are stored.
  struct Change {
    std::optional<VersionFact> named{};
    std::vector<VersionFact> left{};  // forgotten, or in `tombstones`
    std::optional<TombstonesFact> tombstones{};
    std::optional<PrunedFact> pruned{};
    std::uint64_t dies = 0;  // versions that `pruned` makes dead
  };
  // Plans to remember a version that an engine names, if that is the first time. If there are too
  // many, the earliest dead ones for which `has_slot` is false leave; the earliest other one only
  // if there are none.
  using HasSlot = std::function<bool(const std::string& name, const std::string& version)>;
  Change PlanName(const VersionFact& version, const HasSlot& has_slot,
                  std::vector<FactChange>& changes) const;
  // Plans the death of all versions of the namespace with lower numbers than `before`. Changes
  // nothing if they are dead already. Errors: kInvalid: nobody has named `before`.
  Result<Change> PlanPrune(std::string_view name, std::string_view before,
                           std::vector<FactChange>& changes) const;
  void Apply(const Change& change);

 private:
  struct Namespace {
    std::map<std::string, std::uint64_t, std::less<>> numbers;  // by version
    std::uint64_t pruned_before = 0;
    std::size_t dead() const;
  };
  // Returns the versions that leave if this tenant names one more.
  std::vector<VersionFact> ToLeave(std::string_view tenant, const HasSlot& has_slot) const;
  // Returns the fact that has these dead versions of one tenant, too, from now on.
  TombstonesFact PlanTombstones(const std::vector<VersionFact>& dead,
                                std::vector<FactChange>& changes) const;
  // Returns true for the number of a dead version of this namespace, which has versions.
  bool IsDead(std::uint64_t number, std::string_view name) const {
    return number < namespaces_.find(name)->second.pruned_before;
  }
  void Add(const VersionFact& version);
  void Leave(const VersionFact& version);
  void Bury(const TombstonesFact& fact);

  std::map<std::string, Namespace, std::less<>> namespaces_;
  std::set<std::tuple<std::uint64_t, std::string, std::string>> all_;  // number, namespace, version
  std::map<std::string, std::size_t, std::less<>> of_tenants_;
  std::size_t dead_ = 0;  // of `all_`
  // The tombstones of each tenant by the numbers of their facts, and all of them.
  std::map<std::string, std::map<std::uint32_t, std::vector<std::uint64_t>>, std::less<>>
      tombstones_;
  std::unordered_set<std::uint64_t> buried_;
};

}  // namespace kvcove::master
