// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/link/inventory_report.h"

#include <algorithm>

namespace kvcove::owner {

void InventoryReport::Begin() {
  reported_ = again_ = stale_ = false;
  cursor_ = 0;
}

// ---- with a single master

bool InventoryReport::ReportAgain(std::optional<ObjectId> from) {
  if (from && !std::exchange(again_, true)) cursor_ = again_from_ = *from;
  if (!from) again_ = false;
  return again_;
}

bool InventoryReport::End() {
  if (std::exchange(stale_, false)) {
    cursor_ = reported_ ? again_from_ : 0;
    return false;
  }
  reported_ = true;
  again_ = false;
  return true;
}

// ---- at shards

void InventoryReport::UseMap(const wire::ShardMap& map, bool first) {
  // The slice began without entries (`fresh`), so the inventory must be walked for it.
  const std::uint64_t since = std::max(reported_map_, walk_map_);
  const bool restart =
      std::ranges::any_of(map.fresh, [&](std::uint64_t revision) { return revision > since; });
  if (first) walk_map_ = reported_map_ = 0;
  ForgetEnd();
  if (!restart) {
    // No slice began anew: all reports remain valid.
    (walking() ? walk_map_ : reported_map_) = map.revision;
    return;
  }
  walk_map_ = map.revision;
  cursor_ = 0;
  stale_ = false;
  if (reported_) {
    only_fresh_ = !again_ || only_fresh_;
    again_ = true;
    again_from_ = 0;
  }
}

bool InventoryReport::Skips(const InventoryItem& item, const wire::ShardMap& map) const {
  return only_fresh_ && map.fresh[wire::SliceOf(item.item.hash)] <= reported_map_;
}

void InventoryReport::ReportAgainToShards(std::optional<ObjectId> from) {
  if (from && (!again_ || only_fresh_)) {
    cursor_ = again_from_ = only_fresh_ && again_ ? 0 : *from;
    again_ = true;
    only_fresh_ = false;
    ForgetEnd();
  } else if (!from && again_ && !only_fresh_) {
    // The disk failed again, or all of it is reported. Slices that began anew must be reported all
    // the same, and their objects may be before the cursor.
    again_ = only_fresh_ = walk_map_ > reported_map_;
    cursor_ = again_ ? 0 : cursor_;
    again_from_ = again_ ? 0 : again_from_;
    ForgetEnd();
  }
}

void InventoryReport::NotePassed(const ShardLanes& lanes) {
  if (!end_) end_ = lanes.Marks();
}

InventoryReport::Ended InventoryReport::EndAtShards(const ShardLanes& lanes,
                                                    const AnsweredBatches& batches,
                                                    std::int64_t again_ns) {
  if (!walking() || !end_ || !lanes.Reached(*end_)) return Ended::kNo;
  if (!last_batch_) last_batch_ = batches.next();
  if (!batches.EndedBefore(*last_batch_)) return Ended::kNo;
  ForgetEnd();
  if (std::exchange(stale_, false)) {
    cursor_ = reported_ ? again_from_ : 0;
    not_before_ns_ = again_ns;
    return Ended::kNo;
  }
  const bool all = !reported_ || !only_fresh_;
  reported_ = true;
  again_ = false;
  only_fresh_ = false;
  reported_map_ = std::max(reported_map_, walk_map_);
  return all ? Ended::kAll : Ended::kSlices;
}

void InventoryReport::LeaveShards() {
  ForgetEnd();
  reported_map_ = walk_map_ = 0;
  only_fresh_ = false;
}

}  // namespace kvcove::owner
