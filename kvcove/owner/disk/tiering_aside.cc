// SPDX-License-Identifier: Apache-2.0
// The states of a disk: on, set aside, told, used again, paused.
#include <algorithm>
#include <utility>

#include "kvcove/base/interrupt.h"
#include "kvcove/owner/disk/tiering.h"

namespace kvcove::owner {

// ---- the disk's thread

void Tiering::SetOn() {
  NoteProgress();
  const MutexLock lock(mutex_);
  state_.Name();
  if (!state_.SetOn()) return;  // it was unmounted while it was opened
  common_.tags.SetOn(shares_);
  inventory_.Begin();
}

bool Tiering::MayReuse() const {
  const MutexLock lock(mutex_);
  return fences_.Reusable();
}

bool Tiering::SetOnAgain(bool empty) {
  NoteProgress();
  const MutexLock lock(mutex_);
  if (!empty && !fences_.Reusable()) return false;
  // In a cluster the master hears first what it holds (BeginTelling).
  if (!empty && options_.listed && state_.away()) return false;
  const bool opens = state_.opening();
  // It stays aside until the next start.
  if (!state_.Use(DiskState::State::kOn)) return false;
  // It was opened anew for an upgrade, and must be emptied.
  if (options_.listed && empty && opens) inventory_.LoseAll();
  UseAgain();
  common_.tags.SetOn(shares_);
  inventory_.Begin();
  return true;
}

void Tiering::UseAgain() {
  // A copy that began before may go on: it is of a value that was forgotten.
  queue_.FreeMemory();
  stalled_ns_ = 0;
  for (const auto& [slot, generation, key] : fences_.UseAgain()) {
    if (header_.tier().HasTag(TagOf(slot, generation, key))) RemoveOlder(slot, generation, key);
  }
}

bool Tiering::BeginTelling() {
  NoteProgress();
  const MutexLock lock(mutex_);
  if (!fences_.Reusable() || !state_.Use(DiskState::State::kTelling)) return false;
  UseAgain();
  inventory_.Begin();
  return true;
}

bool Tiering::Tells(SlotId slot, Generation generation, std::string_view key) const {
  const MutexLock lock(mutex_);
  if (!state_.on() && !state_.telling()) return false;
  const std::uint64_t tag = TagOf(slot, generation, key);
  if (state_.on()) return queue_.Pending(tag) || header_.tier().Holds(tag);
  return header_.tier().HasTag(tag) && !fences_.Removes(tag);
}

Status Tiering::AwaitTold(std::uint64_t era, std::int64_t deadline_ns) {
  const MutexLock lock(mutex_);
  while (true) {
    if (state_.telling_in() != era) return kvcove::Fail(Code::kUnavailable, "it failed again");
    if (!fences_.unproven()) return {};
    const std::int64_t left = LeftNs(deadline_ns, clock_);
    if (left <= 0) return kvcove::Fail(Code::kTimeout, "removals are not proven yet");
    proven_.WaitFor(mutex_, std::chrono::nanoseconds(left));
  }
}

bool Tiering::SetOnTold(std::uint64_t era) {
  NoteProgress();
  const MutexLock lock(mutex_);
  if (!state_.SetOnTold(era)) return false;
  common_.tags.SetOn(shares_);
  return true;
}

bool Tiering::IsSettled(std::uint64_t era) const {
  return state_.on() && state_.era() == era && fences_.older_proven();
}

bool Tiering::Settled(std::uint64_t era) const {
  const MutexLock lock(mutex_);
  return IsSettled(era);
}

bool Tiering::BeginNote(std::uint64_t era) {
  const MutexLock lock(mutex_);
  if (!IsSettled(era)) return false;
  state_.Name();
  return true;
}

bool Tiering::BeginNoteEmpty() {
  const MutexLock lock(mutex_);
  if (!state_.may_open()) return false;
  state_.Name();
  return true;
}

// ---- any thread

void Tiering::Struck() {
  const MutexLock lock(mutex_);
  state_.Strike();
}

bool Tiering::SetAside(const std::string& why) {
  DiskLoads::Ready ready;
  {
    const MutexLock lock(mutex_);
    if (!state_.SetAside(why)) return false;
    EndUse();
    ready = loads_.TakeReady();
  }
  Answer(ready);
  return true;
}

void Tiering::Unmount(const std::string& why) {
  DiskLoads::Ready ready;
  {
    const MutexLock lock(mutex_);
    if (state_.state() == DiskState::State::kVoided) fences_.Miss();
    if (state_.Unmount(why)) EndUse();
    ready = loads_.TakeReady();
  }
  Answer(ready);
}

void Tiering::Void(const std::string& why) {
  const MutexLock lock(mutex_);
  if (state_.state() == DiskState::State::kUnmounted) fences_.Miss();
  if (state_.Void(why)) EndUse();
}

// It has missed whatever made the rest of the pool what it is now.
void Tiering::UseAnew() {
  const MutexLock lock(mutex_);
  if (state_.UseAnew()) fences_.Miss();
}

bool Tiering::MissAll(const std::string& why) {
  const MutexLock lock(mutex_);
  if (!state_.away()) return false;
  fences_.Miss();
  // One that was paused while it was reported is being opened, and will be opened empty.
  if (state_.telling() && state_.SetAside(why)) EndUse();
  return true;
}

// All in one hold: the disk's thread may use the disk again as soon as the lock is free, and this
// must not end the inventory that begins then.
void Tiering::EndUse() {
  ++stat_.asides;
  EndEra();
  if (options_.listed) inventory_.LoseAll();
}

void Tiering::EndEra() {
  common_.tags.SetOff(shares_);
  inventory_.End();
  fences_.EndEra();
  loads_.FailAll(MissReason::kDiskFailed);
  stat_.dropped_other += queue_.Clear();
  proven_.NotifyAll();
}

// A successor knows nothing of what was stored while the disk was not on.
bool Tiering::Pause() {
  DiskLoads::Ready ready;
  bool whole = false;
  {
    const MutexLock lock(mutex_);
    // What is dropped from the queue was told to lie here.
    queue_.EachPending([&](const Demotion& one) {
      Lost({.slot = one.slot, .generation = one.generation, .key = one.key});
    });
    if (state_.Pause()) EndEra();
    queue_.SetClosed(false);
    whole = fences_.Whole();
    if (options_.listed && !whole) inventory_.LoseAll();
    ready = loads_.TakeReady();
  }
  Answer(ready);
  return whole;
}

DiskState Tiering::state() const {
  const MutexLock lock(mutex_);
  return state_;
}

}  // namespace kvcove::owner
