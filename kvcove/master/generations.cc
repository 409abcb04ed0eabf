// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/generations.h"

#include <algorithm>

namespace kvcove::master {

std::optional<SlotId> Generations::FindSlot(std::string_view name, std::string_view version) const {
  const auto at = slots_by_name_.find(std::pair(std::string(name), std::string(version)));
  if (at == slots_by_name_.end()) return std::nullopt;
  return at->second;
}

std::optional<SlotId> Generations::FreeSlot() const {
  for (SlotId slot = 0; slot < kMaxSlots; ++slot) {
    if (!slots_.contains(slot)) return slot;
  }
  return std::nullopt;
}

bool Generations::Named(SlotId slot) const {
  return std::any_of(bindings_.begin(), bindings_.end(),
                     [&](const auto& entry) { return entry.second.named.contains(slot); });
}

SlotUpdate Generations::UpdateOf(SlotId slot) const {
  const auto at = slots_.find(slot);
  if (at == slots_.end()) return {.slot = slot, .generation = 0, .name = {}};
  return {.slot = slot,
          .generation = at->second.generation,
          .name = at->second.name,
          .named = at->second.version.empty() || Named(slot)};
}

std::vector<SlotId> Generations::Slots() const {
  std::vector<SlotId> all;
  for (const auto& [slot, state] : slots_) all.push_back(slot);
  return all;
}

std::vector<SlotDescription> Generations::Describe() const {
  std::vector<SlotDescription> all;
  for (const auto& [slot, state] : slots_) {
    all.push_back({.slot = slot,
                   .name = state.name,
                   .version = state.version,
                   .generation = state.generation,
                   .used = state.used,
                   .named = state.version.empty() || Named(slot)});
  }
  return all;
}

std::vector<SlotId> Generations::SlotsOf(std::string_view name) const {
  std::vector<SlotId> all;
  for (const auto& [slot, state] : slots_) {
    if (state.name == name) all.push_back(slot);
  }
  return all;
}

void Generations::RememberResetId(Id128 id) {
  reset_ids_.push_back(id);
  if (reset_ids_.size() > kMaxResetIds) reset_ids_.pop_front();
}

void Generations::ApplySlot(const Record& record, bool used) {
  last_generation_ = std::max(last_generation_, record.generation);
  if (record.kind == Record::Kind::kDropSlot) {
    const auto at = slots_.find(record.slot);
    if (at == slots_.end()) return;
    slots_by_name_.erase({at->second.name, at->second.version});
    slots_.erase(at);
    return;
  }
  slots_by_name_[{record.name, record.version}] = record.slot;
  slots_[record.slot] = {.name = record.name,
                         .version = record.version,
                         .generation = record.generation,
                         .used = used,
                         .raised_by = {}};
}

void Generations::Restore(const Record& record) {
  last_generation_ = std::max(last_generation_, record.generation);
  switch (record.kind) {
    case Record::Kind::kSlot:
    case Record::Kind::kDropSlot:
      ApplySlot(record, /*used=*/true);
      break;
    case Record::Kind::kRaise:
      if (const auto at = slots_.find(record.slot); at != slots_.end()) {
        at->second.generation = record.generation;
        at->second.used = true;
      }
      missed_removals_.erase(record.slot);
      RememberResetId(record.reset_id);
      break;
    case Record::Kind::kEngineReset:
      engine_reset_.insert(record.name);
      break;
    case Record::Kind::kStart:
      term_ = std::max(term_, record.reset_id.low);
      break;
    case Record::Kind::kMissed:
      missed_removals_.insert(record.slot);
      break;
  }
}

Record Generations::StartRecord() const {
  return {.kind = Record::Kind::kStart,
          .generation = last_generation_,
          .reset_id = {.high = 0, .low = term_ + 1},
          .name = {},
          .version = {}};
}

std::vector<Record> Generations::Snapshot() const {
  std::vector<Record> records;
  for (const auto& [slot, state] : slots_) {
    records.push_back({.kind = Record::Kind::kSlot,
                       .slot = slot,
                       .generation = state.generation,
                       .name = state.name,
                       .version = state.version});
  }
  for (const SlotId slot : missed_removals_) {
    records.push_back({.kind = Record::Kind::kMissed, .slot = slot, .name = {}, .version = {}});
  }
  for (const std::string& name : engine_reset_) {
    records.push_back({.kind = Record::Kind::kEngineReset,
                       .generation = last_generation_,
                       .name = name,
                       .version = {}});
  }
  for (const Id128& id : reset_ids_) {
    // A raise of a slot that does not exist: only its id counts.
    records.push_back({.kind = Record::Kind::kRaise,
                       .slot = kMaxSlots,
                       .generation = last_generation_,
                       .reset_id = id,
                       .name = {},
                       .version = {}});
  }
  return records;
}

Status Generations::PrepareRegister(const RegisterRequest& request, std::vector<Record>& records) {
  KVCOVE_TRY(CheckName(NameWithinTenant(request.name), "namespace"));
  KVCOVE_TRY(CheckName(request.version, "weight version"));
  KVCOVE_TRY(CheckName(request.engine, "engine"));
  if (request.engine.empty()) return Fail(Code::kInvalid, "a registration needs an engine's name");
  if (bindings_.size() >= kMaxBindings && !bindings_.contains({request.name, request.engine})) {
    return Fail(Code::kLimit, "too many engines are registered; close some sessions");
  }
  if (FindSlot(request.name, request.version)) return {};
  std::optional<SlotId> slot = FreeSlot();
  if (!slot) {
    // A version that nobody names any more gives way. Its number is never used again, so no token
    // and no entry of it can be taken for the new one's.
    for (const auto& [candidate, state] : slots_) {
      if (!state.version.empty() && !Named(candidate)) slot = candidate;
    }
    if (!slot) {
      return Fail(Code::kLimit,
                  "all 4096 pairs of namespace and weight version are in use; name "
                  "fewer versions or close sessions");
    }
    records.push_back({.kind = Record::Kind::kDropSlot,
                       .slot = *slot,
                       .generation = last_generation_,
                       .name = {},
                       .version = {}});
  }
  records.push_back({.kind = Record::Kind::kSlot,
                     .slot = *slot,
                     .generation = last_generation_ + 1,
                     .name = request.name,
                     .version = request.version});
  return {};
}

Registration Generations::FinishRegister(const RegisterRequest& request,
                                         const std::vector<Record>& records) {
  for (const Record& record : records) ApplySlot(record, /*used=*/false);
  Binding& binding = bindings_[{request.name, request.engine}];
  const SlotId slot_id = *FindSlot(request.name, request.version);
  SlotState& slot = slots_[slot_id];
  bool open = true;
  if (request.version.empty() && !request.follow_always) {
    // Nothing says which weights this engine has, but what it was bound to.
    const bool was_bound_to_it =
        request.last_generation == slot.generation && request.last_incarnation == incarnation_;
    if (binding.bound) {
      // After a restart a new process of the engine may have come before those that know.
      open = was_bound_to_it || (binding.open && (slot.engine_raises <= binding.raises ||
                                                  slot.raised_by == request.engine));
    } else if (request.last_generation != 0) {
      open = was_bound_to_it;
    } else {
      open = request.assume_weights || !engine_reset_.contains(request.name);
    }
    binding.open = open;
    binding.bound = true;
    if (open) binding.raises = slot.raises;
  }
  if (open) {
    slot.used = true;
    binding.named.insert(slot_id);
    binding.current_version = request.version;
  }
  return {
      .incarnation = incarnation_, .slot = slot_id, .generation = slot.generation, .open = open};
}

bool Generations::IsVersionChange(const ResetRequest& request) const {
  if (!request.version || request.version->empty()) return false;
  const auto at = bindings_.find({request.name, request.engine});
  return at != bindings_.end() && at->second.current_version != request.version;
}

void Generations::PrepareReset(const std::vector<ResetRequest>& requests,
                               std::vector<Record>& records) {
  Generation next = last_generation_;
  std::set<SlotId> raised;
  std::set<std::string> marked;
  for (const ResetRequest& request : requests) {
    const bool repeated =
        std::find(reset_ids_.begin(), reset_ids_.end(), request.id) != reset_ids_.end();
    if (repeated || IsVersionChange(request)) continue;
    for (const auto& [slot, state] : slots_) {
      if (state.name != request.name || raised.contains(slot)) continue;
      if (!state.used && !request.late) continue;
      if (request.version && !request.version->empty() && state.version != *request.version) {
        continue;
      }
      raised.insert(slot);
      records.push_back({.kind = Record::Kind::kRaise,
                         .slot = slot,
                         .generation = ++next,
                         .reset_id = request.id,
                         .name = {},
                         .version = {}});
    }
    const bool versioned = request.version && !request.version->empty();
    if (!request.engine.empty() && !versioned && !engine_reset_.contains(request.name) &&
        marked.insert(request.name).second) {
      records.push_back({.kind = Record::Kind::kEngineReset,
                         .generation = next,
                         .name = request.name,
                         .version = {}});
    }
  }
}

std::vector<SlotId> Generations::FinishReset(const std::vector<ResetRequest>& requests,
                                             const std::vector<Record>& records) {
  std::vector<SlotId> raised;
  for (const Record& record : records) {
    if (record.kind == Record::Kind::kEngineReset) engine_reset_.insert(record.name);
    if (record.kind != Record::Kind::kRaise) continue;
    last_generation_ = std::max(last_generation_, record.generation);
    SlotState& slot = slots_[record.slot];
    slot.generation = record.generation;
    slot.used = false;
    ++slot.raises;
    const auto by = std::find_if(requests.begin(), requests.end(),
                                 [&](const ResetRequest& r) { return r.id == record.reset_id; });
    // Nor does anybody share what a late one raised.
    if (by != requests.end()) slot.used = by->late;
    if (by != requests.end() && !by->engine.empty()) {
      slot.engine_raises = slot.raises;
      slot.raised_by = by->engine;
    }
    raised.push_back(record.slot);
  }
  for (const ResetRequest& request : requests) {
    const bool repeated =
        std::find(reset_ids_.begin(), reset_ids_.end(), request.id) != reset_ids_.end();
    if (!repeated) RememberResetId(request.id);
    if (request.engine.empty()) continue;
    Binding& binding = bindings_[{request.name, request.engine}];
    // Its first arrival opened the session; another engine's reset may have closed it since.
    if (repeated && binding.bound) continue;
    binding.open = true;
    binding.bound = true;
    binding.current_version = request.version.value_or("");
    if (const auto slot = FindSlot(request.name, "")) binding.raises = slots_[*slot].raises;
  }
  return raised;
}

void Generations::NameVersions(std::string_view name, std::string_view engine,
                               const std::vector<std::string>& versions) {
  const auto at = bindings_.find({std::string(name), std::string(engine)});
  if (at == bindings_.end()) return;
  std::set<SlotId> named;
  for (const std::string& version : versions) {
    if (const auto slot = FindSlot(name, version)) named.insert(*slot);
  }
  at->second.named = std::move(named);
}

void Generations::EndEngine(std::string_view name, std::string_view engine) {
  bindings_.erase({std::string(name), std::string(engine)});
  if (used_for_ever_) return;
  for (auto& [slot, state] : slots_) {
    if (state.name == name) state.used = false;
  }
}

}  // namespace kvcove::master
