// SPDX-License-Identifier: Apache-2.0
// The difference between two samples of a pool: rates, quantiles, sums. Pure.
//
// A counter that decreased belongs to a process that was started anew, so its rate is not known for
// this interval; the same holds for all of them after a change of the master's term, and when other
// endpoints have answered than before. A figure that is not known is not set: screens show "-",
// JSON null.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kvcove/top/sample.h"

namespace kvcove::top {

using Rate = std::optional<double>;  // a second

struct OwnerView {
  Owner now;
  Rate hits;
  Rate down_bytes;  // read out of its memory
  Rate up_bytes;    // stored there
  Rate from_disk_bytes;
  Rate evictions;
};

struct CallView {
  std::string name;
  Rate calls;
  // Quantiles of the interval's calls; where there were none, of all since the process's start.
  std::optional<double> p50_s;
  std::optional<double> p99_s;
  bool since_start = false;
};

struct MissView {
  std::string reason;
  Rate keys;
  std::uint64_t total = 0;
};

// Hits among the values that were read and the keys that were missed.
struct HitView {
  Rate keys;  // read and missed
  std::optional<double> ratio;
  // Shares of `keys`. Values that a disk had are read from memory, too: they count as the disk's.
  std::optional<double> memory;
  std::optional<double> disk;
};

struct View {
  double seconds = 0;  // between the samples; 0: there is one sample only
  Sample now;
  HitView hits;
  Rate down_bytes;
  Rate up_bytes;
  Rate from_disk_bytes;
  std::vector<OwnerView> owners;  // empty also where `now.owners` is not set
  std::vector<CallView> calls;
  std::vector<MissView> misses;  // the most frequent first
  // Sums over owners that are not gone.
  std::uint64_t capacity_bytes = 0;
  std::uint64_t free_bytes = 0;
  std::uint64_t objects = 0;
  std::uint64_t disk_capacity_bytes = 0;
  std::uint64_t disk_bytes = 0;
  std::uint64_t disks = 0;
  std::uint64_t disks_aside = 0;
  std::size_t owners_live = 0;
};

// `before` null: the first sample, without rates.
View MakeView(const Sample* before, const Sample& now, double seconds);

// Returns the view as `kvcove top --json` prints it (docs/json.md).
nlohmann::json JsonOf(const View& view);

}  // namespace kvcove::top
