// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/shards/shards.h"

#include <algorithm>

#include "kvcove/base/log.h"

namespace kvcove::master {
namespace {

// At first nothing is listed: masters that follow by then get their parts before owners report
// their inventories.
constexpr std::int64_t kGatherNs = 200 * kMillisecond;
constexpr std::size_t kAnsweredRemovals = 64;      // of one answer
constexpr std::size_t kAnsweredBytes = 512 << 10;  // of their keys

void Run(std::vector<std::function<void()>>& runs) {
  if (!runs.empty()) ExpectNoLock("an answer to a shard");
  for (const auto& run : runs) run();
}

}  // namespace

Shards::Shards(const ShardsOptions& options, std::uint64_t term, std::uint64_t first_removal,
               Standings& standings, DirectoryService& directory, const Clock& clock)
    : options_(options),
      term_(term),
      standings_(standings),
      directory_(directory),
      clock_(clock),
      last_removal_(first_removal) {
  now_.term = term;
  now_.addresses.resize(1);
}

void Shards::Begin(Control& control, std::function<std::int64_t()> leads_ns) {
  control_ = &control;
  leads_ns_ = std::move(leads_ns);
  if (!options_.on) return;
  const MutexLock lock(mutex_);
  gathers_until_ns_ = clock_.NowNs() + kGatherNs;
  SetOwnSlices();
}

std::shared_ptr<const wire::ShardMap> Shards::map() const {
  const MutexLock lock(mutex_);
  return map_;
}

// ---- following

Shards::Member* Shards::MemberOf(std::uint64_t session) {
  for (auto& [number, member] : members_) {
    if (member.session == session && session != 0) return &member;
  }
  return nullptr;
}

Result<wire::ShardNumber> Shards::Join(const wire::ShardSyncRequest& request) {
  for (const auto& [number, member] : members_) {
    // The shard has begun anew, but its earlier process may still serve under its lease.
    if (member.address == request.address) {
      return Fail(Code::kExists, "the lease of this shard is still running");
    }
  }
  wire::ShardNumber number = 1;
  while (members_.contains(number)) ++number;
  if (number >= wire::kMaxShards) return Fail(Code::kLimit, "there are as many shards as can be");
  Member& member = members_[number];
  member.process = request.process;
  member.address = request.address;
  member.session = next_session_++;
  // Earlier removals are not sent, so the shard refuses listings that were begun before them.
  member.floor = last_removal_;
  member.lease_until_ns = clock_.NowNs() + options_.lease_ns;
  member.owners.resize(wire::kMaxOwners);
  member.slots.resize(kMaxSlots);
  return number;
}

void Shards::Sync(const wire::ShardSyncRequest& request, Reply<wire::ShardSyncReply> reply) {
  Runs runs;
  {
    const MutexLock lock(mutex_);
    Result<wire::ShardSyncReply> failed = Fail(Code::kUnavailable, "the master is stopping");
    if (!options_.on) failed = Fail(Code::kDenied, "this master has no shards (--shards)");
    if (stopping_ || !options_.on) {
      runs.emplace_back([reply, failed] { reply(failed); });
    } else {
      Member* member = request.term == term_ ? MemberOf(request.session) : nullptr;
      if (member == nullptr) {
        const auto joined = Join(request);
        if (!joined) {
          failed = std::unexpected(joined.error());
          runs.emplace_back([reply, failed] { reply(failed); });
        } else {
          member = &members_[*joined];
          runs.emplace_back([address = request.address, number = *joined] {
            LogInfo("the master at {} follows as shard {}", address, number);
          });
        }
      } else {
        Acknowledge(*member, request, runs);
      }
      if (member != nullptr) {
        if (member->reply) {
          runs.emplace_back([old = std::exchange(member->reply, nullptr)] {
            old(Fail(Code::kStale, "another request took this one's place"));
          });
        }
        member->reply = std::move(reply);
        member->since_ns = clock_.NowNs();
        for (auto& [number, one] : members_) {
          if (&one == member && HasNews(one)) Answer(number, runs);
        }
      }
      CheckMove(runs);
    }
  }
  Run(runs);
}

void Shards::Acknowledge(Member& member, const wire::ShardSyncRequest& request, Runs& runs) {
  if (request.position <= member.position) {
    member.acknowledged = std::max(member.acknowledged, request.position);
  }
  // The last answer was lost, so the next one has everything.
  if (request.position != member.position) member.fresh = true;
  member.frozen = std::max(member.frozen, request.frozen);
  member.loaded = std::max(member.loaded, request.loaded);
  member.failed = std::max(member.failed, request.failed);
  member.entries = request.entries;
  if (!request.entries_of_slots.empty() || request.entries == 0) {
    member.entries_of_slots = request.entries_of_slots;
    member.bytes_of_slots = request.bytes_of_slots;
  }
  for (const wire::ShardSyncRequest::Removed& removed : request.removed) {
    const auto at = member.removals.find(removed.number);
    if (at == member.removals.end()) continue;
    Removing& removing = *at->second.removing;
    for (std::size_t i = 0; i < removed.codes.size() && i < removing.codes.size(); ++i) {
      if (removed.codes[i] == Code::kOk) removing.codes[i] = Code::kOk;
    }
    if (--removing.waiting == 0) {
      runs.emplace_back([one = at->second.removing] { one->done(one->codes); });
    }
    member.removals.erase(at);
  }
  // The lost answer may have had removals, too. The shard skips those that it has applied.
  if (member.fresh) {
    for (auto& [number, pending] : member.removals) pending.sent = false;
  }
  CheckWaiters(runs);
}

Shards::Row Shards::RowOf(OwnerNumber number, const Drops& drops) const {
  const Standings::Owner& owner = standings_.owner(number);
  const std::int64_t now = standings_.NowNs();
  Row row{.number = number,
          .epoch = owner.epoch.load(std::memory_order_acquire),
          .tells_first = owner.tells_first.load(std::memory_order_acquire),
          .disk_away = owner.disk_away.load(std::memory_order_acquire),
          .tenant = owner.tenant.load(std::memory_order_acquire),
          .hidden = standings_.HiddenOf(number),
          .drops = {}};
  if (const auto at = drops.find(number); at != drops.end()) row.drops = at->second;
  row.first_epoch = owner.first_epoch.load(std::memory_order_acquire);
  row.told_epoch = owner.told_epoch.load(std::memory_order_acquire);
  // Times by this clock; Answer sends what is left of them.
  row.live_ns = std::max(owner.live_until_ns.load(std::memory_order_acquire), now);
  row.present_ns = std::max(owner.present_until_ns.load(std::memory_order_seq_cst), now);
  return row;
}

namespace {

// Returns true if the change must be sent at once. A lease that only runs longer can wait for the
// next answer.
bool Differs(const wire::ShardSyncReply::Owner& before, const wire::ShardSyncReply::Owner& now,
             std::int64_t now_ns) {
  return before.epoch != now.epoch || before.first_epoch != now.first_epoch ||
         before.told_epoch != now.told_epoch || before.tells_first != now.tells_first ||
         before.disk_away != now.disk_away || before.tenant != now.tenant ||
         before.hidden != now.hidden || before.drops != now.drops ||
         (before.live_ns > now_ns) != (now.live_ns > now_ns) ||
         (before.present_ns > now_ns) != (now.present_ns > now_ns);
}

}  // namespace

bool Shards::HasNews(const Member& member) {
  if (member.fresh || member.serves_sent != serves_version_) return true;
  if (map_ != nullptr && member.map_sent != map_->revision) return true;
  if (member.move_sent != move_.id || member.full_sent != full_version_) return true;
  // The giver's entries may be read only after an answer that was built when it had frozen them
  // (ShardReplica::Pull), so this answer does not wait.
  if (member.frozen_sent != member.frozen) return true;
  if (std::ranges::any_of(member.removals, [](const auto& one) { return !one.second.sent; })) {
    return true;
  }
  for (const Waiter& waiter : waiters_) {
    const auto at = waiter.sessions.find(member.session);
    if (at != waiter.sessions.end() && at->second > member.position) return true;
  }
  Drops drops;
  const OwnerNumber numbers = control_->OwnersForShards(drops);
  const std::int64_t now = standings_.NowNs();
  for (OwnerNumber i = 0; i < numbers; ++i) {
    const Row& before = member.owners[i];
    if (Differs(before, RowOf(i, drops), now)) return true;
  }
  for (SlotId slot = 0; slot < kMaxSlots; ++slot) {
    if (member.slots[slot].first != standings_.GenerationOf(slot)) return true;
  }
  return false;
}

std::vector<wire::SliceState> Shards::ServesOf(wire::ShardNumber number) const {
  std::vector<wire::SliceState> states(wire::kSlices, wire::SliceState::kNone);
  for (std::size_t i = 0; i < wire::kSlices; ++i) {
    const bool gives = stage_ != Stage::kNone && move_.from == number && moving_[i];
    if (held_[i]) continue;
    if (gives) {
      states[i] = stage_ == Stage::kClosing || stage_ == Stage::kEnding ? wire::SliceState::kLeft
                                                                        : wire::SliceState::kFrozen;
    } else if (now_.shards[i] == number) {
      states[i] = gathers_until_ns_ != 0 ? wire::SliceState::kFrozen : wire::SliceState::kServes;
    }
  }
  return states;
}

void Shards::Answer(wire::ShardNumber number, Runs& runs) {
  Member& member = members_[number];
  wire::ShardSyncReply answer{
      .term = term_, .session = member.session, .number = number, .all = member.fresh};
  const std::int64_t now = clock_.NowNs();
  if (member.fresh) {
    member.owners.assign(wire::kMaxOwners, Row());
    member.slots.assign(kMaxSlots, {});
    member.serves_sent = member.map_sent = member.move_sent = 0;
  }
  Drops drops;
  const OwnerNumber numbers = control_->OwnersForShards(drops);
  for (OwnerNumber i = 0; i < numbers; ++i) {
    Row row = RowOf(i, drops);
    Row& before = member.owners[i];
    if (!Differs(before, row, now) && before.live_ns == row.live_ns &&
        before.present_ns == row.present_ns) {
      continue;
    }
    before = row;
    row.live_ns -= now;
    row.present_ns -= now;
    answer.owners.push_back(std::move(row));
  }
  for (SlotId slot = 0; slot < kMaxSlots; ++slot) {
    const std::pair state{standings_.GenerationOf(slot), standings_.TenantOfSlot(slot)};
    if (member.slots[slot] == state) continue;
    member.slots[slot] = state;
    answer.slots.push_back({.slot = slot, .generation = state.first, .tenant = state.second});
  }
  std::size_t bytes = 0;
  for (auto& [removal, pending] : member.removals) {
    if (pending.sent) continue;
    if (answer.removals.size() >= kAnsweredRemovals || bytes > kAnsweredBytes) break;
    pending.sent = true;
    answer.removals.push_back(*pending.removal);
    for (const std::string& key : pending.removal->keys) bytes += key.size() + 8;
  }
  answer.shown = control_->shown();
  answer.floor = member.floor;
  if (map_ != nullptr && member.map_sent != map_->revision) {
    answer.map = map_;
    member.map_sent = map_->revision;
  }
  if (member.serves_sent != serves_version_) {
    answer.serves = ServesOf(number);
    member.serves_sent = serves_version_;
  }
  answer.move = move_;
  member.move_sent = move_.id;
  answer.untold = standings_.untold.load(std::memory_order_relaxed);
  answer.warming = control_->Warming();
  answer.full = full_.all;
  answer.full_tenants.assign(full_.tenants.begin(), full_.tenants.end());
  member.full_sent = full_version_;
  member.frozen_sent = member.frozen;
  member.fresh = false;
  answer.position = ++member.position;
  // The shard counts its lease from when it sent the request, the leader from here and 1 % more. No
  // lease outlasts this leadership, so none runs under another leader.
  answer.lease_ns = std::max<std::int64_t>(std::min(options_.lease_ns, leads_ns_()), 0);
  member.lease_until_ns = std::max(member.lease_until_ns, now + answer.lease_ns / 100 * 101);
  runs.emplace_back([reply = std::exchange(member.reply, nullptr),
                     answer = std::move(answer)]() mutable { reply(std::move(answer)); });
}

// ---- what shards must know

void Shards::Remove(const wire::Removal& removal, std::function<void(std::vector<Code>)> done) {
  Runs runs;
  {
    const MutexLock lock(mutex_);
    last_removal_ = std::max(last_removal_, removal.number);
    auto removing = std::make_shared<Removing>();
    removing->number = removal.number;
    removing->codes.resize(removal.keys.size(), Code::kMiss);
    removing->done = std::move(done);
    removing->waiting = members_.size();
    if (members_.empty() || stopping_) {
      runs.emplace_back([removing] { removing->done(removing->codes); });
    } else {
      const auto shared = std::make_shared<const wire::Removal>(removal);
      for (auto& [number, member] : members_) {
        member.removals[removal.number] = {.removal = shared, .removing = removing};
        // At once: the removal is shown to owners only when each shard has acknowledged it.
        if (member.reply) Answer(number, runs);
      }
    }
  }
  Run(runs);
}

void Shards::AwaitAll(std::int64_t deadline_ns, Reply<void> done) {
  Runs runs;
  {
    const MutexLock lock(mutex_);
    Waiter waiter{.sessions = {}, .deadline_ns = deadline_ns, .done = std::move(done)};
    // Any answer that is built from here on includes the state at this call. An answer that is
    // under way may not, so the shard must acknowledge the next position.
    for (const auto& [number, member] : members_) {
      waiter.sessions[member.session] = member.position + 1;
    }
    waiters_.push_back(std::move(waiter));
    for (auto& [number, member] : members_) {
      if (member.reply) Answer(number, runs);
    }
    CheckWaiters(runs);
  }
  Run(runs);
}

void Shards::CheckWaiters(Runs& runs) {
  const std::int64_t now = clock_.NowNs();
  std::erase_if(waiters_, [&](Waiter& waiter) KVCOVE_REQUIRES(mutex_) {
    std::erase_if(waiter.sessions, [&](const auto& one) KVCOVE_REQUIRES(mutex_) {
      const Member* member = MemberOf(one.first);
      return member == nullptr || member->acknowledged >= one.second ||
             member->lease_until_ns <= now;
    });
    if (waiter.sessions.empty()) {
      runs.emplace_back([done = std::move(waiter.done)] { done({}); });
      return true;
    }
    if (waiter.deadline_ns > now) return false;
    runs.emplace_back([done = std::move(waiter.done)] {
      done(Fail(Code::kTimeout, "a shard of the directory has not acknowledged it"));
    });
    return true;
  });
}

// ---- maps

void Shards::SetOwnSlices() {
  ++serves_version_;
  if (map_ == nullptr && gathers_until_ns_ == 0 && stage_ == Stage::kNone && held_.none()) {
    return directory_.SetSlices({}, 1);  // no slice is foreign: the directory need not check keys
  }
  directory_.SetSlices(ServesOf(wire::kLeaderShard), members_.size() + 1);
}

// Gives each shard an equal share. No owner has listed anything in this term yet, so slices may
// begin without entries at other shards.
void Shards::Share(Runs& runs) {
  gathers_until_ns_ = 0;
  if (members_.empty()) return SetOwnSlices();
  std::vector<wire::ShardNumber> sharing = {wire::kLeaderShard};
  for (const auto& [number, member] : members_) sharing.push_back(number);
  const std::size_t share = wire::kSlices / sharing.size();
  for (std::size_t i = share; i < wire::kSlices; ++i) {
    now_.shards[i] = sharing[std::min(i / share, sharing.size() - 1)];
    now_.fresh[i] = now_.revision + 1;
    held_[i] = true;
  }
  SetOwnSlices();
  NewMap(/*lost=*/true, runs);
}

void Shards::NewMap(bool lost, Runs& runs) {
  ++now_.revision;
  now_.addresses.assign(1, {});
  for (const auto& [number, member] : members_) {
    now_.addresses.resize(std::max<std::size_t>(now_.addresses.size(), number + 1U));
    now_.addresses[number] = member.address;
  }
  bool any = held_.any();
  if (lost) {
    for (std::size_t i = 0; i < wire::kSlices; ++i) {
      if (now_.shards[i] < now_.addresses.size() &&
          (now_.shards[i] == wire::kLeaderShard || !now_.addresses[now_.shards[i]].empty())) {
        continue;
      }
      now_.shards[i] = wire::kLeaderShard;
      now_.fresh[i] = now_.revision;
      held_[i] = any = true;
    }
  }
  map_ = std::make_shared<const wire::ShardMap>(now_);
  // The control learns of the loss before any shard serves the slices: owners must first drop the
  // slots whose values gave way (Members::ShardLost), or they could list the older values again.
  runs.emplace_back([this, map = map_, any] {
    control_->SetShardMap(map, any);
    if (!any) return;
    const MutexLock lock(mutex_);
    if (map_ != map) return;  // the run of the later map does this
    held_.reset();
    SetOwnSlices();
  });
}

void Shards::Lose(wire::ShardNumber number, Runs& runs) {
  Member lost = std::move(members_[number]);
  members_.erase(number);
  runs.emplace_back([address = lost.address, number] {
    LogWarn("shard {} at {} is lost: owners tell its part of the directory again", number, address);
  });
  if (lost.reply) {
    runs.emplace_back(
        [reply = std::move(lost.reply)] { reply(Fail(Code::kStale, "the lease is over")); });
  }
  // A lost shard answers nothing any more, so it counts as done for removals and waiters.
  for (const auto& [removal, pending] : lost.removals) {
    if (--pending.removing->waiting > 0) continue;
    runs.emplace_back([one = pending.removing] { one->done(one->codes); });
  }
  CheckWaiters(runs);
}

std::size_t Shards::CountOf(wire::ShardNumber number) const {
  return static_cast<std::size_t>(std::ranges::count(now_.shards, number));
}

// ---- time

void Shards::Tick() {
  Runs runs;
  Directory::Slices forget;
  {
    const MutexLock lock(mutex_);
    forget = forget_;
  }
  if (forget.any()) {
    directory_.ForgetSlices(forget);
    const MutexLock lock(mutex_);
    forget_ &= ~forget;
  }
  {
    const MutexLock lock(mutex_);
    const std::int64_t now = clock_.NowNs();
    if (gathers_until_ns_ != 0 && now >= gathers_until_ns_) Share(runs);
    if (members_.empty() && waiters_.empty() && map_ == nullptr && runs.empty()) return;
    std::vector<wire::ShardNumber> lost;
    for (const auto& [number, member] : members_) {
      if (member.lease_until_ns <= now) lost.push_back(number);
    }
    const bool ends = std::ranges::any_of(lost, [&](wire::ShardNumber one) KVCOVE_REQUIRES(mutex_) {
      return one == move_.from || one == move_.to;
    });
    // Before Lose: CheckMove needs both members of a move.
    if (stage_ != Stage::kNone && ends) EndMove();
    // The leader removes its old entries of foreign slices before it gets such slices: the entries
    // are from before the giver's changes. The next Tick handles the losses.
    if (forget_.any()) lost.clear();
    for (const wire::ShardNumber number : lost) Lose(number, runs);
    if (!lost.empty() && map_ != nullptr) NewMap(/*lost=*/true, runs);
    CheckMove(runs);
    PlanMove();
    CountShares();
    CheckWaiters(runs);
    for (auto& [number, member] : members_) {
      if (member.reply && (now >= member.since_ns + options_.hold_ns || HasNews(member))) {
        Answer(number, runs);
      }
    }
  }
  Run(runs);
}

void Shards::Stop() {
  Runs runs;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    for (auto& [number, member] : members_) {
      if (member.reply) {
        runs.emplace_back([reply = std::exchange(member.reply, nullptr)] {
          reply(Fail(Code::kUnavailable, "the master is stopping"));
        });
      }
      for (const auto& [removal, pending] : member.removals) {
        if (--pending.removing->waiting > 0) continue;
        runs.emplace_back([one = pending.removing] { one->done(one->codes); });
      }
      member.removals.clear();
    }
    for (Waiter& waiter : waiters_) {
      runs.emplace_back([done = std::move(waiter.done)] {
        done(Fail(Code::kUnavailable, "the master is stopping"));
      });
    }
    waiters_.clear();
  }
  Run(runs);
}

}  // namespace kvcove::master
