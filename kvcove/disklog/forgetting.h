// SPDX-License-Identifier: Apache-2.0
// Writes tombstones for records that nobody can read, or that have no place in `Presence`: damaged
// ones, and those whose write failed. Such a record may be whole at the next start. By then its key
// may have been stored again, and the older value would come back. So the key counts as present
// (State::Hide) until the tombstone is durable. A copy whose object ended while it was being copied
// gets a tombstone, too; until then its zone is uncovered.
//
// Not thread-safe: belongs to the Log's thread.
#pragma once

#include "kvcove/disklog/cleaner.h"
#include "kvcove/disklog/writer.h"

namespace kvcove::disklog {

class Forgetting {
 public:
  // `on_forgotten` is called on the log's thread for each object that was found before. May be
  // empty.
  Forgetting(State& state, Writer& writer, std::function<void(const LiveObject&)> on_forgotten)
      : state_(state), writer_(writer), on_forgotten_(std::move(on_forgotten)) {}
  // Writes tombstones for State::forgotten, as far as the write queue has room.
  void Step();
  bool idle() const { return state_.forgotten.empty() && syncing_ == 0; }

 private:
  // Returns the entry of the record, unless a removal, a reset or a newer record has ended it.
  IndexEntry* Find(const Forgotten& one);
  // Returns the tombstone of the record, or nothing if its zone was freed meanwhile.
  std::optional<Writer::Append> TombstoneOf(const Forgotten& one);
  void Synced(const std::vector<Forgotten>& written, const Status& status);
  void Drop(const Forgotten& one);
  bool ZoneFreed(const Forgotten& one) const {
    return state_.zones[one.place.zone].use != one.place.use;
  }
  void GiveUp();

  State& state_;
  Writer& writer_;
  const std::function<void(const LiveObject&)> on_forgotten_;
  int syncing_ = 0;  // calls of Sync that have not completed
};

}  // namespace kvcove::disklog
