// SPDX-License-Identifier: Apache-2.0
// Pins of an operator: the master asks each owner, as a session would.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvcove/master/server/server.h"
#include "kvcove/wire/messages.h"

namespace kvcove::master {

struct PinRequest {
  std::vector<SlotDescription> slots;
  std::string key;                    // empty: each key with `prefix`
  std::string prefix;                 // counts without a key
  std::optional<wire::PinKind> kind;  // empty: unpin
  std::int64_t duration_ns = 0;       // of a hard pin; 0: it has no end
};

// Values in memory of live owners; a replica counts as one more.
struct PinCounts {
  std::uint64_t done = 0;     // pinned, or unpinned
  std::uint64_t refused = 0;  // the owner has no room for more hard pins
};

// Pins or unpins the values at all live owners. Linear in the number of their objects if the
// request has no key. Not for an event loop. Errors: those of the calls, with the owner's address;
// some values are pinned then, so the caller may repeat the request.
Result<PinCounts> PinAtOwners(MasterServer& cluster, const PinRequest& request,
                              std::int64_t deadline_ns);

}  // namespace kvcove::master
