// SPDX-License-Identifier: Apache-2.0
// What the encoders of the frames between a process and its host's owner share. Private to this
// module.
#pragma once

#include <array>
#include <vector>

#include "host_generated.h"
#include "kvcove/wire/flat.h"
#include "kvcove/wire/messages.h"

namespace kvcove::wire {

inline fb::Id ToFb(const Id128& id) { return {id.high, id.low}; }
inline Id128 FromFb(const fb::Id* id) {
  return id == nullptr ? Id128{} : Id128{.high = id->high(), .low = id->low()};
}

inline fb::TokenValue ToFb(const Token& token) {
  return {ToFb(token.incarnation), token.generation, token.slot};
}
inline Token FromFb(const fb::TokenValue& token) {
  return {.incarnation = FromFb(&token.incarnation()),
          .generation = token.generation(),
          .slot = token.slot()};
}

}  // namespace kvcove::wire
