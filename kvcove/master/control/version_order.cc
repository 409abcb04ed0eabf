// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/control/version_order.h"

#include <fmt/core.h>

#include <algorithm>

namespace kvcove::master {

std::size_t VersionOrder::Namespace::dead() const {
  return static_cast<std::size_t>(std::ranges::count_if(
      numbers, [&](const auto& version) { return version.second < pruned_before; }));
}

void VersionOrder::Load(const StoredState& state) {
  for (const VersionFact& version : state.versions) Add(version);
  for (const PrunedFact& pruned : state.pruned) {
    // An earlier build may have stored none of its versions.
    const auto at = namespaces_.find(pruned.name);
    if (at == namespaces_.end()) continue;
    at->second.pruned_before = pruned.before;
    dead_ += at->second.dead();
  }
  for (const TombstonesFact& fact : state.tombstones) Bury(fact);
}

std::optional<std::uint64_t> VersionOrder::NumberOf(std::string_view name,
                                                    std::string_view version) const {
  const auto of = namespaces_.find(name);
  if (of == namespaces_.end()) return std::nullopt;
  const auto at = of->second.numbers.find(version);
  if (at == of->second.numbers.end()) return std::nullopt;
  return at->second;
}

bool VersionOrder::Dead(std::string_view name, std::string_view version) const {
  const auto number = NumberOf(name, version);
  return (number && IsDead(*number, name)) || buried_.contains(VersionHash(name, version));
}

std::vector<std::string> VersionOrder::Names() const {
  std::vector<std::string> names;
  names.reserve(namespaces_.size());
  for (const auto& [name, of] : namespaces_) names.push_back(name);
  return names;
}

// ---- naming

std::vector<VersionFact> VersionOrder::ToLeave(std::string_view tenant,
                                               const HasSlot& has_slot) const {
  const auto own = of_tenants_.find(tenant);
  const bool share_used =
      !tenant.empty() && own != of_tenants_.end() && own->second >= kKeptOfTenant;
  if (!share_used && all_.size() < kKept) return {};
  std::vector<VersionFact> dead;  // of one tenant
  std::optional<VersionFact> other;
  for (const auto& [number, name, version] : all_) {
    if (share_used && TenantOf(name) != tenant) continue;
    const bool is_dead = IsDead(number, name);
    const bool fits =
        is_dead ? dead.empty() || TenantOf(name) == TenantOf(dead.front().name) : !other;
    if (!fits || has_slot(name, version)) continue;
    VersionFact one{.number = number, .name = name, .version = version};
    if (is_dead) {
      dead.push_back(std::move(one));
    } else {
      other = std::move(one);
    }
    if (dead.size() == kBuriedAtOnce || (other && dead_ == 0)) break;
  }
  if (dead.empty() && other) return {std::move(*other)};
  return dead;
}

TombstonesFact VersionOrder::PlanTombstones(const std::vector<VersionFact>& dead,
                                            std::vector<FactChange>& changes) const {
  TombstonesFact fact{.tenant = std::string(TenantOf(dead.front().name)), .versions = {}};
  if (const auto own = tombstones_.find(fact.tenant); own != tombstones_.end()) {
    const auto& [number, versions] = *own->second.rbegin();
    if (versions.size() + dead.size() <= kTombstonesInFact) {
      fact.number = number;
      fact.versions = versions;
    } else {
      fact.number = number + 1;
      if (own->second.size() >= kTombstonesKept) {
        changes.push_back(
            {.key = TombstonesKey(fact.tenant, own->second.begin()->first), .value = std::nullopt});
      }
    }
  }
  for (const VersionFact& one : dead) fact.versions.push_back(VersionHash(one.name, one.version));
  changes.push_back({.key = TombstonesKey(fact.tenant, fact.number), .value = Encode(fact)});
  return fact;
}

VersionOrder::Change VersionOrder::PlanName(const VersionFact& version, const HasSlot& has_slot,
                                            std::vector<FactChange>& changes) const {
  if (NumberOf(version.name, version.version)) return {};
  Change change{.named = version, .left = ToLeave(TenantOf(version.name), has_slot)};
  changes.push_back({.key = VersionKey(version.name, version.version), .value = Encode(version)});
  std::map<std::string_view, std::size_t> dead;  // by namespace
  for (const VersionFact& gone : change.left) {
    changes.push_back({.key = VersionKey(gone.name, gone.version), .value = std::nullopt});
    if (IsDead(gone.number, gone.name)) ++dead[gone.name];
  }
  if (!dead.empty()) change.tombstones = PlanTombstones(change.left, changes);
  for (const auto& [name, count] : dead) {
    if (namespaces_.find(name)->second.dead() == count) {
      changes.push_back({.key = PrunedKey(name), .value = std::nullopt});
    }
  }
  return change;
}

// ---- pruning

Result<VersionOrder::Change> VersionOrder::PlanPrune(std::string_view name, std::string_view before,
                                                     std::vector<FactChange>& changes) const {
  if (Dead(name, before)) return Change{};  // so are all before it
  const auto number = NumberOf(name, before);
  if (!number) {
    return Fail(Code::kInvalid,
                fmt::format("nobody has named the weight version '{}' of namespace '{}' yet, so "
                            "none can be before it; an engine names it when it first captures, "
                            "stores or looks up under it",
                            before, ReadableName(name)));
  }
  const Namespace& of = namespaces_.find(name)->second;
  const auto dies =
      static_cast<std::uint64_t>(std::ranges::count_if(of.numbers, [&](const auto& version) {
        return version.second >= of.pruned_before && version.second < *number;
      }));
  if (dies == 0) return Change{};
  Change change{.pruned = PrunedFact{.before = *number, .name = std::string(name)}, .dies = dies};
  changes.push_back({.key = PrunedKey(name), .value = Encode(*change.pruned)});
  return change;
}

// ---- carrying out

void VersionOrder::Add(const VersionFact& version) {
  namespaces_[version.name].numbers[version.version] = version.number;
  all_.emplace(version.number, version.name, version.version);
  ++of_tenants_[std::string(TenantOf(version.name))];
}

void VersionOrder::Leave(const VersionFact& version) {
  const auto of = namespaces_.find(version.name);
  if (IsDead(version.number, version.name)) --dead_;
  of->second.numbers.erase(version.version);
  if (of->second.numbers.empty()) {
    namespaces_.erase(of);
  } else if (of->second.dead() == 0) {
    of->second.pruned_before = 0;  // as it is stored
  }
  all_.erase({version.number, version.name, version.version});
  const auto tenant = of_tenants_.find(TenantOf(version.name));
  if (--tenant->second == 0) of_tenants_.erase(tenant);
}

void VersionOrder::Bury(const TombstonesFact& fact) {
  auto& facts = tombstones_[fact.tenant];
  facts[fact.number] = fact.versions;
  buried_.insert(fact.versions.begin(), fact.versions.end());
  if (facts.size() <= kTombstonesKept) return;
  for (const std::uint64_t version : facts.begin()->second) buried_.erase(version);
  facts.erase(facts.begin());
}

void VersionOrder::Apply(const Change& change) {
  for (const VersionFact& version : change.left) Leave(version);
  if (change.tombstones) Bury(*change.tombstones);
  if (change.named) Add(*change.named);
  if (!change.pruned) return;
  namespaces_[change.pruned->name].pruned_before = change.pruned->before;
  dead_ += change.dies;
}

}  // namespace kvcove::master
