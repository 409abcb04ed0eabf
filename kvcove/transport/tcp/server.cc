// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/tcp/server.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <optional>
#include <thread>
#include <unordered_map>

#include "kvcove/base/mutex.h"
#include "kvcove/base/posix.h"
#include "kvcove/rpc/listener.h"
#include "kvcove/rpc/pulse.h"
#include "kvcove/rpc/spin.h"
#include "kvcove/transport/tcp/connection.h"

namespace kvcove::transport::tcp {
namespace {

namespace asio = boost::asio;
using Protocol = asio::generic::stream_protocol;
using Socket = Protocol::socket;
using boost::system::error_code;

constexpr auto kSweep = std::chrono::milliseconds(250);

}  // namespace

// One event loop, its thread, and its connections.
class Server::Loop {
 public:
  Loop(const ServerOptions& options, rpc::Gate& gate, Service& service, const Clock& clock,
       LaneSide* lanes)
      : clock_(clock),
        shared_{.gate = gate,
                .service = service,
                .clock = clock,
                .hello_ns = options.hello_ns,
                .stall_ns = options.stall_ns,
                .discard = discard_.data(),
                .admission = options.admission.get(),
                .lanes = lanes} {
    const MutexLock lock(door_->mutex);
    door_->context = &context_;
  }

  asio::io_context& context() { return context_; }

  Status Start(const std::string& name) {
    Sweep();
    KVCOVE_ASSIGN(thread_, StartThread(name, [this, name] {
                    const rpc::Pulse pulse(context_, name);
                    rpc::RunSpinning(context_, clock_);
                  }));
    return {};
  }
  // Ends the loop's connections and joins its thread. `before` runs on that thread. Afterwards no
  // wake posts to the loop any more.
  void Stop(const std::function<void()>& before) {
    if (!thread_.joinable()) return;
    asio::post(context_, [this, before] {
      before();
      open_.clear();
      work_.reset();
      context_.stop();
    });
    thread_.join();
    // Services may keep wakes of connections that have ended, and call them after this server is
    // destroyed; each has its own reference to the door.
    const MutexLock lock(door_->mutex);
    door_->context = nullptr;
  }

  // Takes a new connection. Like Drop(), callable from any thread.
  void Admit(rpc::Arrival arrival) {
    asio::post(context_, [this, given = std::make_shared<rpc::Arrival>(std::move(arrival))] {
      Open(std::move(*given));
    });
  }
  void Drop(std::uint64_t id) {
    asio::post(context_, [this, id] {
      const auto at = open_.find(id);
      if (at != open_.end() && !at->second->connection.let_in()) open_.erase(at);
    });
  }

 private:
  // The connection owns and closes the descriptor; the socket only waits for events of it.
  struct Entry {
    Entry(asio::io_context& context, const Connection::Shared& shared, rpc::Arrival arrival,
          Visit::Wake wake)
        : connection(shared, std::move(arrival), std::move(wake)),
          socket(context, Protocol(connection.is_unix() ? AF_UNIX : AF_INET, 0), connection.fd()) {}
    ~Entry() {
      // Taken out of the loop's poll set before the connection closes the descriptors: a number
      // that another connection gets next would be waited for in its place.
      socket.release();
      if (lane != nullptr) lane->release();
    }
    Connection connection;
    Socket socket;
    std::unique_ptr<asio::posix::stream_descriptor> lane;  // made at the first wait for the lane
    std::uint64_t lane_waits = 0;  // each is for two events, of which the first one counts
    std::unique_ptr<asio::steady_timer> timer;  // made at the first wait for a wake
    bool waking = false;                        // the connection waits for a wake
  };
  // Lets wakes from other threads post to the loop until it is stopped. Its lock is held over the
  // post, so that Stop() cannot return, and the context cannot end, in the middle of one.
  struct Door {
    Mutex mutex;
    asio::io_context* context KVCOVE_GUARDED_BY(mutex) = nullptr;
  };

  void Open(rpc::Arrival arrival) {
    const std::uint64_t id = arrival.id;
    auto wake = [this, door = door_, id] {
      const MutexLock lock(door->mutex);
      if (door->context != nullptr) asio::post(*door->context, [this, id] { Wake(id); });
    };
    auto entry = std::make_unique<Entry>(context_, shared_, std::move(arrival), std::move(wake));
    open_.emplace(id, std::move(entry));
    Advance(id);
  }

  // Ids are never reused, so a late wake finds no other connection. A wake that arrives before its
  // connection waits is posted, and runs on this thread after AwaitWake() has set `waking`. A wake
  // of an earlier exchange may end the wait early, which Served::Next() allows.
  void Wake(std::uint64_t id) {
    const auto at = open_.find(id);
    if (at == open_.end() || !at->second->waking) return;
    at->second->waking = false;
    at->second->timer->cancel();
    Advance(id);
  }

  void Advance(std::uint64_t id) {
    const auto at = open_.find(id);
    if (at == open_.end()) return;
    Entry& entry = *at->second;
    switch (entry.connection.Advance()) {
      case Connection::Wait::kRead:
        return Await(id, entry, Socket::wait_read);
      case Connection::Wait::kWrite:
        return Await(id, entry, Socket::wait_write);
      case Connection::Wait::kTurn:
        return asio::post(context_, [this, id] { Advance(id); });
      case Connection::Wait::kWake:
        return AwaitWake(id, entry);
      case Connection::Wait::kLane:
        return AwaitLane(id, entry);
      case Connection::Wait::kEnd:
        open_.erase(at);
    }
  }

  void Await(std::uint64_t id, Entry& entry, Socket::wait_type what) {
    entry.socket.async_wait(what, [this, id](const error_code& error) {
      if (!error) Advance(id);
    });
  }

  void AwaitWake(std::uint64_t id, Entry& entry) {
    if (entry.timer == nullptr) entry.timer = std::make_unique<asio::steady_timer>(context_);
    entry.waking = true;
    entry.timer->expires_after(
        std::chrono::nanoseconds(entry.connection.wake_ns() - clock_.NowNs()));
    entry.timer->async_wait([this, id](const error_code& cancelled) {
      if (!cancelled) Wake(id);
    });
  }

  void AwaitLane(std::uint64_t id, Entry& entry) {
    if (entry.lane == nullptr) {
      entry.lane = std::make_unique<asio::posix::stream_descriptor>(
          context_, entry.connection.lane_descriptor());
    }
    // The first of both events ends both waits. The other one may be on its way to this thread
    // already: its number says that it belongs to a wait that is over.
    const auto look = [this, id, number = ++entry.lane_waits](const error_code& error) {
      const auto at = open_.find(id);
      if (error || at == open_.end() || at->second->lane_waits != number) return;
      ++at->second->lane_waits;
      error_code ignored;
      (void)at->second->lane->cancel(ignored);
      (void)at->second->socket.cancel(ignored);
      Advance(id);
    };
    entry.lane->async_wait(asio::posix::stream_descriptor::wait_read, look);
    entry.socket.async_wait(Socket::wait_read, look);
  }

  // Ends connections that were silent for too long. One sweep for all costs less than a timer that
  // each read would set again.
  void Sweep() {
    sweeper_.expires_after(kSweep);
    sweeper_.async_wait([this](const error_code& error) {
      if (error) return;
      const std::int64_t now_ns = clock_.NowNs();
      std::erase_if(open_, [&](const auto& one) {
        const std::int64_t ends_ns = one.second->connection.ends_ns();
        return ends_ns != 0 && ends_ns < now_ns;
      });
      Sweep();
    });
  }

  const Clock& clock_;
  std::vector<std::byte> discard_ = std::vector<std::byte>(Parts::kDiscard);
  const Connection::Shared shared_;
  asio::io_context context_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_{context_.get_executor()};
  asio::steady_timer sweeper_{context_};
  const std::shared_ptr<Door> door_ = std::make_shared<Door>();
  std::unordered_map<std::uint64_t, std::unique_ptr<Entry>> open_;
  std::thread thread_;
};

class Server::Impl {
 public:
  Impl(const ServerOptions& options, rpc::Gate& gate, Service& service, const Clock& clock,
       verbs::Fabric* fabric)
      : options_(options) {
    if (fabric != nullptr) lanes_.emplace(*fabric, options.memory);
    for (std::size_t i = 0; i < std::max<std::size_t>(options.loops, 1); ++i) {
      loops_.push_back(
          std::make_unique<Loop>(options, gate, service, clock, lanes_ ? &*lanes_ : nullptr));
    }
  }
  Status Open() {
    if (lanes_) KVCOVE_TRY(lanes_->Start());
    KVCOVE_ASSIGN(UniqueFd socket, rpc::ListenTcp(options_.listen));
    listener_.emplace(
        loops_[0]->context(), std::move(socket),
        rpc::ListenerOptions{.name = options_.name,
                             .max_connections = options_.max_connections,
                             .descriptors_each = options_.descriptors_each,
                             .hello_ns = options_.hello_ns,
                             .tls = options_.tls},
        [this](rpc::Arrival arrival) { LoopOf(arrival.id).Admit(std::move(arrival)); },
        [this](std::uint64_t id) { LoopOf(id).Drop(id); });
    if (options_.admission != nullptr) {
      options_.admission->SetConnections(listener_->connections().max());
    }
    listener_->Start();
    for (const auto& loop : loops_) {
      const Status started = loop->Start(options_.thread_name);
      if (started) continue;
      Stop();
      return started;
    }
    return {};
  }
  // The loops first: their connections end, and each gives its lane away, before the wait for all
  // of these begins.
  void Stop() {
    StopLoops();
    if (lanes_) lanes_->Stop();
  }
  bool StopWithin(std::int64_t most_ns) {
    StopLoops();
    return !lanes_ || lanes_->StopWithin(std::chrono::nanoseconds(most_ns));
  }
  const rpc::Address& address() const { return options_.listen; }
  const rpc::Listener& listener() const { return *listener_; }
  std::optional<LaneCounts> Lanes() const {
    return lanes_ ? std::optional(lanes_->counts()) : std::nullopt;
  }

 private:
  // Stops loop 0 first: its listener posts new connections to the other loops until it is closed.
  void StopLoops() {
    for (const auto& loop : loops_) {
      loop->Stop([this, first = loop == loops_[0]] {
        if (first) listener_->Close();
      });
    }
  }
  Loop& LoopOf(std::uint64_t id) { return *loops_[id % loops_.size()]; }

  ServerOptions options_;
  std::optional<LaneSide> lanes_;
  std::vector<std::unique_ptr<Loop>> loops_;
  std::optional<rpc::Listener> listener_;
};

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() { Stop(); }
void Server::Stop() { impl_->Stop(); }
bool Server::StopWithin(std::int64_t most_ns) { return impl_->StopWithin(most_ns); }
const rpc::Address& Server::address() const { return impl_->address(); }
ConnectionCounts Server::Connections() const {
  const ConnectionLimit& limit = impl_->listener().connections();
  const rpc::Unproven& unproven = impl_->listener().unproven();
  return {.open = limit.open(),
          .max = limit.max(),
          .refused = limit.refused(),
          .unproven = static_cast<std::uint32_t>(unproven.open()),
          .displaced = unproven.displaced()};
}

std::optional<LaneCounts> Server::Lanes() const { return impl_->Lanes(); }

Result<std::unique_ptr<Server>> Server::Open(const ServerOptions& options, rpc::Gate& gate,
                                             Service& service, const Clock& clock,
                                             verbs::Fabric* fabric) {
  auto impl = std::make_unique<Impl>(options, gate, service, clock, fabric);
  KVCOVE_TRY(impl->Open());
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

}  // namespace kvcove::transport::tcp
