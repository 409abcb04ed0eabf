// SPDX-License-Identifier: Apache-2.0
// For tests: the transports of an owner's and of a requester's process on hosts with RDMA, whose
// devices are those of FakeVerbs.
#pragma once

#include <memory>

#include "kvcove/base/clock.h"
#include "kvcove/transport/pick/transports.h"
#include "kvcove/transport/verbs/fabric.h"
#include "kvcove/transport/verbs/fake_verbs.h"

namespace kvcove::transport {

// Outlives their servers, peers and registrations.
class FakeRdma {
 public:
  Transport& owner() { return *owner_; }
  Transport& requester() { return *requester_; }
  // The device moves so many bytes of each write and read, and stops there until Land().
  void HoldAfter(std::uint64_t bytes) { verbs_.HoldAfter(bytes); }
  void Land() { verbs_.Land(); }

 private:
  std::unique_ptr<verbs::Fabric> Open(const std::string& device) {
    return std::move(
        *verbs::Fabric::Open(verbs_, {.ports = {{.device = device}}}, SystemClock::Instance()));
  }

  verbs::FakeVerbs verbs_;
  const std::unique_ptr<verbs::Fabric> owners_ = Open("fake0");
  const std::unique_ptr<verbs::Fabric> requesters_ = Open("fake1");
  const std::unique_ptr<Transport> owner_ = WithRdma(*owners_, /*plaintext=*/false);
  const std::unique_ptr<Transport> requester_ = WithRdma(*requesters_, /*plaintext=*/false);
};

}  // namespace kvcove::transport
