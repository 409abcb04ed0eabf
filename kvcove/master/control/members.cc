// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/control/members.h"

#include <fmt/core.h>

#include <algorithm>

#include "kvcove/base/clock.h"

namespace kvcove::master {
namespace {

// The master lists an owner to requesters for this long after its last call.
constexpr std::int64_t kShownNs = 600 * kSecond;
constexpr std::int64_t kAwayNs = 60 * kSecond;  // before a crowded pool ends a member
constexpr std::size_t kEndedKept = 1 << 16;

}  // namespace

void Members::Load(const StoredState& state, std::uint64_t first_removal,
                   std::int64_t leases_until_ns, std::int64_t now_ns) {
  for (const StoredState::Member& stored : state.members) {
    Add(stored.id, stored.fact, first_removal, now_ns);
    // Not zero, which means "never had a lease": other owners may have stored its keys since.
    at(stored.fact.number).lease_until_ns = std::max<std::int64_t>(1, leases_until_ns);
    if (options_.doubt) doubt_.Listed(stored.fact.number);
  }
  for (const StoredState::Barrier& stored : state.barriers) {
    const auto number = Find(stored.member);
    if (!number) continue;
    at(*number).barriers[stored.slot] = {
        .fact = stored.fact, .stored = true, .unnamed_until_ns = at(*number).lease_until_ns};
  }
  for (const StoredState::Opening& stored : state.openings) {
    if (const auto number = Find(stored.member)) at(*number).opening = stored.fact.opening;
  }
}

// ---- joining

Result<Members::Admission> Members::Admit(const wire::OwnerHello& hello,
                                          std::int64_t now_ns) const {
  if (hello.owner == Id128{} || hello.process == Id128{}) {
    return Fail(Code::kInvalid, "an owner without an identity");
  }
  const auto number = Find(hello.owner);
  if (!number) {
    // A first hello may arrive late, over a connection that its owner has given up, after the
    // owner's membership has begun over another one and ended. Removals have not waited for this
    // owner since, so it must drop its objects.
    return hello.fresh && !ended_.contains(hello.owner) ? Admission::kFresh : Admission::kUnknown;
  }
  const Member& member = at(*number);
  // A welcome now would be void as soon as the end is stored.
  if (member.ending) return Fail(Code::kStale, "this identity is being ended; say hello again");
  if (member.fact.tenant != hello.tenant) {
    return Fail(Code::kDenied, "this identity is an owner's of another tenant");
  }
  // Before the first hello in this term, this master does not know the member's process. But a
  // process that no master has welcomed is another one, and readers may still map the memory of
  // the first. A new process over a disk has read the position that the last one had seen, but it
  // has no number yet.
  const bool begins = (member.fact.disk || hello.disk) && hello.number == wire::kNoOwner;
  const bool another =
      member.epoch != 0 ? member.hello.process != hello.process : hello.seen.term == 0 || begins;
  if (another && member.lease_until_ns > now_ns) {
    return Fail(Code::kExists,
                fmt::format("the owner at {} says that it is the one at {}, whose lease is "
                            "running; stop one of them, or give it another data directory",
                            hello.address, member.hello.address));
  }
  // Nobody can say yet which opening the next process must name.
  if (another && member.asked_opening != Id128{}) {
    return Fail(Code::kStale, "an opening of this owner is being stored; say hello again");
  }
  // The last process has said that what its disks hold must not be used (SetDisksVoid).
  if (another && hello.disk && !member.fact.disk) return Admission::kUnknown;
  return Admission::kMember;
}

bool Members::RolledBack(const wire::OwnerHello& hello) const {
  const auto number = Find(hello.owner);
  if (!number || at(*number).opening == Id128{}) return false;
  const Id128& stored = at(*number).opening;
  return hello.opening != stored && hello.opening_before != stored;
}

std::optional<OpeningFact> Members::AskOpening(OwnerNumber number, const Id128& opening) {
  Member& member = at(number);
  const bool fresh = opening != Id128{} && opening != member.opening;
  if (!fresh || !member.fact.disk || member.ending || member.asked_opening != Id128{}) {
    return std::nullopt;
  }
  member.asked_opening = opening;
  return OpeningFact{.opening = opening};
}

void Members::OpeningStored(const MemberRef& ref, bool stored) {
  if (Get(ref) == nullptr) return;
  Member& member = at(ref.number);
  if (stored) member.opening = member.asked_opening;
  member.asked_opening = {};
}

MemberFact Members::WithoutDisk(OwnerNumber number) const {
  MemberFact fact = at(number).fact;
  fact.disk = false;
  return fact;
}

void Members::SetDisksVoid(const MemberRef& ref) {
  if (Get(ref) != nullptr) at(ref.number).fact.disk = false;
}

Result<MemberFact> Members::FactFor(const wire::OwnerHello& hello, std::int64_t unix_s) {
  std::size_t number = 0;
  while (number < members_.size() && members_[number].serial != 0) ++number;
  if (number >= wire::kMaxOwners) {
    return Fail(Code::kLimit, fmt::format("the pool has {} members; 'kvcove admin members' shows "
                                          "them, 'kvcove admin forget' ends those that are gone",
                                          members_.size()));
  }
  if (number == members_.size()) members_.emplace_back();
  // The serial reserves the number: another fresh owner may say hello before this one is stored.
  members_[number] = {.id = {}, .fact = {}, .serial = next_serial_++, .hello = {}, .last = {}};
  return MemberFact{.number = static_cast<OwnerNumber>(number),
                    .disk = hello.disk,
                    .address = hello.address,
                    .host = hello.host,
                    .tenant = hello.tenant,
                    .joined_s = unix_s};
}

void Members::Add(const Id128& id, const MemberFact& fact, std::uint64_t last_removal,
                  std::int64_t now_ns) {
  if (fact.number >= members_.size()) members_.resize(fact.number + 1U);
  Member& member = at(fact.number);
  member = {.id = id, .fact = fact, .serial = next_serial_++, .hello = {}, .last = {}};
  member.hello.address = fact.address;
  member.hello.host = fact.host;
  member.hello.tenant = fact.tenant;
  member.heard_ns = now_ns;
  member.removals = last_removal;
  by_id_[id] = fact.number;
}

std::uint32_t Members::NextEpoch() {
  const std::uint32_t epoch = next_epoch_++;
  if (next_epoch_ == 0) next_epoch_ = 1;  // 0: none
  return epoch;
}

wire::OwnerWelcome Members::Welcome(const wire::OwnerHello& hello, bool overtaken,
                                    std::int64_t now_ns) {
  const OwnerNumber number = by_id_.at(hello.owner);
  Member& member = at(number);
  doubt_.Heard(number, now_ns);
  const bool same_memory = member.epoch != 0 && member.hello.process == hello.process;
  // Listings under the last epoch still count only if no value was replaced, and if the owner knows
  // that epoch. An owner that has not got the last welcome begins a new epoch.
  const bool resumed = same_memory && !overtaken && hello.seen.term == term_ &&
                       hello.number == number && hello.epoch == member.epoch;
  if (!resumed) {
    // Another process brings back the objects on its disk, and has missed all changes since.
    const bool back = member.fact.disk && hello.number == wire::kNoOwner &&
                      (member.epoch != 0 || member.lease_until_ns != 0);
    member.epoch = NextEpoch();
    // Another process over the same disk may list the last one's objects again (MayListAgain).
    if (member.first_epoch == 0 || (!same_memory && !member.fact.disk)) {
      member.first_epoch = member.epoch;
      member.told_epoch = 0;
    }
    member.told = false;
    // A drain is for one process, so that it can end without loss. A new process ends the drain.
    if (!same_memory) member.draining = false;
    // Other owners may have stored other values of its keys since the lease ran out.
    const bool lapsed = member.lease_until_ns != 0 && member.lease_until_ns <= now_ns;
    // Further hellos do not clear this: only a complete inventory does (Renew).
    member.tell_first = member.tell_first || overtaken || lapsed || back;
  }
  member.hello = hello;
  member.heard_ns = now_ns;
  return {.pool = {},
          .incarnation = {},
          .position = {},
          .forgotten = false,
          .number = number,
          .epoch = member.epoch,
          .lease_ns = options_.lease_ns,
          .resumed = resumed,
          .tell_first = member.tell_first,
          .removals = member.removals};
}

bool Members::Current(OwnerNumber number, std::uint32_t epoch) const {
  return number < members_.size() && at(number).serial != 0 && epoch != 0 &&
         at(number).epoch == epoch;
}

std::optional<OwnerNumber> Members::Find(const Id128& id) const {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return std::nullopt;
  return found->second;
}

std::optional<OwnerNumber> Members::PredecessorOf(const wire::OwnerHello& hello) const {
  if (hello.predecessor == Id128{} || hello.predecessor == hello.owner) return std::nullopt;
  const auto number = Find(hello.predecessor);
  if (!number || at(*number).fact.host != hello.host || at(*number).fact.tenant != hello.tenant) {
    return std::nullopt;
  }
  return number;
}

const Members::Member* Members::Get(const MemberRef& ref) const {
  if (ref.serial == 0 || ref.number >= members_.size()) return nullptr;  // a free number
  if (at(ref.number).serial != ref.serial) return nullptr;
  return &at(ref.number);
}

Members::Epochs Members::EpochsOf(OwnerNumber number) const {
  if (number >= members_.size() || at(number).serial == 0) return {};
  const Member& member = at(number);
  return {.epoch = member.epoch,
          .first_epoch = member.first_epoch,
          .told_epoch = member.told_epoch,
          .tells_first = member.tell_first};
}

// ---- hidden slots

std::vector<SlotId> Members::HiddenOf(OwnerNumber number) const {
  std::vector<SlotId> slots;
  if (number >= members_.size()) return slots;
  for (const auto& [slot, barrier] : at(number).barriers) slots.push_back(slot);
  return slots;
}

std::vector<SlotId> Members::DropsOf(OwnerNumber number) const {
  std::vector<SlotId> slots;
  if (number >= members_.size()) return slots;  // a number of another master
  for (const auto& [slot, barrier] : at(number).barriers) {
    if (barrier.fact.term != term_) slots.push_back(slot);
  }
  return slots;
}

std::uint64_t Members::TellToDrop(OwnerNumber number, std::vector<SlotId>& slots) {
  std::uint64_t drop = 0;
  for (auto& [slot, barrier] : at(number).barriers) {
    if (barrier.fact.term == term_) continue;
    // A barrier that has become one of an earlier term since (ShardLost) has no number yet: the
    // slot may have objects again that came behind the owner's walk.
    if (barrier.drop != 0 && at(number).Drops(slot)) continue;
    if (drop == 0) drop = next_drop_++;
    barrier.drop = drop;
    slots.push_back(slot);
  }
  return drop;
}

std::vector<SlotId> Members::Dropped(OwnerNumber number, std::uint32_t epoch, std::uint64_t drop,
                                     std::vector<std::string>& keys) {
  std::vector<SlotId> slots;
  if (drop == 0 || !Current(number, epoch)) return slots;
  Member& member = at(number);
  for (auto at = member.barriers.begin(); at != member.barriers.end();) {
    Barrier& barrier = at->second;
    if (barrier.drop != drop) {
      ++at;
    } else if (barrier.covers > member.removals) {
      // This barrier has proven a removal after TellToDrop, so the dropped slot may hold objects
      // again that the removal takes. The barrier stays until that removal is applied.
      barrier.fact.term = term_;
      barrier.drop = 0;
      ++at;
    } else {
      keys.push_back(BarrierKey(member.id, at->first));
      slots.push_back(at->first);
      at = member.barriers.erase(at);
    }
  }
  return slots;
}

// ---- acknowledgements

void Members::AcknowledgeTable(OwnerNumber number, std::uint32_t epoch, std::uint64_t table) {
  if (!Current(number, epoch)) return;
  at(number).table = std::max(at(number).table, table);
}

std::vector<std::string> Members::AcknowledgeRemovals(OwnerNumber number, std::uint32_t epoch,
                                                      std::uint64_t removals) {
  std::vector<std::string> keys;
  if (!Current(number, epoch)) return keys;
  Member& member = at(number);
  member.removals = std::max(member.removals, removals);
  std::erase_if(member.barriers, [&](const auto& entry) {
    const Barrier& barrier = entry.second;
    // A barrier of an earlier term ends by Dropped, one for replaced values by EndOvertaken.
    const bool over = barrier.fact.term == term_ && barrier.stored && !barrier.overtaken &&
                      barrier.covers <= member.removals;
    if (over) keys.push_back(BarrierKey(member.id, entry.first));
    return over;
  });
  return keys;
}

void Members::ApplyAhead(const wire::RemovalsRequest& request) {
  if (!Current(request.number, request.epoch)) return;
  Member& member = at(request.number);
  member.ahead = request.ahead;
  member.open = request.open;
  member.dropping = request.dropping;
  std::ranges::sort(member.dropping);
  // The page that told the others may be lost.
  std::erase_if(member.floors, [&](const auto& told) { return !member.Drops(told.first); });
}

void Members::TellFloors(OwnerNumber number, std::vector<SlotId>& slots,
                         const std::function<std::uint64_t(SlotId)>& floor_of) {
  Member& member = at(number);
  std::erase_if(slots, [&](SlotId slot) {
    const std::uint64_t floor = floor_of(slot);
    const auto told = member.floors.find(slot);
    if (told != member.floors.end() && told->second >= floor) return true;
    member.floors[slot] = floor;
    return false;
  });
}

// ---- proofs

std::vector<MemberRef> Members::All() const {
  std::vector<MemberRef> all;
  all.reserve(by_id_.size());
  for (const auto& [id, number] : by_id_) {
    all.push_back({.number = number, .serial = at(number).serial});
  }
  return all;
}

bool Members::Exists(const MemberRef& ref) const { return Get(ref) != nullptr; }

bool Members::TableProven(const MemberRef& ref, std::uint64_t table, std::int64_t now_ns) const {
  const Member* member = Get(ref);
  if (member == nullptr || member->table >= table) return true;
  return !options_.strict && member->lease_until_ns <= now_ns;
}

Members::RemovalProof Members::ProofOf(const MemberRef& ref, std::uint64_t removal, SlotId slot,
                                       std::int64_t now_ns) {
  if (Get(ref) == nullptr) return RemovalProof::kProven;
  Member& member = at(ref.number);
  if (member.Applied(removal, slot)) return RemovalProof::kProven;
  // While a member ends it gets no barrier, whose fact would be stored after the member's facts
  // were deleted. The stored end proves the removal.
  if (options_.strict || member.ending) return RemovalProof::kWaits;
  if (const auto barrier = member.barriers.find(slot); barrier != member.barriers.end()) {
    // The barrier counts once it is stored and each lease that does not name it has ended: until
    // then a later master would not know of it, or the owner shows the slot.
    if (!barrier->second.stored || barrier->second.unnamed_until_ns > now_ns) {
      return RemovalProof::kWaits;
    }
    barrier->second.covers = std::max(barrier->second.covers, removal);
    return RemovalProof::kProven;
  }
  return member.lease_until_ns > now_ns ? RemovalProof::kWaits : RemovalProof::kNeedsBarrier;
}

std::optional<Members::RaisedBarrier> Members::RaiseBarrier(const MemberRef& ref, SlotId slot,
                                                            std::uint64_t removal) {
  if (Get(ref) == nullptr) return std::nullopt;
  Member& member = at(ref.number);
  const auto [place, fresh] = member.barriers.try_emplace(slot);
  if (!fresh) return std::nullopt;
  // The grant of a lease that runs now did not name the slot, so its owner still shows the slot.
  place->second = {.fact = {.term = term_, .acknowledged = member.removals},
                   .number = next_barrier_++,
                   .covers = removal,
                   .unnamed_until_ns = member.lease_until_ns};
  return RaisedBarrier{.key = BarrierKey(member.id, slot),
                       .fact = place->second.fact,
                       .number = place->second.number};
}

void Members::BarrierStored(const MemberRef& ref, SlotId slot, std::uint64_t number, bool stored) {
  if (Get(ref) == nullptr) return;
  Member& member = at(ref.number);
  const auto barrier = member.barriers.find(slot);
  // VoidBarriers may have removed this barrier meanwhile, and the slot may have a new one.
  if (barrier == member.barriers.end() || barrier->second.number != number) return;
  if (stored) {
    barrier->second.stored = true;
  } else {
    member.barriers.erase(barrier);  // it has proven nothing, as it was not stored
  }
}

std::optional<Members::RaisedBarrier> Members::RaiseOvertaken(const MemberRef& ref, SlotId slot) {
  auto fact = RaiseBarrier(ref, slot, /*removal=*/0);
  if (Get(ref) != nullptr) at(ref.number).barriers.at(slot).overtaken = true;
  return fact;
}

bool Members::Barred(const MemberRef& ref, SlotId slot) const {
  const Member* member = Get(ref);
  if (member == nullptr) return true;  // a member that has ended cannot return
  const auto barrier = member->barriers.find(slot);
  return barrier != member->barriers.end() && barrier->second.overtaken && barrier->second.stored;
}

bool Members::WillBeBarred(const MemberRef& ref, SlotId slot) const {
  const Member* member = Get(ref);
  if (member == nullptr || member->ending) return true;
  const auto barrier = member->barriers.find(slot);
  return barrier != member->barriers.end() && barrier->second.overtaken;
}

std::vector<SlotId> Members::EndOvertaken(OwnerNumber number, std::vector<std::string>& keys) {
  std::vector<SlotId> slots;
  Member& member = at(number);
  for (auto& [slot, barrier] : member.barriers) {
    if (!barrier.overtaken || !barrier.stored) continue;
    barrier.overtaken = false;
    slots.push_back(slot);
    if (barrier.fact.term == term_ && barrier.covers <= member.removals) {
      keys.push_back(BarrierKey(member.id, slot));
    }
  }
  std::erase_if(member.barriers, [&](const auto& entry) {
    return std::ranges::find(keys, BarrierKey(member.id, entry.first)) != keys.end();
  });
  return slots;
}

// Only the lost shard knew which values of absent owners were replaced, like a master that ends.
// So each barrier for such values becomes one of an earlier term, and its owner drops the slot when
// it returns.
void Members::ShardLost(std::uint64_t revision,
                        const std::function<bool(OwnerNumber, SlotId)>& gave_way) {
  empty_revision_ = std::max(empty_revision_, revision);
  for (const auto& [id, number] : by_id_) {
    for (auto& [slot, barrier] : at(number).barriers) {
      if (barrier.overtaken && gave_way(number, slot)) barrier.fact.term = 0;
    }
  }
}

std::size_t Members::untold() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(by_id_, [&](const auto& entry) { return Untold(entry.second); }));
}

std::vector<std::string> Members::VoidBarriers(SlotId slot) {
  std::vector<std::string> keys;
  for (const auto& [id, number] : by_id_) {
    if (at(number).barriers.erase(slot) > 0) keys.push_back(BarrierKey(id, slot));
  }
  return keys;
}

std::uint64_t Members::AppliedByAll() const {
  std::uint64_t applied = ~0ULL;
  for (const auto& [id, number] : by_id_) applied = std::min(applied, at(number).removals);
  return applied;
}

std::uint64_t Members::AppliedByLeased(std::int64_t now_ns) const {
  std::uint64_t applied = ~0ULL;
  for (const auto& [id, number] : by_id_) {
    const Member& member = at(number);
    if (member.lease_until_ns <= now_ns) continue;
    applied = std::min(applied, std::max(member.removals, member.ahead));
  }
  return applied;
}

bool Members::AppliedToDisks(std::uint64_t removal, std::int64_t now_ns) const {
  return std::ranges::all_of(by_id_, [&](const auto& entry) {
    const Member& member = at(entry.second);
    return !member.fact.disk || member.lease_until_ns <= now_ns || member.Applied(removal);
  });
}

bool Members::LeaseRunning(std::int64_t now_ns) const {
  return std::ranges::any_of(
      by_id_, [&](const auto& entry) { return at(entry.second).lease_until_ns > now_ns; });
}

// ---- ends

std::vector<std::string> Members::BeginEnd(OwnerNumber number) {
  Member& member = at(number);
  member.ending = true;
  member.epoch = 0;  // calls under the old epoch are refused from here on
  std::vector<std::string> keys = {MemberKey(member.id)};
  for (const auto& [slot, barrier] : member.barriers) keys.push_back(BarrierKey(member.id, slot));
  // The one that is being stored is stored before the keys are deleted.
  if (member.opening != Id128{} || member.asked_opening != Id128{}) {
    keys.push_back(OpeningKey(member.id));
  }
  return keys;
}

void Members::AbandonEnd(const MemberRef& ref) {
  if (Get(ref) != nullptr) at(ref.number).ending = false;
}

void Members::End(const MemberRef& ref) {
  if (Get(ref) == nullptr) return;
  Member& member = at(ref.number);
  by_id_.erase(member.id);
  doubt_.Ended(ref.number);
  if (ended_.insert(member.id).second) ended_order_.push_back(member.id);
  if (ended_order_.size() > kEndedKept) {
    ended_.erase(ended_order_.front());
    ended_order_.pop_front();
  }
  member = {.id = {}, .fact = {}, .hello = {}, .last = {}};
}

Status Members::MayForget(OwnerNumber number, std::int64_t now_ns) const {
  if (number >= members_.size() || at(number).serial == 0) {
    return Fail(Code::kInvalid, fmt::format("the pool has no member with number {}", number));
  }
  const Member& member = at(number);
  if (member.lease_until_ns > now_ns) {
    return Fail(Code::kDenied,
                fmt::format("the owner at {} holds a lease for another {} ms; stop it first",
                            member.hello.address, (member.lease_until_ns - now_ns) / kMillisecond));
  }
  return {};
}

std::vector<OwnerNumber> Members::AwayForTooLong(std::int64_t now_ns) const {
  std::vector<OwnerNumber> gone;
  std::vector<std::pair<std::int64_t, OwnerNumber>> away;  // without a disk, by the time it left
  for (const auto& [id, number] : by_id_) {
    const Member& member = at(number);
    const std::int64_t ttl =
        member.fact.disk ? options_.disk_member_ttl_ns : options_.member_ttl_ns;
    // In strict mode no clock proves that no reader maps the memory any more.
    if (member.ending || options_.strict || ttl == 0 || member.lease_until_ns > now_ns) continue;
    const std::int64_t since_ns = std::max(member.heard_ns, member.lease_until_ns);
    if (since_ns + ttl <= now_ns) {
      gone.push_back(number);
    } else if (!member.fact.disk && since_ns + kAwayNs <= now_ns) {
      away.emplace_back(since_ns, number);
    }
  }
  if (by_id_.size() > options_.crowded + gone.size()) {
    std::ranges::sort(away);
    away.resize(std::min(away.size(), by_id_.size() - gone.size() - options_.crowded));
    for (const auto& [since_ns, number] : away) gone.push_back(number);
  }
  return gone;
}

// Not zero for an owner with a disk, whose identity continues: zero means "never had a lease".
void Members::LeaseReturned(OwnerNumber number) {
  at(number).lease_until_ns = at(number).fact.disk ? 1 : 0;
}

// ---- for operators and look-ups

Status Members::SetDraining(OwnerNumber number, bool draining) {
  if (number >= members_.size() || at(number).epoch == 0) {
    return Fail(Code::kInvalid, "no such owner");
  }
  at(number).draining = draining;
  return {};
}

bool Members::Draining(OwnerNumber number) const {
  return number < members_.size() && at(number).draining;
}

bool Members::Warming(std::int64_t now_ns) const {
  return std::ranges::any_of(by_id_, [&](const auto& entry) {
    const Member& member = at(entry.second);
    return (!member.told || AwaitsShards(entry.second)) && member.heard_ns + 5 * kSecond > now_ns;
  });
}

std::vector<wire::OwnerStat> Members::Stat(std::int64_t now_ns) const {
  std::vector<wire::OwnerStat> owners;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const Member& member = members_[i];
    if (member.serial == 0 || member.epoch == 0) continue;
    if (member.lease_until_ns <= now_ns && member.heard_ns + kShownNs <= now_ns) continue;
    owners.push_back({.number = static_cast<OwnerNumber>(i),
                      .epoch = member.epoch,
                      .address = member.hello.address,
                      .socket = member.hello.socket,
                      .host = member.hello.host,
                      .capacity_bytes = member.hello.capacity_bytes,
                      .free_bytes = member.last.free_bytes,
                      .live = member.lease_until_ns > now_ns,
                      .told = member.told,
                      .objects = member.last.objects,
                      .lease_age_ns = now_ns - member.heard_ns,
                      .tenant = member.hello.tenant,
                      .draining = member.draining,
                      .hits = member.last.hits,
                      .evictions = member.last.evictions,
                      .stale_puts = member.last.stale_puts,
                      .puts = member.last.puts,
                      .disks = member.last.disks,
                      .disks_aside = member.last.disks_aside,
                      .disk_capacity_bytes = member.last.disk_capacity_bytes,
                      .disk_bytes = member.last.disk_bytes,
                      .hit_bytes = member.last.hit_bytes,
                      .put_bytes = member.last.put_bytes,
                      .disk_hits = member.last.disk_hits,
                      .disk_hit_bytes = member.last.disk_hit_bytes});
  }
  return owners;
}

std::vector<MemberDescription> Members::Describe(std::int64_t now_ns) const {
  std::vector<MemberDescription> all;
  for (const auto& [id, number] : by_id_) {
    const Member& member = at(number);
    MemberDescription one{.id = id,
                          .number = number,
                          .address = member.hello.address,
                          .host = member.hello.host,
                          .tenant = member.hello.tenant,
                          .joined_s = member.fact.joined_s,
                          .disk = member.fact.disk,
                          .leased = member.lease_until_ns > now_ns,
                          .told = member.told,
                          .away_ns = std::nullopt,
                          .table = member.table,
                          .removals = member.removals,
                          .barriers = {}};
    if (!one.leased) one.away_ns = now_ns - member.heard_ns;
    for (const auto& [slot, barrier] : member.barriers) {
      one.barriers.emplace_back(slot, barrier.fact);
    }
    all.push_back(std::move(one));
  }
  return all;
}

std::size_t Members::barriers() const {
  std::size_t count = 0;
  for (const auto& [id, number] : by_id_) count += at(number).barriers.size();
  return count;
}

}  // namespace kvcove::master
