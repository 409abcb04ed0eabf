// SPDX-License-Identifier: Apache-2.0
// Keys that went to another disk when disks were added: what a disk still holds of them is removed
// before it is used, for good. Else a removal, which asks the key's new disk only, would leave the
// old value there, and a later start with the former disks would find it.
#pragma once

#include <functional>
#include <string>

#include "kvcove/disklog/log.h"

namespace kvcove::owner {

struct Sweep {
  std::function<bool(const disklog::LiveObject&)> goes;
  std::function<std::string(SlotId)> name_of;  // of the namespace
  std::function<bool()> gives_up;              // asked from time to time
};

// The number of objects that were removed; the removals are synced. Polls the log, which is
// recovered and not used yet. Errors: kCorrupt where a zone's summary is damaged, kUnavailable.
Result<std::uint64_t> RemoveMoved(disklog::Log& log, const Sweep& sweep);

}  // namespace kvcove::owner
