// SPDX-License-Identifier: Apache-2.0
// What an owner's disks report: at /metrics, in statistics, and to the master. Thread-safe. An
// owner without disks reports nothing.
#pragma once

#include "kvcove/base/metrics.h"
#include "kvcove/model/stats.h"
#include "kvcove/owner/disk/owner_disks.h"
#include "kvcove/wire/owner_link.h"

namespace kvcove::owner {

// Each disk under its path.
void CollectDisks(const OwnerDisks& disks, Metrics& metrics);
void AddDisks(const OwnerDisks& disks, PoolStat& stat);
void AddDisks(const OwnerDisks& disks, wire::RenewRequest& report);

}  // namespace kvcove::owner
