// SPDX-License-Identifier: Apache-2.0
// The way from a Pool to its memory, which opens sessions: to an owner in this process, to the
// owners behind one socket of this host, or to a cluster. OpenConnection chooses by the address.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvcove/requester/session.h"
#include "kvcove/transport/pick/transports.h"
#include "kvcove/transport/registry.h"

namespace kvcove::pool {

// Thread-safe. Sessions hold shares of the objects that they need, so they may outlive it.
class Connection {
 public:
  virtual ~Connection() = default;
  // `transports`: those by which the sessions move payload.
  explicit Connection(std::vector<transport::Transport*> transports = transport::Transports())
      : registry_(std::move(transports)) {}
  // Returns "embedded", "process" or "cluster".
  virtual std::string_view form() const = 0;
  // Opens a session. `options` have valid names and an engine. Errors: as Pool::OpenSession.
  virtual Result<SessionPtr> OpenSession(const SessionOptions& options) = 0;
  // Returns statistics of the whole pool: one call to each owner of this host, or to the master.
  // Errors: kUnavailable, kTimeout, kDenied.
  virtual Result<PoolStat> Stat(std::int64_t deadline_ns) = 0;
  // Returns the settings that the master has sent last; makes no call. Default values for a pool of
  // one host, which has no master.
  virtual PoolSettings Settings() { return {}; }
  // Registers memory with every transport that this process may use: see Pool::Register.
  Result<std::shared_ptr<void>> Register(std::span<std::byte> memory) {
    return registry_.Register(memory);
  }

 private:
  transport::Registry registry_;
};

// Returns why no owner serves the socket `path`: it does not exist, or no process listens there any
// more. Nothing: an owner may serve there. Errors: kUnavailable where that cannot be known, and an
// embedded pool instead might be a mistake.
Result<std::optional<std::string>> WhyNoOwner(const std::string& path);

// Opens the connection that the address names: see Pool::Open for addresses and errors.
Result<std::unique_ptr<Connection>> OpenConnection(std::string_view address,
                                                   std::chrono::milliseconds timeout);

}  // namespace kvcove::pool
