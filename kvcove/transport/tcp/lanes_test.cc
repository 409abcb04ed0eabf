// SPDX-License-Identifier: Apache-2.0
// Payload that moves by RDMA beside the sockets: between two devices of the tests.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <functional>
#include <future>
#include <optional>
#include <thread>

#include "kvcove/base/log.h"
#include "kvcove/base/random.h"
#include "kvcove/rpc/busy.h"
#include "kvcove/rpc/client.h"
#include "kvcove/rpc/test_tls.h"
#include "kvcove/transport/fake_one_value.h"
#include "kvcove/transport/peer.h"
#include "kvcove/transport/tcp/lane_lines.h"
#include "kvcove/transport/tcp/lane_side.h"
#include "kvcove/transport/tcp/sockets.h"
#include "kvcove/transport/tcp/transfer.h"
#include "kvcove/transport/verbs/ends.h"
#include "kvcove/transport/verbs/fabric.h"
#include "kvcove/transport/verbs/fake_verbs.h"
#include "tests/becomes.h"

namespace kvcove::transport::tcp {
namespace {

constexpr std::size_t kBytes = 3 << 20;
constexpr auto kPieces = static_cast<std::uint16_t>(wire::Method::kLanePieces);

// The requesters' clock. It is ahead of the system's, by which a connection and its hello have
// their limit: 200 ms, and less behind a miss. A busy machine may not let the server's threads run
// in that time, and here each get must succeed.
class PatientClock final : public Clock {
 public:
  std::int64_t NowNs() const override { return SystemClock::Instance().NowNs() + 60 * kSecond; }
};

class TcpLanesTest : public testing::Test {
 protected:
  struct Started {
    bool lanes_at_owner = true;
    bool register_value = true;
    std::shared_ptr<rpc::Tls> tls = nullptr;
    bool trusted = false;
    bool same_fabric = false;  // for both sides
    std::int64_t stall_ns = 10 * kSecond;
    std::shared_ptr<rpc::CallLimits> admission = nullptr;
  };
  void Start() { Start(Started()); }
  void Start(const Started& how) {
    SetLogLevel(LogLevel::kOff);
    for (std::size_t i = 0; i < kBytes; ++i) service_.value[i] = Random_();
    owner_transport_ = MakeSockets(
        {.fabric = how.lanes_at_owner ? owners_.get() : nullptr, .trusted = how.trusted});
    requester_transport_ = MakeSockets(
        {.fabric = how.same_fabric ? owners_.get() : requesters_.get(), .trusted = how.trusted});
    ServerOptions options;
    options.stall_ns = how.stall_ns;
    options.tls = how.tls;
    options.admission = how.admission;
    if (how.register_value) options.memory = {std::span(service_.value)};
    auto server = owner_transport_->Serve(options, gate_, service_, SystemClock::Instance());
    ASSERT_TRUE(server) << server.error().ToString();
    server_ = std::move(*server);
    registered_ = *requester_transport_->Register(buffer_);
    ASSERT_NE(registered_, nullptr);
    PeerOptions access;
    access.access.tls = how.tls;
    peer_ = requester_transport_->Connect(server_->address(), access, clock());
  }
  ~TcpLanesTest() override {
    verbs_.RefuseDestroys(false);
    verbs_.Land();
    peer_.reset();
    if (server_ != nullptr) server_->Stop();
    server_.reset();
    registered_.reset();
    requesters_.reset();
    owners_.reset();
    const verbs::FakeVerbsCounts counts = verbs_.counts();
    EXPECT_EQ(counts.pairs + counts.queues + counts.regions, 0U);
    EXPECT_EQ(counts.mistakes, 0U);
  }
  static const Clock& clock() {
    static const PatientClock patient;
    return patient;
  }
  static std::int64_t Soon() { return clock().NowNs() + 60 * kSecond; }
  std::unique_ptr<verbs::Fabric> Open(const std::string& device) {
    auto fabric = verbs::Fabric::Open(
        verbs_, {.ports = {{.device = device}}, .piece_bytes = 1'000'001}, clock());
    EXPECT_TRUE(fabric);
    return fabric ? std::move(*fabric) : nullptr;
  }
  std::byte Random_() { return static_cast<std::byte>(random_.Next()); }
  std::uint64_t works() const { return verbs_.counts().works; }

  Exchange GetOf(std::span<std::byte> into) {
    Exchange exchange;
    exchange.to = peer_.get();
    exchange.method = wire::Method::kDataGet;
    exchange.head = std::to_string(into.size());
    exchange.on_reply = [into](std::span<const std::byte>) -> Result<std::vector<Piece>> {
      // In two pieces.
      const std::size_t half = into.size() / 2;
      return std::vector<Piece>{{into.data(), half}, {into.data() + half, into.size() - half}};
    };
    exchange.on_bytes = [this](std::uint64_t bytes) { arrived_ = bytes; };
    return exchange;
  }
  Exchange PutOf(std::span<const std::byte> from) {
    Exchange exchange;
    exchange.to = peer_.get();
    exchange.method = wire::Method::kDataPut;
    exchange.head = std::to_string(from.size());
    exchange.out = {{from.data(), from.size()}};
    exchange.on_reply = [this](std::span<const std::byte> head) -> Result<std::vector<Piece>> {
      put_reply_ = std::string(reinterpret_cast<const char*>(head.data()), head.size());
      return std::vector<Piece>();
    };
    return exchange;
  }
  static Status Run(Exchange exchange, std::int64_t until_ns = Soon()) {
    transport::Run({&exchange, 1}, until_ns, clock());
    return exchange.status;
  }
  // Gets until a worker has made a lane and the payload takes it.
  bool AwaitLane() {
    return Becomes([&] {
      const std::uint64_t before = works();
      EXPECT_TRUE(Run(GetOf(buffer_)));
      return works() > before + 2;  // more than the first message of a lane
    });
  }

  // Advances an exchange until the owner's device has begun to move, and aborts it then. Returns
  // the result of Abort().
  bool AbortHalfWay(Exchange& exchange) {
    const std::uint64_t before = works();
    auto transfer = peer_->Start(exchange, Soon(), Soon());
    EXPECT_TRUE(transfer);
    if (!transfer) return false;
    EXPECT_TRUE(Becomes([&] {
      (void)(*transfer)->Advance();
      return works() > before;
    }));
    return (*transfer)->Abort();
  }

  // Stops the server, and returns what the log says once that waits. `let_end` lets it end.
  std::string SaidByStop(const std::function<void()>& let_end) {
    SetLogLevel(LogLevel::kWarn);
    std::string said;
    std::thread stopping([&] { server_->Stop(); });
    EXPECT_TRUE(Becomes([&] {
      testing::internal::CaptureStderr();
      SleepNs(50 * kMillisecond);
      said += testing::internal::GetCapturedStderr();
      return said.find("the end of this server") != std::string::npos;
    }));
    SetLogLevel(LogLevel::kOff);
    let_end();
    stopping.join();
    return said;
  }

  // Waits until a worker has done all that was posted to it before.
  static void Drain(rpc::Workers& workers) {
    std::promise<void> drained;
    ASSERT_TRUE(workers.Post([&] { drained.set_value(); }));
    drained.get_future().wait();
  }
  // Both ends of a lane.
  struct Ends {
    std::unique_ptr<verbs::RequesterEnd> requester;
    std::unique_ptr<verbs::OwnerEnd> owner;
  };
  Ends ConnectedEnds() {
    Ends ends;
    ends.requester = *verbs::RequesterEnd::Open(*requesters_);
    ends.owner = *verbs::OwnerEnd::Accept(*owners_, ends.requester->hello());
    EXPECT_TRUE(ends.requester->Connect(ends.owner->hello(), Soon(), clock()));
    return ends;
  }
  // Returns a connection with a lane.
  UniqueFd ConnectWithLane() {
    rpc::Client client = *rpc::Client::Connect(server_->address(), {}, Soon());
    const auto end = *verbs::RequesterEnd::Open(*requesters_);
    const std::string hello = wire::Encode(end->hello());
    EXPECT_TRUE(Becomes([&] {  // once the owner's memory is registered
      return client.Call(wire::Method::kLane, wire::AsBytes(hello), Soon()).has_value();
    }));
    return client.TakeFd();
  }
  // Begins an exchange over `fd`, whose other end is the test's, and over the lane.
  std::unique_ptr<SocketTransfer> StartOver(UniqueFd fd, Exchange& exchange,
                                            std::unique_ptr<verbs::RequesterEnd> lane) {
    auto& peer = static_cast<Peer&>(*peer_);
    auto line = peer.Take(Soon());
    EXPECT_TRUE(line);
    line->fd = std::move(fd);
    line->kept = false;
    line->lane = std::move(lane);
    return std::make_unique<SocketTransfer>(peer, exchange, std::move(*line));
  }
  static std::string FrameOf(std::uint16_t method, const std::string& body) {
    const auto header = wire::EncodeFrameHeader(
        {.method = method, .body_bytes = static_cast<std::uint32_t>(body.size()), .call = 1});
    return std::string(reinterpret_cast<const char*>(header.data()), header.size()) + body;
  }
  static bool SendAll(const UniqueFd& fd, const std::string& bytes) {
    return send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  // Returns whether the other end closes the connection, now or soon.
  static bool Closes(const UniqueFd& fd) {
    std::array<char, 4096> ignored{};
    while (true) {
      pollfd waits{.fd = fd.get(), .events = POLLIN, .revents = 0};
      if (poll(&waits, 1, 20'000) != 1) return false;
      if (recv(fd.get(), ignored.data(), ignored.size(), 0) <= 0) return true;
    }
  }

  Random random_{7};
  verbs::FakeVerbs verbs_;
  std::unique_ptr<verbs::Fabric> owners_ = Open("fake0");
  std::unique_ptr<verbs::Fabric> requesters_ = Open("fake1");
  OneValue service_{kBytes};
  std::vector<std::byte> buffer_ = std::vector<std::byte>(kBytes);
  rpc::Gate gate_{nullptr};
  std::unique_ptr<Transport> owner_transport_, requester_transport_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<Registered> registered_;
  std::shared_ptr<transport::Peer> peer_;
  std::atomic<std::uint64_t> arrived_{0};
  std::string put_reply_;
};

TEST_F(TcpLanesTest, GetsAndPutsMoveByTheDevice) {
  Start();
  ASSERT_TRUE(AwaitLane());
  EXPECT_EQ(buffer_, service_.value);
  EXPECT_EQ(arrived_, kBytes);

  std::vector<std::byte> fresh(kBytes);
  for (std::byte& byte : buffer_) byte = Random_();
  std::uint64_t before = works();
  ASSERT_TRUE(Run(PutOf(buffer_)));
  EXPECT_EQ(put_reply_, std::to_string(kBytes));
  EXPECT_EQ(service_.value, buffer_);
  EXPECT_GE(works(), before + 3);
  EXPECT_LE(service_.most_at_once, 1U << 20) << "so much may be hashed at once";

  before = works();
  std::fill(buffer_.begin(), buffer_.end(), std::byte{0});
  ASSERT_TRUE(Run(GetOf(buffer_)));
  EXPECT_EQ(buffer_, service_.value);
  EXPECT_GE(works(), before + 4);
  EXPECT_EQ(verbs_.counts().pairs, 2U) << "each exchange used the same lane";
  EXPECT_EQ(service_.served, 0);
}

TEST_F(TcpLanesTest, SmallPayloadTakesTheSocket) {
  Start();
  ASSERT_TRUE(AwaitLane());
  const std::uint64_t before = works();
  ASSERT_TRUE(Run(GetOf(std::span(buffer_).first(1000))));
  ASSERT_TRUE(Run(PutOf(std::span(buffer_).first(1000))));
  EXPECT_EQ(works(), before);
  EXPECT_EQ(arrived_, 1000U);
}

TEST_F(TcpLanesTest, MemoryThatTheRequesterHasNotRegisteredTakesTheSocket) {
  Start();
  ASSERT_TRUE(AwaitLane());
  std::vector<std::byte> other(kBytes);
  const std::uint64_t before = works();
  ASSERT_TRUE(Run(GetOf(other)));
  EXPECT_EQ(other, service_.value);
  for (std::byte& byte : other) byte = Random_();
  ASSERT_TRUE(Run(PutOf(other)));
  EXPECT_EQ(other, service_.value);
  EXPECT_EQ(works(), before);
}

TEST_F(TcpLanesTest, MemoryThatTheOwnerHasNotRegisteredTakesTheSocket) {
  Start({.register_value = false});
  ASSERT_TRUE(Becomes([&] {
    EXPECT_TRUE(Run(GetOf(buffer_)));
    return works() > 0;  // a lane was made
  }));
  const std::uint64_t before = works();
  for (int round = 0; round < 3; ++round) {
    std::fill(buffer_.begin(), buffer_.end(), Random_());
    ASSERT_TRUE(Run(GetOf(buffer_)));
    EXPECT_EQ(buffer_, service_.value);
    std::fill(buffer_.begin(), buffer_.end(), Random_());
    ASSERT_TRUE(Run(PutOf(buffer_)));
    EXPECT_EQ(buffer_, service_.value);
  }
  EXPECT_EQ(works(), before);
}

// The requester would send its payload from the beginning on, although a part of it is here
// already.
TEST_F(TcpLanesTest, APutIsNotSentAgainOnceTheDeviceHasReadAPart) {
  service_.rest.resize(kBytes);
  service_.first = kBytes / 2;
  Start();
  ASSERT_TRUE(AwaitLane());
  for (std::byte& byte : buffer_) byte = Random_();
  // The owner ends the connection, and the exchange begins anew by the sockets.
  ASSERT_TRUE(Run(PutOf(buffer_)));
  EXPECT_EQ(put_reply_, std::to_string(kBytes));
  EXPECT_TRUE(std::equal(buffer_.begin() + kBytes / 2, buffer_.end(), service_.rest.begin()));
}

TEST_F(TcpLanesTest, AnOwnerWithoutRdmaIsServedOverSockets) {
  Start({.lanes_at_owner = false});
  for (int round = 0; round < 5; ++round) ASSERT_TRUE(Run(GetOf(buffer_)));
  EXPECT_EQ(buffer_, service_.value);
  EXPECT_EQ(works(), 0U);
}

TEST_F(TcpLanesTest, ARequesterWithoutRdmaIsServedOverSockets) {
  Start();
  peer_ = Sockets().Connect(server_->address(), {}, clock());
  for (int round = 0; round < 5; ++round) ASSERT_TRUE(Run(GetOf(buffer_)));
  EXPECT_EQ(buffer_, service_.value);
  EXPECT_EQ(works(), 0U);
}

TEST_F(TcpLanesTest, TlsKeepsPayloadOnTheSocketsUnlessTheFabricIsTrusted) {
  const auto tls = rpc::SelfSignedTls();
  ASSERT_TRUE(tls);
  Start({.tls = *tls});
  for (int round = 0; round < 5; ++round) ASSERT_TRUE(Run(GetOf(buffer_)));
  EXPECT_EQ(works(), 0U);
}

TEST_F(TcpLanesTest, ATrustedFabricMovesPayloadOfTlsConnections) {
  const auto tls = rpc::SelfSignedTls();
  ASSERT_TRUE(tls);
  Start({.tls = *tls, .trusted = true});
  EXPECT_TRUE(AwaitLane());
  EXPECT_EQ(buffer_, service_.value);
}

// P5. The device is in the middle of a get when the time is over.
TEST_F(TcpLanesTest, ABufferStaysBusyUntilTheLaneIsGone) {
  Start();
  ASSERT_TRUE(AwaitLane());
  verbs_.HoldAfter(100);
  verbs_.RefuseDestroys(true);
  std::atomic<int> quiet{0};
  {
    Exchange exchange = GetOf(buffer_);
    exchange.on_quiet = [&] {
      // From now on the buffer is another's.
      std::fill(buffer_.begin(), buffer_.end(), std::byte{7});
      ++quiet;
    };
    ASSERT_FALSE(AbortHalfWay(exchange));
  }
  SleepNs(20 * kMillisecond);
  EXPECT_EQ(quiet, 0);
  EXPECT_EQ(service_.served, 1) << "the owner's device reads its value, too";
  verbs_.RefuseDestroys(false);
  EXPECT_TRUE(Becomes([&] { return quiet == 1; }));
  verbs_.Land();
  EXPECT_TRUE(Becomes([&] { return service_.served == 0; }));
  EXPECT_EQ(std::count(buffer_.begin(), buffer_.end(), std::byte{7}),
            static_cast<std::ptrdiff_t>(kBytes));
  EXPECT_TRUE(Run(GetOf(buffer_)));
  EXPECT_EQ(buffer_, service_.value);
}

TEST_F(TcpLanesTest, APutThatIsLateKeepsItsReservationUntilTheDeviceHasEnded) {
  Start();
  ASSERT_TRUE(AwaitLane());
  verbs_.HoldAfter(100);
  std::atomic<int> quiet{0};
  {
    Exchange exchange = PutOf(buffer_);
    exchange.on_quiet = [&] { ++quiet; };
    if (AbortHalfWay(exchange)) ++quiet;  // its own lane was gone at once
  }
  EXPECT_TRUE(Becomes([&] { return quiet == 1; }));
  SleepNs(20 * kMillisecond);
  EXPECT_EQ(service_.served, 1);
  verbs_.Land();
  EXPECT_TRUE(Becomes([&] { return service_.served == 0; }));
}

TEST_F(TcpLanesTest, WhatRunsOutOfTimeIsBusyOrLate) {
  Start();
  ASSERT_TRUE(AwaitLane());
  verbs_.HoldAfter(100);
  std::atomic<int> quiet{0};
  Exchange exchange = GetOf(buffer_);
  exchange.on_quiet = [&] { ++quiet; };
  const Status status = Run(std::move(exchange), clock().NowNs() + 50 * kMillisecond);
  ASSERT_FALSE(status);
  if (status.error().code == Code::kBufferBusy) {
    EXPECT_TRUE(Becomes([&] { return quiet == 1; }));
  } else {
    EXPECT_EQ(status.error().code, Code::kTimeout);
  }
}

TEST_F(TcpLanesTest, TheEndOfAServerWaitsForItsDevice) {
  Start();
  ASSERT_TRUE(AwaitLane());
  verbs_.HoldAfter(100);
  Exchange exchange = GetOf(buffer_);
  (void)AbortHalfWay(exchange);
  std::atomic<bool> stopped{false};
  std::thread stopping([&] {
    server_->Stop();
    stopped = true;
  });
  SleepNs(50 * kMillisecond);
  EXPECT_FALSE(stopped);
  EXPECT_EQ(service_.served, 1);
  verbs_.Land();
  stopping.join();
  EXPECT_EQ(service_.served, 0);
}

TEST_F(TcpLanesTest, AServerThatWaitsForItsDeviceNamesIt) {
  Start();
  ASSERT_TRUE(AwaitLane());
  verbs_.HoldAfter(100);
  Exchange exchange = GetOf(buffer_);
  (void)AbortHalfWay(exchange);
  verbs_.RemoveDevice("fake0");
  const std::string said = SaidByStop([&] {
    verbs_.ReturnDevice("fake0");
    verbs_.Land();
  });
  EXPECT_NE(said.find("fake0:1, which was removed"), std::string::npos) << said;
}

TEST_F(TcpLanesTest, AServerThatWaitsForARegistrationSaysSo) {
  std::promise<void> go_on;
  ASSERT_TRUE(owners_->workers().Post([&] { go_on.get_future().wait(); }));
  Start();
  const std::string said = SaidByStop([&] { go_on.set_value(); });
  EXPECT_NE(said.find("fake0:1, which registers memory"), std::string::npos) << said;
}

TEST_F(TcpLanesTest, WhatMovesByLanesIsCounted) {
  Start();
  ASSERT_TRUE(AwaitLane());
  // The owner counts the bytes of a get once its device has moved them: perhaps after the
  // requester's end.
  ASSERT_TRUE(Becomes([&] { return server_->Lanes()->sent_bytes == kBytes; }));
  const auto before = server_->Lanes();
  ASSERT_TRUE(before);
  EXPECT_EQ(before->lanes, 1U);
  EXPECT_EQ(before->pinned_bytes, kBytes);
  ASSERT_TRUE(Run(PutOf(buffer_)));
  EXPECT_EQ(server_->Lanes()->received_bytes, before->received_bytes + kBytes);
  ASSERT_TRUE(Run(GetOf(buffer_)));
  EXPECT_TRUE(Becomes([&] { return server_->Lanes()->sent_bytes == before->sent_bytes + kBytes; }));
  peer_ = Sockets().Connect(server_->address(), {}, clock());
  ASSERT_TRUE(Run(GetOf(buffer_)));
  EXPECT_EQ(server_->Lanes()->sent_bytes, before->sent_bytes + kBytes);
}

// The owner's end of the connection is no proof: the exchange ends when its own lane is gone.
TEST_F(TcpLanesTest, AnExchangeWhoseOwnerEndsIsOverOnceItsLaneIsGone) {
  Start();
  ASSERT_TRUE(AwaitLane());
  verbs_.HoldAfter(100);
  verbs_.RefuseDestroys(true);
  const std::uint64_t before = works();
  std::atomic<bool> over{false};
  Status status;
  std::thread running([&] {
    status = Run(GetOf(buffer_));
    over = true;
  });
  EXPECT_TRUE(Becomes([&] { return works() > before; }));
  std::thread stopping([&] { server_->Stop(); });
  SleepNs(50 * kMillisecond);
  EXPECT_FALSE(over);
  verbs_.RefuseDestroys(false);
  running.join();
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kUnavailable);
  verbs_.Land();
  stopping.join();
}

TEST_F(TcpLanesTest, APortThatGoesDownLeavesTheSockets) {
  Start();
  ASSERT_TRUE(AwaitLane());
  verbs_.SetPort("fake0", false);
  // The exchange that takes the lane fails, which need not be the first one. It takes time, so the
  // owner may be passed over for some milliseconds. From then on TCP carries them.
  ASSERT_TRUE(Becomes([&] {
    (void)Run(GetOf(buffer_));
    return server_->Lanes()->lanes == 0;
  }));
  ASSERT_TRUE(Becomes([&] { return Run(GetOf(buffer_)).has_value(); }));
  for (int round = 0; round < 3; ++round) {
    std::fill(buffer_.begin(), buffer_.end(), Random_());
    ASSERT_TRUE(Run(GetOf(buffer_)));
    EXPECT_EQ(buffer_, service_.value);
  }
  verbs_.SetPort("fake0", true);
  EXPECT_TRUE(AwaitLane());
}

TEST_F(TcpLanesTest, GarbageEndsItsConnectionAlone) {
  Start();
  ASSERT_TRUE(AwaitLane());
  const auto connect = [&] { return *rpc::Client::Connect(server_->address(), {}, Soon()); };
  const auto ask = [](rpc::Client& client, wire::Method method, const std::string& body) {
    return client.Call(method, wire::AsBytes(body), Soon());
  };
  for (const wire::Method method : {wire::Method::kLane, wire::Method::kLanePieces}) {
    rpc::Client client = connect();
    EXPECT_FALSE(ask(client, method, "garbage"));
    EXPECT_FALSE(client.usable());
  }
  {
    rpc::Client client = connect();  // without a lane
    EXPECT_FALSE(ask(client, wire::Method::kLanePieces, wire::Encode(wire::LanePieces())));
    EXPECT_FALSE(client.usable());
  }
  {
    rpc::Client client = connect();
    EXPECT_EQ(
        ask(client, wire::Method::kLane, wire::Encode(wire::LaneEnd{.version = 9})).error().code,
        Code::kIncompatible);
    EXPECT_EQ(ask(client, wire::Method::kLane, wire::Encode(wire::LaneEnd())).error().code,
              Code::kInvalid);
    EXPECT_TRUE(client.usable());
    // The connection serves on, and one that has a lane takes no other.
    const auto end = *verbs::RequesterEnd::Open(*requesters_);
    EXPECT_TRUE(ask(client, wire::Method::kLane, wire::Encode(end->hello())));
    EXPECT_FALSE(ask(client, wire::Method::kLane, wire::Encode(end->hello())));
    EXPECT_FALSE(client.usable());
  }
  EXPECT_TRUE(Run(GetOf(buffer_)));
}

// Else a limited caller keeps the worker that makes the lanes of all callers.
TEST_F(TcpLanesTest, ALaneCountsAsACall) {
  Start({.admission = std::make_shared<rpc::CallLimits>(
             rpc::CallLimitsOptions{.connection = {.calls_per_second = 3}})});
  rpc::Client client = *rpc::Client::Connect(server_->address(), {}, Soon());
  const std::string nobody = wire::Encode(wire::LaneEnd());
  std::optional<std::uint32_t> busy_ms;
  for (int i = 0; i < 1000 && !busy_ms; ++i) {
    const auto answer = client.Call(wire::Method::kLane, wire::AsBytes(nobody), Soon());
    ASSERT_FALSE(answer);
    busy_ms = rpc::BusyIn(answer.error());
  }
  EXPECT_TRUE(busy_ms);
  EXPECT_TRUE(client.usable());
}

TEST_F(TcpLanesTest, AnOwnerWithoutRdmaSaysSo) {
  Start({.lanes_at_owner = false});
  rpc::Client client = *rpc::Client::Connect(server_->address(), {}, Soon());
  const auto answer =
      client.Call(wire::Method::kLane, wire::AsBytes(wire::Encode(wire::LaneEnd())), Soon());
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, Code::kUnavailable);
  EXPECT_EQ(answer.error().detail, "this owner has no RDMA");
  EXPECT_TRUE(client.usable());
}

// A process that serves and requests by one fabric, as an owner that copies: each of two such
// processes waits for the other one's worker.
TEST_F(TcpLanesTest, AProcessMakesLanesForOthersWhileItWaitsForItsOwn) {
  Start({.same_fabric = true});
  EXPECT_TRUE(AwaitLane());
  EXPECT_EQ(buffer_, service_.value);
}

TEST_F(TcpLanesTest, NoConnectionIsMadeForAPeerThatHasEnded) {
  Start();
  std::promise<void> go_on;
  ASSERT_TRUE(requesters_->connectors().Post([&] { go_on.get_future().wait(); }));
  ASSERT_TRUE(Run(GetOf(buffer_)));  // asks for a lane
  const std::uint32_t open = server_->Connections().open;
  peer_.reset();
  EXPECT_TRUE(Becomes([&] { return server_->Connections().open < open; }));
  verbs_.RefuseDestroys(true);
  go_on.set_value();
  Drain(requesters_->connectors());
  EXPECT_EQ(verbs_.counts().pairs, 0U);
}

TEST_F(TcpLanesTest, NoLaneIsMadeForAConnectionThatHasEnded) {
  Start();
  LaneSide side(*owners_, {});
  ASSERT_TRUE(side.Start());
  Drain(owners_->workers());
  std::promise<void> go_on;
  ASSERT_TRUE(owners_->workers().Post([&] { go_on.get_future().wait(); }));
  const auto requester = *verbs::RequesterEnd::Open(*requesters_);
  const std::string hello = wire::Encode(requester->hello());
  std::unique_ptr<verbs::OwnerEnd> lane;
  auto served = OpenLane(&side, wire::AsBytes(hello), [] {}, lane);
  ASSERT_NE(served, nullptr);
  EXPECT_EQ(served->Next().kind, Step::Kind::kWait);
  served.reset();
  verbs_.RefuseDestroys(true);
  go_on.set_value();
  Drain(owners_->workers());
  EXPECT_EQ(verbs_.counts().pairs, 1U) << "the requester's";
  verbs_.RefuseDestroys(false);
}

TEST_F(TcpLanesTest, ALaneKeepsItsPlaceUntilItIsGone) {
  Start();
  LaneSide side(*owners_, {});
  ASSERT_TRUE(side.Start());
  Drain(owners_->workers());
  for (std::size_t i = 0; i < LaneSide::kMaxLanes; ++i) ASSERT_TRUE(side.TakePlace());
  Ends ends = ConnectedEnds();
  verbs_.RefuseDestroys(true);
  side.End(std::move(ends.owner), nullptr, nullptr);
  const Status full = side.TakePlace();
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code, Code::kLimit);
  verbs_.RefuseDestroys(false);
  EXPECT_TRUE(Becomes([&] { return side.TakePlace().has_value(); }));
  verbs::RequesterEnd::End(std::move(ends.requester), nullptr);
}

// Else connections that come and go leave a slow device with more queue pairs than there are
// places.
TEST_F(TcpLanesTest, ALaneForWhichNobodyWaitsKeepsItsPlaceUntilItIsGone) {
  Start();
  LaneSide side(*owners_, {});
  ASSERT_TRUE(side.Start());
  Drain(owners_->workers());
  for (std::size_t i = 1; i < LaneSide::kMaxLanes; ++i) ASSERT_TRUE(side.TakePlace());
  const auto requester = *verbs::RequesterEnd::Open(*requesters_);
  const std::string hello = wire::Encode(requester->hello());
  // The connection ends while the worker makes the lane.
  std::unique_ptr<verbs::OwnerEnd> lane;
  std::unique_ptr<Served> served;
  std::promise<void> making;
  std::promise<void> ended;
  verbs_.BehindGid([&] {
    making.set_value();
    ended.get_future().wait();
  });
  served = OpenLane(&side, wire::AsBytes(hello), [] {}, lane);
  ASSERT_NE(served, nullptr);
  making.get_future().wait();
  served.reset();
  verbs_.RefuseDestroys(true);
  ended.set_value();
  Drain(owners_->workers());
  EXPECT_EQ(verbs_.counts().pairs, 2U);
  const Status full = side.TakePlace();
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code, Code::kLimit);
  verbs_.RefuseDestroys(false);
  EXPECT_TRUE(Becomes([&] { return side.TakePlace().has_value(); }));
}

// P5. Completions of all work are there, but they are those of a failure.
TEST_F(TcpLanesTest, ALaneThatHasFailedKeepsItsExchangeUntilItIsGone) {
  Start();
  LaneSide side(*owners_, {});
  ASSERT_TRUE(side.Start());
  Drain(owners_->workers());
  ASSERT_TRUE(side.TakePlace());
  Ends ends = ConnectedEnds();
  verbs::RequesterEnd::End(std::move(ends.requester), nullptr);
  ASSERT_TRUE(Becomes([&] { return verbs_.counts().pairs == 1; }));
  ends.owner->Begin({.exchange = 1,
                     .pieces = {{.address = reinterpret_cast<std::uintptr_t>(buffer_.data()),
                                 .size_bytes = kBytes,
                                 .key = 1}}});
  const ConstPiece value{.data = service_.value.data(), .size = kBytes};
  const auto begun = ends.owner->Write(std::span(&value, 1));
  ASSERT_TRUE(begun && *begun);
  ASSERT_FALSE(ends.owner->Advance()) << "its peer is gone";
  ASSERT_TRUE(ends.owner->idle()) << "each work request has a completion";
  verbs_.RefuseDestroys(true);
  auto visit = service_.Open();
  auto served = visit->Begin({}, wire::Method::kDataGet, wire::AsBytes(std::to_string(kBytes)),
                             Soon(), [] {});
  ASSERT_EQ(service_.served, 1);
  side.End(std::move(ends.owner), std::move(served), std::move(visit));
  EXPECT_EQ(service_.served, 1);
  EXPECT_FALSE(side.StopWithin(std::chrono::milliseconds(20)));
  EXPECT_EQ(service_.served, 1);
  verbs_.RefuseDestroys(false);
  EXPECT_TRUE(Becomes([&] { return service_.served == 0; }));
}

TEST_F(TcpLanesTest, AServerStopsThoughItsIdleLanesDoNotEnd) {
  Start();
  ASSERT_TRUE(AwaitLane());
  verbs_.RefuseDestroys(true);
  std::atomic<bool> stopped{false};
  std::thread stopping([&] {
    server_->Stop();
    stopped = true;
  });
  EXPECT_TRUE(Becomes([&] { return stopped.load(); }, std::chrono::seconds(20)));
  verbs_.RefuseDestroys(false);
  stopping.join();
}

// The packet that a new lane is tried with passes, and payload does not: a cable may be so.
TEST_F(TcpLanesTest, LanesThatFailInUseAreMadeLessAndLessOften) {
  Start();
  FakeClock clock;
  clock.AdvanceNs(Soon());  // ahead: connecting has its limit by the system's clock
  Drain(owners_->workers());
  const auto lines =
      std::make_shared<LaneLines>(*requesters_, server_->address(), rpc::Access(), clock);
  // Whether an exchange that finds no lane leads to one.
  const auto made = [&] {
    EXPECT_FALSE(lines->Take());
    Drain(requesters_->connectors());
    return lines->Take();
  };
  const auto fail = [&] {
    lines->Failed("a test's");
    lines->Failed("a test's");  // another exchange, by the same cause
  };
  auto line = made();
  ASSERT_TRUE(line);
  lines->Keep(std::move(*line));
  fail();
  EXPECT_FALSE(made());
  clock.AdvanceNs(kSecond);
  line = made();
  ASSERT_TRUE(line);
  lines->Keep(std::move(*line));
  fail();
  clock.AdvanceNs(kSecond);
  EXPECT_FALSE(made()) << "twice as long";
  clock.AdvanceNs(kSecond);
  line = made();
  ASSERT_TRUE(line);
  lines->Moved();
  lines->Keep(std::move(*line));
  fail();
  clock.AdvanceNs(kSecond);
  line = made();
  ASSERT_TRUE(line) << "payload had moved";
  lines->Keep(std::move(*line));
  line = lines->Take();
  lines->Late();
  EXPECT_FALSE(made());
  lines->Keep(std::move(*line));
}

// Else one burst of each requester takes the owner's places for good.
TEST_F(TcpLanesTest, ALaneThatOnlyABurstHasNeededEnds) {
  Start();
  FakeClock clock;
  clock.AdvanceNs(Soon());  // ahead: connecting has its limit by the system's clock
  Drain(owners_->workers());
  const auto lines =
      std::make_shared<LaneLines>(*requesters_, server_->address(), rpc::Access(), clock);
  ASSERT_TRUE(lines->TryNow());
  ASSERT_TRUE(lines->TryNow());
  const auto use = [&] {
    auto line = lines->Take();
    ASSERT_TRUE(line);
    lines->Keep(std::move(*line));
  };
  clock.AdvanceNs(59 * kSecond);
  use();
  EXPECT_EQ(server_->Lanes()->lanes, 2U);
  clock.AdvanceNs(2 * kSecond);
  use();
  EXPECT_TRUE(Becomes([&] { return server_->Lanes()->lanes == 1; }));
  clock.AdvanceNs(1000 * kSecond);
  use();
  use();
  EXPECT_EQ(server_->Lanes()->lanes, 1U) << "the one that is used stays, however seldom";
}

// Else the frame that the socket has not taken yet is replaced.
TEST_F(TcpLanesTest, AnAnswerBeforeTheWholeRequestIsGarbage) {
  Start();
  std::array<int, 2> pair{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair.data()), 0);
  UniqueFd owner(pair[1]);
  Ends ends = ConnectedEnds();
  Exchange exchange = GetOf(buffer_);
  exchange.head = std::string(wire::kMaxFrameBytes, 'x');  // more than the socket holds
  auto transfer = StartOver(UniqueFd(pair[0]), exchange, std::move(ends.requester));
  (void)transfer->Advance();
  ASSERT_TRUE(SendAll(owner, FrameOf(kPieces | wire::kReplyBit, "")));
  (void)transfer->Advance();
  ASSERT_TRUE(transfer->done());
  EXPECT_EQ(exchange.status.error().code, Code::kCorrupt);
  verbs::OwnerEnd::End(std::move(ends.owner), nullptr);
}

// Else the requester asks it for ever, without a pause, until the deadline.
TEST_F(TcpLanesTest, ADeviceThatIsRemovedEndsTheWaitForIt) {
  Start();
  std::array<int, 2> pair{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair.data()), 0);
  UniqueFd owner(pair[1]);
  Ends ends = ConnectedEnds();
  Exchange exchange = GetOf(buffer_);
  auto transfer = StartOver(UniqueFd(pair[0]), exchange, std::move(ends.requester));
  (void)transfer->Advance();
  ASSERT_TRUE(SendAll(owner, FrameOf(kPieces | wire::kReplyBit, "")));
  (void)transfer->Advance();
  verbs_.RemoveDevice("fake1");
  (void)transfer->Advance();
  std::vector<pollfd> waits;
  EXPECT_FALSE(transfer->AddWaits(waits));
  EXPECT_TRUE(Closes(owner));
  EXPECT_FALSE(transfer->done()) << "its lane is not gone";
  verbs_.ReturnDevice("fake1");
  EXPECT_TRUE(Becomes([&] {
    (void)transfer->Advance();
    return transfer->done();
  }));
  EXPECT_EQ(exchange.status.error().code, Code::kUnavailable);
  verbs::OwnerEnd::End(std::move(ends.owner), nullptr);
}

TEST_F(TcpLanesTest, ARequestMustFollowTheNamesOfItsPieces) {
  Start({.stall_ns = 100 * kMillisecond});
  const UniqueFd fd = ConnectWithLane();
  ASSERT_TRUE(SendAll(fd, FrameOf(kPieces, wire::Encode(wire::LanePieces()))));
  EXPECT_TRUE(Closes(fd));
}

// They count as no call, so a limited caller could send them without end.
TEST_F(TcpLanesTest, PiecesAreNamedOnceForARequest) {
  Start({.stall_ns = 600 * kSecond});
  const UniqueFd fd = ConnectWithLane();
  const std::string pieces = FrameOf(kPieces, wire::Encode(wire::LanePieces()));
  ASSERT_TRUE(SendAll(fd, pieces + pieces));
  EXPECT_TRUE(Closes(fd));
}

TEST_F(TcpLanesTest, ManyExchangesAtOnceEachHaveAConnection) {
  Start();
  ASSERT_TRUE(AwaitLane());
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  constexpr std::size_t kPart = kBytes / 4;
  for (std::size_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      const auto part = std::span(buffer_).subspan(thread * kPart, kPart);
      for (int round = 0; round < 20; ++round) {
        Exchange exchange = GetOf(part);
        exchange.on_bytes = nullptr;
        if (Run(std::move(exchange)) &&
            std::equal(part.begin(), part.end(), service_.value.begin())) {
          ++good;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 80);
}

}  // namespace
}  // namespace kvcove::transport::tcp
