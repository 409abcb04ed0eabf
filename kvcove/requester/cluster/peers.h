// SPDX-License-Identifier: Apache-2.0
// The owners of a cluster as a requester sees them, kept up to date; those that do not answer are
// probed in the background.
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

// Who wants to know of the owners.
enum class Asker : std::uint8_t {
  kCall,        // a call that waits: a master that is not answering is not waited for
  kBackground,  // the thread that keeps them up to date, and probes the master with it
};

// The owners, kept up to date by a thread. Thread-safe.
class Peers {
 public:
  // Asks the master for the owners, and reports to it those that this process passes over because
  // they do not answer. `deadline_ns`: of the call that waits for the answer.
  using Ask = std::function<Result<std::vector<wire::OwnerStat>>(
      Asker asker, std::vector<wire::OwnerNumber> passed_over, std::int64_t deadline_ns)>;
  // `master_due`: when the master is to be probed (rpc::Breaker::ProbeDueNs); called without a
  // lock.
  Peers(Ask ask, std::function<std::int64_t()> master_due, transport::Transport& transport,
        const rpc::Access& access, const Clock& clock);
  ~Peers();
  // They are kept up to date from now on. Errors: as StartThread.
  Status Start();

  void Refresh(std::int64_t deadline_ns) { Refresh(Asker::kCall, deadline_ns); }
  // Somebody is doubted: the thread sees when it is to be probed.
  void Wake();
  std::vector<wire::OwnerStat> Owners() const;
  // Whom this process passes over now.
  std::vector<wire::OwnerNumber> Broken() const;
  // Null for a number that is not known (yet). Asks the master for one that is not.
  std::shared_ptr<transport::Peer> Get(wire::OwnerNumber number, std::int64_t deadline_ns);

 private:
  void Refresh(Asker asker, std::int64_t deadline_ns);
  void Run();
  // Until it is time to refresh or to probe. False: stop.
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
  bool woken_ KVCOVE_GUARDED_BY(mutex_) = false;  // since the thread last asked who is due
  std::vector<wire::OwnerStat> owners_ KVCOVE_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<transport::Peer>> peers_
      KVCOVE_GUARDED_BY(mutex_);  // by address
  std::thread thread_;
};

}  // namespace kvcove::requester
