// SPDX-License-Identifier: Apache-2.0
// The owner of this host, as `kvcove run` uses it: found, or started, or started again.
//
// Each `kvcove run` keeps a connection to the owner's socket; that it *attends* the owner
// (wire::Attendance). An owner that a run has started ends a second after the last such connection
// has closed. So no run has to outlive another one, and nothing stays when all runs are killed.
//
// Its log is also its lock (flock): the owner has it as its standard error for as long as it lives.
// So of two that start an owner at once one does, and the other waits for it; and an owner without
// that lock was started by somebody else, who also starts it again.
//
//   absent -> starting -> no lease yet -> ready -> gone -> starting (while restarts are left)
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/posix.h"
#include "kvcove/cli/process.h"
#include "kvcove/rpc/client.h"
#include "kvcove/wire/host_wire.h"

namespace kvcove::cli {

struct HostOwnerOptions {
  std::string socket;
  std::string log;
  std::vector<std::string> words;  // that start one; it ends by itself when it is unattended
  bool shared = false;             // it does not
  unsigned restarts = 0;
};

// Belongs to one thread.
class HostOwner {
 public:
  HostOwner(HostOwnerOptions options, const Clock& clock)
      : options_(std::move(options)), clock_(clock) {}
  // As Leave.
  ~HostOwner() { Leave(); }
  HostOwner(const HostOwner&) = delete;
  HostOwner& operator=(const HostOwner&) = delete;

  // Looks once, and starts one where there is none; to be called again and again. Takes at most
  // some 200 ms. What happens to an owner that was ready is logged, and is no error. Errors, before
  // it was: it cannot be started, with the end of its log; kDenied, another user's.
  Status Look();
  bool ready() const { return ready_; }
  // What it waits for, for a message.
  std::string Waiting() const;
  // This object has started the owner; else it has found one.
  bool started() const { return process_.has_value(); }
  // 0: it has not started one.
  pid_t pid() const { return process_ ? process_->pid() : 0; }
  // The last lines of its log, for a message; empty when somebody else started it.
  std::string LogEnd() const;
  // host:port of its data, as others reach it; empty without a cluster.
  const std::string& address() const { return seen_.address; }
  // Ends what this object has started, unless it is shared or somebody else attends it.
  void Leave();

 private:
  Status Ask(std::int64_t wait_ns);
  Status TryStart();
  Status AfterEnd(int status);

  const HostOwnerOptions options_;
  const Clock& clock_;
  std::optional<rpc::Client> client_;
  bool asked_ = false;  // client_ attends the owner
  UniqueFd
      attending_;  // holds the connection that does open, when a late answer has ended its client
  std::optional<Process> process_;
  wire::Attendance seen_;
  bool ready_ = false;
  bool was_ready_ = false;
  bool silent_ = false;  // it is there, and does not answer
  bool others_ = false;  // somebody else has started it
  unsigned starts_ = 0;
  bool given_up_ = false;
};

}  // namespace kvcove::cli
