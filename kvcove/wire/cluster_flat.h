// SPDX-License-Identifier: Apache-2.0
// What the encoders of the cluster's messages share. Private to this module.
#pragma once

#include <string>
#include <vector>

#include "cluster_generated.h"
#include "kvcove/wire/flat.h"

namespace kvcove::wire {

namespace fb = cluster;

inline fb::Id ToFb(const Id128& id) { return {id.high, id.low}; }
inline Id128 FromFb(const fb::Id* id) {
  return id == nullptr ? Id128{} : Id128{.high = id->high(), .low = id->low()};
}
inline fb::Token ToFb(const Token& token) {
  return {ToFb(token.incarnation), token.generation, token.slot};
}
inline Token FromFb(const fb::Token* token) {
  if (token == nullptr) return {};
  return {.incarnation = FromFb(&token->incarnation()),
          .generation = token->generation(),
          .slot = token->slot()};
}

inline std::unexpected<Error> WrongCount() {
  return Fail(Code::kCorrupt, "a message whose parts have different numbers of items");
}

inline std::unexpected<Error> Misaligned() {
  return Fail(Code::kCorrupt, "a message that is not aligned");
}

inline Result<MissReason> ToReason(std::uint8_t value) {
  if (value >= kMissReasons) return Fail(Code::kCorrupt, "a reply with an unknown reason");
  return static_cast<MissReason>(value);
}
inline Result<Code> ToCode(std::uint8_t value) {
  if (value > kMaxCode) return Fail(Code::kCorrupt, "a reply with an unknown code");
  return static_cast<Code>(value);
}
inline Result<Tier> ToTier(std::uint8_t value) {
  if (value >= kTiers) return Fail(Code::kCorrupt, "a reply with an unknown tier");
  return static_cast<Tier>(value);
}

using Texts = flatbuffers::Vector<flatbuffers::Offset<flatbuffers::String>>;

template <typename Strings>
flatbuffers::Offset<Texts> TextsOf(Builder& builder, const Strings& strings) {
  std::vector<flatbuffers::Offset<flatbuffers::String>> list;
  list.reserve(strings.size());
  for (const auto& text : strings) list.push_back(Text(builder, text));
  return builder.CreateVector(list);
}

template <typename Table>
std::string Done(Builder& builder, flatbuffers::Offset<Table> table) {
  builder.Finish(table);
  return StringOf(builder);
}

}  // namespace kvcove::wire
