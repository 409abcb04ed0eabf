// SPDX-License-Identifier: Apache-2.0
// Who the owners are and how long each may be trusted, as a plain state machine over the master's
// clock. Needs a lock.
//
// An owner:  hello -> (inventory listed) -> lease granted, renewed ... -> lease run out or goodbye
// Each hello gives it another epoch, and entries of the directory count only under the current one.
// An owner is present from its hello on, for as long as a lease after each renewal, granted or not.
// Then its entries block no other value any more, so it must say hello again before it is trusted.
// A lease that was granted is waited for by every reset, whatever became of its owner: somebody may
// still map its memory.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kvcove/wire/cluster.h"

namespace kvcove::master {

using wire::OwnerNumber;

class Membership {
 public:
  // `first_epoch`: random, so that no epoch of another life of the master is one of this.
  Membership(std::int64_t lease_ns, std::uint32_t first_epoch)
      : lease_ns_(lease_ns), next_epoch_(first_epoch | 1) {}

  // Errors: kLimit, kInvalid.
  Result<wire::OwnerWelcome> Hello(const wire::OwnerHello& hello, std::int64_t now_ns);
  // True: the lease runs from now. False: it is behind, or has not listed what it holds. The first
  // lease needs all of `version`: removals may have been proven without it. One that holds its
  // lease is waited for by each removal, so it may still be at one: it needs the slots only.
  // Errors: kStale when it must say hello again: it is not known, or was not present any more.
  Result<bool> Renew(const wire::RenewRequest& request, std::uint64_t version,
                     std::uint64_t slots_version, std::int64_t now_ns);
  void Acknowledge(OwnerNumber number, std::uint32_t epoch, std::uint64_t version);
  // No lease of it is running any more.
  void Goodbye(OwnerNumber number, std::uint32_t epoch);

  // Its entries count, and it is to be asked.
  bool Live(OwnerNumber number, std::int64_t now_ns) const;
  bool Current(OwnerNumber number, std::uint32_t epoch) const;
  // What the directory asks about the owner of that number.
  struct Standing {
    std::uint32_t epoch = 0;        // 0: nobody has this number
    std::uint32_t first_epoch = 0;  // of the same process
    std::uint32_t told_epoch = 0;   // the last one in which all of its inventory was told
    std::int64_t present_until_ns = 0;
    // It may still list what it listed under this epoch.
    bool MayListAgain(std::uint32_t listed_under) const {
      // Epochs wrap, so they are compared by their distance.
      const std::uint32_t age = listed_under - first_epoch;
      return epoch != 0 && age <= epoch - first_epoch &&
             (told_epoch == 0 || age >= told_epoch - first_epoch);
    }
  };
  Standing StandingOf(OwnerNumber number) const;
  // Others may have found it absent: it says hello again.
  void Lapse(OwnerNumber number);

  // A drained owner takes nothing new; it stays so until it is told otherwise or forgotten.
  // Errors: kInvalid for an owner that is not known.
  Status SetDraining(OwnerNumber number, bool draining);
  bool Draining(OwnerNumber number) const;

  // Nothing when each owner has acknowledged `version` or holds no lease; else when the last of
  // those leases ends.
  std::optional<std::int64_t> AwaitedUntil(std::uint64_t version, std::int64_t now_ns) const;
  // Some owner that may come back has not acknowledged `version`.
  bool Missed(std::uint64_t version) const;
  // A start listens for a while before it says that something is nowhere.
  bool Warming(std::int64_t now_ns) const;

  std::vector<wire::OwnerStat> Stat(std::int64_t now_ns) const;

 private:
  struct Member {
    wire::OwnerHello hello;
    std::uint32_t epoch = 0;
    std::uint32_t first_epoch = 0;
    std::uint32_t told_epoch = 0;
    bool known = false;  // false: this number is free
    bool ready = false;  // its inventory is listed
    bool draining = false;
    std::int64_t lease_until_ns = 0;
    std::int64_t present_until_ns = 0;
    std::int64_t heard_ns = 0;
    std::uint64_t acknowledged = 0;
    wire::RenewRequest last;
  };
  // A lease of the owner's, as this clock counts it: 1 % more, for their drift.
  std::int64_t LeaseFrom(std::int64_t now_ns) const { return now_ns + lease_ns_ / 100 * 101; }
  std::optional<OwnerNumber> NumberFor(const Id128& owner, std::int64_t now_ns);

  const std::int64_t lease_ns_;
  std::uint32_t next_epoch_;
  std::vector<Member> members_;
  bool forgotten_ = false;  // an owner without goodbye gave up its number
};

}  // namespace kvcove::master
