// SPDX-License-Identifier: Apache-2.0
// Pins of an operator.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/master/control/generations.h"
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

  void Add(const PinCounts& more) {
    done += more.done;
    refused += more.refused;
  }
};

// The calls of one owner, with the deadline of the request.
struct PinTarget {
  std::function<Result<wire::InventoryReply>(const wire::InventoryRequest& page)> page;
  std::function<Result<std::vector<Code>>(const Token& token,
                                          std::span<const std::string_view> keys)>
      pin;
};
// Pins or unpins the values at one owner. Not for an event loop. Errors: those of the calls, with
// `address`; kTimeout.
Result<PinCounts> PinAt(const PinTarget& owner, std::string_view address, const Id128& incarnation,
                        const PinRequest& request);

}  // namespace kvcove::master
