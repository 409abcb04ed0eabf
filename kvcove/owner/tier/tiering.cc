// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/tier/tiering.h"

#include <algorithm>
#include <bit>

#include "kvcove/base/copy.h"

namespace kvcove::owner {

Tiering::Tiering(const TieringOptions& options, DiskShared& common,
                 const segment::HeaderView& header, const segment::Payload& payload,
                 const Clock& clock)
    : payload_(payload), parts_(options, common, header, clock) {}

void Tiering::SetShares(std::uint64_t shares) {
  parts_.shares = shares;
  const MutexLock lock(parts_.mutex);
  parts_.quotas.SetPart(static_cast<std::uint64_t>(std::popcount(shares)));
  parts_.loads.SetRates(parts_.quotas.ReadRates(), parts_.clock.NowNs());
}

// ---- under the owner's lock

// The queue is asked first: a value leaves it only once the table has the key.
bool Tiering::Holds(SlotId slot, Generation generation, std::string_view key) const {
  std::uint64_t tag = 0;
  {
    const MutexLock lock(parts_.mutex);
    if (!parts_.state.on()) return false;
    tag = parts_.TagOf(slot, generation, key);
    if (parts_.queue.Pending(tag)) return true;
  }
  return parts_.header.tier().Holds(tag);
}

bool Tiering::Covers(SlotId slot, Generation generation, std::string_view key) {
  const MutexLock lock(parts_.mutex);
  if (parts_.state.on()) return false;
  return parts_.header.tier().HasTag(parts_.TagOf(slot, generation, key)) && parts_.state.Cover();
}

bool Tiering::Listable(SlotId slot, Generation generation, std::string_view key) const {
  const MutexLock lock(parts_.mutex);
  if (!parts_.state.on() && !parts_.state.reporting()) return false;
  const std::uint64_t tag = parts_.TagOf(slot, generation, key);
  if (parts_.state.on()) return parts_.queue.Pending(tag) || parts_.header.tier().Holds(tag);
  return parts_.header.tier().HasTag(tag) && !parts_.fences.Removes(tag);
}

void Tiering::Stored(SlotId slot, Generation generation, std::string_view key,
                     const policy::PutEvent& event, bool comes_up) {
  bool returned = false;
  {
    const MutexLock lock(parts_.mutex);
    const bool there = parts_.state.on() || parts_.state.reporting();
    returned = parts_.state.on() && comes_up;
    if (!there) parts_.fences.Remember(slot, generation, key);
    // Its put began while the disk was away.
    if (there && !comes_up && parts_.header.tier().HasTag(parts_.TagOf(slot, generation, key))) {
      parts_.RemoveOlder(slot, generation, key);
    }
  }
  // A promoted value counts by itself, whether or not its parent was promoted before it.
  policy::PutEvent alone = event;
  if (returned) alone.parent = policy::kNoObject;
  parts_.common.rules.OnPut(alone, returned);
}

bool Tiering::BeyondShare(const Demotion& demotion) const {
  return demotion.share != disklog::kNoShare &&
         parts_.quotas.Beyond(demotion.share, parts_.Held(demotion.share) + demotion.size_bytes);
}

// Puts the value into the queue with room for its bytes, or says why not. All in one hold: the disk
// must not be set aside between the checks and the value's place in the queue.
Tiering::Admission Tiering::Admit(const EvictedObject& object,
                                  const std::shared_ptr<Demotion>& demotion) {
  const MutexLock lock(parts_.mutex);
  DemotionRules& rules = parts_.common.rules;
  demotion->era = parts_.state.era();
  demotion->tag = parts_.TagOf(object.slot, object.generation, object.key);
  const bool takes = parts_.state.on() && !parts_.queue.closed();
  // The report of a disk may have left an object out because memory had it, so the disk's own value
  // is kept then, too.
  const bool there = (parts_.state.on() || parts_.state.reporting()) && !parts_.queue.closed() &&
                     parts_.header.tier().HasTag(demotion->tag);
  if (!there && !takes) {
    rules.OnRemove(object.id);
    ++parts_.stat.dropped_other;
    // A disk that is closed and opened again, for an upgrade, may have it: it stays listed until
    // that is known (Owner::TakeGone).
    const bool opens = parts_.options.listed && !parts_.state.aside() && !parts_.state.reporting();
    if (!opens) return Admission::kRefused;
    parts_.Lose(
        {.slot = object.slot, .generation = object.generation, .key = std::string(object.key)});
    return Admission::kKept;
  }
  if (there || parts_.queue.Pending(demotion->tag)) {
    rules.OnKept(object.id, object.hash);
    // A removal is about to take the disk's value.
    const bool leaves = parts_.fences.Removes(demotion->tag);
    ++(leaves ? parts_.stat.dropped_other : parts_.stat.kept);
    return leaves ? Admission::kRefused : Admission::kKept;
  }
  if (!object.goes_down) {
    rules.OnRemove(object.id);
    return Admission::kRefused;
  }
  if (std::uint64_t* const refused = Refusal(object, demotion); refused != nullptr) {
    ++*refused;
    return Admission::kRefused;
  }
  rules.OnWritten(demotion->share, object.size_bytes);
  parts_.common.budget_bytes.store(rules.budget_bytes(), std::memory_order_relaxed);
  return Admission::kQueued;
}

std::uint64_t* Tiering::Refusal(const EvictedObject& object,
                                const std::shared_ptr<Demotion>& demotion) {
  DemotionRules& rules = parts_.common.rules;
  TierTags& tags = parts_.common.tags;
  DiskStat& stat = parts_.stat;
  demotion->share = parts_.ShareOf(object.slot);
  const policy::Verdict verdict = rules.Judge(object.id, object.hash);
  demotion->brief = verdict.brief;
  if (object.size_bytes > parts_.queue.ring().size()) return &stat.dropped_other;
  if (!verdict.worth) return &stat.not_worth;
  if (BeyondShare(*demotion)) return &stat.over_share;
  if (!rules.WithinRate(demotion->share, parts_.clock.NowNs())) return &stat.over_rate;
  // Written without a place in the table, it would be on the disk though nothing finds it there.
  if (!tags.Add(demotion->tag)) return &stat.table_full;
  if (parts_.queue.Push(demotion)) return nullptr;
  tags.Remove(demotion->tag);
  return &stat.dropped_full;
}

bool Tiering::Evicted(const EvictedObject& object) {
  const auto demotion = std::make_shared<Demotion>();
  demotion->slot = object.slot;
  demotion->generation = object.generation;
  demotion->put = object.put;
  demotion->key = object.key;
  demotion->size_bytes = object.size_bytes;
  if (const Admission admitted = Admit(object, demotion); admitted != Admission::kQueued) {
    return admitted == Admission::kKept;
  }
  // Copied outside of the lock, for values are large. A disk that is set aside meanwhile forgets
  // the value with all others of its queue. The owner's lock keeps this memory of the ring from
  // every other value until the copy is made.
  std::span<std::byte> room = demotion->room;
  for (const Extent& extent : object.extents) {
    const std::span<const std::byte> from = payload_.At(extent);
    const std::size_t count = std::min(from.size(), room.size());
    CopyPastCaches(room.data(), from.data(), count);
    room = room.subspan(count);
  }
  DemotionQueue::Fill(*demotion);
  return true;
}

std::uint64_t Tiering::SpareBytes() const {
  constexpr std::uint64_t kAny = ~std::uint64_t{0};
  if (!parts_.common.rules.keeps()) return kAny;
  const MutexLock lock(parts_.mutex);
  if (!parts_.state.on() || parts_.queue.closed()) return kAny;  // it drops what it gets
  if (parts_.queue.size() > parts_.options.queue_objects / 2) return 0;
  const std::uint64_t half = parts_.queue.ring().size() / 2;
  return half - std::min(half, parts_.queue.ring().used());
}

// ---- figures

DiskStat Tiering::Stat() const {
  const MutexLock lock(parts_.mutex);
  DiskStat stat = parts_.stat;
  stat.space.queued_bytes = parts_.queue.bytes();
  const DiskLoads::Counts& loads = parts_.loads.counts();
  stat.promoted = loads.promoted;
  stat.promoted_bytes = loads.promoted_bytes;
  stat.load_misses = loads.misses;
  stat.load_timeouts = loads.timeouts;
  stat.load_failed = loads.failed;
  stat.load_no_room = loads.no_room;
  stat.counted_ms =
      static_cast<std::uint64_t>((parts_.clock.NowNs() - parts_.counted_since_ns) / kMillisecond);
  stat.aside = parts_.state.aside() ? 1 : 0;
  if (parts_.state.state() == DiskState::State::kAside) {
    const std::int64_t left_ns =
        std::max<std::int64_t>(use_.retry_at_ns() - parts_.clock.NowNs(), 0);
    stat.retry_ms = static_cast<std::uint64_t>(left_ns / kMillisecond);
  }
  return stat;
}

std::vector<ShareFigures> Tiering::ByShare() const {
  const MutexLock lock(parts_.mutex);
  const std::vector<disklog::ShareLimits> limits = parts_.quotas.Limits();
  std::vector<ShareFigures> shares;
  for (disklog::ShareNumber i = 0; i < limits.size(); ++i) {
    shares.push_back({.held_bytes = parts_.Held(i),
                      .read_bytes = parts_.loads.read_bytes(i),
                      .limits = limits[i]});
  }
  return shares;
}

bool Tiering::HasWork() const {
  const MutexLock lock(parts_.mutex);
  return parts_.fences.orders() || !parts_.loads.empty() || parts_.queue.size() > 0;
}

bool Tiering::Idle() const {
  const MutexLock lock(parts_.mutex);
  return parts_.state.aside() ||
         (parts_.queue.idle() && !parts_.fences.orders() && !parts_.fences.unproven());
}

}  // namespace kvcove::owner
