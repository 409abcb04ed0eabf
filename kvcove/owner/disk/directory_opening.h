// SPDX-License-Identifier: Apache-2.0
// The openings of an owner's data directory: numbers by which the master knows the directory, with
// its disks, from a copy that was put back. Each process draws one, and its clean end another one.
// A process also draws one each `again_ns` in which the disks or their note have changed: if it is
// killed, a copy that is older than that is noticed all the same.
//
//   draw: the directory has {new, stored} --> renewals name it --> the master has stored it
//
// Each crash leaves a directory that names the number of the master (master/control/members.h). The
// disks wait for the last step, and no number is drawn before it: the directory would have to name
// three.
//
// A master of an earlier version stores no openings. The directory then keeps the ones that it has,
// which a later master may have stored.
//
// A plain state machine; needs a lock.
#pragma once

#include <cstdint>
#include <optional>

#include "kvcove/base/clock.h"
#include "kvcove/base/random.h"
#include "kvcove/owner/disk/owner_facts.h"

namespace kvcove::owner {

class DirectoryOpening {
 public:
  // `await_ns`: how long the disks wait for the master, at most.
  explicit DirectoryOpening(std::int64_t again_ns = 600 * kSecond,
                            std::int64_t await_ns = 5 * kSecond)
      : again_ns_(again_ns), await_ns_(await_ns) {}

  // ---- the process begins
  // Takes the directory's openings at the start of a process, which draws its own.
  void Read(const OwnerFacts& facts);
  // Takes over those of the process before this one, after an upgrade.
  void Adopt(const OwnerFacts& facts);
  // Returns what a hello names.
  struct Named {
    Id128 now;
    Id128 before;
  };
  Named named() const { return {.now = now_, .before = before_}; }
  // Sets the openings of facts that are to be written.
  void Set(OwnerFacts& facts) const;

  // ---- the master
  // Follows a welcome: `stored` is the number that the master has, zero if it has none; nothing: it
  // stores none. Returns true if the directory must have other openings: the caller has them
  // written.
  bool Welcomed(const std::optional<Id128>& stored, std::int64_t now_ns);
  // Notes the number that the master has stored.
  void Stored(const Id128& opening) { stored_ = opening; }
  // Returns true if the disks must wait: the master has not stored this process's number. They wait
  // for a bounded time, because the control store or the file system may hang.
  bool awaits(std::int64_t now_ns) const {
    return kept_ && (!drawn_ || (stored_ != now_ && now_ns - drawn_ns_ < await_ns_));
  }
  // Returns true if renewals should hurry, because the disks wait for their answers.
  bool hurries(std::int64_t now_ns) const { return awaits(now_ns) && now_ns - drawn_ns_ < kSecond; }
  // The owner has another identity, of which the master has stored nothing.
  void Forget();

  // ---- the directory
  // Notes that the directory has these facts, durably.
  void Written(const OwnerFacts& facts) { written_ = written_ || facts.opening == now_; }
  // Returns the number that renewals name; zero: none yet. The master must not store one that the
  // directory does not have: the next process could not name it, and would be forgotten.
  Id128 Told() const { return drawn_ && written_ ? now_ : Id128{}; }

  // ---- later numbers
  // Draws another number if it is time. The caller asks if the disks or their note have changed,
  // even if no removal was applied: the owner may have dropped a slot, or stored another value of a
  // key that a copy has. False: not now.
  bool DrawAgain(std::int64_t now_ns);
  // Draws the number of the clean end. False: the master has not stored the present one.
  bool DrawLast();

 private:
  void Draw();

  const std::int64_t again_ns_;
  const std::int64_t await_ns_;
  Id128 now_;
  Id128 before_;          // which the master may have instead; zero: none
  Id128 stored_;          // by the master, as it has said last
  bool kept_ = false;     // the present master stores openings
  bool drawn_ = false;    // `now_` is of this process
  bool written_ = false;  // the directory has `now_`
  std::int64_t drawn_ns_ = 0;
};

}  // namespace kvcove::owner
