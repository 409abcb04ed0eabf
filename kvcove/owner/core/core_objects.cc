// SPDX-License-Identifier: Apache-2.0
// The core's calls on stored objects: lending, removal, pins, walks.
#include <algorithm>

#include "kvcove/base/glob.h"
#include "kvcove/owner/core/core.h"

namespace kvcove::owner {
namespace {

// Limits of one hold of the lock: some tenths of a millisecond at most.
constexpr std::uint32_t kWalkSlice = 512;    // objects that a walk may withdraw
constexpr std::uint32_t kPageSlice = 16384;  // numbers that a page may pass over

}  // namespace

// ---- lending

std::vector<Loan> Core::Lend(const Token& token, std::span<const std::string_view> keys) {
  constexpr std::size_t kChunk = segment::HeaderView::kFindMany;
  std::vector<Loan> loans(keys.size());
  if (const MissReason refused = Unreadable(token); refused != MissReason::kNone) {
    for (Loan& loan : loans) loan.reason = refused;
    return loans;
  }
  for (std::size_t from = 0; from < keys.size(); from += kChunk) {
    const auto part = keys.subspan(from, std::min(kChunk, keys.size() - from));
    segment::Found found[kChunk];
    objects_.view().FindMany(token.slot, part, found);
    for (std::size_t i = 0; i < part.size(); ++i) {
      Loan& loan = loans[from + i];
      if (!CheckKey(part[i])) {
        loan.code = Code::kInvalid;
      } else if (found[i] && found[i].generation == token.generation) {
        ++counters_.hits;
        hit_bytes_ += found[i].meta.size_bytes();
        loan = LoanOf(found[i]);
        loan.hit = true;
      } else if (found[i]) {
        loan.reason = MissReason::kReset;
      } else {
        loan.reason = objects_.view().GhostReason(objects_.view().HashKey(token.slot, part[i]));
      }
    }
  }
  return loans;
}

Loan Core::LoanOf(const segment::Found& found) {
  room_.withdrawn().Lend(found.place);
  const Listings::Facts facts = listings_.FactsOf(found.object);
  Extent extents[segment::kMaxExtents];
  const std::uint32_t count = objects_.view().Extents(found, extents);
  return {.code = Code::kOk,
          .reason = MissReason::kNone,
          .size_bytes = found.meta.size_bytes(),
          .has_checksum = facts.has_checksum,
          .checksum = facts.checksum,
          .place = found.place,
          .version = found.version,
          .extents = {extents, extents + count}};
}

std::optional<CopyLoan> Core::LendForCopy(ObjectId id, Version version) {
  if (!objects_.Has(id, version)) return std::nullopt;
  const SlotId slot = objects_[id].slot;
  const segment::Found found = FindLive(slot, Prepared(slot, objects_.KeyOf(id)));
  if (found.version != version) return std::nullopt;
  return CopyLoanOf(slot, found);
}

std::optional<CopyLoan> Core::LendForCopy(SlotId slot, Generation generation,
                                          std::string_view key) {
  if (slot >= kMaxSlots || !CheckKey(key)) return std::nullopt;
  const segment::Found found = FindLive(slot, Prepared(slot, key));
  if (found.generation != generation) return std::nullopt;
  return CopyLoanOf(slot, found);
}

std::optional<CopyLoan> Core::CopyLoanOf(SlotId slot, const segment::Found& found) {
  if (!found || objects_.slot(slot).hidden) return std::nullopt;
  const Listings::Facts facts = listings_.FactsOf(found.object);
  const std::optional<std::int64_t> pin_end = room_.timed_pins().EndOf(found.object);
  return CopyLoan{
      .loan = LoanOf(found),
      .id = found.object,
      .token = {.incarnation = incarnation_,
                .generation = objects_.slot(slot).generation,
                .slot = slot},
      .key = objects_.KeyOf(found.object),
      .group = facts.group,
      .copies = facts.copies,
      .hard_pinned = objects_[found.object].hard_pinned,
      .pin_left_ns = pin_end ? std::max<std::int64_t>(*pin_end - clock_.NowNs(), 1) : 0};
}

void Core::Return(std::span<const Loan> loans) {
  bool waited_for = false;
  for (const Loan& loan : loans) {
    if (loan.place == 0) continue;
    // The policy learns of a hit only now, so that its work does not delay the transfer. Named: the
    // object may have been withdrawn while it was lent.
    if (loan.hit) {
      if (const ObjectId id = objects_.Named(loan.place, loan.version); id != kNoObject) {
        CountHit(id, /*asked=*/true);
      }
    }
    if (room_.withdrawn().Return(loan.place)) waited_for = true;
  }
  if (waited_for) room_.Settle();
}

void Core::SetChecksum(const Loan& loan, std::uint64_t checksum) {
  if (!options_.listed) return;
  const ObjectId id = objects_.Named(loan.place, loan.version);
  if (id != kNoObject) listings_.SetChecksum(id, checksum);
}

// ---- with a lower tier

SessionNumber Core::AddPromoter() {
  promoter_ = AddSession(nullptr, 0);
  return promoter_;
}

void Core::HoldKey(SessionNumber session, SlotId slot, std::string_view key,
                   std::int64_t until_ns) {
  if (!sessions_.contains(session)) return;
  const segment::Found found = FindLive(slot, Prepared(slot, key));
  if (found) AddHold(session, found.object, found.version, until_ns);
}

void Core::NotePromoted(SlotId slot, std::string_view key, std::uint64_t put) {
  const segment::Found found =
      options_.listed ? FindLive(slot, Prepared(slot, key)) : segment::Found{};
  if (!found) return;
  const PutOf of = UnpackPut(put);
  listings_.SetFacts(found.object, {.group = of.group, .copies = of.copies});
  listings_.AddMoved({.hash = DirectoryHash(slot, key),
                      .generation = found.generation,
                      .size_bytes = found.meta.size_bytes(),
                      .group = of.group,
                      .slot = slot,
                      .copies = of.copies,
                      .tier = kvcove::Tier::kMemory},
                     std::string(key));
}

void Core::NoteLost(SlotId slot, std::string_view key) {
  const segment::PreparedKey prepared = Prepared(slot, key);
  if (!options_.listed || FindLive(slot, prepared) ||
      reservations_.ClaimOf(slot, prepared, clock_.NowNs()) != nullptr) {
    return;
  }
  // The lost value may be of an earlier generation, or the key was put again and evicted to the
  // tier since. A value of the current generation that the tier holds must remain listed: without
  // its entry the master would accept another owner's put, and the key would have two values.
  const Generation generation = objects_.slot(slot).generation;
  if (options_.lower != nullptr && options_.lower->Holds(slot, generation, key)) return;
  listings_.AddGone(DirectoryHash(slot, key), slot, /*group=*/0);
}

// ---- removal

Code Core::Remove(SlotId slot, std::string_view text) {
  if (slot >= kMaxSlots || !CheckKey(text)) return Code::kInvalid;
  const segment::PreparedKey key = Prepared(slot, text);
  // A pending put was begun before this removal. If it were committed later, its value would be
  // found although the removal is acknowledged; OutcomeOf and FinishListing refuse it.
  Reservation* claim = reservations_.ClaimOf(slot, key, clock_.NowNs());
  if (claim != nullptr) reservations_.Remove(*claim);
  const segment::Found found = FindLive(slot, key);
  if (!found) return claim != nullptr ? Code::kOk : Code::kMiss;
  ++counters_.removals;
  Withdraw(found.object, MissReason::kRemoved);
  room_.Settle();
  return Code::kOk;
}

std::uint64_t Core::RemoveMatching(SlotId slot, std::string_view pattern, Walk& walk) {
  if (!walk.reservations_done) {
    // All reservations before the first object: a put that is committed between two slices becomes
    // an object that the walk over objects still reaches. The other way round it could become an
    // object with a number that the walk has passed already.
    walk.reservations_done = !reservations_.RemoveSome(
        slot, [&](std::string_view key) { return GlobMatches(pattern, key); }, walk.reservation,
        kWalkSlice);
    return 0;
  }
  std::uint64_t removed = 0;
  const auto end = static_cast<ObjectId>(
      std::min<std::uint64_t>(objects_.end(), std::uint64_t{walk.object} + kWalkSlice));
  for (ObjectId id = walk.object; id < end; ++id) {
    ++steps_.objects;
    if (!objects_.Has(id) || objects_[id].slot != slot) continue;
    const std::string key = objects_.KeyOf(id);
    if (!GlobMatches(pattern, key)) continue;
    const bool live = objects_.Current(id);
    const Generation generation = objects_.slot(slot).generation;
    Withdraw(id, live ? MissReason::kRemoved : MissReason::kReset);
    if (live) {
      // Objects that the lower tier has, too, are counted by that tier's walk.
      removed += options_.lower != nullptr && options_.lower->Holds(slot, generation, key) ? 0 : 1;
      ++counters_.removals;
    }
  }
  room_.Settle();
  walk.object = end;
  walk.done = end >= objects_.end();
  return removed;
}

void Core::DropSlot(SlotId slot, Walk& walk) {
  // Before the first object, as in RemoveMatching.
  if (!walk.reservations_done) reservations_.RemoveSlot(slot);
  walk.reservations_done = true;
  const auto end = static_cast<ObjectId>(
      std::min<std::uint64_t>(objects_.end(), std::uint64_t{walk.object} + kWalkSlice));
  for (ObjectId id = walk.object; id < end; ++id) {
    ++steps_.objects;
    if (objects_.Has(id) && objects_[id].slot == slot) Withdraw(id, MissReason::kRemoved);
  }
  room_.Settle();
  walk.object = end;
  walk.done = end >= objects_.end();
}

void Core::DropObject(ObjectId id, Version version) {
  if (!objects_.Has(id, version)) return;
  Withdraw(id, MissReason::kRemoved);
  room_.Settle();
}

// ---- pins

Code Core::Pin(SlotId slot, std::string_view text, PinKind kind, std::int64_t duration_ns) {
  if (slot >= kMaxSlots || !CheckKey(text)) return Code::kInvalid;
  const segment::Found found = FindLive(slot, Prepared(slot, text));
  if (!found) return Code::kMiss;
  const std::int64_t until_ns = clock_.NowNs() + duration_ns;
  if (kind == PinKind::kHard) {
    return room_.PinHard(found.object, duration_ns == 0 ? std::nullopt : std::optional(until_ns));
  }
  room_.PinSoft(found.object, until_ns);
  return Code::kOk;
}

Code Core::Unpin(SlotId slot, std::string_view text) {
  if (slot >= kMaxSlots || !CheckKey(text)) return Code::kInvalid;
  const segment::Found found = FindLive(slot, Prepared(slot, text));
  if (!found) return Code::kMiss;
  room_.Unpin(found.object);
  return Code::kOk;
}

std::optional<ObjectStat> Core::StatObject(SlotId slot, std::string_view text) const {
  if (slot >= kMaxSlots || !CheckKey(text)) return std::nullopt;
  const segment::Found found = objects_.view().Find(slot, Prepared(slot, text));
  if (!found || found.generation != objects_.slot(slot).generation) return std::nullopt;
  const Objects::Object& object = objects_[found.object];
  return ObjectStat{.size_bytes = found.meta.size_bytes(),
                    .extents = found.meta.extents(),
                    .hard_pinned = object.hard_pinned,
                    .soft_pinned = room_.SoftPinned(found.object),
                    .held = object.held > 0};
}

// ---- pages

bool Core::HasSince(SlotId slot, std::string_view key, Version version) const {
  const segment::Found found = objects_.view().Find(slot, Prepared(slot, key));
  return found && found.generation == objects_.slot(slot).generation && found.version < version;
}

std::vector<InventoryItem> Core::Inventory(ObjectId& cursor, std::size_t at_most) const {
  std::vector<InventoryItem> items;
  const std::uint64_t end =
      std::min<std::uint64_t>(objects_.end(), std::uint64_t{cursor} + kPageSlice);
  for (; cursor < end && items.size() < std::min<std::size_t>(at_most, kWalkSlice); ++cursor) {
    if (!objects_.Has(cursor) || !objects_.Current(cursor)) continue;
    const SlotId slot = objects_[cursor].slot;
    const Listings::Facts facts = listings_.FactsOf(cursor);
    items.push_back({.item = {.hash = DirectoryHash(slot, objects_.KeyOf(cursor)),
                              .generation = objects_.GenerationOf(cursor),
                              .size_bytes = objects_.SizeBytes(cursor),
                              .group = facts.group,
                              .slot = slot,
                              .inventory = true,
                              .copies = facts.copies,
                              // Applied here already, so only later ones can void the listing.
                              .removals = applied_},
                     .id = cursor,
                     .version = objects_.VersionOf(cursor)});
  }
  if (cursor >= objects_.end()) cursor = kWalkDone;
  return items;
}

wire::InventoryReply Core::Page(const wire::InventoryRequest& request) const {
  wire::InventoryReply reply;
  if (request.slot && *request.slot < kMaxSlots) {
    const Objects::Slot& slot = objects_.slot(*request.slot);
    reply.generation = slot.generation;
    reply.live = slot.current();
    reply.voided = slot.voided;
  }
  if (request.cursor == wire::kInventoryDone) return reply;
  ObjectId at = request.cursor;
  const std::uint64_t end = std::min<std::uint64_t>(objects_.end(), std::uint64_t{at} + kPageSlice);
  std::uint32_t read = 0;
  for (; at < end && read < kWalkSlice && reply.objects.size() < request.at_most; ++at) {
    if (!objects_.Has(at) || (request.slot && objects_[at].slot != *request.slot)) continue;
    const std::uint8_t copies = listings_.FactsOf(at).copies;
    if (request.replicated_only && copies < 2) continue;
    ++read;
    const std::string key = objects_.KeyOf(at);
    if (!objects_.Current(at) || !key.starts_with(request.prefix)) continue;
    const Objects::Object& object = objects_[at];
    const auto slot = static_cast<SlotId>(object.slot);
    reply.objects.push_back({.hash = DirectoryHash(slot, key),
                             .generation = objects_.GenerationOf(at),
                             .version = objects_.VersionOf(at),
                             .id = at,
                             .size_bytes = objects_.SizeBytes(at),
                             .slot = slot,
                             .copies = copies,
                             .hard_pinned = object.hard_pinned,
                             .soft_pinned = room_.SoftPinned(at),
                             .held = object.held > 0,
                             .on_disk = options_.lower != nullptr &&
                                        options_.lower->Holds(slot, objects_.GenerationOf(at), key),
                             .key = {}});
    if (request.with_keys) reply.objects.back().key = key;
  }
  reply.cursor = at >= objects_.end() ? wire::kInventoryDone : at;
  return reply;
}

}  // namespace kvcove::owner
