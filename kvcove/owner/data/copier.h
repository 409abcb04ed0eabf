// SPDX-License-Identifier: Apache-2.0
// Copies objects of this owner to another one, or moves them there, when the master says so: for
// drained owners, lost replicas, and by hand. The other owner stores a copy as a replica of the
// same put, under the same generation, and evicts nothing for it.
//
// A value that only a disk has is promoted first, as for a get: as many at a time as this owner
// holds for one caller. A move then removes the value from both tiers.
//
// A value stays lent until nothing can read it any more. A device that could not be stopped by the
// deadline may still read it when the call has ended. If its memory were returned by then, it would
// be another object's, and the copy would have wrong bytes.
//
// A removal is as safe against a copy as against a put: the copy carries the number of removals
// that this owner had applied when it read the value, and the master lists it only if no matching
// removal came since.
//
// Thread-safe; calls run on the data server's workers and block there. The mutex is taken alone.
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
  // An owner that serves one tenant alone may not know `access`. It is then shown the token of that
  // tenant. Null: every owner knows `access`.
  std::shared_ptr<rpc::Credentials> credentials;
  bool checksum = true;  // send checksums with values
  kvcove::transport::Transport* transport = &kvcove::transport::Preferred();
};

// Thread-safe. Copy blocks.
class Copier {
 public:
  Copier(Owner& owner, CopierOptions options, const Clock& clock)
      : owner_(owner), options_(std::move(options)), clock_(clock) {}
  // Waits until no device reads lent memory. No call may be under way.
  ~Copier();

  // Copies or moves the items, within the request's budget. Returns a code for each: kOk, kExists
  // (the other owner has it), kMiss (this owner has it no more), kNoSpace (at the other owner),
  // kStale, kInProgress (it is on a disk and could not be promoted now), kTimeout, kUnavailable.
  // Errors: kInvalid for the address; kUnavailable while this owner follows no master.
  Result<std::vector<Code>> Copy(const wire::CopyRequest& request);
  // Ends the calls after the batch that each sends now; later items are kTimeout.
  void Stop() { stopping_ = true; }

 private:
  class Batch;
  // Returns why an item could not be lent: kInProgress while a disk has it, else kMiss.
  Code NotLent(const wire::CopyRequest::Item& item) const;
  // Lends the item at `at` for the batch, or notes in `codes` why not. False: the batch must be
  // sent first. `up`: items before it need no more promotion.
  bool Take(const wire::CopyRequest& request, std::size_t& at, std::size_t& up,
            std::int64_t deadline_ns, Batch& batch, std::vector<Code>& codes);
  // Waits until the items from `at` on, as many as may be promoted together, are in memory or
  // cannot be. Returns the index of the first item behind them.
  std::size_t BringUp(std::span<const wire::CopyRequest::Item> items, std::size_t at,
                      std::int64_t deadline_ns);
  SessionNumber Session();
  // Returns the peer, which is shown the tenant's tokens, or those of the options where `tenant` is
  // empty.
  std::shared_ptr<transport::Peer> PeerAt(const rpc::Address& address, const std::string& tenant);
  // Sends the batch and notes the outcomes. A device may keep the batch beyond this call.
  void Send(const rpc::Address& to, const std::shared_ptr<Batch>& batch, std::int64_t deadline_ns,
            std::vector<Code>& codes);
  // Returns whether the owner at this address refused the options' `access` last time and may know
  // its tenant's token.
  bool Refuses(const rpc::Address& address) const;
  void SetRefuses(const rpc::Address& address, bool refuses);
  // Makes the call with the tokens that the peer accepted last, then with the others if it refuses
  // them. Returns the peer that was asked last.
  std::shared_ptr<transport::Peer> Run(const rpc::Address& to, SlotId slot,
                                       transport::Exchange& call, std::int64_t deadline_ns);

  Owner& owner_;
  const CopierOptions options_;
  const Clock& clock_;
  std::atomic<bool> stopping_{false};
  std::atomic<SessionNumber> session_{0};  // holds promoted values; set once; 0: none yet
  mutable Mutex mutex_;
  CondVar changed_;
  std::size_t batches_ KVCOVE_GUARDED_BY(mutex_) = 0;  // that exist: their objects are lent
  // By address and by the tenant whose tokens are shown.
  std::map<std::string, std::shared_ptr<transport::Peer>> peers_ KVCOVE_GUARDED_BY(mutex_);
  std::set<std::string> refusing_ KVCOVE_GUARDED_BY(mutex_);  // addresses
};

}  // namespace kvcove::owner
