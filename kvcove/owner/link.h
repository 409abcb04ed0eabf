// SPDX-License-Identifier: Apache-2.0
// An owner's tie to the master of its cluster. Three threads with a connection each:
//   lease  says hello, renews the lease, and nothing else, so that no call ever costs a lease
//   watch  hears of generations and removals at once, applies them, and acknowledges
//   list   tells what was stored and what went, and everything after each hello
// The lease is granted only when all changes are applied and the inventory is told.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <thread>

#include "kvcove/owner/follower.h"
#include "kvcove/owner/owner.h"
#include "kvcove/rpc/address.h"
#include "kvcove/rpc/client.h"

namespace kvcove::owner {

struct LinkOptions {
  rpc::Address master;
  std::string address;  // of the data server, as others reach it
  std::string socket;
  std::string host;
  std::string tenant;  // whom this owner serves alone; empty: all
  rpc::Access access;
};

class Link {
 public:
  Link(Owner& owner, const LinkOptions& options, const Clock& clock);
  ~Link();
  void Start();
  // Gives the lease back. Joins the threads.
  void Stop();

 private:
  using Standing = Follower::Standing;

  void RunLease();
  void RunWatch();
  void RunList();
  bool HelloWanted() const;
  Status Renew(rpc::Client& client);
  Status Hello(rpc::Client& client);
  Status TellInventory(rpc::Client& client, const Standing& standing);
  Status TellNews(rpc::Client& client, const Standing& standing);
  Result<std::vector<Code>> SendList(rpc::Client& client, const Standing& standing,
                                     std::vector<wire::ListItem> items);
  void Apply(const wire::Changes& changes, const Standing& standing);
  Standing standing() const;
  void AwaitRounds();
  wire::RenewRequest Report() const;
  // With what removals by pattern removed, which goes with the news that they are applied.
  wire::RenewRequest ReportRemoved();
  bool Sleep(std::int64_t duration_ns);  // false: stop

  Owner& owner_;
  const LinkOptions options_;
  const Clock& clock_;

  mutable Mutex mutex_;
  CondVar changed_;
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
  Follower follower_ KVCOVE_GUARDED_BY(mutex_);
  bool hello_again_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::uint64_t matched_ KVCOVE_GUARDED_BY(mutex_) = 0;  // removed by pattern, not told yet
  int watch_fd_ KVCOVE_GUARDED_BY(mutex_) = -1;  // where the watch thread waits; Stop ends it

  // Held while changes are applied: they come over two connections.
  Mutex apply_mutex_;

  // Rounds of the list thread, so that a removal is acknowledged after its objects are unlisted.
  Mutex rounds_mutex_;
  CondVar rounds_changed_;
  std::uint64_t rounds_ KVCOVE_GUARDED_BY(rounds_mutex_) = 0;

  std::thread lease_;
  std::thread watch_;
  std::thread list_;
};

}  // namespace kvcove::owner
