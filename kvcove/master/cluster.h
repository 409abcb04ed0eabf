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

#include "kvcove/master/master.h"
#include "kvcove/rpc/address.h"
#include "kvcove/rpc/credentials.h"
#include "kvcove/rpc/tls.h"
#include "kvcove/wire/cluster.h"

namespace kvcove::master {

struct ClusterOptions {
  rpc::Address listen{.host = "127.0.0.1", .port = 7400};
  std::string data_directory;  // empty: generations are forgotten with the process
  std::int64_t lease_ns = kSecond;
  std::shared_ptr<rpc::Credentials> credentials;  // null: whoever comes may do everything
  std::shared_ptr<rpc::Tls> tls;                  // null: in the clear
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

 private:
  class Impl;
  explicit Cluster(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvcove::master
