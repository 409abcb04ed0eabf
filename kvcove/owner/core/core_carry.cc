// SPDX-License-Identifier: Apache-2.0
// A core's state on its way to a successor process (docs/upgrade.md). What readers see lies in the
// header file, which both processes map; here goes the rest.
#include <fmt/core.h>

#include "kvcove/owner/core/core.h"

namespace kvcove::owner {

// ---- spaces

void Spaces::Save(StateWriter& ar, StateWriter& policies) {
  std::uint64_t count = spaces_.size();
  CarryAll(ar, count, free_, next_serial_);
  std::string name = policy_;
  std::uint32_t version = policy::EvictionPolicy::kCarriedVersion;
  CarryAll(policies, name, version);
  for (Space& space : spaces_) {
    CarryAll(ar, space.name, space.serial, space.slots, space.priority, space.objects,
             space.reserved, space.pinned);
    if (space.policy != nullptr) space.policy->Save(policies);
  }
}

void Spaces::Load(StateReader& ar) {
  std::uint64_t count = 0;
  CarryAll(ar, count, free_, next_serial_);
  if (count > kMaxSpaces) return ar.Fail();
  spaces_.resize(count);
  for (Number number = 0; number < static_cast<Number>(count); ++number) {
    Space& space = spaces_[number];
    std::uint64_t objects = 0;
    std::uint64_t reserved = 0;
    std::uint64_t pinned = 0;
    CarryAll(ar, space.name, space.serial, space.slots, space.priority, objects, reserved, pinned);
    if (!ar.ok()) return;
    if (space.serial == 0) continue;  // not in use
    if (const auto quota = quotas_.find(space.name); quota != quotas_.end()) {
      space.quota = quota->second;
    }
    space.policy = *policy::MakePolicy(policy_);
    by_name_.emplace(space.name, number);
    Change(number, Signed(objects), Signed(reserved), Signed(pinned));
  }
}

bool Spaces::LoadPolicies(StateReader& policies) {
  std::string name;
  std::uint32_t version = 0;
  CarryAll(policies, name, version);
  if (name != policy_ || version != policy::EvictionPolicy::kCarriedVersion) return false;
  for (Space& space : spaces_) {
    if (space.policy == nullptr) continue;
    space.policy->Load(policies);
    if (!policies.ok()) return false;
  }
  return true;
}

void Spaces::ForgetPolicies() {
  for (Space& space : spaces_) {
    if (space.policy != nullptr) space.policy = *policy::MakePolicy(policy_);
  }
}

// ---- reservations

void Reservations::Save(StateWriter& ar) {
  std::uint64_t count = reservations_.size();
  CarryAll(ar, next_, removed_below_, count);
  for (auto& [id, reservation] : reservations_) CarryOne(ar, reservation);
  for (auto& [number, session] : sessions_) {
    CarryAll(ar, session.finished_order, session.finished);
  }
}

void Reservations::Load(StateReader& ar) {
  std::uint64_t count = 0;
  CarryAll(ar, next_, removed_below_, count);
  for (; count > 0 && ar.ok(); --count) {
    Reservation read;
    CarryOne(ar, read);
    const std::uint64_t id = read.id;
    Reservation& kept = reservations_.emplace(id, std::move(read)).first->second;
    if (kept.claims) claims_.emplace(kept.hash, &kept);
    const auto session = sessions_.find(kept.session);
    if (kept.listing) {
      Waiting& waiting = waiting_[kept.space];
      waiting.reservations.push_back(kept);
      waiting.bytes += kept.bytes;
      ++waiting_count_;
    } else if (session == sessions_.end()) {
      orphans_.push_back(kept);
    } else {
      session->second.reservations.push_back(kept);
      session->second.reserved_bytes += kept.bytes;
    }
  }
  for (auto& [number, session] : sessions_) {
    CarryAll(ar, session.finished_order, session.finished);
  }
}

std::vector<const Reservation*> Reservations::Waiters() const {
  std::vector<const Reservation*> waiters;
  for (const auto& [id, reservation] : reservations_) {
    if (reservation.listing) waiters.push_back(&reservation);
  }
  return waiters;
}

// ---- all of it

namespace {

// Raised with each change of what is carried that sizes do not show.
constexpr std::uint32_t kStateVersion = 6;
// The version of builds whose hard pins have no time to live; the rest is the same.
constexpr std::uint32_t kWithoutTimedPins = 5;
constexpr std::uint64_t kEnd = 0x646e65737663766bULL;  // "kvcvsend"

}  // namespace

void Core::Save(StateWriter& ar, StateWriter& policies) {
  std::uint32_t version = kStateVersion;
  std::uint64_t end = kEnd;
  std::vector<std::pair<SessionNumber, std::int32_t>> sessions;
  for (const auto& [number, session] : sessions_) sessions.emplace_back(number, session.pid);
  CarryAll(ar, version, sessions, next_session_, promoter_, ended_pages_, counters_, incarnation_,
           former_incarnation_, applied_, hidden_, objects_);
  spaces_.Save(ar, policies);
  reservations_.Save(ar);
  CarryAll(ar, holds_, listings_, room_);
  room_.CarryTimedPins(ar);
  CarryOne(ar, end);
}

Result<bool> Core::Load(StateReader& ar, StateReader& policies,
                        const std::map<SessionNumber, SessionMemory>& pages) {
  std::uint32_t version = 0;
  CarryOne(ar, version);
  if (version != kStateVersion && version != kWithoutTimedPins) {
    return Fail(Code::kIncompatible,
                fmt::format("the running owner's state has version {}, this build reads {}",
                            version, kStateVersion));
  }
  std::vector<std::pair<SessionNumber, std::int32_t>> sessions;
  CarryAll(ar, sessions, next_session_, promoter_, ended_pages_, counters_, incarnation_,
           former_incarnation_, applied_, hidden_, objects_);
  for (const auto& [number, pid] : sessions) {
    const auto page = pages.find(number);
    sessions_[number] = {.pid = pid};
    reservations_.AddSession(number);
    if (page == pages.end()) continue;
    sessions_[number].page = page->second.page;
    sessions_[number].staging = page->second.staging;
    room_.withdrawn().AddPage(number, page->second.page);
  }
  spaces_.Load(ar);
  reservations_.Load(ar);
  std::uint64_t end = 0;
  CarryAll(ar, holds_, listings_, room_);
  if (version != kWithoutTimedPins) room_.CarryTimedPins(ar);
  CarryOne(ar, end);
  if (!ar.ok() || end != kEnd) {
    return Fail(Code::kIncompatible,
                "the running owner's structures differ from this build's: it cannot be taken over");
  }
  for (const Reservation* waiter : reservations_.Waiters()) listings_.Await(*waiter);
  if (!room_.Consistent()) return Fail(Code::kCorrupt, "the state that was handed over has a gap");
  TellSlotsAll();
  if (spaces_.LoadPolicies(policies)) return true;
  TellPoliciesAll();
  return false;
}

// The state has no names of namespaces: those of their spaces are the same, but for tenants.
void Core::TellSlotsAll() {
  if (!key_changes_) return;
  for (SlotId number = 0; number < kMaxSlots; ++number) {
    const Objects::Slot& slot = objects_.slot(number);
    if (slot.generation == 0) continue;
    key_changes_->SetSlot({.slot = number,
                           .generation = slot.generation,
                           .name = slot.space == Spaces::kNone ? "" : spaces_.name(slot.space),
                           .named = slot.named});
    if (slot.hidden) key_changes_->SetHidden(number, true);
  }
}

// In the order of their numbers, which is roughly that in which they were put.
void Core::TellPoliciesAll() {
  spaces_.ForgetPolicies();
  for (ObjectId id = 0; id < objects_.end(); ++id) {
    if (!objects_.Has(id) || objects_[id].hard_pinned) continue;
    spaces_.policy(objects_[id].space)
        .OnPut({.id = id,
                .key = objects_.view().HashKey(objects_[id].slot, objects_.KeyOf(id)),
                .size_bytes = objects_.Bytes(id)});
  }
}

}  // namespace kvcove::owner
