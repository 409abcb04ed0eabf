// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/follower.h"

namespace kvcove::owner {

wire::OwnerHello Follower::Hello() const {
  wire::OwnerHello hello;
  hello.owner = id_;
  hello.term = term_;
  hello.incarnation = incarnation_;
  return hello;
}

void Follower::Welcomed(const wire::OwnerWelcome& welcome) {
  // Versions count within one term only.
  if (welcome.term != term_ || welcome.incarnation != incarnation_) applied_ = 0;
  term_ = welcome.term;
  incarnation_ = welcome.incarnation;
  standing_ = {.number = welcome.number, .epoch = welcome.epoch};
}

std::optional<Follower::Todo> Follower::Take(const wire::Changes& changes,
                                             std::uint32_t epoch) const {
  if (standing_.epoch != epoch || changes.version == applied_) return std::nullopt;
  if (applied_ != 0 && changes.version < applied_) return std::nullopt;
  Todo todo{.incarnation = changes.incarnation,
            .updates = changes.slots,
            .removals = changes.removals,
            .version = changes.version};
  if (changes.complete) {
    std::set<SlotId> named;
    for (const SlotUpdate& update : changes.slots) named.insert(update.slot);
    for (const SlotId slot : slots_) {
      if (!named.contains(slot)) todo.updates.push_back({.slot = slot, .name = {}});
    }
  }
  return todo;
}

void Follower::Applied(const Todo& todo) {
  for (const SlotUpdate& update : todo.updates) {
    if (update.generation == 0) {
      slots_.erase(update.slot);
    } else {
      slots_.insert(update.slot);
    }
  }
  applied_ = todo.version;
}

wire::RenewRequest Follower::Report() const {
  return {.number = standing_.number,
          .epoch = standing_.epoch,
          .applied = applied_,
          .inventory_done = told()};
}

}  // namespace kvcove::owner
