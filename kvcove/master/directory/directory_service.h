// SPDX-License-Identifier: Apache-2.0
// The directory's calls: listings from owners, look-ups from requesters, removals, and why keys are
// missed. One lock of its own, held for a slice of a large call at a time.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/master/directory/directory.h"
#include "kvcove/master/directory/removal_memory.h"

namespace kvcove::master {

// A miss that a look-up was answered with lately.
struct RecentMiss {
  MissReason reason = MissReason::kNone;
  std::uint32_t count = 0;
  std::int64_t age_ns = 0;
};

// Thread-safe.
class DirectoryService {
 public:
  struct Options {
    // Numbers of removals below are another master's (RemovalLog::FirstOf).
    std::uint64_t first_removal = 0;
    std::uint32_t inventory_batch = 4096;  // objects that an owner may tell at a time
    // Owners that may tell their inventory at a time, for each master that serves the directory.
    std::size_t tellers = 16;
    std::uint64_t max_entries = 200'000'000;  // 67 to 94 bytes each
    std::uint64_t tenant_entries = 0;         // of one tenant; 0: a quarter of all
    // Removals up to this one are not known here: what was put before it is refused.
    std::uint64_t floor = 0;
    bool copies = true;  // for simulations: copies are checked against removals
  };
  DirectoryService(const Options& options, Standings& standings, const Clock& clock);

  // `drops`: slots that this owner must drop first. Errors: kStale when the owner must say hello.
  // kInProgress with nothing in `to_bar`: another shard has a slice of one of the keys, or is about
  // to get it.
  // kInProgress: nothing is answered before the absent owners in `to_bar` are barred from these
  // slots (Control::BarOvertaken); then call it again with the same request. `may_bar` false: they
  // cannot be barred now, so their values stay: a put is refused as kExists, a copy and
  // what is told as kStale.
  using OwnerSlots = std::vector<std::pair<OwnerNumber, SlotId>>;
  Result<wire::ListReply> List(const wire::ListRequest& request, std::span<const SlotId> drops,
                               OwnerSlots& to_bar, bool may_bar = true);
  // One place a hash. `warming`: what is nowhere may be told soon.
  std::vector<wire::Place> Lookup(SlotId slot, std::span<const Id128> hashes);
  wire::Place Find(SlotId slot, std::string_view key) const;
  // What is known of each key here: kShardAway where another shard knows more.
  std::vector<wire::HeldKey> Held(std::span<const std::pair<SlotId, Id128>> keys) const;

  // Nothing that was begun before `number` is listed any more. kOk for each key that was there.
  // `generation`: the one that is meant; a later one's values stay, as they do on their owners.
  std::vector<Code> Remove(SlotId slot, Generation generation, std::span<const std::string> keys,
                           std::uint64_t number);
  void RemovePattern(SlotId slot, std::uint64_t number);

  void RememberMisses(SlotId slot, std::span<const Id128> hashes,
                      std::span<const wire::Place> places);
  void RememberMiss(SlotId slot, const Id128& hash, MissReason reason);
  // Why the last look-ups of this key missed; empty when none did lately.
  std::optional<RecentMiss> Why(SlotId slot, std::string_view key) const;

  // ---- shards (docs/ha.md). All slices are served at first.
  // `states`: kSlices of them, or none: all are served. `shards`: how many masters share what
  // owners tell; so many times more of these may tell at a time, for each sends each shard a part.
  void SetSlices(std::span<const wire::SliceState> states, std::size_t shards);
  // Entries of these slices, from part `cursor` of the table on; `cursor` is where to go on, and
  // Directory::kShards at the end.
  std::vector<wire::ShardEntry> CopySlices(const Directory::Slices& slices, std::uint32_t& cursor);
  // What a removal behind `shown` took is not brought back.
  void LoadEntries(std::span<const wire::ShardEntry> entries, std::uint64_t shown);
  void ForgetSlices(const Directory::Slices& slices);

  // Finds the tenants with more entries than their share, and sweeps while there are any.
  void Tick();
  // Who may list nothing more that is new.
  struct Full {
    bool all = false;
    std::set<std::uint64_t> tenants;  // their tags
    bool operator==(const Full&) const = default;
  };
  Full full() const;
  // Of a directory that several masters serve: what the others have of each slot, at the leader;
  // and what the leader has found, at a shard. Both count beside what is found here.
  void SetElsewhere(std::vector<std::uint64_t> entries_of_slots);
  void SetFull(Full full);
  // By slot; with entries that are dead but not swept yet.
  std::vector<std::uint64_t> EntriesBySlot() const;
  // Listings beyond a share, or beyond what the directory may hold.
  std::uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }

  std::uint64_t entries() const;
  std::uint64_t bytes() const;
  std::uint64_t lookups() const { return lookups_.load(std::memory_order_relaxed); }
  std::uint64_t listed() const { return listed_.load(std::memory_order_relaxed); }
  std::uint64_t rejected() const { return rejected_.load(std::memory_order_relaxed); }
  std::size_t remembered_removals() const;

  // ---- for a successor's process
  // Every entry, while calls are served; counts as known to the successor from then on.
  void SaveAhead(StateWriter& ar);
  static Directory::Shards LoadAhead(StateReader& ar);
  // What LoadAhead does not have. While nobody is served.
  void Save(StateWriter& ar);
  void Load(StateReader& ar, Directory::Shards ahead);

 private:
  struct Missed {
    std::uint64_t tag = 0;
    std::int64_t at_ns = 0;
    std::uint32_t count = 0;
    MissReason reason = MissReason::kNone;
  };
  // What an owner asked last, so that a repetition gets the same answer.
  struct Answered {
    std::uint32_t epoch = 0;
    std::uint64_t session = 0;
    std::uint64_t sequence = 0;
    std::vector<Code> codes;
    template <typename Ar>
    void Carry(Ar& ar) {
      CarryAll(ar, epoch, session, sequence, codes);
    }
  };
  template <typename Ar>
  void CarryMembers(Ar& ar) KVCOVE_REQUIRES(mutex_);
  Code ListOne(const wire::ListItem& item, const wire::ListRequest& request,
               std::span<const SlotId> drops, OwnerSlots& to_bar) KVCOVE_REQUIRES(mutex_);
  void Unlist(const wire::ListItem& item, OwnerNumber number) KVCOVE_REQUIRES(mutex_);
  void ForgetWent() KVCOVE_REQUIRES(mutex_);
  // `told`: objects of its inventory in this request.
  std::uint32_t CreditFor(OwnerNumber number, bool tells, std::size_t told) KVCOVE_REQUIRES(mutex_);
  void Note(SlotId slot, const Id128& hash, MissReason reason) KVCOVE_REQUIRES(mutex_);
  bool MayGrow(SlotId slot) const KVCOVE_REQUIRES(mutex_);
  bool Serves(const Id128& hash, bool listing) const KVCOVE_REQUIRES(mutex_);
  // A look-up that found nothing says so only where nobody else lists the key.
  void Qualify(const Id128& hash, wire::Place& place) const KVCOVE_REQUIRES(mutex_);
  std::optional<RecentMiss> MissOf(SlotId slot, const Id128& hash) const KVCOVE_REQUIRES(mutex_);

  const Options options_;
  Standings& standings_;
  const Clock& clock_;
  mutable Mutex mutex_;
  Directory directory_ KVCOVE_GUARDED_BY(mutex_);
  RemovalMemory removals_ KVCOVE_GUARDED_BY(mutex_);
  std::vector<wire::SliceState> slices_ KVCOVE_GUARDED_BY(mutex_);  // empty: all are served
  std::size_t shards_ KVCOVE_GUARDED_BY(mutex_) = 1;
  std::vector<Missed> missed_ KVCOVE_GUARDED_BY(mutex_);
  // Values that went while some owner's inventory was not told: one that it tells later under the
  // same key is older, and must not be seen after them. Bounded; the oldest are forgotten.
  std::unordered_map<std::uint64_t, std::uint32_t> went_ KVCOVE_GUARDED_BY(mutex_);  // tag -> group
  std::deque<std::uint64_t> went_order_ KVCOVE_GUARDED_BY(mutex_);
  bool went_forgotten_ KVCOVE_GUARDED_BY(mutex_) = false;  // some of them, for want of room
  std::map<OwnerNumber, Answered> answered_ KVCOVE_GUARDED_BY(mutex_);
  std::map<OwnerNumber, std::int64_t> tellers_
      KVCOVE_GUARDED_BY(mutex_);                            // how long each is waited for
  std::set<std::uint64_t> full_ KVCOVE_GUARDED_BY(mutex_);  // tenants' tags
  bool all_full_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::vector<std::uint64_t> elsewhere_ KVCOVE_GUARDED_BY(mutex_);  // by slot; empty: nothing
  Full told_full_ KVCOVE_GUARDED_BY(mutex_);
  std::int64_t counted_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::vector<std::uint64_t> ahead_ KVCOVE_GUARDED_BY(mutex_);  // of SaveAhead, by shard
  std::atomic<std::uint64_t> refused_{0};
  std::atomic<std::uint64_t> lookups_{0};
  std::atomic<std::uint64_t> listed_{0};
  std::atomic<std::uint64_t> rejected_{0};
};

}  // namespace kvcove::master
