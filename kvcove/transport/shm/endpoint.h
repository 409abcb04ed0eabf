// SPDX-License-Identifier: Apache-2.0
// A service whose memory this process has mapped: an exchange is its steps, called directly, and
// memcpy between both sides' pieces, in slices. The thread that runs the exchange copies, so an
// aborted one lands nothing more. No frames, no credentials: the caller says whose calls these are.
//
// This is for a process that has both sides in it. A session of this host reads and writes its
// owner's segment without an exchange (segment/reader.h).
#pragma once

#include <memory>

#include "kvcove/rpc/gate.h"
#include "kvcove/transport/endpoint.h"
#include "kvcove/transport/service.h"

namespace kvcove::transport::shm {

// Thread-safe.
class Endpoint final : public transport::Endpoint {
 public:
  // The service outlives it.
  Endpoint(Service& service, rpc::Caller caller);
  ~Endpoint() override;
  Transport& transport() override;
  Result<std::unique_ptr<Transfer>> Start(Exchange& exchange, std::int64_t deadline_ns,
                                          std::int64_t doubt_until_ns) override;

 private:
  Service& service_;
  const rpc::Caller caller_;
};

}  // namespace kvcove::transport::shm
