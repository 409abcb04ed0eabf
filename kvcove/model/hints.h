// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace kvcove {

// How much room a namespace may claim from others: while they compete, `kHigh` keeps four times
// what a normal one does, `kLow` a quarter.
enum class NamespacePriority : std::uint8_t { kUnsaid, kLow, kNormal, kHigh };
inline constexpr std::array<std::string_view, 4> kPriorityNames = {"", "low", "normal", "high"};
inline std::string_view PriorityName(NamespacePriority priority) {
  return kPriorityNames[static_cast<std::size_t>(priority)];
}

// What a caller knows of a block or of its request and eviction may use. All of it is optional and
// none must be right: a hint that is wrong costs hits, nothing else.
struct Hints {
  std::uint32_t output_tokens = 0;  // length of the request's answer, also expected; 0: not known
  // This block, and those behind it in its request, are mostly not asked for again: the output of a
  // tool, search results, a chain of thought that the next turn leaves out.
  bool ephemeral = false;
  bool session_ends = false;  // nobody goes on from this request
  // More of this request follows in later batches. Without it a batch is a request.
  bool request_goes_on = false;
  // Of the whole namespace, until somebody says another one. A tenant's namespaces have what its
  // quota gives them, whatever they say.
  NamespacePriority priority = NamespacePriority::kUnsaid;
  bool operator==(const Hints&) const = default;
};

// What a caller says of keys for others that look them up: nothing, that it is about to save their
// values, or that it does not save them after all (saves_under_way.h).
enum class SaveNotice : std::uint8_t { kNone = 0, kBegin = 1, kEnd = 2 };

}  // namespace kvcove
