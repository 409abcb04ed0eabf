// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/disk/tiering.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "kvcove/base/copy.h"
#include "kvcove/base/interrupt.h"

namespace kvcove::owner {
namespace {

// Of the time between two ticks no more counts: this process may have been stopped.
constexpr std::int64_t kLongestTickNs = 100 * kMillisecond;

std::string_view WordFor(DiskOperation kind) {
  if (kind == DiskOperation::kRead) return "read";
  return kind == DiskOperation::kWrite ? "write" : "sync";
}

}  // namespace

Tiering::Tiering(const TieringOptions& options, DiskShared& common,
                 const segment::HeaderView& header, const segment::Payload& payload,
                 const Clock& clock)
    : options_(options),
      header_(header),
      payload_(payload),
      clock_(clock),
      common_(common),
      fences_(options.remembered),
      quotas_(common.quotas),
      loads_({.loads = options.loads, .batch_bytes = options.batch_bytes}, quotas_.ReadRates(),
             clock.NowNs()),
      queue_(options.queue_bytes, options.queue_objects, common.quotas.size()) {
  common_.disks.push_back(this);
}

void Tiering::SetShares(std::uint64_t shares) {
  shares_ = shares;
  const MutexLock lock(mutex_);
  quotas_.SetPart(static_cast<std::uint64_t>(std::popcount(shares)));
  loads_.SetRates(quotas_.ReadRates(), clock_.NowNs());
}

disklog::ShareNumber Tiering::ShareOf(SlotId slot) const {
  if (common_.quotas.empty()) return disklog::kNoShare;
  return common_.ShareOf(fences_.NameOf(slot));
}

bool Tiering::BeyondShare(const Demotion& demotion) const {
  return demotion.share != disklog::kNoShare &&
         quotas_.Beyond(demotion.share, Held(demotion.share) + demotion.size_bytes);
}

std::uint64_t Tiering::TagOf(SlotId slot, Generation generation, std::string_view key) const {
  return segment::TierTag(segment::TierHash(common_.tags.seed(), slot, key), generation);
}

// ---- under the owner's lock

// What is queued is looked at first: it is taken from there only after the table has it.
bool Tiering::Holds(SlotId slot, Generation generation, std::string_view key) const {
  std::uint64_t tag = 0;
  {
    const MutexLock lock(mutex_);
    if (!state_.on()) return false;
    tag = TagOf(slot, generation, key);
    if (queue_.Pending(tag)) return true;
  }
  return header_.tier().Holds(tag);
}

bool Tiering::Covers(SlotId slot, Generation generation, std::string_view key) {
  const MutexLock lock(mutex_);
  if (state_.on()) return false;
  return header_.tier().HasTag(TagOf(slot, generation, key)) && state_.Cover();
}

void Tiering::Stored(SlotId slot, Generation generation, std::string_view key,
                     const policy::PutEvent& event, bool comes_up) {
  bool returned = false;
  {
    const MutexLock lock(mutex_);
    const bool there = state_.on() || state_.telling();
    returned = state_.on() && comes_up;
    if (!there) fences_.Remember(slot, generation, key);
    // Its put began while the disk was away.
    if (there && !comes_up && header_.tier().HasTag(TagOf(slot, generation, key))) {
      RemoveOlder(slot, generation, key);
    }
  }
  // What comes up counts by itself, whether or not what it stands behind has come up before it.
  policy::PutEvent alone = event;
  if (returned) alone.parent = policy::kNoObject;
  common_.rules.OnPut(alone, returned);
}

void Tiering::Forsake(SlotId slot, Generation generation, std::string_view key) {
  const MutexLock lock(mutex_);
  if (state_.telling()) RemoveOlder(slot, generation, key);
}

void Tiering::Fence(std::uint64_t tag) {
  loads_.Fence(tag);
  if (Demotion* const down = queue_.Find(tag); down != nullptr) DropQueued(*down);
}

void Tiering::RemoveOlder(SlotId slot, Generation generation, std::string_view key) {
  const std::uint64_t tag = TagOf(slot, generation, key);
  Fence(tag);
  fences_.RemoveOlder({.slot = slot, .generation = generation, .key = std::string(key)}, tag);
}

// Puts it into the queue with room for its bytes, or says why not. All in one hold: between the
// checks and its place in the queue the disk may not be set aside.
Tiering::Admission Tiering::Admit(const EvictedObject& object,
                                  const std::shared_ptr<Demotion>& demotion) {
  const MutexLock lock(mutex_);
  demotion->era = state_.era();
  demotion->tag = TagOf(object.slot, object.generation, object.key);
  // What is being told may have been passed over because memory had it: it is kept then, too.
  const bool there =
      (state_.on() || state_.telling()) && !queue_.closed() && header_.tier().HasTag(demotion->tag);
  if (!there && (!state_.on() || queue_.closed())) {
    common_.rules.OnRemove(object.id);
    ++stat_.dropped_other;
    // A disk that is closed and opened again, for an upgrade, may have it: it stays listed until
    // that is known (Owner::TakeGone).
    const bool opens = options_.listed && !state_.aside() && !state_.telling();
    if (!opens) return Admission::kRefused;
    inventory_.Lose(
        {.slot = object.slot, .generation = object.generation, .key = std::string(object.key)});
    return Admission::kKept;
  }
  if (there || queue_.Pending(demotion->tag)) {
    common_.rules.OnKept(object.id, object.hash);
    // Not what is being removed there.
    const bool leaves = fences_.Removes(demotion->tag);
    ++(leaves ? stat_.dropped_other : stat_.kept);
    return leaves ? Admission::kRefused : Admission::kKept;
  }
  if (!object.goes_down) {
    common_.rules.OnRemove(object.id);
    return Admission::kRefused;
  }
  demotion->share = ShareOf(object.slot);
  const policy::Verdict verdict = common_.rules.Judge(object.id, object.hash);
  demotion->brief = verdict.brief;
  std::uint64_t* refused = nullptr;
  if (object.size_bytes > queue_.ring().size()) {
    refused = &stat_.dropped_other;
  } else if (!verdict.worth) {
    refused = &stat_.not_worth;
  } else if (BeyondShare(*demotion)) {
    refused = &stat_.over_share;
  } else if (!common_.rules.WithinRate(demotion->share, clock_.NowNs())) {
    refused = &stat_.over_rate;
  } else if (!common_.tags.Add(demotion->tag)) {
    // Written without a place in the table, it would be on the disk though nothing finds it there.
    refused = &stat_.table_full;
  } else if (!queue_.Push(demotion)) {
    common_.tags.Remove(demotion->tag);
    refused = &stat_.dropped_full;
  }
  if (refused != nullptr) {
    ++*refused;
    return Admission::kRefused;
  }
  common_.rules.OnWritten(demotion->share, object.size_bytes);
  common_.budget_bytes.store(common_.rules.budget_bytes(), std::memory_order_relaxed);
  return Admission::kQueued;
}

std::uint64_t Tiering::SpareBytes() const {
  constexpr std::uint64_t kAny = ~std::uint64_t{0};
  if (!common_.rules.keeps()) return kAny;
  const MutexLock lock(mutex_);
  if (!state_.on() || queue_.closed()) return kAny;  // it drops what it gets
  if (queue_.size() > options_.queue_objects / 2) return 0;
  const std::uint64_t half = queue_.ring().size() / 2;
  return half - std::min(half, queue_.ring().used());
}

// What comes up evicts as many bytes, while puts may overshoot their half by one value.
std::uint64_t Tiering::RoomToComeUp() const {
  constexpr std::uint64_t kAny = ~std::uint64_t{0};
  if (!common_.rules.keeps()) return kAny;
  const MutexLock lock(mutex_);
  if (!state_.on() || queue_.closed()) return kAny;  // it drops what it gets
  const ByteRing& ring = queue_.ring();
  const std::uint64_t taken = std::max(ring.used(), ring.size() / 8 * 5);
  return ring.size() - std::min(ring.size(), taken);
}

std::uint64_t Tiering::coming() const {
  const MutexLock lock(mutex_);
  return state_.aside() ? 0 : coming_.load(std::memory_order_relaxed);
}

bool Tiering::TakeComing(std::uint64_t bytes) {
  if (common_.rules.keeps()) {
    const MutexLock lock(common_.coming_mutex);
    std::uint64_t room = ~std::uint64_t{0};
    std::uint64_t all = 0;
    for (const Tiering* disk : common_.disks) {
      room = std::min(room, disk->RoomToComeUp());
      all += disk->coming();
    }
    // One value always may, however large it is, unless the queue is full.
    if (all > 0 ? all + bytes > room : room == 0) return false;
    coming_.fetch_add(bytes, std::memory_order_relaxed);
    return true;
  }
  coming_.fetch_add(bytes, std::memory_order_relaxed);
  return true;
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
  // Outside of the lock, for values are large. A disk that is set aside meanwhile forgets the value
  // with all others of its queue; nobody takes this memory for another one while the owner's lock
  // is held.
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

void Tiering::SetSlots(const std::vector<SlotUpdate>& updates) {
  const MutexLock lock(mutex_);
  fences_.SetSlots(updates);
}

bool Tiering::AddLoad(const std::shared_ptr<LoadBatch>& batch, const Load& wanted) {
  const MutexLock lock(mutex_);
  if (loads_.ended()) return loads_.Refuse(*batch, MissReason::kUnavailable);
  if (state_.aside() || state_.telling()) return loads_.Refuse(*batch, MissReason::kDiskFailed);
  Load load = wanted;
  load.tag = TagOf(wanted.slot, wanted.generation, wanted.key);
  load.share = ShareOf(wanted.slot);
  if (fences_.Removes(load.tag)) return loads_.Refuse(*batch, MissReason::kRemoved);
  if (fences_.Hides(wanted.slot, wanted.key)) return loads_.Refuse(*batch, MissReason::kRaced);
  if (!header_.tier().Holds(load.tag)) return loads_.Refuse(*batch, MissReason::kEvicted);
  return loads_.Add(batch, load);
}

bool Tiering::Wanted(const Load& load) const {
  const MutexLock lock(mutex_);
  return !load.cancelled && !state_.aside() && !fences_.Hides(load.slot, load.key) &&
         DiskLoads::Waits(load);
}

void Tiering::DropQueued(Demotion& demotion) {
  if (!queue_.Drop(demotion)) return;
  common_.tags.Remove(demotion.tag);
  ++stat_.dropped_other;
}

std::vector<std::uint64_t> Tiering::TagsOf(const TierOrder& order) const {
  std::vector<std::uint64_t> tags;
  for (const std::string& key : order.keys) {
    tags.push_back(TagOf(order.slot, order.generation, key));
  }
  return tags;
}

void Tiering::Remove(SlotId slot, Generation generation, std::span<const std::string_view> keys,
                     const std::shared_ptr<TierRemoval>& removal) {
  TierOrder order{.kind = TierOrder::Kind::kRemove,
                  .slot = slot,
                  .generation = generation,
                  .keys = {keys.begin(), keys.end()},
                  .removal = removal};
  const std::vector<std::uint64_t> tags = TagsOf(order);
  const MutexLock lock(mutex_);
  if (!fences_.Join(*removal, state_.era(), state_.aside())) {
    // In a cluster the note does not name the disk while it is away, so another process does not
    // use what it holds. This one remembers what is to be removed.
    if (!options_.listed) fences_.Miss();
    for (const std::string_view key : keys) fences_.Remember(slot, generation, key);
    return;
  }
  for (const std::uint64_t tag : tags) Fence(tag);
  fences_.Remove(std::move(order), tags);
}

void Tiering::BeginMatching(SlotId slot, std::string_view pattern) {
  const MutexLock lock(mutex_);
  fences_.BeginMatching(slot, pattern);
  loads_.FenceMatching(slot, pattern);
}

void Tiering::EndMatching(SlotId slot, std::string_view pattern) {
  const MutexLock lock(mutex_);
  fences_.EndMatching(slot, pattern);
}

void Tiering::RemoveMatching(SlotId slot, Generation generation, std::string_view pattern,
                             const std::shared_ptr<TierRemoval>& removal) {
  const MutexLock lock(mutex_);
  if (!fences_.Join(*removal, state_.era(), state_.aside())) {
    fences_.EndMatching(slot, pattern);
    fences_.Miss();
    return;
  }
  fences_.RemoveMatching({.kind = TierOrder::Kind::kRemoveMatching,
                          .slot = slot,
                          .generation = generation,
                          .keys = {},
                          .pattern = std::string(pattern),
                          .removal = removal});
}

// ---- without a lock

void Tiering::Answer(const DiskLoads::Ready& ready) {
  if (ready.empty()) return;
  ExpectNoLock("the answer to a load");
  for (const auto& batch : ready) batch->done(std::move(batch->results));
  const MutexLock lock(mutex_);
  loads_.Answered(ready.size());
  answered_.NotifyAll();
}

void Tiering::EndLoads() {
  DiskLoads::Ready ready;
  {
    const MutexLock lock(mutex_);
    loads_.End();
    ready = loads_.TakeReady();
  }
  Answer(ready);
  const MutexLock lock(mutex_);
  while (loads_.answering()) answered_.Wait(mutex_);
}

void Tiering::Begin(const std::shared_ptr<LoadBatch>& batch) {
  DiskLoads::Ready ready;
  {
    const MutexLock lock(mutex_);
    loads_.Begin(batch);
    ready = loads_.TakeReady();
  }
  Answer(ready);
}

Status Tiering::AwaitRemoval(const TierRemoval& removal, std::int64_t deadline_ns) {
  const MutexLock lock(mutex_);
  while (removal.open > 0) {
    if (state_.aside() || removal.missed || removal.era != state_.era()) {
      return Fail(Code::kUnavailable, "the disk has missed a removal while it was set aside");
    }
    const std::int64_t left = LeftNs(deadline_ns, clock_);
    if (left <= 0) {
      return Fail(Code::kTimeout, "the disk has not proven the removal in time; repeat it");
    }
    proven_.WaitFor(mutex_, std::chrono::nanoseconds(left));
  }
  return {};
}

void Tiering::Cancel(const std::shared_ptr<LoadBatch>& batch) {
  const MutexLock lock(mutex_);
  DiskLoads::Cancel(*batch);
}

bool Tiering::Tick(std::int64_t now_ns) {
  DiskLoads::Ready ready;
  bool wake = false;
  {
    const MutexLock lock(mutex_);
    loads_.Expire(now_ns);
    wake = queue_.size() > 0;
    const std::uint64_t progress = progress_.load(std::memory_order_relaxed);
    const std::int64_t elapsed_ns =
        std::clamp<std::int64_t>(now_ns - last_tick_ns_, 0, kLongestTickNs);
    last_tick_ns_ = now_ns;
    ages_->Advance(elapsed_ns);
    stalled_ns_ += elapsed_ns;
    if (std::exchange(seen_progress_, progress) != progress) stalled_ns_ = 0;
    if (const auto why = Hangs(); why && state_.SetAside(*why)) EndUse();
    ready = loads_.TakeReady();
  }
  Answer(ready);
  return wake;
}

std::optional<std::string> Tiering::Hangs() const {
  if (!state_.on() && !state_.telling()) return std::nullopt;
  if (stalled_ns_ > options_.hang_ns) return "its thread hangs in a call for seconds";
  for (const DiskOperation kind : kDiskOperations) {
    if (ages_->AgeNs(kind) <= options_.hang_ns) continue;
    return fmt::format("it has not answered a {} for seconds", WordFor(kind));
  }
  return std::nullopt;
}

bool Tiering::HasWork() const {
  const MutexLock lock(mutex_);
  return fences_.orders() || !loads_.empty() || queue_.size() > 0;
}

DiskStat Tiering::Stat() const {
  const MutexLock lock(mutex_);
  DiskStat stat = stat_;
  stat.space.queued_bytes = queue_.bytes();
  const DiskLoads::Counts& loads = loads_.counts();
  stat.promoted = loads.promoted;
  stat.promoted_bytes = loads.promoted_bytes;
  stat.load_misses = loads.misses;
  stat.load_timeouts = loads.timeouts;
  stat.load_failed = loads.failed;
  stat.load_no_room = loads.no_room;
  stat.aside = state_.aside() ? 1 : 0;
  const bool retried = state_.state() == DiskState::State::kAside;
  if (retried) {
    const std::int64_t at_ns = retry_at_ns_.load(std::memory_order_relaxed);
    const std::int64_t left_ns = std::max<std::int64_t>(at_ns - clock_.NowNs(), 0);
    stat.retry_ms = static_cast<std::uint64_t>(left_ns / kMillisecond);
  }
  return stat;
}

}  // namespace kvcove::owner
