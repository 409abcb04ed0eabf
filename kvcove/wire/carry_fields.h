// SPDX-License-Identifier: Apache-2.0
// What plain values of the protocol have, for a hand-over to a successor's process (base/carry.h).
#pragma once

#include "kvcove/base/carry.h"
#include "kvcove/wire/owner_link.h"

namespace kvcove {

template <typename Ar>
void CarryFields(Ar& ar, SlotUpdate& update) {
  CarryAll(ar, update.slot, update.generation, update.name, update.named);
}

namespace wire {

template <typename Ar>
void CarryFields(Ar& ar, OwnerHello& hello) {
  CarryAll(ar, hello.pool, hello.incarnation, hello.seen, hello.owner, hello.fresh, hello.process,
           hello.predecessor, hello.number, hello.epoch, hello.address, hello.socket, hello.host,
           hello.tenant, hello.capacity_bytes, hello.disk);
}

template <typename Ar>
void CarryFields(Ar& ar, Removal& removal) {
  CarryAll(ar, removal.number, removal.slot, removal.generation, removal.keys, removal.pattern);
}

}  // namespace wire
}  // namespace kvcove
