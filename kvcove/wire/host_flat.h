// SPDX-License-Identifier: Apache-2.0
// What the encoders of the frames between a process and its host's owner share. Private to this
// module.
#pragma once

#include <algorithm>
#include <cstdint>
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

// The values of a table of figures (model/disk_stat.h, model/stats.h), in its order. A frame of
// another build may have fewer values, or more: new rows stand at the end of their table.
template <typename Table, typename Stat>
std::vector<std::uint64_t> ValuesOf(const Table& table, const Stat& stat) {
  std::vector<std::uint64_t> values;
  for (const auto& figure : table) values.push_back(stat.*figure.value);
  return values;
}
template <typename Table, typename Stat>
void SetValues(const Table& table, const flatbuffers::Vector<std::uint64_t>* values, Stat& stat) {
  const std::size_t count = std::min(table.size(), SizeOf(values));
  for (std::size_t i = 0; i < count; ++i) {
    stat.*table[i].value = values->Get(static_cast<unsigned>(i));
  }
}

}  // namespace kvcove::wire
