// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/server.h"

#include <algorithm>

#include "kvcove/rpc/loop.h"
#include "kvcove/rpc/socket_file.h"

namespace kvcove::rpc {

class Server::Impl {
 public:
  Impl(const ServerOptions& options, Handler& handler, UniqueFd listener, bool adopted)
      : options_(options), socket_file_(options.socket_path), owns_socket_(!adopted) {
    socket_file_.Take();
    for (std::size_t i = 0; i < std::max<std::size_t>(options_.loops, 1); ++i) {
      loops_.push_back(std::make_unique<Loop>(options_, handler, loops_));
    }
    loops_[0]->Listen(std::move(listener));
    if (!options_.socket_path.empty()) loops_[0]->WatchSocket(socket_file_);
  }
  Status Start() {
    owns_socket_ = true;
    for (const auto& loop : loops_) KVCOVE_TRY(loop->Start(options_.thread_name));
    return {};
  }
  // Stops loop 0 first, which moves connections to the others: none moves to a loop that has
  // stopped.
  void Stop() {
    for (const auto& loop : loops_) loop->Stop();
    // A server that was adopted and never started leaves the socket's name to the predecessor,
    // which continues with it.
    if (owns_socket_ && !options_.socket_path.empty()) socket_file_.Remove();
  }
  void Pause(std::int64_t deadline_ns) {
    for (const auto& loop : loops_) loop->Pause(deadline_ns);
  }
  void Resume() {
    for (const auto& loop : loops_) loop->Resume(options_.thread_name);
  }
  HandedServer HandOver() {
    HandedServer handed;
    for (const auto& loop : loops_) loop->HandOver(handed);
    return handed;
  }
  Loop& first() { return *loops_[0]; }
  const Address& address() const { return options_.listen; }
  const ConnectionLimit& connections() const { return loops_[0]->listener().connections(); }
  const Unproven& unproven() const { return loops_[0]->listener().unproven(); }

 private:
  const ServerOptions options_;
  SocketFile socket_file_;  // belongs to loop 0 while that runs
  bool owns_socket_;        // false: the predecessor still serves the name
  std::vector<std::unique_ptr<Loop>> loops_;
};

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() { Stop(); }

Result<std::unique_ptr<Server>> Server::Open(const ServerOptions& given, Handler& handler) {
  ServerOptions options = given;
  UniqueFd listener;
  if (options.socket_path.empty()) {
    KVCOVE_ASSIGN(listener, ListenTcp(options.listen));
  } else {
    KVCOVE_ASSIGN(listener, ListenUnix(options.socket_path, options.unix_access));
  }
  return std::unique_ptr<Server>(
      new Server(std::make_unique<Impl>(options, handler, std::move(listener), /*adopted=*/false)));
}

Result<std::unique_ptr<Server>> Server::Adopt(const ServerOptions& options, Handler& handler,
                                              HandedServer handed) {
  if (!handed.listener.valid()) {
    return Fail(Code::kInternal, "no listening socket was handed over");
  }
  auto impl =
      std::make_unique<Impl>(options, handler, std::move(handed.listener), /*adopted=*/true);
  impl->first().Adopt(handed);
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

void Server::Pause(std::int64_t deadline_ns) { impl_->Pause(deadline_ns); }
void Server::Resume() { impl_->Resume(); }
HandedServer Server::HandOver() { return impl_->HandOver(); }
UniqueFd Server::Detach(ConnectionId id) { return impl_->first().Detach(id); }

Status Server::Start() { return impl_->Start(); }
void Server::Stop() { impl_->Stop(); }
const Address& Server::address() const { return impl_->address(); }
const ConnectionLimit& Server::connections() const { return impl_->connections(); }
const Unproven& Server::unproven() const { return impl_->unproven(); }
UniqueFd Server::PeerProcess(ConnectionId id) { return impl_->first().PeerProcess(id); }
void Server::WatchProcess(UniqueFd pidfd, std::uint64_t watch) {
  impl_->first().WatchProcess(std::move(pidfd), watch);
}
void Server::UnwatchProcess(std::uint64_t watch) { impl_->first().UnwatchProcess(watch); }

}  // namespace kvcove::rpc
