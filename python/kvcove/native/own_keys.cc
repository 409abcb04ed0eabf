// SPDX-License-Identifier: Apache-2.0
#include "own_keys.h"

#include <utility>

#include "kvcove/base/hash.h"

namespace kvcove::python {
namespace {

constexpr std::size_t kFirstPlaces = 1024;

// 0 is an empty place.
std::uint64_t HashOf(std::string_view key) {
  const std::uint64_t hash = Hash64(key, 0);
  return hash == 0 ? 1 : hash;
}

}  // namespace

void OwnKeys::Add(std::string_view key) {
  const std::uint64_t hash = HashOf(key);
  const MutexLock lock(mutex_);
  if (sets_[0].Has(hash)) return;
  if (sets_[0].size() >= at_least_) sets_[1] = std::exchange(sets_[0], {});
  sets_[0].Add(hash);
}

bool OwnKeys::Has(std::string_view key) const {
  const std::uint64_t hash = HashOf(key);
  const MutexLock lock(mutex_);
  return sets_[0].Has(hash) || sets_[1].Has(hash);
}

bool OwnKeys::Hashes::Has(std::uint64_t hash) const {
  if (places_.empty()) return false;
  for (std::size_t at = hash & (places_.size() - 1); places_[at] != 0;
       at = (at + 1) & (places_.size() - 1)) {
    if (places_[at] == hash) return true;
  }
  return false;
}

void OwnKeys::Hashes::Add(std::uint64_t hash) {
  if ((size_ + 1) * 2 > places_.size()) {
    const std::size_t room = places_.empty() ? kFirstPlaces : places_.size() * 2;
    for (const std::uint64_t one : std::exchange(places_, std::vector<std::uint64_t>(room))) {
      if (one != 0) Place(one);
    }
  }
  Place(hash);
  ++size_;
}

void OwnKeys::Hashes::Place(std::uint64_t hash) {
  std::size_t at = hash & (places_.size() - 1);
  while (places_[at] != 0) at = (at + 1) & (places_.size() - 1);
  places_[at] = hash;
}

}  // namespace kvcove::python
