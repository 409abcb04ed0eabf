// SPDX-License-Identifier: Apache-2.0
#include "tests/multihost/history.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <unordered_map>

namespace kvcove::multihost {
namespace {

using Kind = Operation::Kind;
using Outcome = Operation::Outcome;

// Fences of one kind, so that "one that began after a and ended before b" is found by bisection.
class Fences {
 public:
  void Add(const Operation& operation) {
    list_.push_back({operation.began_ns, operation.ended_ns});
  }
  void Sort() {
    std::ranges::sort(list_);
    // From each on, the earliest end.
    for (std::size_t i = list_.size(); i-- > 1;) {
      list_[i - 1].second = std::min(list_[i - 1].second, list_[i].second);
    }
  }
  bool Between(std::int64_t after_ns, std::int64_t before_ns) const {
    const auto first = std::ranges::upper_bound(list_, after_ns, {}, &Fence::first);
    return first != list_.end() && first->second < before_ns;
  }

 private:
  using Fence = std::pair<std::int64_t, std::int64_t>;  // began, ended
  std::vector<Fence> list_;
};

struct Key {
  std::unordered_map<std::uint64_t, const Operation*> puts;  // by value
  Fences removals;
  std::vector<const Operation*> hits;
  std::vector<const Operation*> stored;  // puts that were done
};

void CheckVersions(std::uint32_t number, const Key& key, std::vector<std::string>& violations) {
  // Sightings of a value: a hit, or the put that stored it. Between two of one value that do not
  // overlap it there must be none of another.
  struct Seen {
    std::int64_t began;
    std::int64_t ended;
    std::uint64_t value;
  };
  std::vector<Seen> seen;
  for (const Operation* hit : key.hits) seen.push_back({hit->began_ns, hit->ended_ns, hit->value});
  for (const Operation* put : key.stored)
    seen.push_back({put->began_ns, put->ended_ns, put->value});
  struct Span {
    std::int64_t first_ended = kNever;
    std::int64_t last_began = 0;
  };
  std::map<std::uint64_t, Span> spans;
  for (const Seen& one : seen) {
    Span& span = spans[one.value];
    span.first_ended = std::min(span.first_ended, one.ended);
    span.last_began = std::max(span.last_began, one.began);
  }
  for (const Seen& one : seen) {
    for (const auto& [value, span] : spans) {
      if (value != one.value && span.first_ended < one.began && one.ended < span.last_began) {
        violations.push_back(
            fmt::format("key {}: value {} gave way to {} and came back", number, value, one.value));
        return;
      }
    }
  }
}

}  // namespace

std::vector<std::string> CheckHistory(const std::vector<Operation>& history) {
  std::map<std::uint32_t, Key> keys;
  Fences resets;
  for (const Operation& operation : history) {
    switch (operation.kind) {
      case Kind::kReset:
        if (operation.outcome == Outcome::kDone) resets.Add(operation);
        break;
      case Kind::kRemove:
        if (operation.outcome == Outcome::kDone) keys[operation.key].removals.Add(operation);
        break;
      case Kind::kPut:
        keys[operation.key].puts[operation.value] = &operation;
        if (operation.outcome == Outcome::kDone) keys[operation.key].stored.push_back(&operation);
        break;
      case Kind::kGet:
        if (operation.outcome == Outcome::kDone) keys[operation.key].hits.push_back(&operation);
        break;
    }
  }
  resets.Sort();
  std::vector<std::string> violations;
  for (auto& [number, key] : keys) {
    key.removals.Sort();
    for (const Operation* hit : key.hits) {
      const auto at = key.puts.find(hit->value);
      if (at == key.puts.end()) {
        violations.push_back(fmt::format("key {}: nobody put value {}", number, hit->value));
        continue;
      }
      const Operation& put = *at->second;
      if (put.outcome == Outcome::kRefused) {
        violations.push_back(
            fmt::format("key {}: value {} was refused and is there", number, hit->value));
      }
      if (put.began_ns > hit->ended_ns) {
        violations.push_back(
            fmt::format("key {}: value {} was read before it was put", number, hit->value));
      }
      if (resets.Between(put.captured_ns, hit->began_ns)) {
        violations.push_back(fmt::format(
            "key {}: value {} was begun before a reset and read after it", number, hit->value));
      }
      if (put.outcome == Outcome::kDone && key.removals.Between(put.ended_ns, hit->began_ns)) {
        violations.push_back(
            fmt::format("key {}: value {} was stored before a removal and read "
                        "after it",
                        number, hit->value));
      }
    }
    CheckVersions(number, key, violations);
  }
  return violations;
}

}  // namespace kvcove::multihost
