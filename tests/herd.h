// SPDX-License-Identifier: Apache-2.0
// Thousands of owners and requesters of one master, on one thread: owners are LinkCore, as in
// owner::Link, over sockets that do not block; requesters ask what a session asks when its master
// is back. Each has its own loopback address, as if it were a host of its own.
//
// It needs 4 descriptors an owner and 1 a requester, here and at the master.
#pragma once

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <queue>
#include <string>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/posix.h"
#include "kvcove/base/random.h"
#include "kvcove/owner/link/link_core.h"
#include "kvcove/rpc/address.h"
#include "kvcove/rpc/busy.h"
#include "kvcove/rpc/leader.h"
#include "kvcove/wire/cluster.h"
#include "kvcove/wire/frame.h"

namespace kvcove {

// An owner as its link sees it: objects that it has, and nothing else.
class HerdOwner final : public owner::LinkTarget {
 public:
  explicit HerdOwner(owner::ObjectId objects) : objects_(objects) {}
  void Publish(const Id128&, const std::vector<SlotUpdate>& updates) override {
    for (const SlotUpdate& update : updates) {
      slot_ = update.slot;
      generation_ = update.generation;
    }
  }
  void SetHidden(const std::vector<SlotId>&) override {}
  void SetLease(std::int64_t deadline_ns) override { lease_ns_ = deadline_ns; }
  void SetMasterReachable(bool) override {}
  void SetDraining(bool) override {}
  wire::RenewRequest Report() override { return {.objects = objects_}; }
  std::uint64_t capacity_bytes() const override { return 1 << 30; }
  void ApplyKeys(const wire::Removal&) override {}
  BegunPattern BeginPattern(const wire::Removal&) override { return {}; }
  void DropSlots(std::span<const SlotId>) override {}
  void SetApplied(std::uint64_t) override {}
  std::vector<owner::Listing> TakeListings(std::size_t) override { return {}; }
  void ReturnListings(std::vector<owner::Listing>) override {}
  void CompleteListing(owner::Listing, std::span<const Code>) override {}
  std::vector<owner::InventoryItem> TakeGone(std::size_t) override { return {}; }
  bool TakeGoneOverflow() override { return false; }
  std::vector<owner::InventoryItem> Inventory(owner::ObjectId& cursor,
                                              std::size_t at_most) override {
    std::vector<owner::InventoryItem> items;
    for (; cursor < objects_ && items.size() < at_most; ++cursor) {
      items.push_back(
          {.item = {.hash = {.high = Mix64(seed_ + cursor), .low = Mix64(~(seed_ + cursor))},
                    .generation = generation_,
                    .size_bytes = 4096,
                    .group = 1,
                    .slot = slot_,
                    .inventory = true},
           .id = cursor,
           .version = 1});
    }
    if (cursor >= objects_) cursor = owner::Core::kWalkDone;
    return items;
  }
  void Reported() override { told_ = true; }
  void DropObjects(std::span<const owner::InventoryItem>) override {}

  std::int64_t lease_ns() const { return lease_ns_; }
  bool TakeTold() { return std::exchange(told_, false); }
  bool told() const { return told_; }

 private:
  const owner::ObjectId objects_;
  const std::uint64_t seed_ = RandomU64();
  SlotId slot_ = 0;
  Generation generation_ = 0;
  std::int64_t lease_ns_ = 0;
  bool told_ = false;
};

// What one connection asks, one call after the other.
class HerdLane {
 public:
  virtual ~HerdLane() = default;
  // A call, or how long to wait before asking again.
  virtual owner::LinkCore::Step Next() = 0;
  // How long to wait before the next call.
  virtual std::int64_t Answer(const Result<std::string>& reply) = 0;
  // How long to wait behind a connection that ended between calls.
  virtual std::int64_t Failed() = 0;
  // There is no connection: before it is asked what another one is for.
  virtual void Lost() {}

  std::uint64_t attempts = 0;  // connections that were begun
  std::uint64_t calls = 0;
  std::uint64_t busy = 0;  // calls that the master refused, as it had too many
};

// Waits as owner::Link does.
class HerdOwnerLane final : public HerdLane {
 public:
  using Lane = owner::LinkCore::Lane;
  HerdOwnerLane(owner::LinkCore& core, Lane lane)
      : core_(core),
        lane_(lane),
        backoff_(20 * kMillisecond, (lane == Lane::kLease ? 100 : 400) * kMillisecond) {}
  owner::LinkCore::Step Next() override { return core_.Next(lane_); }
  std::int64_t Answer(const Result<std::string>& reply) override {
    core_.Answer(lane_, reply);
    if (reply) {
      backoff_.Reset();
      return 0;
    }
    if (const auto busy_ms = rpc::BusyIn(reply.error())) {
      ++busy;
      return std::min(rpc::RetryNs(*busy_ms, RandomU64()), backoff_.most_ns());
    }
    return reply.error().answered ? 0 : backoff_.NextNs();
  }
  std::int64_t Failed() override { return backoff_.NextNs(); }
  void Lost() override {
    if (lane_ == Lane::kLease) core_.Disconnected();
  }

 private:
  owner::LinkCore& core_;
  const Lane lane_;
  rpc::Backoff backoff_;
};

// Finds its owners again, and then looks keys up now and then.
class HerdRequester final : public HerdLane {
 public:
  explicit HerdRequester(Token token) : token_(token) {}
  owner::LinkCore::Step Next() override {
    owner::LinkCore::Call call{.timeout_ns = 2 * kSecond};
    asks_owners_ = !served_ || lookups_ >= 4;
    if (asks_owners_) {
      call.method = wire::Method::kOwners;
      call.body = wire::Encode(wire::RequesterReport());
    } else {
      call.method = wire::Method::kLookup;
      std::vector<Id128> hashes(64);
      for (Id128& hash : hashes) hash = {.high = random_.Next(), .low = random_.Next()};
      call.body = wire::EncodeLookup(token_, hashes);
    }
    return {.call = std::move(call)};
  }
  std::int64_t Answer(const Result<std::string>& reply) override {
    if (!reply && !reply.error().answered) return backoff_.NextNs();
    backoff_.Reset();
    if (!reply) {
      const auto busy_ms = rpc::BusyIn(reply.error());
      busy += busy_ms ? 1 : 0;
      return busy_ms ? rpc::RetryNs(*busy_ms, RandomU64()) : kSecond;
    }
    lookups_ = asks_owners_ ? 0 : lookups_ + 1;
    served_ = true;
    // As Peers: with 1,000 owners each asks every few seconds.
    return kSecond - static_cast<std::int64_t>(RandomU64() % (kSecond / 4));
  }
  std::int64_t Failed() override { return backoff_.NextNs(); }
  void Lost() override { served_ = false; }
  bool served() const { return served_; }

 private:
  const Token token_;
  Random random_{RandomU64()};
  // As the breaker's probes of a master that is away.
  rpc::Backoff backoff_{5 * kMillisecond, 250 * kMillisecond};
  bool served_ = false;
  bool asks_owners_ = true;
  int lookups_ = 0;
};

// Drives lanes. Belongs to one thread.
class Herd {
 public:
  explicit Herd(rpc::Address master) : master_(std::move(master)), epoll_(epoll_create1(0)) {}

  // `host`: which loopback address it connects from.
  void Add(HerdLane& lane, std::uint32_t host) {
    lines_.push_back(std::make_unique<Line>(lane, host));
    Due(*lines_.back(), Now());
  }
  // Until it is true, or `limit_ns` have passed. `done` is asked each few milliseconds.
  template <typename Done>
  bool RunUntil(Done done, std::int64_t limit_ns) {
    const std::int64_t until_ns = Now() + limit_ns;
    std::int64_t look_ns = 0;
    std::int64_t turn_ns = Now();
    longest_turn_ns_ = 0;
    while (turn_ns < until_ns) {
      if (turn_ns >= look_ns) {
        if (done()) return true;
        look_ns = Now() + 2 * kMillisecond;
      }
      Turn();
      const std::int64_t before_ns = std::exchange(turn_ns, Now());
      longest_turn_ns_ = std::max(longest_turn_ns_, turn_ns - before_ns);
    }
    return done();
  }
  // Of the last RunUntil: for so long nobody was served here. One turn takes a few milliseconds.
  std::int64_t longest_turn_ns() const { return longest_turn_ns_; }
  static std::int64_t Now() { return SystemClock::Instance().NowNs(); }

 private:
  enum class State : std::uint8_t { kClosed, kConnecting, kGreeting, kIdle, kCalling };
  struct Line {
    Line(HerdLane& its, std::uint32_t from) : lane(its), host(from) {}
    HerdLane& lane;
    const std::uint32_t host;
    State state = State::kClosed;
    UniqueFd fd;
    std::string out;
    std::string in;
    std::int64_t due_ns = 0;  // when it goes on, or gives up
    owner::LinkCore::Call call;
  };
  static constexpr std::int64_t kConnectNs = 500 * kMillisecond;  // with the greeting

  void Due(Line& line, std::int64_t at_ns) {
    line.due_ns = at_ns;
    due_.push({at_ns, &line});
  }
  void Turn() {
    const std::int64_t now = Now();
    while (!due_.empty() && due_.top().first <= now) {
      const auto [at_ns, line] = due_.top();
      due_.pop();
      if (line->due_ns == at_ns) GoOn(*line);
    }
    const std::int64_t left = due_.empty() ? kMillisecond : due_.top().first - Now();
    epoll_event events[256];
    const int count =
        epoll_wait(epoll_.get(), events, 256,
                   static_cast<int>(std::clamp<std::int64_t>(left / kMillisecond, 0, 2)));
    for (int i = 0; i < count; ++i) {
      Line& line = *static_cast<Line*>(events[i].data.ptr);
      if (line.fd.valid()) Ready(line);
    }
  }
  // Its time has come: to connect, to ask, or to give up.
  void GoOn(Line& line) {
    switch (line.state) {
      case State::kClosed:
        return Begin(line);
      case State::kIdle:
        return Ask(line);
      default:
        return End(line, Code::kTimeout);
    }
  }
  // Nobody connects without something to ask.
  void Begin(Line& line) {
    line.lane.Lost();
    if (TakeCall(line)) Connect(line);
  }
  bool TakeCall(Line& line) {
    owner::LinkCore::Step step = line.lane.Next();
    if (!step.call) {
      Due(line, Now() + std::max<std::int64_t>(step.wait_ns, kMillisecond));
      return false;
    }
    line.call = std::move(*step.call);
    return true;
  }
  void Connect(Line& line) {
    ++line.lane.attempts;
    line.fd = UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const int on = 1;
    setsockopt(line.fd.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof(on));
    sockaddr_in from{};
    from.sin_family = AF_INET;
    from.sin_addr.s_addr = htonl(0x7f010001U + line.host);
    sockaddr_in to = from;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(master_.port);
    const auto* from_address = reinterpret_cast<const sockaddr*>(&from);
    const auto* to_address = reinterpret_cast<const sockaddr*>(&to);
    const bool begun =
        line.fd.valid() && bind(line.fd.get(), from_address, sizeof(from)) == 0 &&
        (connect(line.fd.get(), to_address, sizeof(to)) == 0 || errno == EINPROGRESS);
    if (!begun) return End(line, Code::kUnavailable);
    line.state = State::kConnecting;
    epoll_event event{.events = EPOLLOUT, .data = {.ptr = &line}};
    epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, line.fd.get(), &event);
    Due(line, Now() + kConnectNs);
  }
  void Ask(Line& line) {
    if (TakeCall(line)) SendCall(line);
  }
  void SendCall(Line& line) {
    ++line.lane.calls;
    line.state = State::kCalling;
    Due(line, Now() + line.call.timeout_ns);
    Send(line, line.call.method, line.call.body);
  }
  void Send(Line& line, wire::Method method, const std::string& body) {
    const auto head =
        wire::EncodeFrameHeader({.method = static_cast<std::uint16_t>(method),
                                 .body_bytes = static_cast<std::uint32_t>(body.size()),
                                 .call = 1});
    line.out.assign(reinterpret_cast<const char*>(head.data()), head.size());
    line.out += body;
    Flush(line);
  }
  void Flush(Line& line) {
    const ssize_t sent =
        send(line.fd.get(), line.out.data(), line.out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN) return End(line, Code::kUnavailable);
    if (sent > 0) line.out.erase(0, static_cast<std::size_t>(sent));
    epoll_event event{.events = line.out.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT,
                      .data = {.ptr = &line}};
    epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, line.fd.get(), &event);
  }
  void Ready(Line& line) {
    if (line.state == State::kConnecting) {
      int error = 0;
      socklen_t size = sizeof(error);
      getsockopt(line.fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error != 0) return End(line, Code::kUnavailable);
      line.state = State::kGreeting;
      return Send(line, wire::Method::kHello, {});
    }
    if (!line.out.empty()) Flush(line);
    if (line.fd.valid()) Receive(line);
  }
  void Receive(Line& line) {
    char bytes[65536];
    while (true) {
      const ssize_t got = recv(line.fd.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
      if (got < 0 && errno == EAGAIN) return;
      if (got <= 0) return End(line, Code::kUnavailable);
      line.in.append(bytes, static_cast<std::size_t>(got));
      if (line.in.size() < wire::kFrameHeaderBytes) continue;
      const auto header = wire::DecodeFrameHeader(
          std::span<const std::byte, wire::kFrameHeaderBytes>(
              reinterpret_cast<const std::byte*>(line.in.data()), wire::kFrameHeaderBytes),
          wire::kMaxFrameBytes);
      if (!header) return End(line, Code::kCorrupt);
      if (line.in.size() < wire::kFrameHeaderBytes + header->body_bytes) continue;
      std::string body = line.in.substr(wire::kFrameHeaderBytes, header->body_bytes);
      line.in.clear();
      return Answered(line, header->code, std::move(body));
    }
  }
  void Answered(Line& line, Code code, std::string body) {
    const bool greeting = line.state == State::kGreeting;
    line.state = State::kIdle;
    if (greeting) return code == Code::kOk ? SendCall(line) : End(line, code);
    const Result<std::string> reply =
        code == Code::kOk
            ? Result<std::string>(std::move(body))
            : std::unexpected(Error{.code = code, .detail = std::move(body), .answered = true});
    Due(line, Now() + line.lane.Answer(reply));
  }
  void End(Line& line, Code code) {
    line.fd.Reset();
    line.in.clear();
    line.out.clear();
    const bool asked = line.state != State::kIdle;
    line.state = State::kClosed;
    const Result<std::string> failed = Fail(code, "the master is away");
    Due(line, Now() + (asked ? line.lane.Answer(failed) : line.lane.Failed()));
  }

  const rpc::Address master_;
  const UniqueFd epoll_;
  std::int64_t longest_turn_ns_ = 0;
  std::vector<std::unique_ptr<Line>> lines_;
  using Entry = std::pair<std::int64_t, Line*>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> due_;
};

}  // namespace kvcove
