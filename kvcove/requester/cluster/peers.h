// SPDX-License-Identifier: Apache-2.0
// The owners of a cluster as a requester sees them, with a transport::Peer for each. One thread
// asks the master for the list, every 250 ms with few owners, and probes owners, and the master,
// that do not answer. One lock guards list and peers; the master is never asked under it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kvcove/base/result.h"
#include "kvcove/rpc/breaker.h"
#include "kvcove/transport/peer.h"
#include "kvcove/wire/cluster.h"

namespace kvcove::requester {

// The reason why the master is asked for the owners.
enum class Asker : std::uint8_t {
  kCall,        // a call waits for the list, but not for a master that is not answering
  kBackground,  // the thread refreshes the list, which also probes the master
};

// Thread-safe.
class Peers {
 public:
  // Asks the master for the owners, and reports to it the owners that this process passes over
  // because they do not answer. `deadline_ns`: of the call that waits for the list; kNever in the
  // background. Called without a lock, from several threads.
  using Ask = std::function<Result<std::vector<wire::OwnerStat>>(
      Asker asker, std::vector<wire::OwnerNumber> passed_over, std::int64_t deadline_ns)>;
  // Asks for the first list; if that fails, the list is empty until the next one. `master_due`
  // returns when the master is to be probed (rpc::Breaker::ProbeDueNs); called without a lock.
  Peers(Ask ask, std::function<std::int64_t()> master_due, transport::Transport& transport,
        const rpc::Access& access, const Clock& clock);
  // Joins the thread: waits for its call or probe.
  ~Peers();
  // Starts the thread. Errors: as StartThread.
  Status Start();

  // Asks for the list now. If that fails, the list remains as it is.
  void Refresh(std::int64_t deadline_ns) { Refresh(Asker::kCall, deadline_ns); }
  // Lets the thread compute again which probe is due next: an owner, or the master, is in doubt.
  void Wake();
  // Returns the last list.
  std::vector<wire::OwnerStat> Owners() const;
  // Returns the owners that this process passes over now, because they do not answer.
  std::vector<wire::OwnerNumber> Broken() const;
  // Returns the peer of an owner, which may be broken(). Asks the master once for a number that the
  // list lacks. Null: the number remains unknown, or its address is not valid.
  std::shared_ptr<transport::Peer> Get(wire::OwnerNumber number, std::int64_t deadline_ns);

 private:
  void Refresh(Asker asker, std::int64_t deadline_ns);
  void Run();
  // Waits until a refresh or a probe is due. False: this object ends.
  bool Sleep(std::int64_t refresh_ns);
  std::vector<std::shared_ptr<transport::Peer>> All() const;

  const Ask ask_;
  const std::function<std::int64_t()> master_due_;
  transport::Transport& transport_;
  const rpc::Access access_;
  const Clock& clock_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
  // Wake was called since the thread last computed the next probe.
  bool woken_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::vector<wire::OwnerStat> owners_ KVCOVE_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<transport::Peer>> peers_
      KVCOVE_GUARDED_BY(mutex_);  // by address
  std::thread thread_;
};

}  // namespace kvcove::requester
