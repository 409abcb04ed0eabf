// SPDX-License-Identifier: Apache-2.0
// Of tests: a transport within one process whose device moves payload by itself, straight between
// the memory of both sides, and cannot be stopped. A test holds the device in the middle of a
// payload; an exchange that is aborted then returns false from Abort(), and its bytes land when the
// test says so, from and into whatever that memory is by then.
//
//   LateTransport late;
//   late.HoldAfter(100);          // bytes of each payload
//   transport::Run(...);          // kBufferBusy
//   EXPECT_EQ(late.landing(), 1);
//   late.Land();                  // the rest moves, the owner's side ends, on_quiet is called
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/base/posix.h"
#include "kvcove/transport/peer.h"
#include "kvcove/transport/service.h"
#include "tests/sim/copy.h"

namespace kvcove::transport {

// Thread-safe. Outlives its peers, servers and transfers.
class LateTransport final : public Transport {
 public:
  std::string_view name() const override { return "late"; }
  std::shared_ptr<Peer> Connect(const rpc::Address& address, const PeerOptions& options,
                                const Clock& clock) override {
    return std::make_shared<LatePeer>(*this, address, options, clock);
  }
  Result<std::unique_ptr<Server>> Serve(const ServerOptions& options, rpc::Gate& /*gate*/,
                                        Service& service, const Clock& /*clock*/) override {
    rpc::Address address = options.listen;
    const MutexLock lock(mutex_);
    if (address.port == 0) address.port = next_port_++;
    services_[address.ToString()] = &service;
    return std::make_unique<LateServer>(*this, address, service);
  }
  Result<std::unique_ptr<Registered>> Register(std::span<std::byte> /*memory*/) override {
    return std::unique_ptr<Registered>();
  }
  void Wait(std::span<Transfer* const> /*transfers*/, std::int64_t most_ns) override {
    SleepNs(std::min(most_ns, kMillisecond));
  }

  // The device moves so many bytes of each payload from now on, and then waits for Land().
  void HoldAfter(std::uint64_t bytes) {
    const MutexLock lock(mutex_);
    hold_ = bytes;
  }
  // Of what was aborted: how many transfers may still land.
  std::size_t landing() const {
    const MutexLock lock(mutex_);
    return flights_.size();
  }
  // Moves the rest of them, and says that they are quiet. What is begun from now on is not held.
  void Land() {
    std::vector<std::unique_ptr<Flight>> landing;
    {
      const MutexLock lock(mutex_);
      hold_ = kAll;
      landing.swap(flights_);
    }
    for (std::unique_ptr<Flight>& flight : landing) {
      (void)flight->copy.Advance(kAll);
      const std::function<void()> quiet = std::move(flight->on_quiet);
      flight.reset();
      if (quiet) quiet();
    }
  }

 private:
  static constexpr std::uint64_t kAll = ~0ULL;

  // The owner's side of an exchange, and the payload that moves. The server waits for its end.
  struct Flight {
    Flight(LateTransport& made_by, Service& of, Visit::Wake wake)
        : transport(made_by), service(of), woken(std::move(wake)), visit(of.Open()) {
      const MutexLock lock(transport.mutex_);
      ++transport.running_[&service];
    }
    // Exchange before visit, as every server does.
    ~Flight() {
      served.reset();
      visit.reset();
      const MutexLock lock(transport.mutex_);
      --transport.running_[&service];
      transport.changed_.NotifyAll();
    }
    Flight(const Flight&) = delete;
    Flight& operator=(const Flight&) = delete;
    LateTransport& transport;
    Service& service;
    Visit::Wake woken;
    std::unique_ptr<Visit> visit;
    std::unique_ptr<Served> served;
    sim::Copy copy;
    std::function<void()> on_quiet;
  };

  class LateTransfer final : public Transfer {
   public:
    LateTransfer(LateTransport& transport, Service& service, Exchange& exchange, const Clock& clock)
        : transport_(transport), exchange_(exchange), clock_(clock) {
      flight_ = std::make_unique<Flight>(transport, service, [woken = woken_] { *woken = true; });
      flight_->served = flight_->visit->Begin(rpc::Caller(), exchange.method,
                                              std::as_bytes(std::span(exchange.head)),
                                              /*deadline_ns=*/0, flight_->woken);
      if (flight_->served == nullptr) End(Garbage());
    }
    ~LateTransfer() override {
      if (!done_ && flight_ != nullptr) (void)Abort();
    }
    bool done() const override { return done_; }
    bool Advance() override {
      if (moving_ != Moving::kNothing) return Move();
      if (wait_until_ns_ != 0 && !woken_->exchange(false) && clock_.NowNs() < wait_until_ns_) {
        return false;
      }
      wait_until_ns_ = 0;
      return Next();
    }
    bool Abort() override {
      done_ = true;
      if (moving_ == Moving::kNothing) {
        flight_.reset();
        return true;
      }
      // The device moves by itself, and has come to where it is held: Move() may not have been
      // called.
      sim::Copy& copy = flight_->copy;
      if (const std::uint64_t hold = transport_.hold(); hold > copy.copied()) {
        (void)copy.Advance(hold - copy.copied());
      }
      // The exchange may be gone when the device is quiet.
      flight_->on_quiet = std::move(exchange_.on_quiet);
      const MutexLock lock(transport_.mutex_);
      transport_.flights_.push_back(std::move(flight_));
      return false;
    }

   private:
    enum class Moving : std::uint8_t { kNothing, kRequest, kReply };
    static constexpr std::uint64_t kTurn = 1 << 20;

    static Status Garbage() { return Fail(Code::kUnavailable, "the owner closed the connection"); }
    void End(Status status) {
      done_ = true;
      flight_.reset();
      exchange_.status = std::move(status);
    }
    bool Next() {
      Step step = flight_->served->Next();
      switch (step.kind) {
        case Step::Kind::kReceive:
          flight_->copy = sim::Copy(exchange_.out, std::move(step.into));
          moving_ = Moving::kRequest;
          break;
        case Step::Kind::kAgain:
          break;
        case Step::Kind::kWait:
          wait_until_ns_ = step.until_ns;
          break;
        case Step::Kind::kReply:
          Reply(step);
          break;
        case Step::Kind::kEnd:
          End(Garbage());
      }
      return true;
    }
    void Reply(Step& step) {
      if (step.code != Code::kOk) {
        return End(std::unexpected(
            Error{.code = step.code, .detail = std::move(step.head), .answered = true}));
      }
      auto into = exchange_.on_reply(std::as_bytes(std::span(step.head)));
      if (!into) return End(std::unexpected(into.error()));
      flight_->copy = sim::Copy(std::move(step.out), std::move(*into));
      moving_ = Moving::kReply;
    }
    bool Move() {
      sim::Copy& copy = flight_->copy;
      const std::uint64_t hold = transport_.hold();
      const std::uint64_t room = hold > copy.copied() ? std::min(hold - copy.copied(), kTurn) : 0;
      if (room == 0) return false;
      if (copy.Advance(room) > 0) {
        if (moving_ == Moving::kRequest) flight_->served->Received(copy.copied());
        if (moving_ == Moving::kReply && exchange_.on_bytes) exchange_.on_bytes(copy.copied());
      } else if (std::exchange(moving_, Moving::kNothing) == Moving::kReply) {
        End({});
      }
      return true;
    }

    LateTransport& transport_;
    Exchange& exchange_;
    const Clock& clock_;
    const std::shared_ptr<std::atomic<bool>> woken_ = std::make_shared<std::atomic<bool>>(false);
    std::unique_ptr<Flight> flight_;  // null once it has ended, or lands
    Moving moving_ = Moving::kNothing;
    std::int64_t wait_until_ns_ = 0;
    bool done_ = false;
  };

  // Small calls are not what is tested: each fails.
  class NoChannel final : public wire::Channel {
   public:
    Result<std::string> Call(wire::Method, std::span<const std::byte>, std::int64_t) override {
      return Fail(Code::kUnavailable, "this transport of the tests has no small calls");
    }
  };

  class LatePeer final : public Peer {
   public:
    LatePeer(LateTransport& transport, rpc::Address address, PeerOptions options,
             const Clock& clock)
        : transport_(transport),
          address_(std::move(address)),
          options_(std::move(options)),
          clock_(clock) {}
    Transport& transport() override { return transport_; }
    Result<std::unique_ptr<Transfer>> Start(Exchange& exchange, std::int64_t,
                                            std::int64_t) override {
      Service* const service = transport_.ServiceAt(address_);
      if (service == nullptr) return Fail(Code::kUnavailable, "nobody serves there");
      return std::make_unique<LateTransfer>(transport_, *service, exchange, clock_);
    }
    const rpc::Address& address() const override { return address_; }
    wire::Channel& channel() override { return channel_; }
    bool broken() const override { return false; }
    std::int64_t ProbeDueNs() const override { return INT64_MAX; }
    void Probe() override {}

   private:
    LateTransport& transport_;
    const rpc::Address address_;
    const PeerOptions options_;
    const Clock& clock_;
    NoChannel channel_;
  };

  class LateServer final : public Server {
   public:
    LateServer(LateTransport& transport, rpc::Address address, Service& service)
        : transport_(transport), address_(std::move(address)), service_(service) {}
    ~LateServer() override { Stop(); }
    void Stop() override { transport_.StopServing(address_, service_); }
    const rpc::Address& address() const override { return address_; }
    ConnectionCounts Connections() const override { return {}; }

   private:
    LateTransport& transport_;
    const rpc::Address address_;
    Service& service_;
  };

  std::uint64_t hold() const {
    const MutexLock lock(mutex_);
    return hold_;
  }
  Service* ServiceAt(const rpc::Address& address) {
    const MutexLock lock(mutex_);
    const auto at = services_.find(address.ToString());
    return at == services_.end() ? nullptr : at->second;
  }
  void StopServing(const rpc::Address& address, Service& service) {
    const MutexLock lock(mutex_);
    services_.erase(address.ToString());
    while (running_[&service] > 0) changed_.Wait(mutex_);
  }

  mutable Mutex mutex_;
  CondVar changed_;
  std::uint16_t next_port_ KVCOVE_GUARDED_BY(mutex_) = 40001;
  std::uint64_t hold_ KVCOVE_GUARDED_BY(mutex_) = kAll;
  std::map<std::string, Service*> services_ KVCOVE_GUARDED_BY(mutex_);      // by address
  std::map<Service*, std::size_t> running_ KVCOVE_GUARDED_BY(mutex_);       // exchanges
  std::vector<std::unique_ptr<Flight>> flights_ KVCOVE_GUARDED_BY(mutex_);  // aborted, may land
};

}  // namespace kvcove::transport
