// SPDX-License-Identifier: Apache-2.0
// The removals lane.
#include <algorithm>

#include "kvcove/owner/link/link_core.h"

namespace kvcove::owner {

LinkCore::Step LinkCore::NextRemovals() {
  NoteEndedPatterns();
  if (AwaitsRoom()) return {.wait_ns = kLanePauseNs};
  const std::size_t lane = Index(Lane::kRemovals);
  const MutexLock lock(mutex_);
  if (member_.Unwelcome() || std::exchange(pause_[lane], false)) return {.wait_ns = kLanePauseNs};
  // The call acknowledges all removals up to `after`.
  if (!removals_.MayAcknowledge(rounds_.ended())) {
    asked_under_[lane] = 0;
    return {.wait_ns = kLanePauseNs / 10};
  }
  asked_under_[lane] = member_.epoch();
  wire::RemovalsRequest request = removals_.Next();
  request.number = member_.number();
  request.epoch = member_.epoch();
  return {.call = Call{.method = wire::Method::kRemovals,
                       .body = wire::Encode(request),
                       .timeout_ns = kWatchNs}};
}

// Also takes patterns of an earlier master, which are not open any more: from then on TakeGone has
// their keys, which must be unlisted, too.
void LinkCore::NoteEndedPatterns() {
  const auto ended = target_.TakeEndedPatterns();
  const bool dropped = target_.DropEnded();
  const MutexLock lock(mutex_);
  if (dropped) removals_.NoteDropEnded(rounds_.ended());
  removals_.NoteEnded(ended, rounds_.ended());
}

std::size_t LinkCore::PatternRoom() {
  const std::size_t room = target_.PatternRoom();
  const MutexLock lock(mutex_);
  return removals_.Room(room);
}

bool LinkCore::AwaitsRoom() {
  const std::size_t room = PatternRoom();
  const MutexLock lock(mutex_);
  return removals_.AwaitsRoom(room);
}

// A page ends before the first pattern for which there is no room. If that one were applied within
// the lane, each such pattern would wait for a walk of its own, and all removals behind it with it:
// an owner that returns to thousands of them would prove nothing for as many walks, while its lease
// runs. So one walk serves all for which there was room.
void LinkCore::ApplyRemovals(const wire::RemovalsPage& page) {
  const std::size_t room = PatternRoom();
  std::uint64_t applied = 0;
  {
    const MutexLock lock(mutex_);
    // Another master may have welcomed this owner since: its log may begin with keys, which need no
    // room.
    if (asked_under_[Index(Lane::kRemovals)] != member_.epoch()) return;
    applied = removals_.applied();
    // A master of an earlier version sends all again that is behind an open removal, at once.
    const bool waits = removals_.AwaitsDrop(page);
    pause_[Index(Lane::kRemovals)] = removals_.Repeats(page) || waits;
    // Drops nothing either: the page comes again, and each drop walks over the disks.
    if (removals_.Blocked(page, room) || waits) return;
  }
  RemovalProgress::Applied effects{.upto = page.upto, .drop_number = page.drop_number};
  if (!page.drop.empty()) {
    if (!page.takes_dropping) {
      target_.DropSlots(page.drop);
    } else if (target_.BeginDrop(page.drop)) {
      effects.dropping = page.drop;
    }
    effects.unlists = effects.dropping.empty();
  }
  for (const wire::Removal& removal : page.removals) {
    if (removal.number <= applied) continue;
    if (!removal.pattern.empty() && effects.open.size() >= room) {
      effects.upto = removal.number - 1;
      break;
    }
    if (!removal.keys.empty()) target_.ApplyKeys(removal);
    if (removal.pattern.empty()) continue;
    const LinkTarget::BegunPattern begun = target_.BeginPattern(removal);
    effects.matched.push_back({.number = removal.number, .objects = begun.objects});
    if (begun.open) effects.open.push_back(removal.number);
    effects.unlists = effects.unlists || !begun.open;
  }
  // If not, nothing is noted as applied, so this process or a successor's asks for the page again.
  if (!target_.AwaitApplied()) return;
  // Excludes Welcomed, which sets the start of another master's numbers: an old page's number must
  // not be stored over it.
  const MutexLock apply_lock(apply_mutex_);
  {
    const MutexLock lock(mutex_);
    if (asked_under_[Index(Lane::kRemovals)] != member_.epoch()) return;
  }
  target_.SetApplied(std::max(applied, effects.upto));
  const MutexLock lock(mutex_);
  removals_.NoteApplied(effects, rounds_.ended());
}

}  // namespace kvcove::owner
