// SPDX-License-Identifier: Apache-2.0
#include "kvcove/server/upgrade.h"

#include <fmt/core.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <limits>
#include <map>
#include <optional>

#include "kvcove/base/host/priority.h"
#include "kvcove/base/log.h"
#include "kvcove/base/size.h"
#include "kvcove/base/text.h"
#include "kvcove/rpc/client.h"
#include "kvcove/wire/frame.h"

namespace kvcove::server {
namespace {

constexpr std::int64_t kHelloNs = 5 * kSecond;
constexpr std::int64_t kMapNs = 10 * kSecond;
// Longest wait for the other side while the giver is frozen: puts wait meanwhile, reads do not.
constexpr std::int64_t kLoadNs = 5 * kSecond;
// Part of the lease that must be left for the taker to renew it once all is loaded.
constexpr std::int64_t kMineNs = 300 * kMillisecond;
// Part of the lease that must be left for the giver to kill the taker and renew the lease again.
constexpr std::int64_t kThawNs = 200 * kMillisecond;
constexpr std::int64_t kEndNs = 5 * kSecond;  // longest wait for the end of a killed process
constexpr std::string_view kFailed = "failed: ";

// Waits for the end of the process. False: it has not ended in time.
bool Ended(const UniqueFd& pidfd, std::int64_t wait_ns) {
  pollfd poller{.fd = pidfd.get(), .events = POLLIN, .revents = 0};
  return poll(&poller, 1, static_cast<int>(wait_ns / kMillisecond)) > 0;
}

Result<rpc::FdMessage> ReceiveWanted(int socket, std::string_view wanted,
                                     std::int64_t deadline_ns) {
  auto received = rpc::ReceiveMessage(socket, deadline_ns);
  if (!received) {
    return Fail(received.error().code, fmt::format("no '{}': {}", wanted, received.error().detail));
  }
  rpc::FdMessage& message = *received;
  if (message.body == wanted) return std::move(message);
  if (message.body.starts_with(kFailed)) {
    return Fail(Code::kInvalid, message.body.substr(kFailed.size()));
  }
  return Fail(Code::kCorrupt, fmt::format("'{}' instead of '{}'", message.body, wanted));
}

// The numbers beside the descriptors of a state, in the order of the descriptors.
struct Listed {
  std::vector<std::uint64_t> pages;
  std::vector<std::uint64_t> watches;
  struct Connection {
    rpc::ConnectionId id = 0;
    rpc::Peer peer;
    std::vector<std::byte> input;
    template <typename Ar>
    void Carry(Ar& ar) {
      CarryAll(ar, id, peer, input);
    }
  };
  std::vector<Connection> connections;
  bool lineage = false;
  bool disk_lock = false;
  std::uint64_t tcp_listeners = 0;
  template <typename Ar>
  void Carry(Ar& ar) {
    CarryAll(ar, pages, watches, connections, lineage, disk_lock, tcp_listeners);
  }
};

constexpr std::size_t kBesideStates = 2;  // the list, the listener

// Sends one message with the fixed files, then the other descriptors in as many messages as they
// take. The list says how many there are, because their number differs from state to state.
Status SendState(int socket, UpgradeState& state, std::int64_t deadline_ns) {
  Listed listed;
  std::vector<int> fds;
  for (const auto& [number, fd] : state.pages) {
    listed.pages.push_back(number);
    fds.push_back(fd.get());
  }
  for (const rpc::HandedWatch& watch : state.server.watches) {
    listed.watches.push_back(watch.watch);
    fds.push_back(watch.pidfd.get());
  }
  for (rpc::HandedConnection& one : state.server.connections) {
    listed.connections.push_back({.id = one.id, .peer = one.peer, .input = std::move(one.input)});
    fds.push_back(one.fd.get());
  }
  listed.lineage = state.lineage.valid();
  if (listed.lineage) fds.push_back(state.lineage.get());
  listed.disk_lock = state.disk_lock.valid();
  if (listed.disk_lock) fds.push_back(state.disk_lock.get());
  listed.tcp_listeners = state.tcp_listeners.size();
  for (const UniqueFd& listener : state.tcp_listeners) fds.push_back(listener.get());
  KVCOVE_ASSIGN(StateWriter writer, StateWriter::Open());
  CarryOne(writer, listed);
  KVCOVE_ASSIGN(const UniqueFd list, writer.Finish());
  std::vector<int> fixed;
  for (const UniqueFd& file : state.states) fixed.push_back(file.get());
  fixed.push_back(list.get());
  fixed.push_back(state.server.listener.get());
  KVCOVE_TRY(rpc::SendMessage(socket, "state", fixed, deadline_ns));
  for (std::size_t at = 0; at < fds.size(); at += rpc::kMaxMessageFds) {
    const auto part = std::span(fds).subspan(at, std::min(rpc::kMaxMessageFds, fds.size() - at));
    KVCOVE_TRY(rpc::SendMessage(socket, "more", part, deadline_ns));
  }
  return {};
}

// All daemons become quiet before the first is frozen: a call at one of them may use the others,
// such as a removal, which asks all owners of the process.
Status StandStill(std::span<UpgradeGiver* const> givers) {
  for (UpgradeGiver* giver : givers) KVCOVE_TRY(giver->Quiet());
  for (UpgradeGiver* giver : givers) KVCOVE_TRY(giver->Freeze());
  return {};
}

Status GiveFrozen(std::span<UpgradeGiver* const> givers, int socket, const Clock& clock) {
  std::int64_t lease_until_ns = std::numeric_limits<std::int64_t>::max();
  for (UpgradeGiver* giver : givers) {
    lease_until_ns = std::min(lease_until_ns, giver->LeaseUntilNs());
  }
  // In a cluster nobody renews the lease after Freeze: so much of it must remain for the taker.
  const std::int64_t deadline_ns = std::min(clock.NowNs() + kLoadNs, lease_until_ns - kMineNs);
  for (UpgradeGiver* giver : givers) {
    KVCOVE_ASSIGN(UpgradeState state, giver->Save());
    KVCOVE_TRY(SendState(socket, state, deadline_ns));
  }
  KVCOVE_TRY(ReceiveWanted(socket, "loaded", deadline_ns));
  // From here on nobody renews the lease until the taker does. The wait for "mine" ends while
  // enough of the lease is left to kill the taker and renew it here: else all would be a miss
  // meanwhile.
  std::int64_t mine_ns = clock.NowNs() + kLoadNs;
  for (UpgradeGiver* giver : givers) mine_ns = std::min(mine_ns, giver->StopLease() - kThawNs);
  KVCOVE_TRY(rpc::SendMessage(socket, "go", {}, mine_ns));
  KVCOVE_TRY(ReceiveWanted(socket, "mine", mine_ns));
  // The taker owns the memory now. A "yours" that is lost does no harm: the taker sees the end of
  // this process instead.
  (void)rpc::SendMessage(socket, "yours", {}, clock.NowNs() + kSecond);
  return {};
}

}  // namespace

// ---- hello: lines of NAME=VALUE, so that later versions may add some

namespace {

std::string Encode(const UpgradeHello& hello) {
  return fmt::format(
      "version={}\nlayout={}\nrole={}\nmemory={}\nobjects={}\ndata={}\nmaster={}\nlisten={}\n"
      "tenant={}\ndisks={}\n",
      hello.version, hello.layout, hello.role, hello.memory_bytes, hello.max_objects, hello.data,
      hello.master, hello.listen, hello.tenant, hello.disks);
}

Result<UpgradeHello> Decode(std::string_view text) {
  std::map<std::string, std::string, std::less<>> lines;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const std::size_t equals = line.find('=');
    if (equals == std::string_view::npos) return Fail(Code::kCorrupt, "no hello of an upgrade");
    lines.emplace(line.substr(0, equals), line.substr(equals + 1));
  }
  const auto number = [&](const char* name) {
    const auto at = lines.find(name);
    return at == lines.end() ? 0 : LeadingNumber(at->second);
  };
  return UpgradeHello{.version = static_cast<std::uint32_t>(number("version")),
                      .layout = static_cast<std::uint32_t>(number("layout")),
                      .role = lines["role"],
                      .memory_bytes = number("memory"),
                      .max_objects = number("objects"),
                      .data = lines["data"],
                      .disks = lines["disks"],
                      .master = lines["master"],
                      .listen = lines["listen"],
                      .tenant = lines["tenant"]};
}

std::string MismatchOne(const UpgradeHello& running, const UpgradeHello& asking) {
  if (running.version != asking.version) {
    return fmt::format(
        "it hands over in version {}, this build takes over in version {}: restart "
        "it instead, which starts empty",
        running.version, asking.version);
  }
  if (running.role != asking.role) {
    return fmt::format("it is 'kvcove {}', not 'kvcove {}'", running.role, asking.role);
  }
  if (running.layout != asking.layout) {
    return fmt::format(
        "its memory has layout {}, this build writes layout {}: restart it instead, "
        "which starts empty",
        running.layout, asking.layout);
  }
  if (running.memory_bytes != asking.memory_bytes) {
    return fmt::format("it has --memory {}, not {}: the size stays while it runs",
                       FormatSize(running.memory_bytes), FormatSize(asking.memory_bytes));
  }
  if (running.max_objects != asking.max_objects) {
    return fmt::format("it has --max-objects {}, not {}: the number stays while it runs",
                       running.max_objects, asking.max_objects);
  }
  if (running.data != asking.data) {
    return fmt::format("it keeps its generations in '{}', not in '{}'", running.data, asking.data);
  }
  if (running.disks != asking.disks) {
    return fmt::format("it has --disk '{}', not '{}': disks stay while it runs", running.disks,
                       asking.disks);
  }
  if (running.master != asking.master) {
    return fmt::format("its master is {}, not {}", running.master, asking.master);
  }
  if (running.listen != asking.listen) {
    return fmt::format("it listens on {}, not on {}: others know it by that", running.listen,
                       asking.listen);
  }
  if (running.tenant != asking.tenant) {
    return fmt::format("it serves the tenant '{}', not '{}'", running.tenant, asking.tenant);
  }
  return {};
}

}  // namespace

std::string EncodeHellos(std::span<const UpgradeHello> hellos) {
  std::string text;
  for (const UpgradeHello& hello : hellos) text += (text.empty() ? "" : "\n") + Encode(hello);
  return text;
}

Result<std::vector<UpgradeHello>> DecodeHellos(std::string_view text) {
  constexpr std::string_view kBetween = "\n\n";
  std::vector<UpgradeHello> hellos;
  while (!text.empty()) {
    const std::size_t end = text.find(kBetween);
    KVCOVE_ASSIGN(UpgradeHello hello, Decode(text.substr(0, end)));
    hellos.push_back(std::move(hello));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + kBetween.size());
  }
  if (hellos.empty()) return Fail(Code::kCorrupt, "no hello of an upgrade");
  return hellos;
}

std::string Mismatch(std::span<const UpgradeHello> running, std::span<const UpgradeHello> asking) {
  if (running.size() != asking.size()) {
    return fmt::format("it runs {} owners, not {}: --numa stays while it runs", running.size(),
                       asking.size());
  }
  for (std::size_t i = 0; i < running.size(); ++i) {
    if (std::string why = MismatchOne(running[i], asking[i]); !why.empty()) return why;
  }
  return {};
}

// ---- giving

Status Give(std::span<UpgradeGiver* const> givers, const UniqueFd& socket, const UniqueFd& pidfd,
            const Clock& clock) {
  const std::int64_t deadline_ns = clock.NowNs() + kMapNs;
  // Until "mapped" this process serves as ever, so an error only ends the conversation.
  for (UpgradeGiver* giver : givers) {
    KVCOVE_ASSIGN(const std::vector<UniqueFd> files, giver->Files());
    std::vector<int> fds;
    for (const UniqueFd& file : files) fds.push_back(file.get());
    KVCOVE_TRY(rpc::SendMessage(socket.get(), "files", fds, deadline_ns));
  }
  KVCOVE_TRY(ReceiveWanted(socket.get(), "mapped", deadline_ns));
  for (UpgradeGiver* giver : givers) giver->Prepare();
  // Puts wait for this thread from here on, and busy engines may want the same cores.
  std::optional<RaisedPriority> raised(std::in_place);
  Status given = StandStill(givers);
  if (!given) {
    raised.reset();
    // The taker has no state yet, so it need not be killed before this process serves again. It
    // reports the reason to its user and ends.
    for (UpgradeGiver* giver : givers) giver->Thaw();
    (void)rpc::SendMessage(socket.get(), std::string(kFailed) + given.error().detail, {},
                           clock.NowNs() + kSecond);
    if (!Ended(pidfd, kEndNs)) LogWarn("the process that was to take over does not end");
    return given;
  }
  given = GiveFrozen(givers, socket.get(), clock);
  if (given) return {};
  raised.reset();
  // Kills the taker and waits for its end before this process writes again: it may have read "go"
  // and write already.
  (void)syscall(SYS_pidfd_send_signal, pidfd.get(), SIGKILL, nullptr, 0);
  if (!Ended(pidfd, kEndNs)) LogError("the process that was to take over cannot be ended");
  for (UpgradeGiver* giver : givers) giver->Thaw();
  return given;
}

void UpgradeThread::Join() {
  if (thread_.joinable()) thread_.join();
}

bool UpgradeThread::Begin(rpc::Server& server, rpc::ConnectionId id, std::int32_t pid,
                          std::vector<UpgradeGiver*> givers, const rpc::Responder& respond) {
  const auto fail = [&](const Error& error) {
    respond(rpc::ErrorReply(error, /*close=*/true));
    return false;
  };
  if (!on_taken_over_) return fail({Code::kInvalid, "it is part of another process"});
  UniqueFd process = server.PeerProcess(id);
  if (!process.valid()) return fail({Code::kDenied, "the peer's process cannot be watched"});
  // One hand-over at a time: two takers would both get the memory.
  if (runs_.exchange(true)) {
    return fail({Code::kInProgress, "another process is taking it over now; try again"});
  }
  // Answers before Detach: the answer is written at once, because this is the handler's call, and a
  // detached connection has no server to write it.
  respond({.code = Code::kOk, .body = std::to_string(getpid()), .fds = {}});
  const auto socket = std::make_shared<UniqueFd>(server.Detach(id));
  if (!socket->valid()) {  // writing the answer has failed and closed it, with an OnClose
    runs_ = false;
    return false;
  }
  if (thread_.joinable()) thread_.join();  // of an earlier try: it cleared runs_ as its last step
  auto thread = StartThread("kvcove-upgrade", [this, pid, givers = std::move(givers), socket,
                                               process =
                                                   std::make_shared<UniqueFd>(std::move(process))] {
    const Status given = Give(givers, *socket, *process, clock_);
    if (given) return on_taken_over_(pid);
    LogWarn("process {} has not taken over, this one goes on: {}", pid, given.error().ToString());
    runs_ = false;
  });
  if (thread) {
    thread_ = std::move(*thread);
  } else {
    // The connection closes with `socket`, so the taker does not wait.
    LogWarn("process {} cannot take over: {}", pid, thread.error().detail);
    runs_ = false;
  }
  return true;
}

// ---- taking

Result<UpgradeTaker> UpgradeTaker::Begin(const std::string& socket_path,
                                         std::span<const UpgradeHello> hellos, const Clock& clock,
                                         OnStage on_stage) {
  const std::int64_t deadline_ns = clock.NowNs() + kHelloNs;
  auto client = rpc::Client::Connect(socket_path, deadline_ns);
  if (!client && client.error().code == Code::kUnavailable) {
    return Fail(Code::kUnavailable,
                fmt::format("--take-over: nobody serves '{}' ({}); start without --take-over",
                            socket_path, client.error().detail));
  }
  if (!client) return std::unexpected(client.error());
  const std::string text = EncodeHellos(hellos);
  const auto reply = client->Call(wire::Method::kTakeOver,
                                  std::as_bytes(std::span(text.data(), text.size())), deadline_ns);
  if (!reply && reply.error().code == Code::kDenied &&
      reply.error().detail.find("say hello first") != std::string::npos) {
    return Fail(Code::kIncompatible,
                fmt::format("--take-over: the kvcove that serves '{}' is of a version that cannot "
                            "hand over; restart it instead, which starts empty",
                            socket_path));
  }
  if (!reply) {
    return Fail(reply.error().code, fmt::format("--take-over: the kvcove that serves '{}' refuses: "
                                                "{}",
                                                socket_path, reply.error().detail));
  }
  // The giver's pid is in its answer. SO_PEERCRED would name the process that began to listen at
  // the socket, which may be a predecessor of the giver.
  UpgradeTaker taker(client->TakeFd(), static_cast<std::int32_t>(LeadingNumber(*reply)), clock,
                     std::move(on_stage));
  taker.Reach(UpgradeStage::kHello);
  return taker;
}

Result<rpc::FdMessage> UpgradeTaker::Receive(std::string_view wanted, std::int64_t wait_ns) {
  return ReceiveWanted(socket_.get(), wanted, clock_->NowNs() + wait_ns);
}

Result<std::vector<UniqueFd>> UpgradeTaker::ReceiveFiles(std::size_t count) {
  KVCOVE_ASSIGN(rpc::FdMessage message, Receive("files", kMapNs));
  if (message.fds.size() != count) return Fail(Code::kCorrupt, "the files did not come");
  Reach(UpgradeStage::kFiles);
  return std::move(message.fds);
}

Status UpgradeTaker::ReceiveFds(std::vector<UniqueFd>& fds, std::size_t count) {
  while (fds.size() < count) {
    KVCOVE_ASSIGN(rpc::FdMessage message, Receive("more", kLoadNs));
    if (message.fds.empty()) return Fail(Code::kCorrupt, "descriptors are missing");
    for (UniqueFd& fd : message.fds) fds.push_back(std::move(fd));
  }
  return {};
}

Status UpgradeTaker::SayMapped() {
  raised_ = std::make_unique<RaisedPriority>();
  KVCOVE_TRY(rpc::SendMessage(socket_.get(), "mapped", {}, clock_->NowNs() + kHelloNs));
  Reach(UpgradeStage::kMapped);
  return {};
}

Result<UpgradeState> UpgradeTaker::ReceiveState(std::size_t states) {
  KVCOVE_ASSIGN(rpc::FdMessage message, Receive("state", kLoadNs));
  if (message.fds.size() != states + kBesideStates) {
    return Fail(Code::kCorrupt, "the state's files did not come");
  }
  UpgradeState state;
  state.server.listener = std::move(message.fds.back());
  KVCOVE_ASSIGN(StateReader reader, StateReader::Open(message.fds[states]));
  for (std::size_t i = 0; i < states; ++i) state.states.push_back(std::move(message.fds[i]));
  Listed listed;
  CarryOne(reader, listed);
  if (!reader.ok()) return Fail(Code::kCorrupt, "the list of descriptors is cut short");
  std::vector<UniqueFd> fds;
  KVCOVE_TRY(ReceiveFds(fds, listed.pages.size() + listed.watches.size() +
                                 listed.connections.size() + (listed.lineage ? 1 : 0) +
                                 (listed.disk_lock ? 1 : 0) + listed.tcp_listeners));
  std::size_t at = 0;
  for (const std::uint64_t number : listed.pages) {
    state.pages.emplace_back(number, std::move(fds[at++]));
  }
  for (const std::uint64_t watch : listed.watches) {
    state.server.watches.push_back({.watch = watch, .pidfd = std::move(fds[at++])});
  }
  for (Listed::Connection& one : listed.connections) {
    state.server.connections.push_back({.id = one.id,
                                        .peer = one.peer,
                                        .fd = std::move(fds[at++]),
                                        .input = std::move(one.input)});
  }
  if (listed.lineage) state.lineage = std::move(fds[at++]);
  if (listed.disk_lock) state.disk_lock = std::move(fds[at++]);
  for (; at < fds.size(); ++at) state.tcp_listeners.push_back(std::move(fds[at]));
  Reach(UpgradeStage::kState);
  return state;
}

Status UpgradeTaker::AwaitGo() {
  const Status said = rpc::SendMessage(socket_.get(), "loaded", {}, clock_->NowNs() + kHelloNs);
  Reach(UpgradeStage::kLoaded);
  Status go = [&]() -> Status {
    KVCOVE_TRY(said);
    KVCOVE_TRY(Receive("go", kLoadNs));
    return {};
  }();
  // The connection has ended, so the giver has: a giver that wanted to continue would have killed
  // this process first.
  if (!go && go.error().code == Code::kUnavailable) {
    LogWarn("the process that was taken over ended before it said so; all of its state is here");
    return {};
  }
  Reach(UpgradeStage::kGo);
  return go;
}

void UpgradeTaker::SayMine() {
  (void)rpc::SendMessage(socket_.get(), "mine", {}, clock_->NowNs() + kMineNs);
  // Waits as long as it takes: a giver that is frozen now may have missed "mine" when it runs
  // again, and kill this process.
  while (true) {
    const auto answer = Receive("yours", kLoadNs);
    if (answer || answer.error().code != Code::kTimeout) return;
    LogWarn("process {} neither ends nor goes on; waiting for it", pid_);
  }
}

void UpgradeTaker::SayFailed(const Error& error) {
  (void)rpc::SendMessage(socket_.get(), std::string(kFailed) + error.detail.substr(0, 1000), {},
                         clock_->NowNs() + kSecond);
}

}  // namespace kvcove::server
