// SPDX-License-Identifier: Apache-2.0
#include "kvcove/policy/ghost.h"

#include <utility>

#include "kvcove/base/random.h"

namespace kvcove::policy {
namespace {

constexpr std::size_t kFirstHeads = 512;

}  // namespace

Ghost::Ghost() : level_(kFirstHeads) {
  for (std::size_t head = 0; head < level_; ++head) heads_.Reach(head);
}

std::size_t Ghost::HeadNumber(std::uint32_t key) const {
  const std::uint64_t hash = Mix64(key);
  const std::size_t head = hash & (level_ - 1);
  return head < split_ ? hash & (2 * level_ - 1) : head;
}

std::uint32_t Ghost::PlaceOf(std::uint32_t key) {
  std::uint32_t at = HeadOf(key);
  while (at != kNoObject && entries_[at].key != key) at = entries_[at].chained;
  return at;
}

Ghost::Entry* Ghost::Find(std::uint32_t key) {
  const std::uint32_t at = PlaceOf(key);
  return at == kNoObject ? nullptr : &entries_[at];
}

Ghost::Entry& Ghost::Add(std::uint32_t key) {
  std::uint32_t at = PlaceOf(key);
  if (at != kNoObject) {
    order_.MoveToBack(entries_, at);
    return entries_[at];
  }
  if (size_ >= level_ + split_) Split();
  at = free_;
  if (at == kNoObject) {
    at = reached_++;
    entries_.Reach(at);
  } else {
    free_ = entries_[at].chained;
  }
  std::uint32_t& head = HeadOf(key);
  entries_[at] = {.key = key, .chained = head};
  head = at;
  ++size_;
  order_.PushBack(entries_, at);
  return entries_[at];
}

std::optional<Ghost::Entry> Ghost::TakeOldest(std::size_t keep) {
  if (size_ <= keep) return std::nullopt;
  const std::uint32_t at = order_.front();
  const Entry entry = entries_[at];
  std::uint32_t* chained = &HeadOf(entry.key);
  while (*chained != at) chained = &entries_[*chained].chained;
  *chained = entry.chained;
  order_.Erase(entries_, at);
  entries_[at].chained = free_;
  free_ = at;
  --size_;
  return entry;
}

// One head more: the keys of head `split_` go to it and to the new one.
void Ghost::Split() {
  std::uint32_t at = std::exchange(heads_[split_].first, kNoObject);
  heads_.Reach(level_ + split_);
  if (++split_ == level_) {
    level_ *= 2;
    split_ = 0;
  }
  while (at != kNoObject) {
    std::uint32_t& head = HeadOf(entries_[at].key);
    at = std::exchange(entries_[at].chained, std::exchange(head, at));
  }
}

}  // namespace kvcove::policy
