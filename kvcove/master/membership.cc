// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/membership.h"

#include <algorithm>

#include "kvcove/base/clock.h"

namespace kvcove::master {
namespace {

constexpr std::int64_t kForgetNs = 600 * kSecond;

}  // namespace

std::optional<OwnerNumber> Membership::NumberFor(const Id128& owner, std::int64_t now_ns) {
  std::optional<OwnerNumber> free;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const Member& member = members_[i];
    if (member.known && member.hello.owner == owner) return static_cast<OwnerNumber>(i);
    const bool gone =
        !member.known || (member.lease_until_ns <= now_ns && member.heard_ns + kForgetNs <= now_ns);
    if (gone && !free) free = static_cast<OwnerNumber>(i);
  }
  if (free) {
    forgotten_ = forgotten_ || members_[*free].known;
    members_[*free] = {};
    return free;
  }
  if (members_.size() >= wire::kMaxOwners) return std::nullopt;
  members_.emplace_back();
  return static_cast<OwnerNumber>(members_.size() - 1);
}

Result<wire::OwnerWelcome> Membership::Hello(const wire::OwnerHello& hello, std::int64_t now_ns) {
  if (hello.owner == Id128{}) return Fail(Code::kInvalid, "an owner without id");
  const std::optional<OwnerNumber> number = NumberFor(hello.owner, now_ns);
  if (!number) return Fail(Code::kLimit, "the master has as many owners as it can have");
  Member& member = members_[*number];
  member.hello = hello;
  member.ready = false;
  member.epoch = next_epoch_++;
  if (next_epoch_ == 0) next_epoch_ = 1;  // 0: none
  if (!member.known) member.first_epoch = member.epoch;
  member.known = true;
  member.heard_ns = now_ns;
  member.present_until_ns = LeaseFrom(now_ns);
  member.last = {};
  return wire::OwnerWelcome{
      .number = *number, .epoch = member.epoch, .incarnation = {}, .lease_ns = lease_ns_};
}

Membership::Standing Membership::StandingOf(OwnerNumber number) const {
  if (number >= members_.size() || !members_[number].known) return {};
  const Member& member = members_[number];
  return {.epoch = member.epoch,
          .first_epoch = member.first_epoch,
          .told_epoch = member.told_epoch,
          .present_until_ns = member.present_until_ns};
}

void Membership::Lapse(OwnerNumber number) { members_[number].present_until_ns = 0; }

bool Membership::Current(OwnerNumber number, std::uint32_t epoch) const {
  return number < members_.size() && members_[number].known && members_[number].epoch == epoch;
}

Result<bool> Membership::Renew(const wire::RenewRequest& request, std::uint64_t version,
                               std::uint64_t slots_version, std::int64_t now_ns) {
  if (!Current(request.number, request.epoch)) {
    return Fail(Code::kStale, "the master does not know this owner; say hello again");
  }
  Member& member = members_[request.number];
  if (member.present_until_ns <= now_ns) {
    // Others may have been told meanwhile that its objects are nowhere, and have put others.
    return Fail(Code::kStale, "the lease had run out; say hello again");
  }
  member.heard_ns = now_ns;
  member.present_until_ns = LeaseFrom(now_ns);
  member.last = request;
  Acknowledge(request.number, request.epoch, request.applied);
  const bool current = member.ready ? request.applied >= slots_version && request.applied <= version
                                    : request.applied == version;
  if (!current || !request.inventory_done) return false;
  member.ready = true;
  member.told_epoch = member.epoch;
  member.lease_until_ns = member.present_until_ns;
  return true;
}

void Membership::Acknowledge(OwnerNumber number, std::uint32_t epoch, std::uint64_t version) {
  if (!Current(number, epoch)) return;
  members_[number].acknowledged = std::max(members_[number].acknowledged, version);
}

void Membership::Goodbye(OwnerNumber number, std::uint32_t epoch) {
  if (Current(number, epoch)) members_[number] = {.hello = {}, .epoch = 0, .last = {}};
}

Status Membership::SetDraining(OwnerNumber number, bool draining) {
  if (number >= members_.size() || !members_[number].known) {
    return Fail(Code::kInvalid, "no such owner");
  }
  members_[number].draining = draining;
  return {};
}

bool Membership::Draining(OwnerNumber number) const {
  return number < members_.size() && members_[number].draining;
}

bool Membership::Live(OwnerNumber number, std::int64_t now_ns) const {
  return number < members_.size() && members_[number].ready &&
         members_[number].lease_until_ns > now_ns;
}

std::optional<std::int64_t> Membership::AwaitedUntil(std::uint64_t version,
                                                     std::int64_t now_ns) const {
  std::optional<std::int64_t> until;
  for (const Member& member : members_) {
    if (!member.known || member.acknowledged >= version || member.lease_until_ns <= now_ns) {
      continue;
    }
    until = std::max(until.value_or(0), member.lease_until_ns);
  }
  return until;
}

bool Membership::Missed(std::uint64_t version) const {
  return forgotten_ || std::ranges::any_of(members_, [&](const Member& member) {
           return member.known && member.acknowledged < version;
         });
}

bool Membership::Warming(std::int64_t now_ns) const {
  return std::ranges::any_of(members_, [&](const Member& member) {
    return member.known && !member.ready && member.heard_ns + 5 * kSecond > now_ns;
  });
}

std::vector<wire::OwnerStat> Membership::Stat(std::int64_t now_ns) const {
  std::vector<wire::OwnerStat> owners;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const Member& member = members_[i];
    if (!member.known) continue;
    owners.push_back({.number = static_cast<OwnerNumber>(i),
                      .epoch = member.epoch,
                      .address = member.hello.address,
                      .socket = member.hello.socket,
                      .host = member.hello.host,
                      .capacity_bytes = member.hello.capacity_bytes,
                      .free_bytes = member.last.free_bytes,
                      .live = Live(static_cast<OwnerNumber>(i), now_ns),
                      .objects = member.last.objects,
                      .lease_age_ns = now_ns - member.heard_ns,
                      .tenant = member.hello.tenant,
                      .draining = member.draining,
                      .hits = member.last.hits,
                      .evictions = member.last.evictions,
                      .stale_puts = member.last.stale_puts,
                      .puts = member.last.puts});
  }
  return owners;
}

}  // namespace kvcove::master
