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
  noted_ = true;
  if (aside_) return;  // it was unmounted while it was opened
  common_.tags.SetOn(shares_);
  on_ = true;
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
  // It stays aside until the next start, or in a cluster is told first (BeginTelling).
  if (unmounted_ || voided_ || (!empty && options_.listed && aside_)) return false;
  // It was opened anew for an upgrade, and must be emptied.
  if (options_.listed && empty && !aside_) inventory_.LoseAll();
  UseAgain();
  common_.tags.SetOn(shares_);
  on_ = true;
  away_ = false;
  inventory_.Begin();
  return true;
}

void Tiering::UseAgain() {
  // A copy that began before may go on: it is of a value that was forgotten.
  queue_.FreeMemory();
  aside_.reset();
  stat_.aside = false;
  stalled_ns_ = 0;
  must_be_struck_ = false;
  for (const auto& [slot, generation, key] : fences_.UseAgain()) {
    if (header_.tier().HasTag(TagOf(slot, generation, key))) RemoveOlder(slot, generation, key);
  }
}

bool Tiering::BeginTelling() {
  NoteProgress();
  const MutexLock lock(mutex_);
  if (!fences_.Reusable() || unmounted_ || voided_) return false;
  UseAgain();
  telling_ = true;
  away_ = true;
  inventory_.Begin();
  return true;
}

std::optional<std::uint64_t> Tiering::Telling() const {
  const MutexLock lock(mutex_);
  return telling_ ? std::optional(era_) : std::nullopt;
}

bool Tiering::Tells(SlotId slot, Generation generation, std::string_view key) const {
  const MutexLock lock(mutex_);
  if (!on_ && !telling_) return false;
  const std::uint64_t tag = TagOf(slot, generation, key);
  if (on_) return queue_.Pending(tag) || header_.tier().Holds(tag);
  return header_.tier().HasTag(tag) && !fences_.Removes(tag);
}

Status Tiering::AwaitTold(std::uint64_t era, std::int64_t deadline_ns) {
  const MutexLock lock(mutex_);
  while (true) {
    if (!telling_ || era_ != era) return kvcove::Fail(Code::kUnavailable, "it failed again");
    if (!fences_.unproven()) return {};
    const std::int64_t left = LeftNs(deadline_ns, clock_);
    if (left <= 0) return kvcove::Fail(Code::kTimeout, "removals are not proven yet");
    proven_.WaitFor(mutex_, std::chrono::nanoseconds(left));
  }
}

bool Tiering::SetOnTold(std::uint64_t era) {
  NoteProgress();
  const MutexLock lock(mutex_);
  if (!telling_ || era_ != era) return false;
  telling_ = false;
  common_.tags.SetOn(shares_);
  on_ = true;
  away_ = false;
  return true;
}

bool Tiering::MustBeStruck() const {
  const MutexLock lock(mutex_);
  return noted_ && must_be_struck_;
}

std::optional<std::uint64_t> Tiering::Unnoted() const {
  const MutexLock lock(mutex_);
  return on_ && !noted_ ? std::optional(era_) : std::nullopt;
}

bool Tiering::IsSettled(std::uint64_t era) const {
  return on_ && era_ == era && fences_.older_proven();
}

bool Tiering::Settled(std::uint64_t era) const {
  const MutexLock lock(mutex_);
  return IsSettled(era);
}

bool Tiering::BeginNote(std::uint64_t era) {
  const MutexLock lock(mutex_);
  if (!IsSettled(era)) return false;
  return noted_ = true;
}

bool Tiering::BeginNoteEmpty() {
  const MutexLock lock(mutex_);
  if (unmounted_ || voided_) return false;
  return noted_ = true;
}

// ---- any thread

void Tiering::Struck() {
  const MutexLock lock(mutex_);
  noted_ = must_be_struck_ = false;
}

bool Tiering::SetAside(const std::string& why) {
  DiskLoads::Ready ready;
  {
    const MutexLock lock(mutex_);
    if (!TakeAside(why)) return false;
    ready = loads_.TakeReady();
  }
  Answer(ready);
  return true;
}

void Tiering::Unmount(const std::string& why) {
  DiskLoads::Ready ready;
  {
    const MutexLock lock(mutex_);
    unmounted_ = true;
    (void)TakeAside(why);
    ready = loads_.TakeReady();
  }
  Answer(ready);
}

void Tiering::Void(const std::string& why) {
  const MutexLock lock(mutex_);
  voided_ = true;
  (void)TakeAside(why);
}

// It has missed whatever made the rest of the pool what it is now.
void Tiering::UseAnew() {
  const MutexLock lock(mutex_);
  if (std::exchange(voided_, false)) fences_.Miss();
}

bool Tiering::MayOpen() const {
  const MutexLock lock(mutex_);
  return !unmounted_ && !voided_;
}

bool Tiering::MissAll(const std::string& why) {
  const MutexLock lock(mutex_);
  if (!aside_ && !telling_) return false;
  fences_.Miss();
  if (telling_) (void)TakeAside(why);
  return true;
}

bool Tiering::TriesAgain() const {
  const MutexLock lock(mutex_);
  return !unmounted_;
}

// All in one hold: the disk's thread may use the disk again as soon as the lock is free, and this
// must not end the inventory that begins then.
bool Tiering::TakeAside(const std::string& why) {
  if (aside_) return false;
  aside_ = why;
  away_ = true;
  stat_.aside = true;
  ++stat_.asides;
  EndEra();
  if (options_.listed) inventory_.LoseAll();
  return true;
}

void Tiering::EndEra() {
  common_.tags.SetOff(shares_);
  inventory_.End();
  on_ = false;
  telling_ = false;
  ++era_;
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
    if (!aside_) EndEra();
    queue_.Reopen();
    whole = fences_.Whole();
    if (options_.listed && !whole) inventory_.LoseAll();
    ready = loads_.TakeReady();
  }
  Answer(ready);
  return whole;
}

bool Tiering::Opening() const {
  const MutexLock lock(mutex_);
  return !on_ && !aside_ && !telling_;
}

std::optional<std::string> Tiering::aside() const {
  const MutexLock lock(mutex_);
  return aside_;
}

}  // namespace kvcove::owner
