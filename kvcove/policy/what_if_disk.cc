// SPDX-License-Identifier: Apache-2.0
#include "kvcove/policy/what_if_disk.h"

#include <algorithm>

namespace kvcove::policy {

bool WhatIfDisk::Has(const Written& object, std::size_t size) const {
  if (object.at[size] == kNever) return false;
  const double capacity = kWhatIfSizes[size].times * static_cast<double>(options_.capacity_bytes) /
                          static_cast<double>(1U << shift_);
  return static_cast<double>(written_[size] - object.at[size]) <= capacity;
}

void WhatIfDisk::Ask(const Access& access) {
  const std::uint64_t stands_for = std::uint64_t{1} << shift_;
  tally_.sampled += stands_for;
  const auto object = objects_.find(access.key);
  for (std::size_t size = 0; size < kWhatIfSizes.size(); ++size) {
    const bool hit = access.kind == Access::Kind::kRead ||
                     (object != objects_.end() && Has(object->second, size));
    if (hit) tally_.hits[size] += stands_for;
  }
}

void WhatIfDisk::Write(const Access& access) {
  if (objects_.size() >= sweep_at_) Sweep();
  if (!WhatIf::Sampled(access.key, shift_)) return;
  auto [object, added] = objects_.try_emplace(access.key);
  if (added) object->second.at.fill(kNever);
  object->second.slot = access.slot;
  for (std::size_t size = 0; size < kWhatIfSizes.size(); ++size) {
    // What is on the disk already is not written again.
    if (Has(object->second, size)) continue;
    written_[size] += access.bytes;
    object->second.at[size] = written_[size];
  }
}

// Drops what no size has any more; every second key, too, while that does not free a quarter. A
// disk that is too large for the thinnest sample has more objects than `most_sampled`: the next
// sweep waits for a third more, or each write would look at all of them.
void WhatIfDisk::Sweep() {
  swept_ += objects_.size();
  std::erase_if(objects_, [this](const auto& object) {
    for (std::size_t size = 0; size < kWhatIfSizes.size(); ++size) {
      if (Has(object.second, size)) return false;
    }
    return true;
  });
  while (objects_.size() > options_.most_sampled / 4 * 3 && shift_ < WhatIf::kMostShift) {
    SetShift(shift_ + 1);
  }
  sweep_at_ = std::max(options_.most_sampled, objects_.size() / 3 * 4);
}

void WhatIfDisk::SetShift(unsigned shift) {
  // Positions are in bytes of the sample, of which there are fewer from now on.
  const unsigned by = shift - shift_;
  shift_ = shift;
  for (std::uint64_t& bytes : written_) bytes >>= by;
  std::erase_if(objects_,
                [this](const auto& object) { return !WhatIf::Sampled(object.first, shift_); });
  for (auto& [key, object] : objects_) {
    for (std::uint64_t& at : object.at) at = at == kNever ? kNever : at >> by;
  }
}

void WhatIfDisk::Apply(std::span<const Access> accesses, std::uint64_t asked,
                       unsigned least_shift) {
  tally_.asked += asked;
  if (shift_ < least_shift) SetShift(least_shift);
  while (!accesses.empty()) {
    if (const std::vector<std::uint16_t> slots = TakeVoided(accesses); !slots.empty()) {
      std::erase_if(objects_, [&](const auto& object) {
        return std::ranges::binary_search(slots, object.second.slot);
      });
      continue;
    }
    const Access& access = accesses.front();
    accesses = accesses.subspan(1);
    if (!WhatIf::Sampled(access.key, shift_)) continue;
    if (access.asked()) Ask(access);
    if (access.kind == Access::Kind::kWentDown) Write(access);
    if (access.kind == Access::Kind::kRemoved) objects_.erase(access.key);
  }
}

WhatIfCounts WhatIfDisk::Read() { return tally_.Read(); }

}  // namespace kvcove::policy
