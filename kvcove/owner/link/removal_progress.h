// SPDX-License-Identifier: Apache-2.0
// How far an owner has applied and proven the master's removals, and which of them are open:
// removals by pattern for which disks are still walked, or whose keys are still listed.
//
//   a key:      applied --> acknowledged by the next request
//   a pattern:  applied to memory --> open: disks are walked --(NoteEnded)--> open: its keys are
//               unlisted --(two rounds of the list lane)--> acknowledged
//
// The master knows keys by their hashes only. So this owner must unlist the keys that a pattern
// removed before it acknowledges the removal. The round under way may have taken its items before
// the removal; the next one takes the removed keys: hence two.
//
// A slot that is dropped is like a pattern that removes all of it, except that a restart must drop
// it again, by a page before `dropping_from_`.
//
// Needs LinkCore's lock. Does no I/O.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "kvcove/base/carry.h"
#include "kvcove/wire/owner_link.h"

namespace kvcove::owner {

class RemovalProgress {
 public:
  using Count = wire::RemovalsRequest::Count;

  // Returns the last removal up to which all are applied, but for those that are open.
  std::uint64_t applied() const { return applied_; }
  // Returns the last removal up to which all are proven here.
  std::uint64_t Acknowledged() const;

  // ---- the next request
  // Returns true if all that was unlisted is answered, so a request may acknowledge.
  bool MayAcknowledge(std::uint64_t rounds) const { return rounds >= acknowledge_at_round_; }
  // Returns the request, without the owner's number and epoch, with the counts since the last one.
  wire::RemovalsRequest Next();

  // ---- room for patterns
  // Returns how many removals by pattern may be begun now, where `walks` more walks may be.
  std::size_t Room(std::size_t walks) const;
  // Returns true while the next removal is a pattern and `room` is 0: a request would only be
  // answered with the same page.
  bool AwaitsRoom(std::size_t room);
  // Notes patterns that disks have proven, and forgets those whose keys are unlisted since: the
  // next request acknowledges these. `ended` may name patterns of an earlier master, which are not
  // open.
  void NoteEnded(std::span<const Count> ended, std::uint64_t rounds);

  // ---- a page
  // Returns true if the page begins with removals that are applied already.
  bool Repeats(const wire::RemovalsPage& page) const;
  // Returns true if the page's first new removal is a pattern and `room` is 0: nothing of the page
  // can be applied, and AwaitsRoom says so until there is room.
  bool Blocked(const wire::RemovalsPage& page, std::size_t room);
  // Returns true while slots are being dropped.
  bool dropping() const { return !dropping_.empty(); }
  // Returns true if the page names slots to be dropped while others still are: it waits for these,
  // as one number acknowledges all.
  bool AwaitsDrop(const wire::RemovalsPage& page) const { return dropping() && !page.drop.empty(); }
  // Notes that disks have proven the drop: the first request two rounds later acknowledges it.
  void NoteDropEnded(std::uint64_t rounds);
  struct Applied {
    std::uint64_t upto = 0;
    std::uint64_t drop_number = 0;      // wire::RemovalsPage's
    std::vector<SlotId> dropping = {};  // slots of the page for which disks are walked
    std::vector<Count> matched;
    std::vector<std::uint64_t> open;  // patterns for which disks are walked
    bool unlists = false;             // keys that the master does not know must be unlisted
  };
  void NoteApplied(const Applied& page, std::uint64_t rounds);

  // ---- masters
  // Notes a master's welcome. `removals`: the last removal that it need not send. The same master
  // continues; another one knows no open removals, and proven ones of the earlier master are
  // applied here, or their slot is hidden: so its number is a valid start.
  void Welcomed(std::uint64_t removals, bool same_master);
  // Asks again from the first open removal on: the walks end with this process's use of its disks.
  void AskOpenAgain();

  template <typename Ar>
  void Carry(Ar& ar) {
    CarryAll(ar, applied_, dropped_, matched_, acknowledge_at_round_);
  }

 private:
  void EndDrop();

  std::uint64_t applied_ = 0;
  // The removals that are open, by number: the list lane's round before which they must not be
  // acknowledged. Nothing: disks are still being walked.
  std::map<std::uint64_t, std::optional<std::uint64_t>> open_;
  bool awaits_room_ = false;
  std::uint64_t dropped_ = 0;  // RemovalsPage::drop_number
  // A drop that has not ended: its slots, its number, what was acknowledged before its page, and
  // the list lane's round before which it must not be acknowledged (nothing: disks are being
  // walked).
  std::vector<SlotId> dropping_;
  std::uint64_t dropping_number_ = 0;
  std::uint64_t dropping_from_ = 0;
  std::optional<std::uint64_t> dropping_until_;
  std::vector<Count> matched_;
  // The list lane's round before which nothing is acknowledged: the objects that a pattern removed
  // from memory must be unlisted first.
  std::uint64_t acknowledge_at_round_ = 0;
};

}  // namespace kvcove::owner
