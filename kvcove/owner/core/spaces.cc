// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/core/spaces.h"

namespace kvcove::owner {
namespace {

constexpr std::uint64_t kPriorityWeight = 4;  // see spaces.h

}  // namespace

Spaces::Spaces(const std::string& policy, std::uint64_t payload_bytes, const Quotas& quotas)
    : policy_(policy), payload_bytes_(payload_bytes), quotas_(quotas) {
  for (const auto& [name, quota] : quotas_) guaranteed_bytes_ += quota.guaranteed_bytes;
}

Spaces::Number Spaces::Attach(const std::string& of) {
  const std::string_view tenant = TenantOf(of);
  const std::string name = tenant.empty() ? of : QualifiedName(tenant, "");
  if (const auto at = by_name_.find(name); at != by_name_.end()) {
    ++spaces_[at->second].slots;
    return at->second;
  }
  auto number = static_cast<Number>(spaces_.size());
  if (!free_.empty()) {
    number = free_.back();
    free_.pop_back();
  } else if (spaces_.size() >= kMaxSpaces || next_serial_ == ~0U) {
    return kNone;
  } else {
    spaces_.emplace_back();
  }
  const auto quota = quotas_.find(name);
  spaces_[number] = {.name = name,
                     .quota = quota == quotas_.end() ? Quota{} : quota->second,
                     .policy = *policy::MakePolicy(policy_),
                     .serial = next_serial_++,
                     .slots = 1};
  by_name_.emplace(name, number);
  return number;
}

void Spaces::Detach(Number number) {
  if (number == kNone) return;
  --spaces_[number].slots;
  FreeIfUnused(number);
}

void Spaces::FreeIfUnused(Number number) {
  Space& space = spaces_[number];
  if (space.slots > 0 || space.used() > 0) return;
  by_name_.erase(space.name);
  space = {};
  free_.push_back(number);
}

bool Spaces::MayReserve(Number number, std::uint64_t bytes) const {
  const Space& space = At(number);
  if (space.reserved > 0 && space.reserved + bytes > payload_bytes_ / 2) return false;
  const std::uint64_t floating =
      payload_bytes_ > guaranteed_bytes_ ? payload_bytes_ - guaranteed_bytes_ : 0;
  const std::uint64_t covered = space.quota.guaranteed_bytes;
  const std::uint64_t after =
      space.reserved + bytes > covered ? space.reserved + bytes - covered : 0;
  const std::uint64_t added = after - space.beyond_guarantee();
  // With `beyond_guarantees_ == 0` this is the one reservation that is always allowed.
  return added == 0 || beyond_guarantees_ == 0 || beyond_guarantees_ + added <= floating;
}

bool Spaces::MayPin(Number number, std::uint64_t bytes) const {
  const std::uint64_t kept = std::min(guaranteed_bytes_, payload_bytes_);
  const std::uint64_t shared = (payload_bytes_ - kept) / 2;
  const std::uint64_t added = At(number).pinned_beyond(bytes) - At(number).pinned_beyond();
  return added == 0 || pinned_beyond_ + added <= shared;
}

void Spaces::Unreserve(Number number, std::uint64_t bytes) {
  Change(number, 0, -Signed(bytes), 0);
  FreeIfUnused(number);
}

void Spaces::RemoveObject(Number number, std::uint64_t bytes, bool pinned) {
  Change(number, -Signed(bytes), 0, pinned ? -Signed(bytes) : 0);
  FreeIfUnused(number);
}

std::uint64_t Spaces::Over(const Space& space) {
  if (space.objects <= space.pinned || space.used() <= space.quota.guaranteed_bytes) return 0;
  const std::uint64_t over = space.used() - space.quota.guaranteed_bytes;
  switch (space.priority) {
    case NamespacePriority::kLow:
      return over * kPriorityWeight;
    case NamespacePriority::kHigh:
      return std::max<std::uint64_t>(over / kPriorityWeight, 1);
    case NamespacePriority::kUnsaid:
    case NamespacePriority::kNormal:
      return over;
  }
  return over;
}

void Spaces::SetPriority(Number number, NamespacePriority priority) {
  Space& space = spaces_[number];
  if (priority == space.priority || !TenantOf(space.name).empty()) return;
  const std::uint64_t over_before = Over(space);
  space.priority = priority;
  Rank(number, over_before);
}

void Spaces::Change(Number number, std::int64_t objects, std::int64_t reserved,
                    std::int64_t pinned) {
  Space& space = spaces_[number];
  const std::uint64_t over_before = Over(space);
  beyond_guarantees_ -= space.beyond_guarantee();
  pinned_beyond_ -= space.pinned_beyond();
  // Unsigned sums wrap, so adding the bits of a negative number subtracts.
  space.objects += static_cast<std::uint64_t>(objects);
  space.reserved += static_cast<std::uint64_t>(reserved);
  space.pinned += static_cast<std::uint64_t>(pinned);
  object_bytes_ += static_cast<std::uint64_t>(objects);
  reserved_bytes_ += static_cast<std::uint64_t>(reserved);
  pinned_bytes_ += static_cast<std::uint64_t>(pinned);
  pinned_beyond_ += space.pinned_beyond();
  beyond_guarantees_ += space.beyond_guarantee();
  Rank(number, over_before);
}

void Spaces::Rank(Number number, std::uint64_t over_before) {
  const std::uint64_t over = Over(At(number));
  if (over == over_before) return;
  if (over_before == 0) {
    by_over_.emplace(over, number);
    return;
  }
  auto node = by_over_.extract({over_before, number});
  if (over == 0) return;
  node.value().first = over;
  by_over_.insert(std::move(node));
}

std::optional<Spaces::Number> Spaces::Victim(Number asking, std::uint64_t bytes) const {
  const Space& own = At(asking);
  const bool own_has = own.objects > own.pinned;
  if (!Fits(asking, bytes)) return own_has ? std::optional(asking) : std::nullopt;
  if (!by_over_.empty()) return by_over_.rbegin()->second;
  // No space is above its guarantee: this one may still evict its own objects.
  return own_has ? std::optional(asking) : std::nullopt;
}

void Spaces::StatSome(std::size_t& cursor, std::size_t at_most,
                      std::vector<wire::NamespaceStat>& stats) const {
  for (; cursor < spaces_.size() && at_most > 0; ++cursor, --at_most) {
    const Space& space = spaces_[cursor];
    if (space.serial == 0) continue;
    stats.push_back({.name = space.name,
                     .bytes = space.objects,
                     .maximum_bytes = space.quota.maximum_bytes,
                     .guaranteed_bytes = space.quota.guaranteed_bytes,
                     .priority = space.priority});
  }
}

}  // namespace kvcove::owner
