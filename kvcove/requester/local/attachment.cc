// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/local/attachment.h"

#include <algorithm>
#include <cstring>

namespace kvcove::requester {

void Attachment::PushEvents(const std::vector<segment::Event>& events) {
  if (events.empty()) return;
  // The ring allows one writer at a time, and the threads of this process share it.
  const MutexLock lock(ring_mutex_);
  for (const segment::Event& event : events) segment::PushEvent(*page_, event);
}

void Attachment::Abandon(std::uint64_t reservation) {
  const MutexLock lock(abandoned_mutex_);
  abandoned_.push_back({.reservation = reservation, .commit = false});
}

void Attachment::FlushAbandoned(std::int64_t deadline_ns) {
  // No call is made under the lock. A repeated report has no effect, so a lost answer does not
  // matter.
  std::vector<wire::FinishItem> items;
  {
    const MutexLock lock(abandoned_mutex_);
    items.swap(abandoned_);
  }
  if (items.empty() || service().Finish(items, deadline_ns)) return;
  const MutexLock lock(abandoned_mutex_);
  abandoned_.insert(abandoned_.end(), items.begin(), items.end());
}

void OwnerTie::AddSession(const std::string& name, const std::string& engine) {
  const MutexLock lock(sessions_mutex_);
  ++sessions_[{name, engine}];
}

// ---- staging

segment::Staging* Attachment::TakeStaging() {
  if (staging_ == nullptr || staging_taken_.exchange(true, std::memory_order_acquire)) {
    return nullptr;
  }
  return staging_;
}

StagedValues::StagedValues(Attachment& attachment)
    : attachment_(attachment), staging_(attachment.TakeStaging()) {
  if (staging_ == nullptr) return;
  // The writing side of a sequence lock: the fence orders the new number before the new bytes. An
  // owner that still copies values of an earlier put, and gets some of these bytes, reads the
  // number after its copy and discards the value (segment::Staging).
  sequence_ = staging_->sequence.load(std::memory_order_relaxed) + 1;
  staging_->sequence.store(sequence_, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
}

StagedValues::~StagedValues() {
  if (staging_ != nullptr) attachment_.GiveStagingBack();
}

wire::StagedAt StagedValues::Add(std::span<const ConstBuffer> pieces, std::uint64_t bytes) {
  if (staging_ == nullptr || bytes > segment::Staging::kBytes - used_) return {};
  const std::uint64_t offset = used_;
  std::byte* to = staging_->bytes + offset;
  for (const ConstBuffer& piece : pieces) {
    std::memcpy(to, piece.data, piece.size);
    to += piece.size;
  }
  used_ = std::min(segment::Staging::kBytes, (used_ + bytes + 63) / 64 * 64);
  return {.sequence = sequence_, .offset = static_cast<std::uint32_t>(offset)};
}

bool OwnerTie::DropSession(const std::string& name, const std::string& engine) {
  const MutexLock lock(sessions_mutex_);
  const auto at = sessions_.find({name, engine});
  if (--at->second > 0) return false;
  sessions_.erase(at);
  return true;
}

}  // namespace kvcove::requester
