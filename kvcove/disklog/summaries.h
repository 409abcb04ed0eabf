// SPDX-License-Identifier: Apache-2.0
// Reads the contents of a zone: its summary, or its records one after the other if it has none, or
// if the summary is damaged.
#pragma once

#include "kvcove/disklog/state.h"

namespace kvcove::disklog {

struct ZoneContents {
  std::optional<Summary> summary;  // nullopt: damaged, or not readable
  std::uint64_t records_end = 0;   // only set by a scan: end of the valid records, whole blocks
  bool scanned = false;            // it is what the records say
  int error = 0;                   // errno of the device
};
using ContentsDone = std::function<void(ZoneContents)>;

// Reads the summary that the zone's trailer in `state` names; its keys only if `keys`. An empty
// summary needs no read, and `done` runs in this call.
void ReadSummary(State& state, std::uint32_t zone, bool keys, ContentsDone done);
// Reads all records of the zone into memory and scans them (ScanRecords).
void ScanZone(State& state, std::uint32_t zone, ContentsDone done);
// Reads the summary with its keys, or scans the zone if it has none that is sound.
void ReadContents(State& state, std::uint32_t zone, const ContentsDone& done);
// Lists all records of this use of the zone, and passes over bytes that are none: damaged records,
// padding, and records of an earlier use. `zone_bytes` begins with the zone's header.
ZoneContents ScanRecords(std::string_view zone_bytes, std::uint64_t nonce,
                         const std::function<Id128(SlotId, std::string_view)>& hash);

}  // namespace kvcove::disklog
