// SPDX-License-Identifier: Apache-2.0
// The generations and names of slots that an owner has published, and how far it has acknowledged
// the master's table of them.
//
//   Take: the updates of a page --(published by the caller)--> Acknowledge: the page's end
//
// A page arrives on the watch lane or with a renewal. It is applied if it begins where the last one
// ended: a repeated page, or one that the other lane has applied already, changes nothing.
//
// Needs LinkCore's lock; one page at a time, from Take to Acknowledge. Does no I/O.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "kvcove/base/carry.h"
#include "kvcove/wire/owner_link.h"

namespace kvcove::owner {

class GenerationTable {
 public:
  std::uint64_t revision() const { return revision_; }  // up to which all pages are published
  bool partial() const { return partial_; }             // see wire::WatchRequest
  std::uint64_t naming() const { return naming_; }

  // Returns the updates that a page brings, possibly none; nothing if it is not the next one.
  // Publish them before Acknowledge: the master may prove a reset by the acknowledgement, so no
  // older generation may be found or stored any more.
  std::optional<std::vector<SlotUpdate>> Take(const wire::Changes& changes);
  // Returns true if all current generations are published now.
  bool Acknowledge(const wire::Changes& changes);
  // Forgets everything. Returns the updates that void all slots.
  std::vector<SlotUpdate> Void();
  // Forgets which names were told: another master counts them anew.
  void ForgetNaming() { naming_ = 0; }

  template <typename Ar>
  void Carry(Ar& ar) {
    CarryAll(ar, revision_, partial_, naming_, slots_);
  }

 private:
  bool Continues(const wire::Changes& changes) const {
    return changes.from == revision_ && changes.to >= revision_;
  }

  std::uint64_t revision_ = 0;
  bool partial_ = false;
  std::uint64_t naming_ = 0;
  std::map<SlotId, SlotUpdate> slots_;
};

}  // namespace kvcove::owner
