// SPDX-License-Identifier: Apache-2.0
// For tests: owners by small numbers.
#pragma once

#include <cstdint>
#include <string>

#include "kvcove/wire/owner_link.h"

namespace kvcove::master {

inline Id128 IdOf(std::uint64_t id) { return {.high = 100, .low = id}; }
inline wire::OwnerHello Of(std::uint64_t id) {
  const std::string host = "host" + std::to_string(id);
  return {.owner = IdOf(id),
          .process = {.high = 200, .low = id},
          .address = host + ":1",
          .socket = {},
          .host = host,
          .tenant = {}};
}

}  // namespace kvcove::master
