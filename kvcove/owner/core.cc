// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/core.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "kvcove/base/random.h"
#include "kvcove/base/size.h"

namespace kvcove::owner {
namespace {

constexpr std::size_t kFinishedRemembered =
    4096;                                    // commits whose answer can be repeated, a session
constexpr std::uint32_t kSweepSlice = 4096;  // objects looked at under one lock
constexpr std::uint32_t kEventSlice = 65536;
constexpr std::uint32_t kMaxVictims = 256;  // a round
constexpr std::uint32_t kWalkSlice = 2048;
constexpr std::uint32_t kPageSlice = 65536;
constexpr std::uint64_t kBlockBytes = 64 * kKiB;
constexpr std::uint16_t kMixed = 0xFFFF;

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
    : options_(options), index_(header), payload_(payload), clock_(clock), slots_(kMaxSlots) {
  if (options.clear_foreign) block_spaces_.resize(options.payload_bytes / kBlockBytes + 1);
}

Result<std::unique_ptr<Core>> Core::Open(const CoreOptions& options, segment::HeaderView header,
                                         std::byte* payload, const Clock& clock) {
  if (const auto made = policy::MakePolicy(options.policy, options.payload_bytes); !made) {
    return std::unexpected(made.error());
  }
  return std::unique_ptr<Core>(new Core(options, header, payload, clock));
}

// ---- sessions
// -----------------------------------------------------------------------------------------------

SessionNumber Core::AddSession(segment::SessionPage* page, std::int32_t pid) {
  const SessionNumber number = next_session_++;
  sessions_[number] = {.page = page, .pid = pid};
  return number;
}

void Core::EndSession(SessionNumber number) {
  const auto at = sessions_.find(number);
  if (at == sessions_.end()) return;
  DrainEvents(at->second);
  while (!at->second.holds.empty()) DropHold(at->second);
  segment::ClearLanes(*at->second.page);
  AddCounters(*at->second.page, counters_.local);
  std::vector<std::uint64_t> mine;
  for (const auto& [id, reservation] : reservations_) {
    // What is committed and waits for the master is not the session's any more.
    if (reservation.session == number && !reservation.listing) mine.push_back(id);
  }
  for (const std::uint64_t id : mine) EndReservation(id);
  sessions_.erase(at);
  Settle();
}

// ---- generations and lease
// ----------------------------------------------------------------------------------

// All namespaces of a tenant share one space, and its quota; each other namespace has its own.
std::uint16_t Core::FindOrAddSpace(const std::string& of) {
  const std::string_view tenant = TenantOf(of);
  const std::string name = tenant.empty() ? of : QualifiedName(tenant, "");
  for (std::size_t i = 0; i < spaces_.size(); ++i) {
    if (spaces_[i].name == name) return static_cast<std::uint16_t>(i);
  }
  const auto quota = options_.quotas.find(name);
  spaces_.push_back({.name = name,
                     .quota = quota == options_.quotas.end() ? Quota{} : quota->second,
                     .policy = *policy::MakePolicy(options_.policy, options_.payload_bytes)});
  return static_cast<std::uint16_t>(spaces_.size() - 1);
}

void Core::SetSlots(const Id128& incarnation, const std::vector<SlotUpdate>& updates) {
  incarnation_ = incarnation;
  for (const SlotUpdate& update : updates) {
    SlotState& slot = slots_[update.slot];
    slot.named = update.named;
    if (slot.generation == update.generation) continue;
    slot.generation = update.generation;
    slot.dead += slot.live;
    slot.voided = slot.live;
    dead_objects_ += slot.live;
    slot.live = 0;
    // A slot keeps its space as long as it has objects of it; the sweep goes by the object's own
    // slot.
    if (update.generation != 0 && slot.dead == 0)
      slot.space = FindOrAddSpace(update.name);
    else if (update.generation != 0 && slot.space != FindOrAddSpace(update.name)) {
      while (slot.dead > 0) Sweep(kSweepSlice);
      slot.space = FindOrAddSpace(update.name);
    }
    index_.view()
        .slot(update.slot)
        .generation.store(slot.hidden ? 0 : update.generation, std::memory_order_seq_cst);
  }
}

// Readers of this host compare an object's generation with the table's; none has generation 0.
void Core::SetHidden(std::span<const SlotId> slots) {
  if (std::ranges::equal(slots, hidden_)) return;
  for (const SlotId slot : hidden_) {
    slots_[slot].hidden = false;
    if (std::ranges::find(slots, slot) == slots.end()) {
      index_.view().slot(slot).generation.store(slots_[slot].generation, std::memory_order_seq_cst);
    }
  }
  hidden_.assign(slots.begin(), slots.end());
  for (const SlotId slot : hidden_) {
    slots_[slot].hidden = true;
    index_.view().slot(slot).generation.store(0, std::memory_order_seq_cst);
  }
}

void Core::RenewLease(std::int64_t deadline_ns) {
  index_.view().header().lease_deadline_ns.store(deadline_ns, std::memory_order_release);
}

Code Core::CheckToken(const Token& token) const {
  if (!options_.checks.generation && token.slot < kMaxSlots) return Code::kOk;
  if (token.slot >= kMaxSlots || token.generation == 0 || token.incarnation != incarnation_) {
    return Code::kStale;
  }
  return slots_[token.slot].generation == token.generation ? Code::kOk : Code::kStale;
}

// ---- payload
// ------------------------------------------------------------------------------------------------

void Core::AddPayloadUpTo(std::uint64_t granules) {
  granules = std::min(granules, options_.payload_bytes / segment::kGranule);
  if (granules <= added_granules_) return;
  allocator_.Add({.start = static_cast<std::uint32_t>(added_granules_),
                  .count = static_cast<std::uint32_t>(granules - added_granules_)});
  added_granules_ = granules;
}

std::uint64_t Core::OccupiedBytes(Place place) const {
  const auto meta =
      segment::EntryMeta(index_.view().EntryAt(place).meta.load(std::memory_order_relaxed));
  return std::uint64_t{segment::GranulesOf(meta.size_bytes())} * segment::kGranule;
}

void Core::ClearForeign(std::span<const Extent> extents, std::uint16_t space) {
  if (!options_.clear_foreign) return;
  const auto own = static_cast<std::uint16_t>(space + 1);
  for (const Extent& extent : extents) {
    std::uint64_t at = std::uint64_t{extent.start} * segment::kGranule;
    const std::uint64_t end = at + std::uint64_t{extent.count} * segment::kGranule;
    while (at < end) {
      const std::uint64_t until = std::min(end, (at / kBlockBytes + 1) * kBlockBytes);
      std::uint16_t& block = block_spaces_[at / kBlockBytes];
      if (block != own && block != 0) std::memset(payload_ + at, 0, until - at);
      block = block == 0 || block == own ? own : kMixed;
      at = until;
    }
  }
}

std::vector<Extent> Core::MakeRoom(std::uint64_t size_bytes, std::uint16_t space, bool evict) {
  const std::uint32_t granules = segment::GranulesOf(size_bytes);
  const std::uint64_t bytes = std::uint64_t{granules} * segment::kGranule;
  if (bytes > options_.payload_bytes || bytes > spaces_[space].quota.maximum_bytes) return {};
  while (spaces_[space].bytes + bytes > spaces_[space].quota.maximum_bytes ||
         index_.size() >= options_.max_objects) {
    if (!SweepWanted() || !Sweep(kSweepSlice)) {
      if (!evict || !EvictSome(bytes, space)) return {};
    }
  }
  bool unnamed_tried = false;
  while (true) {
    if (std::vector<Extent> extents = allocator_.Allocate(granules); !extents.empty()) {
      return extents;
    }
    const std::uint64_t all = options_.payload_bytes / segment::kGranule;
    if (added_granules_ < all) {  // use what is not populated yet rather than evict
      AddPayloadUpTo(added_granules_ + std::max<std::uint64_t>(granules, kMiB / segment::kGranule));
      continue;
    }
    const std::uint64_t free_before = allocator_.free_granules();
    if (!withdrawn_.empty()) {
      Settle();
      if (allocator_.free_granules() > free_before) continue;
    }
    if (!unnamed_tried && !unnamed_wanted_) {
      unnamed_tried = true;  // one round over all objects a call
      unnamed_wanted_ = std::any_of(slots_.begin(), slots_.end(), [](const SlotState& slot) {
        return !slot.named && slot.live > 0;
      });
    }
    if (SweepWanted()) {
      Sweep(kSweepSlice);
      continue;
    }
    if (!evict || !EvictSome(bytes, space)) return {};
  }
}

std::optional<std::uint16_t> Core::VictimSpace(std::uint16_t asking) const {
  const Namespace& own = spaces_[asking];
  if (own.bytes > 0 && own.bytes >= own.quota.maximum_bytes) return asking;
  // The one that is most above what it is guaranteed.
  std::optional<std::uint16_t> most;
  std::uint64_t most_over = 0;
  for (std::size_t i = 0; i < spaces_.size(); ++i) {
    const Namespace& candidate = spaces_[i];
    if (candidate.bytes <= candidate.quota.guaranteed_bytes) continue;
    const std::uint64_t over = candidate.bytes - candidate.quota.guaranteed_bytes;
    if (over > most_over) {
      most_over = over;
      most = static_cast<std::uint16_t>(i);
    }
  }
  if (!most && own.bytes > 0) return asking;
  return most;
}

bool Core::Evictable(ObjectId id, bool last_resort) const {
  const Object& object = objects_[id];
  if (object.hard_pinned) return false;
  if (last_resort) return true;
  if (object.held > 0) return false;
  if (!object.soft_pinned) return true;
  const auto pin = soft_pins_.find(id);
  return pin == soft_pins_.end() || pin->second.until_ns <= clock_.NowNs();
}

// False when nothing could be withdrawn.
bool Core::EvictSome(std::uint64_t bytes, std::uint16_t space) {
  std::uint64_t evicted = 0;
  std::uint32_t victims = 0;
  bool last_resort = false;
  while (evicted < bytes && victims < kMaxVictims) {
    std::optional<std::uint16_t> from = VictimSpace(space);
    if (spaces_[space].bytes + bytes > spaces_[space].quota.maximum_bytes) from = space;
    if (!from) break;
    const ObjectId id = spaces_[*from].policy->Victim(
        [&](ObjectId candidate) { return Evictable(candidate, last_resort); });
    if (id == kNoObject) {
      if (last_resort) break;
      last_resort = true;
      continue;
    }
    evicted += OccupiedBytes(objects_[id].place);
    ++victims;
    ++counters_.evictions;
    Withdraw(id, MissReason::kEvicted);
  }
  Settle();
  return victims > 0;
}

void Core::Withdraw(ObjectId id, MissReason reason) {
  Object& object = objects_[id];
  const Place place = object.place;
  const segment::Entry& entry = index_.view().EntryAt(place);
  segment::Found found{.place = place};
  found.meta = segment::EntryMeta(entry.meta.load(std::memory_order_relaxed));
  found.first_granule =
      static_cast<std::uint32_t>(entry.first.load(std::memory_order_relaxed) >> 32);
  const Generation generation = entry.generation.load(std::memory_order_relaxed);
  const std::uint64_t hash = index_.view().HashKey(found.meta.slot(), index_.view().KeyOf(place));
  const std::uint64_t bytes = OccupiedBytes(place);

  if (options_.listed && reason != MissReason::kReset) {
    if (gone_.size() < kMaxGone) {
      gone_.push_back({.hash = DirectoryHash(found.meta.slot(), index_.view().KeyOf(place)),
                       .group = listings_[id].group,
                       .slot = found.meta.slot(),
                       .gone = true});
    } else {
      gone_overflow_ = true;
    }
  }
  // The reason first, for a reader that misses it from now on.
  index_.view().RememberGhost(hash, reason);
  index_.Withdraw(place, hash);
  Withdrawn gone{.place = place, .extents = std::vector<Extent>(segment::kMaxExtents)};
  gone.extents.resize(index_.view().Extents(
      found, std::span<Extent, segment::kMaxExtents>(gone.extents.data(), segment::kMaxExtents)));
  withdrawn_.push_back(std::move(gone));

  SlotState& slot = slots_[object.slot];
  Namespace& space = spaces_[slot.space];
  space.policy->OnRemove(id, reason == MissReason::kEvicted);
  space.bytes -= bytes;
  if (generation == slot.generation) {
    --slot.live;
  } else {
    --slot.dead;
    --dead_objects_;
  }
  if (object.hard_pinned) hard_pinned_bytes_ -= bytes;
  if (object.soft_pinned) soft_pins_.erase(id);
  object = {};
  free_objects_.push_back(id);
}

void Core::Settle() {
  if (withdrawn_.empty()) return;
  segment::FullFence();
  protected_.clear();
  for (const auto& [number, session] : sessions_) {
    segment::CollectProtected(*session.page, protected_);
  }
  std::sort(protected_.begin(), protected_.end());
  std::erase_if(withdrawn_, [&](const Withdrawn& gone) {
    if (std::binary_search(protected_.begin(), protected_.end(), gone.place)) return false;
    if (!lent_.empty() && lent_.contains(gone.place)) return false;
    allocator_.Free(gone.extents);
    index_.Release(gone.place);
    return true;
  });
}

// Looks at a slice of all objects and withdraws those of dead generations, and those of versions
// that nobody names when room is wanted. True when it withdrew any or has more to look at.
bool Core::Sweep(std::uint32_t budget) {
  if (!SweepWanted() || next_object_ == 0) {
    unnamed_wanted_ = false;
    return false;
  }
  if (unnamed_wanted_ && sweep_left_ == 0) sweep_left_ = next_object_;
  bool any = false;
  for (std::uint32_t i = 0; i < budget; ++i) {
    if (sweep_cursor_ >= next_object_) sweep_cursor_ = 0;
    const ObjectId id = sweep_cursor_++;
    if (sweep_left_ > 0) {
      --sweep_left_;
      if (sweep_left_ == 0) unnamed_wanted_ = false;
    }
    const Object& object = objects_[id];
    if (object.place != 0) {
      const SlotState& slot = slots_[object.slot];
      const bool dead =
          slot.dead > 0 &&
          index_.view().EntryAt(object.place).generation.load(std::memory_order_relaxed) !=
              slot.generation;
      if (dead || (unnamed_wanted_ && !slot.named && !object.hard_pinned)) {
        any = true;
        ++counters_.swept;
        Withdraw(id, dead ? MissReason::kReset : MissReason::kEvicted);
      }
    }
    if (!SweepWanted()) break;
  }
  if (any) Settle();
  return any || SweepWanted();
}

// ---- puts
// ---------------------------------------------------------------------------------------------------

ObjectId Core::NewObject() {
  if (!free_objects_.empty()) {
    const ObjectId id = free_objects_.back();
    free_objects_.pop_back();
    return id;
  }
  objects_.Reach(next_object_);
  return next_object_++;
}

segment::Found Core::FindLive(SlotId slot, const segment::PreparedKey& key) {
  const segment::Found found = index_.view().Find(slot, key);
  if (!found) return {};
  if (found.generation == slots_[slot].generation || !options_.checks.generation) return found;
  ++counters_.swept;
  Withdraw(found.object, MissReason::kReset);
  Settle();
  return {};
}

Core::Reservation* Core::ClaimOf(SlotId slot, const segment::PreparedKey& key) {
  const auto [begin, end] = claims_.equal_range(key.hash);
  for (auto at = begin; at != end; ++at) {
    Reservation& reservation = reservations_.at(at->second);
    if (reservation.slot == slot && reservation.key == key.key) return &reservation;
  }
  return nullptr;
}

void Core::DropClaim(std::uint64_t id, Reservation& reservation) {
  if (!reservation.owns_key) return;
  reservation.owns_key = false;
  const auto [begin, end] = claims_.equal_range(reservation.hash);
  for (auto at = begin; at != end; ++at) {
    if (at->second == id) {
      claims_.erase(at);
      return;
    }
  }
}

std::vector<PutResult> Core::Put(SessionNumber number, const Token& token,
                                 std::span<const PutItem> items, bool evict) {
  std::vector<PutResult> results(items.size());
  const auto at = sessions_.find(number);
  const Code code = at == sessions_.end() ? Code::kUnavailable : CheckToken(token);
  if (code != Code::kOk) {
    if (code == Code::kStale) counters_.stale_puts += items.size();
    for (PutResult& result : results) result.code = code;
    return results;
  }
  // What this session read before it stores comes first.
  DrainEvents(at->second);
  ExpireKeys(clock_.NowNs());
  for (std::size_t i = 0; i < items.size(); ++i) {
    results[i] = PutOne(at->second, number, token, items[i], evict);
  }
  return results;
}

PutResult Core::PutOne(Session& session, SessionNumber number, const Token& token,
                       const PutItem& item, bool evict) {
  if (!CheckKey(item.key) || item.after.size() > kMaxKeyBytes ||
      !CheckObjectSize(item.size_bytes) ||
      (!item.value.empty() && item.value.size() != item.size_bytes)) {
    return {.code = Code::kInvalid, .extents = {}};
  }
  const segment::PreparedKey key{.key = item.key,
                                 .hash = index_.view().HashKey(token.slot, item.key)};
  if (const segment::Found found = FindLive(token.slot, key)) {
    // It may have been removed, and goes then: nobody may rely on it, least of all a copy that
    // moves.
    if (slots_[token.slot].hidden) return {.code = Code::kInProgress, .extents = {}};
    SpaceOf(token.slot).policy->OnHit(found.object);
    return {.code = Code::kExists, .extents = {}};
  }
  if (ClaimOf(token.slot, key) != nullptr) return {.code = Code::kInProgress, .extents = {}};
  const std::uint64_t reserve_limit = std::max<std::uint64_t>(options_.payload_bytes / 4, 1);
  if ((item.value.empty() || options_.listed) && session.reserved_bytes > 0 &&
      session.reserved_bytes + item.size_bytes > reserve_limit) {
    return {.code = Code::kLimit, .extents = {}};
  }
  const std::uint16_t space = slots_[token.slot].space;
  std::vector<Extent> extents = MakeRoom(item.size_bytes, space, evict);
  if (extents.empty()) return {.code = Code::kNoSpace, .extents = {}};
  ClearForeign(extents, space);

  Reservation reservation{.session = number,
                          .key = std::string(item.key),
                          .after = std::string(item.after),
                          .hash = key.hash,
                          .slot = token.slot,
                          .generation = token.generation,
                          .size_bytes = item.size_bytes,
                          .extents = std::move(extents),
                          .key_until_ns = clock_.NowNs() + options_.key_deadline_ns,
                          .removals = applied_};
  if (!item.value.empty()) {
    std::size_t offset = 0;
    for (const Extent& extent : reservation.extents) {
      const std::size_t count =
          std::min<std::size_t>(extent.count * segment::kGranule, item.value.size() - offset);
      std::memcpy(payload_ + extent.start * segment::kGranule, item.value.data() + offset, count);
      offset += count;
    }
    if (!options_.listed) {
      const Code code = Publish(reservation);
      if (code != Code::kOk) allocator_.Free(reservation.extents);
      return {.code = code, .extents = {}};
    }
  }
  const std::uint64_t id = next_reservation_++;
  PutResult result{.code = Code::kOk, .reservation = id, .extents = reservation.extents};
  session.reserved_bytes += item.size_bytes;
  for (const Extent& extent : reservation.extents) reserved_granules_ += extent.count;
  claims_.emplace(key.hash, id);
  Reservation& kept = reservations_.emplace(id, std::move(reservation)).first->second;
  if (!item.value.empty()) {
    AwaitListing(id, kept);
    result.extents.clear();
  }
  return result;
}

wire::ListItem Core::ItemOf(const Reservation& reservation) const {
  return {.hash = DirectoryHash(reservation.slot, reservation.key),
          .generation = reservation.generation,
          .size_bytes = reservation.size_bytes,
          .group = reservation.group,
          .slot = reservation.slot,
          .copies = reservation.copies,
          .removals = reservation.removals,
          .copied_at = reservation.copied_at};
}

void Core::AwaitListing(std::uint64_t id, Reservation& reservation) {
  reservation.listing = true;
  reservation.key_until_ns = std::numeric_limits<std::int64_t>::max();
  // Without replicas each put is a group of its own.
  if (reservation.group == 0) {
    reservation.group =
        static_cast<std::uint32_t>(Mix64(id ^ index_.view().header().hash_seed)) | 1;
  }
  pending_.push_back({.reservation = id, .item = ItemOf(reservation)});
}

Code Core::Publish(const Reservation& reservation) {
  const ObjectId id = NewObject();
  const Result<Place> place = index_.Insert({.key = reservation.key,
                                             .hash = reservation.hash,
                                             .slot = reservation.slot,
                                             .generation = reservation.generation,
                                             .size_bytes = reservation.size_bytes,
                                             .object = id,
                                             .version = next_version_++,
                                             .extents = reservation.extents});
  if (!place) {
    free_objects_.push_back(id);
    return Code::kNoSpace;
  }
  objects_[id] = {.place = *place, .slot = reservation.slot};
  if (options_.listed) {
    listings_.Reach(id);
    listings_[id] = {.checksum = reservation.checksum,
                     .group = reservation.group,
                     .has_checksum = reservation.has_checksum,
                     .copies = reservation.copies};
  }
  SlotState& slot = slots_[reservation.slot];
  ++slot.live;
  const std::uint64_t bytes = OccupiedBytes(*place);
  Namespace& space = spaces_[slot.space];
  space.bytes += bytes;
  ObjectId parent = kNoObject;
  if (!reservation.after.empty()) {
    const segment::Found found = index_.view().Find(
        reservation.slot, {.key = reservation.after,
                           .hash = index_.view().HashKey(reservation.slot, reservation.after)});
    if (found && slots_[objects_[found.object].slot].space == slot.space) parent = found.object;
  }
  space.policy->OnPut({.id = id, .key = reservation.hash, .size_bytes = bytes, .parent = parent});
  ++counters_.puts;
  counters_.put_bytes += reservation.size_bytes;
  return Code::kOk;
}

std::vector<Code> Core::Finish(SessionNumber number, std::span<const FinishItem> items) {
  std::vector<Code> codes(items.size(), Code::kUnavailable);
  const auto at = sessions_.find(number);
  if (at == sessions_.end()) return codes;
  ExpireKeys(clock_.NowNs());
  for (std::size_t i = 0; i < items.size(); ++i) codes[i] = FinishOne(at->second, number, items[i]);
  return codes;
}

Code Core::FinishOne(Session& session, SessionNumber number, const FinishItem& item) {
  const auto at = reservations_.find(item.reservation);
  if (at == reservations_.end()) {
    const auto before = session.finished.find(item.reservation);
    return before == session.finished.end() ? Code::kInvalid : before->second;
  }
  Reservation& reservation = at->second;
  if (reservation.session != number) return Code::kDenied;
  if (reservation.listing) return Code::kInProgress;
  Code code = Code::kOk;
  if (item.commit) {
    const segment::PreparedKey key{.key = reservation.key, .hash = reservation.hash};
    if (reservation.removed || (options_.checks.generation &&
                                slots_[reservation.slot].generation != reservation.generation)) {
      code = Code::kStale;
      ++counters_.stale_puts;
    } else if (!reservation.owns_key && options_.checks.reservation) {
      code = Code::kTimeout;  // it took so long that the key was given to others
      ++counters_.expired_puts;
    } else if (FindLive(reservation.slot, key)) {
      code = Code::kExists;
    } else if (options_.listed) {
      reservation.checksum = item.checksum;
      reservation.has_checksum = item.has_checksum;
      reservation.group = item.group;
      reservation.copies = item.copies;
      reservation.copied_at = item.copied_at;
      AwaitListing(item.reservation, reservation);
      return Code::kOk;
    } else {
      code = Publish(reservation);
    }
    if (code == Code::kOk) reservation.extents.clear();  // they belong to the object now
  }
  RememberFinished(session, item.reservation, code);
  EndReservation(item.reservation);
  return code;
}

void Core::RememberFinished(Session& session, std::uint64_t id, Code code) {
  session.finished.emplace(id, code);
  session.finished_order.push_back(id);
  if (session.finished_order.size() > kFinishedRemembered) {
    session.finished.erase(session.finished_order.front());
    session.finished_order.pop_front();
  }
}

void Core::EndReservation(std::uint64_t id) {
  const auto at = reservations_.find(id);
  Reservation& reservation = at->second;
  DropClaim(id, reservation);
  const auto session = sessions_.find(reservation.session);
  if (session != sessions_.end()) session->second.reserved_bytes -= reservation.size_bytes;
  reserved_granules_ -= segment::GranulesOf(reservation.size_bytes);
  if (!reservation.freed) allocator_.Free(reservation.extents);
  reservations_.erase(at);
}

void Core::ExpireKeys(std::int64_t now_ns) {
  if (claims_.empty()) return;
  std::vector<std::uint64_t> late;
  for (const auto& [hash, id] : claims_) {
    if (reservations_.at(id).key_until_ns <= now_ns) late.push_back(id);
  }
  for (const std::uint64_t id : late) {
    Reservation& reservation = reservations_.at(id);
    DropClaim(id, reservation);
    if (!options_.checks.reservation && !reservation.freed) {
      reservation.freed = true;
      allocator_.Free(reservation.extents);
    }
  }
}

// ---- in a cluster
// ------------------------------------------------------------------------------------------------

std::vector<Pending> Core::TakePending() { return std::exchange(pending_, {}); }

Code Core::FinishListing(const Pending& pending, Code listed) {
  const auto forget = [&](Code code) {
    if (listed == Code::kOk) {
      wire::ListItem gone = pending.item;
      gone.gone = true;
      gone_.push_back(gone);
    }
    return code;
  };
  const auto at = reservations_.find(pending.reservation);
  if (at == reservations_.end()) return forget(Code::kUnavailable);
  Reservation& reservation = at->second;
  Code code = listed;
  if (reservation.removed || slots_[reservation.slot].generation != reservation.generation) {
    code = forget(Code::kStale);
  } else if (listed == Code::kOk) {
    code = Publish(reservation);
    if (code == Code::kOk) {
      reservation.extents.clear();  // they belong to the object now
    } else {
      forget(code);
    }
  }
  if (code == Code::kStale) ++counters_.stale_puts;
  const auto session = sessions_.find(reservation.session);
  if (session != sessions_.end()) RememberFinished(session->second, pending.reservation, code);
  EndReservation(pending.reservation);
  return code;
}

std::vector<wire::ListItem> Core::TakeGone(std::size_t at_most) {
  const std::size_t count = std::min(at_most, gone_.size());
  const auto end = gone_.begin() + static_cast<std::ptrdiff_t>(count);
  std::vector<wire::ListItem> items(gone_.begin(), end);
  gone_.erase(gone_.begin(), end);
  return items;
}

bool Core::TakeGoneOverflow() { return std::exchange(gone_overflow_, false); }

std::vector<InventoryItem> Core::Inventory(ObjectId& cursor, std::size_t at_most) const {
  std::vector<InventoryItem> items;
  const std::uint64_t end =
      std::min<std::uint64_t>(next_object_, std::uint64_t{cursor} + kPageSlice);
  for (; cursor < end && items.size() < at_most; ++cursor) {
    const Object& object = objects_[cursor];
    if (object.place == 0) continue;
    const segment::Entry& entry = index_.view().EntryAt(object.place);
    const Generation generation = entry.generation.load(std::memory_order_relaxed);
    if (generation != slots_[object.slot].generation) continue;
    const auto meta = segment::EntryMeta(entry.meta.load(std::memory_order_relaxed));
    items.push_back({.item = {.hash = DirectoryHash(object.slot, index_.view().KeyOf(object.place)),
                              .generation = generation,
                              .size_bytes = static_cast<std::uint32_t>(meta.size_bytes()),
                              .group = listings_[cursor].group,
                              .slot = object.slot,
                              .inventory = true,
                              .copies = listings_[cursor].copies,
                              .removals = applied_},
                     .id = cursor,
                     .version = entry.version.load(std::memory_order_relaxed)});
  }
  if (cursor >= next_object_) cursor = kWalkDone;
  return items;
}

wire::InventoryReply Core::Page(const wire::InventoryRequest& request) const {
  wire::InventoryReply reply;
  if (request.slot && *request.slot < kMaxSlots) {
    const SlotState& slot = slots_[*request.slot];
    reply.generation = slot.generation;
    reply.live = slot.live;
    reply.voided = slot.voided;
  }
  if (request.cursor == wire::kInventoryDone) return reply;
  ObjectId at = request.cursor;
  const std::uint64_t end = std::min<std::uint64_t>(next_object_, std::uint64_t{at} + kPageSlice);
  for (; at < end && reply.objects.size() < request.at_most; ++at) {
    const Object& object = objects_[at];
    if (object.place == 0 || (request.slot && object.slot != *request.slot)) continue;
    const std::uint8_t copies = options_.listed ? listings_[at].copies : std::uint8_t{1};
    if (request.replicated_only && copies < 2) continue;
    const segment::Entry& entry = index_.view().EntryAt(object.place);
    const std::string key = index_.view().KeyOf(object.place);
    const Generation generation = entry.generation.load(std::memory_order_relaxed);
    if (generation != slots_[object.slot].generation || !key.starts_with(request.prefix)) continue;
    const auto meta = segment::EntryMeta(entry.meta.load(std::memory_order_relaxed));
    reply.objects.push_back({.hash = DirectoryHash(object.slot, key),
                             .generation = generation,
                             .version = entry.version.load(std::memory_order_relaxed),
                             .id = at,
                             .size_bytes = static_cast<std::uint32_t>(meta.size_bytes()),
                             .slot = object.slot,
                             .copies = copies,
                             .hard_pinned = object.hard_pinned,
                             .soft_pinned = object.soft_pinned,
                             .held = object.held > 0,
                             .key = {}});
    if (request.with_keys) reply.objects.back().key = key;
  }
  reply.cursor = at >= next_object_ ? wire::kInventoryDone : at;
  return reply;
}

void Core::DropObject(ObjectId id, Version version) {
  if (id >= next_object_ || objects_[id].place == 0 ||
      !index_.view().StillThere(objects_[id].place, version)) {
    return;
  }
  Withdraw(id, MissReason::kRemoved);
  Settle();
}

void Core::DropSlot(SlotId slot, std::uint32_t& cursor) {
  if (cursor == 0) {
    for (auto& [id, reservation] : reservations_) {
      if (reservation.slot == slot) reservation.removed = true;
    }
  }
  const auto end = static_cast<ObjectId>(
      std::min<std::uint64_t>(next_object_, std::uint64_t{cursor} + kWalkSlice));
  for (ObjectId id = cursor; id < end; ++id) {
    if (objects_[id].place != 0 && objects_[id].slot == slot) Withdraw(id, MissReason::kRemoved);
  }
  Settle();
  cursor = end >= next_object_ ? kWalkDone : end;
}

std::vector<Loan> Core::Lend(const Token& token, std::span<const std::string_view> keys) {
  std::vector<Loan> loans(keys.size());
  const bool current = CheckToken(token) == Code::kOk;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    Loan& loan = loans[i];
    if (!CheckKey(keys[i])) {
      loan.code = Code::kInvalid;
      continue;
    }
    if (!current || slots_[token.slot].hidden) {
      loan.reason = current ? MissReason::kLease : MissReason::kReset;
      continue;
    }
    const segment::PreparedKey key{.key = keys[i],
                                   .hash = index_.view().HashKey(token.slot, keys[i])};
    const segment::Found found = FindLive(token.slot, key);
    if (!found) {
      loan.reason = index_.view().GhostReason(key.hash);
      continue;
    }
    SpaceOf(token.slot).policy->OnHit(found.object);
    ++counters_.hits;
    loan = LoanOf(found);
  }
  return loans;
}

Loan Core::LoanOf(const segment::Found& found) {
  ++lent_[found.place];
  Loan loan{.code = Code::kOk,
            .reason = MissReason::kNone,
            .size_bytes = static_cast<std::uint32_t>(found.meta.size_bytes()),
            .has_checksum = options_.listed && listings_[found.object].has_checksum,
            .checksum = options_.listed ? listings_[found.object].checksum : 0,
            .place = found.place,
            .version = found.version,
            .extents = std::vector<Extent>(segment::kMaxExtents)};
  loan.extents.resize(index_.view().Extents(
      found, std::span<Extent, segment::kMaxExtents>(loan.extents.data(), segment::kMaxExtents)));
  return loan;
}

std::optional<CopyLoan> Core::LendForCopy(ObjectId id, Version version) {
  if (id >= next_object_ || objects_[id].place == 0) return std::nullopt;
  const Object& object = objects_[id];
  CopyLoan copy{.key = std::string(index_.view().KeyOf(object.place)),
                .group = listings_[id].group,
                .copies = listings_[id].copies,
                .hard_pinned = object.hard_pinned};
  copy.token = {.incarnation = incarnation_,
                .generation = slots_[object.slot].generation,
                .slot = object.slot};
  const segment::Found found = FindLive(
      object.slot, {.key = copy.key, .hash = index_.view().HashKey(copy.token.slot, copy.key)});
  if (!found || found.version != version || slots_[copy.token.slot].hidden) return std::nullopt;
  copy.loan = LoanOf(found);
  return copy;
}

void Core::Return(std::span<const Loan> loans) {
  bool waited_for = false;
  for (const Loan& loan : loans) {
    if (loan.place == 0) continue;
    const auto at = lent_.find(loan.place);
    if (--at->second == 0) lent_.erase(at);
    waited_for = waited_for || !index_.view().StillThere(loan.place, loan.version);
  }
  if (waited_for) Settle();
}

void Core::SetChecksum(const Loan& loan, std::uint64_t checksum) {
  if (!options_.listed || !index_.view().StillThere(loan.place, loan.version)) return;
  const auto id = static_cast<ObjectId>(
      index_.view().EntryAt(loan.place).first.load(std::memory_order_relaxed));
  listings_[id].checksum = checksum;
  listings_[id].has_checksum = true;
}

// ---- removal, pins, statistics
// ------------------------------------------------------------------------------

Code Core::Remove(SlotId slot, std::string_view text) {
  if (slot >= kMaxSlots || !CheckKey(text)) return Code::kInvalid;
  const segment::PreparedKey key{.key = text, .hash = index_.view().HashKey(slot, text)};
  bool pending = false;
  if (Reservation* claim = ClaimOf(slot, key)) {
    // A put that is under way was begun before this removal.
    claim->removed = true;
    pending = true;
    const auto [begin, end] = claims_.equal_range(key.hash);
    for (auto at = begin; at != end; ++at) {
      if (&reservations_.at(at->second) == claim) {
        DropClaim(at->second, *claim);
        break;
      }
    }
  }
  const segment::Found found = FindLive(slot, key);
  if (!found) return pending ? Code::kOk : Code::kMiss;
  ++counters_.removals;
  Withdraw(found.object, MissReason::kRemoved);
  Settle();
  return Code::kOk;
}

std::uint64_t Core::RemoveMatching(SlotId slot, std::string_view pattern, std::uint32_t& cursor) {
  std::uint64_t removed = 0;
  if (cursor == 0) {
    for (auto& [id, reservation] : reservations_) {
      if (reservation.slot != slot || !GlobMatches(pattern, reservation.key)) continue;
      reservation.removed = true;
      DropClaim(id, reservation);
    }
  }
  const ObjectId end = static_cast<ObjectId>(
      std::min<std::uint64_t>(next_object_, std::uint64_t{cursor} + kWalkSlice));
  for (ObjectId id = cursor; id < end; ++id) {
    const Object& object = objects_[id];
    if (object.place == 0 || object.slot != slot) continue;
    if (!GlobMatches(pattern, index_.view().KeyOf(object.place))) continue;
    const bool live =
        index_.view().EntryAt(object.place).generation.load(std::memory_order_relaxed) ==
        slots_[slot].generation;
    Withdraw(id, live ? MissReason::kRemoved : MissReason::kReset);
    if (live) {
      ++removed;
      ++counters_.removals;
    }
  }
  Settle();
  cursor = end >= next_object_ ? kWalkDone : end;
  return removed;
}

Code Core::Pin(SlotId slot, std::string_view text, PinKind kind, std::int64_t duration_ns) {
  if (slot >= kMaxSlots || !CheckKey(text)) return Code::kInvalid;
  const segment::Found found =
      FindLive(slot, {.key = text, .hash = index_.view().HashKey(slot, text)});
  if (!found) return Code::kMiss;
  Object& object = objects_[found.object];
  if (kind == PinKind::kSoft) {
    object.soft_pinned = true;
    soft_pins_[found.object] = {clock_.NowNs() + duration_ns};
    return Code::kOk;
  }
  if (object.hard_pinned) return Code::kOk;
  const std::uint64_t bytes = OccupiedBytes(found.place);
  if (hard_pinned_bytes_ + bytes > options_.payload_bytes / 2) return Code::kLimit;
  hard_pinned_bytes_ += bytes;
  object.hard_pinned = true;
  return Code::kOk;
}

Code Core::Unpin(SlotId slot, std::string_view text) {
  if (slot >= kMaxSlots || !CheckKey(text)) return Code::kInvalid;
  const segment::Found found =
      FindLive(slot, {.key = text, .hash = index_.view().HashKey(slot, text)});
  if (!found) return Code::kMiss;
  Object& object = objects_[found.object];
  if (object.hard_pinned) hard_pinned_bytes_ -= OccupiedBytes(found.place);
  if (object.soft_pinned) soft_pins_.erase(found.object);
  object.hard_pinned = false;
  object.soft_pinned = false;
  return Code::kOk;
}

std::optional<ObjectStat> Core::StatObject(SlotId slot, std::string_view text) const {
  if (slot >= kMaxSlots || !CheckKey(text)) return std::nullopt;
  const segment::Found found =
      index_.view().Find(slot, {.key = text, .hash = index_.view().HashKey(slot, text)});
  if (!found || found.generation != slots_[slot].generation) return std::nullopt;
  const Object& object = objects_[found.object];
  return ObjectStat{.size_bytes = found.meta.size_bytes(),
                    .extents = found.meta.extents(),
                    .hard_pinned = object.hard_pinned,
                    .soft_pinned = object.soft_pinned,
                    .held = object.held > 0};
}

wire::RenewRequest Core::Report() const {
  const std::uint64_t populated = added_granules_ * segment::kGranule;
  return {.free_bytes =
              options_.payload_bytes - populated + allocator_.free_granules() * segment::kGranule,
          .objects = index_.size() - dead_objects_,
          .hits = counters_.hits,
          .evictions = counters_.evictions,
          .stale_puts = counters_.stale_puts,
          .puts = counters_.puts};
}

PoolStat Core::Stat() const {
  PoolStat stat;
  stat.payload_bytes = options_.payload_bytes;
  stat.populated_bytes = added_granules_ * segment::kGranule;
  stat.free_bytes = options_.payload_bytes - stat.populated_bytes +
                    allocator_.free_granules() * segment::kGranule;
  stat.reserved_bytes = reserved_granules_ * segment::kGranule;
  for (const Withdrawn& gone : withdrawn_) {
    for (const Extent& extent : gone.extents) {
      stat.withdrawn_bytes += extent.count * segment::kGranule;
    }
  }
  stat.index_bytes = index_.record_bytes() + index_.bucket_bytes();
  stat.objects = index_.size() - dead_objects_;
  stat.puts = counters_.puts;
  stat.put_bytes = counters_.put_bytes;
  stat.hits = counters_.hits;
  stat.evictions = counters_.evictions;
  stat.removals = counters_.removals;
  stat.swept = counters_.swept;
  stat.stale_puts = counters_.stale_puts;
  stat.expired_puts = counters_.expired_puts;
  for (const Namespace& space : spaces_) {
    stat.object_bytes += space.bytes;
    stat.namespaces.push_back({.name = space.name,
                               .bytes = space.bytes,
                               .maximum_bytes = space.quota.maximum_bytes,
                               .guaranteed_bytes = space.quota.guaranteed_bytes});
  }
  stat.local = counters_.local;
  for (const auto& [number, session] : sessions_) {
    AddCounters(*session.page, stat.local);
    std::vector<Place> places;
    segment::CollectProtected(*session.page, places);
    stat.dropped_events += session.page->ring_dropped.load(std::memory_order_relaxed);
    stat.sessions.push_back({.number = number,
                             .pid = session.pid,
                             .protected_objects = places.size(),
                             .reserved_bytes = session.reserved_bytes,
                             .held_bytes = session.held_bytes});
  }
  return stat;
}

// ---- what happens by itself
// ---------------------------------------------------------------------------------

void Core::DrainEvents(Session& session) {
  segment::Event event;
  for (std::uint32_t i = 0; i < kEventSlice && segment::PopEvent(*session.page, event); ++i) {
    // Nothing in it is to be trusted: it counts only if it names a live object exactly.
    if (std::uint64_t{event.place} + 2 > index_.view().header().record_units || event.place == 0) {
      continue;
    }
    const segment::Entry& entry = index_.view().EntryAt(event.place);
    if (event.version == 0 || entry.version.load(std::memory_order_relaxed) != event.version) {
      continue;
    }
    const auto id = static_cast<ObjectId>(entry.first.load(std::memory_order_relaxed));
    if (id >= next_object_ || objects_[id].place != event.place) continue;
    if (event.kind == segment::EventKind::kHit) {
      ++counters_.hits;
      SpaceOf(objects_[id].slot).policy->OnHit(id);
    }
    if (event.kind == segment::EventKind::kHold || event.hold_ms > 0) {
      AddHold(session, id, event.version, std::int64_t{event.hold_ms} * kMillisecond);
    }
  }
}

void Core::AddHold(Session& session, ObjectId id, Version version, std::int64_t duration_ns) {
  Object& object = objects_[id];
  const std::uint64_t bytes = OccupiedBytes(object.place);
  const std::uint64_t budget = options_.payload_bytes / 10;
  while (!session.holds.empty() && session.held_bytes + bytes > budget) DropHold(session);
  if (bytes > budget || object.held == 255) return;
  ++object.held;
  session.held_bytes += bytes;
  session.holds.push_back(
      {.object = id,
       .version = version,
       .bytes = bytes,
       .until_ns = clock_.NowNs() + std::min(duration_ns, options_.longest_hold_ns)});
}

void Core::DropHold(Session& session) {
  const Hold hold = session.holds.front();
  session.holds.pop_front();
  session.held_bytes -= hold.bytes;
  Object& object = objects_[hold.object];
  if (object.place == 0 || object.held == 0) return;
  if (index_.view().StillThere(object.place, hold.version)) --object.held;
}

void Core::ExpireHolds(Session& session, std::int64_t now_ns) {
  while (!session.holds.empty() && session.holds.front().until_ns <= now_ns) DropHold(session);
}

void Core::DrainEvents() {
  const std::int64_t now = clock_.NowNs();
  for (auto& [number, session] : sessions_) {
    DrainEvents(session);
    ExpireHolds(session, now);
  }
}

bool Core::Tick() {
  const std::int64_t now = clock_.NowNs();
  DrainEvents();
  ExpireKeys(now);
  Settle();
  return dead_objects_ > 0 && Sweep(kSweepSlice);
}

void Core::CheckInvariants() const {
  std::uint64_t granules = allocator_.free_granules() + reserved_granules_;
  for (const Namespace& space : spaces_) granules += space.bytes / segment::kGranule;
  for (const Withdrawn& gone : withdrawn_) {
    for (const Extent& extent : gone.extents) granules += extent.count;
  }
  if (granules != added_granules_ && options_.checks.reservation) {
    fmt::print(stderr, "payload is lost or used twice: {} granules of {} accounted for\n", granules,
               added_granules_);
    std::abort();
  }
}

}  // namespace kvcove::owner
