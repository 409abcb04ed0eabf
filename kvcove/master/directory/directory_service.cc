// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/directory/directory_service.h"

#include <algorithm>
#include <numeric>

namespace kvcove::master {
namespace {

constexpr std::size_t kLookAhead = 16;        // keys of a batch that are fetched from memory
constexpr std::size_t kMissesKept = 1 << 16;  // for Why
constexpr std::size_t kSlice = 1024;          // items under one hold of the lock
constexpr std::size_t kWentKept = 1 << 18;
constexpr std::size_t kMovePage = 32 << 10;  // entries of a page; one part more at most
constexpr std::int64_t kCountNs = 50 * kMillisecond;
constexpr std::int64_t kTellerNs = kSecond;  // a silent teller loses its turn after this
// The same after a batch that was smaller than allowed: most likely that was the last one.
constexpr std::int64_t kTellerEndsNs = 10 * kMillisecond;

}  // namespace

DirectoryService::DirectoryService(const Options& options, Standings& standings, const Clock& clock)
    : options_(options),
      standings_(standings),
      clock_(clock),
      directory_(standings),
      missed_(kMissesKept) {}

// ---- listings

Code DirectoryService::ListOne(const wire::ListItem& item, const wire::ListRequest& request,
                               std::span<const SlotId> drops, OwnerSlots& to_bar) {
  const OwnerNumber number = request.number;
  const std::uint64_t tenant = standings_.owner(number).tenant.load(std::memory_order_acquire);
  if (tenant != 0 && tenant != standings_.TenantOfSlot(item.slot)) return Code::kDenied;
  // A put that is refused may have been listed by an earlier request, whose answer was lost or came
  // from the master that had the slice then. The owner drops the value on this refusal, so that
  // entry must not stay.
  const auto refuse = [&]() KVCOVE_REQUIRES(mutex_) {
    if (!item.inventory) Unlist(item, number);
    return Code::kStale;
  };
  // The owner may have missed removals under an earlier master that this master does not know.
  if (std::ranges::find(drops, item.slot) != drops.end()) return refuse();
  if (item.removals < options_.floor) return refuse();
  const std::uint64_t tag = directory_.Tag(item.slot, item.hash);
  // The owner has applied all removals that were proven before this master, or drops the slot, so
  // only removals of this master count.
  if (removals_.RemovedSince(item.slot, tag, std::max(item.removals, options_.first_removal))) {
    return refuse();
  }
  // The owner has not applied this pattern yet, and it may match. Listed now, the put would be
  // acknowledged and then removed by a removal that was begun before it.
  if (!item.inventory &&
      removals_.PatternSince(item.slot, std::max(item.removals, request.applied))) {
    return refuse();
  }
  // A copy was read at its source before it was put here: listed, it would undo a removal in
  // between.
  if (options_.copies && item.copied_at != 0 &&
      (item.copied_at < options_.first_removal ||
       removals_.PatternSince(item.slot, item.copied_at) ||
       removals_.RemovedSince(item.slot, tag, item.copied_at))) {
    return refuse();
  }
  if (const auto went = went_.find(tag);
      went != went_.end() && item.inventory && went->second != item.group) {
    return Code::kExists;
  }
  // Values that were unlisted while the disk was away have been forgotten, and one of them may be a
  // younger value of this key.
  if (item.returns && went_forgotten_) return Code::kExists;
  const Code code = directory_.List(item, number, request.epoch, to_bar, MayGrow(item.slot));
  if (code == Code::kLimit) refused_.fetch_add(1, std::memory_order_relaxed);
  if (code == Code::kOk && !went_.empty()) went_.erase(tag);
  // Now, not when it expires: the value may be evicted before that, and nobody must wait for it.
  if (code == Code::kOk) saves_.End(item.slot, item.generation, item.hash);
  return code;
}

bool DirectoryService::MayGrow(SlotId slot) const {
  if (all_full_) return false;
  return full_.empty() || !full_.contains(standings_.TenantOfSlot(slot));
}

// Counts every 50 ms instead of at each listing, so a tenant may exceed its share by the listings
// of that time.
void DirectoryService::Tick() {
  const MutexLock lock(mutex_);
  // No inventory is incomplete, so no older value can be listed any more. Kept, an entry could
  // refuse a newer value, which another shard has listed meanwhile (docs/ha.md).
  if (standings_.untold.load(std::memory_order_relaxed) == 0) ForgetWent();
  if (all_full_ || !full_.empty()) directory_.SweepNext();
  const std::int64_t now = clock_.NowNs();
  if (now < counted_ns_ + kCountNs) return;
  counted_ns_ = now;
  const std::uint64_t entries =
      std::accumulate(elsewhere_.begin(), elsewhere_.end(), directory_.entries());
  all_full_ = told_full_.all || entries >= options_.max_entries;
  full_ = told_full_.tenants;
  const std::uint64_t share =
      options_.tenant_entries != 0 ? options_.tenant_entries : options_.max_entries / 4;
  if (entries < share) return;
  std::map<std::uint64_t, std::uint64_t> of_tenant;
  for (SlotId slot = 0; slot < kMaxSlots; ++slot) {
    const std::uint64_t tenant = standings_.TenantOfSlot(slot);
    if (tenant == 0) continue;
    of_tenant[tenant] += directory_.EntriesOf(slot) + (elsewhere_.empty() ? 0 : elsewhere_[slot]);
  }
  for (const auto& [tenant, entries] : of_tenant) {
    if (entries >= share) full_.insert(tenant);
  }
}

DirectoryService::Full DirectoryService::full() const {
  const MutexLock lock(mutex_);
  return {.all = all_full_, .tenants = full_};
}

void DirectoryService::SetElsewhere(std::vector<std::uint64_t> entries_of_slots) {
  const MutexLock lock(mutex_);
  elsewhere_ = std::move(entries_of_slots);
}

void DirectoryService::SetFull(Full full) {
  const MutexLock lock(mutex_);
  if (full == told_full_) return;
  told_full_ = std::move(full);
  counted_ns_ = 0;  // the next tick counts again
}

std::vector<std::uint64_t> DirectoryService::EntriesBySlot() const {
  const MutexLock lock(mutex_);
  std::vector<std::uint64_t> entries;
  for (SlotId slot = 0; slot < kMaxSlots; ++slot) entries.push_back(directory_.EntriesOf(slot));
  return entries;
}

std::vector<std::uint64_t> DirectoryService::CurrentBySlot() const {
  const MutexLock lock(mutex_);
  std::vector<std::uint64_t> entries;
  for (SlotId slot = 0; slot < kMaxSlots; ++slot) entries.push_back(directory_.CurrentOf(slot));
  return entries;
}

std::vector<std::uint64_t> DirectoryService::BytesBySlot() const {
  const MutexLock lock(mutex_);
  std::vector<std::uint64_t> bytes;
  for (SlotId slot = 0; slot < kMaxSlots; ++slot) bytes.push_back(directory_.BytesOf(slot));
  return bytes;
}

void DirectoryService::ForgetWent() {
  if (went_order_.empty()) return;
  went_.clear();
  went_order_.clear();
  went_forgotten_ = false;
}

void DirectoryService::Unlist(const wire::ListItem& item, OwnerNumber number) {
  const auto group = directory_.Unlist(item.slot, item.hash, number, item.group);
  if (standings_.untold.load(std::memory_order_relaxed) == 0) return ForgetWent();
  if (!group) return;
  const std::uint64_t tag = directory_.Tag(item.slot, item.hash);
  went_[tag] = *group;
  went_order_.push_back(tag);
  while (went_order_.size() > kWentKept) {
    went_.erase(went_order_.front());
    went_order_.pop_front();
    went_forgotten_ = true;
  }
}

std::uint32_t DirectoryService::CreditFor(OwnerNumber number, bool tells, std::size_t told) {
  if (!tells) {
    tellers_.erase(number);
    return options_.inventory_batch;
  }
  const std::int64_t now = clock_.NowNs();
  const std::size_t most = options_.tellers * shards_;
  const bool begins = !tellers_.contains(number);
  if (begins && tellers_.size() >= most) {
    std::erase_if(tellers_, [&](const auto& teller) { return teller.second < now; });
    if (tellers_.size() >= most) return 0;
  }
  const bool goes_on = begins || told >= options_.inventory_batch;
  tellers_[number] = now + (goes_on ? kTellerNs : kTellerEndsNs);
  return options_.inventory_batch;
}

Result<wire::ListReply> DirectoryService::List(const wire::ListRequest& request,
                                               std::span<const SlotId> drops, OwnerSlots& to_bar,
                                               bool may_bar) {
  if (request.number >= wire::kMaxOwners) return Fail(Code::kCorrupt, "an unknown owner");
  wire::ListReply reply{.codes = {}};
  std::uint64_t rejected = 0;
  bool tells = request.items.empty();
  std::size_t told = 0;
  for (std::size_t begin = 0; begin == 0 || begin < request.items.size(); begin += kSlice) {
    const MutexLock lock(mutex_);
    if (!standings_.EpochIs(request.number, request.epoch)) {
      return Fail(Code::kStale, "the master does not know this owner; say hello again");
    }
    // Checks the sequence before each slice, because the lock was released: if its connection
    // ended, the owner may have repeated the request meanwhile and continued with the next.
    Answered& answered = answered_[request.number];
    if (answered.epoch != request.epoch) {
      answered = {.epoch = request.epoch, .session = request.session, .codes = {}};
    }
    if (request.session < answered.session) {
      return Fail(Code::kInProgress, "a request of an earlier session");
    }
    // A session begins with its first request only: a later one means that listings are missing.
    if (request.session > answered.session && request.sequence == 1) {
      answered = {.epoch = request.epoch, .session = request.session, .codes = {}};
    }
    if (request.session != answered.session) {
      return Fail(Code::kStale, "listings are missing; say hello again");
    }
    if (request.sequence == answered.sequence && request.sequence != 0 &&
        answered.codes.size() == request.items.size()) {
      return wire::ListReply{
          .codes = answered.codes,
          .credit = CreditFor(request.number, /*tells=*/true, request.items.size())};
    }
    // A request in between was lost, and with it its listings.
    if (request.sequence != answered.sequence + 1) {
      return Fail(Code::kStale, "listings are missing; say hello again");
    }
    const std::size_t end = std::min(begin + kSlice, request.items.size());
    for (std::size_t i = begin; i < end; ++i) {
      const wire::ListItem& item = request.items[i];
      if (!Serves(item.hash, /*listing=*/true)) {
        to_bar.clear();
        return Fail(Code::kInProgress, "another shard has a key of these now");
      }
      // After its complete inventory, an owner lists changes of tiers as inventory, too.
      told += item.inventory ? 1 : 0;
      tells = tells || (item.inventory && !standings_.ToldUnder(request.number, request.epoch));
      if (item.gone) {
        Unlist(item, request.number);
        reply.codes.push_back(Code::kOk);
        continue;
      }
      Code code = ListOne(item, request, drops, to_bar);
      // A move drops its source when the copy is refused with kExists, so a copy gets kStale.
      if (code == Code::kInProgress && !may_bar) {
        code = item.copied_at != 0 ? Code::kStale : Code::kExists;
      }
      reply.codes.push_back(code);
      rejected += reply.codes.back() != Code::kOk ? 1 : 0;
    }
    if (end == request.items.size()) {
      if (may_bar && !to_bar.empty())
        return Fail(Code::kInProgress, "an absent owner must be barred first");
      answered.sequence = request.sequence;
      answered.codes = reply.codes;
      reply.credit = CreditFor(request.number, tells, told);
    }
  }
  listed_.fetch_add(request.items.size(), std::memory_order_relaxed);
  rejected_.fetch_add(rejected, std::memory_order_relaxed);
  return reply;
}

// ---- look-ups

std::vector<wire::Place> DirectoryService::Lookup(SlotId slot, std::span<const Id128> hashes,
                                                  Generation generation) {
  std::vector<wire::Place> places;
  places.reserve(hashes.size());
  for (std::size_t begin = 0; begin < hashes.size(); begin += kSlice) {
    const MutexLock lock(mutex_);
    const std::int64_t now = clock_.NowNs();
    const std::size_t end = std::min(begin + kSlice, hashes.size());
    for (std::size_t i = begin; i < end; ++i) {
      if (i + kLookAhead < hashes.size()) directory_.Prefetch(hashes[i + kLookAhead]);
      if (!Serves(hashes[i], /*listing=*/false)) {
        places.push_back({.reason = MissReason::kShardAway});
        continue;
      }
      wire::Place& place = places.emplace_back(directory_.Find(slot, hashes[i], now));
      // In the hold that has missed it: a listing between the two would end the save, and the value
      // would be neither there nor under way.
      place.under_way =
          place.owner == wire::kNoOwner && saves_.Has(slot, generation, hashes[i], now);
      Qualify(hashes[i], place);
    }
  }
  lookups_.fetch_add(places.size(), std::memory_order_relaxed);
  return places;
}

wire::Place DirectoryService::Find(SlotId slot, std::string_view key) const {
  const MutexLock lock(mutex_);
  return directory_.Find(slot, DirectoryHash(slot, key));
}

std::vector<wire::Place> DirectoryService::NoteSaves(SavesUnderWay::Writer writer,
                                                     const Token& token,
                                                     std::span<const Id128> hashes,
                                                     SaveNotice notice) {
  std::vector<wire::Place> places;
  places.reserve(hashes.size());
  for (std::size_t begin = 0; begin < hashes.size(); begin += kSlice) {
    const MutexLock lock(mutex_);
    const std::int64_t now = clock_.NowNs();
    for (const Id128& hash : hashes.subspan(begin, std::min(kSlice, hashes.size() - begin))) {
      if (!Serves(hash, /*listing=*/false)) {
        places.push_back({.reason = MissReason::kShardAway});
        continue;
      }
      wire::Place& place = places.emplace_back(directory_.Find(token.slot, hash));
      Qualify(hash, place);
      if (notice == SaveNotice::kEnd) {
        saves_.End(token.slot, token.generation, hash);
      } else if (place.owner == wire::kNoOwner && place.reason != MissReason::kShardAway) {
        saves_.Begin(writer, token.slot, token.generation, {&hash, 1}, now);
      }
    }
  }
  return places;
}

void DirectoryService::EndSaves(SavesUnderWay::Writer writer) {
  const MutexLock lock(mutex_);
  saves_.EndWriter(writer);
}

void DirectoryService::Qualify(const Id128& hash, wire::Place& place) const {
  if (place.owner != wire::kNoOwner || slices_.empty()) return;
  if (slices_[wire::SliceOf(hash)] == wire::SliceState::kLeft) {
    place.reason = MissReason::kShardAway;
  }
}

std::vector<wire::HeldKey> DirectoryService::Held(
    std::span<const std::pair<SlotId, Id128>> keys) const {
  std::vector<wire::HeldKey> held;
  held.reserve(keys.size());
  for (std::size_t begin = 0; begin < keys.size(); begin += kSlice) {
    const MutexLock lock(mutex_);
    for (const auto& [slot, hash] : keys.subspan(begin, std::min(kSlice, keys.size() - begin))) {
      wire::HeldKey& one = held.emplace_back();
      wire::Place place{.reason = MissReason::kShardAway};
      if (Serves(hash, /*listing=*/false)) {
        place = directory_.Find(slot, hash);
        Qualify(hash, place);
        one.holders = directory_.TiersOf(slot, hash);
      }
      one.reason = place.reason;
      one.size_bytes = place.size_bytes;
      if (const auto missed = MissOf(slot, hash)) {
        one.missed = missed->reason;
        one.misses = missed->count;
        one.missed_age_ns = missed->age_ns;
      }
    }
  }
  return held;
}

void DirectoryService::CountPrefix(SlotId slot, std::span<const Id128> hashes,
                                   PrefixCount& count) const {
  std::vector<Directory::Holder> holders;
  std::size_t i = 0;
  while (i < hashes.size()) {
    const MutexLock lock(mutex_);
    const std::int64_t now = clock_.NowNs();
    // The hold counts owners, not keys: a prefix that all hosts use has an entry for each of them.
    for (std::size_t entries = 0; i < hashes.size() && entries < kSlice; ++i) {
      if (i + kLookAhead < hashes.size()) directory_.Prefetch(hashes[i + kLookAhead]);
      if (!Serves(hashes[i], /*listing=*/false)) return count.End(MissReason::kShardAway);
      holders.clear();
      directory_.AddHolders(slot, hashes[i], now, holders);
      if (holders.empty()) {
        wire::Place place = directory_.Find(slot, hashes[i], now);
        Qualify(hashes[i], place);
        return count.End(place.reason);
      }
      count.Add(holders);
      entries += holders.size();
    }
  }
}

// ---- removals

std::vector<Code> DirectoryService::Remove(SlotId slot, Generation generation,
                                           std::span<const std::string> keys,
                                           std::uint64_t number) {
  std::vector<Code> codes;
  codes.reserve(keys.size());
  for (std::size_t begin = 0; begin < keys.size(); begin += kSlice) {
    const MutexLock lock(mutex_);
    for (const std::string& key : keys.subspan(begin, std::min(kSlice, keys.size() - begin))) {
      const Id128 hash = DirectoryHash(slot, key);
      codes.push_back(directory_.Remove(slot, hash, generation) ? Code::kOk : Code::kMiss);
      removals_.Remember(slot, directory_.Tag(slot, hash), number);
    }
  }
  return codes;
}

void DirectoryService::RemovePattern(SlotId slot, std::uint64_t number) {
  const MutexLock lock(mutex_);
  removals_.RememberPattern(slot, number);
}

// ---- shards

bool DirectoryService::Serves(const Id128& hash, bool listing) const {
  if (slices_.empty()) return true;
  const wire::SliceState state = slices_[wire::SliceOf(hash)];
  return state == wire::SliceState::kServes || (!listing && state != wire::SliceState::kNone);
}

void DirectoryService::SetSlices(std::span<const wire::SliceState> states, std::size_t shards) {
  const MutexLock lock(mutex_);
  slices_.assign(states.begin(), states.end());
  shards_ = shards;
}

std::vector<wire::ShardEntry> DirectoryService::CopySlices(const Directory::Slices& slices,
                                                           std::uint32_t& cursor) {
  std::vector<wire::ShardEntry> entries;
  while (cursor < Directory::kShards && entries.size() < kMovePage) {
    const MutexLock lock(mutex_);
    directory_.CopySlices(cursor++, slices, entries);
  }
  return entries;
}

void DirectoryService::LoadEntries(std::span<const wire::ShardEntry> entries, std::uint64_t shown) {
  for (std::size_t begin = 0; begin < entries.size(); begin += kSlice) {
    const MutexLock lock(mutex_);
    for (const wire::ShardEntry& entry :
         entries.subspan(begin, std::min(kSlice, entries.size() - begin))) {
      // No owner has seen a removal after `shown` yet, so no owner has put the key after it, and
      // the entry is of a value from before the removal.
      if (removals_.RemovedSince(entry.slot, directory_.Tag(entry.slot, entry.hash), shown)) {
        continue;
      }
      directory_.LoadEntry(entry);
    }
  }
}

void DirectoryService::ForgetSlices(const Directory::Slices& slices) {
  for (std::size_t i = 0; i < Directory::kShards; ++i) {
    const MutexLock lock(mutex_);
    directory_.ForgetSlices(i, slices);
  }
}

// ---- why keys are missed

void DirectoryService::Note(SlotId slot, const Id128& hash, MissReason reason) {
  const std::uint64_t tag = directory_.Tag(slot, hash);
  Missed& missed = missed_[tag % kMissesKept];
  if (missed.tag != tag) missed = {.tag = tag};
  missed.reason = reason;
  missed.at_ns = clock_.NowNs();
  ++missed.count;
}

void DirectoryService::RememberMiss(SlotId slot, const Id128& hash, MissReason reason) {
  const MutexLock lock(mutex_);
  Note(slot, hash, reason);
}

void DirectoryService::RememberMisses(SlotId slot, std::span<const Id128> hashes,
                                      std::span<const wire::Place> places) {
  for (std::size_t begin = 0; begin < hashes.size(); begin += kSlice) {
    const MutexLock lock(mutex_);
    for (std::size_t i = begin; i < std::min(begin + kSlice, hashes.size()); ++i) {
      if (places[i].owner == wire::kNoOwner) Note(slot, hashes[i], places[i].reason);
    }
  }
}

std::optional<RecentMiss> DirectoryService::Why(SlotId slot, std::string_view key) const {
  const MutexLock lock(mutex_);
  return MissOf(slot, DirectoryHash(slot, key));
}

std::optional<RecentMiss> DirectoryService::MissOf(SlotId slot, const Id128& hash) const {
  const std::uint64_t tag = directory_.Tag(slot, hash);
  const Missed& missed = missed_[tag % kMissesKept];
  if (missed.tag != tag || missed.reason == MissReason::kNone) return std::nullopt;
  return RecentMiss{
      .reason = missed.reason, .count = missed.count, .age_ns = clock_.NowNs() - missed.at_ns};
}

// ---- inspection

std::uint64_t DirectoryService::entries() const {
  const MutexLock lock(mutex_);
  return directory_.entries();
}
std::uint64_t DirectoryService::bytes() const {
  const MutexLock lock(mutex_);
  return directory_.bytes();
}
std::size_t DirectoryService::remembered_removals() const {
  const MutexLock lock(mutex_);
  return removals_.size();
}

}  // namespace kvcove::master
