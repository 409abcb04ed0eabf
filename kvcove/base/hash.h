// SPDX-License-Identifier: Apache-2.0
// XXH3, behind functions so that its header stays out of ours.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace kvcove {

// XXH3 64 bits. With a random seed per segment, a caller cannot aim at one bucket.
std::uint64_t Hash64(std::string_view bytes, std::uint64_t seed);
std::uint64_t Hash64(std::span<const std::byte> bytes, std::uint64_t seed);

}  // namespace kvcove
