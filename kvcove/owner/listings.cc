// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/listings.h"

#include <algorithm>

namespace kvcove::owner {

void Listings::Await(const Reservation& reservation) {
  pending_.push_back({.reservation = reservation.id,
                      .item = {.hash = DirectoryHash(reservation.slot, reservation.key),
                               .generation = reservation.generation,
                               .size_bytes = reservation.size_bytes,
                               .group = reservation.group,
                               .slot = reservation.slot,
                               .copies = reservation.copies,
                               .removals = reservation.removals,
                               .copied_at = reservation.copied_at}});
}

void Listings::AddGone(const Id128& hash, SlotId slot, std::uint32_t group) {
  if (gone_.size() < kMaxGone) {
    gone_.push_back({.hash = hash, .group = group, .slot = slot});
  } else {
    overflow_ = true;
  }
}

std::vector<wire::ListItem> Listings::TakeGone(std::size_t at_most) {
  const std::size_t count = std::min(at_most, gone_.size());
  std::vector<wire::ListItem> items;
  items.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const Gone& gone = gone_.front();
    items.push_back({.hash = gone.hash, .group = gone.group, .slot = gone.slot, .gone = true});
    gone_.pop_front();
  }
  return items;
}

void Listings::SetFacts(ObjectId id, const Facts& facts) {
  facts_.Reach(id);
  facts_[id] = facts;
}

void Listings::SetChecksum(ObjectId id, std::uint64_t checksum) {
  facts_.Reach(id);
  facts_[id].checksum = checksum;
  facts_[id].has_checksum = true;
}

}  // namespace kvcove::owner
