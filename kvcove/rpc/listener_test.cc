// SPDX-License-Identifier: Apache-2.0
// The beginning of a connection: delivered, counted, displaced, late.
#include "kvcove/rpc/listener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <cerrno>
#include <chrono>
#include <future>
#include <map>

#include "kvcove/base/clock.h"
#include "kvcove/base/log.h"
#include "kvcove/rpc/address.h"
#include "kvcove/rpc/inherited.h"
#include "kvcove/rpc/test_tls.h"

namespace kvcove::rpc {
namespace {

class ListenerTest : public testing::Test {
 protected:
  void Start(ListenerOptions options) {
    SetLogLevel(LogLevel::kError);
    Address address{.host = "127.0.0.1", .port = 0};
    auto socket = ListenTcp(address);
    ASSERT_TRUE(socket);
    address_ = address;
    options.name = "a test";
    listener_ = std::make_unique<Listener>(
        loop_, std::move(*socket), options,
        [this](Arrival arrival) { arrivals_[arrival.id] = std::move(arrival); },
        [this](std::uint64_t id) {
          dropped_.push_back(id);
          arrivals_.erase(id);
        });
    listener_->Start();
  }
  ~ListenerTest() override {
    if (listener_ != nullptr) listener_->Close();
    loop_.poll();
  }
  UniqueFd Connect() const {
    auto fd = ConnectTcp(address_, SystemClock::Instance().NowNs() + 60 * kSecond);
    EXPECT_TRUE(fd);
    return fd ? std::move(*fd) : UniqueFd();
  }
  // Runs the loop until it is so.
  template <typename Condition>
  bool Until(Condition condition) {
    const std::int64_t until_ns = SystemClock::Instance().NowNs() + 60 * kSecond;
    while (!condition() && SystemClock::Instance().NowNs() < until_ns) {
      loop_.run_one_for(std::chrono::milliseconds(20));
    }
    return condition();
  }
  static bool Closed(const UniqueFd& fd) {
    pollfd poller{.fd = fd.get(), .events = POLLIN, .revents = 0};
    char byte = 0;
    return poll(&poller, 1, 60'000) > 0 && recv(fd.get(), &byte, 1, MSG_DONTWAIT) <= 0;
  }

  boost::asio::io_context loop_{1};
  Address address_;
  std::unique_ptr<Listener> listener_;
  std::map<std::uint64_t, Arrival> arrivals_;
  std::vector<std::uint64_t> dropped_;
};

// Where "localhost" is ::1 first, nobody listens there.
TEST_F(ListenerTest, EachAddressOfANameIsTried) {
  Start({});
  const auto fd = ConnectTcp({.host = "localhost", .port = address_.port},
                             SystemClock::Instance().NowNs() + 60 * kSecond);
  EXPECT_TRUE(fd) << fd.error().ToString();
}

TEST_F(ListenerTest, AConnectionIsDeliveredAndCountedUntilItsHoldsAreGone) {
  Start({});
  const UniqueFd client = Connect();
  ASSERT_TRUE(Until([&] { return arrivals_.size() == 1; }));
  EXPECT_TRUE(arrivals_.begin()->second.fd.valid());
  EXPECT_EQ(listener_->connections().open(), 1U);
  EXPECT_EQ(listener_->unproven().open(), 1U);
  arrivals_.begin()->second.ticket.reset();  // it is let in
  EXPECT_EQ(listener_->unproven().open(), 0U);
  EXPECT_EQ(listener_->connections().open(), 1U);
  arrivals_.clear();
  EXPECT_EQ(listener_->connections().open(), 0U);
}

TEST_F(ListenerTest, OneThatIsLateWithItsHelloIsDroppedInTurn) {
  Start({.hello_ns = 30 * kMillisecond});
  const UniqueFd first = Connect();
  ASSERT_TRUE(Until([&] { return arrivals_.size() == 1; }));
  const UniqueFd second = Connect();
  ASSERT_TRUE(Until([&] { return dropped_.size() == 2; }));
  EXPECT_THAT(dropped_, testing::ElementsAre(1, 2));
  EXPECT_TRUE(Closed(first));
}

TEST_F(ListenerTest, BeyondTheBoundConnectionsAreClosedAndCounted) {
  Start({.max_connections = 16});
  std::vector<UniqueFd> clients;
  for (int i = 0; i < 16; ++i) {
    clients.push_back(Connect());
    ASSERT_TRUE(Until([&] { return listener_->connections().open() == clients.size(); }));
    // Let in, or half of them would have to give way.
    for (auto& [id, arrival] : arrivals_) arrival.ticket.reset();
  }
  const UniqueFd beyond = Connect();
  ASSERT_TRUE(Until([&] { return listener_->connections().refused() == 1; }));
  EXPECT_TRUE(Closed(beyond));
  EXPECT_EQ(arrivals_.size(), 16U);
}

TEST_F(ListenerTest, TheOldestNewcomerGivesWay) {
  Start({.max_connections = 16});  // 8 of them may be newcomers
  std::vector<UniqueFd> clients;
  for (std::size_t i = 0; i < 9; ++i) {
    clients.push_back(Connect());
    ASSERT_TRUE(Until([&] { return arrivals_.contains(i + 1); }));
  }
  EXPECT_THAT(dropped_, testing::ElementsAre(1));
  EXPECT_EQ(listener_->unproven().displaced(), 1U);
  EXPECT_TRUE(Closed(clients[0]));
}

// Each owner of a process copies them for an upgrade, and those before it have their copies open.
TEST(InheritedTest, AListenerIsCopiedOnceHoweverManyCopiesThereAre) {
  Address address{.host = "127.0.0.1", .port = 0};
  const auto listener = ListenTcp(address);
  ASSERT_TRUE(listener) << listener.error().ToString();
  const auto count = [&](const std::vector<UniqueFd>& copies) {
    return std::ranges::count_if(copies, [&](const UniqueFd& copy) {
      return BoundAddress(copy.get()).port == address.port;
    });
  };
  const std::vector<UniqueFd> first = CopyTcpListeners();
  const std::vector<UniqueFd> second = CopyTcpListeners();
  EXPECT_EQ(count(first), 1);
  EXPECT_EQ(count(second), 1);
}

TEST_F(ListenerTest, AfterCloseTheLoopHasNothingToDo) {
  Start({});
  const UniqueFd client = Connect();
  ASSERT_TRUE(Until([&] { return arrivals_.size() == 1; }));
  listener_->Close();
  loop_.restart();
  while (loop_.poll() > 0) {
  }
  EXPECT_TRUE(loop_.stopped());
  EXPECT_TRUE(dropped_.empty());
}

// Without a pause a listener with no free descriptor would keep its loop busy for ever: what waits
// to be accepted stays there.
TEST_F(ListenerTest, AFailedAcceptIsTriedAgainAfterAPause) {
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
  GTEST_SKIP() << "the sanitizers' checks of types open pipes, and report nonsense without them";
#endif
#endif
  Start({});
  const UniqueFd client = Connect();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int lowest_free = dup(client.get());
  ASSERT_GE(lowest_free, 0);
  close(lowest_free);
  const rlimit none{.rlim_cur = static_cast<rlim_t>(lowest_free), .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const std::int64_t began_ns = SystemClock::Instance().NowNs();
  std::uint64_t handlers = 0;
  while (listener_->connections().refused() < 3 &&
         SystemClock::Instance().NowNs() < began_ns + 60 * kSecond) {
    handlers += loop_.run_one_for(std::chrono::milliseconds(5));
  }
  const std::int64_t took_ns = SystemClock::Instance().NowNs() - began_ns;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(listener_->connections().refused(), 3U);
  EXPECT_GE(took_ns, 2 * 20 * kMillisecond) << "two pauses";
  EXPECT_LE(handlers, 10U);
  EXPECT_TRUE(arrivals_.empty());
  EXPECT_TRUE(Until([&] { return arrivals_.size() == 1; })) << "one is free again";
}

class TlsListenerTest : public ListenerTest {
 protected:
  void SetUp() override {
    auto tls = SelfSignedTls();
    ASSERT_TRUE(tls) << tls.error().ToString();
    tls_ = *tls;
  }
  // The client's end of a handshake, in a thread of its own.
  std::future<Result<UniqueFd>> Handshake(UniqueFd fd) {
    return std::async(std::launch::async, [this, fd = std::move(fd)]() mutable {
      return tls_->Connect(std::move(fd), "127.0.0.1",
                           SystemClock::Instance().NowNs() + 60 * kSecond);
    });
  }
  std::shared_ptr<Tls> tls_;
};

TEST_F(TlsListenerTest, AConnectionIsHandedOverInTheClearAfterItsHandshake) {
  Start({.tls = tls_});
  auto handshake = Handshake(Connect());
  ASSERT_TRUE(Until([&] { return arrivals_.size() == 1; }));
  const Arrival& arrival = arrivals_.begin()->second;
  EXPECT_TRUE(arrival.is_unix) << "the end of a pair of sockets: TLS is behind it";
  EXPECT_NE(arrival.ticket, nullptr) << "it has shown a certificate, and is not let in yet";
  EXPECT_EQ(listener_->connections().open(), 1U);
  const auto client = handshake.get();
  ASSERT_TRUE(client) << client.error().ToString();
  ASSERT_EQ(send(client->get(), "hello", 5, MSG_NOSIGNAL), 5);
  pollfd poller{.fd = arrival.fd.get(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(poll(&poller, 1, 60'000), 1);
  char bytes[8] = {};
  EXPECT_EQ(recv(arrival.fd.get(), bytes, sizeof(bytes), 0), 5);
  EXPECT_STREQ(bytes, "hello");
}

TEST_F(TlsListenerTest, WhatDoesNotSpeakTlsIsNeverDelivered) {
  Start({.tls = tls_});
  const UniqueFd garbage = Connect();
  const std::string frame = "kvcf and something that is no handshake";
  ASSERT_GT(send(garbage.get(), frame.data(), frame.size(), MSG_NOSIGNAL), 0);
  // It may answer with an alert before it closes.
  ASSERT_TRUE(Until([&] {
    char bytes[64];
    ssize_t got = 1;
    while (got > 0) got = recv(garbage.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    return got == 0 || errno != EAGAIN;
  }));
  EXPECT_TRUE(Until([&] { return listener_->connections().open() == 0; }));
  EXPECT_TRUE(arrivals_.empty());
}

TEST_F(TlsListenerTest, AHandshakeThatIsLateEndsAndIsNotCountedAnyMore) {
  Start({.hello_ns = 30 * kMillisecond, .tls = tls_});
  const UniqueFd silent = Connect();
  ASSERT_TRUE(Until([&] { return listener_->connections().open() == 1; }));
  EXPECT_TRUE(Until([&] { return listener_->connections().open() == 0; }));
  EXPECT_TRUE(Closed(silent));
  EXPECT_TRUE(arrivals_.empty());
}

TEST_F(TlsListenerTest, AHandshakeGivesWayToNewerOnes) {
  Start({.max_connections = 16, .tls = tls_});  // 8 of them may be newcomers
  std::vector<UniqueFd> clients;
  for (std::size_t i = 0; i < 9; ++i) {
    clients.push_back(Connect());
    ASSERT_TRUE(Until(
        [&] { return listener_->unproven().open() + listener_->unproven().displaced() == i + 1; }));
  }
  EXPECT_EQ(listener_->unproven().displaced(), 1U);
  EXPECT_TRUE(Closed(clients[0]));
}

// A handshake runs on TLS's own thread, and may end when listener and loop are gone.
TEST_F(TlsListenerTest, AHandshakeThatOutlivesTheListenerHandsNothingOver) {
  Start({.tls = tls_});
  UniqueFd client = Connect();
  ASSERT_TRUE(Until([&] { return listener_->connections().open() == 1; }));
  listener_->Close();
  loop_.poll();
  listener_.reset();
  const auto connected = Handshake(std::move(client)).get();
  EXPECT_TRUE(!connected || Closed(*connected));
  EXPECT_TRUE(arrivals_.empty());
}

}  // namespace
}  // namespace kvcove::rpc
