// SPDX-License-Identifier: Apache-2.0
#include "kvcove/pool/master_process.h"

#include <fmt/core.h>
#include <unistd.h>

#include <map>
#include <utility>

#include "kvcove/base/log.h"
#include "kvcove/rpc/inherited.h"

namespace kvcove::pool {
namespace {

constexpr std::size_t kMasterFiles = 2;   // the directory as it was a moment ago, the lock
constexpr std::size_t kMasterStates = 1;  // the master's
constexpr std::uint32_t kConnections = 8;

// In a directory of its own: the data directory may be open to others, its files are not.
std::string SocketPath(const std::string& data_directory) {
  return data_directory + "/upgrade/kvcove.sock";
}

UpgradeHello HelloOf(const MasterProcessOptions& options) {
  UpgradeHello hello;
  hello.layout = master::MasterServer::kStateVersion;
  hello.role = "master";
  hello.listen = options.server.listen.ToString();
  return hello;
}

}  // namespace

class MasterProcess::Impl final : public rpc::Handler, public UpgradeGiver {
 public:
  Impl(const MasterProcessOptions& options, const Clock& clock)
      : options_(options), clock_(clock), upgrade_(options.on_taken_over, clock) {}
  ~Impl() override {
    upgrade_.Join();
    if (socket_ != nullptr) socket_->Stop();
    tasks_.reset();
    server_.reset();
  }

  Status Open();
  Status TakeOver();
  master::MasterServer& server() { return *server_; }
  master::Tasks& tasks() { return *tasks_; }

  // ---- rpc::Handler, of the socket. Nobody is let in: a connection takes over, or ends.
  void OnOpen(rpc::ConnectionId id, const rpc::Peer& peer) override { peers_[id] = peer; }
  void OnClose(rpc::ConnectionId id) override { peers_.erase(id); }
  void OnProcessGone(std::uint64_t /*watch*/) override {}
  bool Admitted(rpc::ConnectionId /*id*/) const override { return false; }
  void OnRequest(rpc::ConnectionId id, wire::Method method, std::span<const std::byte> body,
                 std::int64_t deadline_ns, rpc::Responder respond) override;

  // ---- UpgradeGiver
  Result<std::vector<UniqueFd>> Files() override;
  void Prepare() override {}
  Status Quiet() override { return server_->Quiet(); }
  Status Freeze() override { return server_->Freeze(); }
  std::int64_t LeaseUntilNs() const override { return server_->LeaseUntilNs(); }
  Result<UpgradeState> Save() override;
  // Nobody has renewed a lease since Quiet.
  std::int64_t StopLease() override { return server_->LeaseUntilNs(); }
  void Thaw() override;

 private:
  Status Take(UpgradeTaker& taker);
  Status MayTakeOver(const rpc::Peer& peer, std::span<const std::byte> body) const;
  void Listen();

  const MasterProcessOptions options_;
  const Clock& clock_;
  UpgradeThread upgrade_;
  master::CarriedTasks carried_tasks_;  // until they go on
  std::unique_ptr<master::MasterServer> server_;
  std::unique_ptr<master::Tasks> tasks_;
  std::map<rpc::ConnectionId, rpc::Peer> peers_;  // the socket's; its loop's
  std::unique_ptr<rpc::Server> socket_;
};

// ---- the running process

Status MasterProcess::Impl::Open() {
  KVCOVE_ASSIGN(server_, master::MasterServer::Open(options_.server, clock_));
  tasks_ = std::make_unique<master::Tasks>(*server_, options_.tasks, clock_);
  KVCOVE_TRY(tasks_->Begin());
  Listen();
  return {};
}

// This process holds the lock of the data directory, so a socket that is there is a predecessor's.
// Without one the master serves all the same.
void MasterProcess::Impl::Listen() {
  if (options_.server.data_directory.empty()) return;
  rpc::ServerOptions server;
  server.socket_path = SocketPath(options_.server.data_directory);
  server.max_connections = kConnections;
  server.name = "the master's socket for its successor";
  server.thread_name = "kvcove-successor";
  unlink(server.socket_path.c_str());
  const auto listen = [&]() -> Status {
    KVCOVE_ASSIGN(socket_, rpc::Server::Open(server, *this));
    return socket_->Start();
  };
  if (const Status listens = listen(); !listens) {
    socket_.reset();
    LogWarn("this master cannot be taken over (--take-over), only restarted: {}",
            listens.error().detail);
  }
}

Status MasterProcess::Impl::MayTakeOver(const rpc::Peer& peer,
                                        std::span<const std::byte> body) const {
  KVCOVE_ASSIGN(const std::vector<UpgradeHello> asking,
                DecodeHellos({reinterpret_cast<const char*>(body.data()), body.size()}));
  if (peer.uid != geteuid()) {
    return Fail(Code::kDenied,
                fmt::format("it runs as user {}, not as user {}", geteuid(), peer.uid));
  }
  const UpgradeHello running = HelloOf(options_);
  if (const std::string why = Mismatch({&running, 1}, asking); !why.empty()) {
    return Fail(Code::kIncompatible, why);
  }
  return {};
}

void MasterProcess::Impl::OnRequest(rpc::ConnectionId id, wire::Method method,
                                    std::span<const std::byte> body, std::int64_t /*deadline_ns*/,
                                    rpc::Responder respond) {
  if (method != wire::Method::kTakeOver) {
    return respond(rpc::ErrorReply({Code::kDenied, "only a successor speaks here"}, true));
  }
  const rpc::Peer peer = peers_[id];
  if (const Status may = MayTakeOver(peer, body); !may) {
    return respond(rpc::ErrorReply(may.error(), /*close=*/true));
  }
  if (upgrade_.Begin(*socket_, id, peer.pid, {this}, respond)) peers_.erase(id);
}

Result<std::vector<UniqueFd>> MasterProcess::Impl::Files() {
  std::vector<UniqueFd> files;
  KVCOVE_ASSIGN(UniqueFd ahead, server_->SaveAhead());
  files.push_back(std::move(ahead));
  files.push_back(server_->CopyLock());
  return files;
}

Result<UpgradeState> MasterProcess::Impl::Save() {
  master::CarriedTasks tasks = tasks_->BeginHandOver();
  KVCOVE_ASSIGN(StateWriter ar, StateWriter::Open());
  server_->Save(ar);
  CarryOne(ar, tasks);
  UpgradeState state;
  KVCOVE_ASSIGN(UniqueFd file, ar.Finish());
  state.states.push_back(std::move(file));
  state.server = server_->HandOver();
  state.tcp_listeners = rpc::CopyTcpListeners();
  return state;
}

void MasterProcess::Impl::Thaw() {
  server_->Thaw();
  tasks_->EndHandOver();
}

// ---- the successor's process

Status MasterProcess::Impl::Take(UpgradeTaker& taker) {
  KVCOVE_ASSIGN(std::vector<UniqueFd> files, taker.ReceiveFiles(kMasterFiles));
  KVCOVE_ASSIGN(master::MasterServer::Ahead ahead,
                master::MasterServer::LoadAhead(options_.server, files[0], std::move(files[1])));
  KVCOVE_TRY(taker.SayMapped());
  KVCOVE_ASSIGN(UpgradeState state, taker.ReceiveState(kMasterStates));
  KVCOVE_ASSIGN(StateReader ar, StateReader::Open(state.states[0]));
  KVCOVE_ASSIGN(server_, master::MasterServer::Adopt(options_.server, std::move(ahead), ar,
                                                     std::move(state.server), clock_));
  CarryOne(ar, carried_tasks_);
  if (!ar.ok()) return Fail(Code::kIncompatible, "the state of tasks differs");
  rpc::InheritTcpListeners(std::move(state.tcp_listeners));
  return taker.AwaitGo();
}

Status MasterProcess::Impl::TakeOver() {
  if (options_.server.data_directory.empty()) {
    return Fail(Code::kInvalid,
                "--take-over: a master is found by its --data directory; name that of the running "
                "one");
  }
  const UpgradeHello hello = HelloOf(options_);
  KVCOVE_ASSIGN(UpgradeTaker taker, UpgradeTaker::Begin(SocketPath(options_.server.data_directory),
                                                        {&hello, 1}, clock_, options_.on_stage));
  if (const Status taken = Take(taker); !taken) {
    taker.SayFailed(taken.error());
    return Fail(taken.error().code, fmt::format("--take-over: {}; process {} goes on",
                                                taken.error().detail, taker.giver_pid()));
  }
  // From here on the other process ends, and this one is the only writer.
  taker.SayMine();
  KVCOVE_TRY(server_->StartAdopted());
  tasks_ = std::make_unique<master::Tasks>(*server_, options_.tasks, clock_,
                                           std::exchange(carried_tasks_, {}));
  KVCOVE_TRY(tasks_->Begin());
  Listen();
  LogInfo("took over from process {}", taker.giver_pid());
  return {};
}

// ---- MasterProcess

MasterProcess::MasterProcess(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MasterProcess::~MasterProcess() = default;
master::MasterServer& MasterProcess::server() { return impl_->server(); }
master::Tasks& MasterProcess::tasks() { return impl_->tasks(); }

Result<std::unique_ptr<MasterProcess>> MasterProcess::Open(const MasterProcessOptions& options,
                                                           const Clock& clock) {
  auto impl = std::make_unique<Impl>(options, clock);
  KVCOVE_TRY(options.take_over ? impl->TakeOver() : impl->Open());
  return std::unique_ptr<MasterProcess>(new MasterProcess(std::move(impl)));
}

}  // namespace kvcove::pool
