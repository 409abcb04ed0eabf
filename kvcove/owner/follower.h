// SPDX-License-Identifier: Apache-2.0
// What an owner knows of its master, as a plain state machine: no thread, no socket, no clock.
// `Link` drives it, and the simulation. Needs a lock.
//
//   nothing -> welcomed (another epoch) -> inventory told -> lease granted ... -> welcomed again
#pragma once

#include <optional>
#include <set>
#include <vector>

#include "kvcove/wire/cluster.h"

namespace kvcove::owner {

class Follower {
 public:
  // What the master calls this owner now; epoch 0: nothing.
  struct Standing {
    wire::OwnerNumber number = wire::kNoOwner;
    std::uint32_t epoch = 0;
  };
  // To be applied in this order, then reported with Applied.
  struct Todo {
    Id128 incarnation;
    std::vector<SlotUpdate> updates;
    std::vector<wire::Removal> removals;
    std::uint64_t version = 0;
  };

  explicit Follower(Id128 id) : id_(id) {}

  // Before it is sent the lease must be given up: until all is told again, others may store other
  // values of the same keys.
  wire::OwnerHello Hello() const;
  void Welcomed(const wire::OwnerWelcome& welcome);
  Standing standing() const { return standing_; }

  // Nothing when they are known, or come from another epoch.
  std::optional<Todo> Take(const wire::Changes& changes, std::uint32_t epoch) const;
  void Applied(const Todo& todo);
  std::uint64_t applied() const { return applied_; }

  void Told(std::uint32_t epoch) { told_epoch_ = epoch; }
  bool told() const { return told_epoch_ == standing_.epoch; }

  // The head of a renewal or a watch.
  wire::RenewRequest Report() const;

 private:
  Id128 id_;
  Standing standing_;
  std::uint64_t term_ = 0;
  Id128 incarnation_;
  std::uint64_t applied_ = 0;
  std::uint32_t told_epoch_ = 0;
  std::set<SlotId> slots_;
};

}  // namespace kvcove::owner
