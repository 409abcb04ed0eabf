// SPDX-License-Identifier: Apache-2.0
// Common parts of the structures of format.h: 128-bit fields, and a checksum at the end.
#pragma once

#include <string>
#include <string_view>

#include "kvcove/base/little_endian.h"
#include "kvcove/disklog/aligned.h"
#include "kvcove/disklog/checksum.h"

namespace kvcove::disklog {

inline constexpr std::size_t kIdBytes = 16;

inline void AppendId(std::string& out, const Id128& id) {
  AppendNumber(out, id.low);
  AppendNumber(out, id.high);
}

inline Id128 ReadId(FieldReader& in) {
  Id128 id;
  id.low = in.Number<std::uint64_t>();
  id.high = in.Number<std::uint64_t>();
  return id;
}

// True if the last 16 bytes are the checksum of the bytes before them.
inline bool EndsWithChecksum(std::string_view bytes) {
  if (bytes.size() < kIdBytes) return false;
  FieldReader in(bytes.substr(bytes.size() - kIdBytes));
  return ReadId(in) == Checksum::Of(bytes.substr(0, bytes.size() - kIdBytes));
}

// Returns one block: `fields`, zeros, checksum.
inline std::string SealBlock(std::string fields) {
  fields.resize(kBlockBytes - kIdBytes, '\0');
  AppendId(fields, Checksum::Of(fields));
  return fields;
}

}  // namespace kvcove::disklog
