// SPDX-License-Identifier: Apache-2.0
// The limits of namespaces and tenants with a quota on one disk, and what they have there.
//
// Keys are hashed over an owner's disks, so each disk has a part of the keys, and the same part of
// each quota and bandwidth. Namespaces without a quota are not counted (disklog::kNoShare).
//
// Needs the lock of its holder. Does no I/O.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kvcove/disklog/shares.h"
#include "kvcove/owner/core/core_types.h"

namespace kvcove::owner {

// By ShareNumber: the name of a namespace or tenant, and its quota on all disks together.
using NamedQuotas = std::vector<std::pair<std::string, DiskQuota>>;

class DiskShares {
 public:
  // `quotas` outlives this object.
  explicit DiskShares(const NamedQuotas& quotas);
  // Sets how many of the segment::kTierShares parts of the keys are on this disk; at first all.
  void SetPart(std::uint64_t part) { part_ = part; }

  // ---- limits
  // Returns the read rates in bytes per second, by share; 0 is any rate.
  std::vector<std::uint64_t> ReadRates() const;
  std::vector<disklog::ShareLimits> Limits() const;
  // Returns true if `bytes`, written or queued here, exceed the maximum of the share.
  bool Beyond(disklog::ShareNumber share, std::uint64_t bytes) const;

  // ---- use
  // Notes the bytes of live records by share, as Log::HeldByShare returns them.
  void NoteHeld(std::vector<std::uint64_t> held);
  std::uint64_t held(disklog::ShareNumber share) const { return held_[share]; }
  std::size_t size() const { return held_.size(); }

 private:
  std::uint64_t PartOf(std::uint64_t of_all_disks) const;

  const NamedQuotas& quotas_;
  std::uint64_t part_;
  std::vector<std::uint64_t> held_;
};

}  // namespace kvcove::owner
