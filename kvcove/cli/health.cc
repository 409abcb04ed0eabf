// SPDX-License-Identifier: Apache-2.0
#include "kvcove/cli/health.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "kvcove/base/clock.h"
#include "kvcove/cli/admin_client.h"
#include "kvcove/pool/host_status.h"
#include "kvcove/pool/pool.h"
#include "kvcove/rpc/unix_access.h"

namespace kvcove::cli {
namespace {

// Where owner and master have their admin endpoints by default.
constexpr const char* kLoopbackPlaces[] = {"127.0.0.1:7481", kMasterHere};

void AddServer(Health& health, bool good, const std::string& line) {
  health.good = good && (health.text.empty() || health.good);
  health.text += fmt::format("{}{}", health.text.empty() ? "" : "\n", line);
}

// Whether a server that was killed has left this socket: nobody listens there any more.
bool IsLeft(const std::string& socket) {
  const auto fd = rpc::ConnectUnix(socket, SystemClock::Instance().NowNs() + kMillisecond);
  return !fd && fd.error().code == Code::kUnavailable && access(socket.c_str(), W_OK) == 0;
}

// The owners at the socket and their siblings. A lease decides whether their memory may be read.
// Returns a line for each socket that nobody serves: no server is found there, and a probe that
// failed for it would end the one that is.
std::string AskOwners(const std::string& socket, const HealthOptions& options, Health& health) {
  const std::int64_t timeout_ns = std::int64_t{options.timeout_ms} * kMillisecond;
  std::string left;
  for (const pool::OwnerStatus& owner : pool::StatusOfOwners(socket, timeout_ns)) {
    if (!owner.reached && IsLeft(owner.socket)) {
      left += fmt::format("\n{}: nobody serves it", owner.socket);
    } else if (!owner.reached) {
      AddServer(health, false,
                fmt::format("{}: {}", owner.socket, owner.reached.error().ToString()));
    } else if (options.ready && !owner.lease_holds) {
      AddServer(health, false,
                fmt::format("{}: no lease: the master does not answer", owner.socket));
    } else {
      AddServer(health, true, owner.socket + ": ok");
    }
  }
  return left;
}

// `looked_for`: nobody has named it, so it is no error that nobody listens there.
Status AskEndpoint(const std::string& address, const HealthOptions& options, bool looked_for,
                   Health& health) {
  KVCOVE_ASSIGN(AdminClient client,
                AdminClient::Open({.address = address, .trusted = false},
                                  {.token = {}, .tls = options.tls, .as_json = false}));
  client.SetTimeout(std::int64_t{options.timeout_ms} * kMillisecond);
  const auto answer = client.Ask("GET", options.ready ? "/readyz" : "/healthz", {});
  if (!answer && looked_for && answer.error().code == Code::kUnavailable) return {};
  if (!answer) {
    AddServer(health, false, answer.error().ToString());
    return {};
  }
  std::string said = answer->body.substr(0, answer->body.find('\n'));
  if (answer->status != 200) said = fmt::format("answered {}: {}", answer->status, said);
  AddServer(health, answer->status == 200, fmt::format("{}: {}", client.endpoint(), said));
  return {};
}

bool IsVariable(const char* name, const std::string& text) {
  const char* const value = std::getenv(name);
  return value != nullptr && text == value;
}

}  // namespace

Result<Health> AskHealth(const HealthOptions& options) {
  KVCOVE_ASSIGN(const PoolChoice choice, ChosenOf(options.server));
  Health health;
  if (!choice.admin.empty()) {
    KVCOVE_TRY(AskEndpoint(choice.admin, options, /*looked_for=*/false, health));
    return health;
  }
  // The variable stands in the image of all servers, that of a master, too.
  const bool by_flag = !choice.socket.empty() && !IsVariable("KVCOVE_SOCKET", choice.socket);
  const std::string socket = choice.socket.empty() ? DefaultSocketPath() : choice.socket;
  const std::string left = AskOwners(socket, options, health);
  for (const char* place : kLoopbackPlaces) {
    if (!by_flag && health.text.empty()) {
      KVCOVE_TRY(AskEndpoint(place, options, /*looked_for=*/true, health));
    }
  }
  if (!health.text.empty()) {
    health.text += left;
    return health;
  }
  health.text = fmt::format("nobody serves the socket '{}'", socket);
  if (!by_flag) {
    health.text += fmt::format(", and nobody listens at {} or {}", kLoopbackPlaces[0], kMasterHere);
  }
  health.text += "; --admin HOST:PORT names a server's --admin or --metrics, --socket its socket";
  return health;
}

void AddHealth(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<HealthOptions>();
  CLI::App* health = app.add_subcommand(
      "health", "Ask whether the server of this container, or of this host, answers.");
  health
      ->add_flag("--ready", options->ready,
                 "ask whether it may be used now, too: an owner has its lease, a master leads or "
                 "may lead")
      ->group(kOfThisCall);
  health->add_option("--socket", options->server.socket,
                     "socket of the owner to ask (default: that of this user; where nobody serves "
                     "it, 127.0.0.1:7481 and 127.0.0.1:7480)");
  health->add_option("--admin", options->server.admin,
                     "the server's --admin or --metrics, HOST:PORT or unix:PATH, in place of "
                     "--socket");
  health->add_option("--timeout-ms", options->timeout_ms, "milliseconds to wait for each server")
      ->capture_default_str();
  const auto file = [&](const char* flag, std::string& path, const char* help) {
    health->add_option(flag, path, help)->group(kEndpointTls);
  };
  file("--tls-authority", options->tls.authority,
       "PEM file with the authority that signs both sides' certificates");
  file("--tls-certificate", options->tls.certificate, "PEM file with this command's certificate");
  file("--tls-key", options->tls.key, "PEM file of mode 0600 with its key");
  health->footer(
      "No token is needed. The exit status is 0 where each server that is found answers, 1 where "
      "one does not, or there is none. Without --ready it is for liveness probes: a server without "
      "its master is alive, and to start it again would lose its memory. Where containers share "
      "the host's network, name the server: another one may listen on loopback.");
  health->callback([options, &chosen] {
    chosen = [options]() -> Result<int> {
      KVCOVE_ASSIGN(const Health found, AskHealth(*options));
      fmt::print("{}\n", found.text);
      return found.good ? 0 : 1;
    };
  });
}

}  // namespace kvcove::cli
