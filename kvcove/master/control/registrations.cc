// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/control/registrations.h"

#include <fmt/core.h>

namespace kvcove::master {
namespace {

// The share of one tenant, where there are tenants.
constexpr std::size_t kTenantBindings = Registrations::kMaxBindings / 4;

}  // namespace

Status Registrations::CheckRoom(std::string_view name, std::string_view engine) const {
  if (Find(name, engine) != nullptr) return {};
  if (bindings_.size() >= kMaxBindings) {
    return Fail(Code::kLimit, fmt::format("{} engines are registered already; close some sessions",
                                          bindings_.size()));
  }
  const std::string_view tenant = TenantOf(name);
  const auto own = by_tenant_.find(tenant);
  if (!tenant.empty() && own != by_tenant_.end() && own->second >= kTenantBindings) {
    return Fail(Code::kLimit, fmt::format("tenant '{}' has {} registrations, its share; close some "
                                          "of its sessions",
                                          tenant, own->second));
  }
  return {};
}

Registrations::Binding& Registrations::Bind(std::string_view name, std::string_view engine,
                                            const Id128& holder, std::int64_t now_ns) {
  const Key key(name, engine);
  const auto [at, fresh] = bindings_.try_emplace(key);
  if (fresh) ++by_tenant_[std::string(TenantOf(name))];
  if (holder == Id128{}) {
    at->second.kept = true;
  } else {
    at->second.holders.insert(holder);
    Holder& of = holders_[holder];
    of.until_ns = now_ns + kHolderNs;
    of.bindings.insert(key);
  }
  return at->second;
}

Registrations::Binding& Registrations::Expect(std::string_view name, std::string_view engine,
                                              std::int64_t now_ns) {
  if (Binding* binding = Find(name, engine)) return *binding;
  return Bind(name, engine, RandomId(), now_ns);  // no process calls with this id
}

Registrations::Binding* Registrations::Find(std::string_view name, std::string_view engine) {
  const auto at = bindings_.find(Key(name, engine));
  return at == bindings_.end() ? nullptr : &at->second;
}

const Registrations::Binding* Registrations::Find(std::string_view name,
                                                  std::string_view engine) const {
  const auto at = bindings_.find(Key(name, engine));
  return at == bindings_.end() ? nullptr : &at->second;
}

void Registrations::Name(Binding& binding, SlotId slot) {
  if (!binding.named.insert(slot).second) return;
  if (++names_[slot] == 1) ++version_;
}

void Registrations::Unname(SlotId slot) {
  const auto at = names_.find(slot);
  if (at == names_.end() || --at->second > 0) return;
  names_.erase(at);
  ++version_;
}

void Registrations::SetNamed(Binding& binding, const std::set<SlotId>& slots) {
  const std::set<SlotId> before = std::exchange(binding.named, {});
  // New names first: a slot that stays named never drops to zero, so version_ does not change.
  for (const SlotId slot : slots) Name(binding, slot);
  for (const SlotId slot : before) Unname(slot);
}

void Registrations::Erase(std::map<Key, Binding, std::less<>>::iterator at) {
  for (const SlotId slot : at->second.named) Unname(slot);
  for (const Id128& holder : at->second.holders) {
    const auto of = holders_.find(holder);
    if (of == holders_.end()) continue;
    of->second.bindings.erase(at->first);
    if (of->second.bindings.empty()) holders_.erase(of);
  }
  const auto tenant = by_tenant_.find(TenantOf(at->first.first));
  if (tenant != by_tenant_.end() && --tenant->second == 0) by_tenant_.erase(tenant);
  bindings_.erase(at);
}

void Registrations::End(std::string_view name, std::string_view engine, const Id128& holder) {
  const auto at = bindings_.find(Key(name, engine));
  if (at == bindings_.end()) return;
  if (holder != Id128{}) {
    at->second.holders.erase(holder);
    if (const auto of = holders_.find(holder); of != holders_.end()) {
      of->second.bindings.erase(at->first);
      if (of->second.bindings.empty()) holders_.erase(of);
    }
    // Other processes of the engine still hold the binding.
    if (!at->second.holders.empty() || at->second.kept) return;
  }
  Erase(at);
}

void Registrations::Heard(const Id128& holder, std::int64_t now_ns) {
  const auto at = holders_.find(holder);
  if (at != holders_.end()) at->second.until_ns = now_ns + kHolderNs;
}

void Registrations::EndHolder(const Id128& holder) {
  const auto at = holders_.find(holder);
  if (at == holders_.end()) return;
  const std::set<Key> mine = at->second.bindings;  // a copy: End erases from the original
  for (const Key& key : mine) End(key.first, key.second, holder);
}

bool Registrations::Expire(std::int64_t now_ns) {
  const std::uint64_t before = version_;
  if (!all_named_ended_ && now_ns >= all_named_until_ns_) {
    all_named_ended_ = true;
    inherited_.clear();
    ++version_;
  }
  std::vector<Id128> gone;
  for (const auto& [id, holder] : holders_) {
    if (holder.until_ns <= now_ns) gone.push_back(id);
  }
  for (const Id128& id : gone) EndHolder(id);
  return version_ != before;
}

void Registrations::Unname(const std::string& name, const std::set<SlotId>& slots) {
  // An engine names few slots, and of those that are given there may be thousands.
  ForEachOf(name, [&](const std::string&, Binding& binding) {
    std::erase_if(binding.named, [&](SlotId slot) {
      if (!slots.contains(slot)) return false;
      Unname(slot);
      return true;
    });
  });
  for (const SlotId slot : slots) version_ += inherited_.erase(slot);
}

void Registrations::ForgetSlot(SlotId slot) {
  inherited_.erase(slot);
  if (names_.erase(slot) == 0) return;
  for (auto& [key, binding] : bindings_) binding.named.erase(slot);
  ++version_;
}

}  // namespace kvcove::master
