// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/attachment.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace kvcove::requester {

int Attachment::AcquireLane(std::int64_t deadline_ns, const Clock& clock) {
  constexpr std::uint32_t kAll = (1U << segment::kLanes) - 1;
  const MutexLock lock(lanes_mutex_);
  while (lanes_used_ == kAll) {
    const std::int64_t left = deadline_ns - clock.NowNs();
    if (left <= 0) return -1;
    lane_free_.WaitFor(lanes_mutex_, std::chrono::nanoseconds(left));
  }
  const int lane = std::countr_one(lanes_used_);
  lanes_used_ |= 1U << lane;
  return lane;
}

void Attachment::ReleaseLane(int lane) {
  const MutexLock lock(lanes_mutex_);
  lanes_used_ &= ~(1U << lane);
  lane_free_.NotifyOne();
}

bool Attachment::AddProtected(std::uint64_t bytes) {
  const std::uint64_t before = protected_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  if (before == 0 || before + bytes <= payload_bytes() / 16) return true;
  SubProtected(bytes);
  return false;
}

void Attachment::PushEvents(const std::vector<segment::Event>& events) {
  if (events.empty()) return;
  const MutexLock lock(ring_mutex_);
  for (const segment::Event& event : events) segment::PushEvent(*page_, event);
}

void Attachment::Abandon(std::uint64_t reservation) {
  const MutexLock lock(abandoned_mutex_);
  abandoned_.push_back({.reservation = reservation, .commit = false});
}

void Attachment::FlushAbandoned(std::int64_t deadline_ns) {
  std::vector<wire::FinishItem> items;
  {
    const MutexLock lock(abandoned_mutex_);
    items.swap(abandoned_);
  }
  if (items.empty() || service().Finish(items, deadline_ns)) return;
  const MutexLock lock(abandoned_mutex_);
  abandoned_.insert(abandoned_.end(), items.begin(), items.end());
}

void Host::AddSession(const std::string& name, const std::string& engine) {
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
  // An owner that still copies what an earlier put laid here must see the number before new bytes.
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

// True for the last one.
bool Host::DropSession(const std::string& name, const std::string& engine) {
  const MutexLock lock(sessions_mutex_);
  const auto at = sessions_.find({name, engine});
  if (--at->second > 0) return false;
  sessions_.erase(at);
  return true;
}

}  // namespace kvcove::requester
