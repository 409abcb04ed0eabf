// SPDX-License-Identifier: Apache-2.0
// Carries plain values of the protocol to a successor's process (base/carry.h).
#pragma once

#include "kvcove/base/carry.h"
#include "kvcove/wire/owner_link.h"

namespace kvcove {

template <typename Ar>
void CarryFields(Ar& ar, SlotUpdate& update) {
  CarryAll(ar, update.slot, update.generation, update.name, update.named);
}

}  // namespace kvcove
