// SPDX-License-Identifier: Apache-2.0
// Copies objects of this owner to another one, or moves them there, when the master says so: for
// drained owners, lost replicas, and by hand. The other owner stores a copy as a replica of the
// same put, under the same generation, and evicts nothing for it.
//
// What lies on a disk only comes up first, as for a get: as much at a time as this owner holds for
// one caller. Where the copy is a move, it then goes from both tiers.
//
// What is sent stays lent until nothing can read it any more. A device that could not be stopped by
// the deadline may still read it when the call has ended, and memory that was given back by then
// would be another object's: the copy would have wrong bytes.
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
#include "kvcove/transport/peer.h"
#include "kvcove/transport/pick/transports.h"
#include "kvcove/wire/tasks.h"

namespace kvcove::owner {

struct CopierOptions {
  rpc::Access access;  // to other owners
  // An owner that serves one tenant alone may not know `access`, so it is shown the token of the
  // tenant whose objects it gets. Null: there is none.
  std::shared_ptr<rpc::Credentials> credentials;
  bool checksum = true;  // is sent along
  kvcove::transport::Transport* transport = &kvcove::transport::Preferred();
};

// Thread-safe. Calls block: they belong to a worker's thread.
class Copier {
 public:
  Copier(Owner& owner, CopierOptions options, const Clock& clock)
      : owner_(owner), options_(std::move(options)), clock_(clock) {}
  // Waits until no device reads what was lent. No call may be under way.
  ~Copier();

  // By item: kOk, kExists (it is there already), kMiss (gone meanwhile), kNoSpace (there), kStale,
  // kInProgress (it lies on a disk, and could not come up now), kTimeout, kUnavailable.
  Result<std::vector<Code>> Copy(const wire::CopyRequest& request);
  // Calls end after the batch that is on its way, its rest as kTimeout.
  void Stop() { stopping_ = true; }

 private:
  class Batch;
  // What was not lent for a batch: gone, or on its disk still.
  Code NotLent(const wire::CopyRequest::Item& item) const;
  bool Take(const wire::CopyRequest& request, std::size_t& at, std::size_t& up,
            std::int64_t deadline_ns, Batch& batch, std::vector<Code>& codes);
  // Waits until the items from `at` on, as many as may come up together, are in memory or cannot
  // be. The first item behind them.
  std::size_t BringUp(std::span<const wire::CopyRequest::Item> items, std::size_t at,
                      std::int64_t deadline_ns);
  SessionNumber Session();
  // The peer is shown the tenant's own tokens, or those of the options where `tenant` is empty.
  std::shared_ptr<transport::Peer> PeerAt(const rpc::Address& address, const std::string& tenant);
  // The batch ends when nothing can read its objects any more, which may be after this call.
  void Send(const rpc::Address& to, const std::shared_ptr<Batch>& batch, std::int64_t deadline_ns,
            std::vector<Code>& codes);
  // Whether the owner at this address was last seen to refuse the options' `access` and to know its
  // tenant's token.
  bool Refuses(const rpc::Address& address) const;
  void SetRefuses(const rpc::Address& address, bool refuses);
  // The call at a peer that lets this owner in.
  std::shared_ptr<transport::Peer> Run(const rpc::Address& to, SlotId slot,
                                       transport::Exchange& call, std::int64_t deadline_ns);

  Owner& owner_;
  const CopierOptions options_;
  const Clock& clock_;
  std::atomic<bool> stopping_{false};
  std::atomic<SessionNumber> session_{0};  // that holds what came up; once it has, it stays
  mutable Mutex mutex_;
  CondVar changed_;
  std::size_t batches_ KVCOVE_GUARDED_BY(mutex_) = 0;  // whose objects are lent
  // By address and by the tenant that this owner is there.
  std::map<std::string, std::shared_ptr<transport::Peer>> peers_ KVCOVE_GUARDED_BY(mutex_);
  std::set<std::string> refusing_ KVCOVE_GUARDED_BY(mutex_);  // addresses
};

}  // namespace kvcove::owner
