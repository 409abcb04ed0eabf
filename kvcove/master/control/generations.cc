// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/control/generations.h"

#include <fmt/core.h>

#include <algorithm>

namespace kvcove::master {

void Generations::Load(const StoredState& state) {
  order_.Load(state);
  for (const VersionFact& version : state.versions) RaiseCounter(version.number);
  for (const StoredState::Slot& slot : state.slots) {
    RaiseCounter(CounterOf(slot.fact.generation));
    // Register stores no fact when a generation becomes used, so any of these may be.
    // Nor does it say when a reset last shared one, which was before this start.
    slots_[slot.slot] = {.fact = slot.fact,
                         .revision = slot.revision,
                         .used = true,
                         .raised_by = {},
                         .shared_ns = started_ns_};
    if (slot.fact.free) continue;
    // No engine of a dead version can register again.
    if (!order_.Dead(slot.fact.name, slot.fact.version)) registrations_.Inherit(slot.slot);
    slots_by_name_[{slot.fact.name, slot.fact.version}] = slot.slot;
    ++slots_of_tenant_[std::string(TenantOf(slot.fact.name))];
  }
  for (const StoredState::ResetId& reset : state.reset_ids) {
    TenantResets& tenant = reset_ids_[reset.tenant];
    tenant.order.push_back(reset.id);
    tenant.ids.insert(reset.id);
  }
  engine_resets_.insert(state.engine_resets.begin(), state.engine_resets.end());
}

Generation Generations::NextNumber() {
  ++counter_;
  // A store that was put back to an older state repeats counters, but not the random bits.
  return (counter_ << 24) | (RandomU64() & 0xFFFFFF);
}

std::optional<SlotId> Generations::FindSlot(std::string_view name, std::string_view version) const {
  const auto at = slots_by_name_.find(std::pair(std::string(name), std::string(version)));
  if (at == slots_by_name_.end()) return std::nullopt;
  return at->second;
}

const Generations::SlotState* Generations::Find(std::string_view name,
                                                std::string_view version) const {
  const auto slot = FindSlot(name, version);
  return slot ? &slots_.at(*slot) : nullptr;
}

// ---- publication

Generations::Published Generations::PublishedOf(SlotId slot) const {
  const auto at = slots_.find(slot);
  if (at == slots_.end()) return {.update = {.slot = slot, .name = {}}};
  const SlotState& state = at->second;
  return {.update = {.slot = slot,
                     .generation = state.fact.free ? 0 : state.fact.generation,
                     .name = state.fact.name},
          .revision = state.revision};
}

std::vector<Generations::Published> Generations::All() const {
  std::vector<Published> all;
  for (const auto& [slot, state] : slots_) all.push_back(PublishedOf(slot));
  return all;
}

bool Generations::Unnamed(SlotId slot, std::int64_t now_ns) const {
  const auto at = slots_.find(slot);
  return at != slots_.end() && !at->second.fact.free && !at->second.fact.version.empty() &&
         !registrations_.Named(slot, now_ns);
}

std::vector<SlotId> Generations::UnnamedSlots(std::int64_t now_ns) const {
  std::vector<SlotId> unnamed;
  for (const auto& [slot, state] : slots_) {
    if (Unnamed(slot, now_ns)) unnamed.push_back(slot);
  }
  return unnamed;
}

std::vector<SlotDescription> Generations::Describe(std::int64_t now_ns) const {
  std::vector<SlotDescription> all;
  for (const auto& [slot, state] : slots_) {
    if (state.fact.free) continue;
    all.push_back({.slot = slot,
                   .name = state.fact.name,
                   .version = state.fact.version,
                   .generation = state.fact.generation,
                   .used = state.used,
                   .named = !Unnamed(slot, now_ns),
                   .dead = order_.Dead(state.fact.name, state.fact.version),
                   .order = order_.NumberOf(state.fact.name, state.fact.version).value_or(0)});
  }
  return all;
}

std::vector<EngineDescription> Generations::Engines(std::size_t at_most) const {
  std::vector<EngineDescription> engines;
  registrations_.ForEach(
      [&](const std::string& name, const std::string& engine, const Registrations::Binding& of) {
        if (engines.size() >= at_most) return false;
        engines.push_back({.name = name,
                           .engine = engine,
                           .version = of.current_version,
                           .open = Works(name, engine, of),
                           .processes = of.holders.size()});
        return true;
      });
  return engines;
}

// ---- registering

Result<SlotId> Generations::SlotFor(std::string_view name, const Taken& taken,
                                    std::int64_t now_ns) const {
  const std::string_view tenant = TenantOf(name);
  const auto stored = slots_of_tenant_.find(tenant);
  const auto own = (stored == slots_of_tenant_.end() ? 0 : stored->second) +
                   std::ranges::count_if(taken, [&](const auto& slot) {
                     return !slot.second.empty() && TenantOf(slot.second) == tenant;
                   });
  const bool share_used = !tenant.empty() && own >= options_.tenant_slots;
  if (!share_used) {
    for (std::uint32_t number = 0; number < options_.max_slots; ++number) {
      const auto slot = static_cast<SlotId>(number);
      if (taken.contains(slot)) continue;
      const auto at = slots_.find(slot);
      if (at == slots_.end() || at->second.fact.free) return slot;
    }
  }
  // Takes the slot that has been unnamed for longest, and voids its objects. Its generation is
  // never used again, so no token or entry of the old namespace can be taken for the new one's.
  // Just after a start the engines of inherited slots may not have registered, so these are last.
  std::optional<SlotId> oldest;
  for (const bool inherited : {false, true}) {
    for (const auto& [slot, state] : slots_) {
      if (state.fact.free || registrations_.Held(slot) || taken.contains(slot)) continue;
      if (!inherited && registrations_.Named(slot, now_ns)) continue;
      if (share_used && TenantOf(state.fact.name) != tenant) continue;
      const auto age = [](const SlotState& of) { return std::pair(of.named_last, of.revision); };
      if (!oldest || age(state) < age(slots_.at(*oldest))) oldest = slot;
    }
    if (oldest) break;
  }
  if (oldest) return *oldest;
  if (share_used) {
    return Fail(Code::kLimit, fmt::format("tenant '{}' uses {} pairs of namespace and weight "
                                          "version, its share; name fewer versions or close "
                                          "sessions",
                                          tenant, own));
  }
  return Fail(Code::kLimit, fmt::format("all {} pairs of namespace and weight version are in use; "
                                        "name fewer versions or close sessions",
                                        options_.max_slots));
}

Result<Generations::Plan> Generations::PlanRegister(const RegisterRequest& request,
                                                    std::int64_t now_ns) {
  KVCOVE_TRY(CheckName(NameWithinTenant(request.name), "namespace"));
  KVCOVE_TRY(CheckName(request.version, "weight version"));
  KVCOVE_TRY(CheckName(request.engine, "engine"));
  if (request.engine.empty()) return Fail(Code::kInvalid, "a registration needs an engine's name");
  if (order_.Dead(request.name, request.version)) {
    ++refused_.dead;
    return Fail(Code::kDenied,
                fmt::format("the weight version '{}' of namespace '{}' is dead: it was pruned when "
                            "later ones took its place, and nothing is found or stored under it "
                            "any more",
                            request.version, ReadableName(request.name)));
  }
  if (const Status room = registrations_.CheckRoom(request.name, request.engine); !room) {
    ++refused_.registrations;
    return std::unexpected(room.error());
  }
  Plan plan;
  if (FindSlot(request.name, request.version)) return plan;
  const Result<SlotId> slot = SlotFor(request.name, {}, now_ns);
  if (!slot) {
    ++refused_.slots;
    return std::unexpected(slot.error());
  }
  PlanSlot(*slot, request.name, request.version, plan);
  if (request.version.empty()) return plan;
  plan.order = order_.PlanName(
      {.number = CounterOf(plan.slots.back().fact.generation),
       .name = request.name,
       .version = request.version},
      [this](const std::string& name, const std::string& version) {
        return FindSlot(name, version).has_value();
      },
      plan.changes);
  return plan;
}

void Generations::PlanSlot(SlotId slot, std::string_view name, std::string_view version,
                           Plan& plan) {
  plan.slots.push_back({.slot = slot,
                        .fact = {.generation = NextNumber(),
                                 .free = false,
                                 .name = std::string(name),
                                 .version = std::string(version)}});
  plan.changes.push_back({.key = SlotKey(slot), .value = Encode(plan.slots.back().fact)});
}

void Generations::Assign(const Plan::Slot& change, std::uint64_t revision) {
  SlotState& slot = slots_[change.slot];
  const bool same = !slot.fact.free && slot.fact.name == change.fact.name &&
                    slot.fact.version == change.fact.version;
  if (!same) {
    if (const auto at = slots_by_name_.find({slot.fact.name, slot.fact.version});
        at != slots_by_name_.end() && at->second == change.slot) {
      slots_by_name_.erase(at);
      const auto tenant = slots_of_tenant_.find(TenantOf(slot.fact.name));
      if (--tenant->second == 0) slots_of_tenant_.erase(tenant);
      EndLife(slot);
    }
    registrations_.ForgetSlot(change.slot);
    slot = {.fact = {}, .raised_by = {}};
    if (!change.fact.free) {
      slots_by_name_[{change.fact.name, change.fact.version}] = change.slot;
      ++slots_of_tenant_[std::string(TenantOf(change.fact.name))];
    }
  }
  slot.fact = change.fact;
  slot.revision = revision;
  slot.used = false;
  slot.named_last = ++namings_;
}

void Generations::EndLife(const SlotState& slot) {
  if (!slot.fact.version.empty()) return;
  registrations_.ForEachOf(slot.fact.name,
                           [&](const std::string& engine, Registrations::Binding& binding) {
                             // Another engine's reset has closed this one, which has not registered
                             // since.
                             if (ClosedByAnother(binding, engine, slot)) binding.open = false;
                             binding.unsure = false;
                             binding.raises = 0;
                           });
}

bool Generations::StartsClosed(std::string_view name) const {
  return engine_resets_.size() >= kEngineResetsKept ||
         engine_resets_.contains(EngineResetKey(name));
}

bool Generations::ClosedByAnother(const Registrations::Binding& binding, std::string_view engine,
                                  const SlotState& slot) {
  return slot.engine_raises > binding.raises && slot.raised_by != engine;
}

bool Generations::StillOpen(const Registrations::Binding& binding, std::string_view engine,
                            const SlotState& slot) {
  return binding.open && !ClosedByAnother(binding, engine, slot);
}

// Only an engine that names no versions can be closed by another one's reset.
bool Generations::Works(std::string_view name, std::string_view engine,
                        const Registrations::Binding& binding) const {
  if (!binding.current_version) return false;
  if (!binding.current_version->empty()) return !order_.Dead(name, *binding.current_version);
  if (!binding.bound) return true;  // it follows every reset
  const std::optional<SlotId> slot = FindSlot(name, {});
  return slot && StillOpen(binding, engine, slots_.at(*slot));
}

bool Generations::MayOpen(const Registrations::Binding& binding, std::string_view engine,
                          const SlotState& slot) {
  return (binding.open || !binding.bound || binding.unsure) &&
         !ClosedByAnother(binding, engine, slot);
}

// Returns true if the engine has the weights that the namespace's values belong to. If there are no
// versions, only the generation that the engine was bound to says so.
bool Generations::OpenFor(const RegisterRequest& request, const Registrations::Binding& binding,
                          const SlotState& slot) const {
  const bool was_bound_to_it =
      request.last_generation == slot.fact.generation && request.last_incarnation == incarnation_;
  if (binding.bound) {
    // After a restart, a new process of the engine may register before the one that was bound.
    return was_bound_to_it || StillOpen(binding, request.engine, slot);
  }
  if (request.last_generation != 0) return was_bound_to_it;
  return request.assume_weights || !StartsClosed(request.name);
}

Registration Generations::Register(const RegisterRequest& request, const Plan& plan,
                                   std::uint64_t revision, std::int64_t now_ns) {
  for (const Plan::Slot& change : plan.slots) {
    Assign(change, revision);
    slots_[change.slot].shared_ns = now_ns;  // nobody knows who shared those of its earlier lives
  }
  order_.Apply(plan.order);
  Registrations::Binding& binding =
      registrations_.Bind(request.name, request.engine, request.holder, now_ns);
  const SlotId slot_id = *FindSlot(request.name, request.version);
  SlotState& slot = slots_[slot_id];
  bool open = true;
  if (request.version.empty() && !request.follow_always) {
    open = OpenFor(request, binding, slot);
    binding.unsure = !open && (!binding.bound || binding.unsure);
    binding.open = open;
    binding.bound = true;
    if (open) binding.raises = slot.raises;
  }
  if (open) {
    slot.used = true;
    slot.named_last = ++namings_;
    registrations_.Name(binding, slot_id);
    binding.current_version = request.version;
  }
  return {.incarnation = incarnation_,
          .slot = slot_id,
          .generation = slot.fact.generation,
          .open = open};
}

// ---- resetting

bool Generations::IsVersionChange(const ResetRequest& request) const {
  if (request.registered || !request.version || request.version->empty()) return false;
  const Registrations::Binding* binding = registrations_.Find(request.name, request.engine);
  return binding != nullptr && binding->current_version != request.version;
}

bool Generations::Repeated(const ResetRequest& request) const {
  const auto tenant = reset_ids_.find(TenantOf(request.name));
  return tenant != reset_ids_.end() && tenant->second.ids.contains(request.id);
}

void Generations::PlanResetIds(const std::vector<const ResetRequest*>& requests, Plan& plan) const {
  std::map<std::string_view, std::deque<Id128>> added;
  for (const ResetRequest* request : requests) {
    added[TenantOf(request->name)].push_back(request->id);
  }
  for (auto& [tenant, ids] : added) {
    while (ids.size() > kResetIdsKept) ids.pop_front();
    for (const Id128& id : ids) {
      plan.changes.push_back({.key = ResetKey(tenant, id), .value = std::string()});
    }
    const auto own = reset_ids_.find(tenant);
    if (own == reset_ids_.end()) continue;
    const std::deque<Id128>& order = own->second.order;
    for (std::size_t i = 0; i < order.size() && order.size() - i + ids.size() > kResetIdsKept;
         ++i) {
      plan.changes.push_back({.key = ResetKey(tenant, order[i]), .value = {}});
    }
  }
}

void Generations::RememberReset(const ResetRequest& request) {
  TenantResets& tenant = reset_ids_[std::string(TenantOf(request.name))];
  if (!tenant.ids.insert(request.id).second) return;
  tenant.order.push_back(request.id);
  while (tenant.order.size() > kResetIdsKept) {
    tenant.ids.erase(tenant.order.front());
    tenant.order.pop_front();
  }
}

std::vector<SlotId> Generations::Covered(const ResetRequest& request) const {
  const bool versioned = !request.version.value_or("").empty();
  std::vector<SlotId> covered;
  // A namespace's versions are neighbours in this map.
  for (auto at = slots_by_name_.lower_bound(std::pair(request.name, std::string()));
       at != slots_by_name_.end() && at->first.first == request.name; ++at) {
    if (!versioned || at->first.second == *request.version) covered.push_back(at->second);
  }
  return covered;
}

bool Generations::Opens(const ResetRequest& request) const {
  if (request.engine.empty()) return false;  // no session has to reset for an operator's
  if (!request.version.value_or("").empty()) return true;
  const Registrations::Binding* binding = registrations_.Find(request.name, request.engine);
  const SlotState* slot = Find(request.name, "");
  const Registrations::Binding unknown;
  return slot != nullptr && MayOpen(binding == nullptr ? unknown : *binding, request.engine, *slot);
}

std::int64_t Generations::SharedNs(const ResetRequest& request) const {
  if (!Repeated(request) || !Opens(request)) return kUnshared;
  std::int64_t latest = kUnshared;
  for (const SlotId slot : Covered(request)) {
    latest = std::max(latest, slots_.at(slot).shared_ns);
  }
  return latest;
}

void Generations::NoteSharing(const ResetRequest& request, bool repeated, std::int64_t now_ns) {
  if (repeated && !(request.late && Opens(request))) return;
  for (const SlotId number : Covered(request)) {
    SlotState& slot = slots_[number];
    if (request.late) slot.used = true;  // no other reset may share it
    if (!repeated && !request.engine.empty()) slot.shared_ns = request.late ? kUnshared : now_ns;
  }
}

Generations::Plan Generations::PlanReset(const std::vector<ResetRequest>& requests,
                                         std::int64_t now_ns) {
  Plan plan;
  Taken taken;
  std::set<std::string_view> created;
  std::set<std::string> marked;
  std::set<std::pair<std::string_view, Id128>> seen;
  std::vector<const ResetRequest*> remembered;
  for (const ResetRequest& request : requests) {
    if (Repeated(request) || IsVersionChange(request)) continue;
    if (!seen.emplace(TenantOf(request.name), request.id).second) continue;
    remembered.push_back(&request);
    const bool versioned = request.version && !request.version->empty();
    const bool by_engine = !request.engine.empty() && !versioned;
    for (const SlotId slot : Covered(request)) {
      const SlotState& state = slots_.at(slot);
      if (taken.contains(slot) || (!state.used && !request.late)) continue;
      taken.emplace(slot, std::string_view());
      PlanSlot(slot, state.fact.name, state.fact.version, plan);
      plan.slots.back().raise = true;
      plan.slots.back().reset_id = request.id;
    }
    if (by_engine && !FindSlot(request.name, "") && !created.contains(request.name)) {
      // If no slot is free the reset is still valid, but a later master cannot tell by the slot's
      // generation that this engine has reset.
      if (const Result<SlotId> slot = SlotFor(request.name, taken, now_ns)) {
        taken.emplace(*slot, request.name);
        created.insert(request.name);
        PlanSlot(*slot, request.name, "", plan);
      }
    }
    const std::string key = EngineResetKey(request.name);
    if (by_engine && !engine_resets_.contains(key) && engine_resets_.size() < kEngineResetsKept &&
        marked.insert(key).second) {
      plan.engine_resets.push_back(key);
      plan.changes.push_back({.key = key, .value = std::string()});
    }
  }
  PlanResetIds(remembered, plan);
  return plan;
}

void Generations::Reset(const std::vector<ResetRequest>& requests, const Plan& plan,
                        std::uint64_t revision, std::int64_t now_ns) {
  for (const Plan::Slot& change : plan.slots) {
    if (!change.raise) {
      Assign(change, revision);
      // Bindings from the namespace's earlier slot have `raises` 0 (EndLife). This reset must close
      // them, so it counts as a raise.
      slots_[change.slot].raises = 1;
      continue;
    }
    SlotState& slot = slots_[change.slot];
    slot.fact = change.fact;
    slot.revision = revision;
    ++slot.raises;
    const auto by = std::ranges::find(requests, change.reset_id, &ResetRequest::id);
    slot.used = false;  // a used generation is raised, an unused one shared
    if (by == requests.end() || by->engine.empty()) continue;
    slot.engine_raises = slot.raises;
    slot.raised_by = by->engine;
  }
  engine_resets_.insert(plan.engine_resets.begin(), plan.engine_resets.end());
  for (const ResetRequest& request : requests) {
    const bool repeated = Repeated(request);
    const bool version_change = IsVersionChange(request);
    if (!version_change) NoteSharing(request, repeated, now_ns);
    if (!repeated && !version_change) RememberReset(request);
    if (request.engine.empty()) continue;
    // A reset that only shares an operator's raise closes the sessions of other engines, too.
    const auto slot_id = FindSlot(request.name, "");
    if (slot_id && !repeated && !version_change && request.version.value_or("").empty()) {
      slots_[*slot_id].engine_raises = slots_[*slot_id].raises;
      slots_[*slot_id].raised_by = request.engine;
    }
    if (!registrations_.CheckRoom(request.name, request.engine)) continue;
    Registrations::Binding& binding =
        request.holder == Id128{}
            ? registrations_.Expect(request.name, request.engine, now_ns)
            : registrations_.Bind(request.name, request.engine, request.holder, now_ns);
    // The request's first arrival opened the session; another engine's reset may have closed it
    // since, and the repetition must not open it again.
    if (repeated && binding.bound) continue;
    binding.current_version = request.version.value_or("");
    const SlotState* slot = Find(request.name, "");
    if (repeated) {
      // An earlier master decided on this reset. The session opens when it registers and shows the
      // generation of its proof (BoundTo). It may not take the proof (SharedNs), and no other
      // process of the engine may open then.
      binding.bound = slot != nullptr && !MayOpen(binding, request.engine, *slot);
      continue;
    }
    binding.open = true;
    binding.bound = true;
    binding.unsure = false;
    if (slot != nullptr) binding.raises = slot->raises;
  }
}

// ---- dead versions

template <typename Visit>
void Generations::ForEachDead(const std::string& name, const VersionOrder::Change& order,
                              const Visit& visit) const {
  for (auto at = slots_by_name_.lower_bound(std::pair(name, std::string()));
       at != slots_by_name_.end() && at->first.first == name; ++at) {
    const auto number = order_.NumberOf(name, at->first.second);
    const bool dies = number && order.pruned && *number < order.pruned->before;
    if (dies || order_.Dead(name, at->first.second)) visit(at->second);
  }
}

Result<Generations::Plan> Generations::PlanPrune(const PruneRequest& request) {
  Plan plan;
  KVCOVE_ASSIGN(plan.order, order_.PlanPrune(request.name, request.before, plan.changes));
  // Also of those that were dead before: a master of an earlier build may have led since, and let
  // engines register.
  ForEachDead(request.name, plan.order, [&](SlotId slot) {
    const SlotState& state = slots_.at(slot);
    if (!state.used) return;
    PlanSlot(slot, state.fact.name, state.fact.version, plan);
    plan.slots.back().raise = true;
  });
  return plan;
}

PruneOutcome Generations::Prune(const PruneRequest& request, const Plan& plan,
                                std::uint64_t revision) {
  order_.Apply(plan.order);
  for (const Plan::Slot& change : plan.slots) {
    SlotState& slot = slots_[change.slot];
    slot.fact = change.fact;
    slot.revision = revision;
    slot.used = false;
    ++slot.raises;
  }
  std::set<SlotId> dead;
  ForEachDead(request.name, {}, [&](SlotId slot) { dead.insert(slot); });
  for (const SlotId slot : dead) slots_[slot].named_last = 0;  // the first to be taken
  registrations_.Unname(request.name, dead);
  return {.versions = plan.order.dies, .raised = plan.slots.size()};
}

Generation Generations::BoundTo(std::string_view name, std::string_view engine) const {
  const Registrations::Binding* binding = registrations_.Find(name, engine);
  const SlotState* slot = Find(name, "");
  if (binding == nullptr || slot == nullptr || !MayOpen(*binding, engine, *slot)) return 0;
  return slot->fact.generation;
}

Generations::Plan Generations::PlanVoid() {
  Plan plan;
  for (const auto& [slot, state] : slots_) {
    if (state.fact.free) continue;
    plan.slots.push_back(
        {.slot = slot,
         .fact = {.generation = state.fact.generation, .free = true, .name = {}, .version = {}}});
    plan.changes.push_back({.key = SlotKey(slot), .value = Encode(plan.slots.back().fact)});
  }
  return plan;
}

void Generations::Void(const Id128& incarnation, const Plan& plan, std::uint64_t revision) {
  for (const Plan::Slot& change : plan.slots) Assign(change, revision);
  incarnation_ = incarnation;
}

// ---- versions in use

void Generations::NameVersions(std::string_view name, std::string_view engine,
                               const std::vector<std::string>& versions) {
  Registrations::Binding* binding = registrations_.Find(name, engine);
  if (binding == nullptr) return;
  std::set<SlotId> named;
  for (const std::string& version : versions) {
    const auto slot = FindSlot(name, version);
    if (!slot || order_.Dead(name, version)) continue;
    named.insert(*slot);
    slots_[*slot].named_last = ++namings_;
  }
  registrations_.SetNamed(*binding, named);
}

void Generations::EndEngine(std::string_view name, std::string_view engine, const Id128& holder) {
  registrations_.End(name, engine, holder);
  if (options_.used_for_ever) return;
  for (auto& [slot, state] : slots_) {
    if (state.fact.name == name) state.used = false;
  }
}

}  // namespace kvcove::master
