// SPDX-License-Identifier: Apache-2.0
// What a server does with connections that are not polite: frames sent ahead, many at once, a
// hang-up in the middle of a request, and more connections than it may have.
#include "kvcove/rpc/server.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <set>
#include <thread>

#include "kvcove/base/clock.h"
#include "kvcove/base/log.h"
#include "kvcove/base/mutex.h"
#include "kvcove/base/random.h"
#include "kvcove/rpc/busy.h"
#include "kvcove/rpc/client.h"

namespace kvcove::rpc {
namespace {

using std::chrono::milliseconds;

constexpr auto kMoveToOther = wire::Method::kOwnerHello;  // answered, then served by loop 1
constexpr auto kEcho = wire::Method::kLookup;
constexpr auto kNeverAnswered = wire::Method::kWatch;
constexpr auto kPutOff = wire::Method::kReset;  // answered after the milliseconds that it names
constexpr auto kAnswerAnother = wire::Method::kRenew;  // ends the oldest kNeverAnswered
constexpr auto kLargeAnswer = wire::Method::kStat;     // an answer of kLargeBytes
constexpr std::size_t kLargeBytes = 4'000'000;

class TestHandler final : public Handler {
 public:
  // Each connection is admitted with its first request; otherwise at once.
  void AskForHello() { ask_for_hello_ = true; }
  void OnOpen(ConnectionId, const Peer&) override {
    const MutexLock lock(mutex_);
    ++opened_;
  }
  void OnClose(ConnectionId) override {
    const MutexLock lock(mutex_);
    ++closed_;
  }
  void OnRequest(ConnectionId id, wire::Method method, std::span<const std::byte> body,
                 std::int64_t /*deadline_ns*/, Responder respond) override {
    Responder another;
    {
      const MutexLock lock(mutex_);
      ++requests_;
      admitted_.insert(id);
      const auto here = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
      stack_low_ = std::min(stack_low_, here);
      stack_high_ = std::max(stack_high_, here);
      if (method == kNeverAnswered) {
        kept_.push_back(std::move(respond));
        return;
      }
      if (method == kAnswerAnother && !kept_.empty()) {
        another = std::move(kept_.front());
        kept_.erase(kept_.begin());
      }
    }
    if (another) another({.body = "late"});
    Reply reply{.body = std::string(reinterpret_cast<const char*>(body.data()), body.size())};
    if (method == kLargeAnswer) reply.body.assign(kLargeBytes, 'x');
    if (method == kMoveToOther) reply.move_to_loop = 1;
    if (method == kPutOff) reply.delay_ns = std::stoll(reply.body) * kMillisecond;
    respond(std::move(reply));
  }
  void OnProcessGone(std::uint64_t) override {}
  bool Admitted(ConnectionId id) const override {
    const MutexLock lock(mutex_);
    return !ask_for_hello_ || admitted_.contains(id);
  }

  int opened() const { return Get(opened_); }
  int closed() const { return Get(closed_); }
  int requests() const { return Get(requests_); }
  std::uintptr_t stack_bytes() const {
    const MutexLock lock(mutex_);
    return stack_high_ - stack_low_;
  }

 private:
  int Get(const int& value) const {
    const MutexLock lock(mutex_);
    return value;
  }
  std::atomic<bool> ask_for_hello_{false};
  mutable Mutex mutex_;
  std::set<ConnectionId> admitted_;
  int opened_ = 0;
  int closed_ = 0;
  int requests_ = 0;
  std::uintptr_t stack_low_ = ~std::uintptr_t{0};
  std::uintptr_t stack_high_ = 0;
  std::vector<Responder> kept_;
};

std::string Frame(wire::Method method, const std::string& body, std::uint64_t call = 1) {
  const auto head = wire::EncodeFrameHeader({.method = static_cast<std::uint16_t>(method),
                                             .body_bytes = static_cast<std::uint32_t>(body.size()),
                                             .call = call});
  return std::string(reinterpret_cast<const char*>(head.data()), head.size()) + body;
}

std::string RandomBytes(Random& random, std::size_t size) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random.Next());
  return bytes;
}

class ServerTest : public testing::Test {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kError);
    Start(64);
  }
  void Start(std::uint32_t max_connections) {
    ServerOptions options;
    options.listen.host = "127.0.0.1";
    options.loops = 2;
    options.max_connections = max_connections;
    auto server = Server::Open(options, handler_);
    ASSERT_TRUE(server) << server.error().ToString();
    server_ = std::move(*server);
    EXPECT_TRUE(server_->Start());
  }
  UniqueFd Connect() { return Connect(server_->address()); }
  static UniqueFd Connect(const Address& address) {
    auto fd = ConnectTcp(address, SystemClock::Instance().NowNs() + 60 * kSecond);
    EXPECT_TRUE(fd) << fd.error().ToString();
    return std::move(*fd);
  }
  static void Send(const UniqueFd& fd, std::string_view bytes) {
    while (!bytes.empty()) {
      pollfd poller{.fd = fd.get(), .events = POLLOUT, .revents = 0};
      ASSERT_GT(poll(&poller, 1, 60'000), 0);
      const ssize_t sent = send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      ASSERT_GT(sent, 0) << std::strerror(errno);
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
  }
  // The body of the next answer; "closed" when the server closed.
  static std::string Receive(const UniqueFd& fd) {
    std::string head(wire::kFrameHeaderBytes, '\0');
    if (!Fill(fd, head)) return "closed";
    const auto header = wire::DecodeFrameHeader(
        std::span<const std::byte, wire::kFrameHeaderBytes>(
            reinterpret_cast<const std::byte*>(head.data()), wire::kFrameHeaderBytes),
        wire::kMaxFrameBytes);
    EXPECT_TRUE(header);
    EXPECT_EQ(header->code, Code::kOk);
    std::string body(header ? header->body_bytes : 0, '\0');
    return Fill(fd, body) ? body : "closed";
  }
  static bool Fill(const UniqueFd& fd, std::string& bytes) {
    std::size_t filled = 0;
    while (filled < bytes.size()) {
      pollfd poller{.fd = fd.get(), .events = POLLIN, .revents = 0};
      if (poll(&poller, 1, 60'000) <= 0) {
        ADD_FAILURE() << "no answer";
        return false;
      }
      const ssize_t count = recv(fd.get(), bytes.data() + filled, bytes.size() - filled, 0);
      if (count <= 0) return false;
      filled += static_cast<std::size_t>(count);
    }
    return true;
  }
  // Waits, for a minute at most, until it is true.
  template <typename Condition>
  static bool Eventually(Condition condition) {
    for (int i = 0; i < 30'000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(milliseconds(2));
    }
    return false;
  }

  TestHandler handler_;
  std::unique_ptr<Server> server_;
};

TEST_F(ServerTest, ALargeFrameBehindTheCallThatMovesTheConnectionArrivesWhole) {
  Random random(1);
  for (const std::size_t size : {10UL, 60'000UL, 65'536UL, 200'000UL, 1'000'000UL, 4'000'000UL}) {
    const UniqueFd fd = Connect();
    const std::string first = RandomBytes(random, 1000);
    const std::string large = RandomBytes(random, size);
    // The server reads as far as its buffer goes: a large frame before makes that wide.
    std::thread sender([&] {
      Send(fd, Frame(kEcho, large) + Frame(kMoveToOther, first) + Frame(kEcho, large) +
                   Frame(kEcho, first));
    });
    EXPECT_TRUE(Receive(fd) == large);
    EXPECT_TRUE(Receive(fd) == first);
    EXPECT_TRUE(Receive(fd) == large);
    EXPECT_TRUE(Receive(fd) == first);
    sender.join();
  }
}

TEST_F(ServerTest, ConnectionsThatMoveAndPipelineAtOnceGetTheirOwnAnswers) {
  std::vector<std::thread> clients;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    clients.emplace_back([this, seed] {
      Random random(seed);
      for (int round = 0; round < 20; ++round) {
        const UniqueFd fd = Connect();
        std::vector<std::string> bodies;
        std::string bytes;
        for (std::uint64_t i = 0; i < 1 + random.Below(8); ++i) {
          bodies.push_back(RandomBytes(random, random.Below(random.OneIn(3) ? 150'000 : 500)));
          bytes += Frame(random.OneIn(3) ? kMoveToOther : kEcho, bodies.back());
        }
        std::thread sender([&] { Send(fd, bytes); });
        for (const std::string& body : bodies) EXPECT_TRUE(Receive(fd) == body);
        sender.join();
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(Eventually([&] { return handler_.closed() == handler_.opened(); }));
}

TEST_F(ServerTest, ManyFramesAtOnceTakeNoMoreStackThanOne) {
  const UniqueFd fd = Connect();
  constexpr int kFrames = 20'000;
  std::string bytes;
  for (int i = 0; i < kFrames; ++i) bytes += Frame(kEcho, "");
  // A first frame of megabytes makes the server's buffer wide enough for all of them.
  const std::string large(3'000'000, 'x');
  std::thread sender([&] { Send(fd, Frame(kEcho, large) + bytes); });
  EXPECT_TRUE(Receive(fd) == large);
  for (int i = 0; i < kFrames; ++i) EXPECT_EQ(Receive(fd), "") << i;
  sender.join();
  EXPECT_EQ(handler_.requests(), kFrames + 1);
  EXPECT_LT(handler_.stack_bytes(), 64U << 10);
}

TEST_F(ServerTest, AClientThatHangsUpDuringItsRequestIsForgotten) {
  for (const std::string& sent_ahead :
       {std::string(), Frame(kEcho, "ahead"), Frame(kEcho, std::string(30'000, 'x'))}) {
    const int before = handler_.closed();
    UniqueFd fd = Connect();
    const int requests = handler_.requests();
    Send(fd, Frame(kNeverAnswered, "") + sent_ahead);
    ASSERT_TRUE(Eventually([&] { return handler_.requests() == requests + 1; }));
    fd.Reset();
    EXPECT_TRUE(Eventually([&] { return handler_.closed() == before + 1; }));
    EXPECT_TRUE(Eventually([&] { return server_->connections().open() == 0; }));
  }
}

TEST_F(ServerTest, AnAnswerFromAnotherConnectionsRequestComesAndTheConnectionGoesOn) {
  const UniqueFd waiting = Connect();
  Send(waiting, Frame(kNeverAnswered, "") + Frame(kEcho, "behind"));
  ASSERT_TRUE(Eventually([&] { return handler_.requests() == 1; }));
  const UniqueFd other = Connect();
  Send(other, Frame(kAnswerAnother, "own") + Frame(kEcho, "next"));
  EXPECT_EQ(Receive(other), "own");
  EXPECT_EQ(Receive(other), "next");
  EXPECT_EQ(Receive(waiting), "late");
  EXPECT_EQ(Receive(waiting), "behind");
}

TEST_F(ServerTest, ConnectionsBeyondTheBoundAreClosedAndCounted) {
  server_.reset();
  Start(16);
  std::vector<UniqueFd> fds;
  for (int i = 0; i < 16; ++i) {
    fds.push_back(Connect());
    // Half of them move: the bound is that of all loops together.
    Send(fds.back(), Frame(i % 2 == 0 ? kMoveToOther : kEcho, "in"));
    ASSERT_EQ(Receive(fds.back()), "in");
  }
  EXPECT_EQ(server_->connections().open(), 16U);
  EXPECT_EQ(server_->connections().refused(), 0U);
  const UniqueFd beyond = Connect();
  (void)send(beyond.get(), "x", 1, MSG_NOSIGNAL);
  EXPECT_EQ(Receive(beyond), "closed");
  EXPECT_EQ(server_->connections().refused(), 1U);
  fds.pop_back();
  ASSERT_TRUE(Eventually([&] { return server_->connections().open() == 15; }));
  const UniqueFd again = Connect();
  Send(again, Frame(kEcho, "in again"));
  EXPECT_EQ(Receive(again), "in again");
}

// ---- a Unix socket's name

class SocketNameTest : public ServerTest {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kOff);
    directory_ = std::filesystem::temp_directory_path() / "kvcove-name-XXXXXX";
    ASSERT_NE(mkdtemp(directory_.data()), nullptr);
    path_ = directory_ + "/below/socket";
  }
  void TearDown() override {
    SetLogLevel(LogLevel::kError);
    server_.reset();
    std::filesystem::remove_all(directory_);
  }
  std::unique_ptr<Server> Serve() {
    ServerOptions options;
    options.socket_path = path_;
    auto server = Server::Open(options, handler_);
    EXPECT_TRUE(server) << server.error().ToString();
    if (!server) return nullptr;
    EXPECT_TRUE((*server)->Start());
    return std::move(*server);
  }
  bool Answers() const {
    return Client::Connect(path_, SystemClock::Instance().NowNs() + 60 * kSecond).has_value();
  }
  std::string directory_;
  std::string path_;
};

TEST_F(SocketNameTest, IsBoundAgainAfterItOrItsDirectoryWasRemoved) {
  server_ = Serve();
  ASSERT_TRUE(Answers());
  for (const std::string& removed : {path_, directory_ + "/below"}) {
    std::filesystem::remove_all(removed);
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!Answers() && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_TRUE(Answers()) << removed;
  }
  server_.reset();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(SocketNameTest, AnotherServersIsLeftAlone) {
  server_ = Serve();
  std::filesystem::remove(path_);
  const std::unique_ptr<Server> second = Serve();
  server_.reset();
  EXPECT_TRUE(Answers());
}

// ---- limits

class LimitedServerTest : public ServerTest {
 protected:
  void SetUp() override { SetLogLevel(LogLevel::kError); }
  void StartLimited(const CallLimitsOptions& limits) {
    admission_ = std::make_shared<CallLimits>(limits);
    ServerOptions options;
    options.listen.host = "127.0.0.1";
    options.loops = 2;
    options.admission = admission_;
    server_ = *Server::Open(options, handler_);
    EXPECT_TRUE(server_->Start());
  }
  // A frame of the answer, whatever its code.
  static std::pair<Code, std::string> ReceiveAny(const UniqueFd& fd) {
    std::string head(wire::kFrameHeaderBytes, '\0');
    if (!Fill(fd, head)) return {Code::kUnavailable, "closed"};
    const auto header = wire::DecodeFrameHeader(
        std::span<const std::byte, wire::kFrameHeaderBytes>(
            reinterpret_cast<const std::byte*>(head.data()), wire::kFrameHeaderBytes),
        wire::kMaxFrameBytes);
    std::string body(header ? header->body_bytes : 0, '\0');
    EXPECT_TRUE(Fill(fd, body));
    return {header ? header->code : Code::kCorrupt, body};
  }
  std::uint64_t Refused(Refusal refusal) const {
    return admission_->Count(0).refused[static_cast<std::size_t>(refusal)];
  }

  std::shared_ptr<CallLimits> admission_;
};

TEST_F(LimitedServerTest, ACallBeyondTheLimitIsAnsweredBusyAndNeverReachesTheHandler) {
  // The next one half a second later: a machine that stands still for so long would let it in.
  StartLimited({.connection = {.calls_per_second = 2}});
  const UniqueFd fd = Connect();
  const std::string large(500'000, 'x');
  std::thread sender([&] {
    for (int i = 0; i < 2; ++i) Send(fd, Frame(kEcho, "ok"));
    Send(fd, Frame(kEcho, large));  // refused before its body has come
    Send(fd, Frame(kEcho, "behind"));
  });
  for (int i = 0; i < 2; ++i) EXPECT_EQ(ReceiveAny(fd).first, Code::kOk);
  const auto [code, detail] = ReceiveAny(fd);
  EXPECT_EQ(code, Code::kLimit);
  EXPECT_TRUE(BusyIn({.code = code, .detail = detail})) << detail;
  EXPECT_EQ(ReceiveAny(fd), std::pair(Code::kOk, std::string("behind")))
      << "the connection lives, and what is behind is served when there is room again";
  sender.join();
  EXPECT_EQ(handler_.requests(), 3);
  EXPECT_EQ(Refused(Refusal::kConnectionCalls), 1U);
}

// A client that does not wait as it was told costs one answer each time that it was told, not one a
// frame.
TEST_F(LimitedServerTest, AFloodIsHeldBackInItsOwnSocket) {
  const std::int64_t began_ns = SystemClock::Instance().NowNs();
  StartLimited({.connection = {.calls_per_second = 10}});
  const UniqueFd fd = Connect();
  std::string flood;
  for (int i = 0; i < 2000; ++i) flood += Frame(kEcho, "x");
  (void)!send(fd.get(), flood.data(), flood.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  const UniqueFd other = Connect();
  for (int i = 0; i < 5; ++i) {
    Send(other, Frame(kEcho, "fine"));
    EXPECT_EQ(Receive(other), "fine");
  }
  EXPECT_TRUE(Eventually([&] {
    return SystemClock::Instance().NowNs() > began_ns + kSecond &&
           Refused(Refusal::kConnectionCalls) > 0;
  }));
  const std::uint64_t refused = Refused(Refusal::kConnectionCalls);
  const int requests = handler_.requests();
  const std::int64_t took_ms = (SystemClock::Instance().NowNs() - began_ns) / kMillisecond;
  EXPECT_LT(refused, 100 + static_cast<std::uint64_t>(took_ms) / 10) << "at most one each 10 ms";
  EXPECT_LT(requests, 30 + took_ms / 100) << "10 at once, 10 a second, and the others' 5";
}

TEST_F(LimitedServerTest, AnAnswerThatNobodyReadsIsInFlight) {
  StartLimited({.connection = {}});
  UniqueFd fd = Connect();
  // More than the kernel's buffers take, however it sizes them: one answer alone may fit.
  std::string requests;
  for (int i = 0; i < 64; ++i) requests += Frame(kLargeAnswer, "");
  Send(fd, requests);
  EXPECT_TRUE(Eventually([&] { return admission_->Count(0).bytes > kLargeBytes; }));
  EXPECT_LT(handler_.requests(), 64);
  fd.Reset();
  EXPECT_TRUE(Eventually([&] { return admission_->Count(0).bytes == 0; }));
}

TEST_F(LimitedServerTest, BytesComeBackWithTheAnswerAndWithTheConnection) {
  StartLimited({.connection = {}});
  UniqueFd fd = Connect();
  Send(fd, Frame(kNeverAnswered, std::string(100'000, 'x')));
  EXPECT_TRUE(Eventually([&] { return admission_->Count(0).bytes > 100'000; }));
  const UniqueFd other = Connect();
  Send(other, Frame(kAnswerAnother, ""));
  EXPECT_EQ(Receive(fd), "late");
  EXPECT_TRUE(Eventually([&] { return admission_->Count(0).bytes == 0; }));
  Send(fd, Frame(kNeverAnswered, std::string(100'000, 'x')));
  EXPECT_TRUE(Eventually([&] { return admission_->Count(0).bytes > 100'000; }));
  fd.Reset();
  EXPECT_TRUE(Eventually([&] { return admission_->Count(0).bytes == 0; }));
}

TEST_F(LimitedServerTest, AConnectionTakesItsAccountToAnotherLoop) {
  StartLimited({.connection = {.calls_per_second = 3}});
  const UniqueFd fd = Connect();
  Send(fd, Frame(kMoveToOther, "moved") + Frame(kEcho, "a") + Frame(kEcho, "b"));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ReceiveAny(fd).first, Code::kOk);
  // It has three more each second; with a new account it would have three more at once.
  const std::int64_t began_ns = SystemClock::Instance().NowNs();
  int more = 0;
  for (Code code = Code::kOk; code == Code::kOk; more += code == Code::kOk ? 1 : 0) {
    Send(fd, Frame(kEcho, "c"));
    code = ReceiveAny(fd).first;
    ASSERT_TRUE(code == Code::kOk || code == Code::kLimit) << CodeName(code);
  }
  EXPECT_LE(more, 2 + (SystemClock::Instance().NowNs() - began_ns) * 3 / kSecond);
}

// As a successor that gives up before it serves (docs/upgrade.md).
TEST_F(ServerTest, AnAdoptedServerThatNeverStartedLeavesTheSocketWhereItIs) {
  std::string directory = "/tmp/kvcove-server-XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  ServerOptions options;
  options.socket_path = directory + "/socket";
  server_ = *Server::Open(options, handler_);
  EXPECT_TRUE(server_->Start());
  server_->Pause(SystemClock::Instance().NowNs());
  TestHandler other;
  ASSERT_TRUE(Server::Adopt(options, other, server_->HandOver()));
  server_->Resume();
  auto client =
      Client::Connect(options.socket_path, SystemClock::Instance().NowNs() + 60 * kSecond);
  ASSERT_TRUE(client) << client.error().ToString();
  const UniqueFd fd = client->TakeFd();
  Send(fd, Frame(kEcho, "still here"));
  EXPECT_EQ(Receive(fd), "still here");
  server_.reset();
  EXPECT_FALSE(std::filesystem::exists(options.socket_path));
  std::filesystem::remove_all(directory);
}

TEST_F(ServerTest, AnAnswerThatIsPutOffKeepsNobodyElseWaiting) {
  const Clock& clock = SystemClock::Instance();
  const UniqueFd late = Connect();
  const UniqueFd never = Connect();
  const UniqueFd other = Connect();
  const std::int64_t asked = clock.NowNs();
  Send(late, Frame(kPutOff, "50") + Frame(kEcho, "behind it"));
  Send(never, Frame(kPutOff, "60000"));
  Send(other, Frame(kEcho, "served"));
  EXPECT_EQ(Receive(other), "served");
  EXPECT_EQ(Receive(late), "50");
  EXPECT_GE(clock.NowNs() - asked, 50 * kMillisecond);
  EXPECT_EQ(Receive(late), "behind it");
  // Neither does a hand-over wait for it.
  const std::int64_t paused = clock.NowNs();
  server_->Pause(paused + 20 * kSecond);
  EXPECT_LT(clock.NowNs() - paused, 10 * kSecond);
  EXPECT_EQ(server_->HandOver().connections.size(), 2U);
  server_->Resume();
  Send(other, Frame(kEcho, "still served"));
  EXPECT_EQ(Receive(other), "still served");
}

TEST_F(ServerTest, ASuccessorServesWhatWasSentOverTheSameTcpConnections) {
  const UniqueFd stays = Connect();
  const UniqueFd moved = Connect();
  Send(moved, Frame(kMoveToOther, "to loop 1"));
  ASSERT_EQ(Receive(moved), "to loop 1");
  Send(moved, Frame(kEcho, "there"));
  ASSERT_EQ(Receive(moved), "there");
  ASSERT_TRUE(Eventually([&] { return handler_.opened() == 2; }));
  server_->Pause(SystemClock::Instance().NowNs() + 60 * kSecond);
  Send(stays, Frame(kMoveToOther, "sent"));
  Send(moved, Frame(kEcho, "sent meanwhile"));
  HandedServer handed = server_->HandOver();
  ASSERT_EQ(handed.connections.size(), 2U) << "of both loops";
  handed.last = 1000;
  TestHandler next;
  ServerOptions options;
  options.listen = server_->address();
  options.loops = 2;
  auto successor = *Server::Adopt(options, next, std::move(handed));
  EXPECT_TRUE(successor->Start());
  EXPECT_EQ(Receive(stays), "sent");
  EXPECT_EQ(Receive(moved), "sent meanwhile");
  const UniqueFd later = Connect();
  Send(later, Frame(kEcho, "new"));
  EXPECT_EQ(Receive(later), "new");
  EXPECT_EQ(next.opened(), 1) << "only of the new one";
  EXPECT_EQ(handler_.closed(), 0);
  successor.reset();
}

TEST_F(ServerTest, TheHandlerLearnsOfAConnectionForWhichASuccessorHasNoRoom) {
  constexpr int kRoom = 16;
  std::vector<UniqueFd> clients(kRoom + 1);
  for (UniqueFd& client : clients) client = Connect();
  ASSERT_TRUE(Eventually([&] { return handler_.opened() == kRoom + 1; }));
  server_->Pause(SystemClock::Instance().NowNs() + 60 * kSecond);
  TestHandler next;
  ServerOptions options;
  options.listen = server_->address();
  options.max_connections = kRoom;
  auto successor = *Server::Adopt(options, next, server_->HandOver());
  EXPECT_EQ(next.closed(), 0) << "not before it serves";
  server_.reset();
  EXPECT_TRUE(successor->Start());
  EXPECT_TRUE(Eventually([&] { return next.closed() == 1; }));
  int served = 0;
  for (const UniqueFd& client : clients) {
    Send(client, Frame(kEcho, "here"));
    if (Receive(client) == "here") ++served;
  }
  EXPECT_EQ(served, kRoom);
  EXPECT_EQ(next.closed(), 1);
  successor.reset();
}

TEST_F(ServerTest, NoFrameAndNoConnectionIsLostHoweverManyHandOversThereAre) {
  std::atomic<bool> stop{false};
  std::atomic<int> lost{0};
  const auto echo = [](const UniqueFd& fd, const std::string& body) {
    Send(fd, Frame(kEcho, body));
    return Receive(fd) == body;
  };
  const Address address = server_->address();  // of all that come
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&, i] {
      const UniqueFd lasting = Connect(address);
      for (int call = 0; !stop; ++call) {
        const std::string body = std::to_string(i) + "-" + std::to_string(call);
        if (!echo(lasting, body)) ++lost;
        if (call % 8 == 0 && !echo(Connect(address), body)) ++lost;
      }
    });
  }
  // The servers before it keep their descriptors, as a process does until it ends.
  for (int round = 0; round < 60 && lost == 0; ++round) {
    std::this_thread::sleep_for(milliseconds(3));
    server_->Pause(SystemClock::Instance().NowNs() + 60 * kSecond);
    HandedServer handed = server_->HandOver();
    ServerOptions options;
    options.listen = server_->address();
    options.loops = 2;
    auto successor = *Server::Adopt(options, handler_, std::move(handed));
    server_ = std::move(successor);  // the one before ends
    EXPECT_TRUE(server_->Start());
  }
  stop = true;
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(lost, 0);
}

TEST_F(ServerTest, AConnectionThatWasHandedOverBeforeItsHelloMustSayItInTime) {
  handler_.AskForHello();
  const UniqueFd silent = Connect();
  const UniqueFd polite = Connect();
  ASSERT_TRUE(Eventually([&] { return handler_.opened() == 2; }));
  server_->Pause(SystemClock::Instance().NowNs() + 60 * kSecond);
  TestHandler next;
  next.AskForHello();
  ServerOptions options;
  options.listen = server_->address();
  options.hello_deadline_ns = 2 * kSecond;
  auto successor = *Server::Adopt(options, next, server_->HandOver());
  EXPECT_EQ(successor->unproven().open(), 2U);
  // Both processes have the socket open until the one before ends.
  server_.reset();
  EXPECT_TRUE(successor->Start());
  Send(polite, Frame(kEcho, "hello"));
  EXPECT_EQ(Receive(polite), "hello");
  EXPECT_EQ(Receive(silent), "closed");
  Send(polite, Frame(kEcho, "still here"));
  EXPECT_EQ(Receive(polite), "still here");
  successor.reset();
}

TEST_F(ServerTest, SilentConnectionsGiveWayAndWhoeverSaysHelloStays) {
  std::string directory = "/tmp/kvcove-server-XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  handler_.AskForHello();
  for (const bool unix_socket : {false, true}) {
    ServerOptions options;
    options.max_connections = 64;  // 32 of them unproven
    if (unix_socket) {
      options.socket_path = directory + "/socket";
    } else {
      options.listen.host = "127.0.0.1";
    }
    auto server = Server::Open(options, handler_);
    ASSERT_TRUE(server) << server.error().ToString();
    server_ = std::move(*server);
    EXPECT_TRUE(server_->Start());
    const auto connect = [&] {
      if (!unix_socket) return Connect();
      auto client =
          Client::Connect(options.socket_path, SystemClock::Instance().NowNs() + 60 * kSecond);
      EXPECT_TRUE(client) << client.error().ToString();
      return client->TakeFd();
    };
    std::vector<UniqueFd> strangers;
    for (int i = 0; i < 100; ++i) strangers.push_back(connect());
    ASSERT_TRUE(Eventually([&] { return server_->unproven().displaced() == 68; }));
    EXPECT_TRUE(Eventually([&] { return server_->connections().open() == 32; }));
    EXPECT_EQ(Receive(strangers[0]), "closed");
    std::vector<UniqueFd> guests;
    for (int i = 0; i < 32; ++i) {
      guests.push_back(connect());
      Send(guests.back(), Frame(kEcho, "hello"));
      ASSERT_EQ(Receive(guests.back()), "hello");
      strangers.push_back(connect());
    }
    EXPECT_TRUE(Eventually([&] { return server_->unproven().open() == 32; }));
    for (const UniqueFd& guest : guests) {
      Send(guest, Frame(kEcho, "still here"));
      ASSERT_EQ(Receive(guest), "still here");
    }
    guests.clear();
    server_.reset();
  }
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace kvcove::rpc
