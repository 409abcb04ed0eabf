// SPDX-License-Identifier: Apache-2.0
// One process's time as the leader: a key in etcd under a lease that a thread keeps alive.
//
//   Campaign -> leads --no answer until the deadline--> cut off --answer: the lease lives--> leads
//                 |                                        |
//                 +---- the lease is over, Lose, or cut off for too long ----> lost, for ever
//
// The deadline is the CLOCK_BOOTTIME at which the last answered keep-alive was sent, plus 0.8 of
// the lease's time. etcd counts from later, so no other process can lead before the deadline; and
// while a keep-alive finds the lease alive, no other process has led.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "kvcove/base/mutex.h"
#include "kvcove/master/etcd/etcd_client.h"
#include "kvcove/master/etcd/etcd_format.h"

namespace kvcove::master {

struct LeadershipOptions {
  std::int64_t ttl_ns = 2 * kSecond;  // of the lease; etcd counts whole seconds
  // A leadership that is cut off for this long is lost: its state in memory is worthless by then.
  std::int64_t give_up_ns = 6 * kSecond;
};

// Thread-safe.
class EtcdLeadership {
 public:
  // Tries once to lead. Null: another process leads; `leader` is set to it. Errors: etcd's
  // (EtcdClient); kDenied if this user may only read.
  static Result<std::shared_ptr<EtcdLeadership>> Campaign(EtcdClient& client, EtcdLeader self,
                                                          const LeadershipOptions& options,
                                                          const Clock& clock,
                                                          std::int64_t deadline_ns,
                                                          std::optional<EtcdLeader>& leader);
  // Resigns: another process may lead at once.
  ~EtcdLeadership();
  EtcdLeadership(const EtcdLeadership&) = delete;
  EtcdLeadership& operator=(const EtcdLeadership&) = delete;

  // Returns true while no other process can lead. A caller that proves something must ask after it
  // has decided the answer: the deadline may pass in between. Takes no lock.
  bool Leads() const { return clock_.NowNs() < deadline_ns_.load(std::memory_order_acquire); }
  // Returns how long it leads at least; negative: it does not.
  std::int64_t LeftNs() const {
    return deadline_ns_.load(std::memory_order_acquire) - clock_.NowNs();
  }
  bool lost() const { return lost_.load(std::memory_order_acquire); }
  // Ends the leadership for ever.
  void Lose(const std::string& why);
  // Waits until the leadership is lost, at most `duration_ns`. Returns true if it is lost.
  bool WaitLost(std::int64_t duration_ns);
  std::string why_lost() const;

  // Returns the create revision of the key `leader`, which no other leadership has. Every write of
  // EtcdStore compares it.
  std::int64_t create_revision() const { return create_revision_; }
  const EtcdOptions& etcd() const { return etcd_; }
  // Returns the duration of the last answered keep-alive.
  std::int64_t latency_ns() const { return latency_ns_.load(std::memory_order_relaxed); }

 private:
  EtcdLeadership(EtcdOptions etcd, const LeadershipOptions& options, const Clock& clock,
                 std::string lease, std::int64_t create_revision);
  void Run();
  // Handles the outcome of one keep-alive.
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
  bool cut_off_ = false;                // for the thread: it has logged that it is cut off
  std::int64_t extended_until_ns_ = 0;  // for the thread: deadline_ns_ before Lose

  mutable Mutex mutex_;
  CondVar changed_;
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::string why_ KVCOVE_GUARDED_BY(mutex_);
  std::thread thread_;
};

// Returns the present leader; nothing: there is none. Errors: etcd's.
Result<std::optional<EtcdLeader>> FindLeader(EtcdClient& client, std::int64_t deadline_ns);

}  // namespace kvcove::master
