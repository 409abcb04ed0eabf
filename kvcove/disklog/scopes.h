// SPDX-License-Identifier: Apache-2.0
// Numbers the (slot, generation) pairs of a disk's objects with 16 bits. A reset ends a scope, and
// with it all its objects, whatever the disk holds. Not thread-safe; belongs to the Log's thread.
//
//   unknown (the slot's generation is not set yet) -> current -> dead -> number reused
//
// Objects of unknown and dead scopes are never found; those of unknown scopes keep their space.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "kvcove/disklog/disk_index.h"
#include "kvcove/disklog/shares.h"

namespace kvcove::disklog {

enum class ScopeState : std::uint8_t { kUnknown, kCurrent, kDead };

struct Scope {
  SlotId slot = 0;
  Generation generation = 0;
  std::string name;
  ScopeState state = ScopeState::kDead;
  ShareNumber share = kNoShare;
  std::uint64_t users = 0;  // zones and index entries with this number; it is not reused before 0
};

class Scopes {
 public:
  // Sets the shares. Call it before the first scope is numbered.
  void SetShares(DiskShares shares) { shares_ = std::move(shares); }
  const std::vector<ShareLimits>& limits() const { return shares_.limits; }
  // Returns the number of the pair, a new one if it has none. Errors: kLimit (2^16 - 1 are in use).
  Result<ScopeId> Intern(SlotId slot, Generation generation, std::string_view name) {
    const auto known = numbers_.find({slot, generation});
    if (known != numbers_.end()) return known->second;
    KVCOVE_ASSIGN(const ScopeId id, NewNumber());
    scopes_[id] = {.slot = slot,
                   .generation = generation,
                   .name = std::string(name),
                   .state = StateOf(slot, generation),
                   .share = shares_.limits.empty() ? kNoShare : shares_.of(name)};
    numbers_[{slot, generation}] = id;
    return id;
  }
  // Returns the number of the pair, if it has one.
  std::optional<ScopeId> Find(SlotId slot, Generation generation) const {
    const auto known = numbers_.find({slot, generation});
    if (known == numbers_.end()) return std::nullopt;
    return known->second;
  }
  // Sets the current generation of a slot, and returns the scopes that this ends. 0: the slot is
  // free.
  std::vector<ScopeId> SetGeneration(SlotId slot, Generation generation) {
    current_[slot] = generation;
    std::vector<ScopeId> ended;
    const auto end = numbers_.upper_bound({slot, ~Generation{0}});
    for (auto at = numbers_.lower_bound({slot, 0}); at != end; ++at) {
      Scope& scope = scopes_[at->second];
      const ScopeState before = std::exchange(scope.state, StateOf(slot, scope.generation));
      if (scope.state == ScopeState::kDead && before != ScopeState::kDead) {
        ended.push_back(at->second);
      }
    }
    for (const ScopeId id : ended) Forget(id);
    return ended;
  }
  bool Current(SlotId slot, Generation generation) const {
    return StateOf(slot, generation) == ScopeState::kCurrent;
  }
  const Scope& operator[](ScopeId id) const { return scopes_[id]; }
  bool dead(ScopeId id) const { return scopes_[id].state == ScopeState::kDead; }
  // Count the users of a number: zones (Zones::Note) and index entries (State::Offer). The last
  // Unuse of a dead scope frees the number.
  void Use(ScopeId id) { ++scopes_[id].users; }
  void Unuse(ScopeId id) {
    --scopes_[id].users;
    Forget(id);
  }

 private:
  DiskShares shares_;

  // Frees the number if the scope is dead and has no users: nothing can name it any more.
  void Forget(ScopeId id) {
    Scope& scope = scopes_[id];
    if (scope.users > 0 || scope.state != ScopeState::kDead) return;
    numbers_.erase({scope.slot, scope.generation});
    scope = {};
    free_.push_back(id);
  }
  ScopeState StateOf(SlotId slot, Generation generation) const {
    const auto current = current_.find(slot);
    if (current == current_.end()) return ScopeState::kUnknown;
    return current->second != 0 && current->second == generation ? ScopeState::kCurrent
                                                                 : ScopeState::kDead;
  }
  Result<ScopeId> NewNumber() {
    if (!free_.empty()) {
      const ScopeId id = free_.back();
      free_.pop_back();
      return id;
    }
    if (scopes_.size() >= 0xFFFF) {
      return Fail(Code::kLimit,
                  "the disk holds objects of 65535 generations; the oldest zones "
                  "must be freed first");
    }
    scopes_.emplace_back();
    return static_cast<ScopeId>(scopes_.size() - 1);
  }

  std::vector<Scope> scopes_;
  std::vector<ScopeId> free_;
  std::map<std::pair<SlotId, Generation>, ScopeId> numbers_;
  std::unordered_map<SlotId, Generation> current_;
};

}  // namespace kvcove::disklog
