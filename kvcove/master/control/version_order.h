// SPDX-License-Identifier: Apache-2.0
// The order in which engines have first named the weight versions of each namespace, and which of
// them are dead: those before the version up to which the namespace was pruned. A plain state
// machine; needs a lock. See docs/generations.md.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "kvcove/master/store/facts.h"

namespace kvcove::master {

class VersionOrder {
 public:
  // Versions that are remembered, in all and of one tenant. More than there are slots, so there is
  // always one without a slot that can be forgotten.
  static constexpr std::size_t kKept = 2 * kMaxSlots;
  static constexpr std::size_t kKeptOfTenant = kKept / 4;

  void Load(const StoredState& state);

  // Returns the number of a version that an engine has named; of two the earlier one has the lower
  // number. Equal numbers: an earlier build has not said which was first.
  std::optional<std::uint64_t> NumberOf(std::string_view name, std::string_view version) const;
  bool Dead(std::string_view name, std::string_view version) const;
  std::size_t size() const { return all_.size(); }
  std::size_t dead() const { return dead_; }

  // A decision. Plan...() makes it and adds the facts to be stored to `changes`; Apply carries it
  // out once they are stored.
  struct Change {
    std::optional<VersionFact> named{};
    std::optional<VersionFact> forgotten{};
    std::optional<PrunedFact> pruned{};
    std::uint64_t dies = 0;  // versions that `pruned` makes dead
  };
  // Plans to remember a version that an engine names, if that is the first time. In the place of
  // the earliest one for which `has_slot` is false, if there are too many.
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
  std::optional<VersionFact> ToForget(std::string_view tenant, const HasSlot& has_slot) const;
  void Add(const VersionFact& version);
  void Forget(const VersionFact& version);

  std::map<std::string, Namespace, std::less<>> namespaces_;
  std::set<std::tuple<std::uint64_t, std::string, std::string>> all_;  // number, namespace, version
  std::map<std::string, std::size_t, std::less<>> of_tenants_;
  std::size_t dead_ = 0;
};

}  // namespace kvcove::master
