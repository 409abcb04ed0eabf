// SPDX-License-Identifier: Apache-2.0
// The control store of several masters: facts in etcd. Only the leader writes, and each write is
// one transaction that etcd makes only while the leader's key is the one of this leadership and the
// head is the one that this process wrote or read last. See docs/control-store.md.
//
//   Commit --> queue --> [kvcove-store] one transaction of etcd --> done(revision)
//
// A transaction without an answer may have been made, or may still be. The store repeats it
// unchanged until etcd answers or the leadership is lost, and writes nothing else meanwhile:
// whichever of the two is made first changes the head, so the other one is refused and finds its
// own mark (`commit`) in the head.
#pragma once

#include <memory>

#include "kvcove/base/metrics.h"
#include "kvcove/master/etcd/etcd_leadership.h"
#include "kvcove/master/store/control_file.h"
#include "kvcove/master/store/control_store.h"

namespace kvcove::master {

struct EtcdStoreOptions {
  // Commits that wait; beyond either, kUnavailable at once.
  std::size_t max_queued = 4096;
  std::size_t max_queued_bytes = 16 << 20;
  std::uint64_t max_facts_bytes = 256 << 20;  // all of them; beyond, kLimit
  std::int64_t page = 512;                    // keys that are read at a time
  std::int64_t attempt_ns = kSecond;
};

struct EtcdStoreStat {
  std::uint64_t revision = 0;
  std::uint64_t facts = 0;
  std::uint64_t facts_bytes = 0;
  std::uint64_t transactions = 0;
  std::uint64_t repeated = 0;  // attempts without an answer
  std::size_t queued = 0;
  std::int64_t latency_ns = 0;  // of the last transaction
};

// All keys of a pool at one moment.
struct EtcdSnapshot {
  EtcdKeys keys;  // below the prefix
  std::int64_t revision = 0;
  std::int64_t head_modified = 0;   // etcd's revision; 0: there is no head
  std::int64_t leader_created = 0;  // etcd's revision; 0: there is no leader
};
// Reads all keys of a pool, in pages of one moment. Linearizable: includes everything that was
// written before the call. Errors: etcd's; kTimeout.
Result<EtcdSnapshot> ReadSnapshot(EtcdClient& client, std::int64_t page, std::int64_t deadline_ns,
                                  const Clock& clock);
// Returns Ok when the prefix has a pool or no key, and this user may write. Writes nothing. Errors:
// those of EtcdClient::CheckEndpoints and ReadImage; kDenied; kIncompatible within another pool.
Status CheckEtcd(EtcdClient& client, std::int64_t deadline_ns, const Clock& clock);

// Thread-safe.
class EtcdStore final : public ControlStore {
 public:
  // Reads all facts under this leadership. Errors: etcd's, kCorrupt, kIncompatible; kUnavailable
  // when the leadership is lost.
  static Result<std::unique_ptr<EtcdStore>> Open(std::shared_ptr<EtcdLeadership> leadership,
                                                 const EtcdStoreOptions& options,
                                                 const Clock& clock, Opened& opened);
  // Replaces all facts; `snapshot` was taken under this leadership. If the process ends in between,
  // masters find damage until the replacement is repeated. Errors: as Open.
  static Status Replace(std::shared_ptr<EtcdLeadership> leadership, const EtcdSnapshot& snapshot,
                        const Facts& facts, std::uint64_t revision, const Clock& clock);
  // Fails the waiting commits, and ends the thread.
  ~EtcdStore() override;

  // Commits as ControlStore says. Never waits for etcd; fails with kUnavailable at once while the
  // leadership is cut off.
  void Commit(std::vector<FactChange> changes, Done done) override;

  EtcdStoreStat stat() const;
  void Collect(Metrics& metrics) const;

 private:
  class Core;
  explicit EtcdStore(std::unique_ptr<Core> core);
  const std::unique_ptr<Core> core_;
};

}  // namespace kvcove::master
