// SPDX-License-Identifier: Apache-2.0
// The master of a cluster: membership, directory and generations behind one TCP port.
// docs/cluster.md has the prose.
//
// Threads: loop 0 (hellos, look-ups, listings), loop 1 (leases and nothing else), workers for what
// may wait. Locks, in this order: Master's, control, directory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kvcove/http/metrics.h"
#include "kvcove/master/master.h"
#include "kvcove/rpc/access.h"
#include "kvcove/rpc/address.h"
#include "kvcove/rpc/credentials.h"
#include "kvcove/rpc/tls.h"
#include "kvcove/wire/cluster.h"

namespace kvcove::master {

struct ClusterOptions {
  rpc::Address listen = rpc::LoopbackAddress(7400);
  std::string data_directory;  // empty: generations are forgotten with the process
  std::int64_t lease_ns = kSecond;
  std::shared_ptr<rpc::Credentials> credentials;  // null: whoever comes may do everything
  std::shared_ptr<rpc::Tls> tls;                  // null: in the clear
};

// A miss that a look-up was answered with lately.
struct RecentMiss {
  MissReason reason = MissReason::kNone;
  std::uint32_t count = 0;
  std::int64_t age_ns = 0;
};

struct ClusterStat {
  Id128 incarnation;
  std::uint64_t term = 0;
  std::uint64_t version = 0;
  std::uint64_t directory_entries = 0;
  std::uint64_t directory_bytes = 0;
  std::uint64_t lookups = 0;  // keys
  std::uint64_t listed = 0;
  std::uint64_t rejected = 0;  // listings that came second or too late
  std::uint64_t resets = 0;
  std::uint64_t connections = 0;
  std::vector<wire::OwnerStat> owners;
};

// Thread-safe.
class Cluster {
 public:
  // Listens when it returns. Errors: kUnavailable (address or data directory in use), kInvalid.
  static Result<std::unique_ptr<Cluster>> Open(const ClusterOptions& options, const Clock& clock);
  // Ends cleanly only when no lease is running: else the next start waits for them.
  ~Cluster();

  const rpc::Address& address() const;
  ClusterStat Stat() const;

  // ---- for administration and tasks
  // With what this master comes to owners.
  const rpc::Access& access() const;
  std::vector<wire::OwnerStat> Owners() const;
  std::vector<SlotDescription> Namespaces() const;
  wire::Place Find(SlotId slot, std::string_view key) const;
  // All live owners of each.
  std::vector<std::vector<wire::OwnerNumber>> HoldersOf(
      std::span<const std::pair<SlotId, Id128>> objects) const;
  // Why the last look-ups of this key missed; empty when none did lately.
  std::optional<RecentMiss> Why(SlotId slot, std::string_view key) const;
  // Errors: those of Master::Reset.
  Result<wire::ResetOutcome> Reset(const wire::ResetRequest& request, std::int64_t deadline_ns);
  // How many; proven when it returns. Errors: kTimeout, kInvalid.
  Result<std::uint64_t> RemovePattern(SlotId slot, std::string_view pattern,
                                      std::int64_t deadline_ns);
  Status SetDraining(wire::OwnerNumber number, bool draining);
  void Collect(http::Metrics& metrics) const;

 private:
  class Impl;
  explicit Cluster(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvcove::master
