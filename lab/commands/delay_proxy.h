// SPDX-License-Identifier: Apache-2.0
// A TCP proxy that makes a link longer: it delivers every byte a fixed time after it arrived, and
// limits no bandwidth.
#pragma once

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/rpc/address.h"

namespace kvcove::lab {

// Thread-safe. Four threads for each connection and one for the listener (delay-proxy).
class DelayProxy {
 public:
  // Listens at `listen`, and delays bytes in each direction by `delay_ns`. Errors: those of
  // ListenTcp and StartThread.
  static Result<std::unique_ptr<DelayProxy>> Open(rpc::Address listen, rpc::Address to,
                                                  std::int64_t delay_ns);
  ~DelayProxy();
  const rpc::Address& address() const { return listen_; }

 private:
  struct Connection;
  DelayProxy(rpc::Address listen, rpc::Address to, std::int64_t delay_ns);
  void Accept();
  // Passes on what `client` and the other end send, until one of them closes.
  void Serve(Connection& connection, UniqueFd client);

  rpc::Address listen_;
  const rpc::Address to_;
  const std::int64_t delay_ns_;
  UniqueFd listener_;
  Mutex mutex_;
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::vector<std::unique_ptr<Connection>> connections_ KVCOVE_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace kvcove::lab
