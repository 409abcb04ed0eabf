// SPDX-License-Identifier: Apache-2.0
#include "kvcove/policy/ghost.h"

#include <utility>

#include "kvcove/base/random.h"

namespace kvcove::policy {
namespace {

constexpr std::size_t kFirstRoom = 1024;

}  // namespace

Ghost::Ghost() : table_(kFirstRoom), ring_(kFirstRoom) {}

std::size_t Ghost::HomeOf(std::uint64_t key) const { return Mix64(key) & (table_.size() - 1); }

std::size_t Ghost::PlaceOf(std::uint64_t key) const {
  std::size_t at = HomeOf(key);
  while (table_[at].key != 0 && table_[at].key != key) at = (at + 1) & (table_.size() - 1);
  return at;
}

Ghost::Entry* Ghost::Find(std::uint64_t key) {
  Entry& entry = table_[PlaceOf(key)];
  return entry.key == 0 ? nullptr : &entry;
}

Ghost::Entry& Ghost::Add(std::uint64_t key) {
  if ((size_ + 1) * 3 > table_.size() * 2) Grow();
  Entry& entry = table_[PlaceOf(key)];
  if (entry.key == 0) {
    entry = {.key = key};
    ++size_;
  }
  entry.order = next_order_++;
  if (ring_count_ == ring_.size()) {
    // Drop what is outdated; double the ring when little is.
    std::vector<std::pair<std::uint64_t, std::uint32_t>> current;
    current.reserve(ring_.size() * 2);
    for (std::size_t i = 0; i < ring_count_; ++i) {
      const auto& use = ring_[(ring_first_ + i) % ring_.size()];
      const Entry& known = table_[PlaceOf(use.first)];
      if (known.key == use.first && known.order == use.second) current.push_back(use);
    }
    ring_count_ = current.size();
    current.resize(ring_count_ * 4 > ring_.size() * 3 ? ring_.size() * 2 : ring_.size());
    ring_ = std::move(current);
    ring_first_ = 0;
  }
  ring_[(ring_first_ + ring_count_++) % ring_.size()] = {key, entry.order};
  return entry;
}

std::optional<Ghost::Entry> Ghost::TakeOldest(std::size_t keep) {
  while (size_ > keep && ring_count_ > 0) {
    const auto [key, order] = ring_[ring_first_];
    ring_first_ = (ring_first_ + 1) % ring_.size();
    --ring_count_;
    const std::size_t at = PlaceOf(key);
    if (table_[at].key != key || table_[at].order != order) continue;
    const Entry entry = table_[at];
    Erase(at);
    return entry;
  }
  return std::nullopt;
}

// Closes the gap, so that no search ends before what it looks for.
void Ghost::Erase(std::size_t hole) {
  const std::size_t mask = table_.size() - 1;
  --size_;
  for (std::size_t next = (hole + 1) & mask; table_[next].key != 0; next = (next + 1) & mask) {
    const std::size_t home = HomeOf(table_[next].key);
    if (((next - home) & mask) < ((next - hole) & mask)) continue;
    table_[hole] = table_[next];
    hole = next;
  }
  table_[hole] = {};
}

void Ghost::Grow() {
  std::vector<Entry> old(table_.size() * 2);
  old.swap(table_);
  for (const Entry& entry : old) {
    if (entry.key != 0) table_[PlaceOf(entry.key)] = entry;
  }
}

}  // namespace kvcove::policy
