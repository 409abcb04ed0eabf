// SPDX-License-Identifier: Apache-2.0
#include "kvcove/policy/ghost.h"

#include "kvcove/base/random.h"

namespace kvcove::policy {
namespace {

constexpr std::size_t kFirstHeads = 1024;

}  // namespace

Ghost::Ghost() : heads_(kFirstHeads, kNoObject) {}

std::uint32_t& Ghost::HeadOf(std::uint32_t key) { return heads_[Mix64(key) & (heads_.size() - 1)]; }

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
  if (size_ == heads_.size()) Grow();
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

void Ghost::Grow() {
  heads_.assign(heads_.size() * 2, kNoObject);
  for (std::uint32_t at = 0; at < reached_; ++at) {  // none is free when it grows
    std::uint32_t& head = HeadOf(entries_[at].key);
    entries_[at].chained = head;
    head = at;
  }
}

}  // namespace kvcove::policy
