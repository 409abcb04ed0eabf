// SPDX-License-Identifier: Apache-2.0
// An engine's own Unix socket. Its ranks, a trainer or an operator use it to announce a change of
// weights, to reset the engine's KV, to look a prefix up, and to read counters. The engine's
// scheduler and ranks need it for nothing else: they call the pool directly.
//
// Frames are the pool's (wire/frame.h): a named method, a number that its answer repeats, a code.
// Every request is answered, whatever happens, by its deadline at the latest; an answer that comes
// later is dropped with its connection. Resets and news about weights do not wait for look-ups:
// each kind has a worker thread.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "kvcove/connector/scheduler/scheduler.h"
#include "kvcove/rpc/client.h"
#include "kvcove/rpc/server.h"
#include "kvcove/rpc/workers.h"

namespace kvcove::connector {

// Thread-safe.
class EngineServer final : private rpc::Handler {
 public:
  // Serves `role`, which outlives the server. Errors: kUnavailable where another engine serves the
  // socket, which is never taken over.
  static Result<std::unique_ptr<EngineServer>> Open(const std::string& socket_path,
                                                    SchedulerRole& role);
  ~EngineServer() override;

 private:
  explicit EngineServer(SchedulerRole& role) : role_(role), lookups_(1), admin_(1) {}
  void OnOpen(rpc::ConnectionId, const rpc::Peer&) override {}
  void OnRequest(rpc::ConnectionId id, wire::Method method, std::span<const std::byte> body,
                 std::int64_t /*deadline_ns*/, rpc::Responder respond) override;
  void OnClose(rpc::ConnectionId) override {}
  void OnProcessGone(std::uint64_t) override {}
  bool Admitted(rpc::ConnectionId) const override { return true; }
  rpc::Reply Answer(wire::Method method, const EngineQuestion& question);

  SchedulerRole& role_;
  std::unique_ptr<rpc::Server> server_;
  rpc::Workers lookups_;
  rpc::Workers admin_;
};

// Calls an engine's socket. Belongs to one thread. Errors of all calls: kUnavailable, kTimeout,
// kLimit.
class EngineClient {
 public:
  explicit EngineClient(std::string socket_path) : path_(std::move(socket_path)) {}
  // Returns the tokens of a prefix that the pool has.
  Result<std::uint64_t> Lookup(const std::vector<std::string>& hashes, std::string_view salt,
                               std::chrono::milliseconds timeout);
  // Resets as SchedulerRole::Reset. Errors: kNotProven, too.
  Status Reset(std::chrono::milliseconds timeout);
  Status Weights(WeightsNews news, std::string_view version, std::chrono::milliseconds timeout);
  // Returns the engine's counts as lines "name value".
  Result<std::string> Counters(std::chrono::milliseconds timeout);

 private:
  Result<std::string> Call(wire::Method method, EngineQuestion question,
                           std::chrono::milliseconds timeout);
  const std::string path_;
};

}  // namespace kvcove::connector
