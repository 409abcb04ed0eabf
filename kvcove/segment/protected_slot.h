// SPDX-License-Identifier: Apache-2.0
// The steps of the readers' protocol (segment/reader.h) for one slot of a read or a loan:
// Announce, FullFence, Confirm, read, ClearSlot.
#pragma once

#include "kvcove/segment/reader.h"

namespace kvcove::segment {

// Names the entry in the slot, for the owner to see. A FullFence must follow before Confirm.
void Announce(ProtectedSlot& slot, const Found& found);
// Checks an announced entry. kNone: the bytes of `found` do not change until its slot is cleared.
MissReason Confirm(const HeaderView& view, const Found& found, const ReadScope& scope,
                   std::int64_t now_ns);
// Ends the protection. The thread or device must have stopped reading. Call OwnerOrders before.
void ClearSlot(ProtectedSlot& slot);

}  // namespace kvcove::segment
