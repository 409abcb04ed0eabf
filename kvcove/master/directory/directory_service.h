// SPDX-License-Identifier: Apache-2.0
// The directory's calls: listings from owners, look-ups from requesters, removals, and the reasons
// of misses. One lock, which a large call holds for 1,024 items at a time.
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
#include "kvcove/model/prefix_count.h"
#include "kvcove/model/saves_under_way.h"

namespace kvcove::master {

// A recent miss of a look-up.
struct RecentMiss {
  MissReason reason = MissReason::kNone;
  std::uint32_t count = 0;
  std::int64_t age_ns = 0;
};

// Thread-safe.
class DirectoryService {
 public:
  struct Options {
    // Lower numbers of removals are another master's (RemovalLog::FirstOf).
    std::uint64_t first_removal = 0;
    std::uint32_t inventory_batch = 4096;  // objects of an inventory in one listing
    // Owners that may list their inventories at the same time, for each master that serves the
    // directory.
    std::size_t tellers = 16;
    std::uint64_t max_entries = 200'000'000;  // 67 to 94 bytes each
    std::uint64_t tenant_entries = 0;         // of one tenant; 0: a quarter of all
    // Removals up to this number are not known here, so listings that were begun below it are
    // refused.
    std::uint64_t floor = 0;
    bool copies = true;  // false, in simulations only: copies are not checked against removals
  };
  DirectoryService(const Options& options, Standings& standings, const Clock& clock);

  // Lists and unlists an owner's objects. A repetition of the last request gets the same answer.
  // `drops`: slots that this owner must drop first.
  //
  // Errors: kStale when the owner must say hello. kInProgress with an empty `to_bar`: another shard
  // has a slice of one of the keys, or is about to get it, or the request is of an earlier session.
  // kInProgress else: bar the absent owners in `to_bar` from these slots (Control::BarOvertaken),
  // then repeat the same request.
  //
  // `may_bar` false: the owners cannot be barred now, so their values stay: a copy is refused as
  // kStale, another put as kExists.
  using OwnerSlots = std::vector<std::pair<OwnerNumber, SlotId>>;
  Result<wire::ListReply> List(const wire::ListRequest& request, std::span<const SlotId> drops,
                               OwnerSlots& to_bar, bool may_bar = true);
  // Returns one place for each hash, in order. `generation`: the slot's, for which saves are under
  // way (Place::under_way); 0: none is.
  std::vector<wire::Place> Lookup(SlotId slot, std::span<const Id128> hashes,
                                  Generation generation = 0);
  wire::Place Find(SlotId slot, std::string_view key) const;

  // ---- saves under way (saves_under_way.h). Known to this master alone, and lost with it: then
  // nobody waits for them.
  // Notes that a connection is about to save these keys (kBegin), or does not save them after all
  // (kEnd), and returns their places as Lookup does. Counts no look-up: nobody wants the values. A
  // key that has a place needs no save.
  std::vector<wire::Place> NoteSaves(SavesUnderWay::Writer writer, const Token& token,
                                     std::span<const Id128> hashes, SaveNotice notice);
  // Notes that a connection has ended.
  void EndSaves(SavesUnderWay::Writer writer);
  // Returns the holders and recent misses of each key; kShardAway where another shard knows more.
  std::vector<wire::HeldKey> Held(std::span<const std::pair<SlotId, Id128>> keys) const;

  // Counts the owners of these keys, the next ones of a prefix, up to the first that no owner has.
  // Counts no look-up and remembers no miss: nobody wants the values here.
  void CountPrefix(SlotId slot, std::span<const Id128> hashes, PrefixCount& count) const;

  // Removes keys, and refuses listings of them that were begun before `number`. Returns kOk for
  // each key that was found, else kMiss. `generation`: the caller's; values of a later one stay, as
  // they do on their owners.
  std::vector<Code> Remove(SlotId slot, Generation generation, std::span<const std::string> keys,
                           std::uint64_t number);
  void RemovePattern(SlotId slot, std::uint64_t number);

  void RememberMisses(SlotId slot, std::span<const Id128> hashes,
                      std::span<const wire::Place> places);
  void RememberMiss(SlotId slot, const Id128& hash, MissReason reason);
  // Returns why the last look-ups of this key missed; nothing when none is remembered.
  std::optional<RecentMiss> Why(SlotId slot, std::string_view key) const;

  // ---- shards (docs/ha.md). All slices are served at first.
  // Sets the slices that are served. `states`: kSlices of them, or none: all are served. `shards`:
  // the number of masters that serve the directory. Each gets a part of each inventory, so this
  // many times more owners may list theirs at the same time.
  void SetSlices(std::span<const wire::SliceState> states, std::size_t shards);
  // Returns entries of these slices, from part `cursor` of the table on. Advances `cursor` to the
  // next part; Directory::kShards: that was the last one.
  std::vector<wire::ShardEntry> CopySlices(const Directory::Slices& slices, std::uint32_t& cursor);
  // Loads entries, except those that a removal after `shown` has taken.
  void LoadEntries(std::span<const wire::ShardEntry> entries, std::uint64_t shown);
  void ForgetSlices(const Directory::Slices& slices);

  // Finds the tenants with more entries than their share, and sweeps a part while there are any.
  // Called every few milliseconds.
  void Tick();
  // The tenants that may list nothing new, because they have used up their share.
  struct Full {
    bool all = false;
    std::set<std::uint64_t> tenants;  // their tags
    bool operator==(const Full&) const = default;
  };
  Full full() const;
  // Set, for a directory that several masters serve, the entries that the others have of each slot
  // (at the leader), and the full tenants that the leader has found (at a shard). Both are added to
  // the findings of this directory.
  void SetElsewhere(std::vector<std::uint64_t> entries_of_slots);
  void SetFull(Full full);
  // Returns the entries of each slot, including dead ones that are not swept yet.
  std::vector<std::uint64_t> EntriesBySlot() const;
  // Returns the entries of each slot's current generation, as Directory::CurrentOf.
  std::vector<std::uint64_t> CurrentBySlot() const;
  // Returns the bytes of each slot's values, as Directory::BytesOf.
  std::vector<std::uint64_t> BytesBySlot() const;
  // Returns the number of listings that were refused as beyond a share or the directory's limit.
  std::uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }

  std::uint64_t entries() const;
  std::uint64_t bytes() const;
  std::uint64_t lookups() const { return lookups_.load(std::memory_order_relaxed); }
  std::uint64_t listed() const { return listed_.load(std::memory_order_relaxed); }
  std::uint64_t rejected() const { return rejected_.load(std::memory_order_relaxed); }
  std::size_t remembered_removals() const;

 private:
  struct Missed {
    std::uint64_t tag = 0;
    std::int64_t at_ns = 0;
    std::uint32_t count = 0;
    MissReason reason = MissReason::kNone;
  };
  // An owner's last request, so that a repetition gets the same answer.
  struct Answered {
    std::uint32_t epoch = 0;
    std::uint64_t session = 0;
    std::uint64_t sequence = 0;
    std::vector<Code> codes;
  };
  Code ListOne(const wire::ListItem& item, const wire::ListRequest& request,
               std::span<const SlotId> drops, OwnerSlots& to_bar) KVCOVE_REQUIRES(mutex_);
  void Unlist(const wire::ListItem& item, OwnerNumber number) KVCOVE_REQUIRES(mutex_);
  void ForgetWent() KVCOVE_REQUIRES(mutex_);
  // Returns how many objects of its inventory the owner may list next. `told`: the objects of it in
  // this request.
  std::uint32_t CreditFor(OwnerNumber number, bool tells, std::size_t told) KVCOVE_REQUIRES(mutex_);
  void Note(SlotId slot, const Id128& hash, MissReason reason) KVCOVE_REQUIRES(mutex_);
  bool MayGrow(SlotId slot) const KVCOVE_REQUIRES(mutex_);
  bool Serves(const Id128& hash, bool listing) const KVCOVE_REQUIRES(mutex_);
  // Changes a miss to kShardAway if another shard may have the key.
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
  // Values that were unlisted while some owner's inventory was incomplete. A value that this owner
  // lists later under the same key is older, and readers must not see it after them. Bounded; the
  // oldest are forgotten.
  std::unordered_map<std::uint64_t, std::uint32_t> went_ KVCOVE_GUARDED_BY(mutex_);  // tag -> group
  std::deque<std::uint64_t> went_order_ KVCOVE_GUARDED_BY(mutex_);
  bool went_forgotten_ KVCOVE_GUARDED_BY(mutex_) = false;  // some of them, for want of room
  std::map<OwnerNumber, Answered> answered_ KVCOVE_GUARDED_BY(mutex_);
  // Owners that list their inventories, and when another owner may take each one's turn.
  std::map<OwnerNumber, std::int64_t> tellers_ KVCOVE_GUARDED_BY(mutex_);
  std::set<std::uint64_t> full_ KVCOVE_GUARDED_BY(mutex_);  // tenants' tags
  bool all_full_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::vector<std::uint64_t> elsewhere_ KVCOVE_GUARDED_BY(mutex_);  // by slot; empty: nothing
  Full told_full_ KVCOVE_GUARDED_BY(mutex_);
  std::int64_t counted_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;
  SavesUnderWay saves_ KVCOVE_GUARDED_BY(mutex_);
  std::atomic<std::uint64_t> refused_{0};
  std::atomic<std::uint64_t> lookups_{0};
  std::atomic<std::uint64_t> listed_{0};
  std::atomic<std::uint64_t> rejected_{0};
};

}  // namespace kvcove::master
