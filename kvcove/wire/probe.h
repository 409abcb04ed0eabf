// SPDX-License-Identifier: Apache-2.0
// A measurement of the way to an owner's data server: bytes that are no value's, both ways.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kvcove/base/result.h"

namespace kvcove::wire {

// Most bytes of one measurement, each way.
inline constexpr std::uint64_t kMaxProbeBytes = 16ULL << 20;

// kProbe. The owner discards the payload; its own has no meaning.
struct Probe {
  std::uint64_t payload_bytes = 0;  // behind this message
  std::uint64_t wanted_bytes = 0;   // behind the reply, which has no body
};

std::string Encode(const Probe& message);
// Errors: kCorrupt, also for more bytes than kMaxProbeBytes.
Result<Probe> DecodeProbe(std::span<const std::byte> body);

}  // namespace kvcove::wire
