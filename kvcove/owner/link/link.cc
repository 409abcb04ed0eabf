// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/link/link.h"

#include <sys/socket.h>

#include <optional>

#include "kvcove/base/log.h"
#include "kvcove/base/posix.h"
#include "kvcove/rpc/busy.h"
#include "kvcove/rpc/gate.h"

namespace kvcove::owner {
namespace {

constexpr std::int64_t kConnectNs = 500 * kMillisecond;
constexpr std::int64_t kLongestConnectNs = 2 * kSecond;
constexpr std::int64_t kRetryNs = 50 * kMillisecond;
// A lease is 1 s: its lane retries a master within a tenth of that. The other lanes can wait, which
// spares a returning master most connections of a thousand owners.
constexpr std::int64_t kFirstRetryNs = 20 * kMillisecond;
constexpr std::int64_t kLeaseRetryNs = 100 * kMillisecond;
constexpr std::int64_t kOtherRetryNs = 400 * kMillisecond;
constexpr std::int64_t kTellEndedNs = kSecond;
constexpr std::array kThreadNames = {"kvcove-lease", "kvcove-watch", "kvcove-removal",
                                     "kvcove-list"};

// Returns the pause before the next call to a master that has refused one: a busy master names it;
// while no master leads it grows, because a thousand owners ask. 0 after other errors: LinkCore
// pauses the lane, but for a timeout, which has taken long enough.
std::int64_t WaitAfter(const Error& error, rpc::Backoff& backoff) {
  if (const auto busy_ms = rpc::BusyIn(error)) {
    return std::min(rpc::RetryNs(*busy_ms, RandomU64()), backoff.most_ns());
  }
  const auto leader = rpc::LeaderIn(error);
  return leader && leader->empty() ? backoff.NextNs() : 0;
}

}  // namespace

Link::Link(LinkTarget& target, Outbox& outbox, const LinkOptions& options, const Clock& clock)
    : target_(target),
      outbox_(outbox),
      options_(options),
      clock_(clock),
      core_(target, options.identity, options.lease_renewal_ns, clock),
      finder_(options.master, clock),
      identity_(options.identity.owner) {
  const MutexLock lock(mutex_);
  shard_fds_.fill(-1);
}

Link::~Link() { Stop(); }

Status Link::Start() {
  {
    const MutexLock lock(mutex_);
    stopping_ = false;
  }
  for (const Lane lane : LinkCore::kLanes) {
    const auto index = static_cast<std::size_t>(lane);
    if (threads_[index].joinable()) continue;
    KVCOVE_ASSIGN(threads_[index], StartThread(kThreadNames[index], [this, lane] { Run(lane); }));
  }
  if (options_.lineage == nullptr) return {};
  return options_.lineage->Watch([this](const Id128& ended) { return ReportEnded(ended); });
}

bool Link::stopping() const {
  const MutexLock lock(mutex_);
  return stopping_;
}

void Link::Pause() {
  Join();
  core_.ForgetCallers();
}

void Link::Resume() {
  StartAgain([this] { return Start(); });
}

void Link::Load(StateReader& ar) {
  core_.Load(ar);
  identity_ = core_.identity().owner;
  const MutexLock lock(mutex_);
  called_ = true;
  stopping_ = true;
}

void Link::Stop() {
  {
    const MutexLock lock(mutex_);
    if (stopping_) return;
  }
  // First, while renewals keep the lease: this waits for a file, and a reset by others would wait
  // with it.
  target_.EndOpening();
  Join();
  SayGoodbye();
}

void Link::Join() {
  {
    // One hold: a lane that has not stored its descriptor yet sees `stopping_` in Call, and one
    // that has stored it is woken by the shutdown. So no lane waits for its answer's timeout.
    const MutexLock lock(mutex_);
    stopping_ = true;
    for (const int fd : fds_) {
      if (fd >= 0) shutdown(fd, SHUT_RDWR);
    }
    for (const int fd : shard_fds_) {
      if (fd >= 0) shutdown(fd, SHUT_RDWR);
    }
    changed_.NotifyAll();
    routed_.NotifyAll();
  }
  // Each ends one more wait: the removal lane's for a disk, the list lane's for a put, the
  // lineage's pause. ReportEnded, in the lineage's thread, sees `stopping_`.
  target_.EndDiskWaits();
  outbox_.Wake();
  if (options_.lineage != nullptr) options_.lineage->Stop();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
  // After the lease's thread, which starts these.
  for (std::thread& thread : shard_threads_) {
    if (thread.joinable()) thread.join();
  }
}

void Link::SayGoodbye() {
  // Before the goodbye: once the master has answered it, the master does not wait for this owner
  // any more when it proves a reset, so no reader may trust the memory then.
  target_.SetLease(0);
  const std::optional<LinkCore::Call> goodbye = core_.Goodbye();
  if (!goodbye) {
    // If no call was ever sent, no master knows this identity, and its end needs no proof.
    bool called = false;
    {
      const MutexLock lock(mutex_);
      called = called_;
    }
    if (!called && options_.lineage != nullptr) options_.lineage->Remove();
    return;
  }
  const std::int64_t deadline_ns = clock_.NowNs() + goodbye->timeout_ns;
  auto client = rpc::Client::Connect(finder_.Current(), options_.access, deadline_ns);
  // If there is no answer, the file remains: a successor finds it and reports this identity's end.
  if (!client || !client->Call(goodbye->method, wire::AsBytes(goodbye->body), deadline_ns)) return;
  if (options_.lineage != nullptr) options_.lineage->Remove();
}

bool Link::ReportEnded(const Id128& predecessor) {
  core_.NamePredecessor(predecessor);
  const std::int64_t until_ns = clock_.NowNs() + kTellEndedNs;
  const MutexLock lock(mutex_);
  changed_.NotifyAll();  // the lease's lane says hello
  while (core_.predecessor() == predecessor) {
    if (stopping_ || clock_.NowNs() >= until_ns) return false;
    changed_.WaitFor(mutex_, std::chrono::nanoseconds(kRetryNs / 10));
  }
  return true;
}

void Link::Wait(Lane lane, std::int64_t duration_ns) {
  if (lane == Lane::kList) {
    (void)outbox_.Wait(duration_ns);
    return;
  }
  const MutexLock lock(mutex_);
  const bool hurries = lane == Lane::kLease && renew_now_;
  if (!stopping_ && !hurries) {
    changed_.WaitFor(mutex_, std::chrono::nanoseconds(duration_ns));
  }
  if (lane == Lane::kLease) renew_now_ = false;
}

void Link::RenewNow() {
  const MutexLock lock(mutex_);
  renew_now_ = true;
  changed_.NotifyAll();
}

Result<std::string> Link::Call(Lane lane, rpc::Client& client, const rpc::Address& master,
                               const LinkCore::Call& call) {
  const auto index = static_cast<std::size_t>(lane);
  {
    const MutexLock lock(mutex_);
    if (stopping_) return Fail(Code::kUnavailable, "stopping");
    fds_[index] = client.fd();
    called_ = true;
  }
  Result<std::string> reply = Fail(Code::kUnavailable, "another master is asked now");
  // After the descriptor is stored: EndWaits, which follows a change of the leader, either shuts
  // this connection down, or was earlier, and then the leader differs here.
  if (finder_.Current() == master) {
    reply = client.Call(call.method, wire::AsBytes(call.body), clock_.NowNs() + call.timeout_ns);
  }
  const MutexLock lock(mutex_);
  fds_[index] = -1;
  return reply;
}

// An attempt is short, so that the next one finds another master soon where one is gone. But a busy
// host may need longer for each handshake and hello: attempts that end without an answer become
// longer, or no lane would ever come through to it.
Result<rpc::Client> Link::Connect(const rpc::Address& master, std::int64_t& limit_ns) {
  auto client = rpc::Client::Connect(master, options_.access, clock_.NowNs() + limit_ns);
  const bool late = !client && client.error().code == Code::kTimeout;
  limit_ns = late ? std::min(2 * limit_ns, kLongestConnectNs) : kConnectNs;
  return client;
}

void Link::Run(Lane lane) {
  std::optional<rpc::Client> client;
  rpc::Address connected_to;
  rpc::Address asked = finder_.Current();
  rpc::Backoff backoff(kFirstRetryNs, lane == Lane::kLease ? kLeaseRetryNs : kOtherRetryNs);
  std::int64_t connect_ns = kConnectNs;
  while (!stopping()) {
    const rpc::Address master = finder_.Current();
    // A source may name another leader while the other lanes' calls to the last one still wait.
    if (lane == Lane::kLease && options_.master.source() != nullptr && asked != master) EndWaits();
    asked = master;
    if (client && (!client->usable() || connected_to != master)) client.reset();
    // A lease is renewed over the connection over which hello was said.
    if (!client && lane == Lane::kLease) core_.Disconnected();
    const LinkCore::Step step = core_.Next(lane);
    if (step.session != 0) {
      const MutexLock lock(mutex_);
      routed_.NotifyAll();
    }
    if (!step.call) {
      // Before the welcome the list lane can list nothing. Wait(kList) returns at once while puts
      // are queued, so it would spin.
      const bool idle = lane == Lane::kList && core_.AwaitsWelcome();
      if (step.wait_ns > 0) Wait(idle ? Lane::kWatch : lane, step.wait_ns);
      continue;
    }
    const std::int64_t began_ns = clock_.NowNs();
    if (!client) {
      auto connected = Connect(master, connect_ns);
      if (!connected) {
        NoteMaster(lane, master, connected.error(), clock_.NowNs() - began_ns);
        const Result<std::string> failed = std::unexpected(connected.error());
        if (lane == Lane::kLease) NoteReply(failed);
        core_.Answer(lane, failed);
        Wait(lane == Lane::kList ? Lane::kWatch : lane, backoff.NextNs());
        continue;
      }
      client.emplace(std::move(*connected));
      connected_to = master;
    }
    const Result<std::string> reply = Call(lane, *client, master, *step.call);
    if (!reply) NoteMaster(lane, master, reply.error(), clock_.NowNs() - began_ns);
    core_.Answer(lane, reply);
    if (lane == Lane::kList) NoteReported();
    if (reply) {
      backoff.Reset();
    } else if (const std::int64_t wait_ns = WaitAfter(reply.error(), backoff); wait_ns > 0) {
      Wait(lane == Lane::kList ? Lane::kWatch : lane, wait_ns);
    }
    if (lane != Lane::kLease) continue;
    // Before the next hello: if the master learned of an identity that has no file, a kill of this
    // process would leave its end without a proof.
    if (const Id128& identity = core_.identity().owner; identity != identity_) {
      identity_ = identity;
      if (options_.lineage != nullptr) options_.lineage->Rename(identity);
    }
    NoteReply(reply);
    StartShardLanes();
  }
}

// ---- shards

void Link::StartShardLanes() {
  const std::size_t count = core_.shards();
  for (std::size_t i = 1; i < count && i < shard_threads_.size(); ++i) {
    if (shard_threads_[i].joinable() || core_.ShardAddress(i).empty()) continue;
    auto thread = StartThread("kvcove-shard", [this, i] { RunShard(i); });
    if (thread) {
      shard_threads_[i] = std::move(*thread);
    } else if (refused_.Due(clock_.NowNs()) > 0) {
      LogError("this owner lists nothing at the shard {} yet: {}", core_.ShardAddress(i),
               thread.error().detail);
    }
  }
}

void Link::WaitRouted(std::int64_t duration_ns) {
  const MutexLock lock(mutex_);
  if (!stopping_) routed_.WaitFor(mutex_, std::chrono::nanoseconds(duration_ns));
}

Result<std::string> Link::CallShard(std::size_t number, rpc::Client& client,
                                    const LinkCore::Call& call) {
  {
    const MutexLock lock(mutex_);
    if (stopping_) return Fail(Code::kUnavailable, "stopping");
    shard_fds_[number] = client.fd();
  }
  Result<std::string> reply =
      client.Call(call.method, wire::AsBytes(call.body), clock_.NowNs() + call.timeout_ns);
  const MutexLock lock(mutex_);
  shard_fds_[number] = -1;
  return reply;
}

void Link::RunShard(std::size_t number) {
  std::optional<rpc::Client> client;
  std::string connected_to;
  rpc::Backoff backoff(kFirstRetryNs, kOtherRetryNs);
  std::int64_t connect_ns = kConnectNs;
  while (!stopping()) {
    const std::string address = core_.ShardAddress(number);
    if (client && (!client->usable() || connected_to != address)) client.reset();
    const LinkCore::Step step =
        address.empty() ? LinkCore::Step{.wait_ns = kRetryNs} : core_.NextShard(number);
    if (!step.call) {
      if (step.wait_ns > 0) WaitRouted(step.wait_ns);
      continue;
    }
    Result<std::string> reply = Fail(Code::kUnavailable, "no address");
    if (!client) {
      const auto where = rpc::ParseAddress(address, 7400);
      auto connected =
          where ? Connect(*where, connect_ns) : Result<rpc::Client>(std::unexpected(where.error()));
      if (connected) {
        client.emplace(std::move(*connected));
        connected_to = address;
      } else {
        reply = std::unexpected(connected.error());
      }
    }
    if (client) reply = CallShard(number, *client, *step.call);
    core_.AnswerShard(number, step.session, reply);
    NoteReported();
    if (reply) {
      backoff.Reset();
    } else if (!reply.error().answered) {
      // After an answered error the lane pauses by itself (AnswerShard).
      WaitRouted(backoff.NextNs());
    }
  }
}

void Link::NoteReported() {
  const bool reported = core_.state().reported;
  if (reported_.exchange(reported, std::memory_order_relaxed) != reported && reported) RenewNow();
}

void Link::NoteMaster(Lane lane, const rpc::Address& master, const Error& error,
                      std::int64_t waited_ns) {
  // Only the lease's calls are always answered at once, so only their errors and delays show that
  // a master is away. From another lane only an answer about the leader counts.
  if (lane != Lane::kLease && !rpc::LeaderIn(error)) return;
  if (finder_.Note(master, error, waited_ns)) EndWaits();
}

void Link::EndWaits() {
  const MutexLock lock(mutex_);
  for (const int fd : fds_) {
    if (fd >= 0) shutdown(fd, SHUT_RDWR);
  }
  changed_.NotifyAll();
}

// Logs changes of the lease lane's state, and notes when the master cannot be reached.
void Link::NoteReply(const Result<std::string>& reply) {
  if (stopping()) return;
  const std::string master = finder_.Current().ToString();
  if (reply) {
    if (std::exchange(logged_away_, false)) LogInfo("the master at {} is back", master);
    if (!std::exchange(logged_refused_, {}).empty()) {
      LogInfo("the master at {} renews the lease again", master);
    }
    const LinkCore::State state = core_.state();
    if (state.epoch == 0) return;
    if (std::exchange(term_, state.term) != state.term) {
      LogInfo("the master at {} (term {}) knows this owner as number {}, epoch {}", master,
              state.term, state.number, state.epoch);
    }
    if (options_.on_heard) options_.on_heard(state.term);
    return;
  }
  const Error& error = reply.error();
  const bool answers = error.code != Code::kUnavailable && error.code != Code::kTimeout;
  if (answers) {
    // The master has closed a connection whose token was revoked: hello on the next one shows the
    // new token, or its refusal has the reason.
    if (rpc::IsSayHelloFirst(error)) return;
    std::string reason = error.ToString();
    if (reason != logged_refused_ && refusals_.Due(clock_.NowNs()) > 0) {
      LogWarn("the master at {} does not renew the lease: {}", master, reason);
      logged_refused_ = std::move(reason);
    }
    return;
  }
  target_.SetMasterReachable(false);
  if (!std::exchange(logged_away_, true)) {
    LogWarn("the master at {} cannot be reached ({}); when the lease runs out all is a miss",
            master, error.ToString());
  }
}

}  // namespace kvcove::owner
