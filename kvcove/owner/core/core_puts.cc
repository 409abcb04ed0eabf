// SPDX-License-Identifier: Apache-2.0
// The steps by which a put becomes an object: Put, Finish, and the master's answer.
#include <algorithm>
#include <optional>

#include "kvcove/base/copy.h"
#include "kvcove/base/random.h"
#include "kvcove/owner/core/core.h"

namespace kvcove::owner {
namespace {

constexpr std::uint32_t kEventsBeforePut = 1024;
constexpr std::uint32_t kEndedBeforePut = 64;  // holds, and reservations of ended sessions
// A batch may interleave the chunks of several chains: the parts of a rank.
constexpr std::size_t kChainsOfABatch = 16;

// Returns whether the first of these items is the last one of its request. If its hints say no
// more, a batch is a request.
bool EndsRequest(std::span<const PutItem> items) {
  if (items[0].hints.request_goes_on) return false;
  for (std::size_t i = 1; i < std::min(items.size(), kChainsOfABatch + 1); ++i) {
    if (items[i].after == items[0].key) return false;
  }
  return true;
}

// Returns whether the staging area was not written again while the bytes were copied. Pairs with
// the release fence in the requester's StagedValues, which stores a larger number before it writes
// the next values: if the copy read any of these, the load below sees the larger number.
bool StillStaged(const segment::Staging& staging, std::uint64_t sequence) {
  std::atomic_thread_fence(std::memory_order_acquire);
  return staging.sequence.load(std::memory_order_relaxed) == sequence;
}

}  // namespace

void Core::TellPolicy(ObjectId id, const Hints& hints, bool ends_request) {
  if (ends_request) asks_.RequestEnded(id);
  if (objects_[id].hard_pinned) return;
  policy::EvictionPolicy& policy = spaces_.policy(objects_[id].space);
  policy.OnHints(id, hints);
  if (ends_request) policy.EndRequest(id);
}

std::vector<PutResult> Core::Put(SessionNumber number, const Token& token,
                                 std::span<const PutItem> items, bool evict) {
  std::vector<PutResult> results(items.size());
  const auto at = sessions_.find(number);
  Code code = at == sessions_.end() ? Code::kUnavailable : CheckToken(token);
  if (code == Code::kStale && Awaits(token)) code = Code::kUnavailable;
  if (code != Code::kOk) {
    if (code == Code::kStale) counters_.stale_puts += items.size();
    for (PutResult& result : results) result.code = code;
    return results;
  }
  // The session's hits and holds from before this put count first, so that an eviction for the put
  // takes them into account.
  if (at->second.page != nullptr) DrainPage(number, *at->second.page, kEventsBeforePut);
  EndHolds(kEndedBeforePut);
  EndOrphans(kEndedBeforePut);
  // Each key's bucket causes cache misses; prefetched together, they overlap.
  std::vector<std::uint64_t> hashes(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    hashes[i] = objects_.view().HashKey(token.slot, items[i].key);
    objects_.view().Prefetch(hashes[i]);
  }
  const Spaces::Number space = objects_.slot(token.slot).space;
  if (space != Spaces::kNone) spaces_.policy(space).Prefetch(hashes);
  HearPriority(space, items);
  std::optional<std::uint64_t> to_take;  // bytes from this item on, once the room is too small
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::uint64_t bytes = room_.granule().Occupied(items[i].size_bytes);
    if (!to_take && evict && space != Spaces::kNone && room_.LeftFor(space) < bytes) {
      to_take = BytesToTake(token.slot, items.subspan(i), std::span(hashes).subspan(i));
    }
    const std::uint64_t ahead = to_take ? *to_take - std::min(*to_take, bytes) : 0;
    results[i] = PutOne(number, token, items[i], hashes[i],
                        {.staging = at->second.staging,
                         .evict = evict,
                         .ends_request = EndsRequest(items.subspan(i)),
                         .ahead_bytes = ahead});
    if (to_take && results[i].code == Code::kOk) to_take = ahead;
  }
  return results;
}

void Core::HearPriority(Spaces::Number space, std::span<const PutItem> items) {
  if (space == Spaces::kNone) return;
  for (const PutItem& item : items) {
    if (item.hints.priority == NamespacePriority::kUnsaid) continue;
    return spaces_.SetPriority(space, item.hints.priority);
  }
}

std::uint64_t Core::BytesToTake(SlotId slot, std::span<const PutItem> items,
                                std::span<const std::uint64_t> hashes) const {
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!CheckObjectSize(items[i].size_bytes)) continue;
    if (objects_.view().Find(slot, {.key = items[i].key, .hash = hashes[i]})) continue;
    bytes += room_.granule().Occupied(items[i].size_bytes);
  }
  return bytes;
}

bool Core::MayReserve(SessionNumber session, Spaces::Number space, std::uint64_t bytes) const {
  const std::uint64_t reserved =
      reservations_.reserved_bytes(session) + room_.withdrawn().ExcessBytes(session);
  if (reserved > 0 && reserved + bytes > options_.payload_bytes / 4) return false;
  return spaces_.MayReserve(space, bytes);
}

PutResult Core::PutOne(SessionNumber session, const Token& token, const PutItem& item,
                       std::uint64_t hash, const PutMode& mode) {
  const bool whole = item.whole();
  const bool staged = item.staged.sequence != 0;
  if (!CheckKey(item.key) || item.after.size() > kMaxKeyBytes ||
      !CheckObjectSize(item.size_bytes) ||
      (!item.value.empty() && (staged || item.value.size() != item.size_bytes)) ||
      (staged && (mode.staging == nullptr || std::uint64_t{item.staged.offset} + item.size_bytes >
                                                 segment::Staging::kBytes))) {
    return {.code = Code::kInvalid, .extents = {}};
  }
  const Objects::Slot& slot = objects_.slot(token.slot);
  const segment::PreparedKey key{.key = item.key, .hash = hash};
  if (const segment::Found found = FindLive(token.slot, key)) {
    // In a hidden slot the object may have been removed, and be withdrawn when the slot catches up.
    // `exists` would promise a value: a copy that moves would drop its source for it.
    if (slot.hidden) return {.code = Code::kInProgress, .extents = {}};
    CountHit(found.object, /*asked=*/false);
    TellPolicy(found.object, item.hints, mode.ends_request);
    return {.code = Code::kExists, .extents = {}};
  }
  if (options_.lower != nullptr && session != promoter_) {
    if (options_.lower->Holds(token.slot, token.generation, item.key)) {
      return {.code = slot.hidden ? Code::kInProgress : Code::kExists, .extents = {}};
    }
    // Nobody may ever read that value: a disk that is set aside has it. Other owners' copies are
    // the puts that evict nothing. One that moves would drop its source, the only value left.
    if (options_.lower->Covers(token.slot, token.generation, item.key)) {
      const bool promises = !slot.hidden && mode.evict;
      return {.code = promises ? Code::kExists : Code::kInProgress, .extents = {}};
    }
  }
  const std::int64_t now = clock_.NowNs();
  if (reservations_.ClaimOf(token.slot, key, now) != nullptr) {
    return {.code = Code::kInProgress, .extents = {}};
  }
  // Attach found all Spaces::kMaxSpaces entries in use.
  if (slot.space == Spaces::kNone) return {.code = Code::kLimit, .extents = {}};
  const std::uint64_t bytes = room_.granule().Occupied(item.size_bytes);
  // Only values that a session copies in later count as reserved. A whole value waits for the
  // master, or is an object at once.
  if (!whole && !MayReserve(session, slot.space, bytes)) {
    return {.code = Code::kLimit, .extents = {}};
  }
  std::vector<Extent> extents = room_.Take(
      item.size_bytes, slot.space,
      {.evict = mode.evict, .comes_up = session == promoter_, .ahead_bytes = mode.ahead_bytes});
  if (extents.empty()) return {.code = Code::kNoSpace, .extents = {}};
  if (whole) {
    Write(extents, staged ? std::span(mode.staging->bytes + item.staged.offset, item.size_bytes)
                          : item.value);
  }
  // After the copy: the caller may have given up, and a later put have reused the area. Its bytes
  // must not be stored under this key.
  if (staged && !StillStaged(*mode.staging, item.staged.sequence)) {
    room_.GiveBack(extents, slot.space, bytes);
    return {.code = Code::kTimeout, .extents = {}};
  }
  // A promoted value is listed already.
  if (!whole || (options_.listed && session != promoter_)) {
    return Reserve({.session = session,
                    .key = std::string(item.key),
                    .after = std::string(item.after),
                    .hints = item.hints,
                    .ends_request = mode.ends_request,
                    .hash = hash,
                    .slot = token.slot,
                    .space = slot.space,
                    .generation = token.generation,
                    .size_bytes = item.size_bytes,
                    .bytes = bytes,
                    .extents = std::move(extents),
                    .key_until_ns = now + options_.key_deadline_ns,
                    .removals = applied_},
                   whole);
  }
  const Result<ObjectId> id = Publish({.key = key,
                                       .after = item.after,
                                       .slot = token.slot,
                                       .space = slot.space,
                                       .generation = token.generation,
                                       .size_bytes = item.size_bytes,
                                       .extents = extents,
                                       .waited = false,
                                       .comes_up = session == promoter_,
                                       .hints = item.hints,
                                       .ends_request = mode.ends_request});
  if (!id) room_.GiveBack(extents, slot.space, bytes);
  return {.code = id ? Code::kOk : id.error().code, .extents = {}};
}

void Core::Write(std::span<const Extent> extents, std::span<const std::byte> value) {
  for (const Extent& extent : extents) {
    const std::span<std::byte> room = payload_.At(extent);
    const std::size_t count = std::min(room.size(), value.size());
    CopyPastCaches(room.data(), value.data(), count);
    value = value.subspan(count);
  }
}

PutResult Core::Reserve(Reservation reservation, bool whole) {
  Reservation& kept = reservations_.Add(std::move(reservation));
  if (whole) {
    AwaitListing(kept);
    return {.code = Code::kOk, .reservation = kept.id, .extents = {}};
  }
  return {.code = Code::kOk, .reservation = kept.id, .extents = kept.extents};
}

void Core::AwaitListing(Reservation& reservation) {
  reservations_.AwaitListing(reservation);
  spaces_.Publish(reservation.space, reservation.bytes);
  // A put that has no replicas is a group of its own.
  if (reservation.group == 0) {
    reservation.group =
        static_cast<std::uint32_t>(Mix64(reservation.id ^ objects_.view().header().hash_seed)) | 1;
  }
  listings_.Await(reservation);
}

// Makes an object visible. It owns the extents, unless there is an error (kNoSpace).
Result<ObjectId> Core::Publish(const NewObject& object) {
  ObjectId parent = kNoObject;
  std::uint64_t parent_key = 0;
  if (!object.after.empty()) {
    const segment::PreparedKey after = Prepared(object.slot, object.after);
    parent_key = after.hash;
    const segment::Found found = objects_.view().Find(object.slot, after);
    // A policy knows only objects of its own space that are not hard-pinned.
    if (found && objects_[found.object].space == object.space &&
        !objects_[found.object].hard_pinned) {
      parent = found.object;
    }
  }
  Result<ObjectId> id = objects_.Insert({.key = object.key.key,
                                         .hash = object.key.hash,
                                         .slot = object.slot,
                                         .generation = object.generation,
                                         .size_bytes = object.size_bytes,
                                         .extents = object.extents},
                                        object.space);
  if (!id) return Fail(Code::kNoSpace, id.error().detail);
  // No second check of the quota: the sum of objects and reservations does not change. A put that
  // has waited for the master counts as an object already.
  const std::uint64_t bytes = room_.granule().Occupied(object.size_bytes);
  if (!object.waited) spaces_.Publish(object.space, bytes);
  const policy::PutEvent event{.id = *id,
                               .key = object.key.hash,
                               .size_bytes = bytes,
                               .parent = parent,
                               .parent_key = parent_key};
  spaces_.policy(object.space).OnPut(event);
  if (options_.lower != nullptr) {
    options_.lower->Stored(object.slot, object.generation, object.key.key, event, object.comes_up);
  }
  if (key_changes_) {
    key_changes_->Add(KeyChanges::Kind::kStored, object.slot, object.key.key);
  }
  const Asks::Object stored{.id = *id,
                            .hash = object.key.hash,
                            .bytes = bytes,
                            .slot = object.slot,
                            .generation = object.generation};
  object.comes_up ? asks_.CameUp(stored, parent, parent_key)
                  : asks_.Stored(stored, parent, parent_key);
  TellPolicy(*id, object.hints, object.ends_request);
  ++counters_.puts;
  counters_.put_bytes += object.size_bytes;
  return id;
}

Code Core::Publish(Reservation& reservation) {
  const Result<ObjectId> id = Publish({.key = {.key = reservation.key, .hash = reservation.hash},
                                       .after = reservation.after,
                                       .slot = reservation.slot,
                                       .space = reservation.space,
                                       .generation = reservation.generation,
                                       .size_bytes = reservation.size_bytes,
                                       .extents = reservation.extents,
                                       .waited = reservation.listing,
                                       .comes_up = reservation.session == promoter_,
                                       .hints = reservation.hints,
                                       .ends_request = reservation.ends_request});
  if (!id) return id.error().code;
  reservation.extents.clear();
  if (options_.listed) {
    listings_.SetFacts(*id, {.checksum = reservation.checksum,
                             .group = reservation.group,
                             .has_checksum = reservation.has_checksum,
                             .copies = reservation.copies});
  }
  return Code::kOk;
}

// ---- the end of a reservation

std::vector<Code> Core::Finish(SessionNumber number, std::span<const FinishItem> items) {
  std::vector<Code> codes(items.size(), Code::kUnavailable);
  if (!sessions_.contains(number)) return codes;
  for (std::size_t i = 0; i < items.size(); ++i) codes[i] = FinishOne(number, items[i]);
  return codes;
}

Code Core::FinishOne(SessionNumber session, const FinishItem& item) {
  Reservation* reservation = reservations_.Find(item.reservation);
  if (reservation == nullptr) {
    return reservations_.Outcome(session, item.reservation).value_or(Code::kInvalid);
  }
  if (reservation->session != session) return Code::kDenied;
  if (reservation->listing) return Code::kInProgress;
  if (!item.commit) return Conclude(*reservation, Code::kOk);
  if (const Code code = OutcomeOf(*reservation); code != Code::kOk) {
    return Conclude(*reservation, code);
  }
  if (!options_.listed || session == promoter_) {
    return Conclude(*reservation, Publish(*reservation));
  }
  reservation->checksum = item.checksum;
  reservation->has_checksum = item.has_checksum;
  reservation->group = item.group;
  reservation->copies = item.copies;
  reservation->copied_at = item.copied_at;
  AwaitListing(*reservation);
  return Code::kOk;
}

// Returns kOk if the reservation may be committed. The token was checked when the put began; a
// reset, a removal or another writer may have come since, so all is checked again here.
Code Core::OutcomeOf(Reservation& reservation) {
  if (reservations_.Removed(reservation) ||
      objects_.slot(reservation.slot).generation != reservation.generation) {
    ++counters_.stale_puts;
    return Code::kStale;
  }
  if (!reservations_.OwnsKey(reservation, clock_.NowNs())) {
    ++counters_.expired_puts;
    return Code::kTimeout;  // past its deadline another writer may have put the key
  }
  const segment::PreparedKey key{.key = reservation.key, .hash = reservation.hash};
  return FindLive(reservation.slot, key) ? Code::kExists : Code::kOk;
}

Code Core::Conclude(Reservation& reservation, Code code) {
  reservations_.Remember(reservation.session, reservation.id, code);
  EndReservation(reservation);
  return code;
}

void Core::EndReservation(Reservation& reservation) {
  // A published reservation has no extents: they are the object's.
  if (!reservation.extents.empty()) room_.GiveBack(reservation);
  reservations_.End(reservation);
}

Code Core::FinishListing(const Pending& pending, Code listed) {
  // The master has listed the value, but this owner does not have it: the master must forget it,
  // or it would send readers here and refuse other owners' values of the key.
  const auto forget = [&](Code code) {
    if (listed == Code::kOk) {
      listings_.AddGone(pending.item.hash, pending.item.slot, pending.item.group);
    }
    return code;
  };
  Reservation* reservation = reservations_.Find(pending.reservation);
  if (reservation == nullptr) return forget(Code::kNoSpace);  // Room::GiveWay evicted it
  Code code = listed;
  // Checked again: a reset or a removal may have come while the master's answer was awaited.
  if (reservations_.Removed(*reservation) ||
      objects_.slot(reservation->slot).generation != reservation->generation) {
    code = forget(Code::kStale);
  } else if (listed == Code::kOk) {
    code = Publish(*reservation);
    if (code != Code::kOk) forget(code);
  }
  if (code == Code::kStale) ++counters_.stale_puts;
  return Conclude(*reservation, code);
}

}  // namespace kvcove::owner
