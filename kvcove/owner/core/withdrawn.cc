// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/core/withdrawn.h"

#include <algorithm>

namespace kvcove::owner {

void Withdrawn::Add(Place place, std::uint32_t size_bytes) {
  fresh_.push_back({.place = place, .size_bytes = size_bytes});
  bytes_ += granule_.Occupied(size_bytes);
  steps_.scratch_bytes = std::max<std::uint64_t>(
      steps_.scratch_bytes, (fresh_.capacity() * sizeof(Object)) +
                                ((free_.capacity() + protected_.capacity()) * sizeof(Place)));
}

bool Withdrawn::Return(Place place) {
  const auto at = lent_.find(place);
  if (at == lent_.end() || --at->second > 0) return false;
  lent_.erase(at);
  const auto waits = waiting_.find(place);
  if (waits == waiting_.end()) return false;
  fresh_.push_back({.place = place, .size_bytes = waits->second});
  waiting_.erase(waits);
  return true;
}

// Pairs with ReadWindow::Fence, between a reader's Announce and Confirm: one of the two fences
// comes first. So either this scan sees the reader's slot, or Confirm sees that the version has
// changed. Each object must be withdrawn before the scan that frees it.
void Withdrawn::Scan() {
  segment::FullFence();
  protected_.clear();
  for (const auto& [session, page] : pages_) {
    ++steps_.pages;
    segment::CollectProtected(*page.page, protected_);
  }
  std::ranges::sort(protected_);
}

bool Withdrawn::Protected(Place place) const {
  return std::ranges::binary_search(protected_, place) || lent_.contains(place);
}

void Withdrawn::Free(const Object& object) {
  bytes_ -= granule_.Occupied(object.size_bytes);
  free_.push_back(object.place);
}

const std::vector<Place>& Withdrawn::Settle() {
  free_.clear();
  if (fresh_.empty()) return free_;
  Scan();
  for (const Object& object : fresh_) {
    ++steps_.withdrawn;
    if (Protected(object.place)) {
      waiting_.emplace(object.place, object.size_bytes);
    } else {
      Free(object);
    }
  }
  fresh_.clear();
  return free_;
}

const std::vector<Place>& Withdrawn::Recheck() {
  free_.clear();
  if (waiting_.empty()) return free_;
  Scan();
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    ++steps_.withdrawn;
    if (Protected(at->first)) {
      ++at;
      continue;
    }
    Free({.place = at->first, .size_bytes = at->second});
    at = waiting_.erase(at);
  }
  // Page by page again, because ExcessBytes needs to know which session keeps an object.
  for (auto& [session, page] : pages_) {
    protected_.clear();
    segment::CollectProtected(*page.page, protected_);
    std::ranges::sort(protected_);
    const auto repeated = std::ranges::unique(protected_);
    protected_.erase(repeated.begin(), repeated.end());
    page.kept_bytes = 0;
    for (const Place place : protected_) {
      const auto waits = waiting_.find(place);
      if (waits != waiting_.end()) page.kept_bytes += waits->second;
    }
  }
  return free_;
}

std::uint64_t Withdrawn::ExcessBytes(SessionNumber session) const {
  const auto at = pages_.find(session);
  if (at == pages_.end() || at->second.kept_bytes <= bound_bytes_) return 0;
  return at->second.kept_bytes - bound_bytes_;
}

}  // namespace kvcove::owner
