// SPDX-License-Identifier: Apache-2.0
#include "kvcove/cli/service_manager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>

#include "kvcove/base/descriptors.h"
#include "kvcove/base/loop_beat.h"
#include "kvcove/base/posix.h"

namespace kvcove::cli {
namespace {

// The socket that a service manager reads. `name` as $NOTIFY_SOCKET has it.
class NotifySocket {
 public:
  explicit NotifySocket(const std::string& name)
      : fd_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    name.copy(address.sun_path, sizeof(address.sun_path) - 1);
    if (name.front() == '@') address.sun_path[0] = '\0';
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    EXPECT_EQ(bind(fd_.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
    const timeval patience{.tv_sec = 20, .tv_usec = 0};
    setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  }
  std::string Next() const {
    std::string text(256, '\0');
    const ssize_t size = recv(fd_.get(), text.data(), text.size(), 0);
    text.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
    return text;
  }
  // Fills the queue.
  void Fill(const std::string& name) const {
    const UniqueFd sender(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    name.copy(address.sun_path, sizeof(address.sun_path) - 1);
    while (sendto(sender.get(), "x", 1, 0, reinterpret_cast<const sockaddr*>(&address),
                  sizeof(address)) == 1) {
    }
  }

 private:
  UniqueFd fd_;
};

class ServiceManagerTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(mkdtemp(directory_.data()), nullptr);
    TearDownEnvironment();
  }
  void TearDown() override {
    TearDownEnvironment();
    std::filesystem::remove_all(directory_);
  }
  static void TearDownEnvironment() {
    for (const char* name : {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}) unsetenv(name);
  }
  std::string directory_ = std::filesystem::temp_directory_path() / "kvcove-notify-XXXXXX";
};

TEST_F(ServiceManagerTest, ItHearsThatCallsAreServedAndThatTheProcessEnds) {
  const std::string name = directory_ + "/notify";
  const NotifySocket socket(name);
  setenv("NOTIFY_SOCKET", name.c_str(), 1);
  ServiceManager manager;
  manager.Ready();
  EXPECT_EQ(socket.Next(), "READY=1");
  NotifySuccessor(4711);
  EXPECT_EQ(socket.Next(), "MAINPID=4711");
  manager.Stopping();
  EXPECT_EQ(socket.Next(), "STOPPING=1");
}

TEST_F(ServiceManagerTest, ItMayListenInTheAbstractNamespace) {
  const std::string name = "@kvcove-test-" + std::to_string(getpid());
  const NotifySocket socket(name);
  EXPECT_TRUE(NotifyAt(name, "READY=1"));
  EXPECT_EQ(socket.Next(), "READY=1");
}

TEST_F(ServiceManagerTest, WithoutItNothingIsSaid) {
  setenv("WATCHDOG_USEC", "1000000", 1);
  ServiceManager manager;
  manager.Ready();
  manager.Stopping();
  setenv("NOTIFY_SOCKET", "", 1);
  ServiceManager empty;
  empty.Ready();
}

TEST_F(ServiceManagerTest, ASocketThatNobodyReadsIsAnErrorAndTheServerServes) {
  const std::string name = directory_ + "/none";
  const Status said = NotifyAt(name, "READY=1");
  ASSERT_FALSE(said);
  EXPECT_EQ(said.error().code, Code::kUnavailable);
  EXPECT_THAT(said.error().detail, testing::HasSubstr(name));
  setenv("NOTIFY_SOCKET", name.c_str(), 1);
  ServiceManager manager;
  manager.Ready();
}

TEST_F(ServiceManagerTest, ANameThatIsNoneIsRefused) {
  for (const std::string& name : {std::string("relative/notify"), std::string("vsock:2:1234"),
                                  std::string("/"), "/" + std::string(200, 'n')}) {
    const Status said = NotifyAt(name, "READY=1");
    ASSERT_FALSE(said) << name;
    EXPECT_EQ(said.error().code, Code::kInvalid);
    EXPECT_THAT(said.error().detail, testing::HasSubstr(name));
  }
}

TEST_F(ServiceManagerTest, AFullQueueIsWaitedForHalfASecondAtMost) {
  const std::string name = directory_ + "/notify";
  const NotifySocket socket(name);
  socket.Fill(name);
  const Status said = NotifyAt(name, "READY=1");
  ASSERT_FALSE(said);
  EXPECT_EQ(said.error().code, Code::kTimeout);
  while (socket.Next() == "x") {
    if (NotifyAt(name, "READY=1")) break;
  }
}

TEST(WatchedWithinTest, ItIsAskedForInMicroseconds) {
  EXPECT_EQ(WatchedWithin("60000000", "12", 12).value(), 60'000'000U);
  EXPECT_EQ(WatchedWithin("60000000", nullptr, 12).value(), 60'000'000U);
  EXPECT_EQ(WatchedWithin("60000000", "", 12).value(), 60'000'000U);
}

TEST(WatchedWithinTest, AnotherProcessOrNoneMayBeMeant) {
  EXPECT_EQ(WatchedWithin(nullptr, "12", 12).value(), std::nullopt);
  EXPECT_EQ(WatchedWithin("", "12", 12).value(), std::nullopt);
  EXPECT_EQ(WatchedWithin("60000000", "13", 12).value(), std::nullopt);
}

TEST(WatchedWithinTest, WhatIsNoNumberIsRefused) {
  for (const char* usec : {"0", "-1", "1s", " 5", "99999999999999999999"}) {
    const auto within = WatchedWithin(usec, nullptr, 12);
    ASSERT_FALSE(within) << usec;
    EXPECT_THAT(within.error().detail, testing::HasSubstr(usec));
  }
  EXPECT_FALSE(WatchedWithin("60000000", "self", 12));
}

TEST(WatchdogPaceTest, ItLooksFourTimesAndIsPatientForHalfOfTheTime) {
  const WatchdogPace pace = PaceOf(60'000'000);
  EXPECT_EQ(pace.look_usec, 15'000'000U);
  EXPECT_EQ(pace.patience, 2U);
}

TEST(WatchdogPaceTest, ALoopThatSleepsAsLongAsItMayIsNeverTakenForOneThatHangs) {
  for (const std::uint64_t within_usec : {1U, 1'000U, 1'000'000U, 2'500'000U, 8'000'000U}) {
    const WatchdogPace pace = PaceOf(within_usec);
    EXPECT_GE(pace.look_usec * pace.patience, 4'000'000U) << within_usec;
  }
}

class WatchdogTest : public ServiceManagerTest {
 protected:
  void SetUp() override {
    ServiceManagerTest::SetUp();
    name_ = directory_ + "/notify";
    socket_.emplace(name_);
    setenv("NOTIFY_SOCKET", name_.c_str(), 1);
    setenv("WATCHDOG_PID", std::to_string(getpid()).c_str(), 1);
  }
  std::string name_;
  std::optional<NotifySocket> socket_;
};

TEST_F(WatchdogTest, TheManagerHearsItUntilTheEnd) {
  setenv("WATCHDOG_USEC", "40000", 1);
  {
    ServiceManager manager;
    manager.Ready();
    EXPECT_EQ(socket_->Next(), "READY=1");
    for (int i = 0; i < 5; ++i) EXPECT_EQ(socket_->Next(), "WATCHDOG=1");
    manager.Stopping();
    // The end of the server may take long: the watchdog goes on meanwhile.
    std::string said;
    while (said != "STOPPING=1") said = socket_->Next();
    EXPECT_EQ(socket_->Next(), "WATCHDOG=1");
  }
  EXPECT_TRUE(NotifyAt(name_, "the test's"));
  std::string said;
  while ((said = socket_->Next()) == "WATCHDOG=1") {
  }
  EXPECT_EQ(said, "the test's");
}

TEST_F(WatchdogTest, AnotherProcesssTimeIsNotThisOnes) {
  setenv("WATCHDOG_USEC", "1000", 1);
  setenv("WATCHDOG_PID", "1", 1);
  ServiceManager manager;
  manager.Ready();
  manager.Stopping();
  EXPECT_EQ(socket_->Next(), "READY=1");
  EXPECT_EQ(socket_->Next(), "STOPPING=1");
}

}  // namespace
}  // namespace kvcove::cli
