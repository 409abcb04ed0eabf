// SPDX-License-Identifier: Apache-2.0
// A host's daemon, reached over its Unix socket: connects, notices its death, and connects again by
// itself.
#pragma once

#include <memory>
#include <string>
#include <thread>

#include "kvcove/base/posix.h"
#include "kvcove/requester/attachment.h"

namespace kvcove::requester {

// Thread-safe. One thread waits for the daemon's end; it uses no processor time meanwhile.
class RemoteHost final : public Host {
 public:
  // Errors: kUnavailable when no daemon answers, kDenied, kIncompatible, kTimeout.
  static Result<std::unique_ptr<RemoteHost>> Connect(const std::string& socket_path,
                                                     std::int64_t deadline_ns, const Clock& clock);
  // Says goodbye: no thread of this process may use the segment any more.
  ~RemoteHost() override;

  std::shared_ptr<Attachment> Current() override;

 private:
  class SocketAttachment;
  RemoteHost(std::string socket_path, const Clock& clock);
  void Monitor();

  const std::string socket_path_;
  const Clock& clock_;
  void Replace(std::shared_ptr<SocketAttachment> attachment);

  Mutex mutex_;
  std::shared_ptr<SocketAttachment> current_ KVCOVE_GUARDED_BY(mutex_);
  CondVar changed_;
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
  UniqueFd wake_;  // eventfd, ends the monitor's wait
  std::thread monitor_;
};

}  // namespace kvcove::requester
