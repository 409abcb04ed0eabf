// SPDX-License-Identifier: Apache-2.0
// `kvcove health`: whether the server of this container, or of this host, answers. For health
// checks of containers, whose image has no other program to ask with.
#pragma once

#include <cstdint>
#include <string>

#include "kvcove/cli/command.h"
#include "kvcove/cli/find_pool.h"
#include "kvcove/rpc/tls.h"

namespace kvcove::cli {

struct HealthOptions {
  PoolChoice server;
  rpc::TlsFiles tls;
  std::uint32_t timeout_ms = 4000;  // a probe waits 5 s; a host that is short of CPUs is slow
  bool ready = false;               // it may be used now; else: it answers
};

struct Health {
  bool good = false;
  std::string text;  // a line for each server that was asked
};

// Asks the endpoint that is named; else the owners at the socket; else, where nobody serves a
// socket that nobody has named by a flag, the admin endpoints of an owner and of a master at their
// places on loopback, as far as somebody listens there. Errors: kInvalid, for options.
Result<Health> AskHealth(const HealthOptions& options);

void AddHealth(CLI::App& app, Action& chosen);

}  // namespace kvcove::cli
