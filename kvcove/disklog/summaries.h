// SPDX-License-Identifier: Apache-2.0
// Reads what a zone holds: its summary, or, where it has none, its records one after the other.
#pragma once

#include "kvcove/disklog/state.h"

namespace kvcove::disklog {

struct ZoneContents {
  std::optional<Summary> summary;  // nothing: damaged, or not readable
  std::uint64_t records_end = 0;   // only of a scan: where the sound records end
  int error = 0;
};
using ContentsDone = std::function<void(ZoneContents)>;

// By the trailer that the zone has in `state`; the keys only if asked for.
void ReadSummary(State& state, std::uint32_t zone, bool keys, ContentsDone done);
// Record by record up to the first that is damaged or of an earlier use of the zone. The whole
// zone is in memory meanwhile.
void ScanZone(State& state, std::uint32_t zone, ContentsDone done);
// The scan itself. `zone_bytes` begins with the zone's header.
ZoneContents ScanRecords(std::string_view zone_bytes, std::uint64_t nonce,
                         const std::function<Id128(SlotId, std::string_view)>& hash);

}  // namespace kvcove::disklog
