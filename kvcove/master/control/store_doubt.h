// SPDX-License-Identifier: Apache-2.0
// Whether a master that has just started may believe its store. A store may have been put back to
// an older state, and then only owners know what was proven since. A member that was away while a
// reset was proven does not know it either: its next lease would show what the reset voided. So no
// member whose lease has run out gets another one before enough of the others have said hello, for
// an owner that knows more shows it in its hello.
//
//   doubts -> believes:  a member renews a lease that has never run out: each reset has waited for
//                        it, so it knows of all that were proven; or
//                        each member has said hello; or
//                        most members have, and a quarter of a lease has passed since the first
//                        hello; or three quarters have.
//
// The bounds keep the pool from waiting for members that are gone. An owner without a lease says
// hello every 100 ms at least, so a quarter of a lease is enough for those that run. A whole lease
// would be too long: the master takes leases of its predecessor for over by then, and owners would
// have to tell their inventories first (Members::Renew). A plain state machine over the master's
// clock; needs a lock. docs/control-plane.md has the prose.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>

#include "kvcove/base/carry.h"
#include "kvcove/wire/owner_link.h"

namespace kvcove::master {

using wire::OwnerNumber;

class StoreDoubt {
 public:
  explicit StoreDoubt(std::int64_t lease_ns) : lease_ns_(lease_ns) {}

  // The store lists this member. Before any hello.
  void Listed(OwnerNumber number) {
    listed_.insert(number);
    unheard_.insert(number);
  }
  // It has said hello, and knows of nothing that the store lacks.
  void Heard(OwnerNumber number, std::int64_t now_ns) {
    unheard_.erase(number);
    if (first_heard_ns_ == 0) first_heard_ns_ = now_ns;
  }
  // It is no member any more. Its number may be another's from here on.
  void Ended(OwnerNumber number) {
    listed_.erase(number);
    unheard_.erase(number);
  }
  // The store lists it, and its lease has never run out.
  void Vouched(OwnerNumber number) {
    if (listed_.contains(number)) Believe();
  }
  void Believe() {
    listed_.clear();
    unheard_.clear();
  }
  // Whether it must wait for its next lease. One that the store did not list when this master
  // started holds nothing of before.
  bool Holds(OwnerNumber number, std::int64_t now_ns) {
    if (listed_.empty()) return false;
    const bool most = 2 * unheard_.size() < listed_.size();
    const std::int64_t quarters = unheard_.empty() ? 0 : most ? 1 : 3;
    if (first_heard_ns_ != 0 && now_ns >= first_heard_ns_ + quarters * lease_ns_ / 4) Believe();
    return listed_.contains(number);
  }

  template <typename Ar>
  void Carry(Ar& ar) {
    CarryAll(ar, listed_, unheard_, first_heard_ns_);
  }

 private:
  const std::int64_t lease_ns_;
  std::set<OwnerNumber> listed_;   // empty: it believes
  std::set<OwnerNumber> unheard_;  // of these
  std::int64_t first_heard_ns_ = 0;
};

}  // namespace kvcove::master
