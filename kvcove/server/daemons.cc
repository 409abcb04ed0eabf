// SPDX-License-Identifier: Apache-2.0
#include "kvcove/server/daemons.h"

#include <fmt/core.h>

#include <algorithm>

#include "kvcove/requester/local/local_owners.h"

namespace kvcove::server {
namespace {

Status StepMember(pool::ClusterMember& member, std::size_t steps) {
  KVCOVE_ASSIGN(member.listen, StepPort(member.listen, steps));
  if (member.advertise.empty()) return {};
  KVCOVE_ASSIGN(rpc::Address advertised, rpc::ParseAddress(member.advertise, member.listen.port));
  KVCOVE_ASSIGN(advertised, StepPort(advertised, steps));
  member.advertise = advertised.ToString();
  return {};
}

// Divides a rate, 1 at least: 0 would mean any rate.
std::uint64_t PartOfRate(std::uint64_t rate, std::size_t parts) {
  return rate == 0 ? 0 : std::max<std::uint64_t>(rate / parts, 1);
}

// By turns, so that the first ones go to the first owners; and an equal part of what may be
// written.
void DealDisks(const pool::LocalHostOptions& whole, pool::LocalHostOptions& part) {
  std::vector<disklog::DiskSpec>& disks = part.owner.disks;
  disks.clear();
  for (std::size_t i = part.number; i < whole.owner.disks.size(); i += part.of_owners) {
    disks.push_back(whole.owner.disks[i]);
  }
  part.owner.disk_write_rate = PartOfRate(part.owner.disk_write_rate, part.of_owners);
  // In a cluster each owner with disks has an identity, which it stores in a directory of its own.
  const bool named = part.cluster && !disks.empty() && !part.data_directory.empty();
  if (named && part.number > 0) part.data_directory += fmt::format("/owner-{}", part.number);
}

}  // namespace

Result<rpc::Address> StepPort(const rpc::Address& address, std::size_t steps) {
  rpc::Address next = address;
  if (address.port == 0 || steps == 0) return next;
  if (address.port + steps > 65535) {
    return Fail(Code::kInvalid,
                fmt::format("{}: each further owner takes the next port, and there is none; give a "
                            "smaller one",
                            address.ToString()));
  }
  next.port = static_cast<std::uint16_t>(address.port + steps);
  return next;
}

Result<std::vector<DaemonOptions>> SplitDaemon(const DaemonOptions& whole,
                                               const std::vector<net::OwnerShare>& shares) {
  const std::vector<disklog::DiskSpec>& disks = whole.host.owner.disks;
  if (disks.size() % shares.size() != 0) {
    return Fail(Code::kInvalid,
                fmt::format("--disk: {} owners get as many disks each, and {} cannot be dealt out "
                            "so; give {}, which may be directories of one file system",
                            shares.size(), disks.size(),
                            (disks.size() / shares.size() + 1) * shares.size()));
  }
  std::vector<DaemonOptions> parts;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    DaemonOptions& part = parts.emplace_back(whole);
    part.host.owner.place = shares[i].place;
    part.host.owner.memory_bytes = shares[i].memory_bytes;
    part.host.owner.max_objects /= shares.size();
    part.host.number = i;
    part.host.of_owners = shares.size();
    DealDisks(whole.host, part.host);
    for (auto& [name, quota] : part.host.owner.quotas) {
      quota.maximum_bytes /= shares.size();
      quota.guaranteed_bytes /= shares.size();
    }
    for (auto& [name, quota] : part.host.owner.disk_quotas) {
      quota.maximum_bytes /= shares.size();
      quota.guaranteed_bytes /= shares.size();
      quota.read_rate = PartOfRate(quota.read_rate, shares.size());
      quota.write_rate = PartOfRate(quota.write_rate, shares.size());
    }
    if (i == 0) continue;
    part.socket_path =
        requester::SiblingSocket(whole.socket_path, fmt::format("node{}", shares[i].place.node));
    if (part.host.cluster) KVCOVE_TRY(StepMember(*part.host.cluster, i));
  }
  return parts;
}

Result<std::vector<std::unique_ptr<Daemon>>> OpenDaemons(std::vector<DaemonOptions> options,
                                                         const Clock& clock) {
  if (options.front().take_over) return Daemon::TakeOver(options, clock);
  std::shared_ptr<pool::HostControl> control;
  if (options.size() > 1 && !options.front().host.cluster) {
    // Before the store creates the directory with the wrong mode: the data directory may be in it.
    KVCOVE_TRY(
        rpc::PrepareSocketDirectory(options.front().socket_path, options.front().unix_access));
    KVCOVE_ASSIGN(control, pool::HostControl::Open(options.front().host.ControlOptions(), clock));
  }
  std::vector<std::unique_ptr<Daemon>> daemons;
  for (DaemonOptions& one : options) {
    one.host.control = control;
    KVCOVE_ASSIGN(auto daemon, Daemon::Make(one, clock));
    daemons.push_back(std::move(daemon));
  }
  // Only now: see Daemon::Make.
  for (const auto& daemon : daemons) KVCOVE_TRY(daemon->Listen());
  Daemon::Group(daemons);
  return daemons;
}

}  // namespace kvcove::server
