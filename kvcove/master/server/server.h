// SPDX-License-Identifier: Apache-2.0
// The master's process: `Master` behind one TCP port. docs/control-plane.md has the prose.
//
// Threads: loop 0 (hellos, look-ups, listings), loop 1 (leases and nothing else), two workers for
// removals, one that ticks, and the control store's. No call waits for another host or the disk:
// what needs them is answered later.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvcove/base/metrics.h"
#include "kvcove/master/etcd/etcd_store.h"
#include "kvcove/master/master.h"
#include "kvcove/master/server/shard_calls.h"
#include "kvcove/master/store/file_system.h"
#include "kvcove/rpc/access.h"
#include "kvcove/rpc/address.h"
#include "kvcove/rpc/credentials.h"
#include "kvcove/rpc/server.h"
#include "kvcove/rpc/tls.h"
#include "kvcove/wire/cluster.h"

namespace kvcove::master {

struct MasterServerOptions {
  rpc::Address listen = rpc::LoopbackAddress(7400);
  std::string data_directory;  // empty: facts are forgotten with the process
  // Of several masters: facts are in etcd, and nothing is answered while this one does not lead.
  // Null: this is the only master.
  std::shared_ptr<EtcdLeadership> leadership;
  MasterOptions master;
  std::shared_ptr<rpc::Credentials> credentials;  // null: every client may do everything
  std::shared_ptr<rpc::Tls> tls;                  // null: in the clear
  wire::MasterSettings settings;                  // what it tells its clients
  // No engine that works as it should meets them; docs/security.md says how to choose others.
  rpc::CallLimitsOptions limits{.tenant = {.calls_per_second = 200'000, .bytes = 512ULL << 20},
                                .all = {.bytes = 2ULL << 30}};
};

struct MasterStat {
  Id128 pool;
  Id128 incarnation;
  std::uint64_t term = 0;
  std::uint64_t revision = 0;
  bool leads = true;                    // nobody else does now
  std::optional<EtcdStoreStat> store;   // where facts are in etcd
  std::uint64_t directory_entries = 0;  // here
  std::uint64_t entries_of_all = 0;     // and at the masters that serve parts of the directory
  std::uint64_t directory_bytes = 0;
  std::map<std::string, std::uint64_t> entries_of_tenants;
  std::uint64_t listings_over_share = 0;
  std::uint64_t lookups = 0;  // keys
  std::uint64_t listed = 0;
  std::uint64_t rejected = 0;  // listings that came second or too late
  std::uint64_t resets = 0;
  std::uint64_t connections = 0;
  std::size_t remembered_removals = 0;
  std::size_t registrations = 0;
  std::size_t slots = 0;
  Generations::Refused refused;
  rpc::CallLimits::Stat load;
  Control::Counts control;
  std::vector<wire::OwnerStat> owners;
};

// Thread-safe.
class MasterServer {
 public:
  // Listens when it returns. Errors: kUnavailable (address or data directory in use), kInvalid.
  static Result<std::unique_ptr<MasterServer>> Open(const MasterServerOptions& options,
                                                    const Clock& clock);
  // Ends cleanly only when no lease is running: else the next start waits for them.
  ~MasterServer();

  const rpc::Address& address() const;
  MasterStat Stat() const;
  // Where its admin endpoint listens, which is opened after it; clients are told from then on.
  void SetAdmin(std::string address);

  // ---- for administration and tasks
  Master& master();
  // The whole directory, of which other masters may serve parts: ShardCalls::Find.
  ShardCalls::Found Find(std::span<const ShardCalls::Key> keys, std::int64_t deadline_ns);
  // Credentials and TLS settings that this master presents to the owner at that address.
  rpc::Access AccessTo(const std::string& address) const;
  std::vector<wire::OwnerStat> Owners() const;
  std::vector<SlotDescription> Namespaces() const;
  // Errors: those of GenerationKeeper::Reset.
  Result<wire::ResetOutcome> Reset(const wire::ResetRequest& request, std::int64_t deadline_ns);
  // How many; proven when it returns. Errors: kTimeout, kInvalid, kStale, kLimit.
  Result<std::uint64_t> RemovePattern(const Token& token, std::string_view pattern,
                                      std::int64_t deadline_ns);
  void Collect(Metrics& metrics) const;

 private:
  class Impl;
  explicit MasterServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvcove::master
