// SPDX-License-Identifier: Apache-2.0
// How a reader keeps memory from being reused while it copies, and how the owner finds out. No
// lock, no call.
//
//   reader                                   owner
//   Find                                     withdraw the entry (version := 0)
//   write place and version into its slot    full fence
//   full fence                               look at every slot once
//   version, generation, lease: unchanged?   in a slot: wait; else: reuse
//   copy
//   clear the slot
//
// Of the two fences one comes first: either the owner sees the slot, or the reader sees that the
// version went. No timer takes part.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "kvcove/segment/view.h"

namespace kvcove::segment {

// What a reader must find unchanged.
struct ReadScope {
  SlotId slot = 0;
  Generation generation = 0;  // that the session is bound to
};

// Why an entry must not be read under `scope` at `now_ns`; kNone if it may. kReset: another
// generation is current; kLease: the owner does not vouch for the slot now.
MissReason CheckScope(const HeaderView& view, const ReadScope& scope, Generation of_entry,
                      std::int64_t now_ns);

// One lane in use by one thread: up to kLaneSlots protected objects. The steps are apart so that a
// simulation can stop between any two.
class ReadWindow {
 public:
  ReadWindow(const HeaderView& view, Lane& lane) : view_(view), lane_(lane) {}
  ~ReadWindow() { Clear(); }
  ReadWindow(const ReadWindow&) = delete;
  ReadWindow& operator=(const ReadWindow&) = delete;

  std::uint32_t size() const { return size_; }
  bool full() const { return size_ == kLaneSlots; }

  void Announce(const Found& found);
  // After the last Announce, before the first Confirm.
  void Fence() { FullFence(); }
  // kNone: the bytes of `found` stay what they are until Clear.
  MissReason Confirm(const Found& found, const ReadScope& scope, std::int64_t now_ns) const;
  void Clear();

 private:
  const HeaderView& view_;
  Lane& lane_;
  std::uint32_t size_ = 0;
};

// What the readers of one session protect right now, appended to `places`. After FullFence.
void CollectProtected(const SessionPage& page, std::vector<Place>& places);

// Forgets what a dead process protected.
void ClearLanes(SessionPage& page);

void FormatSessionPage(std::byte* data);  // zeroed, sizeof(SessionPage) long
// Errors: kIncompatible, kCorrupt.
Result<SessionPage*> OpenSessionPage(std::byte* data, std::size_t size);
// Null if the file ends before it: an older owner made it.
inline Staging* StagingOf(std::byte* data, std::size_t size) {
  return size < kSessionFileBytes ? nullptr : reinterpret_cast<Staging*>(data + kStagingOffset);
}

// What no hold outlasts, from the look-up or read on.
inline constexpr std::chrono::milliseconds kLongestHold = std::chrono::hours(24);

// Events from a session to the owner. One writer at a time, one reader at a time. A full ring drops
// and counts.
struct Event {
  EventKind kind = EventKind::kHit;
  // When its hold ends, in the milliseconds of Clock that both sides read; 0: it holds nothing. A
  // point in time and no duration, because the owner reads the event later than the reader wrote
  // it. The ring keeps 30 bits of it, so it lies within six days of the owner's now.
  std::int64_t hold_until_ms = 0;
  Place place = 0;
  Version version = 0;
};
void PushEvent(SessionPage& page, const Event& event);
// False when the ring is empty. The content is not to be trusted. `now_ns`: the owner's, to
// complete the end of a hold with.
bool PopEvent(SessionPage& page, std::int64_t now_ns, Event& event);

}  // namespace kvcove::segment
