// SPDX-License-Identifier: Apache-2.0
// The disk's thread at its Tiering: what it takes to do, and what it tells of it.
#include <algorithm>

#include "kvcove/base/glob.h"
#include "kvcove/owner/disk/tiering.h"
#include "kvcove/policy/retention.h"

namespace kvcove::owner {

void Tiering::Attach() {
  common_.tags.Clear(shares_);
  const MutexLock lock(mutex_);
  dropped_ = 0;
  former_ = stat_.log;
}

std::vector<disklog::SlotGeneration> Tiering::Generations() const {
  std::vector<disklog::SlotGeneration> all(kMaxSlots);
  for (std::size_t i = 0; i < all.size(); ++i) all[i].slot = static_cast<SlotId>(i);
  const MutexLock lock(mutex_);
  for (const auto& [slot, update] : fences_.slots()) all[slot].generation = update.generation;
  return all;
}

std::string Tiering::NameOf(SlotId slot) const {
  const MutexLock lock(mutex_);
  return fences_.NameOf(slot);
}

std::vector<SlotUpdate> Tiering::Slots() const {
  std::vector<SlotUpdate> slots;
  const MutexLock lock(mutex_);
  for (const auto& [slot, update] : fences_.slots()) slots.push_back(update);
  return slots;
}

std::vector<TierOrder> Tiering::TakeOrders() {
  const MutexLock lock(mutex_);
  return fences_.TakeOrders();
}

void Tiering::DropGenerationOrders() {
  const MutexLock lock(mutex_);
  fences_.DropGenerationOrders();
}

// Here, where nothing is between the queue and the log: each value is counted once.
void Tiering::RemoveQueued(const TierOrder& order) {
  const MutexLock lock(mutex_);
  queue_.EachQueued([&](Demotion& demotion) KVCOVE_REQUIRES(mutex_) {
    if (demotion.slot != order.slot || demotion.generation != order.generation ||
        !GlobMatches(order.pattern, demotion.key)) {
      return;
    }
    ++order.removal->removed;
    if (order.removal->collect) order.removal->keys.push_back(demotion.key);
    DropQueued(demotion);
  });
}

void Tiering::Applied(const TierOrder& order) {
  const std::vector<std::uint64_t> tags = TagsOf(order);
  const MutexLock lock(mutex_);
  fences_.Applied(tags);
}

void Tiering::Proven(const TierOrder& order, std::uint64_t removed) {
  const MutexLock lock(mutex_);
  fences_.Proven(order, removed);
  proven_.NotifyAll();
}

std::shared_ptr<Load> Tiering::FirstLoad() {
  DiskLoads::Ready ready;
  std::shared_ptr<Load> first;
  {
    const MutexLock lock(mutex_);
    // A value that the log is writing can be read from neither place: EndPending has it read again.
    const auto awaits = [&](const std::shared_ptr<Load>& load) KVCOVE_REQUIRES(mutex_) {
      Demotion* const down = queue_.Find(load->tag);
      if (down == nullptr || !down->taken) return false;
      down->awaited.push_back(load);
      return true;
    };
    first = loads_.First(clock_.NowNs(), awaits);
    ready = loads_.TakeReady();
  }
  Answer(ready);
  return first;
}

bool Tiering::Paced() {
  const MutexLock lock(mutex_);
  return loads_.paced(clock_.NowNs());
}

bool Tiering::TakeLoad(const std::shared_ptr<Load>& load, std::uint64_t bytes) {
  DiskLoads::Ready ready;
  bool taken = true;
  {
    const MutexLock lock(mutex_);
    taken = loads_.Take(load, bytes);
    ready = loads_.TakeReady();
  }
  Answer(ready);
  return taken;
}

void Tiering::FinishLoad(const std::shared_ptr<Load>& load, const wire::LoadResult& result) {
  DiskLoads::Ready ready;
  {
    const MutexLock lock(mutex_);
    loads_.Finish(load, result);
    ready = loads_.TakeReady();
  }
  Answer(ready);
}

std::optional<std::span<const std::byte>> Tiering::Queued(Load& load) const {
  const MutexLock lock(mutex_);
  const Demotion* const down = queue_.Find(load.tag);
  if (down == nullptr) return std::nullopt;
  load.put = down->put;
  return queue_.Queued(*down);
}

HandedDemotion Tiering::FirstDemotion() {
  const MutexLock lock(mutex_);
  return HandFirst();
}

HandedDemotion Tiering::HandFirst() {
  std::vector<std::shared_ptr<Demotion>> dropped;
  std::shared_ptr<Demotion> first = queue_.First(dropped);
  for (const auto& one : dropped) EndPending(*one, /*written=*/false);
  if (first == nullptr) return {};
  std::string name = fences_.NameOf(first->slot);
  const disklog::ShareNumber share = first->share;
  return {.demotion = std::move(first), .name = std::move(name), .share = share};
}

HandedDemotion Tiering::TakeDemotion(Demotion& demotion, bool copied) {
  const MutexLock lock(mutex_);
  if (queue_.Take(demotion, copied)) {
    if (copied) {
      ++stat_.demoted;
      stat_.demoted_bytes += demotion.size_bytes;
    } else {
      ++stat_.dropped_other;
      EndPending(demotion, /*written=*/false);
    }
  }
  return HandFirst();
}

void Tiering::Landed(Demotion& demotion, bool written) {
  const MutexLock lock(mutex_);
  if (!written) ++stat_.dropped_other;
  EndPending(demotion, written);
}

void Tiering::EndPending(Demotion& demotion, bool written) {
  for (const auto& load : std::exchange(demotion.awaited, {})) loads_.Requeue(load);
  // It was removed, and its key stored and evicted again.
  if (!queue_.End(demotion, state_.era())) return;
  if (!written) common_.tags.Remove(demotion.tag);
  if (!options_.listed || header_.tier().Holds(demotion.tag)) return;
  inventory_.Lose({.slot = demotion.slot, .generation = demotion.generation, .key = demotion.key});
}

void Tiering::Lost(TierObject object) {
  if (options_.listed) inventory_.Lose(std::move(object));
}

void Tiering::Dropped(TierObject object) {
  Lost(std::move(object));
  const MutexLock lock(mutex_);
  ++dropped_;
}

void Tiering::NoteLog(const disklog::Space& space, const disklog::Counters& counters,
                      std::vector<std::uint64_t> held) {
  const MutexLock lock(mutex_);
  quotas_.NoteHeld(std::move(held));
  queue_.ForgetEnded();
  // A zone whose summary is damaged goes with keys that nobody knows.
  if (options_.listed && counters.dropped_objects > dropped_) inventory_.LoseAll();
  dropped_ = std::max(dropped_, counters.dropped_objects);
  stat_.space = space;
  stat_.log = former_;
  stat_.log += counters;
}

disklog::DiskShares Tiering::Shares() const {
  const MutexLock lock(mutex_);
  return {.limits = quotas_.Limits(),
          .of = [this](std::string_view name) { return common_.ShareOf(name); }};
}

std::vector<ShareFigures> Tiering::ByShare() const {
  const MutexLock lock(mutex_);
  const std::vector<disklog::ShareLimits> limits = quotas_.Limits();
  std::vector<ShareFigures> shares;
  for (disklog::ShareNumber i = 0; i < limits.size(); ++i) {
    shares.push_back(
        {.held_bytes = Held(i), .read_bytes = loads_.read_bytes(i), .limits = limits[i]});
  }
  return shares;
}

// What memory has, too, is written again when memory gives it up, without being read. If memory
// gives it up just now, it is lost: a miss, and nothing else.
bool Tiering::WorthMoving(const disklog::LiveObject& object,
                          const disklog::MoveFacts& facts) const {
  if (!facts.guaranteed && !policy::WorthMoving(facts.since_read, facts.budget)) return false;
  const segment::Found found = header_.Find(
      object.slot, {.key = object.key, .hash = header_.HashKey(object.slot, object.key)});
  return !found || found.generation != object.generation;
}

std::vector<std::pair<SessionNumber, std::int64_t>> Tiering::HoldersOf(const Load& load) const {
  const MutexLock lock(mutex_);
  return DiskLoads::HoldersOf(load);
}

void Tiering::Close() {
  const MutexLock lock(mutex_);
  queue_.SetClosed(true);
}

bool Tiering::Drained() const {
  const MutexLock lock(mutex_);
  return queue_.drained();
}

std::vector<std::shared_ptr<const Demotion>> Tiering::PendingOf(std::optional<SlotId> slot) const {
  const MutexLock lock(mutex_);
  return queue_.PendingOf(slot);
}

bool Tiering::Idle() const {
  const MutexLock lock(mutex_);
  return state_.aside() || (queue_.idle() && !fences_.orders() && !fences_.unproven());
}

bool Tiering::Add(const Id128& hash, Generation generation) {
  const std::uint64_t tag = segment::TierTag(hash, generation);
  // What is another disk's by now is found in the log only, to be removed there (RemoveMoved).
  if ((segment::ShareOf(tag) & shares_) == 0) return true;
  return common_.tags.Add(tag);
}

void Tiering::Remove(const Id128& hash, Generation generation) {
  common_.tags.Remove(segment::TierTag(hash, generation));
}

}  // namespace kvcove::owner
