// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/core/reservations.h"

#include <limits>

namespace kvcove::owner {

// ---- sessions

void Reservations::EndSession(SessionNumber number) {
  const auto at = sessions_.find(number);
  if (at == sessions_.end()) return;
  // Session numbers are never reused, so an orphan may keep its own.
  orphans_.splice(orphans_.end(), at->second.reservations);
  sessions_.erase(at);
}

std::uint64_t Reservations::reserved_bytes(SessionNumber session) const {
  const auto at = sessions_.find(session);
  return at == sessions_.end() ? 0 : at->second.reserved_bytes;
}

std::optional<Code> Reservations::Outcome(SessionNumber number, std::uint64_t id) const {
  const auto session = sessions_.find(number);
  if (session == sessions_.end()) return std::nullopt;
  const auto at = session->second.finished.find(id);
  if (at == session->second.finished.end()) return std::nullopt;
  return at->second;
}

void Reservations::Remember(SessionNumber number, std::uint64_t id, Code code) {
  const auto at = sessions_.find(number);
  if (at == sessions_.end()) return;
  Session& session = at->second;
  session.finished.emplace(id, code);
  session.finished_order.push_back(id);
  if (session.finished_order.size() > kRemembered) {
    session.finished.erase(session.finished_order.front());
    session.finished_order.pop_front();
  }
}

// ---- reservations

Reservation& Reservations::Add(Reservation reservation) {
  const std::uint64_t id = next_++;
  reservation.id = id;
  Reservation& kept = reservations_.emplace(id, std::move(reservation)).first->second;
  Session& session = sessions_.at(kept.session);
  session.reservations.push_back(kept);
  session.reserved_bytes += kept.bytes;
  claims_.emplace(kept.hash, &kept);
  kept.claims = true;
  return kept;
}

Reservation* Reservations::Find(std::uint64_t id) {
  const auto at = reservations_.find(id);
  return at == reservations_.end() ? nullptr : &at->second;
}

void Reservations::End(Reservation& reservation) {
  DropClaim(reservation);
  if (!reservation.listing) {
    LeaveSession(reservation);
  } else {
    const auto at = waiting_.find(reservation.space);
    at->second.bytes -= reservation.bytes;
    --waiting_count_;
    // Not left to the hook's destructor: an entry whose list is empty must not remain, because
    // OldestWaiting takes the list's front.
    reservation.of_session.unlink();
    if (at->second.reservations.empty()) waiting_.erase(at);
  }
  reservations_.erase(reservation.id);  // its hook unlinks itself
}

void Reservations::LeaveSession(Reservation& reservation) {
  const auto session = sessions_.find(reservation.session);
  if (session != sessions_.end()) session->second.reserved_bytes -= reservation.bytes;
}

void Reservations::AwaitListing(Reservation& reservation) {
  reservation.listing = true;
  reservation.key_until_ns = std::numeric_limits<std::int64_t>::max();
  // The session may end before the master answers. Its committed put must not become an orphan,
  // which the core would give up.
  reservation.of_session.unlink();
  LeaveSession(reservation);
  Waiting& waiting = waiting_[reservation.space];
  waiting.reservations.push_back(reservation);
  waiting.bytes += reservation.bytes;
  ++waiting_count_;
}

Reservation* Reservations::OldestWaiting(Spaces::Number space) {
  const auto at = waiting_.find(space);
  return at == waiting_.end() ? nullptr : &at->second.reservations.front();
}

std::uint64_t Reservations::waiting_bytes(Spaces::Number space) const {
  const auto at = waiting_.find(space);
  return at == waiting_.end() ? 0 : at->second.bytes;
}

// ---- claims

Reservation* Reservations::ClaimOf(SlotId slot, const segment::PreparedKey& key,
                                   std::int64_t now_ns) {
  const auto [begin, end] = claims_.equal_range(key.hash);
  for (auto at = begin; at != end; ++at) {
    ++steps_.reservations;
    Reservation& reservation = *at->second;
    if (reservation.slot != slot || reservation.key != key.key) continue;
    if (OwnsKey(reservation, now_ns)) return &reservation;
    // Expired. The key has no other claim: Add is called only after this function found none.
    reservation.claims = false;
    claims_.erase(at);
    return nullptr;
  }
  return nullptr;
}

void Reservations::DropClaim(Reservation& reservation) {
  if (!reservation.claims) return;
  reservation.claims = false;
  const auto [begin, end] = claims_.equal_range(reservation.hash);
  for (auto at = begin; at != end; ++at) {
    if (at->second != &reservation) continue;
    claims_.erase(at);
    return;
  }
}

// ---- removals

bool Reservations::Removed(const Reservation& reservation) const {
  if (reservation.removed) return true;
  const auto at = removed_below_.find(reservation.slot);
  return at != removed_below_.end() && reservation.id < at->second;
}

void Reservations::Remove(Reservation& reservation) {
  reservation.removed = true;
  DropClaim(reservation);
}

}  // namespace kvcove::owner
