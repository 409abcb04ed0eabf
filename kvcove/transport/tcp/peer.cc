// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/tcp/peer.h"

#include <poll.h>

#include <algorithm>

#include "kvcove/base/log.h"
#include "kvcove/rpc/client.h"
#include "kvcove/transport/tcp/sockets.h"
#include "kvcove/transport/tcp/transfer.h"

namespace kvcove::transport::tcp {
namespace {

using rpc::Breaker;

constexpr std::int64_t kConnectNs = 200 * kMillisecond;
constexpr std::int64_t kProbeNs = 50 * kMillisecond;  // limit of a background probe

}  // namespace

Peer::Peer(const rpc::Address& address, const rpc::Access& access, const Clock& clock,
           std::function<void()> on_doubt, verbs::Fabric* fabric, Transport* transport)
    : transport_(transport == nullptr ? Sockets() : *transport),
      address_(address),
      access_(access),
      clock_(clock),
      on_doubt_(std::move(on_doubt)),
      fabric_(fabric),
      lanes_(fabric == nullptr ? nullptr
                               : std::make_shared<LaneLines>(*fabric, address, access, clock)),
      link_(address, access,
            {.peer = "the owner", .on_change = [this](Breaker::Change change) { Note(change); }},
            clock) {}

Result<UniqueFd> Peer::Connect(std::int64_t deadline_ns) {
  KVCOVE_ASSIGN(rpc::Client client, rpc::Client::Connect(address_, access_, deadline_ns));
  return client.TakeFd();
}

Result<UniqueFd> Peer::ConnectAgain(std::int64_t deadline_ns) {
  return Connect(std::min(deadline_ns, clock_.NowNs() + kConnectNs));
}

UniqueFd Peer::TakeIdle() {
  while (true) {
    UniqueFd fd;  // polled and closed without the lock: both are system calls
    {
      const MutexLock lock(mutex_);
      if (idle_.empty()) return {};
      fd = std::move(idle_.back());
      idle_.pop_back();
    }
    // A server sends nothing unasked, so a readable connection has ended.
    pollfd poller{.fd = fd.get(), .events = POLLIN, .revents = 0};
    if (poll(&poller, 1, 0) == 0) return fd;
  }
}

void Peer::EndProbe(const Breaker::Pass& pass, const Result<UniqueFd>& fd) {
  Note(link_.breaker().End(pass, fd ? Breaker::Outcome::kAnswered : rpc::OutcomeOf(fd.error())));
}

Result<Peer::Line> Peer::Take(std::int64_t deadline_ns, std::int64_t doubt_until_ns, bool lane) {
  std::optional<Breaker::Pass> pass = link_.breaker().Begin(deadline_ns);
  if (!pass) return Fail(Code::kUnavailable, "the owner is not answering");
  // A doubted peer gets a new connection, whose hello has milliseconds: an idle one, with a lane or
  // without, may be that of a host that has lost its power.
  if (!pass->probe) {
    if (lane) {
      if (auto line = lanes_->Take()) {
        return Line{std::move(line->fd), *pass, /*kept=*/true, std::move(line->lane)};
      }
    }
    if (UniqueFd fd = TakeIdle(); fd.valid()) return Line{std::move(fd), *pass, /*kept=*/true};
  }
  const std::int64_t limit_ns = pass->probe ? doubt_until_ns : clock_.NowNs() + kConnectNs;
  Result<UniqueFd> fd = Connect(std::min(pass->until_ns, limit_ns));
  if (!fd || pass->probe) EndProbe(*pass, fd);
  if (!fd && pass->probe && fd.error().code == Code::kTimeout) {
    return Fail(Code::kUnavailable, "the owner is not answering");
  }
  if (!fd) return std::unexpected(fd.error());
  if (pass->probe) {
    // The peer lives, and EndProbe() has ended the probe's pass, which had milliseconds. The
    // exchange gets a pass of its own, until its own deadline.
    pass = link_.breaker().Begin(deadline_ns);
    if (!pass) return Fail(Code::kUnavailable, "the owner is not answering");
  }
  return Line{std::move(*fd), *pass};
}

void Peer::End(const Breaker::Pass& pass, Breaker::Outcome outcome, bool teaches) {
  Note(link_.breaker().End(pass, outcome, teaches));
}

void Peer::NoteError(const Error& error) {
  const std::optional<std::uint32_t> busy_ms = rpc::BusyIn(error);
  if (busy_ms) busy_.Note(*busy_ms, clock_.NowNs());
}

void Peer::Keep(UniqueFd fd) {
  const MutexLock lock(mutex_);
  if (idle_.size() < kMaxIdle) idle_.push_back(std::move(fd));
}

void Peer::Note(Breaker::Change change) {
  if (change == Breaker::Change::kMended) {
    LogInfo("the owner at {} answers again", address_.ToString());
  }
  if (change == Breaker::Change::kBroken) {
    // A host that lost its power closes nothing: an exchange over such a connection would wait for
    // its deadline. Closed after the lock.
    std::vector<UniqueFd> ended;
    {
      const MutexLock lock(mutex_);
      ended.swap(idle_);
    }
    if (lanes_ != nullptr) lanes_->Failed("the owner does not answer");
    LogWarn("the owner at {} does not answer; it is passed over until it does",
            address_.ToString());
  }
  if ((change == Breaker::Change::kSuspected || change == Breaker::Change::kBroken) && on_doubt_) {
    on_doubt_();
  }
}

void Peer::Probe() {
  const Breaker::Pass pass = link_.breaker().BeginProbe(clock_.NowNs() + kProbeNs);
  auto fd = Connect(pass.until_ns);
  EndProbe(pass, fd);
  if (fd) Keep(std::move(*fd));
}

Result<std::int64_t> Peer::TryDevice() {
  return lanes_ == nullptr ? transport::Peer::TryDevice() : lanes_->TryNow();
}

bool Peer::WantsLane(const Exchange& exchange) const {
  if (lanes_ == nullptr || !fabric_->exposes()) return false;
  // The size of a get is known with its answer: the owner sends small payload behind that, and
  // holds large payload for the lane.
  if (exchange.method == wire::Method::kDataGet) return true;
  // A measurement of what comes back.
  if (exchange.method == wire::Method::kProbe && exchange.out.empty()) return true;
  std::uint64_t bytes = 0;
  for (const ConstPiece& piece : exchange.out) bytes += piece.size;
  return bytes >= verbs::kLeastBytes;
}

Result<std::unique_ptr<Transfer>> Peer::Start(Exchange& exchange, std::int64_t deadline_ns,
                                              std::int64_t doubt_until_ns) {
  // The server reads no connection whose call it has refused before that time, so a call would wait
  // in vain, and its silence would count against the peer.
  if (std::optional<Error> busy = busy_.Now(clock_.NowNs())) {
    return std::unexpected(std::move(*busy));
  }
  KVCOVE_ASSIGN(Line line, Take(deadline_ns, doubt_until_ns, WantsLane(exchange)));
  return std::make_unique<SocketTransfer>(*this, exchange, std::move(line));
}

}  // namespace kvcove::transport::tcp
