// SPDX-License-Identifier: Apache-2.0
// Removes keys that belong to another disk since disks were added. The removals are durable before
// the disk is used. Otherwise a later removal, which asks the key's new disk only, would leave the
// old value here, and a later start with the former disks would find it.
#pragma once

#include <functional>
#include <string>

#include "kvcove/disklog/log.h"

namespace kvcove::owner {

struct Sweep {
  std::function<bool(const disklog::LiveObject&)> goes;  // true: the object is removed
  std::function<std::string(SlotId)> name_of;            // of the namespace
  std::function<bool()> gives_up;                        // asked from time to time
};

// Removes the objects and returns their number; the removals are synced. Polls the log, which is
// recovered and not used yet. Errors: kCorrupt: a zone's summary is damaged; kUnavailable: the disk
// fails, or `gives_up` returned true.
Result<std::uint64_t> RemoveMoved(disklog::Log& log, const Sweep& sweep);

}  // namespace kvcove::owner
