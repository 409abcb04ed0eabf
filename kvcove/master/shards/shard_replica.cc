// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/shards/shard_replica.h"

#include <algorithm>

#include "kvcove/master/control/generations.h"

namespace kvcove::master {

namespace {

constexpr std::int64_t kTellEntriesNs = 50 * kMillisecond;
// The leader's directory has a tick every 5 ms, this one with each answer, every 100 ms or sooner.
constexpr int kTicks = 20;

}  // namespace

// ---- following

void ShardReplica::AddSlots(const Following* from, wire::ShardSyncRequest& to) {
  {
    const MutexLock lock(mutex_);
    const std::int64_t now = clock_.NowNs();
    if (from == nullptr || now < counted_ns_ + kTellEntriesNs) return;
    counted_ns_ = now;
  }
  const std::vector<std::uint64_t> entries = from->directory.EntriesBySlot();
  const std::vector<std::uint64_t> bytes = from->directory.BytesBySlot();
  for (std::size_t slot = 0; slot < entries.size(); ++slot) {
    if (entries[slot] == 0) continue;
    to.entries_of_slots.emplace_back(static_cast<SlotId>(slot), entries[slot]);
    to.bytes_of_slots.push_back(bytes[slot]);
  }
}

wire::ShardSyncRequest ShardReplica::NextSync() {
  const FollowingPtr to = following();
  wire::ShardSyncRequest request{.process = process_,
                                 .address = options_.address,
                                 .removed = {},
                                 .entries = to == nullptr ? 0 : to->directory.entries(),
                                 .entries_of_slots = {},
                                 .bytes_of_slots = {}};
  AddSlots(to.get(), request);
  const MutexLock lock(mutex_);
  frozen_named_ = frozen_;
  request.term = term_;
  request.session = session_;
  request.position = position_;
  request.frozen = frozen_;
  request.loaded = loaded_;
  request.failed = failed_;
  named_.clear();
  for (const auto& [number, codes] : removed_) {
    request.removed.push_back({.number = number, .codes = codes});
    named_.push_back(number);
  }
  return request;
}

void ShardReplica::Begin(const wire::ShardSyncReply& reply) {
  DirectoryService::Options options = options_.directory;
  options.first_removal = options.floor = reply.floor;
  auto begun = std::make_shared<Following>(options, clock_);
  begun->directory.SetSlices(std::vector<wire::SliceState>(wire::kSlices, wire::SliceState::kNone),
                             1);
  // Ends the earlier following first: no call is answered from its state any more (Serving).
  serves_until_ns_.store(0, std::memory_order_release);
  following_number_.fetch_add(1, std::memory_order_acq_rel);
  const MutexLock lock(mutex_);
  following_ = std::move(begun);
  term_ = reply.term;
  session_ = reply.session;
  number_ = reply.number;
  position_ = frozen_ = frozen_named_ = frozen_heard_ = loaded_ = failed_ = 0;
  shown_ = 0;
  floor_ = reply.floor;
  serves_.assign(wire::kSlices, wire::SliceState::kNone);
  move_ = {};
  forget_.reset();
  removed_.clear();
  named_.clear();
}

// Applies generations and owners before slices: once the shard serves a slice, an owner may list in
// it, and `drops` must already refuse the slots that the owner has to drop first.
void ShardReplica::Apply(const wire::ShardSyncReply& reply, std::int64_t sent_ns) {
  bool begins = false;
  {
    const MutexLock lock(mutex_);
    begins = following_ == nullptr || term_ != reply.term || session_ != reply.session;
  }
  if (begins) Begin(reply);
  const FollowingPtr to = following();
  {
    // The leader has answered the request that named these, so it has them.
    const MutexLock lock(mutex_);
    for (const std::uint64_t number : named_) removed_.erase(number);
    named_.clear();
  }
  if (reply.all && !begins) ForgetUnnamed(*to, reply);
  for (const wire::ShardSyncReply::Slot& slot : reply.slots) {
    to->standings.SetGeneration(slot.slot, slot.generation, slot.tenant);
    const std::uint64_t counter = Generations::CounterOf(slot.generation);
    if (counter > to->newest) to->newest = counter;
  }
  ApplyOwners(*to, reply);
  to->standings.untold.store(reply.untold, std::memory_order_relaxed);
  to->warming.store(reply.warming, std::memory_order_relaxed);
  to->directory.SetFull(
      {.all = reply.full, .tenants = {reply.full_tenants.begin(), reply.full_tenants.end()}});
  ApplyRemovals(*to, reply);
  if (!reply.serves.empty()) to->directory.SetSlices(reply.serves, 1);
  const MutexLock lock(mutex_);
  shown_ = std::max(shown_, reply.shown);
  position_ = reply.position;
  if (!reply.serves.empty()) {
    for (std::size_t i = 0; i < wire::kSlices; ++i) {
      const bool given =
          serves_[i] != wire::SliceState::kNone && reply.serves[i] == wire::SliceState::kNone;
      if (given) forget_[i] = true;
    }
    serves_ = reply.serves;
  }
  move_ = reply.move;
  frozen_heard_ = frozen_named_;
  if (move_.id != 0 && move_.from == number_) frozen_ = move_.id;
  // Last: calls count from here on, so everything above must be applied. The release pairs with the
  // acquire in Serves().
  if (reply.lease_ns > 0) {
    serves_until_ns_.store(sent_ns + reply.lease_ns, std::memory_order_release);
  }
}

// Slots that are free and owners that have ended are not in an answer with everything, and the
// answer that named their end was lost.
void ShardReplica::ForgetUnnamed(Following& to, const wire::ShardSyncReply& reply) const {
  std::vector<bool> slots(kMaxSlots);
  for (const wire::ShardSyncReply::Slot& slot : reply.slots) slots[slot.slot] = true;
  for (SlotId slot = 0; slot < kMaxSlots; ++slot) {
    if (slots[slot] || to.standings.GenerationOf(slot) == 0) continue;
    to.standings.SetGeneration(slot, 0, 0);
  }
  std::vector<bool> owners(wire::kMaxOwners);
  for (const wire::ShardSyncReply::Owner& owner : reply.owners) owners[owner.number] = true;
  wire::ShardSyncReply ended;
  for (OwnerNumber number = 0; number < wire::kMaxOwners; ++number) {
    if (owners[number] || to.standings.owner(number).epoch.load(std::memory_order_acquire) == 0) {
      continue;
    }
    ended.owners.push_back({.number = number});
  }
  ApplyOwners(to, ended);
}

void ShardReplica::ApplyOwners(Following& to, const wire::ShardSyncReply& reply) const {
  const std::int64_t now = clock_.NowNs();
  for (const wire::ShardSyncReply::Owner& row : reply.owners) {
    Standings::Owner& owner = to.standings.owner(row.number);
    {
      const MutexLock lock(to.mutex);
      if (row.drops.empty()) {
        to.drops.erase(row.number);
      } else {
        to.drops[row.number] = row.drops;
      }
    }
    to.standings.SetHidden(row.number, row.hidden);
    owner.tenant.store(row.tenant, std::memory_order_release);
    owner.first_epoch.store(row.first_epoch, std::memory_order_release);
    owner.told_epoch.store(row.told_epoch, std::memory_order_release);
    owner.tells_first.store(row.tells_first, std::memory_order_release);
    owner.disk_away.store(row.disk_away, std::memory_order_release);
    // Not live while its epoch changes: a look-up must not find entries of the new epoch under the
    // old epoch's lease.
    if (owner.epoch.load(std::memory_order_acquire) != row.epoch) {
      owner.live_until_ns.store(0, std::memory_order_release);
    }
    owner.epoch.store(row.epoch, std::memory_order_release);
    owner.present_until_ns.store(row.present_ns > 0 ? now + row.present_ns : 0,
                                 std::memory_order_seq_cst);
    owner.live_until_ns.store(row.live_ns > 0 ? now + row.live_ns : 0, std::memory_order_release);
  }
}

void ShardReplica::ApplyRemovals(Following& to, const wire::ShardSyncReply& reply) {
  for (const wire::Removal& removal : reply.removals) {
    {
      const MutexLock lock(mutex_);
      if (removed_.contains(removal.number)) continue;  // sent again
    }
    std::vector<Code> codes;
    if (removal.pattern.empty()) {
      codes = to.directory.Remove(removal.slot, removal.generation, removal.keys, removal.number);
    } else {
      to.directory.RemovePattern(removal.slot, removal.number);
    }
    const MutexLock lock(mutex_);
    removed_[removal.number] = std::move(codes);
  }
}

// ---- slices that move

wire::ShardMove ShardReplica::Wanted() const {
  const MutexLock lock(mutex_);
  const bool mine = move_.id != 0 && move_.to == number_ && following_ != nullptr;
  return mine && loaded_ < move_.id && failed_ < move_.id ? move_ : wire::ShardMove{};
}

void ShardReplica::BeginLoad(const wire::ShardMove& move) {
  {
    const MutexLock lock(mutex_);
    for (const wire::SliceNumber slice : move.slices) forget_[slice] = true;
  }
  Forget();
}

void ShardReplica::Load(std::uint64_t move, const wire::ShardPage& page) {
  const FollowingPtr to = following();
  if (to == nullptr || Wanted().id != move) return;
  bool knows = false;
  {
    // This shard never got removals up to its floor, so it cannot apply them to the entries. The
    // leader has applied them; another giver only if `shown` of its page says so.
    const MutexLock lock(mutex_);
    knows = move_.from == wire::kLeaderShard || page.shown >= floor_;
  }
  if (!knows) return LoadFailed(move);
  to->directory.LoadEntries(page.entries, page.shown);
  const MutexLock lock(mutex_);
  if (page.done && following_ == to && move_.id == move) loaded_ = move;
}

void ShardReplica::LoadFailed(std::uint64_t move) {
  const MutexLock lock(mutex_);
  if (move_.id != move) return;
  failed_ = move;
  // The entries that were loaded so far would be stale when the slices move here again.
  for (const wire::SliceNumber slice : move_.slices) forget_[slice] = true;
}

void ShardReplica::Forget() {
  FollowingPtr to;
  Directory::Slices slices;
  {
    const MutexLock lock(mutex_);
    to = following_;
    slices = forget_;
    forget_.reset();
  }
  if (to != nullptr && slices.any()) to->directory.ForgetSlices(slices);
}

Result<wire::ShardPage> ShardReplica::Pull(const wire::ShardPullRequest& request) {
  FollowingPtr to;
  wire::ShardPage page;
  Directory::Slices slices;
  {
    const MutexLock lock(mutex_);
    // Not before the leader has answered the request that named the freeze: only then does shown_
    // cover every value that was listed in these slices.
    if (following_ == nullptr || request.term != term_ || request.move != move_.id ||
        move_.from != number_ || frozen_heard_ != move_.id) {
      return Fail(Code::kStale, "this move is over");
    }
    to = following_;
    page.shown = shown_;  // before the entries are read, as at the leader (Shards::Pull)
    for (const wire::SliceNumber slice : move_.slices) slices[slice] = true;
  }
  page.cursor = request.cursor;
  page.entries = to->directory.CopySlices(slices, page.cursor);
  page.done = page.cursor >= Directory::kShards;
  return page;
}

// ---- calls

// Compares counters, which grow over all slots.
bool ShardReplica::Lags(const Following& to, SlotId slot, Generation generation) {
  if (slot >= kMaxSlots) return false;
  const std::uint64_t counter = Generations::CounterOf(generation);
  const Generation known = to.standings.GenerationOf(slot);
  if (known != 0) return counter > Generations::CounterOf(known);
  return counter > to.newest.load(std::memory_order_relaxed);  // else the slot was freed
}

void ShardReplica::List(const wire::ListRequest& request, const Ask& ask,
                        Reply<wire::ListReply> reply) {
  const FollowingPtr to = following();
  if (to == nullptr) return reply(Fail(Code::kInProgress, "this shard follows nobody"));
  if (request.number >= wire::kMaxOwners) return reply(Fail(Code::kCorrupt, "an unknown owner"));
  // The leader's next answer has the epoch. kStale would make the owner say hello again, in vain.
  if (!to->standings.EpochIs(request.number, request.epoch)) {
    return reply(Fail(Code::kInProgress, "this shard does not know this owner's epoch yet"));
  }
  // A generation that this shard does not know yet is not an old one.
  for (const wire::ListItem& item : request.items) {
    if (!item.gone && Lags(*to, item.slot, item.generation)) {
      return reply(Fail(Code::kInProgress, "this shard does not know this generation yet"));
    }
  }
  std::vector<SlotId> drops;
  {
    const MutexLock lock(to->mutex);
    if (const auto at = to->drops.find(request.number); at != to->drops.end()) drops = at->second;
  }
  DirectoryService::OwnerSlots to_bar;
  auto listed = to->directory.List(request, drops, to_bar);
  if (listed || to_bar.empty()) return reply(std::move(listed));
  std::ranges::sort(to_bar);
  to_bar.erase(std::ranges::unique(to_bar).begin(), to_bar.end());
  ask({.values = to_bar}, [to, request, drops, to_bar,
                           reply = std::move(reply)](const Result<wire::ShardBarReply>& answer) {
    for (std::size_t i = 0; answer && i < to_bar.size(); ++i) {
      const wire::ShardBarReply::One& one = answer->answers[i];
      if (one.gives_way == wire::GivesWay::kNo) continue;
      to->standings.Grant(to_bar[i].first, to_bar[i].second, one.epoch,
                          one.gives_way == wire::GivesWay::kThisToo);
    }
    // Values that may not be replaced now stay, and the listing is refused.
    DirectoryService::OwnerSlots kept;
    reply(to->directory.List(request, drops, kept, /*may_bar=*/false));
  });
}

Result<ShardReplica::FollowingPtr> ShardReplica::FollowingOf(const Token& token) const {
  FollowingPtr to = following();
  if (to == nullptr) return Fail(Code::kUnavailable, "this shard follows nobody");
  if (Lags(*to, token.slot, token.generation)) {
    return Fail(Code::kInProgress, "this shard does not know this generation yet");
  }
  if (!to->standings.Current(token.slot, token.generation)) {
    return Fail(Code::kStale, "the generation is not the current one; register again");
  }
  return to;
}

Result<std::vector<wire::Place>> ShardReplica::Lookup(const Token& token,
                                                      std::span<const Id128> hashes) {
  KVCOVE_ASSIGN(const FollowingPtr to, FollowingOf(token));
  std::vector<wire::Place> places = to->directory.Lookup(token.slot, hashes, token.generation);
  if (std::ranges::find(places, wire::kNoOwner, &wire::Place::owner) == places.end()) {
    return places;
  }
  if (to->warming.load(std::memory_order_relaxed)) {
    for (wire::Place& place : places) {
      if (place.reason == MissReason::kNeverPut) place.reason = MissReason::kWarmingUp;
    }
  }
  to->directory.RememberMisses(token.slot, hashes, places);
  return places;
}

Result<std::vector<wire::Place>> ShardReplica::NoteSaves(SavesUnderWay::Writer writer,
                                                         const Token& token,
                                                         std::span<const Id128> hashes,
                                                         SaveNotice notice) {
  KVCOVE_ASSIGN(const FollowingPtr to, FollowingOf(token));
  return to->directory.NoteSaves(writer, token, hashes, notice);
}

void ShardReplica::EndSaves(SavesUnderWay::Writer writer) {
  if (const FollowingPtr to = following(); to != nullptr) to->directory.EndSaves(writer);
}

std::vector<wire::HeldKey> ShardReplica::Held(const wire::ShardFindRequest& request) const {
  const FollowingPtr to = following();
  if (to == nullptr) return {};
  return to->directory.Held(request.keys);
}

std::uint64_t ShardReplica::TenantOfOwner(OwnerNumber number) const {
  const FollowingPtr to = following();
  if (to == nullptr || number >= wire::kMaxOwners) return 0;
  return to->standings.owner(number).tenant.load(std::memory_order_acquire);
}

std::uint64_t ShardReplica::TenantOfSlot(SlotId slot) const {
  const FollowingPtr to = following();
  return to == nullptr ? ~0ULL : to->standings.TenantOfSlot(slot);
}

ShardReplica::Stat ShardReplica::stat() const {
  const FollowingPtr to = following();
  Stat stat{.serves = Serves()};
  if (to == nullptr) return stat;
  stat.entries = to->directory.entries();
  stat.lookups = to->directory.lookups();
  stat.listed = to->directory.listed();
  const MutexLock lock(mutex_);
  stat.number = number_;
  stat.slices = static_cast<std::size_t>(std::ranges::count(serves_, wire::SliceState::kServes));
  return stat;
}

void ShardReplica::Tick() {
  const FollowingPtr to = following();
  for (int i = 0; i < kTicks && to != nullptr; ++i) to->directory.Tick();
}

}  // namespace kvcove::master
