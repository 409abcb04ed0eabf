// SPDX-License-Identifier: Apache-2.0
// The flags of hints, as they travel: bits that a later version adds mean nothing to this one.
#pragma once

#include <cstdint>

#include "kvcove/model/hints.h"

namespace kvcove::wire {

inline constexpr std::uint8_t kEphemeralHint = 1;
inline constexpr std::uint8_t kSessionEndsHint = 2;
inline constexpr std::uint8_t kRequestGoesOnHint = 4;
inline constexpr int kPriorityShift = 3;  // two bits
inline constexpr std::uint8_t kPriorityMask = 3;

inline std::uint8_t FlagsOf(const Hints& hints) {
  return static_cast<std::uint8_t>((hints.ephemeral ? kEphemeralHint : 0) |
                                   (hints.session_ends ? kSessionEndsHint : 0) |
                                   (hints.request_goes_on ? kRequestGoesOnHint : 0) |
                                   (static_cast<unsigned>(hints.priority) << kPriorityShift));
}

inline Hints HintsOf(std::uint8_t flags, std::uint32_t output_tokens) {
  return {.output_tokens = output_tokens,
          .ephemeral = (flags & kEphemeralHint) != 0,
          .session_ends = (flags & kSessionEndsHint) != 0,
          .request_goes_on = (flags & kRequestGoesOnHint) != 0,
          .priority = static_cast<NamespacePriority>((flags >> kPriorityShift) & kPriorityMask)};
}

}  // namespace kvcove::wire
