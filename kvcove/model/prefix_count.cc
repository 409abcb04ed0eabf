// SPDX-License-Identifier: Apache-2.0
#include "kvcove/model/prefix_count.h"

#include <algorithm>
#include <tuple>

namespace kvcove {

PrefixShare& PrefixCount::ShareOf(std::uint16_t owner) {
  if (owner >= place_.size()) place_.resize(owner + std::size_t{1});
  std::uint16_t& place = place_[owner];
  if (place == 0) {
    shares_.push_back({.owner = owner});
    place = static_cast<std::uint16_t>(shares_.size());
  }
  return shares_[place - 1];
}

void PrefixCount::Add(std::span<const Holder> holders) {
  for (const auto& [owner, tier] : holders) {
    PrefixShare& share = ShareOf(owner);
    const bool on_disk = tier == Tier::kDisk;
    // An owner that lacks an earlier key is behind `keys_`, and stays there.
    if (share.prefix == keys_) ++share.prefix;
    if (!on_disk && share.memory_prefix == keys_) ++share.memory_prefix;
    ++(on_disk ? share.disk : share.memory);
  }
  ++keys_;
}

PrefixShares PrefixCount::Shares() const {
  PrefixShares shares{.keys = keys_, .reason = reason_, .owners = shares_};
  const auto order = [](const PrefixShare& share) {
    return std::tuple(~share.prefix, ~share.memory_prefix, ~share.memory, share.owner);
  };
  std::ranges::sort(shares.owners, {}, order);
  return shares;
}

}  // namespace kvcove
