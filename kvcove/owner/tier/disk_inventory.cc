// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/tier/disk_inventory.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace kvcove::owner {

void DiskInventory::Lose(TierObject object) {
  const MutexLock lock(mutex_);
  if (lost_.size() < kMaxLost) {
    lost_.push_back(std::move(object));
  } else {
    lost_all_ = true;
  }
}

void DiskInventory::LoseAll() {
  const MutexLock lock(mutex_);
  lost_all_ = true;
}

std::vector<TierObject> DiskInventory::TakeLost(std::size_t at_most) {
  std::vector<TierObject> taken;
  const MutexLock lock(mutex_);
  const std::size_t count = std::min(at_most, lost_.size());
  taken.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    taken.push_back(std::move(lost_.front()));
    lost_.pop_front();
  }
  return taken;
}

bool DiskInventory::TakeLostAll() {
  const MutexLock lock(mutex_);
  return std::exchange(lost_all_, false);
}

void DiskInventory::SetZones(std::uint32_t zones) {
  const MutexLock lock(mutex_);
  zones_ = zones;
}

void DiskInventory::Begin() {
  const MutexLock lock(mutex_);
  ended_ = false;
}

std::uint32_t DiskInventory::zones() const {
  const MutexLock lock(mutex_);
  return ended_ ? 0 : zones_;
}

std::shared_ptr<DiskInventory::Zone> DiskInventory::Ask(std::uint32_t number, bool whole) {
  auto zone = std::make_shared<Zone>();
  zone->number = number;
  zone->whole = whole;
  const MutexLock lock(mutex_);
  // A disk that has ended answers at once: nothing would wake the caller.
  zone->done = ended_;
  zone->era = era_;
  if (whole) walking_ = !ended_;
  if (!ended_) asked_.push_back(zone);
  return zone;
}

// Waits once, so that the caller can check between waits whether its link has ended.
bool DiskInventory::Await(const Zone& zone, std::int64_t wait_ns) {
  const MutexLock lock(mutex_);
  if (!Over(zone)) answered_.WaitFor(mutex_, std::chrono::nanoseconds(wait_ns));
  return Over(zone);
}

void DiskInventory::End() {
  const MutexLock lock(mutex_);
  ended_ = true;
  // Ends every zone of this era for Over(), also those that the disk's thread is reading.
  ++era_;
  walking_ = false;
  asked_.clear();
  answered_.NotifyAll();
}

// Zones of other walks overtake those of a whole walk, which wait until moves have stopped.
std::shared_ptr<DiskInventory::Zone> DiskInventory::Take(bool still) {
  const MutexLock lock(mutex_);
  const auto first = std::ranges::find_if(
      asked_, [&](const std::shared_ptr<Zone>& zone) { return still || !zone->whole; });
  if (first == asked_.end()) return nullptr;
  std::shared_ptr<Zone> zone = std::move(*first);
  asked_.erase(first);
  return zone;
}

void DiskInventory::PutBack(std::shared_ptr<Zone> zone) {
  const MutexLock lock(mutex_);
  if (zone->era == era_) asked_.push_back(std::move(zone));
}

void DiskInventory::Answer(Zone& zone, std::vector<TierObject> objects) {
  const MutexLock lock(mutex_);
  if (zone.era != era_) return;  // End has answered it
  zone.objects = std::move(objects);
  zone.done = true;
  // The last zone: the log may move objects again.
  if (zone.whole && zone.number + 1 >= zones_) walking_ = false;
  answered_.NotifyAll();
}

bool DiskInventory::walking() const {
  const MutexLock lock(mutex_);
  return walking_;
}

}  // namespace kvcove::owner
