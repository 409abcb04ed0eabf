// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/core/core.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>

namespace kvcove::owner {
namespace {

// Each slice takes a fraction of a millisecond under the lock.
constexpr std::uint32_t kSweepSlice = 512;    // objects
constexpr std::uint32_t kEventSlice = 4096;   // events of all sessions
constexpr std::uint32_t kHoldSlice = 2048;    // ended holds
constexpr std::uint32_t kPinSlice = 512;      // ended pins
constexpr std::uint32_t kOrphanSlice = 1024;  // reservations of ended sessions
// More than the rings of one host's sessions contain in practice; Tick takes the rest.
constexpr std::uint32_t kDrainAll = 65536;

void AddCounters(const segment::SessionPage& page, wire::SessionCounters& sum) {
  sum.lookups += page.lookups.load(std::memory_order_relaxed);
  sum.gets += page.gets.load(std::memory_order_relaxed);
  sum.get_bytes += page.bytes_read.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < kMissReasons; ++i) {
    sum.misses[i] += page.misses[i].load(std::memory_order_relaxed);
  }
}

}  // namespace

Core::Core(const CoreOptions& options, segment::HeaderView header, std::byte* payload,
           const Clock& clock)
    : options_(options),
      clock_(clock),
      payload_{.data = payload, .granule = header.granule()},
      objects_(header),
      spaces_(options.policy, options.payload_bytes, options.quotas),
      reservations_(steps_),
      holds_(options.payload_bytes / 10),
      key_changes_(options.key_changes_bytes == 0
                       ? std::nullopt
                       : std::optional<KeyChanges>(options.key_changes_bytes)),
      room_(options_,
            {.objects = objects_,
             .spaces = spaces_,
             .reservations = reservations_,
             .listings = listings_,
             .key_changes = key_changes_ ? &*key_changes_ : nullptr,
             .asks = asks_,
             .counters = counters_,
             .steps = steps_},
            payload_, clock) {}

Result<std::unique_ptr<Core>> Core::Open(const CoreOptions& options, segment::HeaderView header,
                                         std::byte* payload, const Clock& clock) {
  if (const auto made = policy::MakePolicy(options.policy); !made) {
    return std::unexpected(made.error());
  }
  return std::unique_ptr<Core>(new Core(options, header, payload, clock));
}

// ---- sessions

SessionNumber Core::AddSession(segment::SessionPage* page, std::int32_t pid,
                               const segment::Staging* staging) {
  const SessionNumber number = next_session_++;
  sessions_[number] = {.page = page, .pid = pid, .staging = staging};
  reservations_.AddSession(number);
  if (page != nullptr) room_.withdrawn().AddPage(number, page);
  return number;
}

void Core::EndSession(SessionNumber number) {
  const auto at = sessions_.find(number);
  if (at == sessions_.end()) return;
  if (segment::SessionPage* page = at->second.page; page != nullptr) {
    DrainPage(number, *page, kEventSlice);
    // The caller has the proof that no thread of the process reads any more, so its slots protect
    // nothing. The page is unmapped after this call: no scan may see it again.
    segment::ClearLanes(*page);
    AddCounters(*page, counters_.local);
    room_.withdrawn().RemovePage(number);
    ++ended_pages_;
  }
  sessions_.erase(at);
  holds_.EndSession(number);
  reservations_.EndSession(number);
  EndHolds(kHoldSlice);
  EndOrphans(kOrphanSlice);
  room_.Recheck();
}

bool Core::EndOrphans(std::uint32_t at_most) {
  for (; at_most > 0; --at_most) {
    Reservation* orphan = reservations_.Orphan();
    if (orphan == nullptr) return false;
    ++steps_.reservations;
    EndReservation(*orphan);
  }
  return reservations_.Orphan() != nullptr;
}

// ---- generations and lease

void Core::SetSlots(const Id128& incarnation, const std::vector<SlotUpdate>& updates) {
  if (incarnation != incarnation_) {
    former_incarnation_ = std::exchange(incarnation_, incarnation);
  }
  for (const SlotUpdate& update : updates) {
    objects_.SetNamed(update.slot, update.named);
    if (key_changes_) key_changes_->SetSlot(update);
    if (objects_.slot(update.slot).generation == update.generation) continue;
    // The slot's dead objects count for the former space until they are swept. Attach before
    // Detach: both may name the same space, whose entry Detach frees once no slot uses it.
    const Spaces::Number before = objects_.slot(update.slot).space;
    objects_.SetSpace(update.slot,
                      update.generation == 0 ? Spaces::kNone : spaces_.Attach(update.name));
    spaces_.Detach(before);
    const Generation ended = objects_.slot(update.slot).generation;
    objects_.SetGeneration(update.slot, update.generation);
    if (ended == 0) continue;
    asks_.SlotVoided(update.slot);
    CountVoided(update);
  }
}

void Core::CountVoided(const SlotUpdate& update) {
  const Objects::Slot& slot = objects_.slot(update.slot);
  counters_.resets += update.generation != 0 ? 1 : 0;
  counters_.voided += slot.voided;
  counters_.voided_bytes += slot.voided_bytes;
  if (update.generation != 0 && ++voided_.resets == 1) voided_.name = update.name;
  voided_.objects += slot.voided;
  voided_.bytes += slot.voided_bytes;
}

void Core::SetHidden(std::span<const SlotId> slots) {
  if (std::ranges::equal(slots, hidden_)) return;
  // A slot that remains hidden is not touched: shown for a moment, it would answer with objects
  // that may have been removed.
  for (const SlotId slot : hidden_) {
    if (std::ranges::find(slots, slot) != slots.end()) continue;
    objects_.SetHidden(slot, false);
    if (key_changes_) key_changes_->SetHidden(slot, false);
  }
  hidden_.assign(slots.begin(), slots.end());
  for (const SlotId slot : hidden_) {
    objects_.SetHidden(slot, true);
    if (key_changes_) key_changes_->SetHidden(slot, true);
  }
}

// Release: a reader that loads this deadline (HeaderView::LeaseHolds, acquire) also sees every
// generation that was stored before.
void Core::RenewLease(std::int64_t deadline_ns) {
  objects_.index().view().header().lease_deadline_ns.store(deadline_ns, std::memory_order_release);
}

Code Core::CheckToken(const Token& token) const {
  if (token.slot >= kMaxSlots || token.generation == 0 || token.incarnation != incarnation_) {
    return Code::kStale;
  }
  return objects_.slot(token.slot).generation == token.generation ? Code::kOk : Code::kStale;
}

bool Core::Awaits(const Token& token) const {
  // Outside a cluster the owner publishes a generation before any session gets it.
  if (!options_.listed || token.slot >= kMaxSlots || token.generation == 0) return false;
  // Incarnations have no order, so only the one that this owner has left is known to be older.
  if (token.incarnation != incarnation_) return token.incarnation != former_incarnation_;
  // A slot without a generation says nothing about a token's age.
  const Generation own = objects_.slot(token.slot).generation;
  return own == 0 || Follows(own, token.generation);
}

MissReason Core::Unreadable(const Token& token) const {
  if (CheckToken(token) != Code::kOk) {
    return Awaits(token) ? MissReason::kLease : MissReason::kReset;
  }
  return Hidden(token.slot) ? MissReason::kLease : MissReason::kNone;
}

// ---- objects

void Core::Withdraw(ObjectId id, MissReason reason) { room_.Withdraw(id, reason); }

segment::Found Core::FindLive(SlotId slot, const segment::PreparedKey& key) {
  const segment::Found found = objects_.view().Find(slot, key);
  if (!found) return {};
  if (found.generation == objects_.slot(slot).generation) return found;
  ++counters_.swept;
  Withdraw(found.object, MissReason::kReset);
  room_.Settle();
  return {};
}

// The policy does not know hard-pinned objects: PinHard has removed them.
void Core::CountHit(ObjectId id, bool asked) {
  const Asks::Object object{.id = id,
                            .hash = asks_.Knows(id) ? 0 : objects_.HashOf(id),
                            .bytes = objects_.Bytes(id),
                            .slot = static_cast<SlotId>(objects_[id].slot),
                            .generation = objects_.GenerationOf(id)};
  asked ? asks_.Hit(object) : asks_.Touched(object);
  if (options_.lower != nullptr) options_.lower->Asked(id);
  if (objects_[id].hard_pinned) return;
  spaces_.policy(objects_[id].space).OnHit(id);
}

// ---- statistics

wire::RenewRequest Core::Report() const {
  return {.free_bytes = room_.free_bytes(),
          .objects = objects_.size() - objects_.dead(),
          .hits = counters_.hits,
          .evictions = counters_.evictions,
          .stale_puts = counters_.stale_puts,
          .puts = counters_.puts,
          .hit_bytes = hit_bytes_,
          .put_bytes = counters_.put_bytes};
}

void Core::StatTotals(PoolStat& stat) const {
  stat = {};
  stat.payload_bytes = options_.payload_bytes;
  stat.populated_bytes = room_.added_bytes();
  stat.free_bytes = room_.free_bytes();
  stat.object_bytes = spaces_.object_bytes();
  stat.reserved_bytes = spaces_.reserved_bytes();
  stat.withdrawn_bytes = room_.withdrawn().bytes();
  stat.index_bytes = objects_.index().record_bytes() + objects_.index().bucket_bytes();
  stat.objects = objects_.size() - objects_.dead();
  stat.puts = counters_.puts;
  stat.put_bytes = counters_.put_bytes;
  stat.hits = counters_.hits;
  stat.hit_bytes = hit_bytes_;
  stat.evictions = counters_.evictions;
  stat.removals = counters_.removals;
  stat.swept = counters_.swept;
  stat.stale_puts = counters_.stale_puts;
  stat.expired_puts = counters_.expired_puts;
  stat.pinned_bytes = spaces_.pinned_bytes();
  stat.timed_pin_bytes = room_.timed_pins().bytes();
  stat.refused_pins = room_.refused_pins();
  stat.ended_pins = room_.ended_pins();
  stat.resets = counters_.resets;
  stat.voided = counters_.voided;
  stat.voided_bytes = counters_.voided_bytes;
  stat.distinct = asks_.distinct();
  stat.local = counters_.local;
}

bool Core::StatSome(StatWalk& walk, PoolStat& stat) const {
  // A session that ended during the walk has added its counters to a total that `stat` took before,
  // so `stat` may lack them. A counter must not decrease from one call to the next, so the walk
  // begins again: kRounds times at most, because sessions may end all the time.
  constexpr int kRounds = 4;
  if (walk.begun && walk.ended_pages != ended_pages_ && walk.rounds < kRounds) walk.begun = false;
  if (!walk.begun) {
    StatTotals(stat);
    walk = {.begun = true, .ended_pages = ended_pages_, .rounds = walk.rounds + 1};
  }
  const std::size_t before = walk.space;
  spaces_.StatSome(walk.space, kStatSlice, stat.namespaces);
  std::size_t left = kStatSlice - (walk.space - before);
  std::vector<Place> places;
  auto at = sessions_.upper_bound(walk.session);
  for (; left > 0 && at != sessions_.end(); --left, ++at) {
    const auto& [number, session] = *at;
    walk.session = number;
    if (number == promoter_) continue;
    places.clear();
    if (session.page != nullptr) {
      AddCounters(*session.page, stat.local);
      segment::CollectProtected(*session.page, places);
      stat.dropped_events += session.page->ring_dropped.load(std::memory_order_relaxed);
    }
    stat.sessions.push_back({.number = number,
                             .pid = session.pid,
                             .protected_objects = places.size(),
                             .reserved_bytes = reservations_.reserved_bytes(number),
                             .held_bytes = holds_.held_bytes(number)});
  }
  return walk.space < spaces_.entries() || at != sessions_.end();
}

PoolStat Core::Stat() const {
  PoolStat stat;
  StatWalk walk;
  while (StatSome(walk, stat)) {
  }
  return stat;
}

// ---- background work

std::uint32_t Core::DrainPage(SessionNumber session, segment::SessionPage& page,
                              std::uint32_t at_most) {
  std::uint32_t count = 0;
  const std::int64_t now = clock_.NowNs();
  segment::Event event;
  for (; count < at_most && segment::PopEvent(page, now, event); ++count) {
    // The session's process may write anything into its ring, or name an object that was withdrawn
    // since: an event counts only if its place and version name a live object exactly.
    const ObjectId id = objects_.Named(event.place, event.version);
    if (id == kNoObject) continue;
    if (event.kind == segment::EventKind::kHit) {
      ++counters_.hits;
      hit_bytes_ += objects_.SizeBytes(id);
      CountHit(id, /*asked=*/true);
    }
    if (event.hold_until_ms * kMillisecond > now) {
      AddHold(session, id, event.version, event.hold_until_ms * kMillisecond);
    }
  }
  return count;
}

// Continues with the session after the one where the last call stopped, so that busy sessions do
// not starve the others. True when events may be left.
bool Core::DrainEvents(std::uint32_t at_most) {
  const auto& pages = room_.withdrawn().pages();
  auto at = pages.upper_bound(drained_);
  for (std::size_t left = pages.size(); left > 0; --left) {
    if (at == pages.end()) at = pages.begin();
    drained_ = at->first;
    at_most -= DrainPage(at->first, *at->second.page, at_most);
    if (at_most == 0) return true;
    ++at;
  }
  return false;
}

void Core::DrainEvents() {
  DrainEvents(kDrainAll);
  EndHolds(kHoldSlice);  // the rest ends with the next calls and with Tick
}

void Core::AddHold(SessionNumber session, ObjectId id, Version version, std::int64_t until_ns) {
  const Hold hold{.object = id,
                  .version = version,
                  .bytes = objects_.Bytes(id),
                  .until_ns = std::min(
                      until_ns, clock_.NowNs() + segment::kLongestHold.count() * kMillisecond)};
  if (!objects_.Hold(id)) return;
  if (!holds_.Add(session, hold)) objects_.Unhold(id);
}

bool Core::EndHolds(std::uint32_t at_most) {
  const std::int64_t now = clock_.NowNs();
  for (; at_most > 0; --at_most) {
    const std::optional<Hold> hold = holds_.TakeEnded(now);
    if (!hold) return false;
    ++steps_.holds;
    // The number may be another object's by now; the version is not reused.
    if (objects_.Has(hold->object, hold->version)) objects_.Unhold(hold->object);
  }
  return true;
}

bool Core::Tick() {
  asks_.SetNow(clock_.NowNs());
  bool more = DrainEvents(kEventSlice);
  more |= EndHolds(kHoldSlice);
  more |= room_.EndPins(kPinSlice);
  more |= EndOrphans(kOrphanSlice);
  room_.Settle();
  room_.Recheck();
  room_.Sweep(kSweepSlice, /*unnamed=*/false);
  return more || objects_.dead() > 0;
}

void Core::CheckInvariants() const {
  if (room_.Consistent()) return;
  fmt::print(stderr,
             "payload is lost or used twice: {} bytes of objects, {} reserved, {} withdrawn, "
             "{} free of {}\n",
             spaces_.object_bytes(), spaces_.reserved_bytes(), room_.withdrawn().bytes(),
             room_.free_bytes(), options_.payload_bytes);
  std::abort();
}

}  // namespace kvcove::owner
