// SPDX-License-Identifier: Apache-2.0
#include "kvcove/segment/payload.h"

#include <fmt/core.h>

#include "kvcove/base/size.h"

namespace kvcove::segment {

Result<Granule> Granule::Of(std::uint64_t bytes, std::uint64_t payload_bytes) {
  const Granule least = For(payload_bytes);
  if (payload_bytes > least.reach()) {
    return Fail(Code::kInvalid,
                fmt::format("a payload of {}; a segment has at most {}", FormatSize(payload_bytes),
                            FormatSize(kMaxPayloadBytes)));
  }
  if (bytes == 0) return least;
  if (!std::has_single_bit(bytes) || bytes < kLeastGranule || bytes > kMostGranule) {
    return Fail(Code::kInvalid,
                fmt::format("a granule of {} B; give a power of two from {} to {}", bytes,
                            FormatSize(kLeastGranule), FormatSize(kMostGranule)));
  }
  if (bytes < least.bytes()) {
    return Fail(Code::kInvalid,
                fmt::format("a granule of {} reaches {} of payload; {} needs {} or more",
                            FormatSize(bytes), FormatSize(bytes * kMaxGranules),
                            FormatSize(payload_bytes), FormatSize(least.bytes())));
  }
  Granule granule;
  granule.shift_ = static_cast<std::uint32_t>(std::countr_zero(bytes));
  return granule;
}

}  // namespace kvcove::segment
