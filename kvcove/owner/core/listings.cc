// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/core/listings.h"

#include <algorithm>
#include <utility>

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

void Listings::AddMoved(const wire::ListItem& item, std::string key) {
  if (gone_.size() < kMaxGone) {
    gone_.push_back({.hash = item.hash, .group = item.group, .slot = item.slot, .moved = true});
    moved_.push_back({.key = std::move(key),
                      .generation = item.generation,
                      .removals = applied_,
                      .size_bytes = item.size_bytes,
                      .copies = std::max<std::uint8_t>(item.copies, 1),
                      .tier = item.tier});
  } else {
    overflow_ = true;
  }
}

std::vector<InventoryItem> Listings::TakeGone(std::size_t at_most) {
  const std::size_t count = std::min(at_most, gone_.size());
  std::vector<InventoryItem> items;
  items.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const Gone& gone = gone_.front();
    InventoryItem& reported = items.emplace_back();
    reported.item = {.hash = gone.hash,
                     .group = gone.group,
                     .slot = gone.slot,
                     .gone = !gone.moved,
                     .inventory = gone.moved};
    if (gone.moved) {
      Moved& moved = moved_.front();
      reported.key = std::move(moved.key);
      reported.item.generation = moved.generation;
      reported.item.size_bytes = moved.size_bytes;
      reported.item.copies = moved.copies;
      reported.item.tier = moved.tier;
      reported.item.removals = moved.removals;
      moved_.pop_front();
    }
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
