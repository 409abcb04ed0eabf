// SPDX-License-Identifier: Apache-2.0
// One blocking connection over a Unix or TCP socket: one call at a time, no thread of its own, no
// copy beyond the kernel's. Needs a lock, or belongs to one thread at a time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvcove/base/posix.h"
#include "kvcove/rpc/access.h"
#include "kvcove/rpc/address.h"
#include "kvcove/wire/frame.h"

namespace kvcove::rpc {

class Client {
 public:
  // Errors: kUnavailable when nobody listens there, kTimeout, kDenied when another user does than
  // this process's, root or $KVCOVE_OWNER_USER.
  static Result<Client> Connect(const std::string& path, std::int64_t deadline_ns);
  // Over TCP, let in by the server: hello is said, and who asks is proven. Errors: kUnavailable,
  // kTimeout, kInvalid for a host that is not known, kDenied.
  static Result<Client> Connect(const Address& address, const Access& access,
                                std::int64_t deadline_ns);

  // The reply's body; `fds` (may be null) receives the descriptors that came with it. A reply whose
  // code is not ok becomes that error. After kTimeout, kUnavailable or kCorrupt the connection is
  // of no use any more: a late reply could be taken for another call's.
  Result<std::string> Call(wire::Method method, std::span<const std::byte> body,
                           std::int64_t deadline_ns, std::vector<UniqueFd>* fds = nullptr);

  // False after an error that ended the connection.
  bool usable() const { return fd_.valid(); }
  UniqueFd TakeFd() { return std::move(fd_); }
  int fd() const { return fd_.get(); }

 private:
  explicit Client(UniqueFd fd) : fd_(std::move(fd)) {}
  Status Greet(const Credential* credential, std::int64_t deadline_ns);
  Status SendAll(std::span<const std::byte> header, std::span<const std::byte> body,
                 std::int64_t deadline_ns);
  Status ReceiveAll(std::byte* data, std::size_t size, std::int64_t deadline_ns,
                    std::vector<UniqueFd>* fds);
  Status Wait(short events, std::int64_t deadline_ns);
  // The peer has closed it.
  Error Closed() const;
  // Makes the kernel end a blocking receive after what is left; one system call less than poll and
  // receive.
  Status SetReceiveTimeout(std::int64_t deadline_ns);

  UniqueFd fd_;
  std::uint64_t next_call_ = 1;
  bool answered_ = false;           // a call of this connection
  bool tls_ = false;                // this connection speaks TLS
  std::int64_t peer_needs_ns_ = 0;  // for the call that was just sent
  std::int64_t timeout_us_ = -1;
};

}  // namespace kvcove::rpc
