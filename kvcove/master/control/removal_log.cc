// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/control/removal_log.h"

#include <algorithm>

namespace kvcove::master {

std::size_t RemovalLog::SizeOf(const wire::Removal& removal) {
  std::size_t bytes = 64 + removal.pattern.size();
  for (const std::string& key : removal.keys) bytes += key.size() + 16;
  return bytes;
}

std::vector<std::vector<std::string>> RemovalLog::PartsOf(std::vector<std::string> keys) const {
  std::vector<std::vector<std::string>> parts;
  std::size_t filled = limits_.part_bytes;
  for (std::string& key : keys) {
    if (filled + key.size() + 16 > limits_.part_bytes) {
      parts.emplace_back();
      filled = 0;
    }
    filled += key.size() + 16;
    parts.back().push_back(std::move(key));
  }
  return parts;
}

std::uint64_t RemovalLog::Append(wire::Removal removal, bool held_back) {
  removal.number = ++last_;
  if (held_back) held_back_.insert(last_);
  const std::size_t bytes = SizeOf(removal);
  Slot& slot = slots_[removal.slot];
  slot.last = last_;
  slot.bytes += bytes;
  slot.numbers.push_back(last_);
  bytes_ += bytes;
  appended_ += bytes;
  entries_.emplace(last_, Entry{.removal = std::move(removal), .appended = appended_});
  // The slot with the most bytes loses its oldest removal, so that one tenant's removals do not
  // raise another tenant's floor. The new removal itself stays.
  while (bytes_ > limits_.bytes && entries_.size() > 1) {
    const auto largest =
        std::ranges::max_element(slots_, {}, [](const auto& entry) { return entry.second.bytes; });
    const std::uint64_t number = largest->second.numbers.front();
    if (number == last_) break;
    largest->second.floor = number;
    Erase(entries_.find(number));
  }
  return last_;
}

void RemovalLog::Erase(std::map<std::uint64_t, Entry>::iterator at) {
  const std::size_t bytes = SizeOf(at->second.removal);
  Slot& slot = slots_.at(at->second.removal.slot);
  slot.bytes -= bytes;
  bytes_ -= bytes;
  const auto number = std::ranges::find(slot.numbers, at->first);
  slot.numbers.erase(number);
  entries_.erase(at);
}

std::uint64_t RemovalLog::LastOf(SlotId slot) const {
  const auto at = slots_.find(slot);
  return at == slots_.end() ? 0 : at->second.last;
}

std::uint64_t RemovalLog::FloorOf(SlotId slot) const {
  const auto at = slots_.find(slot);
  return at == slots_.end() ? 0 : at->second.floor;
}

void RemovalLog::Void(SlotId slot) {
  const auto at = slots_.find(slot);
  if (at == slots_.end()) return;
  while (!at->second.numbers.empty()) Erase(entries_.find(at->second.numbers.front()));
  slots_.erase(at);
}

void RemovalLog::Trim(std::uint64_t number) {
  // No owner has seen a removal that is held back, even when no member is left (AppliedByAll).
  number = std::min(number, shown());
  while (!entries_.empty() && entries_.begin()->first <= number) {
    Slot& slot = slots_.at(entries_.begin()->second.removal.slot);
    slot.floor = std::max(slot.floor, entries_.begin()->first);
    Erase(entries_.begin());
  }
}

std::size_t RemovalLog::BytesAfter(std::uint64_t number) const {
  const auto next = entries_.upper_bound(number);
  if (next == entries_.end()) return 0;
  // Includes removals in between that were discarded since, so the result is an upper bound.
  return appended_ - next->second.appended + SizeOf(next->second.removal);
}

wire::RemovalsPage RemovalLog::After(std::uint64_t after) const {
  wire::RemovalsPage page{.drop = {}, .drop_number = 0, .removals = {}, .upto = shown()};
  for (const auto& [id, slot] : slots_) {
    if (slot.floor > after) page.drop.push_back(id);
  }
  std::size_t bytes = 0;
  for (auto at = entries_.upper_bound(after); at != entries_.end() && at->first <= shown(); ++at) {
    if (bytes > 0 && bytes + SizeOf(at->second.removal) > limits_.page_bytes) {
      page.more = true;
      page.upto = at->first - 1;
      break;
    }
    bytes += SizeOf(at->second.removal);
    page.removals.push_back(at->second.removal);
  }
  return page;
}

}  // namespace kvcove::master
