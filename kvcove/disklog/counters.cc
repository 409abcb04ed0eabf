// SPDX-License-Identifier: Apache-2.0
#include "kvcove/disklog/state.h"

namespace kvcove::disklog {

Counters& Counters::operator+=(const Counters& more) {
  for (const auto field : {&Counters::put_objects,
                           &Counters::put_bytes,
                           &Counters::written_bytes,
                           &Counters::padding_bytes,
                           &Counters::summary_bytes,
                           &Counters::moved_objects,
                           &Counters::moved_bytes,
                           &Counters::tombstones,
                           &Counters::refused_full,
                           &Counters::refused_space,
                           &Counters::write_errors,
                           &Counters::read_errors,
                           &Counters::reads,
                           &Counters::read_bytes,
                           &Counters::corrupt,
                           &Counters::raced,
                           &Counters::syncs,
                           &Counters::zones_freed,
                           &Counters::zones_freed_unread,
                           &Counters::zones_sealed,
                           &Counters::dropped_objects,
                           &Counters::voided_objects,
                           &Counters::voided_bytes}) {
    this->*field += more.*field;
  }
  return *this;
}

}  // namespace kvcove::disklog
