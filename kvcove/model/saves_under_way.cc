// SPDX-License-Identifier: Apache-2.0
#include "kvcove/model/saves_under_way.h"

#include <utility>

namespace kvcove {

void SavesUnderWay::Begin(Writer writer, SlotId slot, Generation generation,
                          std::span<const Id128> hashes, std::int64_t now_ns) {
  const std::int64_t until_ns = now_ns + options_.kept_ns;
  for (const Id128& hash : hashes) {
    Expire(now_ns);
    // A key that is announced again has several expiries, so these are bounded, too.
    if (entries_.size() >= options_.most || expiries_.size() >= 2 * options_.most) return;
    const auto of_writer = writers_.find(writer);
    if (of_writer != writers_.end() && of_writer->second >= options_.most_of_writer) return;
    const Key key{.hash = hash, .slot = slot};
    if (const auto at = entries_.find(key); at != entries_.end()) Erase(at);
    entries_.emplace(key, Entry{.writer = writer, .generation = generation, .until_ns = until_ns});
    expiries_.emplace_back(until_ns, key);
    ++writers_[writer];
    until_ns_ = until_ns;
  }
}

void SavesUnderWay::End(SlotId slot, Generation generation, const Id128& hash) {
  if (entries_.empty()) return;
  const auto at = entries_.find({.hash = hash, .slot = slot});
  if (at != entries_.end() && at->second.generation == generation) Erase(at);
}

bool SavesUnderWay::Has(SlotId slot, Generation generation, const Id128& hash,
                        std::int64_t now_ns) const {
  if (entries_.empty()) return false;
  const auto at = entries_.find({.hash = hash, .slot = slot});
  if (at == entries_.end()) return false;
  const Entry& entry = at->second;
  return entry.generation == generation && now_ns < entry.until_ns &&
         writers_.contains(entry.writer);
}

void SavesUnderWay::Expire(std::int64_t now_ns) {
  // The caller holds a lock, and after a pause all of them may have expired. Two for each new one
  // make room for it, and those that remain count no more (Has).
  for (int i = 0; i < 2 && !expiries_.empty() && expiries_.front().first <= now_ns; ++i) {
    const auto at = entries_.find(expiries_.front().second);
    // Announced again meanwhile: a later expiry follows.
    if (at != entries_.end() && at->second.until_ns <= now_ns) Erase(at);
    expiries_.pop_front();
  }
}

void SavesUnderWay::Erase(Entries::iterator at) {
  const auto writer = writers_.find(at->second.writer);
  if (writer != writers_.end() && --writer->second == 0) writers_.erase(writer);
  entries_.erase(at);
}

}  // namespace kvcove
