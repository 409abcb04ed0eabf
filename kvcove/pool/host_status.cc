// SPDX-License-Identifier: Apache-2.0
#include "kvcove/pool/host_status.h"

#include <algorithm>

#include "kvcove/requester/local/local_owners.h"

namespace kvcove::pool {
namespace {

// Returns the sum of two limits, without a limit where one of them has none.
std::uint64_t SumOfMaxima(std::uint64_t a, std::uint64_t b) {
  constexpr std::uint64_t kNone = ~std::uint64_t{0};
  return a == kNone || b == kNone ? kNone : a + b;
}

void AddNamespace(std::vector<wire::NamespaceStat>& all, const wire::NamespaceStat& more) {
  const auto at = std::ranges::find(all, more.name, &wire::NamespaceStat::name);
  if (at == all.end()) return all.push_back(more);
  at->bytes += more.bytes;
  at->maximum_bytes = SumOfMaxima(at->maximum_bytes, more.maximum_bytes);
  at->guaranteed_bytes += more.guaranteed_bytes;
  if (more.priority != NamespacePriority::kUnsaid) at->priority = more.priority;
}

void AddShare(std::vector<DiskShareStat>& all, const DiskShareStat& more) {
  const auto at = std::ranges::find(all, more.name, &DiskShareStat::name);
  if (at == all.end()) return all.push_back(more);
  at->bytes += more.bytes;
  at->maximum_bytes = SumOfMaxima(at->maximum_bytes, more.maximum_bytes);
  at->guaranteed_bytes += more.guaranteed_bytes;
  at->read_bytes += more.read_bytes;
  at->read_rate += more.read_rate;
  at->write_rate += more.write_rate;
}

}  // namespace

std::vector<OwnerStatus> StatusOfOwners(const std::string& socket, std::int64_t timeout_ns) {
  const Clock& clock = SystemClock::Instance();
  std::vector<OwnerStatus> all;
  for (const std::string& path : requester::SocketsOf(socket)) {
    OwnerStatus& owner = all.emplace_back();
    owner.socket = path;
    const std::int64_t deadline_ns = clock.NowNs() + timeout_ns;
    const auto host =
        requester::SocketOwner::Connect(path, deadline_ns, clock, {.budget_bytes = 0});
    if (!host) {
      owner.reached = std::unexpected(host.error());
      continue;
    }
    const auto attachment = (*host)->Current();
    owner.node = attachment->node();
    owner.lease_holds = attachment->header().LeaseHolds(clock.NowNs());
    auto stat = attachment->service().Stat(deadline_ns);
    if (stat) {
      owner.stat = std::move(*stat);
      // Leaves out the session of this call, which is no user of the pool.
      std::erase_if(owner.stat.sessions, [&](const SessionStat& session) {
        return session.number == attachment->session();
      });
    } else {
      owner.reached = std::unexpected(stat.error());
    }
  }
  return all;
}

void AddStat(wire::PoolStat& sum, const wire::PoolStat& more) {
  for (const auto field : {&wire::PoolStat::payload_bytes,
                           &wire::PoolStat::populated_bytes,
                           &wire::PoolStat::free_bytes,
                           &wire::PoolStat::object_bytes,
                           &wire::PoolStat::reserved_bytes,
                           &wire::PoolStat::withdrawn_bytes,
                           &wire::PoolStat::index_bytes,
                           &wire::PoolStat::objects,
                           &wire::PoolStat::puts,
                           &wire::PoolStat::put_bytes,
                           &wire::PoolStat::hits,
                           &wire::PoolStat::evictions,
                           &wire::PoolStat::removals,
                           &wire::PoolStat::swept,
                           &wire::PoolStat::stale_puts,
                           &wire::PoolStat::expired_puts,
                           &wire::PoolStat::dropped_events,
                           &wire::PoolStat::disk_capacity_bytes,
                           &wire::PoolStat::disk_bytes,
                           &wire::PoolStat::disk_objects,
                           &wire::PoolStat::disk_queued_bytes,
                           &wire::PoolStat::disk_aside,
                           &wire::PoolStat::disk_puts,
                           &wire::PoolStat::disk_put_bytes,
                           &wire::PoolStat::disk_written_bytes,
                           &wire::PoolStat::disk_kept,
                           &wire::PoolStat::disk_dropped_full,
                           &wire::PoolStat::disk_dropped_other,
                           &wire::PoolStat::disk_evictions,
                           &wire::PoolStat::disk_hits,
                           &wire::PoolStat::disk_hit_bytes,
                           &wire::PoolStat::disk_misses,
                           &wire::PoolStat::disk_timeouts,
                           &wire::PoolStat::disk_damaged,
                           &wire::PoolStat::disk_errors,
                           &wire::PoolStat::disk_not_worth,
                           &wire::PoolStat::disk_over_rate,
                           &wire::PoolStat::disk_asides,
                           &wire::PoolStat::disk_reads,
                           &wire::PoolStat::disk_read_bytes,
                           &wire::PoolStat::disk_failed,
                           &wire::PoolStat::disk_no_room,
                           &wire::PoolStat::disk_over_share,
                           &wire::PoolStat::resets,
                           &wire::PoolStat::voided,
                           &wire::PoolStat::voided_bytes}) {
    sum.*field += more.*field;
  }
  for (const wire::NamespaceStat& one : more.namespaces) AddNamespace(sum.namespaces, one);
  sum.sessions.insert(sum.sessions.end(), more.sessions.begin(), more.sessions.end());
  sum.disks.insert(sum.disks.end(), more.disks.begin(), more.disks.end());
  for (const DiskShareStat& one : more.disk_shares) AddShare(sum.disk_shares, one);
}

}  // namespace kvcove::pool
