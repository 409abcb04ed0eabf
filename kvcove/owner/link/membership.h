// SPDX-License-Identifier: Apache-2.0
// An owner's membership: the pool and the master that it follows, the number and the epoch that the
// master has given to it, the hello that is due, and the lease.
//
//   hello due --Hello, Welcomed--> member --SayHelloAgain, EndEpoch--> hello due
//   hello due --Hello, Forgotten--> hello due, under another identity
//
// The lease's lane says hello, and changes may arrive on another lane meanwhile. So a hello's
// answer is judged by what that hello showed, not by what is known when the answer arrives.
//
// Needs LinkCore's lock. Does no I/O.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "kvcove/base/carry.h"
#include "kvcove/owner/disk/owner_facts.h"
#include "kvcove/wire/owner_link.h"

namespace kvcove::owner {

struct LinkIdentity {
  Id128 owner;    // names the memory; changes when the master has forgotten it
  Id128 process;  // names this process
  std::string address;
  std::string socket;
  std::string host;
  std::string tenant;
  bool disk = false;  // the identity outlives the process
  // The facts on its disk; unset if it has none, or has followed no master yet.
  std::optional<OwnerFacts> before;
};

// Says when a later position is to be kept on the disk: at most once a second.
class PositionPace {
 public:
  // Returns true if `revision` is to be kept now.
  bool Take(std::uint64_t revision, std::int64_t now_ns);

 private:
  std::uint64_t kept_ = 0;
  std::int64_t next_ns_ = 0;
};

class Membership {
 public:
  explicit Membership(const std::optional<OwnerFacts>& before);

  // ---- the master's facts
  std::uint32_t epoch() const { return epoch_; }  // 0: not welcomed yet
  wire::OwnerNumber number() const { return number_; }
  const Id128& incarnation() const { return incarnation_; }
  const wire::Position& seen() const { return seen_; }
  // Returns what is kept on the disk of the owner with this identity; without its openings.
  OwnerFacts Facts(const Id128& identity) const;
  // Notes a revision that a master has shown. The next hello shows it, so that a master that lacks
  // it notices that it lost facts.
  void See(std::uint64_t revision) { seen_.revision = std::max(seen_.revision, revision); }

  // ---- hello
  // Returns true until a master has answered the hello that is due.
  bool Unwelcome() const { return epoch_ == 0 || hello_due_; }
  void SayHelloAgain(bool new_epoch);
  void NamePredecessor(const Id128& predecessor);
  // Returns the named identity until a master has answered a hello with it. Zero: none.
  const Id128& predecessor() const { return predecessor_; }
  // Returns the hello, without the owner's capacity and openings.
  wire::OwnerHello Hello(const LinkIdentity& identity);
  // Notes that a master has answered the last hello, and so knows its predecessor.
  void Answered();
  // Returns true if the last hello showed all that is known now.
  bool ShowedAll() const { return seen_ == sent_seen_; }
  // Returns true if the master that welcomes this owner is the one that welcomed it last.
  bool Follows(const wire::OwnerWelcome& welcome) const;
  void Welcomed(const wire::OwnerWelcome& welcome);
  // Ends the membership: the owner joins under another identity, as one that has seen nothing.
  void Forgotten(const wire::OwnerWelcome& welcome);
  // Ends the epoch without a master's answer; a hello is due.
  void EndEpoch();

  // ---- the lease's lane
  // Returns the pause before the next call, once.
  std::int64_t TakeWait() { return std::exchange(wait_ns_, 0); }
  void Wait(std::int64_t duration_ns) { wait_ns_ = duration_ns; }
  // Begins a call. Returns true if it must be a hello.
  bool BeginCall(std::int64_t now_ns);
  bool saying_hello() const { return saying_hello_; }
  std::int64_t sent_ns() const { return sent_ns_; }
  void SetLease(std::int64_t deadline_ns) { leased_until_ns_ = deadline_ns; }
  // Returns true if the last lease was running when the call began.
  bool Leased() const { return leased_until_ns_ > sent_ns_; }

  template <typename Ar>
  void Carry(Ar& ar) {
    CarryAll(ar, fresh_, pool_, incarnation_, seen_, number_, epoch_);
  }

 private:
  bool fresh_ = true;  // the identity was never admitted
  Id128 pool_;
  Id128 incarnation_;
  wire::Position seen_;
  wire::OwnerNumber number_ = wire::kNoOwner;
  std::uint32_t epoch_ = 0;

  bool hello_due_ = true;
  bool new_epoch_wanted_ = false;
  bool saying_hello_ = false;  // the call under way is a hello
  Id128 predecessor_;
  // In the last hello:
  Id128 sent_predecessor_;
  wire::Position sent_seen_;

  std::int64_t wait_ns_ = 0;
  std::int64_t sent_ns_ = 0;
  std::int64_t leased_until_ns_ = 0;
};

}  // namespace kvcove::owner
