// SPDX-License-Identifier: Apache-2.0
// Lists an owner's objects page by page: those in memory, then those that wait for disks, then
// those on disks. Values are demoted in this order, so one that is demoted meanwhile is met once or
// twice; one that is promoted behind the walk was met before. A key in both tiers is listed once,
// with memory. A list holds nothing up: objects that a disk moves from zone to zone, or loses from
// the zone that is being listed, may hide others.
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
