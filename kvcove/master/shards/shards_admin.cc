// SPDX-License-Identifier: Apache-2.0
// The shards as operators see them, and the shares of tenants over all of them.
#include <fmt/core.h>

#include "kvcove/master/shards/shards.h"

namespace kvcove::master {
namespace {

constexpr std::int64_t kShardCountNs = 50 * kMillisecond;

}  // namespace

std::vector<ShardDescription> Shards::Describe() const {
  const std::uint64_t own = directory_.entries();
  const MutexLock lock(mutex_);
  std::vector<ShardDescription> all;
  all.push_back({.slices = CountOf(wire::kLeaderShard), .entries = own});
  for (const auto& [number, member] : members_) {
    all.push_back({.number = number,
                   .address = member.address,
                   .slices = CountOf(number),
                   .entries = member.entries,
                   .draining = member.draining,
                   .lease_ns = member.lease_until_ns - clock_.NowNs()});
  }
  return all;
}

void Shards::AddEntriesElsewhere(std::vector<std::uint64_t>& to) const {
  for (const auto& [number, member] : members_) {
    for (const auto& [slot, entries] : member.entries_of_slots) to[slot] += entries;
  }
}

std::vector<std::uint64_t> Shards::EntriesBySlot() const {
  std::vector<std::uint64_t> entries = directory_.CurrentBySlot();
  const MutexLock lock(mutex_);
  AddEntriesElsewhere(entries);
  return entries;
}

std::vector<std::uint64_t> Shards::BytesBySlot() const {
  std::vector<std::uint64_t> bytes = directory_.BytesBySlot();
  const MutexLock lock(mutex_);
  for (const auto& [number, member] : members_) {
    const auto count = std::min(member.entries_of_slots.size(), member.bytes_of_slots.size());
    for (std::size_t i = 0; i < count; ++i) {
      bytes[member.entries_of_slots[i].first] += member.bytes_of_slots[i];
    }
  }
  return bytes;
}

// Counts each tenant's entries over all shards. Each shard refuses listings beyond the share.
void Shards::CountShares() {
  const std::int64_t now = clock_.NowNs();
  if (now < next_count_ns_) return;
  next_count_ns_ = now + kShardCountNs;
  std::vector<std::uint64_t> elsewhere(kMaxSlots);
  AddEntriesElsewhere(elsewhere);
  directory_.SetElsewhere(std::move(elsewhere));
  DirectoryService::Full full = directory_.full();
  if (full == full_) return;
  full_ = std::move(full);
  ++full_version_;
}

Status Shards::SetDraining(const std::string& address, bool draining) {
  const MutexLock lock(mutex_);
  for (auto& [number, member] : members_) {
    if (member.address != address) continue;
    member.draining = draining;
    return {};
  }
  return Fail(Code::kInvalid, fmt::format("no master at '{}' serves a shard", address));
}

}  // namespace kvcove::master
