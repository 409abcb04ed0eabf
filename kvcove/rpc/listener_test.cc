// SPDX-License-Identifier: Apache-2.0
// The beginning of a connection: delivered, counted, displaced, late.
#include "kvcove/rpc/listener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <map>

#include "kvcove/base/clock.h"
#include "kvcove/base/log.h"
#include "kvcove/rpc/address.h"

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
    auto fd = ConnectTcp(address_, SystemClock::Instance().NowNs() + 5 * kSecond);
    EXPECT_TRUE(fd);
    return fd ? std::move(*fd) : UniqueFd();
  }
  // Runs the loop until it is so.
  template <typename Condition>
  bool Until(Condition condition) {
    const std::int64_t until_ns = SystemClock::Instance().NowNs() + 5 * kSecond;
    while (!condition() && SystemClock::Instance().NowNs() < until_ns) {
      loop_.run_one_for(std::chrono::milliseconds(20));
    }
    return condition();
  }
  static bool Closed(const UniqueFd& fd) {
    pollfd poller{.fd = fd.get(), .events = POLLIN, .revents = 0};
    char byte = 0;
    return poll(&poller, 1, 5000) > 0 && recv(fd.get(), &byte, 1, MSG_DONTWAIT) <= 0;
  }

  boost::asio::io_context loop_{1};
  Address address_;
  std::unique_ptr<Listener> listener_;
  std::map<std::uint64_t, Arrival> arrivals_;
  std::vector<std::uint64_t> dropped_;
};

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

}  // namespace
}  // namespace kvcove::rpc
