// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kvcove {

// Bytes that this host, and the control group that this process runs in, can still give.
std::uint64_t AvailableMemory();

}  // namespace kvcove
