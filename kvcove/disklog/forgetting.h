// SPDX-License-Identifier: Apache-2.0
// Writes tombstones for records that nobody can read, or that have no place in `Presence`: damaged
// ones, and those whose write failed. Such a record may be whole at the next start. By then its key
// may have been stored again, and the older value would come back. So the key counts as present
// (State::Hide) until the tombstone is durable.
//
// Not thread-safe: belongs to the Log's thread.
#pragma once

#include "kvcove/disklog/writer.h"

namespace kvcove::disklog {

class Forgetting {
 public:
  Forgetting(State& state, Writer& writer) : state_(state), writer_(writer) {}
  // Writes tombstones for State::forgotten, as far as the write queue has room.
  void Step();
  bool idle() const { return state_.forgotten.empty() && syncing_ == 0; }

 private:
  // Returns the entry of the record, unless a removal, a reset or a newer record has ended it.
  IndexEntry* Find(const Forgotten& one);
  void Synced(const std::vector<Forgotten>& written, const Status& status);
  void GiveUp();

  State& state_;
  Writer& writer_;
  int syncing_ = 0;  // calls of Sync that have not completed
};

}  // namespace kvcove::disklog
