// SPDX-License-Identifier: Apache-2.0
// Sizes and durations as people write them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kvcove/base/result.h"

namespace kvcove {

inline constexpr std::uint64_t kKiB = 1024;
inline constexpr std::uint64_t kMiB = 1024 * kKiB;
inline constexpr std::uint64_t kGiB = 1024 * kMiB;

// "4GiB", "64 KiB", "1.5GB", "4096": bytes. KiB, MiB, GiB, TiB and K, M, G, T are powers of 1024;
// KB, MB, GB, TB powers of 1000. Upper or lower case. Errors: kInvalid, naming the text and a right
// form.
Result<std::uint64_t> ParseSize(std::string_view text);

// The largest binary unit, at most one decimal: "4GiB", "1.5MiB", "512B".
std::string FormatSize(std::uint64_t bytes);

}  // namespace kvcove
