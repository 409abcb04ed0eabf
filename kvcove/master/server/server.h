// SPDX-License-Identifier: Apache-2.0
// The leader: `Master` behind one TCP port, with credentials, limits and metrics.
// docs/control-plane.md has the prose.
//
// Threads: loop 0 (hellos, look-ups, listings), loop 1 (leases and nothing else), two workers for
// large removals, one that ticks, one for the calls to shards, and the control store's. No call on
// a loop waits for another host or the disk: what needs them is answered later.
#pragma once

#include <array>
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
  // Null: this is the only master. Else facts are in etcd, `data_directory` is not used for them,
  // and calls are refused while this master does not lead.
  std::shared_ptr<EtcdLeadership> leadership;
  MasterOptions master;
  std::shared_ptr<rpc::Credentials> credentials;  // null: every client may do everything
  std::shared_ptr<rpc::Tls> tls;                  // null: in the clear
  wire::MasterSettings settings;                  // sent to clients with the list of owners
  // No engine that works as it should meets these limits; docs/security.md says how to choose
  // others.
  rpc::CallLimitsOptions limits{.tenant = {.calls_per_second = 200'000, .bytes = 512ULL << 20},
                                .all = {.bytes = 2ULL << 30}};
};

struct MasterStat {
  Id128 pool;
  Id128 incarnation;
  std::uint64_t term = 0;
  std::uint64_t revision = 0;
  bool leads = true;                    // no other master can lead now
  std::optional<EtcdStoreStat> store;   // not set: facts are not in etcd
  std::uint64_t directory_entries = 0;  // at this master
  std::uint64_t entries_of_all = 0;     // at all masters, as shards have reported lately
  std::uint64_t directory_bytes = 0;
  std::map<std::string, std::uint64_t> entries_of_tenants;
  // By namespace, as it is qualified, and weight version: those that have any.
  std::map<std::pair<std::string, std::string>, std::uint64_t> entries_of_versions;
  std::uint64_t listings_over_share = 0;
  // Since this master started, at this master.
  std::uint64_t lookups = 0;  // keys
  std::uint64_t listed = 0;
  std::uint64_t rejected = 0;  // listings that came second or too late
  std::uint64_t resets = 0;    // calls
  std::uint64_t connections = 0;
  std::size_t remembered_removals = 0;
  std::size_t registrations = 0;
  std::size_t slots = 0;
  Generations::Refused refused;
  GenerationKeeper::Versions versions;
  rpc::CallLimits::Stat load;
  Control::Counts control;
  std::vector<wire::OwnerStat> owners;
};

// What clients have reported and called since this master's start.
struct MasterCounts {
  std::array<std::uint64_t, kMissReasons> misses{};  // keys that requesters missed, by reason
  std::uint64_t resets = 0;                          // calls
  std::uint64_t resets_not_proven = 0;
  std::vector<std::pair<std::string, Histogram::Counts>> calls;  // durations, by call
};

// Thread-safe.
class MasterServer {
 public:
  // Serves when it returns: the store is open, and the new term is stored. Waits for the store.
  // Errors: kUnavailable (address or data directory in use), kInvalid, and those of the store.
  static Result<std::unique_ptr<MasterServer>> Open(const MasterServerOptions& options,
                                                    const Clock& clock);
  // Closes all connections, then stores that this master ended cleanly, if no lease is running;
  // otherwise the next start waits until all leases have run out.
  ~MasterServer();

  const rpc::Address& address() const;
  MasterStat Stat() const;
  MasterCounts Counts() const;
  // Returns whether this master leads, without the cost of Stat: that copies all owners and slots.
  bool Leads() const;
  // Sets the address of the admin endpoint, which opens after this server; later lists of owners
  // name it.
  void SetAdmin(std::string address);

  // ---- for administration and tasks
  Master& master();
  // Looks keys up in the whole directory, also at masters that serve parts: ShardCalls::Find.
  ShardCalls::Found Find(std::span<const ShardCalls::Key> keys, std::int64_t deadline_ns);
  // Counts the owners of a prefix in the whole directory: ShardCalls::CountPrefix.
  void CountPrefix(SlotId slot, std::span<const Id128> hashes, std::int64_t deadline_ns,
                   PrefixCount& count);
  // Returns the credentials and TLS settings that this master presents to the owner at that
  // address: those of the owner's tenant, if the owner serves one tenant alone.
  rpc::Access AccessTo(const std::string& address) const;
  std::vector<wire::OwnerStat> Owners() const;
  std::vector<SlotDescription> Namespaces() const;
  // Resets and waits. Errors: those of GenerationKeeper::Reset; kUnavailable if this master no
  // longer leads when the answer arrives, so that the reset may not count.
  Result<wire::ResetOutcome> Reset(const wire::ResetRequest& request, std::int64_t deadline_ns);
  // Prunes and waits. Errors: those of GenerationKeeper::Prune; kUnavailable as Reset.
  Result<wire::PruneOutcome> Prune(const wire::PruneRequest& request, std::int64_t deadline_ns);
  // Removes the objects whose keys match and returns their number, once the removal is proven.
  // Errors: those of Master::Remove; kUnavailable as Reset.
  Result<std::uint64_t> RemovePattern(const Token& token, std::string_view pattern,
                                      std::int64_t deadline_ns);
  // Adds this master's metrics.
  void Collect(Metrics& metrics) const;

 private:
  class Impl;
  explicit MasterServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvcove::master
