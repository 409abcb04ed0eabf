// SPDX-License-Identifier: Apache-2.0
// Finds the admin endpoint that a command means where nobody names one.
//
//   --admin, --socket > $KVCOVE_ADMIN, $KVCOVE_SOCKET > $KVCOVE_POOL > what is on this host:
//     the admin socket beside the default socket, embedded pools of this user, a master's
//     127.0.0.1:7480
//
// One that is found is used; several, or none, are an error that says which, and how to name one.
// The token is for endpoints that the user names, and for Unix sockets, whose peers are checked: a
// master that is only looked for is asked without it.
#pragma once

#include <string>
#include <vector>

#include "kvcove/cli/admin_client.h"

namespace kvcove::cli {

struct PoolChoice {
  std::string admin;   // endpoint; empty: not named
  std::string socket;  // data socket of a host; empty: not named
};
void AddPoolChoice(CLI::App& app, PoolChoice& choice);

// Returns the one name of several that counts: a flag before a variable, with two variables the
// endpoint. `given` has what flags and environment say. Errors: kInvalid for two flags.
Result<PoolChoice> ChosenOf(const PoolChoice& given);
// Returns an endpoint for AdminClient::Open. `choice` has what flags and environment say. Errors:
// kInvalid, kUnavailable; kDenied, where the only one is a master's that was looked for, and wants
// the token.
Result<Endpoint> FindEndpoint(const PoolChoice& choice, const AdminAccessOptions& access);
// Returns a master's endpoint at the place where one is by default. Errors: kDenied, as above.
Result<Endpoint> MasterHere(const AdminAccessOptions& access);
// Returns the endpoint of the process that serves this data socket. Errors: kUnavailable, kInvalid
// for an owner of a cluster.
Result<std::string> EndpointOf(const std::string& socket);
// Prints /v1/status of an endpoint, for `kvcove status`; the result is the exit status.
Result<int> PrintPoolStatus(const Endpoint& endpoint, const AdminAccessOptions& access);
// Returns the endpoints of this user's embedded pools on this host, as far as their processes run.
std::vector<std::string> EmbeddedEndpoints();

}  // namespace kvcove::cli
