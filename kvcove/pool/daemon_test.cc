// SPDX-License-Identifier: Apache-2.0
#include "kvcove/pool/daemon.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "kvcove/base/clock.h"
#include "kvcove/base/size.h"
#include "kvcove/rpc/client.h"
#include "kvcove/wire/host_wire.h"

namespace kvcove::pool {
namespace {

class DaemonTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::temp_directory_path() / "kvcove-daemon-XXXXXX";
    ASSERT_NE(mkdtemp(directory_.data()), nullptr);
    DaemonOptions options;
    options.host.owner.memory_bytes = 4 * kMiB;
    options.host.owner.populate = false;
    options.socket_path = path();
    auto daemon = Daemon::Open(options, SystemClock::Instance());
    ASSERT_TRUE(daemon) << daemon.error().ToString();
    daemon_ = std::move(*daemon);
  }
  void TearDown() override {
    daemon_.reset();
    std::filesystem::remove_all(directory_);
  }
  std::string path() const { return directory_ + "/socket"; }
  static std::int64_t Soon() { return SystemClock::Instance().NowNs() + 5 * kSecond; }
  static std::span<const std::byte> Bytes(const std::string& text) {
    return std::as_bytes(std::span(text));
  }
  // A connection that has said hello, with its session.
  rpc::Client Hello(wire::Welcome& welcome) {
    auto client = *rpc::Client::Connect(path(), Soon());
    std::vector<UniqueFd> fds;
    const auto reply =
        client.Call(wire::Method::kHello, Bytes(wire::EncodeHello("test")), Soon(), &fds);
    EXPECT_TRUE(reply) << reply.error().ToString();
    welcome = *wire::DecodeWelcome(Bytes(*reply));
    return client;
  }
  std::size_t sessions() { return daemon_->host().owner().Stat().sessions.size(); }
  bool SessionsBecome(std::size_t count) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    while (sessions() != count && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return sessions() == count;
  }

  std::string directory_;
  std::unique_ptr<Daemon> daemon_;
};

// A daemon that was frozen finds the hellos of all tries to connect since, whose callers have given
// up. Their process lives, so nothing else would end these sessions.
TEST_F(DaemonTest, ASessionWhoseHelloNobodyWaitedForEndsWithItsConnection) {
  for (int i = 0; i < 10; ++i) {
    wire::Welcome welcome;
    const rpc::Client client = Hello(welcome);
  }
  EXPECT_TRUE(SessionsBecome(0)) << sessions() << " sessions are left";
}

// Its process may still read and write what it has mapped.
TEST_F(DaemonTest, ASessionThatWasUsedOutlivesItsConnections) {
  wire::Welcome welcome;
  {
    const rpc::Client first = Hello(welcome);
    auto joined = *rpc::Client::Connect(path(), Soon());
    ASSERT_TRUE(joined.Call(wire::Method::kJoin, Bytes(wire::EncodeJoin(welcome)), Soon()));
  }
  auto late = *rpc::Client::Connect(path(), Soon());
  EXPECT_TRUE(late.Call(wire::Method::kJoin, Bytes(wire::EncodeJoin(welcome)), Soon()));
  EXPECT_EQ(sessions(), 1U);
}

}  // namespace
}  // namespace kvcove::pool
