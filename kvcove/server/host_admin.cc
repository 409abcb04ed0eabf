// SPDX-License-Identifier: Apache-2.0
#include "kvcove/server/host_admin.h"

#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <utility>

#include "kvcove/base/interrupt.h"
#include "kvcove/base/log.h"
#include "kvcove/master/server/page.h"
#include "kvcove/rpc/unix_access.h"

namespace kvcove::server {
namespace {

constexpr std::size_t kAnswerThreads = 2;
constexpr std::int64_t kTryEveryNs = 10 * kMillisecond;
constexpr int kNames = 16;  // that an embedded pool tries

bool MayAsk(int fd) {
  ucred peer{};
  return rpc::UnixAccess().Allows(fd, peer);
}

// Its directory may let engines of another user in; the socket does not.
Result<UniqueFd> ListenAlone(const std::string& path, const rpc::UnixAccess& directory) {
  KVCOVE_ASSIGN(UniqueFd listener, rpc::ListenUnix(path, directory));
  (void)chmod(path.c_str(), 0600);
  return listener;
}

// Until the predecessor of a take-over has ended its socket is in use.
Result<UniqueFd> ListenWithin(const HostAdminOptions& options, const Clock& clock) {
  const std::int64_t until_ns = clock.NowNs() + options.patience_ns;
  while (true) {
    auto listener = ListenAlone(options.socket_path, options.directory_access);
    if (listener || listener.error().code != Code::kUnavailable || clock.NowNs() >= until_ns) {
      return listener;
    }
    SleepNs(kTryEveryNs);
  }
}

// A name may be in use: processes of two containers have equal numbers and may share a network, and
// any user may bind any name. Sets `name`.
Result<UniqueFd> ListenEmbedded(std::string& name) {
  static std::atomic<unsigned> pools{0};
  for (int tries = 1;; ++tries) {
    name = fmt::format("kvcove/{}/embedded-{}-{}", geteuid(), getpid(), ++pools);
    auto listener = rpc::ListenAbstract(name);
    if (listener || tries == kNames) return listener;
  }
}

// Returns a new listener if the name of the socket was removed, or was never this process's.
UniqueFd ListenAgain(rpc::SocketFile& file, const rpc::UnixAccess& directory) {
  if (file.Mine()) return {};
  auto listener = ListenAlone(file.path(), directory);
  if (!listener) {
    LogDebug("the admin socket cannot be bound: {}", listener.error().detail);
    return {};
  }
  file.Take();
  return std::move(*listener);
}

}  // namespace

HostAdmin::~HostAdmin() {
  unix_.reset();
  tcp_.reset();
  if (file_ != nullptr) file_->Remove();
}

Status HostAdmin::ServeUnix(const HostAdminOptions& options, const std::vector<http::Route>& routes,
                            const Clock& clock) {
  http::ServerOptions server{.workers = kAnswerThreads, .authorize = {}, .admit = MayAsk};
  if (options.embedded) {
    server.workers = 1;  // threads of an engine's process
    std::string name;
    KVCOVE_ASSIGN(server.listener, ListenEmbedded(name));
    endpoint_ = "unix:@" + name;
  } else {
    file_ = std::make_unique<rpc::SocketFile>(options.socket_path);
    auto listener = ListenWithin(options, clock);
    if (listener) {
      server.listener = std::move(*listener);
      file_->Take();
      endpoint_ = "unix:" + options.socket_path;
    } else {
      LogWarn("no admin socket until its path is free: {}", listener.error().ToString());
    }
    server.relisten = [file = file_.get(), directory = options.directory_access,
                       without = !listener.has_value()]() mutable {
      UniqueFd again = ListenAgain(*file, directory);
      if (again.valid() && std::exchange(without, false)) {
        LogInfo("the admin socket is {}", file->path());
      }
      return again;
    };
  }
  KVCOVE_ASSIGN(unix_, http::Server::Open(std::move(server), routes));
  return {};
}

Result<std::unique_ptr<HostAdmin>> HostAdmin::Open(HostPoolOptions pool, HostAdminOptions options,
                                                   const Clock& clock) {
  std::unique_ptr<HostAdmin> admin(new HostAdmin);
  const auto host_pool = std::make_shared<HostPool>(std::move(pool), clock);
  std::vector<http::Route> routes = master::PoolRoutes(host_pool, clock);
  if (!options.socket_path.empty() || options.embedded) {
    KVCOVE_TRY(admin->ServeUnix(options, routes, clock));
  }
  if (options.address) {
    // No browser reaches the Unix socket.
    master::Page page = master::PageOf(host_pool, {}, clock);
    std::ranges::move(page.routes, std::back_inserter(routes));
    KVCOVE_ASSIGN(admin->tcp_,
                  http::Server::Open({.listener = std::move(options.listener),
                                      .loopback = rpc::IsLoopback(*options.address),
                                      .workers = kAnswerThreads,
                                      .authorize = rpc::BearersOf(std::move(options.credentials)),
                                      .tick = std::move(page.tick),
                                      .logins = true,
                                      .tunnel = rpc::TunnelOf(std::move(options.tls))},
                                     std::move(routes)));
  }
  return admin;
}

std::unique_ptr<HostAdmin> HostAdmin::OpenEmbedded(HostPoolOptions pool, const Clock& clock) {
  pool.role = "embedded";
  HostAdminOptions options;
  options.embedded = true;
  auto admin = Open(std::move(pool), std::move(options), clock);
  if (admin) return std::move(*admin);
  LogInfo("an embedded pool without its admin interface: {}", admin.error().ToString());
  return nullptr;
}

}  // namespace kvcove::server
