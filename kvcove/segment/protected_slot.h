// SPDX-License-Identifier: Apache-2.0
// The steps of the readers' protocol (segment/reader.h) for one slot of a read or a loan:
// Announce, FullFence, Confirm, read, ClearSlot.
#pragma once

#include "kvcove/segment/reader.h"

namespace kvcove::segment {

void Announce(ProtectedSlot& slot, const Found& found);
// kNone: the bytes of `found` stay what they are until its slot is cleared.
MissReason Confirm(const HeaderView& view, const Found& found, const ReadScope& scope,
                   std::int64_t now_ns);
// The thread, or the device, has stopped reading. After OwnerOrders.
void ClearSlot(ProtectedSlot& slot);

}  // namespace kvcove::segment
