// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/tier/tier_loads.h"

#include <algorithm>

namespace kvcove::owner {

TierLoads::TierLoads(TierParts& parts) : parts_(parts) { parts_.common.loads.push_back(this); }

// ---- under the owner's lock

bool TierLoads::Add(const std::shared_ptr<LoadBatch>& batch, const Load& wanted) {
  const MutexLock lock(parts_.mutex);
  if (parts_.loads.ended()) return parts_.loads.Refuse(*batch, MissReason::kUnavailable);
  if (parts_.state.aside() || parts_.state.reporting()) {
    return parts_.loads.Refuse(*batch, MissReason::kDiskFailed);
  }
  Load load = wanted;
  load.tag = parts_.TagOf(wanted.slot, wanted.generation, wanted.key);
  load.share = parts_.ShareOf(wanted.slot);
  if (parts_.fences.Removes(load.tag)) return parts_.loads.Refuse(*batch, MissReason::kRemoved);
  if (parts_.fences.Hides(wanted.slot, wanted.key)) {
    return parts_.loads.Refuse(*batch, MissReason::kRaced);
  }
  if (!parts_.header.tier().Holds(load.tag)) {
    return parts_.loads.Refuse(*batch, MissReason::kEvicted);
  }
  return parts_.loads.Add(batch, load);
}

bool TierLoads::Wanted(const Load& load) const {
  const MutexLock lock(parts_.mutex);
  return !load.cancelled && !parts_.state.aside() && !parts_.fences.Hides(load.slot, load.key) &&
         DiskLoads::Waits(load);
}

std::vector<std::pair<SessionNumber, std::int64_t>> TierLoads::HoldersOf(const Load& load) const {
  const MutexLock lock(parts_.mutex);
  return DiskLoads::HoldersOf(load);
}

// ---- without a lock

void TierLoads::Begin(const std::shared_ptr<LoadBatch>& batch) {
  DiskLoads::Ready ready;
  {
    const MutexLock lock(parts_.mutex);
    parts_.loads.Begin(batch);
    ready = parts_.loads.TakeReady();
  }
  parts_.Answer(ready);
}

void TierLoads::Cancel(const std::shared_ptr<LoadBatch>& batch) {
  const MutexLock lock(parts_.mutex);
  DiskLoads::Cancel(*batch);
}

void TierLoads::End() {
  DiskLoads::Ready ready;
  {
    const MutexLock lock(parts_.mutex);
    parts_.loads.End();
    ready = parts_.loads.TakeReady();
  }
  parts_.Answer(ready);
  const MutexLock lock(parts_.mutex);
  while (parts_.loads.answering()) parts_.answered.Wait(parts_.mutex);
}

// ---- the disk's thread

std::shared_ptr<Load> TierLoads::First() {
  DiskLoads::Ready ready;
  std::shared_ptr<Load> first;
  {
    const MutexLock lock(parts_.mutex);
    // A value that the log is writing can be read from neither place. TierDemotions::EndPending has
    // its load read.
    const auto awaits = [&](const std::shared_ptr<Load>& load) KVCOVE_REQUIRES(parts_.mutex) {
      Demotion* const demotion = parts_.queue.Find(load->tag);
      if (demotion == nullptr || !demotion->taken) return false;
      demotion->awaited.push_back(load);
      return true;
    };
    first = parts_.loads.First(parts_.clock.NowNs(), awaits);
    ready = parts_.loads.TakeReady();
  }
  parts_.Answer(ready);
  return first;
}

bool TierLoads::Paced() {
  const MutexLock lock(parts_.mutex);
  return parts_.loads.paced(parts_.clock.NowNs());
}

std::optional<std::span<const std::byte>> TierLoads::Queued(Load& load) const {
  const MutexLock lock(parts_.mutex);
  const Demotion* const demotion = parts_.queue.Find(load.tag);
  if (demotion == nullptr) return std::nullopt;
  load.put = demotion->put;
  return parts_.queue.Queued(*demotion);
}

// A promotion evicts as many bytes as it has, while puts may exceed their half of the queue by one
// value (Tiering::SpareBytes). An eighth of the queue is kept for that value.
std::uint64_t TierLoads::PromotionRoom() const {
  constexpr std::uint64_t kAny = ~std::uint64_t{0};
  if (!parts_.common.rules.keeps()) return kAny;
  const MutexLock lock(parts_.mutex);
  if (!parts_.state.on() || parts_.queue.closed()) return kAny;  // it drops what it gets
  const ByteRing& ring = parts_.queue.ring();
  const std::uint64_t taken = std::max(ring.used(), ring.size() / 8 * 5);
  return ring.size() - std::min(ring.size(), taken);
}

std::uint64_t TierLoads::Promoting() const {
  const MutexLock lock(parts_.mutex);
  return parts_.state.aside() ? 0 : promoting_.load(std::memory_order_relaxed);
}

bool TierLoads::ReservePromotion(std::uint64_t bytes) {
  DiskShared& common = parts_.common;
  if (common.rules.keeps()) {
    const MutexLock lock(common.promotion_mutex);
    std::uint64_t room = ~std::uint64_t{0};
    std::uint64_t all = 0;
    for (const TierLoads* disk : common.loads) {
      room = std::min(room, disk->PromotionRoom());
      all += disk->Promoting();
    }
    // One value always may, however large it is, unless the queue is full.
    if (all > 0 ? all + bytes > room : room == 0) return false;
    promoting_.fetch_add(bytes, std::memory_order_relaxed);
    return true;
  }
  promoting_.fetch_add(bytes, std::memory_order_relaxed);
  return true;
}

bool TierLoads::Take(const std::shared_ptr<Load>& load, std::uint64_t bytes) {
  DiskLoads::Ready ready;
  bool taken = true;
  {
    const MutexLock lock(parts_.mutex);
    taken = parts_.loads.Take(load, bytes);
    ready = parts_.loads.TakeReady();
  }
  parts_.Answer(ready);
  return taken;
}

void TierLoads::Finish(const std::shared_ptr<Load>& load, const wire::LoadResult& result) {
  DiskLoads::Ready ready;
  {
    const MutexLock lock(parts_.mutex);
    parts_.loads.Finish(load, result);
    ready = parts_.loads.TakeReady();
  }
  parts_.Answer(ready);
}

}  // namespace kvcove::owner
