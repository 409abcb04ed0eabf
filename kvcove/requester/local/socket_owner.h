// SPDX-License-Identifier: Apache-2.0
// The daemon of a host at its Unix socket: connects, notices the daemon's end, and connects again
// by itself.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "kvcove/base/posix.h"
#include "kvcove/requester/local/attachment.h"
#include "kvcove/requester/local/warmer.h"

namespace kvcove::requester {

// Thread-safe. One thread waits for the daemon's end; it wakes every 200 ms to report reservations
// that were given up.
//
//   connected -> ended (every key is a miss) -> connected | refused (its memory cannot be mapped)
class SocketOwner final : public OwnerTie {
 public:
  // Decides whether an owner with this authority over its generations (wire::Welcome) may be used.
  // Called for each connection, without locks.
  using Accept = std::function<Status(const std::string& authority)>;
  // Connects, and starts the thread. `warm` bounds the memory that is mapped ahead in the
  // background. Errors: kUnavailable (no daemon answers), kDenied, kIncompatible, kTimeout,
  // kCorrupt; those of `accept`.
  static Result<std::unique_ptr<SocketOwner>> Connect(const std::string& socket_path,
                                                      std::int64_t deadline_ns, const Clock& clock,
                                                      const WarmOptions& warm = {},
                                                      Accept accept = {});
  // Says goodbye to the daemon: no thread of this process may use the segment any more.
  ~SocketOwner() override;

  std::shared_ptr<Attachment> Current() override;
  // True if the daemon restarted with memory that this process cannot map, as after an upgrade:
  // Current remains null until one of them is another build. Logged once.
  bool refused() const override { return refused_.load(std::memory_order_acquire); }

 private:
  class SocketAttachment;
  SocketOwner(std::string socket_path, const Clock& clock, const WarmOptions& warm, Accept accept);
  void Monitor();

  const std::string socket_path_;
  const Accept accept_;
  const Clock& clock_;
  const WarmOptions warm_;
  void Replace(std::shared_ptr<SocketAttachment> attachment);

  Mutex mutex_;
  std::shared_ptr<SocketAttachment> current_ KVCOVE_GUARDED_BY(mutex_);
  CondVar changed_;
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
  UniqueFd wake_;  // eventfd, ends the monitor's wait
  std::atomic<bool> refused_{false};
  std::thread monitor_;
};

}  // namespace kvcove::requester
