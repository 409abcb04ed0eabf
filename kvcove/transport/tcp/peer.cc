// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/tcp/peer.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "kvcove/base/interrupt.h"
#include "kvcove/base/log.h"
#include "kvcove/transport/tcp/parts.h"
#include "kvcove/transport/tcp/server.h"
#include "kvcove/transport/tcp/sockets.h"

namespace kvcove::transport::tcp {
namespace {

using rpc::Breaker;

constexpr std::int64_t kConnectNs = 200 * kMillisecond;
constexpr std::int64_t kProbeNs = 50 * kMillisecond;  // limit of a background probe

// Returns the buffer for unwanted bytes. Threads write to it at once; its content is never read.
std::byte* Discard() {
  static std::vector<std::byte> discard(Parts::kDiscard);
  return discard.data();
}

// One exchange over one connection.
class SocketTransfer final : public Transfer {
 public:
  SocketTransfer(Peer& peer, Exchange& exchange, Peer::Line line)
      : peer_(peer),
        exchange_(exchange),
        fd_(std::move(line.fd)),
        pass_(line.pass),
        kept_(line.kept) {
    head_ = wire::EncodeFrameHeader({.method = static_cast<std::uint16_t>(exchange.method),
                                     .body_bytes = static_cast<std::uint32_t>(exchange.head.size()),
                                     .call = 1});
    Begin();
  }
  ~SocketTransfer() override {
    if (!done_) (void)Abort();
  }

  int fd() const { return fd_.get(); }
  short events() const { return static_cast<short>(out_.empty() ? POLLIN : POLLIN | POLLOUT); }

  bool done() const override { return done_; }
  bool Advance() override {
    bool moved = Send();
    bool heard = false;
    while (!done_ && Receive(heard)) moved = true;
    if (heard && !done_) peer_.Heard();
    return moved || heard || done_;
  }
  // The socket is closed before Abort() returns: only this thread receives from it, so no late byte
  // of the answer can be written to the caller's memory, and the connection is not used again.
  bool Abort() override {
    fd_.Reset();
    done_ = true;
    peer_.End(pass_, Breaker::Outcome::kMissed, teaches());
    return true;
  }

 private:
  enum class Stage { kFrame, kHead, kPayload };

  // A put is answered when the master has listed it, so its latency says nothing about the owner's.
  bool teaches() const { return exchange_.method == wire::Method::kDataGet; }

  void End(Status status) {
    done_ = true;
    const Breaker::Outcome outcome =
        status ? Breaker::Outcome::kAnswered : rpc::OutcomeOf(status.error());
    peer_.End(pass_, outcome, teaches());
    if (!status) peer_.NoteError(status.error());
    // An error that the peer has answered leaves the connection usable, unless part of the request
    // is unsent: the peer would take the next frame for the rest of it.
    if (status || (status.error().answered && out_.empty())) {
      peer_.Keep(std::move(fd_));
    } else {
      fd_.Reset();
    }
    exchange_.status = std::move(status);
  }
  void Fail(Error error) { End(std::unexpected(std::move(error))); }

  void Begin() {
    out_.Clear();
    out_.Add(head_.data(), head_.size());
    out_.Add(exchange_.head.data(), exchange_.head.size());
    out_.Add(exchange_.out);
    in_.Clear();
    in_.Add(reply_frame_.data(), reply_frame_.size());
  }

  // Acts on the end of the connection. An idle one may have ended before this exchange, when its
  // server was restarted or its token was removed, so the exchange begins anew over a new one,
  // once. The peer may have seen the first request: every call may be repeated.
  void Lost(Error error) {
    if (!std::exchange(kept_, false)) return Fail(std::move(error));
    Result<UniqueFd> fd = peer_.ConnectAgain(pass_.until_ns);
    if (!fd) return Fail(std::move(fd.error()));
    fd_ = std::move(*fd);
    Begin();
  }

  bool Send() {
    bool moved = false;
    while (!done_ && !out_.empty()) {
      if (out_.Send(fd_.get()) > 0) {
        moved = true;
      } else if (errno == EAGAIN) {
        break;
      } else if (errno != EINTR) {
        // The peer has closed the connection. An answer that it may have sent before is not read.
        Lost(FailErrno(Code::kUnavailable, "sending to an owner").error());
      }
    }
    return moved;
  }

  bool Receive(bool& heard) {
    if (in_.empty()) {
      Arrived();
      return true;
    }
    const ssize_t got = in_.Receive(fd_.get(), Discard());
    if (got > 0) {
      heard = true;
      kept_ = false;
      if (stage_ != Stage::kPayload) return true;
      payload_bytes_ += static_cast<std::uint64_t>(got);
      if (exchange_.on_bytes) exchange_.on_bytes(payload_bytes_);
      // One read of payload a turn: other exchanges of the batch are served in between, and
      // `on_bytes` checks values while they are in the processor's cache.
      return in_.empty();
    }
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (got == 0) {
      Lost({Code::kUnavailable, "the owner closed the connection"});
    } else {
      Lost(FailErrno(Code::kUnavailable, "receiving from an owner").error());
    }
    return false;
  }

  // Ends a stage: all of its bytes have arrived.
  void Arrived() {
    in_.Clear();
    switch (stage_) {
      case Stage::kFrame:
        return FrameArrived();
      case Stage::kHead:
        return HeadArrived();
      case Stage::kPayload:
        return End({});
    }
  }

  void FrameArrived() {
    const auto frame = wire::DecodeFrameHeader(reply_frame_, wire::kMaxFrameBytes);
    if (!frame) return Fail(frame.error());
    if (frame->method != (static_cast<std::uint16_t>(exchange_.method) | wire::kReplyBit)) {
      return Fail({Code::kCorrupt, "an owner answered another call"});
    }
    code_ = frame->code;
    reply_.resize(frame->body_bytes);
    in_.Add(reply_.data(), reply_.size());
    stage_ = Stage::kHead;
  }

  void HeadArrived() {
    if (code_ != Code::kOk) {
      return Fail({.code = code_,
                   .detail = {reinterpret_cast<const char*>(reply_.data()), reply_.size()},
                   .answered = true});
    }
    auto into = exchange_.on_reply(reply_);
    if (!into) return Fail(into.error());
    in_.Add(*into);
    stage_ = Stage::kPayload;
  }

  Peer& peer_;
  Exchange& exchange_;
  UniqueFd fd_;
  const Breaker::Pass pass_;
  bool kept_;  // was idle before, and has received nothing in this exchange
  std::array<std::byte, wire::kFrameHeaderBytes> head_;
  std::array<std::byte, wire::kFrameHeaderBytes> reply_frame_;
  std::vector<std::byte> reply_;
  Parts out_;
  Parts in_;
  Stage stage_ = Stage::kFrame;
  Code code_ = Code::kOk;
  std::uint64_t payload_bytes_ = 0;
  bool done_ = false;
};

// Sockets need no registration, and poll() waits for any of them.
class SocketTransport final : public Transport {
 public:
  std::string_view name() const override { return "tcp"; }
  std::shared_ptr<transport::Peer> Connect(const rpc::Address& address, const PeerOptions& options,
                                           const Clock& clock) override {
    return std::make_shared<Peer>(address, options.access, clock, options.on_doubt);
  }
  Result<std::unique_ptr<transport::Server>> Serve(const ServerOptions& options, rpc::Gate& gate,
                                                   Service& service, const Clock& clock) override {
    return Server::Open(options, gate, service, clock);
  }
  Result<std::unique_ptr<Registered>> Register(std::span<std::byte> /*memory*/) override {
    return std::unique_ptr<Registered>();
  }
  void Wait(std::span<Transfer* const> transfers, std::int64_t most_ns) override {
    std::vector<pollfd> waits;
    waits.reserve(transfers.size());
    for (Transfer* transfer : transfers) {
      const auto& socket = static_cast<const SocketTransfer&>(*transfer);
      waits.push_back({.fd = socket.fd(), .events = socket.events(), .revents = 0});
    }
    const timespec limit{.tv_sec = most_ns / kSecond, .tv_nsec = most_ns % kSecond};
    const int ready = ppoll(waits.data(), waits.size(), &limit, nullptr);
    if (ready < 0 && errno == EINTR) Interrupt::LookNow();
  }
};

}  // namespace

Transport& Sockets() {
  static SocketTransport sockets;
  return sockets;
}

Peer::Peer(const rpc::Address& address, const rpc::Access& access, const Clock& clock,
           std::function<void()> on_doubt)
    : address_(address),
      access_(access),
      clock_(clock),
      on_doubt_(std::move(on_doubt)),
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

Result<Peer::Line> Peer::Take(std::int64_t deadline_ns, std::int64_t doubt_until_ns) {
  std::optional<Breaker::Pass> pass = link_.breaker().Begin(deadline_ns);
  if (!pass) return Fail(Code::kUnavailable, "the owner is not answering");
  if (!pass->probe) {
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

Transport& Peer::transport() { return Sockets(); }

Result<std::unique_ptr<Transfer>> Peer::Start(Exchange& exchange, std::int64_t deadline_ns,
                                              std::int64_t doubt_until_ns) {
  // The server reads no connection whose call it has refused before that time, so a call would wait
  // in vain, and its silence would count against the peer.
  if (std::optional<Error> busy = busy_.Now(clock_.NowNs())) {
    return std::unexpected(std::move(*busy));
  }
  KVCOVE_ASSIGN(Line line, Take(deadline_ns, doubt_until_ns));
  return std::make_unique<SocketTransfer>(*this, exchange, std::move(line));
}

}  // namespace kvcove::transport::tcp
