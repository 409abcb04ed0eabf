// SPDX-License-Identifier: Apache-2.0
// One blocking connection over a Unix or TCP socket: one call at a time, without a thread and
// without copies beyond the kernel's. A wait spins for a moment before it sleeps (rpc/spin.h), and
// ends early when the thread is interrupted (base/interrupt.h). Belongs to one thread at a time.
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
  // Connects to a Unix socket. Errors: kUnavailable when no process listens there, kTimeout,
  // kDenied when the process belongs to another user than this one's, root or $KVCOVE_OWNER_USER.
  static Result<Client> Connect(const std::string& path, std::int64_t deadline_ns);
  // Connects over TCP, says hello and proves this process's credential, so that the server accepts
  // calls when this returns. Errors: kUnavailable, kTimeout, kInvalid for an unknown host, kDenied.
  static Result<Client> Connect(const Address& address, const Access& access,
                                std::int64_t deadline_ns);

  // Makes a call and returns the reply's body; `fds` (may be null) receives the descriptors that
  // came with it. A reply with another code than kOk becomes that error, with `answered`. After
  // kTimeout, kUnavailable or kCorrupt the connection is closed: a late reply could be taken for
  // another call's.
  Result<std::string> Call(wire::Method method, std::span<const std::byte> body,
                           std::int64_t deadline_ns, std::vector<UniqueFd>* fds = nullptr);

  // Returns false after an error that ended the connection.
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
  // Returns the error for a connection that the peer has closed.
  Error Closed() const;
  // Makes the kernel end a blocking receive at the deadline, which takes one system call less than
  // poll and receive.
  Status SetReceiveTimeout(std::int64_t deadline_ns);

  UniqueFd fd_;
  std::uint64_t next_call_ = 1;
  bool answered_ = false;           // the peer has answered a call
  bool tls_ = false;                // this connection speaks TLS
  std::int64_t peer_needs_ns_ = 0;  // least time of the peer for the call that was just sent
  std::int64_t timeout_us_ = -1;    // SO_RCVTIMEO as it was set last; -1: not set
};

}  // namespace kvcove::rpc
