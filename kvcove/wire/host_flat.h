// SPDX-License-Identifier: Apache-2.0
// What the encoders of the frames between a process and its host's owner share. Private to this
// module.
#pragma once

#include <array>
#include <vector>

#include "host_generated.h"
#include "kvcove/wire/flat.h"
#include "kvcove/wire/messages.h"

namespace kvcove::wire {

inline fb::Id ToFb(const Id128& id) { return {id.high, id.low}; }
inline Id128 FromFb(const fb::Id* id) {
  return id == nullptr ? Id128{} : Id128{.high = id->high(), .low = id->low()};
}

inline fb::TokenValue ToFb(const Token& token) {
  return {ToFb(token.incarnation), token.generation, token.slot};
}
inline Token FromFb(const fb::TokenValue& token) {
  return {.incarnation = FromFb(&token.incarnation()),
          .generation = token.generation(),
          .slot = token.slot()};
}

// In the order of the message.
inline constexpr std::array kPoolNumbers = {
    &PoolStat::payload_bytes,
    &PoolStat::populated_bytes,
    &PoolStat::free_bytes,
    &PoolStat::object_bytes,
    &PoolStat::reserved_bytes,
    &PoolStat::withdrawn_bytes,
    &PoolStat::index_bytes,
    &PoolStat::objects,
    &PoolStat::puts,
    &PoolStat::put_bytes,
    &PoolStat::hits,
    &PoolStat::evictions,
    &PoolStat::removals,
    &PoolStat::swept,
    &PoolStat::stale_puts,
    &PoolStat::expired_puts,
    &PoolStat::dropped_events,
    &PoolStat::disk_capacity_bytes,
    &PoolStat::disk_bytes,
    &PoolStat::disk_objects,
    &PoolStat::disk_queued_bytes,
    &PoolStat::disk_aside,
    &PoolStat::disk_puts,
    &PoolStat::disk_put_bytes,
    &PoolStat::disk_written_bytes,
    &PoolStat::disk_kept,
    &PoolStat::disk_dropped_full,
    &PoolStat::disk_dropped_other,
    &PoolStat::disk_evictions,
    &PoolStat::disk_hits,
    &PoolStat::disk_hit_bytes,
    &PoolStat::disk_misses,
    &PoolStat::disk_timeouts,
    &PoolStat::disk_damaged,
    &PoolStat::disk_errors,
    &PoolStat::disk_not_worth,
    &PoolStat::disk_over_rate,
    &PoolStat::disk_asides,
    &PoolStat::disk_reads,
    &PoolStat::disk_read_bytes,
    &PoolStat::disk_failed,
    &PoolStat::disk_no_room,
    &PoolStat::disk_over_share,
    &PoolStat::resets,
    &PoolStat::voided,
    &PoolStat::voided_bytes,
};

// Of one disk. New ones go to the end.
inline constexpr std::array kDiskNumbers = {
    &DiskStat::capacity_bytes, &DiskStat::bytes,        &DiskStat::objects,
    &DiskStat::queued_bytes,   &DiskStat::aside,        &DiskStat::retry_ms,
    &DiskStat::puts,           &DiskStat::put_bytes,    &DiskStat::written_bytes,
    &DiskStat::hits,           &DiskStat::hit_bytes,    &DiskStat::misses,
    &DiskStat::read_errors,    &DiskStat::write_errors, &DiskStat::damaged,
    &DiskStat::timeouts,       &DiskStat::asides};

}  // namespace kvcove::wire
