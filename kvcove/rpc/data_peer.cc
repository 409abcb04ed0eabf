// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/data_peer.h"

#include <poll.h>
#include <sched.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "kvcove/base/log.h"

namespace kvcove::rpc {
namespace {

constexpr std::int64_t kConnectNs = 200 * kMillisecond;
constexpr std::int64_t kProbeNs = 50 * kMillisecond;   // of the background
constexpr std::int64_t kProbesNs = 10 * kMillisecond;  // of all doubted peers of one batch
constexpr std::int64_t kSpinNs = 50 * kMicrosecond;
constexpr std::size_t kMaxIov = 64;

// One call's state between two readinesses of its socket.
class Exchange {
 public:
  Exchange(DataCall& call, DataPeer::Line line)
      : call_(call), fd_(std::move(line.fd)), pass_(line.pass) {
    head_ = wire::EncodeFrameHeader({.method = static_cast<std::uint16_t>(call.method),
                                     .body_bytes = static_cast<std::uint32_t>(call.body.size()),
                                     .call = 1});
    out_.push_back({.iov_base = head_.data(), .iov_len = head_.size()});
    out_.push_back({.iov_base = call.body.data(), .iov_len = call.body.size()});
    out_.insert(out_.end(), call.out.begin(), call.out.end());
    in_.push_back({.iov_base = reply_head_.data(), .iov_len = reply_head_.size()});
  }

  int fd() const { return fd_.get(); }
  short events() const {
    return static_cast<short>(out_at_ < out_.size() ? POLLIN | POLLOUT : POLLIN);
  }
  bool done() const { return done_; }
  DataCall& call() { return call_; }
  DataPeer& peer() { return *call_.peer; }
  UniqueFd TakeFd() { return std::move(fd_); }
  // True if bytes have come since the last time.
  bool TakeHeard() { return std::exchange(heard_, false); }
  void End(Breaker::Outcome outcome) {
    // A put is answered when the master has listed it: that says nothing about its owner's pace.
    peer().End(pass_, outcome, /*teaches=*/call_.method == wire::Method::kDataGet);
  }

  // As far as it goes without waiting. True if any byte moved.
  bool Advance() {
    bool moved = Send();
    while (!done_ && Receive()) moved = true;
    return moved;
  }
  void Fail(Error error) {
    call_.status = std::unexpected(std::move(error));
    done_ = true;
    fd_.Reset();
  }

 private:
  enum class Stage { kHead, kBody, kValues };

  // Moves past `bytes` of `parts`.
  static void Consume(std::vector<iovec>& parts, std::size_t& at, std::size_t bytes) {
    while (at < parts.size() && bytes >= parts[at].iov_len) bytes -= parts[at++].iov_len;
    if (bytes > 0) {
      parts[at].iov_base = static_cast<std::byte*>(parts[at].iov_base) + bytes;
      parts[at].iov_len -= bytes;
    }
  }
  static std::size_t SkipEmpty(const std::vector<iovec>& parts, std::size_t at) {
    while (at < parts.size() && parts[at].iov_len == 0) ++at;
    return at;
  }

  bool Send() {
    bool moved = false;
    while (!done_ && (out_at_ = SkipEmpty(out_, out_at_)) < out_.size()) {
      msghdr message{};
      message.msg_iov = out_.data() + out_at_;
      message.msg_iovlen = std::min(kMaxIov, out_.size() - out_at_);
      const ssize_t sent = sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) {
        Consume(out_, out_at_, static_cast<std::size_t>(sent));
        moved = true;
        continue;
      }
      if (errno == EINTR) continue;
      if (errno != EAGAIN) {
        // Its answer, if it has left one, is not worth more than its end.
        const auto error = FailErrno(Code::kUnavailable, "sending to an owner");
        Fail(error.error());
      }
      break;
    }
    return moved;
  }

  bool Receive() {
    in_at_ = SkipEmpty(in_, in_at_);
    if (in_at_ == in_.size()) {
      Arrived();
      return true;
    }
    msghdr message{};
    message.msg_iov = in_.data() + in_at_;
    message.msg_iovlen = std::min(kMaxIov, in_.size() - in_at_);
    const ssize_t got = recvmsg(fd_.get(), &message, MSG_DONTWAIT);
    if (got > 0) {
      heard_ = true;
      Consume(in_, in_at_, static_cast<std::size_t>(got));
      if (stage_ == Stage::kValues) {
        values_bytes_ += static_cast<std::uint64_t>(got);
        if (call_.on_bytes) call_.on_bytes(values_bytes_);
      }
      return true;
    }
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (got == 0) {
      Fail({Code::kUnavailable, "the owner closed the connection"});
    } else {
      Fail(FailErrno(Code::kUnavailable, "receiving from an owner").error());
    }
    return false;
  }

  static std::unexpected<Error> FailErrno(Code code, std::string text) {
    return kvcove::FailErrno(code, std::move(text));
  }

  // A stage's bytes are all there.
  void Arrived() {
    in_.clear();
    in_at_ = 0;
    if (stage_ == Stage::kHead) {
      const auto head = wire::DecodeFrameHeader(reply_head_, wire::kMaxFrameBytes);
      if (!head) return Fail(head.error());
      if (head->method != (static_cast<std::uint16_t>(call_.method) | wire::kReplyBit)) {
        return Fail({Code::kCorrupt, "an owner answered another call"});
      }
      code_ = head->code;
      reply_.resize(head->body_bytes);
      in_.push_back({.iov_base = reply_.data(), .iov_len = reply_.size()});
      stage_ = Stage::kBody;
      return;
    }
    if (stage_ == Stage::kBody) {
      if (code_ != Code::kOk) {
        return Fail({.code = code_,
                     .detail = {reinterpret_cast<const char*>(reply_.data()), reply_.size()},
                     .answered = true});
      }
      auto values = call_.on_reply(reply_);
      if (!values) return Fail(values.error());
      in_ = std::move(*values);
      stage_ = Stage::kValues;
      if (!in_.empty()) return;
    }
    if (out_at_ < out_.size()) return Fail({Code::kCorrupt, "an owner answered too early"});
    call_.status = {};
    done_ = true;
  }

  DataCall& call_;
  UniqueFd fd_;
  const Breaker::Pass pass_;
  bool heard_ = false;
  std::array<std::byte, wire::kFrameHeaderBytes> head_;
  std::array<std::byte, wire::kFrameHeaderBytes> reply_head_;
  std::vector<std::byte> reply_;
  std::vector<iovec> out_;
  std::size_t out_at_ = 0;
  std::vector<iovec> in_;
  std::size_t in_at_ = 0;
  Stage stage_ = Stage::kHead;
  Code code_ = Code::kOk;
  std::uint64_t values_bytes_ = 0;
  bool done_ = false;
};

}  // namespace

// ---- one peer
// ---------------------------------------------------------------------------------------------------

DataPeer::DataPeer(const Address& address, const Access& access, const Clock& clock,
                   std::function<void()> on_doubt)
    : address_(address),
      access_(access),
      clock_(clock),
      on_doubt_(std::move(on_doubt)),
      channel_(address, access),
      breaker_(clock),
      guarded_(channel_, breaker_, "the owner", [this](Breaker::Change change) { Note(change); }) {}

Result<UniqueFd> DataPeer::Connect(std::int64_t deadline_ns) {
  KVCOVE_ASSIGN(Client client, Client::Connect(address_, access_, deadline_ns));
  return client.TakeFd();
}

UniqueFd DataPeer::TakeIdle() {
  const MutexLock lock(mutex_);
  while (!idle_.empty()) {
    UniqueFd fd = std::move(idle_.back());
    idle_.pop_back();
    // Nothing may come unasked: a readable one has ended.
    pollfd poller{.fd = fd.get(), .events = POLLIN, .revents = 0};
    if (poll(&poller, 1, 0) == 0) return fd;
  }
  return {};
}

void DataPeer::EndProbe(const Breaker::Pass& pass, const Result<UniqueFd>& fd) {
  Breaker::Outcome outcome = Breaker::Outcome::kAnswered;
  if (!fd) {
    // A name that cannot be resolved is a peer that cannot be reached.
    outcome = fd.error().code == Code::kInvalid ? Breaker::Outcome::kLost : OutcomeOf(fd.error());
  }
  Note(breaker_.End(pass, outcome));
}

Result<DataPeer::Line> DataPeer::Take(std::int64_t deadline_ns, std::int64_t probe_until_ns) {
  std::optional<Breaker::Pass> pass = breaker_.Begin(deadline_ns);
  if (!pass) return Fail(Code::kUnavailable, "the owner is not answering");
  if (!pass->probe) {
    if (UniqueFd fd = TakeIdle(); fd.valid()) return Line{std::move(fd), *pass};
  }
  const std::int64_t limit_ns = pass->probe ? probe_until_ns : clock_.NowNs() + kConnectNs;
  Result<UniqueFd> fd = Connect(std::min(pass->until_ns, limit_ns));
  if (!fd || pass->probe) EndProbe(*pass, fd);
  if (!fd && pass->probe && fd.error().code == Code::kTimeout) {
    return Fail(Code::kUnavailable, "the owner is not answering");
  }
  if (!fd) return std::unexpected(fd.error());
  if (pass->probe) {
    // It lives: the exchange has all of its own time.
    pass = breaker_.Begin(deadline_ns);
    if (!pass) return Fail(Code::kUnavailable, "the owner is not answering");
  }
  return Line{std::move(*fd), *pass};
}

void DataPeer::End(const Breaker::Pass& pass, Breaker::Outcome outcome, bool teaches) {
  Note(breaker_.End(pass, outcome, teaches));
}

void DataPeer::Keep(UniqueFd fd) {
  const MutexLock lock(mutex_);
  if (idle_.size() < kMaxIdle) idle_.push_back(std::move(fd));
}

void DataPeer::Note(Breaker::Change change) {
  if (change == Breaker::Change::kMended) {
    LogInfo("the owner at {} answers again", address_.ToString());
  }
  if (change == Breaker::Change::kBroken) {
    std::vector<UniqueFd> ended;  // of a host that is gone without a word
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

void DataPeer::Probe() {
  const Breaker::Pass pass = breaker_.BeginProbe(clock_.NowNs() + kProbeNs);
  auto fd = Connect(pass.until_ns);
  EndProbe(pass, fd);
  if (fd) Keep(std::move(*fd));
}

// ---- calls
// --------------------------------------------------------------------------------------------------

namespace {

using Exchanges = std::vector<std::unique_ptr<Exchange>>;

Exchanges Begin(std::span<DataCall> calls, std::int64_t deadline_ns, const Clock& clock) {
  Exchanges running;
  // Peers are connected to one after the other. Those that are doubted share the time that one may
  // cost, so that a whole rack that is gone costs a batch no more.
  const std::int64_t probe_until_ns = clock.NowNs() + kProbesNs;
  for (DataCall& call : calls) {
    Result<DataPeer::Line> line = call.peer->Take(deadline_ns, probe_until_ns);
    if (!line) {
      call.status = std::unexpected(line.error());
      continue;
    }
    running.push_back(std::make_unique<Exchange>(call, std::move(*line)));
  }
  return running;
}

// True if any byte moved.
bool Advance(Exchanges& running) {
  bool moved = false;
  for (const auto& exchange : running) {
    moved = exchange->Advance() || moved;
    if (exchange->TakeHeard() && !exchange->done()) exchange->peer().Heard();
  }
  std::erase_if(running, [](const std::unique_ptr<Exchange>& exchange) {
    if (!exchange->done()) return false;
    const Status& status = exchange->call().status;
    exchange->End(status ? Breaker::Outcome::kAnswered : OutcomeOf(status.error()));
    if (status) exchange->peer().Keep(exchange->TakeFd());
    return true;
  });
  return moved;
}

void Wait(const Exchanges& running, std::int64_t left_ns) {
  std::vector<pollfd> waits;
  for (const auto& exchange : running) {
    waits.push_back({.fd = exchange->fd(), .events = exchange->events(), .revents = 0});
  }
  const timespec limit{.tv_sec = left_ns / kSecond, .tv_nsec = left_ns % kSecond};
  ppoll(waits.data(), waits.size(), &limit, nullptr);
}

}  // namespace

void RunCalls(std::span<DataCall> calls, std::int64_t deadline_ns, const Clock& clock) {
  Exchanges running = Begin(calls, deadline_ns, clock);
  std::int64_t spin_until = clock.NowNs() + kSpinNs;
  while (!running.empty()) {
    const bool moved = Advance(running);
    if (running.empty()) return;
    const std::int64_t now = clock.NowNs();
    if (now >= deadline_ns) break;
    if (moved) {
      spin_until = now + kSpinNs;
    } else if (now < spin_until) {
      sched_yield();
    } else {
      Wait(running, deadline_ns - now);
    }
  }
  // Late: closing their connections is what keeps late bytes out of the callers' buffers.
  for (const auto& exchange : running) {
    exchange->Fail({Code::kTimeout, "the owner did not answer in time"});
    exchange->End(Breaker::Outcome::kMissed);
  }
}

}  // namespace kvcove::rpc
