// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/listener.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>

#include "kvcove/base/clock.h"
#include "kvcove/base/mutex.h"

namespace kvcove::rpc {
namespace {

namespace asio = boost::asio;
using Protocol = asio::generic::stream_protocol;
using boost::system::error_code;

// Pause after accept() has failed, mostly because no descriptor is free: at once it would fail
// again and keep the loop busy.
constexpr auto kAcceptAgain = std::chrono::milliseconds(20);

std::chrono::steady_clock::time_point After(std::int64_t ns) {
  return std::chrono::steady_clock::now() + std::chrono::nanoseconds(ns);
}

}  // namespace

class Listener::Impl {
 public:
  Impl(asio::io_context& loop, UniqueFd socket, const ListenerOptions& options, Deliver deliver,
       Drop drop)
      : options_(options),
        limit_(std::make_shared<ConnectionLimit>(
            options.name, ConnectionsWithin(options.max_connections, options.descriptors_each))),
        unproven_(UnprovenOf(options.name, limit_->max())),
        deliver_(std::move(deliver)),
        drop_(std::move(drop)),
        loop_(loop),
        acceptor_(loop, Protocol(options.is_unix ? AF_UNIX : AF_INET, 0), socket.Release()),
        accept_again_(loop),
        late_(loop) {}

  void Accept() {
    acceptor_.async_accept([this](const error_code& error, Protocol::socket socket) {
      // Ended by Replace, which begins to accept by itself, or by Close.
      if (error == asio::error::operation_aborted || !acceptor_.is_open()) return;
      if (error) {
        limit_->AcceptFailed(error.value());
        accept_again_.expires_after(kAcceptAgain);
        accept_again_.async_wait([this](const error_code& stopped) {
          if (!stopped && acceptor_.is_open()) Accept();
        });
        return;
      }
      if (auto counted = limit_->Take(); counted != nullptr) {
        Welcome(UniqueFd(socket.release()), std::move(counted));
      }
      Accept();
    });
  }

  void Replace(UniqueFd socket) {
    acceptor_.close();  // ends the accept that is under way
    accept_again_.cancel();
    acceptor_.assign(Protocol(options_.is_unix ? AF_UNIX : AF_INET, 0), socket.Release());
    Accept();
  }

  void Close() {
    {
      const MutexLock lock(handshakes_->mutex);
      handshakes_->closed = true;
    }
    acceptor_.close();
    accept_again_.cancel();
    late_.cancel();
  }

  UniqueFd Copy() { return UniqueFd(fcntl(acceptor_.native_handle(), F_DUPFD_CLOEXEC, 0)); }
  void BeginAbove(std::uint64_t id) { next_id_ = std::max(next_id_, id + 1); }
  std::shared_ptr<void> Count() { return limit_->Take(); }
  std::shared_ptr<Unproven::Ticket> Enter(std::uint64_t id, int fd) {
    ExpectHello(id);
    return unproven_->Enter(SourceOf(fd), fd, [drop = drop_, id] { drop(id); });
  }

  const ConnectionLimit& connections() const { return *limit_; }
  const Unproven& unproven() const { return *unproven_; }

 private:
  void Welcome(UniqueFd fd, std::shared_ptr<void> counted) {
    const std::uint64_t id = next_id_++;
    const bool plain = options_.tls == nullptr;
    if (!options_.is_unix) {
      const int on = 1;
      setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    }
    // A TLS tunnel takes the descriptor, whose number may mean another file while the ticket
    // exists: so it is not given to be looked at.
    const std::shared_ptr<Unproven::Ticket> ticket = unproven_->Enter(
        SourceOf(fd.get()), plain ? fd.get() : -1, [drop = drop_, id] { drop(id); });
    Arrival arrival{.id = id, .counted = std::move(counted), .ticket = ticket};
    if (plain) {
      arrival.fd = std::move(fd);
      arrival.is_unix = options_.is_unix;
      return Begin(std::move(arrival));
    }
    auto cancel = options_.tls->Accept(
        std::move(fd), options_.hello_ns,
        [this, all = handshakes_,
         begun = std::make_shared<Arrival>(std::move(arrival))](UniqueFd inner) {
          begun->fd = std::move(inner);
          begun->is_unix = true;
          // This callback runs on kvcove-tls, perhaps after the listener has ended: `this` and the
          // loop are touched only under the lock under which Close() says so.
          const MutexLock lock(all->mutex);
          if (all->closed) return;
          asio::post(loop_, [this, begun] {
            if (acceptor_.is_open()) Begin(std::move(*begun));
          });
        });
    // A connection that must give way during its handshake is no connection of the server yet, so
    // the handshake is ended, too.
    ticket->Replace(-1, [cancel = std::move(cancel), drop = drop_, id] {
      cancel();
      drop(id);
    });
  }

  void Begin(Arrival arrival) {
    ExpectHello(arrival.id);
    deliver_(std::move(arrival));
  }

  void ExpectHello(std::uint64_t id) {
    lates_.push_back({.at_ns = SystemClock::Instance().NowNs() + options_.hello_ns, .id = id});
    if (lates_.size() == 1) AwaitLate();
  }

  // Drops the connections whose time for the hello is over. Each has the same time, so the queue is
  // in the order of the deadlines, and one timer is enough. A connection that was let in is
  // dropped, too, which its server ignores.
  void AwaitLate() {
    const std::int64_t left_ns = lates_.front().at_ns - SystemClock::Instance().NowNs();
    late_.expires_at(After(std::max<std::int64_t>(left_ns, 0)));
    late_.async_wait([this](const error_code& stopped) {
      if (stopped || !acceptor_.is_open()) return;
      const std::int64_t now_ns = SystemClock::Instance().NowNs();
      while (!lates_.empty() && lates_.front().at_ns <= now_ns) {
        drop_(lates_.front().id);
        lates_.pop_front();
      }
      if (!lates_.empty()) AwaitLate();
    });
  }

  struct Late {
    std::int64_t at_ns = 0;
    std::uint64_t id = 0;
  };

  const ListenerOptions options_;
  const std::shared_ptr<ConnectionLimit> limit_;
  const std::shared_ptr<Unproven> unproven_;
  const Deliver deliver_;
  const Drop drop_;
  asio::io_context& loop_;
  asio::basic_socket_acceptor<Protocol> acceptor_;
  asio::steady_timer accept_again_;
  asio::steady_timer late_;
  std::deque<Late> lates_;
  std::uint64_t next_id_ = 1;
  // Shared with handshakes, which may outlive the listener and its loop.
  struct Handshakes {
    Mutex mutex;
    bool closed KVCOVE_GUARDED_BY(mutex) = false;
  };
  const std::shared_ptr<Handshakes> handshakes_ = std::make_shared<Handshakes>();
};

Listener::Listener(asio::io_context& loop, UniqueFd socket, const ListenerOptions& options,
                   Deliver deliver, Drop drop)
    : impl_(std::make_unique<Impl>(loop, std::move(socket), options, std::move(deliver),
                                   std::move(drop))) {}
Listener::~Listener() = default;
void Listener::Start() { impl_->Accept(); }
void Listener::Replace(UniqueFd socket) { impl_->Replace(std::move(socket)); }
void Listener::Close() { impl_->Close(); }
UniqueFd Listener::Copy() { return impl_->Copy(); }
void Listener::BeginAbove(std::uint64_t id) { impl_->BeginAbove(id); }
std::shared_ptr<void> Listener::Count() { return impl_->Count(); }
std::shared_ptr<Unproven::Ticket> Listener::Enter(std::uint64_t id, int fd) {
  return impl_->Enter(id, fd);
}
const ConnectionLimit& Listener::connections() const { return impl_->connections(); }
const Unproven& Listener::unproven() const { return impl_->unproven(); }

}  // namespace kvcove::rpc
