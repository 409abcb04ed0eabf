// SPDX-License-Identifier: Apache-2.0
// How much of one disk the namespaces and tenants with a quota may have, and have.
//
// Keys are hashed over an owner's disks, so each disk has its part of the keys, and as large a part
// of every namespace's quota and bandwidth. All namespaces without a quota are outside of this
// (disklog::kNoShare).
//
// Needs the lock of its holder. No I/O.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvcove/disklog/shares.h"
#include "kvcove/owner/core/core_types.h"

namespace kvcove::owner {

// By ShareNumber: the name of the namespace or tenant, and what it may have of all disks together.
using NamedQuotas = std::vector<std::pair<std::string, DiskQuota>>;

class DiskShares {
 public:
  // `quotas` outlives it.
  explicit DiskShares(const NamedQuotas& quotas);
  // How many of the segment::kTierShares parts of the keys are on this disk; at first all.
  void SetPart(std::uint64_t part) { part_ = part; }

  // ---- what they may have here
  // Bytes a second, by share; 0: any rate.
  std::vector<std::uint64_t> ReadRates() const;
  std::vector<disklog::ShareLimits> Limits() const;
  // A share that had so many bytes here, written or queued, would be beyond its maximum.
  bool Beyond(disklog::ShareNumber share, std::uint64_t bytes) const;

  // ---- what they have here
  // As Log::HeldByShare reports it.
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
