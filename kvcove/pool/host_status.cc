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

std::string AdminSocketOf(const std::string& socket) { return requester::AdminSocket(socket); }

std::vector<std::string> AdminSocketsOf(const std::string& socket) {
  std::vector<std::string> sockets{requester::AdminSocket(socket)};
  const std::string first = requester::SocketOfPool(socket);
  if (!first.empty()) sockets.push_back(requester::AdminSocket(first));
  return sockets;
}

std::vector<OwnerStatus> StatusOfOwners(const std::string& socket, std::int64_t timeout_ns) {
  const Clock& clock = SystemClock::Instance();
  std::vector<OwnerStatus> all;
  for (const std::string& path : requester::SocketsOf(socket)) {
    OwnerStatus& owner = all.emplace_back();
    owner.socket = path;
    const std::int64_t deadline_ns = clock.NowNs() + timeout_ns;
    const auto host = requester::SocketOwner::Connect(path, deadline_ns, clock, {.budget_bytes = 0},
                                                      [&owner](const std::string& authority) {
                                                        owner.authority = authority;
                                                        return Status();
                                                      });
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
  for (const PoolFigure& figure : kPoolFigures) sum.*figure.value += more.*figure.value;
  for (const wire::NamespaceStat& one : more.namespaces) AddNamespace(sum.namespaces, one);
  sum.sessions.insert(sum.sessions.end(), more.sessions.begin(), more.sessions.end());
  for (const DiskStat& disk : more.disks) sum.AddDisk(disk);
  for (const DiskShareStat& one : more.disk_shares) AddShare(sum.disk_shares, one);
}

}  // namespace kvcove::pool
