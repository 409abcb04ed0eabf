// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/local/socket_owner.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "kvcove/base/log.h"
#include "kvcove/requester/local/fake_daemon.h"

namespace kvcove::requester {
namespace {

class SocketOwnerTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::temp_directory_path() / "kvcove-remote-XXXXXX";
    ASSERT_NE(mkdtemp(directory_.data()), nullptr);
    daemon_ = std::make_unique<FakeDaemon>(path());
  }
  void TearDown() override {
    daemon_.reset();
    std::filesystem::remove_all(directory_);
  }
  std::string path() const { return directory_ + "/socket"; }
  Result<std::unique_ptr<SocketOwner>> Connect() {
    const Clock& clock = SystemClock::Instance();
    return SocketOwner::Connect(path(), clock.NowNs() + 60 * kSecond, clock);
  }
  // Another thread changes it.
  template <typename Condition>
  static bool Becomes(Condition&& condition) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!condition() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    return condition();
  }

  std::string directory_;
  std::unique_ptr<FakeDaemon> daemon_;
};

TEST_F(SocketOwnerTest, MapsTheSegmentAndSaysGoodbye) {
  daemon_->Start();
  {
    auto host = Connect();
    ASSERT_TRUE(host) << host.error().ToString();
    const auto attachment = (*host)->Current();
    ASSERT_NE(attachment, nullptr);
    EXPECT_TRUE(attachment->connected());
    EXPECT_EQ(attachment->payload_bytes(), 1U << 20);
    attachment->payload().data[0] = std::byte{1};  // it may write there
  }
  EXPECT_EQ(daemon_->goodbyes, 1);
}

// A lease would be compared with another clock, and would not end.
TEST_F(SocketOwnerTest, AnOwnerInAnotherTimeNamespaceIsRefused) {
  daemon_->clock_skew_ns = -3600 * kSecond;
  daemon_->Start();
  EXPECT_EQ(Connect().error().code, Code::kIncompatible);
}

TEST_F(SocketOwnerTest, AnOwnerWithAnotherLayoutIsRefused) {
  daemon_.reset();
  daemon_ = std::make_unique<FakeDaemon>(path(), FakeDaemon::Build::kOlder);
  daemon_->Start();
  const auto host = Connect();
  ASSERT_FALSE(host);
  EXPECT_EQ(host.error().code, Code::kIncompatible);
  EXPECT_NE(host.error().detail.find("layout version 3"), std::string::npos) << host.error().detail;
}

TEST_F(SocketOwnerTest, AnOwnerThatComesBackWithAnotherLayoutIsWarnedOfOnce) {
  daemon_->Start();
  auto host = *Connect();
  EXPECT_FALSE(host->refused());
  SetLogLevel(LogLevel::kWarn);
  testing::internal::CaptureStderr();
  daemon_.reset();
  daemon_ = std::make_unique<FakeDaemon>(path(), FakeDaemon::Build::kOlder);
  daemon_->Start();
  EXPECT_TRUE(Becomes([&] { return host->refused() && daemon_->hellos > 1; }));
  EXPECT_EQ(host->Current(), nullptr);
  const std::string log = testing::internal::GetCapturedStderr();
  const std::size_t said = log.find("cannot be mapped");
  EXPECT_NE(said, std::string::npos) << log;
  EXPECT_EQ(log.find("cannot be mapped", said + 1), std::string::npos) << log;
  // The owner is upgraded, too.
  daemon_.reset();
  daemon_ = std::make_unique<FakeDaemon>(path());
  daemon_->Start();
  EXPECT_TRUE(Becomes([&] { return host->Current() != nullptr; }));
  EXPECT_FALSE(host->refused());
}

TEST_F(SocketOwnerTest, ADaemonThatSendsNoSegmentIsCorrupt) {
  daemon_->files = 1;
  daemon_->Start();
  EXPECT_EQ(Connect().error().code, Code::kCorrupt);
}

TEST_F(SocketOwnerTest, MemoryThatCouldShrinkIsRefused) {
  daemon_->unsealed = true;
  daemon_->Start();
  EXPECT_EQ(Connect().error().code, Code::kCorrupt);
}

TEST_F(SocketOwnerTest, WithoutADaemonItIsUnavailable) {
  daemon_.reset();
  EXPECT_EQ(Connect().error().code, Code::kUnavailable);
}

TEST_F(SocketOwnerTest, ADaemonThatEndsIsNoticedAndItsNextLifeIsAnotherAttachment) {
  daemon_->Start();
  auto host = *Connect();
  const auto first = host->Current();
  daemon_.reset();
  EXPECT_TRUE(Becomes([&] { return host->Current() == nullptr; }));
  EXPECT_FALSE(first->connected()) << "nothing may be read from this memory any more";
  EXPECT_EQ(first->payload_bytes(), 1U << 20) << "though it is still mapped";
  daemon_ = std::make_unique<FakeDaemon>(path());
  daemon_->Start();
  EXPECT_TRUE(Becomes([&] { return host->Current() != nullptr; }));
  EXPECT_NE(host->Current()->number(), first->number());
}

}  // namespace
}  // namespace kvcove::requester
