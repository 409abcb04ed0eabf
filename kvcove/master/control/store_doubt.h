// SPDX-License-Identifier: Apache-2.0
// Decides whether a master that has just started may believe its store. A store may have been put
// back to an older state, and then only owners know which resets and removals were proven since. A
// member that was away while a reset was proven does not know of it: with its next lease, readers
// would find objects that the reset voided. So no member whose lease has run out gets another one
// before enough of the others have said hello, for an owner that knows more shows it in its hello.
//
//   doubts -> believes:  a member renews a lease that has never run out: each reset has waited for
//                        it, so it knows of all that were proven; or
//                        each member has said hello; or
//                        most members have, and a quarter of a lease has passed since the first
//                        hello; or three quarters have.
//
// The bounds keep the pool from waiting for members that do not run any more. An owner without a
// lease says hello every 100 ms at least, so a quarter of a lease is enough for those that run. A
// whole lease would be too long: the master then considers its predecessor's leases over, and
// owners would have to list their inventories first (Members::Renew). A plain state machine over
// the master's clock; needs a lock. See docs/control-plane.md.
#pragma once

#include <cstdint>
#include <set>

#include "kvcove/wire/owner_link.h"

namespace kvcove::master {

using wire::OwnerNumber;

class StoreDoubt {
 public:
  explicit StoreDoubt(std::int64_t lease_ns) : lease_ns_(lease_ns) {}

  // Adds a member that the store lists. Call it before any hello.
  void Listed(OwnerNumber number) {
    listed_.insert(number);
    unheard_.insert(number);
  }
  // Notes that the member has said hello and knows of nothing that the store lacks.
  void Heard(OwnerNumber number, std::int64_t now_ns) {
    unheard_.erase(number);
    if (first_heard_ns_ == 0) first_heard_ns_ = now_ns;
  }
  // Removes a member that has ended. Another member may get its number from here on.
  void Ended(OwnerNumber number) {
    listed_.erase(number);
    unheard_.erase(number);
  }
  // Ends the doubt if the store listed this member. Its lease must never have run out.
  void Vouched(OwnerNumber number) {
    if (listed_.contains(number)) Believe();
  }
  // Ends the doubt.
  void Believe() {
    listed_.clear();
    unheard_.clear();
  }
  // Returns true if the member must wait for its next lease. A member that the store did not list
  // at the master's start never waits: it holds no object from before. Ends the doubt when a bound
  // is reached.
  bool Holds(OwnerNumber number, std::int64_t now_ns) {
    if (listed_.empty()) return false;
    const bool most = 2 * unheard_.size() < listed_.size();
    const std::int64_t quarters = unheard_.empty() ? 0 : most ? 1 : 3;
    if (first_heard_ns_ != 0 && now_ns >= first_heard_ns_ + quarters * lease_ns_ / 4) Believe();
    return listed_.contains(number);
  }

 private:
  const std::int64_t lease_ns_;
  std::set<OwnerNumber> listed_;   // empty: the master believes its store
  std::set<OwnerNumber> unheard_;  // listed members that have not said hello
  std::int64_t first_heard_ns_ = 0;
};

}  // namespace kvcove::master
