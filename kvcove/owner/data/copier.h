// SPDX-License-Identifier: Apache-2.0
// Copies objects of this owner to another one, or moves them there, when the master says so: for
// drained owners, lost replicas, and by hand. The other owner stores a copy as a replica of the
// same put, under the same generation, and evicts nothing for it.
//
// What lies on a disk only comes up first, as for a get: as much at a time as this owner holds for
// one caller. Where the copy is a move, it then goes from both tiers.
//
// A removal is as safe against a copy as against a put: the copy says which removals this owner had
// applied when it read the value, and the master lists it only if none came since.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "kvcove/owner/owner.h"
#include "kvcove/transport/tcp/peer.h"
#include "kvcove/wire/tasks.h"

namespace kvcove::owner {

// Thread-safe. Calls block: they belong to a worker's thread.
class Copier {
 public:
  // `credentials` (or null): an owner that serves one tenant alone may not know `access`, so it is
  // shown the token of the tenant whose objects it gets.
  Copier(Owner& owner, rpc::Access access, std::shared_ptr<rpc::Credentials> credentials,
         bool checksum, const Clock& clock)
      : owner_(owner),
        access_(std::move(access)),
        credentials_(std::move(credentials)),
        checksum_(checksum),
        clock_(clock) {}

  ~Copier();

  // By item: kOk, kExists (it is there already), kMiss (gone meanwhile), kNoSpace (there), kStale,
  // kInProgress (it lies on a disk, and could not come up now), kTimeout, kUnavailable.
  Result<std::vector<Code>> Copy(const wire::CopyRequest& request);
  // Calls end after the batch that is on its way, its rest as kTimeout.
  void Stop() { stopping_ = true; }

 private:
  struct Batch;
  // What was not lent for a batch: gone, or on its disk still.
  Code NotLent(const wire::CopyRequest::Item& item) const;
  bool Take(const wire::CopyRequest& request, std::size_t& at, std::size_t& up,
            std::int64_t deadline_ns, Batch& batch, std::vector<Code>& codes);
  // Waits until the items from `at` on, as many as may come up together, are in memory or cannot
  // be. The first item behind them.
  std::size_t BringUp(std::span<const wire::CopyRequest::Item> items, std::size_t at,
                      std::int64_t deadline_ns);
  SessionNumber Session();
  // The peer is shown the tenant's own tokens, or those of `access_` where `tenant` is empty.
  std::shared_ptr<transport::tcp::Peer> PeerAt(const rpc::Address& address,
                                               const std::string& tenant);
  void Send(const rpc::Address& to, const Batch& batch, std::int64_t deadline_ns,
            std::vector<Code>& codes);
  // Whether the owner at this address was last seen to refuse `access_` and to know its tenant's
  // token.
  bool Refuses(const rpc::Address& address) const;
  void SetRefuses(const rpc::Address& address, bool refuses);
  // The call at a peer that lets this owner in.
  std::shared_ptr<transport::tcp::Peer> Run(const rpc::Address& to, SlotId slot,
                                            transport::Exchange& call, std::int64_t deadline_ns);

  Owner& owner_;
  const rpc::Access access_;
  const std::shared_ptr<rpc::Credentials> credentials_;
  const bool checksum_;
  const Clock& clock_;
  std::atomic<bool> stopping_{false};
  std::atomic<SessionNumber> session_{0};  // that holds what came up; once it has, it stays
  mutable Mutex mutex_;
  // By address and by the tenant that this owner is there.
  std::map<std::string, std::shared_ptr<transport::tcp::Peer>> peers_ KVCOVE_GUARDED_BY(mutex_);
  std::set<std::string> refusing_ KVCOVE_GUARDED_BY(mutex_);  // addresses
};

}  // namespace kvcove::owner
