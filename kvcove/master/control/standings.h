// SPDX-License-Identifier: Apache-2.0
// The state of owners and generations that look-ups and listings need, readable without the lock
// of `Control`.
// Written under the lock of `Control`, read by look-ups and listings. Thread-safe.
//
// One race matters. A listing may take the place of another owner's value only while that owner is
// absent, and an owner that comes back may be trusted with what it listed before only if none of it
// was taken. So a listing first marks the absent owner as overtaken and then looks again whether it
// is absent; a renewal first makes the owner present and then looks whether it was overtaken. Both
// use sequentially consistent order, so one of the two always sees the other.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "kvcove/base/carry.h"
#include "kvcove/base/clock.h"
#include "kvcove/base/mutex.h"
#include "kvcove/wire/owner_link.h"

namespace kvcove::master {

using wire::OwnerNumber;

class Standings {
 public:
  explicit Standings(const Clock& clock)
      : clock_(clock), owners_(wire::kMaxOwners), generations_(kMaxSlots), tenants_(kMaxSlots) {}

  // ---- owners, by number
  struct Owner {
    std::atomic<std::uint32_t> epoch{0};        // 0: nobody has this number
    std::atomic<std::uint32_t> first_epoch{0};  // of the same memory, in this term
    std::atomic<std::uint32_t> told_epoch{0};   // the last one in which all of it was told
    // Its objects are to be found until then: its lease runs and its connection stands.
    std::atomic<std::int64_t> live_until_ns{0};
    // What it has listed stands until then.
    std::atomic<std::int64_t> present_until_ns{0};
    std::atomic<bool> overtaken{false};
    std::atomic<bool> tells_first{false};       // it has no lease before it has told everything
    std::atomic<std::int64_t> broken_at_ns{0};  // when a requester said that it does not answer
    std::atomic<std::uint64_t> tenant{0};       // TenantTag of the only one it serves; 0: all
    std::atomic<bool> hides{false};             // some of its slots: see SetHidden
    std::atomic<bool> disk_away{false};         // a disk of its is set aside
    template <typename Ar>
    void Carry(Ar& ar) {
      CarryAtomic(ar, epoch);
      CarryAtomic(ar, first_epoch);
      CarryAtomic(ar, told_epoch);
      CarryAtomic(ar, live_until_ns);
      CarryAtomic(ar, present_until_ns);
      CarryAtomic(ar, overtaken);
      CarryAtomic(ar, tells_first);
      CarryAtomic(ar, broken_at_ns);
      CarryAtomic(ar, tenant);
      CarryAtomic(ar, disk_away);
    }
  };
  Owner& owner(OwnerNumber number) { return owners_[number]; }
  const Owner& owner(OwnerNumber number) const { return owners_[number]; }

  bool EpochIs(OwnerNumber number, std::uint32_t epoch) const {
    return number < owners_.size() && epoch != 0 &&
           owners_[number].epoch.load(std::memory_order_acquire) == epoch;
  }
  // All of its inventory is listed under this epoch.
  bool ToldUnder(OwnerNumber number, std::uint32_t epoch) const {
    return owners_[number].told_epoch.load(std::memory_order_acquire) == epoch;
  }
  std::int64_t NowNs() const { return clock_.NowNs(); }
  bool Live(OwnerNumber number) const { return LiveAt(number, NowNs()); }
  bool LiveAt(OwnerNumber number, std::int64_t now_ns) const {
    return owners_[number].live_until_ns.load(std::memory_order_acquire) > now_ns;
  }
  // The clock is read first: a renewal that comes in between makes the owner present for longer.
  bool Present(OwnerNumber number) const {
    const std::int64_t now = clock_.NowNs();
    return owners_[number].present_until_ns.load(std::memory_order_seq_cst) > now;
  }
  // It has no lease before it has told everything under its current epoch.
  bool TellsFirst(OwnerNumber number) const {
    return owners_[number].tells_first.load(std::memory_order_acquire);
  }
  // False when the owner is present after all.
  bool Overtake(OwnerNumber number) {
    owners_[number].overtaken.store(true, std::memory_order_seq_cst);
    return !Present(number);
  }
  // Whether a value of this owner, listed under that epoch, may give way to another one. kAsk:
  // after a barrier stands (Control::BarOvertaken), or the leader has said so.
  enum class Way : std::uint8_t { kNo, kYes, kAsk };
  Way GivesWay(OwnerNumber number, SlotId slot, std::uint32_t listed_under) {
    // An owner without a lease that has not told this value again drops it when it does. One whose
    // lease runs shows it all the while.
    const bool drops = !EpochIs(number, listed_under) && TellsFirst(number);
    if (replica_) {
      if (Granted(number, slot, listed_under)) return Way::kYes;
      return Present(number) && !drops ? Way::kNo : Way::kAsk;
    }
    if (Present(number) && !drops) return Way::kNo;
    if (!Barred(number, slot)) return Way::kAsk;
    if (!drops && !Overtake(number)) return Way::kNo;
    NoteGaveWay(number, slot);
    return Way::kYes;
  }
  // ---- a replica, at a shard: it lags, so it never decides by itself that a value gives way
  void BeReplica() { replica_ = true; }
  // The leader says so of values listed under `epoch` (`this_too`) or earlier. That stays true: the
  // owner has no lease under that epoch any more, and tells all that it has under a later one.
  void Grant(OwnerNumber number, SlotId slot, std::uint32_t epoch, bool this_too) {
    const MutexLock lock(barred_mutex_);
    if (granted_.size() >= kMaxGranted) granted_.clear();  // they are asked for again
    granted_[{number, slot}] = {epoch, this_too};
  }
  bool Granted(OwnerNumber number, SlotId slot, std::uint32_t listed_under) const {
    const MutexLock lock(barred_mutex_);
    const auto at = granted_.find({number, slot});
    if (at == granted_.end()) return false;
    // Epochs wrap, so they are compared by their distance.
    const auto age = static_cast<std::int32_t>(at->second.first - listed_under);
    return age > 0 || (age == 0 && at->second.second);
  }

  // The store holds a barrier that keeps the owner from bringing the slot back under a later
  // master, which would not know what was overtaken.
  void SetBarred(OwnerNumber number, SlotId slot, bool barred) {
    const MutexLock lock(barred_mutex_);
    if (barred) {
      barred_.insert({number, slot});
    } else {
      barred_.erase({number, slot});
      gave_way_.erase({number, slot});
    }
  }
  bool Barred(OwnerNumber number, SlotId slot) const {
    const MutexLock lock(barred_mutex_);
    return barred_.contains({number, slot});
  }
  // Under its barrier, values of the slot gave way, here or at shards; a barrier alone may have
  // been raised for an owner that was back in time. Noted before anybody acts on it.
  void NoteGaveWay(OwnerNumber number, SlotId slot) {
    const MutexLock lock(barred_mutex_);
    gave_way_.insert({number, slot});
  }
  bool GaveWay(OwnerNumber number, SlotId slot) const {
    const MutexLock lock(barred_mutex_);
    return gave_way_.contains({number, slot});
  }
  // What its current lease tells the owner to hide: removals were proven by barriers there, and it
  // may list what they took until it has applied them. Look-ups do not find it either. Set before
  // the owner is live under that lease.
  void SetHidden(OwnerNumber number, const std::vector<SlotId>& slots) {
    Owner& of = owners_[number];
    if (slots.empty() && !of.hides.load(std::memory_order_relaxed)) return;
    const MutexLock lock(barred_mutex_);
    if (slots.empty()) {
      hidden_.erase(number);
    } else {
      hidden_[number] = slots;
    }
    of.hides.store(!slots.empty(), std::memory_order_release);
  }
  std::vector<SlotId> HiddenOf(OwnerNumber number) const {
    if (!owners_[number].hides.load(std::memory_order_acquire)) return {};
    const MutexLock lock(barred_mutex_);
    const auto of = hidden_.find(number);
    return of == hidden_.end() ? std::vector<SlotId>() : of->second;
  }
  bool Hidden(OwnerNumber number, SlotId slot) const {
    if (!owners_[number].hides.load(std::memory_order_acquire)) return false;
    const MutexLock lock(barred_mutex_);
    const auto of = hidden_.find(number);
    return of != hidden_.end() && std::ranges::find(of->second, slot) != of->second.end();
  }
  // What its disk had is not told by an owner that can be asked: a miss is the disk's fault.
  bool DiskAway(OwnerNumber number) const {
    return owners_[number].disk_away.load(std::memory_order_acquire);
  }
  // Members whose inventory, or that of a disk, is not told under this master.
  std::atomic<std::size_t> untold{0};

  // The owner may still list what it listed under this epoch: it is the same memory, and has not
  // told its whole inventory since. Epochs wrap, so they are compared by their distance.
  bool MayListAgain(OwnerNumber number, std::uint32_t listed_under) const {
    const Owner& of = owners_[number];
    const std::uint32_t epoch = of.epoch.load(std::memory_order_acquire);
    const std::uint32_t first = of.first_epoch.load(std::memory_order_acquire);
    const std::uint32_t told = of.told_epoch.load(std::memory_order_acquire);
    const std::uint32_t age = listed_under - first;
    return epoch != 0 && age <= epoch - first && (told == 0 || age >= told - first);
  }

  // ---- generations, by slot
  void SetSlot(const SlotUpdate& update) {
    tenants_[update.slot].store(TenantTag(TenantOf(update.name)), std::memory_order_release);
    generations_[update.slot].store(update.generation, std::memory_order_seq_cst);
  }
  bool Current(SlotId slot, Generation generation) const {
    return generation != 0 && slot < generations_.size() &&
           generations_[slot].load(std::memory_order_acquire) == generation;
  }
  void SetGeneration(SlotId slot, Generation generation, std::uint64_t tenant) {
    tenants_[slot].store(tenant, std::memory_order_release);
    generations_[slot].store(generation, std::memory_order_seq_cst);
  }
  // 0: free, or not published in this term.
  Generation GenerationOf(SlotId slot) const {
    return generations_[slot].load(std::memory_order_acquire);
  }
  // TenantTag of the slot's tenant.
  std::uint64_t TenantOfSlot(SlotId slot) const {
    return slot < tenants_.size() ? tenants_[slot].load(std::memory_order_acquire) : ~0ULL;
  }

  // While nobody uses it. What owners hide is set again by `Control`.
  template <typename Ar>
  void Carry(Ar& ar) {
    for (Owner& owner : owners_) owner.Carry(ar);
    for (auto& generation : generations_) CarryAtomic(ar, generation);
    for (auto& tenant : tenants_) CarryAtomic(ar, tenant);
    CarryAtomic(ar, untold);
    const MutexLock lock(barred_mutex_);
    CarryOne(ar, barred_);
  }

 private:
  static constexpr std::size_t kMaxGranted = 1 << 16;

  const Clock& clock_;
  bool replica_ = false;        // set before it is used
  mutable Mutex barred_mutex_;  // innermost
  std::set<std::pair<OwnerNumber, SlotId>> barred_ KVCOVE_GUARDED_BY(barred_mutex_);
  // Not carried: it matters with shards alone, whose leader does not hand over.
  std::set<std::pair<OwnerNumber, SlotId>> gave_way_ KVCOVE_GUARDED_BY(barred_mutex_);
  std::map<std::pair<OwnerNumber, SlotId>, std::pair<std::uint32_t, bool>> granted_
      KVCOVE_GUARDED_BY(barred_mutex_);
  std::map<OwnerNumber, std::vector<SlotId>> hidden_ KVCOVE_GUARDED_BY(barred_mutex_);
  std::vector<Owner> owners_;
  std::vector<std::atomic<Generation>> generations_;
  std::vector<std::atomic<std::uint64_t>> tenants_;
};

}  // namespace kvcove::master
