// SPDX-License-Identifier: Apache-2.0
// The readers' protocol: a reader keeps the owner from reusing memory while it copies, without a
// lock and without a call.
//
//   reader                                   owner
//   Find                                     withdraw the entry (version := 0)
//   write place and version into its slot    full fence
//   full fence                               look at every slot once
//   version, generation, lease: unchanged?   in a slot: wait; else: reuse
//   copy
//   clear the slot
//
// One of the two full fences is first in their total order. If it is the reader's, the owner sees
// the slot; if it is the owner's, the reader sees that the version has changed. No timer takes
// part.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "kvcove/segment/view.h"

namespace kvcove::segment {

// Slot and generation that must be current while a reader reads.
struct ReadScope {
  SlotId slot = 0;
  Generation generation = 0;  // to which the session is bound
};

// Returns why an entry must not be read under `scope` at `now_ns`; kNone if it may. kReset: another
// generation is current; kLease: the owner does not vouch for the slot now.
MissReason CheckScope(const HeaderView& view, const ReadScope& scope, Generation of_entry,
                      std::int64_t now_ns);

// One lane in use by one thread: up to kLaneSlots protected objects. Each step is a call of its
// own, so that a simulation can stop between any two. Not thread-safe.
class ReadWindow {
 public:
  ReadWindow(const HeaderView& view, Lane& lane) : view_(view), lane_(lane) {}
  ~ReadWindow() { Clear(); }
  ReadWindow(const ReadWindow&) = delete;
  ReadWindow& operator=(const ReadWindow&) = delete;

  std::uint32_t size() const { return size_; }
  bool full() const { return size_ == kLaneSlots; }

  // Names an entry in the next slot. The window must not be full.
  void Announce(const Found& found);
  // Passes the full fence: after the last Announce, before the first Confirm.
  void Fence() { FullFence(); }
  // Checks an entry. kNone: the bytes of `found` do not change until Clear.
  MissReason Confirm(const Found& found, const ReadScope& scope, std::int64_t now_ns) const;
  // Ends the protection of all entries; the thread must have stopped reading.
  void Clear();

 private:
  const HeaderView& view_;
  Lane& lane_;
  std::uint32_t size_ = 0;
};

// Appends the places that one session's readers protect. Before a call that decides about reuse,
// the owner withdraws the entries and passes a FullFence (owner/core/withdrawn.cc).
void CollectProtected(const SessionPage& page, std::vector<Place>& places);

// Ends all protection of a page whose process has ended.
void ClearLanes(SessionPage& page);

// Writes the fixed fields of a page. `data`: zeroed, sizeof(SessionPage) bytes.
void FormatSessionPage(std::byte* data);
// Checks and returns the page. Errors: kIncompatible, kCorrupt.
Result<SessionPage*> OpenSessionPage(std::byte* data, std::size_t size);
// Returns the staging area; null if the file has none, because an older owner created it.
inline Staging* StagingOf(std::byte* data, std::size_t size) {
  return size < kSessionFileBytes ? nullptr : reinterpret_cast<Staging*>(data + kStagingOffset);
}

// Longest hold, from the look-up or read on.
inline constexpr std::chrono::milliseconds kLongestHold = std::chrono::hours(24);

// An event from a session to the owner. One writer at a time, one reader at a time. A full ring
// drops events and counts them.
struct Event {
  EventKind kind = EventKind::kHit;
  // End of the hold in milliseconds of Clock, which both sides read; 0: no hold. A point in time
  // and no duration, because the owner reads the event later than the reader wrote it. The ring
  // keeps 30 bits of it, so it must be within six days of the owner's present time.
  std::int64_t hold_until_ms = 0;
  Place place = 0;
  Version version = 0;
};
// Appends an event, or drops it if the ring is full.
void PushEvent(SessionPage& page, const Event& event);
// Takes the oldest event. False: the ring is empty. The caller must not trust the content. `now_ns`
// completes the end of a hold.
bool PopEvent(SessionPage& page, std::int64_t now_ns, Event& event);

}  // namespace kvcove::segment
