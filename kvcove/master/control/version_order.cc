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
  return number && *number < namespaces_.find(name)->second.pruned_before;
}

// ---- naming

std::optional<VersionFact> VersionOrder::ToForget(std::string_view tenant,
                                                  const HasSlot& has_slot) const {
  const auto own = of_tenants_.find(tenant);
  const bool share_used =
      !tenant.empty() && own != of_tenants_.end() && own->second >= kKeptOfTenant;
  if (!share_used && all_.size() < kKept) return std::nullopt;
  for (const auto& [number, name, version] : all_) {
    if (share_used && TenantOf(name) != tenant) continue;
    if (has_slot(name, version)) continue;
    return VersionFact{.number = number, .name = name, .version = version};
  }
  return std::nullopt;
}

VersionOrder::Change VersionOrder::PlanName(const VersionFact& version, const HasSlot& has_slot,
                                            std::vector<FactChange>& changes) const {
  if (NumberOf(version.name, version.version)) return {};
  Change change{.named = version, .forgotten = ToForget(TenantOf(version.name), has_slot)};
  changes.push_back({.key = VersionKey(version.name, version.version), .value = Encode(version)});
  if (!change.forgotten) return change;
  const VersionFact& gone = *change.forgotten;
  changes.push_back({.key = VersionKey(gone.name, gone.version), .value = std::nullopt});
  const Namespace& of = namespaces_.at(gone.name);
  if (gone.number < of.pruned_before && of.dead() == 1) {
    changes.push_back({.key = PrunedKey(gone.name), .value = std::nullopt});
  }
  return change;
}

// ---- pruning

Result<VersionOrder::Change> VersionOrder::PlanPrune(std::string_view name, std::string_view before,
                                                     std::vector<FactChange>& changes) const {
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

void VersionOrder::Forget(const VersionFact& version) {
  const auto of = namespaces_.find(version.name);
  if (version.number < of->second.pruned_before) --dead_;
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

void VersionOrder::Apply(const Change& change) {
  if (change.forgotten) Forget(*change.forgotten);
  if (change.named) Add(*change.named);
  if (!change.pruned) return;
  namespaces_[change.pruned->name].pruned_before = change.pruned->before;
  dead_ += change.dies;
}

}  // namespace kvcove::master
