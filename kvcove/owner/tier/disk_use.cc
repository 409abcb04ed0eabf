// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/tier/disk_use.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "kvcove/base/interrupt.h"

namespace kvcove::owner {
namespace {

// At most this time counts between two ticks: this process may have been stopped.
constexpr std::int64_t kLongestTickNs = 100 * kMillisecond;

std::string_view WordFor(DiskOperation kind) {
  if (kind == DiskOperation::kRead) return "read";
  return kind == DiskOperation::kWrite ? "write" : "sync";
}

}  // namespace

DiskState DiskUse::state() const {
  const MutexLock lock(parts_.mutex);
  return parts_.state;
}

// ---- a disk that is opened

void DiskUse::SetOn() {
  NoteProgress();
  const MutexLock lock(parts_.mutex);
  parts_.state.Name();
  if (!parts_.state.SetOn()) return;
  parts_.common.tags.SetOn(parts_.shares);
  parts_.inventory.Begin();
}

bool DiskUse::MayReuse() const {
  const MutexLock lock(parts_.mutex);
  return parts_.fences.Reusable();
}

bool DiskUse::SetOnAgain(bool empty) {
  NoteProgress();
  const MutexLock lock(parts_.mutex);
  if (!empty && !parts_.fences.Reusable()) return false;
  if (!empty && listed() && parts_.state.away()) return false;
  const bool opens = parts_.state.opening();
  if (!parts_.state.Use(DiskState::State::kOn)) return false;
  // It was opened anew for an upgrade, and had to be emptied.
  if (listed() && empty && opens) parts_.inventory.LoseAll();
  UseAgain();
  parts_.common.tags.SetOn(parts_.shares);
  parts_.inventory.Begin();
  return true;
}

void DiskUse::UseAgain() {
  // A copy into the queue that began before may continue: its value was forgotten.
  parts_.queue.FreeMemory();
  stalled_ns_ = 0;
  for (const auto& [slot, generation, key] : parts_.fences.UseAgain()) {
    if (parts_.header.tier().HasTag(parts_.TagOf(slot, generation, key))) {
      parts_.RemoveOlder(slot, generation, key);
    }
  }
}

bool DiskUse::BeginReport() {
  NoteProgress();
  const MutexLock lock(parts_.mutex);
  if (!parts_.fences.Reusable() || !parts_.state.Use(DiskState::State::kReporting)) return false;
  UseAgain();
  parts_.inventory.Begin();
  return true;
}

// ---- a disk that is reported to the master

Status DiskUse::AwaitReported(std::uint64_t era, std::int64_t deadline_ns) {
  const MutexLock lock(parts_.mutex);
  while (true) {
    if (parts_.state.reporting_in() != era) return Fail(Code::kUnavailable, "it failed again");
    if (!parts_.fences.unproven()) return {};
    const std::int64_t left = LeftNs(deadline_ns, parts_.clock);
    if (left <= 0) return Fail(Code::kTimeout, "removals are not proven yet");
    parts_.proven.WaitFor(parts_.mutex, std::chrono::nanoseconds(left));
  }
}

bool DiskUse::SetOnReported(std::uint64_t era) {
  NoteProgress();
  const MutexLock lock(parts_.mutex);
  if (!parts_.state.SetOnReported(era)) return false;
  parts_.common.tags.SetOn(parts_.shares);
  return true;
}

// ---- the owner's note

bool DiskUse::IsSettled(std::uint64_t era) const {
  return parts_.state.on() && parts_.state.era() == era && parts_.fences.older_proven();
}

bool DiskUse::Settled(std::uint64_t era) const {
  const MutexLock lock(parts_.mutex);
  return IsSettled(era);
}

bool DiskUse::BeginNote(std::uint64_t era) {
  const MutexLock lock(parts_.mutex);
  if (!IsSettled(era)) return false;
  parts_.state.Name();
  return true;
}

bool DiskUse::BeginNoteEmpty() {
  const MutexLock lock(parts_.mutex);
  if (!parts_.state.may_open()) return false;
  parts_.state.Name();
  return true;
}

void DiskUse::MayBeNamed() {
  const MutexLock lock(parts_.mutex);
  parts_.state.Name();
}

void DiskUse::Struck() {
  const MutexLock lock(parts_.mutex);
  parts_.state.Strike();
}

// ---- its end

bool DiskUse::SetAside(const std::string& why) {
  DiskLoads::Ready ready;
  {
    const MutexLock lock(parts_.mutex);
    if (!parts_.state.SetAside(why)) return false;
    EndUse();
    ready = parts_.loads.TakeReady();
  }
  parts_.Answer(ready);
  return true;
}

void DiskUse::Unmount(const std::string& why) {
  DiskLoads::Ready ready;
  {
    const MutexLock lock(parts_.mutex);
    if (parts_.state.state() == DiskState::State::kVoided) parts_.fences.Miss();
    if (parts_.state.Unmount(why)) EndUse();
    ready = parts_.loads.TakeReady();
  }
  parts_.Answer(ready);
}

void DiskUse::Void(const std::string& why) {
  const MutexLock lock(parts_.mutex);
  if (parts_.state.state() == DiskState::State::kUnmounted) parts_.fences.Miss();
  if (parts_.state.Void(why)) EndUse();
}

// The disk has missed all that made the rest of the pool what it is now.
void DiskUse::UseAnew() {
  const MutexLock lock(parts_.mutex);
  if (parts_.state.UseAnew()) parts_.fences.Miss();
}

bool DiskUse::MissAll(const std::string& why) {
  const MutexLock lock(parts_.mutex);
  if (!parts_.state.away()) return false;
  parts_.fences.Miss();
  // A disk that was paused while it was reported is being opened, and will be opened empty.
  if (parts_.state.reporting() && parts_.state.SetAside(why)) EndUse();
  return true;
}

// All in one hold: the disk's thread may use the disk again as soon as the lock is free, and this
// must not end the inventory that begins then.
void DiskUse::EndUse() {
  ++parts_.stat.asides;
  EndEra();
  if (listed()) parts_.inventory.LoseAll();
}

void DiskUse::EndEra() {
  parts_.common.tags.SetOff(parts_.shares);
  parts_.inventory.End();
  parts_.fences.EndEra();
  parts_.loads.FailAll(MissReason::kDiskFailed);
  parts_.stat.dropped_other += parts_.queue.Clear();
  parts_.proven.NotifyAll();
}

// A successor does not know what was stored while the disk was not on.
bool DiskUse::Pause() {
  DiskLoads::Ready ready;
  bool whole = false;
  {
    const MutexLock lock(parts_.mutex);
    // The master lists the values of the queue on this disk, and the queue is cleared.
    parts_.queue.EachPending([&](const Demotion& one) {
      parts_.Lose({.slot = one.slot, .generation = one.generation, .key = one.key});
    });
    if (parts_.state.Pause()) EndEra();
    parts_.queue.SetClosed(false);
    whole = parts_.fences.Whole();
    if (listed() && !whole) parts_.inventory.LoseAll();
    ready = parts_.loads.TakeReady();
  }
  parts_.Answer(ready);
  return whole;
}

// ---- time

bool DiskUse::Tick(std::int64_t now_ns) {
  DiskLoads::Ready ready;
  bool wake = false;
  {
    const MutexLock lock(parts_.mutex);
    parts_.loads.Expire(now_ns);
    wake = parts_.queue.size() > 0;
    const std::uint64_t progress = progress_.load(std::memory_order_relaxed);
    const std::int64_t elapsed_ns =
        std::clamp<std::int64_t>(now_ns - last_tick_ns_, 0, kLongestTickNs);
    last_tick_ns_ = now_ns;
    ages_->Advance(elapsed_ns);
    stalled_ns_ += elapsed_ns;
    if (std::exchange(seen_progress_, progress) != progress) stalled_ns_ = 0;
    if (const auto why = Hangs(); why && parts_.state.SetAside(*why)) EndUse();
    ready = parts_.loads.TakeReady();
  }
  parts_.Answer(ready);
  return wake;
}

bool DiskUse::DeviceHangs() const {
  return std::ranges::any_of(kDiskOperations, [this](DiskOperation kind) {
    return ages_->AgeNs(kind) > parts_.options.hang_ns;
  });
}

std::optional<std::string> DiskUse::Hangs() const {
  if (parts_.state.aside()) return std::nullopt;
  if (stalled_ns_ > parts_.options.hang_ns) return "its thread hangs in a call for seconds";
  for (const DiskOperation kind : kDiskOperations) {
    if (ages_->AgeNs(kind) <= parts_.options.hang_ns) continue;
    return fmt::format("it has not answered a {} for seconds", WordFor(kind));
  }
  return std::nullopt;
}

}  // namespace kvcove::owner
