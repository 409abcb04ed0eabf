// SPDX-License-Identifier: Apache-2.0
// What is known of the weight versions that were used lately.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "kvcove/base/carry.h"

namespace kvcove::requester {

// A map by version that holds at most `room` of them: the one that was used longest ago makes place
// for a new one. A trainer makes a version a step, and an engine one a salt, so without a bound the
// map of a session that lives for months would only grow. What is forgotten is asked for again. The
// entry without a version ("") stays: most namespaces have no other. Needs a lock.
template <typename T>
class RecentVersions {
 public:
  explicit RecentVersions(std::size_t room) : room_(std::max<std::size_t>(room, 1)) {}

  // Null when it is not known. Counts as a use.
  T* Find(std::string_view version) {
    const auto at = entries_.find(version);
    if (at == entries_.end()) return nullptr;
    at->second.used = ++uses_;
    return &at->second.value;
  }
  // The same, without being a use.
  const T* Peek(std::string_view version) const {
    const auto at = entries_.find(version);
    return at == entries_.end() ? nullptr : &at->second.value;
  }
  // A use, too. Linear in `room` where another one makes place.
  void Set(std::string_view version, T value) {
    const auto at = entries_.find(version);
    if (at != entries_.end()) {
      at->second = {.value = std::move(value), .used = ++uses_};
      return;
    }
    if (!version.empty() && Versions() >= room_) entries_.erase(Oldest());
    entries_.emplace(version, Entry{.value = std::move(value), .used = ++uses_});
  }
  // `drop(version)`: true for those that are no longer kept.
  template <typename Drop>
  void EraseIf(Drop&& drop) {
    std::erase_if(entries_, [&](const auto& entry) { return drop(entry.first); });
  }
  template <typename Call>
  void ForEach(Call&& call) {
    for (auto& [version, entry] : entries_) call(entry.value);
  }
  template <typename Call>
  void ForEach(Call&& call) const {
    for (const auto& [version, entry] : entries_) call(entry.value);
  }
  std::size_t size() const { return entries_.size(); }
  template <typename Ar>
  void Carry(Ar& ar) {
    CarryAll(ar, uses_, entries_);
  }

 private:
  struct Entry {
    T value;
    std::uint64_t used = 0;
    template <typename Ar>
    void Carry(Ar& ar) {
      CarryAll(ar, value, used);
    }
  };
  using Map = std::map<std::string, Entry, std::less<>>;

  std::size_t Versions() const { return entries_.size() - entries_.count(""); }
  typename Map::iterator Oldest() {
    auto oldest = entries_.end();
    for (auto at = entries_.begin(); at != entries_.end(); ++at) {
      if (at->first.empty()) continue;
      if (oldest == entries_.end() || at->second.used < oldest->second.used) oldest = at;
    }
    return oldest;
  }

  std::size_t room_;
  std::uint64_t uses_ = 0;
  Map entries_;
};

// Of one session. An engine uses a few at a time; each costs under 200 bytes.
inline constexpr std::size_t kSessionVersions = 256;

}  // namespace kvcove::requester
