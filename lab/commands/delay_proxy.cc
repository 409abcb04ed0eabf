// SPDX-License-Identifier: Apache-2.0
#include "lab/commands/delay_proxy.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <deque>
#include <functional>

#include "kvcove/base/clock.h"
#include "kvcove/base/interrupt.h"

namespace kvcove::lab {
namespace {

constexpr std::size_t kPieceBytes = 256 << 10;
constexpr std::size_t kMostPieces = 1024;  // that are under way in one direction
constexpr int kTickMs = 50;

// One direction of a connection. The reader stamps each piece with the time at which the writer
// sends it, so that a piece waits beside those before it and not behind them.
class DelayedPipe {
 public:
  DelayedPipe(int from, int to, std::int64_t delay_ns)
      : from_(from), to_(to), delay_ns_(delay_ns) {}

  void Read() {
    while (true) {
      std::vector<char> bytes(kPieceBytes);
      const ssize_t got = recv(from_, bytes.data(), bytes.size(), 0);
      const MutexLock lock(mutex_);
      if (got <= 0) break;
      bytes.resize(static_cast<std::size_t>(got));
      while (pieces_.size() >= kMostPieces && !ended_) changed_.Wait(mutex_);
      if (ended_) break;
      pieces_.push_back(
          {.due_ns = SystemClock::Instance().NowNs() + delay_ns_, .bytes = std::move(bytes)});
      changed_.NotifyAll();
    }
    End();
  }
  void Write() {
    while (true) {
      Piece piece;
      {
        const MutexLock lock(mutex_);
        while (pieces_.empty() && !ended_) changed_.Wait(mutex_);
        if (pieces_.empty()) break;
        piece = std::move(pieces_.front());
        pieces_.pop_front();
        changed_.NotifyAll();
      }
      const std::int64_t left_ns = piece.due_ns - SystemClock::Instance().NowNs();
      if (left_ns > 0) SleepNs(left_ns);
      std::size_t sent = 0;
      while (sent < piece.bytes.size()) {
        const ssize_t now =
            send(to_, piece.bytes.data() + sent, piece.bytes.size() - sent, MSG_NOSIGNAL);
        if (now <= 0) return End();
        sent += static_cast<std::size_t>(now);
      }
    }
    (void)shutdown(to_, SHUT_WR);
  }

 private:
  struct Piece {
    std::int64_t due_ns = 0;
    std::vector<char> bytes;
  };
  void End() {
    const MutexLock lock(mutex_);
    ended_ = true;
    changed_.NotifyAll();
  }

  const int from_;
  const int to_;
  const std::int64_t delay_ns_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Piece> pieces_ KVCOVE_GUARDED_BY(mutex_);
  bool ended_ KVCOVE_GUARDED_BY(mutex_) = false;
};

}  // namespace

struct DelayProxy::Connection {
  UniqueFd near;
  UniqueFd far;
  std::thread thread;
};

DelayProxy::DelayProxy(rpc::Address listen, rpc::Address to, std::int64_t delay_ns)
    : listen_(std::move(listen)), to_(std::move(to)), delay_ns_(delay_ns) {}

Result<std::unique_ptr<DelayProxy>> DelayProxy::Open(rpc::Address listen, rpc::Address to,
                                                     std::int64_t delay_ns) {
  std::unique_ptr<DelayProxy> proxy(new DelayProxy(std::move(listen), std::move(to), delay_ns));
  KVCOVE_ASSIGN(proxy->listener_, rpc::ListenTcp(proxy->listen_));
  KVCOVE_ASSIGN(proxy->thread_, StartThread("delay-proxy", [raw = proxy.get()] { raw->Accept(); }));
  return proxy;
}

DelayProxy::~DelayProxy() {
  std::vector<std::unique_ptr<Connection>> connections;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    for (const auto& connection : connections_) {
      (void)shutdown(connection->near.get(), SHUT_RDWR);
      if (connection->far.valid()) (void)shutdown(connection->far.get(), SHUT_RDWR);
    }
    connections = std::move(connections_);
  }
  JoinIfStarted(thread_);
  for (const auto& connection : connections) JoinIfStarted(connection->thread);
}

void DelayProxy::Accept() {
  while (true) {
    {
      const MutexLock lock(mutex_);
      if (stopping_) return;
    }
    pollfd poller{.fd = listener_.get(), .events = POLLIN, .revents = 0};
    if (poll(&poller, 1, kTickMs) <= 0) continue;
    UniqueFd client(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!client.valid()) continue;
    const MutexLock lock(mutex_);
    if (stopping_) return;
    Connection& connection = *connections_.emplace_back(std::make_unique<Connection>());
    auto started = StartThread("delay-proxy", [this, &connection, fd = client.Release()] {
      Serve(connection, UniqueFd(fd));
    });
    if (started) connection.thread = std::move(*started);
  }
}

void DelayProxy::Serve(Connection& connection, UniqueFd client) {
  auto far = rpc::ConnectTcp(to_, SystemClock::Instance().NowNs() + kSecond);
  if (!far) return;
  const int on = 1;
  (void)setsockopt(client.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  (void)fcntl(far->get(), F_SETFL, 0);  // blocking
  {
    const MutexLock lock(mutex_);
    if (stopping_) return;
    connection.near = std::move(client);
    connection.far = std::move(*far);
  }
  const int ends[] = {connection.near.get(), connection.far.get()};
  DelayedPipe there(ends[0], ends[1], delay_ns_);
  DelayedPipe back(ends[1], ends[0], delay_ns_);
  std::vector<std::thread> threads;
  for (const auto& work :
       {std::function<void()>([&] { there.Write(); }), std::function<void()>([&] { back.Read(); }),
        std::function<void()>([&] { back.Write(); })}) {
    auto started = StartThread("delay-proxy", work);
    if (started) threads.push_back(std::move(*started));
  }
  there.Read();
  for (std::thread& thread : threads) JoinIfStarted(thread);
}

}  // namespace kvcove::lab
