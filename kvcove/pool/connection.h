// SPDX-License-Identifier: Apache-2.0
// What a pool holds: one way to its memory, which opens sessions.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kvcove/requester/session.h"
#include "kvcove/transport/pick/transports.h"
#include "kvcove/transport/registry.h"

namespace kvcove::pool {

// Thread-safe. Sessions keep what they need of it alive, so they may outlive it.
class Connection {
 public:
  virtual ~Connection() = default;
  // "embedded", "process" or "cluster".
  virtual std::string_view form() const = 0;
  // `options` have valid names and an engine.
  virtual Result<SessionPtr> OpenSession(const SessionOptions& options) = 0;
  // Of the pool as a whole.
  virtual Result<PoolStat> Stat(std::int64_t deadline_ns) = 0;
  // Of the master; a pool of one host has none.
  virtual PoolSettings Settings() { return {}; }
  // With every transport that this process may use.
  Result<std::shared_ptr<void>> Register(std::span<std::byte> memory) {
    return registry_.Register(memory);
  }

 private:
  transport::Registry registry_{transport::Transports()};
};

// Why no owner serves the socket `path`: there is none, or nobody listens there any more. Nothing:
// an owner may serve there. Errors: kUnavailable where that cannot be known, so that a pool of
// one's own beside it would be a mistake.
Result<std::optional<std::string>> WhyNoOwner(const std::string& path);

// Pool::Open says which addresses there are, and the errors.
Result<std::unique_ptr<Connection>> OpenConnection(std::string_view address,
                                                   std::chrono::milliseconds timeout);

}  // namespace kvcove::pool
