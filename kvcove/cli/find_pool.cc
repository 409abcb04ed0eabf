// SPDX-License-Identifier: Apache-2.0
#include "kvcove/cli/find_pool.h"

#include <fmt/core.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "kvcove/base/clock.h"
#include "kvcove/cli/tables.h"
#include "kvcove/pool/host_status.h"
#include "kvcove/pool/pool.h"
#include "kvcove/rpc/unix_access.h"

namespace kvcove::cli {
namespace {

constexpr std::int64_t kProbeNs = kSecond;
constexpr std::chrono::milliseconds kAskCluster(3000);
constexpr std::string_view kAbstract = "unix:@";
constexpr std::string_view kOfCluster = "master:";  // an owner's authority, wire::Welcome

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Result<UniqueFd> Connect(const std::string& socket) {
  return rpc::ConnectUnix(socket, SystemClock::Instance().NowNs() + kProbeNs);
}

// Returns whether a running process of this user, or root's, serves this name. Any user may bind
// it, and after the end of the process that served it a child that it has forked may have it.
bool IsServed(const std::string& abstract_name, std::int64_t deadline_ns) {
  const auto fd = rpc::ConnectAbstract(abstract_name, deadline_ns);
  if (!fd) return fd.error().code == Code::kTimeout;  // it is stopped
  ucred peer{};
  (void)rpc::UnixAccess().Allows(fd->get(), peer);
  // The kernel gives 0 as the number of a process of another PID namespace.
  return peer.pid == 0 || kill(peer.pid, 0) == 0 || errno != ESRCH;
}

Endpoint LookedFor() { return {.address = kMasterHere, .trusted = false}; }

enum class Here { kNobody, kMaster, kMasterWithCredentials };

// Returns who answers at kMasterHere, asked without a token.
Here LookForMaster(const AdminAccessOptions& access) {
  Result<AdminClient> client =
      AdminClient::Open(LookedFor(), {.token = {}, .tls = access.tls, .as_json = false});
  if (!client) return Here::kNobody;
  client->SetTimeout(kProbeNs);
  const Result<nlohmann::json> status = client->Json("GET", "/v1/status", {});
  if (!status) {
    return status.error().code == Code::kDenied ? Here::kMasterWithCredentials : Here::kNobody;
  }
  const std::string role = TextOf(status->value("role", nlohmann::json("")));
  return role.starts_with("leader") || role.starts_with("standby") ? Here::kMaster : Here::kNobody;
}

// Fails if a token is given, which this master wants: nobody has named it.
Result<Endpoint> WithoutToken(Here here, const AdminAccessOptions& access) {
  if (here != Here::kMasterWithCredentials || access.token.empty()) return LookedFor();
  return Fail(Code::kDenied,
              fmt::format("{0} wants a token, and is not shown yours: any user of this host may "
                          "listen there. If it is your master, name it: --admin {0}",
                          kMasterHere));
}

// The admin endpoint of the cluster that $KVCOVE_POOL names, as its master announces it.
Result<std::string> EndpointOfCluster(const std::string& pool) {
  auto opened = Pool::Open(pool, kAskCluster);
  if (!opened) {
    return Fail(opened.error().code,
                fmt::format("$KVCOVE_POOL: {}; --admin HOST:7480 names the master's admin endpoint",
                            opened.error().detail));
  }
  std::string admin = (*opened)->Settings().admin;
  if (!admin.empty()) return admin;
  return Fail(Code::kUnavailable,
              "the master of $KVCOVE_POOL has no admin endpoint, or announces none "
              "(--announce-admin); name one with --admin HOST:PORT");
}

std::unexpected<Error> Several(const std::vector<std::string>& found) {
  std::string list;
  for (const std::string& one : found) list += "\n  --admin " + one;
  return Fail(Code::kInvalid, "there are several pools here; name one of them:" + list);
}

std::unexpected<Error> None(const Error& error) {
  return Fail(
      Code::kUnavailable,
      fmt::format("no pool is found: {}; this user has no embedded pool on this host; no master's "
                  "admin endpoint is at {}. Name one: --admin HOST:7480 of a master, or --socket "
                  "PATH of a 'kvcove serve'",
                  error.detail, kMasterHere));
}

// What is on this host.
Result<Endpoint> LookAround(const AdminAccessOptions& access) {
  const Result<std::string> host = EndpointOf(DefaultSocketPath());
  std::vector<std::string> found = EmbeddedEndpoints();
  if (host) found.insert(found.begin(), *host);
  const Here here = LookForMaster(access);
  if (here != Here::kNobody) found.emplace_back(kMasterHere);
  if (found.size() == 1 && here != Here::kNobody) return WithoutToken(here, access);
  if (found.size() == 1) return Endpoint{found.front()};
  if (found.size() > 1) return Several(found);
  // The error of an owner in a cluster says where to ask.
  if (host.error().code == Code::kInvalid) return std::unexpected(host.error());
  return None(host.error());
}

}  // namespace

void AddPoolChoice(CLI::App& app, PoolChoice& choice) {
  app.add_option("--admin", choice.admin,
                 "admin endpoint of the pool: HOST:PORT of a master (of all of several, with "
                 "commas), or unix:PATH (default: found out; 'kvcove status --help' says how)");
  app.add_option("--socket", choice.socket,
                 "socket of a 'kvcove serve' or 'kvcove run' of this host, in place of --admin");
}

std::vector<std::string> EmbeddedEndpoints() {
  // The last field of a line is the name; '@' stands for the zero byte of an abstract one.
  const std::string wanted = fmt::format("@kvcove/{}/embedded-", geteuid());
  std::vector<std::string> found;
  std::ifstream names("/proc/net/unix");
  for (std::string line; std::getline(names, line);) {
    const std::size_t at = line.rfind(' ');
    if (at == std::string::npos || line.compare(at + 1, wanted.size(), wanted) != 0) continue;
    found.push_back(std::string(kAbstract) + line.substr(at + 2));
  }
  // Each connection of the server has a line, too.
  std::ranges::sort(found);
  found.erase(std::ranges::unique(found).begin(), found.end());
  const std::int64_t deadline_ns = SystemClock::Instance().NowNs() + kProbeNs;  // of all
  std::erase_if(found, [&](const std::string& one) {
    return !IsServed(one.substr(kAbstract.size()), deadline_ns);
  });
  return found;
}

Result<std::string> EndpointOf(const std::string& socket) {
  const std::vector<std::string> admins = pool::AdminSocketsOf(socket);
  std::string failed;  // why the first does not answer
  for (const std::string& admin : admins) {
    const auto connected = Connect(admin);
    if (connected) return "unix:" + admin;
    if (failed.empty()) failed = connected.error().detail;
  }
  const std::string& admin = admins.front();
  const auto owners = pool::StatusOfOwners(socket, kProbeNs);
  if (owners.empty()) {
    return Fail(Code::kUnavailable, fmt::format("nobody serves the socket '{}'", socket));
  }
  const pool::OwnerStatus& owner = owners.front();
  if (!owner.reached) {
    return Fail(Code::kUnavailable,
                fmt::format("the owner at '{}': {}", socket, owner.reached.error().detail));
  }
  if (owner.authority.starts_with(kOfCluster)) {
    return Fail(Code::kInvalid,
                fmt::format("the owner at '{}' belongs to the cluster of the master {}; name that "
                            "master's admin endpoint with --admin HOST:7480",
                            socket, owner.authority.substr(kOfCluster.size())));
  }
  if (std::error_code error; std::filesystem::exists(admin, error)) {
    return Fail(Code::kUnavailable,
                fmt::format("the owner at '{}' does not answer at its admin socket, where only the "
                            "owner's user and root may ask: {}",
                            socket, failed));
  }
  return Fail(Code::kUnavailable,
              fmt::format("the owner at '{}' has no admin socket '{}': it is of an earlier build, "
                          "or in an engine's process, or its log says why",
                          socket, admin));
}

Result<PoolChoice> ChosenOf(const PoolChoice& given) {
  if (given.admin.empty() || given.socket.empty()) return given;
  if (given.socket == Variable("KVCOVE_SOCKET")) {
    return PoolChoice{.admin = given.admin, .socket = {}};
  }
  if (given.admin == Variable("KVCOVE_ADMIN")) {
    return PoolChoice{.admin = {}, .socket = given.socket};
  }
  return Fail(Code::kInvalid, "--admin and --socket name two endpoints; give one of them");
}

Result<Endpoint> MasterHere(const AdminAccessOptions& access) {
  return WithoutToken(access.token.empty() ? Here::kNobody : LookForMaster(access), access);
}

Result<Endpoint> FindEndpoint(const PoolChoice& given, const AdminAccessOptions& access) {
  KVCOVE_ASSIGN(const PoolChoice choice, ChosenOf(given));
  Endpoint endpoint{choice.admin};
  if (!endpoint.address.empty()) return endpoint;
  const std::string pool = Variable("KVCOVE_POOL");
  if (!choice.socket.empty()) {
    KVCOVE_ASSIGN(endpoint.address, EndpointOf(choice.socket));
  } else if (pool.starts_with("kvcove://")) {
    KVCOVE_ASSIGN(endpoint.address, EndpointOfCluster(pool));
  } else if (pool.starts_with("unix:")) {
    KVCOVE_ASSIGN(endpoint.address, EndpointOf(pool.substr(5, pool.find('?') - 5)));
  } else {
    return LookAround(access);
  }
  return endpoint;
}

}  // namespace kvcove::cli
