// SPDX-License-Identifier: Apache-2.0
// A bounded map of the weight versions that were used last.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvcove/base/carry.h"

namespace kvcove::requester {

// A map by version with at most `room` entries: a new one replaces the one that was used longest
// ago. A trainer makes a version for each step, and an engine one for each salt, so an unbounded
// map of a session that lives for months would only grow. A forgotten version is asked for again.
// The entry without a version ("") is kept: most namespaces have no other. Not thread-safe.
template <typename T>
class RecentVersions {
 public:
  explicit RecentVersions(std::size_t room) : room_(std::max<std::size_t>(room, 1)) {}

  // Returns the value, or null. Counts as a use.
  T* Find(std::string_view version) {
    const auto at = entries_.find(version);
    if (at == entries_.end()) return nullptr;
    at->second.used = ++uses_;
    return &at->second.value;
  }
  // Returns the value, or null. Does not count as a use.
  const T* Peek(std::string_view version) const {
    const auto at = entries_.find(version);
    return at == entries_.end() ? nullptr : &at->second.value;
  }
  // Sets the value. Counts as a use. Linear in `room` if another entry is replaced.
  void Set(std::string_view version, T value) {
    const auto at = entries_.find(version);
    if (at != entries_.end()) {
      at->second = {.value = std::move(value), .used = ++uses_};
      return;
    }
    if (!version.empty() && Versions() >= room_) entries_.erase(Oldest());
    entries_.emplace(version, Entry{.value = std::move(value), .used = ++uses_});
  }
  // Erases the versions for which `drop(version)`.
  template <typename Drop>
  void EraseIf(Drop&& drop) {
    std::erase_if(entries_, [&](const auto& entry) { return drop(entry.first); });
  }
  template <typename Call>
  void ForEach(Call&& call) {
    for (auto& [version, entry] : entries_) call(entry.value);
  }
  // Returns the values in the order of their last use, as pointers into this map.
  std::vector<const T*> InOrderOfUse() const {
    std::vector<const Entry*> entries;
    for (const auto& [version, entry] : entries_) entries.push_back(&entry);
    std::ranges::sort(entries, {}, &Entry::used);
    std::vector<const T*> values;
    for (const Entry* entry : entries) values.push_back(&entry->value);
    return values;
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

// Versions that a session keeps. An engine uses a few at a time; each costs less than 200 bytes.
inline constexpr std::size_t kSessionVersions = 256;

}  // namespace kvcove::requester
