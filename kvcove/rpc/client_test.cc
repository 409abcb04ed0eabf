// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/client.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/interrupt_fixture.h"
#include "kvcove/base/posix.h"
#include "kvcove/rpc/server.h"

namespace kvcove::rpc {
namespace {

// A daemon that is frozen: it listens, accepts nobody, and the queue of its socket is full.
class FrozenDaemon {
 public:
  FrozenDaemon() : path_("/tmp/kvcove-client-test-" + std::to_string(getpid()) + ".sock") {
    unlink(path_.c_str());
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.data(), path_.size());
    const auto* at = reinterpret_cast<const sockaddr*>(&address);
    listener_ = UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(bind(listener_.get(), at, sizeof(address)), 0);
    EXPECT_EQ(listen(listener_.get(), 1), 0);
    while (true) {
      UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (connect(fd.get(), at, sizeof(address)) != 0) break;
      waiting_.push_back(std::move(fd));
    }
    EXPECT_EQ(errno, EAGAIN);
  }
  ~FrozenDaemon() { unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
  UniqueFd listener_;
  std::vector<UniqueFd> waiting_;
};

TEST(ClientTest, ConnectingToAFrozenDaemonEndsAtTheDeadlineAlsoWhenItsQueueIsFull) {
  const FrozenDaemon daemon;
  std::int64_t least_ns = INT64_MAX;  // a busy machine may make any one of them late
  for (int i = 0; i < 10 && least_ns > 500 * kMillisecond; ++i) {
    const std::int64_t began_ns = SystemClock::Instance().NowNs();
    const auto client = Client::Connect(daemon.path(), began_ns + 20 * kMillisecond);
    least_ns = std::min(least_ns, SystemClock::Instance().NowNs() - began_ns);
    ASSERT_FALSE(client);
    EXPECT_EQ(client.error().code, Code::kTimeout) << client.error().ToString();
  }
  EXPECT_LE(least_ns, 500 * kMillisecond);
}

TEST(ClientTest, AnInterruptedCallDoesNotGoOnToConnectToAFrozenDaemon) {
  const FrozenDaemon daemon;
  AskedInterrupt interrupt(/*ends_at=*/1);
  const std::int64_t began_ns = SystemClock::Instance().NowNs();
  const auto client = Client::Connect(daemon.path(), began_ns + 600 * kSecond);
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().code, Code::kTimeout) << client.error().ToString();
  EXPECT_LT(SystemClock::Instance().NowNs() - began_ns, 300 * kSecond);
}

TEST(ClientTest, AnInterruptedCallDoesNotWaitForItsReply) {
  const std::string path = fmt::format("/tmp/kvcove-client-silent-{}.sock", getpid());
  unlink(path.c_str());
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  const UniqueFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(listener.get(), 1), 0);
  const std::int64_t began_ns = SystemClock::Instance().NowNs();
  auto client = Client::Connect(path, began_ns + 600 * kSecond);
  unlink(path.c_str());
  ASSERT_TRUE(client) << client.error().ToString();
  // The first look lets the call go on.
  AskedInterrupt interrupt(/*ends_at=*/2);
  const auto called = client->Call(wire::Method::kHello, {}, began_ns + 600 * kSecond);
  ASSERT_FALSE(called);
  EXPECT_EQ(called.error().code, Code::kTimeout) << called.error().ToString();
  EXPECT_FALSE(client->usable()) << "its reply may still come, and is nobody's";
  EXPECT_EQ(interrupt.asked(), 2);
  EXPECT_LT(SystemClock::Instance().NowNs() - began_ns, 300 * kSecond);
  EXPECT_EQ(client->Call(wire::Method::kHello, {}, began_ns + 600 * kSecond).error().code,
            Code::kUnavailable);
}

// As one that has no room for more connections. Whether sending or receiving notices it first, the
// message says what may be wrong.
TEST(ClientTest, APeerThatClosesAtOnceIsToldFromOneThatAnsweredBefore) {
  for (int i = 0; i < 20; ++i) {
    const std::string path = fmt::format("/tmp/kvcove-client-closes-{}.sock", getpid());
    unlink(path.c_str());
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    const UniqueFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
              0);
    ASSERT_EQ(listen(listener.get(), 1), 0);
    const std::int64_t soon = SystemClock::Instance().NowNs() + 60 * kSecond;
    auto client = Client::Connect(path, soon);
    ASSERT_TRUE(client) << client.error().ToString();
    std::thread closes([&] { UniqueFd(accept(listener.get(), nullptr, nullptr)).Reset(); });
    if (i % 2 == 0) closes.join();
    const auto called = client->Call(wire::Method::kHello, {}, soon);
    if (closes.joinable()) closes.join();
    unlink(path.c_str());
    ASSERT_FALSE(called);
    EXPECT_EQ(called.error().code, Code::kUnavailable);
    EXPECT_NE(called.error().detail.find("before it answered"), std::string::npos)
        << called.error().ToString();
    EXPECT_NE(called.error().detail.find("ulimit -n"), std::string::npos);
  }
}

// Lets everybody in and does nothing for them.
class Refusing final : public Handler {
 public:
  void OnOpen(ConnectionId, const Peer&) override {}
  void OnClose(ConnectionId) override {}
  void OnProcessGone(std::uint64_t) override {}
  bool Admitted(ConnectionId) const override { return true; }
  void OnRequest(ConnectionId, wire::Method method, std::span<const std::byte>,
                 std::int64_t /*deadline_ns*/, Responder respond) override {
    if (method == wire::Method::kHello) return respond({});
    respond(ErrorReply({Code::kUnavailable, "the control store refuses"}));
  }
};

TEST(ClientTest, AnErrorThatThePeerSendsIsToldFromALostConnection) {
  const auto soon = [] { return SystemClock::Instance().NowNs() + 60 * kSecond; };
  Refusing handler;
  ServerOptions options;
  options.listen.host = "127.0.0.1";
  auto server = *Server::Open(options, handler);
  EXPECT_TRUE(server->Start());
  auto client = *Client::Connect(server->address(), {}, soon());
  const auto refused = client.Call(wire::Method::kRegister, {}, soon());
  ASSERT_EQ(refused.error().code, Code::kUnavailable);
  EXPECT_TRUE(refused.error().answered);
  server->Stop();
  const auto lost = client.Call(wire::Method::kRegister, {}, soon());
  ASSERT_EQ(lost.error().code, Code::kUnavailable);
  EXPECT_FALSE(lost.error().answered);
}

}  // namespace
}  // namespace kvcove::rpc
