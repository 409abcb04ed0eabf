// SPDX-License-Identifier: Apache-2.0
// The figures that an owner's disks report: at /metrics, in statistics, and to the master.
// Thread-safe. An owner without disks reports nothing.
#pragma once

#include <vector>

#include "kvcove/base/metrics.h"
#include "kvcove/model/stats.h"
#include "kvcove/owner/disk/owner_disks.h"
#include "kvcove/wire/owner_link.h"

namespace kvcove::owner {

// Adds the metrics of each disk, labelled with its path, and of all disks of the owner, with
// `labels`.
void CollectDisks(const OwnerDisks& disks, Metrics& metrics, const Labels& labels = {});
// Returns the durations of reads of records, of all disks together.
Histogram::Counts DiskReadTimes(const OwnerDisks& disks);
// Logs a line for each disk that has begun to wear for nothing (DiskStat), once; again only after
// it was worth its wear. `said`: by disk, kept by the caller.
void WarnOfWear(const OwnerDisks& disks, std::vector<bool>& said);
// Adds each disk to the statistics.
void AddDisks(const OwnerDisks& disks, PoolStat& stat);
// Adds the sums over all disks to a renewal.
void AddDisks(const OwnerDisks& disks, wire::RenewRequest& report);

}  // namespace kvcove::owner
