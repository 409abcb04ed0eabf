// SPDX-License-Identifier: Apache-2.0
#include "kvcove/server/daemon.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>

#include "kvcove/base/clock.h"
#include "kvcove/base/size.h"
#include "kvcove/rpc/client.h"
#include "kvcove/wire/host_wire.h"

namespace kvcove::server {
namespace {

class DaemonTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::temp_directory_path() / "kvcove-daemon-XXXXXX";
    ASSERT_NE(mkdtemp(directory_.data()), nullptr);
    Start(std::nullopt);
  }
  void Start(const std::optional<pool::ClusterMember>& cluster) {
    daemon_.reset();
    DaemonOptions options;
    options.host.owner.memory_bytes = 4 * kMiB;
    options.host.owner.populate = false;
    options.host.cluster = cluster;
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
  static std::int64_t Soon() { return SystemClock::Instance().NowNs() + 60 * kSecond; }
  static std::span<const std::byte> Bytes(const std::string& text) {
    return std::as_bytes(std::span(text));
  }
  // A connection that has said hello, with its session.
  rpc::Client Hello(wire::Welcome& welcome) {
    auto client = *rpc::Client::Connect(path(), Soon());
    std::vector<UniqueFd> fds;
    const auto reply =
        client.Call(wire::Method::kHello,
                    Bytes(wire::EncodeHello({.name = "test", .layout = segment::kLayoutVersion})),
                    Soon(), &fds);
    EXPECT_TRUE(reply) << reply.error().ToString();
    welcome = *wire::DecodeWelcome(Bytes(*reply));
    return client;
  }
  std::size_t sessions() { return daemon_->host().owner().Stat().sessions.size(); }
  bool SessionsBecome(std::size_t count) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
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

TEST_F(DaemonTest, TheTimeOfACallIsCountedWhateverItsAnswer) {
  const auto text = [&] {
    Metrics metrics;
    daemon_->host().Collect(metrics);
    return metrics.Text();
  };
  const std::string count = "kvcove_owner_local_call_seconds_count";
  EXPECT_TRUE(text().contains(count + "{call=\"put\"} 0\n")) << text();
  wire::Welcome welcome;
  rpc::Client client = Hello(welcome);
  EXPECT_FALSE(client.Call(wire::Method::kPut, Bytes("no put"), Soon()));
  EXPECT_TRUE(text().contains(count + "{call=\"put\"} 1\n")) << text();
  EXPECT_TRUE(text().contains(count + "{call=\"load\"} 0\n")) << text();
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

// A listener that lets everybody connect and never says a word: a master that is frozen.
class SilentMaster {
 public:
  SilentMaster() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{.sin_family = AF_INET,
                        .sin_port = 0,
                        .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)},
                        .sin_zero = {}};
    EXPECT_EQ(bind(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(fd_.get(), 64), 0);
    socklen_t size = sizeof(address);
    EXPECT_EQ(getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
  }
  rpc::Address address() const { return rpc::LoopbackAddress(port_); }

 private:
  UniqueFd fd_;
  std::uint16_t port_ = 0;
};

// One request with `budget_ms` in its frame; the reply's code, or nothing within five seconds.
std::optional<Code> CodeOf(int fd, wire::Method method, const std::string& body,
                           std::uint16_t budget_ms) {
  const timeval limit{.tv_sec = 5, .tv_usec = 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  const auto head = wire::EncodeFrameHeader({.method = static_cast<std::uint16_t>(method),
                                             .body_bytes = static_cast<std::uint32_t>(body.size()),
                                             .budget_ms = budget_ms,
                                             .call = 77});
  EXPECT_EQ(send(fd, head.data(), head.size(), MSG_NOSIGNAL), static_cast<ssize_t>(head.size()));
  EXPECT_EQ(send(fd, body.data(), body.size(), MSG_NOSIGNAL), static_cast<ssize_t>(body.size()));
  std::array<std::byte, wire::kFrameHeaderBytes> reply;
  if (recv(fd, reply.data(), reply.size(), MSG_WAITALL) != static_cast<ssize_t>(reply.size())) {
    return std::nullopt;
  }
  const auto head_back = wire::DecodeFrameHeader(reply, wire::kMaxFrameBytes);
  std::string detail(head_back->body_bytes, '\0');
  EXPECT_EQ(recv(fd, detail.data(), detail.size(), MSG_WAITALL),
            static_cast<ssize_t>(detail.size()));
  return head_back->code;
}

// The caller has given up by then: a worker that goes on waiting would keep others waiting.
TEST_F(DaemonTest, ACallThatWaitsForTheMasterEndsByItsCallersBudget) {
  const SilentMaster master;
  Start(pool::ClusterMember{.master = master.address()});
  wire::Welcome welcome;
  rpc::Client client = Hello(welcome);
  // The body of a registration, from the stub's own hand, without a budget of its own.
  struct Keep final : wire::Channel {
    Result<std::string> Call(wire::Method, std::span<const std::byte> bytes,
                             std::int64_t) override {
      body.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      return Fail(Code::kUnavailable, "not sent");
    }
    std::string body;
  } keep;
  const FakeClock still;
  const auto stub = wire::MakeHostStub(keep, still);
  EXPECT_FALSE(stub->Register({.name = "n", .engine = "e"}, still.NowNs()));
  EXPECT_EQ(CodeOf(client.fd(), wire::Method::kRegister, keep.body, 50), Code::kTimeout);
  const std::vector<std::string> versions = {"v"};
  EXPECT_FALSE(stub->NameVersions("n", "e", versions, still.NowNs()));
  EXPECT_EQ(CodeOf(client.fd(), wire::Method::kNameVersions, keep.body, 50), Code::kTimeout);
}

// A process that is gone while the master is silent must not hold up the calls of others.
TEST_F(DaemonTest, TheEventLoopAnswersWhileTheMasterDoesNot) {
  const SilentMaster master;
  Start(pool::ClusterMember{.master = master.address()});
  wire::Welcome welcome;
  {
    rpc::Client leaving = Hello(welcome);
    ASSERT_TRUE(leaving.Call(wire::Method::kGoodbye, {}, Soon()));
  }
  rpc::Client client = Hello(welcome);
  EXPECT_TRUE(client.Call(wire::Method::kStat, {}, Soon()));
  EXPECT_EQ(sessions(), 1U);
}

}  // namespace
}  // namespace kvcove::server
