// SPDX-License-Identifier: Apache-2.0
// A master with its tasks, which a successor's process can take over (docs/upgrade.md). Where it
// has a data directory, it listens at a Unix socket in there for its successor, and for nobody
// else.
#pragma once

#include <functional>
#include <memory>

#include "kvcove/master/server/server.h"
#include "kvcove/master/server/tasks.h"
#include "kvcove/pool/upgrade.h"

namespace kvcove::pool {

struct MasterProcessOptions {
  master::MasterServerOptions server;
  master::TaskOptions tasks;
  // Another process runs at this data directory now, and this one goes on in its place.
  bool take_over = false;
  // A successor owns everything: ends this process, without any destructor.
  std::function<void(std::int32_t pid)> on_taken_over;
  UpgradeTaker::OnStage on_stage;  // for tests; may be empty
};

// Thread-safe.
class MasterProcess {
 public:
  // Serves when it returns. Errors: those of MasterServer::Open; with `take_over` also kUnavailable
  // where none runs, and kIncompatible, kInvalid and kInProgress with the reason: then the running
  // one goes on.
  static Result<std::unique_ptr<MasterProcess>> Open(const MasterProcessOptions& options,
                                                     const Clock& clock);
  ~MasterProcess();

  master::MasterServer& server();
  master::Tasks& tasks();

 private:
  class Impl;
  explicit MasterProcess(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvcove::pool
