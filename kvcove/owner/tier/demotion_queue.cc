// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/tier/demotion_queue.h"

#include <algorithm>
#include <utility>

namespace kvcove::owner {

DemotionQueue::DemotionQueue(std::uint64_t bytes, std::size_t objects, std::size_t shares)
    : objects_(objects), ring_(bytes), by_share_(shares) {}

bool DemotionQueue::Push(const std::shared_ptr<Demotion>& demotion) {
  if (queue_.size() >= objects_) return false;
  const auto at = ring_.Reserve(demotion->size_bytes);
  if (!at) return false;
  demotion->room = ring_.At(*at, demotion->size_bytes);
  demotion->end = *at + demotion->size_bytes;
  // Replaces a dropped value of the same key that the log is still writing; End recognises that one
  // by its address.
  pending_[demotion->tag] = demotion;
  if (demotion->share != disklog::kNoShare) by_share_[demotion->share] += demotion->size_bytes;
  bytes_ += demotion->size_bytes;
  queue_.push_back(demotion);
  return true;
}

Demotion* DemotionQueue::Find(std::uint64_t tag) const {
  const auto found = pending_.find(tag);
  return found == pending_.end() ? nullptr : found->second.get();
}

bool DemotionQueue::Pending(std::uint64_t tag) const {
  const Demotion* const found = Find(tag);
  return found != nullptr && !found->dropped;
}

std::optional<std::span<const std::byte>> DemotionQueue::Queued(const Demotion& demotion) const {
  // Acquire: pairs with Fill, so the reader sees all bytes.
  const bool there = demotion.filled.load(std::memory_order_acquire);
  if (!there || demotion.taken || demotion.dropped) return std::nullopt;
  return demotion.room;
}

std::vector<std::shared_ptr<const Demotion>> DemotionQueue::PendingOf(
    std::optional<SlotId> slot) const {
  std::vector<std::shared_ptr<const Demotion>> found;
  for (const auto& [tag, demotion] : pending_) {
    if (!demotion->dropped && (!slot || demotion->slot == *slot)) found.push_back(demotion);
  }
  return found;
}

void DemotionQueue::EachPending(const std::function<void(const Demotion&)>& look) const {
  for (const auto& [tag, demotion] : pending_) look(*demotion);
}

// Subtracts the value from its share, at most once: Drop and End may both call this.
void DemotionQueue::Uncount(Demotion& demotion) {
  const disklog::ShareNumber share = std::exchange(demotion.share, disklog::kNoShare);
  if (share != disklog::kNoShare) by_share_[share] -= demotion.size_bytes;
}

bool DemotionQueue::Drop(Demotion& demotion) {
  if (std::exchange(demotion.dropped, true)) return false;
  Uncount(demotion);
  return true;
}

void DemotionQueue::EachQueued(const std::function<void(Demotion&)>& look) const {
  for (const auto& demotion : queue_) {
    if (!demotion->dropped) look(*demotion);
  }
}

// Releases the memory of a dropped value even before it is filled: the thread that fills it holds
// the owner's lock, without which no thread reserves that memory again.
std::shared_ptr<Demotion> DemotionQueue::First(std::vector<std::shared_ptr<Demotion>>& dropped) {
  while (!queue_.empty() && queue_.front()->dropped) {
    dropped.push_back(std::move(queue_.front()));
    queue_.pop_front();
    ring_.Release(dropped.back()->end);
  }
  // Acquire: pairs with Fill. The log reads the bytes of the value that this returns.
  if (queue_.empty() || !queue_.front()->filled.load(std::memory_order_acquire)) return nullptr;
  return queue_.front();
}

bool DemotionQueue::Take(Demotion& demotion, bool copied) {
  if (queue_.empty() || queue_.front().get() != &demotion) return false;
  ring_.Release(demotion.end);
  demotion.taken = copied;
  queue_.pop_front();  // the caller has another reference
  return true;
}

bool DemotionQueue::End(Demotion& demotion, std::uint64_t era) {
  // Clear has reset the counts of values of an earlier era.
  if (demotion.era == era) ended_bytes_ += demotion.size_bytes;
  const auto known = pending_.find(demotion.tag);
  if (known == pending_.end() || known->second.get() != &demotion) return false;
  pending_.erase(known);  // the caller has another reference
  Uncount(demotion);
  return true;
}

std::size_t DemotionQueue::Clear() {
  const std::size_t pending = pending_.size();
  // The holder has failed these loads. The end of an old write must not queue them again.
  for (const auto& [tag, demotion] : pending_) demotion->awaited.clear();
  pending_.clear();
  queue_.clear();
  bytes_ = ended_bytes_ = 0;
  std::ranges::fill(by_share_, 0);
  return pending;
}

void DemotionQueue::ForgetEnded() { bytes_ -= std::exchange(ended_bytes_, 0); }

}  // namespace kvcove::owner
