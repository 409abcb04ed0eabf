// SPDX-License-Identifier: Apache-2.0
// Lists, page by page: what is in memory, then what waits for disks, then what lies there. Values
// are demoted in this order, so that one that moves is met, once or twice; one that is promoted
// behind the walk was met before. A key in both tiers comes once, with memory. A list holds nothing
// up: what a disk moves from zone to zone, or loses from a zone that is being listed, may hide
// others.
#pragma once

#include <cstdint>

#include "kvcove/owner/disk/owner_disks.h"
#include "kvcove/wire/tasks.h"

namespace kvcove::owner {

// Returns the page at `request.cursor`. Thread-safe. Errors: kTimeout: a disk has not answered in
// time.
Result<wire::InventoryReply> ListObjects(OwnerDisks& disks, Memory& memory, const Clock& clock,
                                         const wire::InventoryRequest& request,
                                         std::int64_t deadline_ns);

}  // namespace kvcove::owner
