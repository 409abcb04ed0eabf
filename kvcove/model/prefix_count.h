// SPDX-License-Identifier: Apache-2.0
// Counts how much of a prefix each owner has, in one pass over the prefix's keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kvcove/model/ids.h"

namespace kvcove {

// One owner's part of a prefix, in keys.
struct PrefixShare {
  std::uint16_t owner = 0;          // number
  std::uint32_t prefix = 0;         // leading keys that it has
  std::uint32_t memory_prefix = 0;  // leading keys that it has in memory
  std::uint32_t memory = 0;         // keys of the found prefix that it has in memory
  std::uint32_t disk = 0;           // those that it has on a disk only
  bool operator==(const PrefixShare&) const = default;
};

// The leading keys that have an owner.
struct PrefixShares {
  std::uint64_t keys = 0;
  MissReason reason = MissReason::kNone;  // why the next key has no owner; kNone: each key has one
  std::vector<PrefixShare> owners;        // longest prefix first
  bool operator==(const PrefixShares&) const = default;
};

// Belongs to one thread. Constant time for a key and owner.
class PrefixCount {
 public:
  using Holder = std::pair<std::uint16_t, Tier>;
  // Counts the next key. `holders`: all its owners, each once and at least one, with the tier in
  // which each has the key.
  void Add(std::span<const Holder> holders);
  // Ends the prefix at a key that no owner has. A later reason replaces an earlier one. kNone,
  // where an owner's lease began or ended between the look for owners and the one for the reason,
  // counts as kOwnerGone.
  void End(MissReason reason) {
    ended_ = true;
    reason_ = reason == MissReason::kNone ? MissReason::kOwnerGone : reason;
  }
  bool ended() const { return ended_; }
  std::uint64_t keys() const { return keys_; }
  MissReason reason() const { return reason_; }
  PrefixShares Shares() const;

 private:
  PrefixShare& ShareOf(std::uint16_t owner);

  std::uint32_t keys_ = 0;
  bool ended_ = false;
  MissReason reason_ = MissReason::kNone;
  std::vector<PrefixShare> shares_;   // in the order of first appearance
  std::vector<std::uint16_t> place_;  // by owner: 1 + index in shares_; 0: has none
};

}  // namespace kvcove
