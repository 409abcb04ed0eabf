// SPDX-License-Identifier: Apache-2.0
// Patterns of keys, as removals have them.
#pragma once

#include <string_view>

#include "kvcove/base/result.h"

namespace kvcove {

// `*` stands for any bytes, `?` for one; everything else for itself.
bool GlobMatches(std::string_view pattern, std::string_view text);
// kInvalid when the pattern is empty, longer than 256 bytes, or has more than 16 stars.
Status CheckPattern(std::string_view pattern);

}  // namespace kvcove
