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
constexpr std::int64_t kProbeNs = 50 * kMillisecond;
constexpr std::int64_t kSpinNs = 50 * kMicrosecond;
constexpr std::size_t kMaxIov = 64;

// One call's state between two readinesses of its socket.
class Exchange {
 public:
  Exchange(DataCall& call, UniqueFd fd) : call_(call), fd_(std::move(fd)) {
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
  UniqueFd TakeFd() { return std::move(fd_); }

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
        return Fail(
            {code_, std::string(reinterpret_cast<const char*>(reply_.data()), reply_.size())});
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

Result<UniqueFd> DataPeer::Connect(std::int64_t deadline_ns) {
  KVCOVE_ASSIGN(Client client, Client::Connect(address_, access_, deadline_ns));
  return client.TakeFd();
}

Result<UniqueFd> DataPeer::Take(std::int64_t deadline_ns) {
  if (broken()) return Fail(Code::kUnavailable, "the owner is not answering");
  {
    const MutexLock lock(mutex_);
    while (!idle_.empty()) {
      UniqueFd fd = std::move(idle_.back());
      idle_.pop_back();
      // Nothing may come unasked: a readable one has ended.
      pollfd poller{.fd = fd.get(), .events = POLLIN, .revents = 0};
      if (poll(&poller, 1, 0) == 0) return fd;
    }
  }
  Result<UniqueFd> fd = Connect(std::min(deadline_ns, clock_.NowNs() + kConnectNs));
  if (!fd && fd.error().code != Code::kDenied) Break();
  return fd;
}

void DataPeer::Keep(UniqueFd fd) {
  const MutexLock lock(mutex_);
  if (idle_.size() < kMaxIdle) idle_.push_back(std::move(fd));
}

void DataPeer::Break() {
  std::vector<UniqueFd> ended;
  {
    const MutexLock lock(mutex_);
    ended.swap(idle_);
  }
  if (!broken_.exchange(true)) {
    LogWarn("the owner at {} does not answer; it is passed over until it does",
            address_.ToString());
  }
}

void DataPeer::Probe() {
  auto fd = Connect(clock_.NowNs() + kProbeNs);
  if (!fd) return;
  if (broken_.exchange(false)) LogInfo("the owner at {} answers again", address_.ToString());
  Keep(std::move(*fd));
}

// ---- calls
// --------------------------------------------------------------------------------------------------

void RunCalls(std::span<DataCall> calls, std::int64_t deadline_ns, const Clock& clock) {
  std::vector<std::unique_ptr<Exchange>> running;
  for (DataCall& call : calls) {
    Result<UniqueFd> fd = call.peer->Take(deadline_ns);
    if (!fd) {
      call.status = std::unexpected(fd.error());
      continue;
    }
    running.push_back(std::make_unique<Exchange>(call, std::move(*fd)));
  }
  std::int64_t spin_until = clock.NowNs() + kSpinNs;
  while (!running.empty()) {
    bool moved = false;
    for (const auto& exchange : running) moved = exchange->Advance() || moved;
    std::erase_if(running, [](const std::unique_ptr<Exchange>& exchange) {
      if (!exchange->done()) return false;
      DataCall& call = exchange->call();
      if (call.status) {
        call.peer->Keep(exchange->TakeFd());
      } else if (call.status.error().code == Code::kUnavailable) {
        call.peer->Break();
      }
      return true;
    });
    if (running.empty()) return;
    const std::int64_t now = clock.NowNs();
    if (now >= deadline_ns) break;
    if (moved) {
      spin_until = now + kSpinNs;
      continue;
    }
    if (now < spin_until) {
      sched_yield();
      continue;
    }
    std::vector<pollfd> waits;
    for (const auto& exchange : running) {
      waits.push_back({.fd = exchange->fd(), .events = exchange->events(), .revents = 0});
    }
    const std::int64_t left = deadline_ns - now;
    const timespec limit{.tv_sec = left / kSecond, .tv_nsec = left % kSecond};
    ppoll(waits.data(), waits.size(), &limit, nullptr);
  }
  // Late: closing their connections is what keeps late bytes out of the callers' buffers.
  for (const auto& exchange : running) {
    exchange->Fail({Code::kTimeout, "the owner did not answer in time"});
    exchange->call().peer->Break();
  }
}

}  // namespace kvcove::rpc
