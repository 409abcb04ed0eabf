// SPDX-License-Identifier: Apache-2.0
// Strict keys: an unknown one is an error that names the nearest right one.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "kvcove/base/result.h"

namespace kvcove {

// Of `known` the one with the fewest edits to `text`; empty when none is near.
std::string_view NearestKey(std::string_view text, std::span<const std::string_view> known);

// kInvalid: "unknown <what> 'memroy'; did you mean 'memory'? (known: memory, policy)".
std::unexpected<Error> UnknownKey(std::string_view what, std::string_view text,
                                  std::span<const std::string_view> known);

}  // namespace kvcove
