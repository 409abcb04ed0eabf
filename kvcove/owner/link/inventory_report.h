// SPDX-License-Identifier: Apache-2.0
// How much of an owner's inventory the master, or each shard of the directory, has accepted.
//
//   Begin --> first walk --> reported --ReportAgain, UseMap--> second walk --> reported
//                 ^--stale--'                                     ^--stale--'
//
// A walk passes over the inventory in pages, from `cursor` on. The first walk of an epoch passes
// over all of it; the owner counts as reported when it has ended. A second walk, during which the
// owner remains reported, serves a disk that was set aside and works again (from a cursor on), or
// slices that began without entries at another shard (those slices alone).
//
// An item that is refused as stale makes the walk begin again: the owner is about to apply the
// removal or the reset for which the item was refused, and the next pass reports the objects that
// are left then.
//
// Needs LinkCore's lock. Does no I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "kvcove/base/carry.h"
#include "kvcove/owner/core/core.h"
#include "kvcove/owner/link/list_progress.h"
#include "kvcove/owner/link/shard_lanes.h"
#include "kvcove/wire/shard_map.h"

namespace kvcove::owner {

class InventoryReport {
 public:
  bool reported() const { return reported_; }
  // Returns true while a walk is under way, the first one or a second one.
  bool walking() const { return !reported_ || again_; }
  ObjectId cursor() const { return cursor_; }
  bool passed() const { return cursor_ == Core::kWalkDone; }  // its end may still be unanswered
  void Advance(ObjectId cursor) { cursor_ = cursor; }
  void NoteStale() { stale_ = true; }
  // Begins the first walk of a new epoch.
  void Begin();

  // ---- with a single master
  // Begins a second walk from `from` on; nothing ends it: the disk failed again. Returns whether a
  // second walk is under way.
  bool ReportAgain(std::optional<ObjectId> from);
  // Ends the walk; call it when all pages are answered. False: the walk begins again.
  bool End();

  // ---- at shards
  // Returns the revision of the map under which all was reported; 0: none.
  std::uint64_t reported_map() const { return reported_map_; }
  // Takes a map into use. Begins a walk if a slice began without entries since the last walk's map.
  // `first`: no map was in use.
  void UseMap(const wire::ShardMap& map, bool first);
  // Returns true if a walk for such slices alone need not report the item.
  bool Skips(const InventoryItem& item, const wire::ShardMap& map) const;
  // Begins, changes or ends the second walk for a disk, which reports objects of all slices.
  void ReportAgainToShards(std::optional<ObjectId> from);
  // Returns true if the walk may continue; it pauses after stale items.
  bool Due(std::int64_t now_ns) const { return now_ns >= not_before_ns_; }
  // Notes that the lanes have all of the walk: it ends when they have answered it.
  void NotePassed(const ShardLanes& lanes);
  enum class Ended {
    kNo,
    kSlices,  // a second walk for slices that began without entries
    kAll,
  };
  // Ends the walk once the shards have answered all of it, and no lane still acts on such an
  // answer. A lane that does may still have refused objects to drop, which must not be shown when
  // the owner counts as reported. A walk that begins again is Due at `again_ns`.
  Ended EndAtShards(const ShardLanes& lanes, const AnsweredBatches& batches, std::int64_t again_ns);
  // Forgets the maps: there are no shards any more.
  void LeaveShards();

  // A successor's process begins a second walk anew.
  template <typename Ar>
  void Carry(Ar& ar) {
    CarryAll(ar, reported_, cursor_, stale_);
  }

 private:
  void ForgetEnd() {
    end_.reset();
    last_batch_.reset();
  }

  bool reported_ = false;
  ObjectId cursor_ = 0;
  bool stale_ = false;  // items were refused
  // The second walk, and the cursor from which it reports.
  bool again_ = false;
  ObjectId again_from_ = 0;

  // Map revisions: all was reported under `reported_map_`; the current walk began under
  // `walk_map_`.
  std::uint64_t reported_map_ = 0;
  std::uint64_t walk_map_ = 0;
  std::int64_t not_before_ns_ = 0;
  bool only_fresh_ = false;  // the second walk serves slices that began since `reported_map_`
  std::optional<std::vector<std::uint64_t>> end_;  // the lanes' marks behind the walk
  // The next batch's number when `end_` was reached: lanes may still act on those before it, and
  // note refusals.
  std::optional<std::uint64_t> last_batch_;
};

}  // namespace kvcove::owner
