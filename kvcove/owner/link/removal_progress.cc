// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/link/removal_progress.h"

#include <algorithm>
#include <utility>

namespace kvcove::owner {

std::uint64_t RemovalProgress::Acknowledged() const {
  const std::uint64_t proven =
      open_.empty() ? applied_ : std::min(applied_, open_.begin()->first - 1);
  return dropping() ? std::min(proven, dropping_from_) : proven;
}

wire::RemovalsRequest RemovalProgress::Next() {
  wire::RemovalsRequest request{.after = Acknowledged(),
                                .matched = std::exchange(matched_, {}),
                                .dropped = dropped_,
                                .ahead = applied_,
                                .dropping = dropping_};
  for (const auto& [number, round] : open_) request.open.push_back(number);
  return request;
}

// ---- room for patterns

// More may be open than there are walks: each stays open until its keys are unlisted, too. There
// may also be more walks, because those of an earlier master are not open any more.
std::size_t RemovalProgress::Room(std::size_t walks) const {
  return std::min(walks, wire::kMaxOpenRemovals - std::min(wire::kMaxOpenRemovals, open_.size()));
}

// All that was applied before the pattern is acknowledged already, and the end of an open removal,
// which has to be acknowledged, makes room.
bool RemovalProgress::AwaitsRoom(std::size_t room) {
  if (room > 0) awaits_room_ = false;
  return awaits_room_;
}

void RemovalProgress::NoteEnded(std::span<const Count> ended, std::uint64_t rounds) {
  for (const Count& count : ended) {
    const auto open = open_.find(count.number);
    if (open == open_.end()) continue;
    open->second = rounds + 2;
    matched_.push_back(count);
  }
  std::erase_if(open_, [&](const auto& entry) { return entry.second && *entry.second <= rounds; });
  if (!dropping_until_ || *dropping_until_ > rounds) return;
  if (dropping_number_ != 0) dropped_ = dropping_number_;
  EndDrop();
}

void RemovalProgress::NoteDropEnded(std::uint64_t rounds) {
  if (dropping() && !dropping_until_) dropping_until_ = rounds + 2;
}

void RemovalProgress::EndDrop() {
  dropping_.clear();
  dropping_until_.reset();
}

// ---- a page

bool RemovalProgress::Repeats(const wire::RemovalsPage& page) const {
  return !page.removals.empty() && page.removals.front().number <= applied_;
}

bool RemovalProgress::Blocked(const wire::RemovalsPage& page, std::size_t room) {
  const auto next = std::ranges::upper_bound(page.removals, applied_, {}, &wire::Removal::number);
  awaits_room_ = room == 0 && next != page.removals.end() && !next->pattern.empty();
  return awaits_room_;
}

void RemovalProgress::NoteApplied(const Applied& page, std::uint64_t rounds) {
  if (!page.dropping.empty()) {
    dropping_from_ = Acknowledged();
    dropping_ = page.dropping;
    dropping_number_ = page.drop_number;
  } else if (page.drop_number != 0) {
    dropped_ = page.drop_number;
  }
  applied_ = std::max(applied_, page.upto);
  for (const std::uint64_t number : page.open) open_.emplace(number, std::nullopt);
  matched_.insert(matched_.end(), page.matched.begin(), page.matched.end());
  if (page.unlists) acknowledge_at_round_ = rounds + 2;
}

// ---- masters

void RemovalProgress::Welcomed(std::uint64_t removals, bool same_master) {
  if (same_master) {
    applied_ = std::max(applied_, removals);
    return;
  }
  applied_ = removals;
  open_.clear();
  awaits_room_ = false;
  EndDrop();
  dropped_ = 0;
  matched_.clear();
}

void RemovalProgress::AskOpenAgain() {
  applied_ = Acknowledged();
  open_.clear();
  EndDrop();
}

}  // namespace kvcove::owner
