// SPDX-License-Identifier: Apache-2.0
// A TCP proxy that behaves like a bad network: what it passes on is sometimes late, sometimes
// stands still as after a lost packet, and sometimes its connection breaks.
#pragma once

#include <atomic>
#include <memory>
#include <thread>

#include "kvcove/rpc/address.h"

namespace kvcove::multihost {

class FaultProxy {
 public:
  // Listens in the network namespace of the calling thread.
  static Result<std::unique_ptr<FaultProxy>> Open(rpc::Address listen, rpc::Address to,
                                                  std::uint64_t seed);
  ~FaultProxy();
  const rpc::Address& address() const { return listen_; }
  std::uint64_t delays() const { return delays_; }
  std::uint64_t stalls() const { return stalls_; }
  std::uint64_t breaks() const { return breaks_; }

 private:
  FaultProxy(rpc::Address listen, rpc::Address to, std::uint64_t seed)
      : listen_(std::move(listen)), to_(std::move(to)), seed_(seed) {}
  void Run(int listener);
  void Pass(int client);

  rpc::Address listen_;
  const rpc::Address to_;
  std::atomic<std::uint64_t> seed_;
  std::atomic<bool> stopping_{false};
  std::atomic<int> passing_{0};
  std::atomic<std::uint64_t> delays_{0}, stalls_{0}, breaks_{0};
  std::thread thread_;
};

}  // namespace kvcove::multihost
