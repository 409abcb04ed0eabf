// SPDX-License-Identifier: Apache-2.0
// The ends of hard pins that have a time to live. They belong to no session, so they outlive the
// process that asked for them. No I/O. Not thread-safe: needs the core's lock. O(log n) a call, n =
// such pins.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "kvcove/base/carry.h"
#include "kvcove/owner/core/core_types.h"

namespace kvcove::owner {

class TimedPins {
 public:
  // Lets the object's pin end at `until_ns`, or when it ends already if that is later.
  void Extend(ObjectId id, std::uint64_t bytes, std::int64_t until_ns) {
    const auto [at, is_new] = pins_.try_emplace(id, Pin{.until_ns = until_ns, .bytes = bytes});
    if (is_new) {
      bytes_ += bytes;
    } else {
      ends_.erase({at->second.until_ns, id});
      at->second.until_ns = std::max(at->second.until_ns, until_ns);
    }
    ends_.emplace(at->second.until_ns, id);
  }
  // Forgets the object's end; no effect if its pin has none.
  void Erase(ObjectId id) {
    const auto at = pins_.find(id);
    if (at == pins_.end()) return;
    bytes_ -= at->second.bytes;
    ends_.erase({at->second.until_ns, id});
    pins_.erase(at);
  }
  // Takes one object whose pin has ended by `now_ns`, or nothing.
  std::optional<ObjectId> TakeEnded(std::int64_t now_ns) {
    if (ends_.empty() || ends_.begin()->first > now_ns) return std::nullopt;
    const ObjectId id = ends_.begin()->second;
    Erase(id);
    return id;
  }
  // Returns when the object's pin ends; nothing if it has no end.
  std::optional<std::int64_t> EndOf(ObjectId id) const {
    const auto at = pins_.find(id);
    return at == pins_.end() ? std::nullopt : std::optional(at->second.until_ns);
  }
  // Returns true if no pin ends by itself.
  bool none() const { return pins_.empty(); }
  // Returns the bytes that these objects occupy, whole granules.
  std::uint64_t bytes() const { return bytes_; }

  template <typename Ar>
  void Carry(Ar& ar) {
    CarryAll(ar, pins_, bytes_);
    if constexpr (Ar::kReads) {
      for (const auto& [id, pin] : pins_) ends_.emplace(pin.until_ns, id);
    }
  }

 private:
  struct Pin {
    std::int64_t until_ns = 0;
    std::uint64_t bytes = 0;
  };
  std::map<ObjectId, Pin> pins_;
  std::set<std::pair<std::int64_t, ObjectId>> ends_;
  std::uint64_t bytes_ = 0;
};

}  // namespace kvcove::owner
