// SPDX-License-Identifier: Apache-2.0
// One process's time as the leader: a key in etcd under a lease, kept alive by a thread of its own.
//
//   Campaign -> leads --no answer until the deadline--> cut off --answer: the lease lives--> leads
//                 |                                        |
//                 +---- the lease is over, Lose, or cut off for too long ----> lost, for ever
//
// The deadline is CLOCK_BOOTTIME when the last answered keep-alive was sent, and 0.8 of the lease's
// time. etcd counts from later, so nobody else can lead before it; and while a keep-alive finds the
// lease alive, nobody else has led.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "kvcove/base/mutex.h"
#include "kvcove/master/store/etcd_client.h"
#include "kvcove/master/store/etcd_format.h"

namespace kvcove::master {

struct LeadershipOptions {
  std::int64_t ttl_ns = 2 * kSecond;  // of the lease; etcd counts whole seconds
  // Cut off for so long, it is given up: what it has in memory is worth nothing by then.
  std::int64_t give_up_ns = 6 * kSecond;
};

// Thread-safe.
class EtcdLeadership {
 public:
  // One attempt to lead. Null: somebody else does, `leader` says who. Errors: etcd's (EtcdClient);
  // kDenied where this user may only read.
  static Result<std::shared_ptr<EtcdLeadership>> Campaign(EtcdClient& client, EtcdLeader self,
                                                          const LeadershipOptions& options,
                                                          const Clock& clock,
                                                          std::int64_t deadline_ns,
                                                          std::optional<EtcdLeader>& leader);
  // Resigns: another one may lead at once.
  ~EtcdLeadership();
  EtcdLeadership(const EtcdLeadership&) = delete;
  EtcdLeadership& operator=(const EtcdLeadership&) = delete;

  // Nobody else leads now. Answers that prove something ask after they have been decided. No lock.
  bool Leads() const { return clock_.NowNs() < deadline_ns_.load(std::memory_order_acquire); }
  // For so long, at least.
  std::int64_t LeftNs() const {
    return deadline_ns_.load(std::memory_order_acquire) - clock_.NowNs();
  }
  bool lost() const { return lost_.load(std::memory_order_acquire); }
  // It does not lead any more, and will not again.
  void Lose(const std::string& why);
  // Returns when it is lost, or after that time. True: lost.
  bool WaitLost(std::int64_t duration_ns);
  std::string why_lost() const;

  // Of the key `leader`: no other time as leader has it. Every write names it.
  std::int64_t create_revision() const { return create_revision_; }
  const EtcdOptions& etcd() const { return etcd_; }
  // The last answered keep-alive took so long.
  std::int64_t latency_ns() const { return latency_ns_.load(std::memory_order_relaxed); }

 private:
  EtcdLeadership(EtcdOptions etcd, const LeadershipOptions& options, const Clock& clock,
                 std::string lease, std::int64_t create_revision);
  void Run();
  // What one keep-alive came to.
  void Note(const Result<nlohmann::json>& answer, std::int64_t sent_ns);
  void Extend(std::int64_t sent_ns);

  const EtcdOptions etcd_;
  const LeadershipOptions options_;
  const Clock& clock_;
  const std::string lease_;
  const std::int64_t create_revision_;
  std::atomic<std::int64_t> deadline_ns_{0};
  std::atomic<bool> lost_{false};
  std::atomic<std::int64_t> latency_ns_{0};
  bool cut_off_ = false;                // the thread's: was logged
  std::int64_t extended_until_ns_ = 0;  // the thread's: deadline_ns_, unless lost

  mutable Mutex mutex_;
  CondVar changed_;
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::string why_ KVCOVE_GUARDED_BY(mutex_);
  std::thread thread_;
};

// Who leads now; nothing: nobody. Errors: etcd's.
Result<std::optional<EtcdLeader>> FindLeader(EtcdClient& client, std::int64_t deadline_ns);

}  // namespace kvcove::master
