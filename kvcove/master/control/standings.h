// SPDX-License-Identifier: Apache-2.0
// The state of owners and generations that look-ups and listings need, readable without the lock of
// `Control`. At the leader, `Control` writes it under that lock; listings and requesters only mark
// owners. Thread-safe.
//
// One race matters. A listing may replace another owner's value only while that owner is absent,
// and a returning owner's earlier listings count only if none of them was replaced. So a listing
// first marks the absent owner as overtaken and then checks again that the owner is absent; a
// renewal first makes the owner present and then checks whether it was overtaken (Overtake;
// Control::Renew, FinishHello). Both use sequentially consistent order, so at least one of the two
// sees the other. In acquire-release order each could miss the other's store.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

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
    std::atomic<std::uint32_t> epoch{0};        // 0: no owner has this number
    std::atomic<std::uint32_t> first_epoch{0};  // of the same memory, in this term
    std::atomic<std::uint32_t> told_epoch{0};   // the last one with a complete inventory
    // Look-ups find the owner's objects until then: its lease runs, and so does its connection.
    std::atomic<std::int64_t> live_until_ns{0};
    // Listings do not replace the owner's values until then.
    std::atomic<std::int64_t> present_until_ns{0};
    std::atomic<bool> overtaken{false};         // a listing may have replaced one of its values
    std::atomic<bool> tells_first{false};       // no lease before its inventory is complete
    std::atomic<std::int64_t> broken_at_ns{0};  // when a requester said that it does not answer
    std::atomic<std::uint64_t> tenant{0};       // TenantTag of the only one it serves; 0: all
    std::atomic<bool> hides{false};             // some of its slots: see SetHidden
    std::atomic<bool> disk_away{false};         // one of its disks is set aside
  };
  Owner& owner(OwnerNumber number) { return owners_[number]; }
  const Owner& owner(OwnerNumber number) const { return owners_[number]; }

  bool EpochIs(OwnerNumber number, std::uint32_t epoch) const {
    return number < owners_.size() && epoch != 0 &&
           owners_[number].epoch.load(std::memory_order_acquire) == epoch;
  }
  // Returns true if the owner's whole inventory is listed under this epoch.
  bool ToldUnder(OwnerNumber number, std::uint32_t epoch) const {
    return owners_[number].told_epoch.load(std::memory_order_acquire) == epoch;
  }
  std::int64_t NowNs() const { return clock_.NowNs(); }
  bool Live(OwnerNumber number) const { return LiveAt(number, NowNs()); }
  bool LiveAt(OwnerNumber number, std::int64_t now_ns) const {
    return owners_[number].live_until_ns.load(std::memory_order_acquire) > now_ns;
  }
  // Returns true while listings may not replace the owner's values. Reads the clock first: a
  // renewal in between moves the time further into the future, so the owner counts as present.
  bool Present(OwnerNumber number) const {
    const std::int64_t now = clock_.NowNs();
    return owners_[number].present_until_ns.load(std::memory_order_seq_cst) > now;
  }
  // Returns true if the owner gets no lease before its inventory is listed under its current epoch.
  bool TellsFirst(OwnerNumber number) const {
    return owners_[number].tells_first.load(std::memory_order_acquire);
  }
  // Marks an absent owner as overtaken. Returns false when the owner is present after all.
  bool Overtake(OwnerNumber number) {
    owners_[number].overtaken.store(true, std::memory_order_seq_cst);
    return !Present(number);
  }
  // Answers whether another value may replace a value of this owner that was listed under that
  // epoch. kAsk: only once a barrier is stored (Control::BarOvertaken), or the leader has said so.
  enum class Way : std::uint8_t { kNo, kYes, kAsk };
  Way GivesWay(OwnerNumber number, SlotId slot, std::uint32_t listed_under) {
    // An owner without a lease that has not listed this value again drops it when it lists it: the
    // directory refuses the older value. An owner whose lease runs shows the value meanwhile.
    const bool drops = !EpochIs(number, listed_under) && TellsFirst(number);
    if (replica_) {
      if (Granted(number, slot, listed_under)) return Way::kYes;
      return Present(number) && !drops ? Way::kNo : Way::kAsk;
    }
    if (Present(number) && !drops) return Way::kNo;
    // The barrier must be stored first: a later master does not know that this value was replaced,
    // and would let the owner bring it back.
    if (!Barred(number, slot)) return Way::kAsk;
    if (!drops && !Overtake(number)) return Way::kNo;
    NoteGaveWay(number, slot);
    return Way::kYes;
  }
  // ---- a replica, at a shard: it lags, so it never decides by itself that a value is replaced
  void BeReplica() { replica_ = true; }
  // Notes the leader's word that values listed before `epoch`, or also under it (`this_too`), may
  // be replaced. That stays true: the owner has no lease under that epoch any more, and lists its
  // whole inventory again under a later one.
  void Grant(OwnerNumber number, SlotId slot, std::uint32_t epoch, bool this_too) {
    const MutexLock lock(barred_mutex_);
    if (granted_.size() >= kMaxGranted) granted_.clear();  // listings ask the leader again
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

  // Notes that the store has, or has no more, a barrier of this owner and slot. A barrier keeps the
  // owner from bringing the slot back under a later master, which does not know the replaced
  // values.
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
  // Notes that values of the slot were replaced under its barrier, here or at shards. A barrier
  // alone may have been raised for an owner that returned in time. Call it before the replacement.
  void NoteGaveWay(OwnerNumber number, SlotId slot) {
    const MutexLock lock(barred_mutex_);
    gave_way_.insert({number, slot});
  }
  bool GaveWay(OwnerNumber number, SlotId slot) const {
    const MutexLock lock(barred_mutex_);
    return gave_way_.contains({number, slot});
  }
  // Sets the slots that the owner must hide under its current lease: barriers have proven removals
  // there, and until the owner has applied these, it may list removed objects. Look-ups skip the
  // slots, too, so the caller sets them before the owner is live under that lease.
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
  // Returns true if a disk of the owner is set aside, so that misses of its objects are its fault.
  bool DiskAway(OwnerNumber number) const {
    return owners_[number].disk_away.load(std::memory_order_acquire);
  }
  // Number of members whose inventory is not completely listed under this master (Members::Untold).
  std::atomic<std::size_t> untold{0};

  // Returns true if the owner may list again the objects that it listed under this epoch: its
  // memory is the same, and its inventory was not complete since. Epochs wrap, so they are compared
  // by their distance.
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
  // Returns the slot's generation; 0: the slot is free, or not published in this term.
  Generation GenerationOf(SlotId slot) const {
    return generations_[slot].load(std::memory_order_acquire);
  }
  // Returns the TenantTag of the slot's tenant; ~0: there is no such slot.
  std::uint64_t TenantOfSlot(SlotId slot) const {
    return slot < tenants_.size() ? tenants_[slot].load(std::memory_order_acquire) : ~0ULL;
  }

 private:
  static constexpr std::size_t kMaxGranted = 1 << 16;

  const Clock& clock_;
  bool replica_ = false;        // set before the first call
  mutable Mutex barred_mutex_;  // innermost
  std::set<std::pair<OwnerNumber, SlotId>> barred_ KVCOVE_GUARDED_BY(barred_mutex_);
  std::set<std::pair<OwnerNumber, SlotId>> gave_way_ KVCOVE_GUARDED_BY(barred_mutex_);
  std::map<std::pair<OwnerNumber, SlotId>, std::pair<std::uint32_t, bool>> granted_
      KVCOVE_GUARDED_BY(barred_mutex_);
  std::map<OwnerNumber, std::vector<SlotId>> hidden_ KVCOVE_GUARDED_BY(barred_mutex_);
  std::vector<Owner> owners_;
  std::vector<std::atomic<Generation>> generations_;
  std::vector<std::atomic<std::uint64_t>> tenants_;
};

}  // namespace kvcove::master
