// SPDX-License-Identifier: Apache-2.0
#include "kvcove/segment/reader.h"

#include <algorithm>

#include "kvcove/segment/protected_slot.h"

namespace kvcove::segment {

MissReason CheckScope(const HeaderView& view, const ReadScope& scope, Generation of_entry,
                      std::int64_t now_ns) {
  const Generation current = view.generation(scope.slot);
  // The owner hides the slot, or does not know its generation yet. No reset has voided the objects,
  // and they may be found again in a moment.
  if (current == 0) return MissReason::kLease;
  if (of_entry != current || scope.generation != current) return MissReason::kReset;
  // The deadline is read last, because the owner writes generations first and then the deadline: a
  // reader that sees a renewed deadline also sees the generations that it vouches for.
  return view.LeaseHolds(now_ns) ? MissReason::kNone : MissReason::kLease;
}

// CollectProtected looks at the place only, so the place is stored last.
void Announce(ProtectedSlot& slot, const Found& found) {
  slot.version.store(found.version, std::memory_order_release);
  slot.place.store(found.place, std::memory_order_release);
}

MissReason Confirm(const HeaderView& view, const Found& found, const ReadScope& scope,
                   std::int64_t now_ns) {
  // Pairs with Index::Withdraw and the owner's fence after it. An unchanged version here, after
  // this thread's own fence, means that the owner will see the slot before it reuses the memory.
  if (!view.StillThere(found.place, found.version)) return MissReason::kRaced;
  return CheckScope(view, scope, found.generation, now_ns);
}

// Release: the copy's loads stay before this store. Pairs with the acquire in CollectProtected,
// after which the owner may overwrite the memory.
void ClearSlot(ProtectedSlot& slot) { slot.place.store(0, std::memory_order_release); }

void ReadWindow::Announce(const Found& found) {
  segment::Announce(lane_.slots[size_++], found);
  lane_.used.store(size_, std::memory_order_release);
}

MissReason ReadWindow::Confirm(const Found& found, const ReadScope& scope,
                               std::int64_t now_ns) const {
  return segment::Confirm(view_, found, scope, now_ns);
}

void ReadWindow::Clear() {
  OwnerOrders();
  for (std::uint32_t i = 0; i < size_; ++i) ClearSlot(lane_.slots[i]);
  if (size_ > 0) lane_.used.store(0, std::memory_order_release);
  size_ = 0;
}

void CollectProtected(const SessionPage& page, std::vector<Place>& places) {
  for (const Lane& lane : page.lanes) {
    // The session's process may write any number here.
    const std::uint32_t used = std::min(lane.used.load(std::memory_order_acquire), kLaneSlots);
    for (std::uint32_t i = 0; i < used; ++i) {
      const auto place = static_cast<Place>(lane.slots[i].place.load(std::memory_order_acquire));
      if (place != 0) places.push_back(place);
    }
  }
}

void ClearLanes(SessionPage& page) {
  for (Lane& lane : page.lanes) {
    for (ProtectedSlot& slot : lane.slots) slot.place.store(0, std::memory_order_release);
    lane.used.store(0, std::memory_order_release);
  }
}

void FormatSessionPage(std::byte* data) {
  SessionPage& page = *reinterpret_cast<SessionPage*>(data);
  page.layout_version = kLayoutVersion;
  page.magic = kSessionMagic;
}

Result<SessionPage*> OpenSessionPage(std::byte* data, std::size_t size) {
  if (size < sizeof(SessionPage)) return Fail(Code::kCorrupt, "the session page is cut short");
  auto* page = reinterpret_cast<SessionPage*>(data);
  if (page->magic != kSessionMagic || page->layout_version != kLayoutVersion) {
    return Fail(Code::kIncompatible,
                "the session page has another layout; use the same kvcove on "
                "both sides");
  }
  return page;
}

namespace {

constexpr std::uint64_t kHoldEndMask = (1ULL << kHoldEndBits) - 1;

// Returns the lower bits of a hold's end. 0 means no hold, so an end whose lower bits are all 0 is
// taken for one a millisecond later.
std::uint64_t ShortEnd(std::int64_t until_ms) {
  if (until_ms <= 0) return 0;
  return std::max<std::uint64_t>(static_cast<std::uint64_t>(until_ms) & kHoldEndMask, 1);
}

// Returns the point in time nearest to now that has these lower bits.
std::int64_t WholeEnd(std::uint64_t end, std::int64_t now_ns) {
  if (end == 0) return 0;
  constexpr std::int64_t kRound = std::int64_t{1} << kHoldEndBits;
  const std::int64_t now_ms = now_ns / kMillisecond;
  std::int64_t ahead = (static_cast<std::int64_t>(end) - now_ms) & (kRound - 1);
  if (ahead >= kRound / 2) ahead -= kRound;
  return std::max<std::int64_t>(now_ms + ahead, 1);
}

}  // namespace

void PushEvent(SessionPage& page, const Event& event) {
  const std::uint64_t at = page.ring_written.load(std::memory_order_relaxed);
  if (at - page.ring_read.load(std::memory_order_acquire) >= kRingEvents) {
    page.ring_dropped.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  // The acquire of ring_read, above: the owner has read the event that this one overwrites. The
  // release of ring_written, below, publishes this one.
  RingEvent& slot = page.ring[at % kRingEvents];
  slot.word.store((static_cast<std::uint64_t>(event.kind) << 62) |
                      (ShortEnd(event.hold_until_ms) << 32) | event.place,
                  std::memory_order_relaxed);
  slot.version.store(event.version, std::memory_order_relaxed);
  page.ring_written.store(at + 1, std::memory_order_release);
}

bool PopEvent(SessionPage& page, std::int64_t now_ns, Event& event) {
  const std::uint64_t at = page.ring_read.load(std::memory_order_relaxed);
  const std::uint64_t written = page.ring_written.load(std::memory_order_acquire);
  // More events than the ring holds: the session's process wrote nonsense. All of it is skipped.
  if (at == written || written - at > kRingEvents) {
    if (at != written) page.ring_read.store(written, std::memory_order_release);
    return false;
  }
  const RingEvent& slot = page.ring[at % kRingEvents];
  const std::uint64_t word = slot.word.load(std::memory_order_relaxed);
  event = {.kind = static_cast<EventKind>(word >> 62),
           .hold_until_ms = WholeEnd((word >> 32) & kHoldEndMask, now_ns),
           .place = static_cast<Place>(word),
           .version = slot.version.load(std::memory_order_relaxed)};
  page.ring_read.store(at + 1, std::memory_order_release);
  return true;
}

}  // namespace kvcove::segment
