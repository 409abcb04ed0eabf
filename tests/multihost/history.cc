// SPDX-License-Identifier: Apache-2.0
#include "tests/multihost/history.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
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

// When a removal or reset has reached every owner, or their leases have ended: with its proof, or,
// without one, some seconds after it began.
constexpr std::int64_t kSettlesNs = 5'000'000'000;

std::int64_t SettledNs(const Operation& fence) {
  return fence.outcome == Outcome::kDone ? fence.ended_ns : fence.began_ns + kSettlesNs;
}

struct Key {
  std::unordered_map<std::uint64_t, const Operation*> puts;  // by value
  Fences removals;
  std::vector<const Operation*> hits;
  std::vector<const Operation*> stored;        // puts that were done
  std::vector<const Operation*> all_removals;  // removals, whatever became of them
};

// A hit, or the put that stored the value.
struct Sighting {
  std::int64_t began;
  std::int64_t ended;
  std::uint64_t value;
  const Operation* operation;
};

// Two owners may show different values of a key for a while (docs/control-plane.md). A removal or a
// reset reaches one owner before another: the newer value, which came after it, may be seen while
// the older one is, until it is proven. A new master takes a value before another owner has told it
// of the older one.
bool Overlap(const Operation& older, const Operation& newer, std::int64_t older_seen_ns,
             const std::vector<const Operation*>& fences) {
  return std::ranges::any_of(fences, [&](const Operation* fence) {
    if (fence->kind == Kind::kMaster) {
      return fence->began_ns < newer.ended_ns && newer.began_ns < fence->ended_ns &&
             older_seen_ns < fence->ended_ns;
    }
    const bool reset = fence->kind == Kind::kReset;
    const std::int64_t newer_ns = reset ? newer.captured_ns : newer.ended_ns;
    const std::int64_t older_ns = reset ? older.captured_ns : older.began_ns;
    return fence->began_ns < newer_ns && older_ns < SettledNs(*fence) &&
           older_seen_ns < SettledNs(*fence);
  });
}

// Resets and changes of the master while the key was seen.
std::string FencesNear(const std::vector<const Operation*>& fences, std::int64_t from_ns,
                       std::int64_t to_ns) {
  std::string text;
  for (const Operation* fence : fences) {
    if (fence->ended_ns < from_ns || fence->began_ns > to_ns) continue;
    const auto ms = [&](std::int64_t ns) { return static_cast<double>(ns - from_ns) * 1e-6; };
    text +=
        fmt::format(" {} [{:.1f}, {:.1f}]", fence->kind == Kind::kMaster ? "new master" : "reset",
                    ms(fence->began_ns), fence->ended_ns == kNever ? -1.0 : ms(fence->ended_ns));
  }
  return text;
}

constexpr std::array<const char*, kTiers> kPlaces{" (somewhere)", "", " (remote)", " (disk)"};

// Between two sightings of one value that do not overlap it there must be none of another.
void CheckVersions(std::uint32_t number, const Key& key,
                   const std::vector<const Operation*>& fences,
                   std::vector<std::string>& violations) {
  std::vector<Sighting> seen;
  for (const Operation* hit : key.hits) {
    seen.push_back({hit->began_ns, hit->ended_ns, hit->value, hit});
  }
  for (const Operation* put : key.stored) {
    seen.push_back({put->began_ns, put->ended_ns, put->value, put});
  }
  std::ranges::sort(seen, {}, &Sighting::began);
  struct Span {
    std::int64_t first_ended = kNever;
    std::int64_t last_began = 0;
  };
  std::map<std::uint64_t, Span> spans;
  for (const Sighting& one : seen) {
    Span& span = spans[one.value];
    span.first_ended = std::min(span.first_ended, one.ended);
    span.last_began = std::max(span.last_began, one.began);
  }
  const auto excused = [&](std::uint64_t older, std::uint64_t newer, std::int64_t seen_ns) {
    const auto old_put = key.puts.find(older);
    const auto new_put = key.puts.find(newer);
    // A value that nobody put is a violation of its own, which CheckHistory reports.
    if (old_put == key.puts.end() || new_put == key.puts.end()) return true;
    return Overlap(*old_put->second, *new_put->second, seen_ns, fences) ||
           Overlap(*old_put->second, *new_put->second, seen_ns, key.all_removals);
  };
  for (const Sighting& one : seen) {
    for (const auto& [value, span] : spans) {
      if (value == one.value || span.first_ended >= one.began || one.ended >= span.last_began) {
        continue;
      }
      if (excused(one.value, value, one.began)) continue;
      const auto late = std::ranges::find_if(seen, [&](const Sighting& other) {
        return other.value == value && other.began > one.ended &&
               !excused(value, one.value, other.began);
      });
      if (late == seen.end()) continue;
      // With what was seen meanwhile: a long run cannot be repeated.
      std::string text =
          fmt::format("key {}: value {} gave way to {} and came back; in ms from {:.1f}:", number,
                      value, one.value, static_cast<double>(span.first_ended) * 1e-6);
      const auto ms = [&](std::int64_t ns) {
        return static_cast<double>(ns - span.first_ended) * 1e-6;
      };
      for (const Sighting& other : seen) {
        if (other.ended < span.first_ended || other.began > late->began) continue;
        const bool hit = other.operation->kind == Kind::kGet;
        text += fmt::format(" {}{} of {} by {} [{:.1f}, {:.1f}]", hit ? "hit" : "put",
                            hit ? kPlaces[static_cast<std::size_t>(other.operation->tier)] : "",
                            other.value, other.operation->client, ms(other.began), ms(other.ended));
      }
      text += FencesNear(fences, span.first_ended, late->began);
      violations.push_back(std::move(text));
      return;
    }
  }
}

}  // namespace

std::vector<std::string> CheckHistory(const std::vector<Operation>& history) {
  std::map<std::uint32_t, Key> keys;
  Fences resets;
  std::vector<const Operation*> fences;
  for (const Operation& operation : history) {
    switch (operation.kind) {
      case Kind::kReset:
        if (operation.outcome == Outcome::kDone) resets.Add(operation);
        fences.push_back(&operation);
        break;
      case Kind::kMaster:
        fences.push_back(&operation);
        break;
      case Kind::kRemove:
        if (operation.outcome == Outcome::kDone) keys[operation.key].removals.Add(operation);
        keys[operation.key].all_removals.push_back(&operation);
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
    CheckVersions(number, key, fences, violations);
  }
  return violations;
}

}  // namespace kvcove::multihost
