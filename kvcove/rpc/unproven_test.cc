// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/unproven.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/rpc/address.h"

namespace kvcove::rpc {
namespace {

class UnprovenTest : public testing::Test {
 protected:
  // A connection with this number.
  std::unique_ptr<Unproven::Ticket> Enter(Source source, int number, int fd = -1) {
    return pool_->Enter(source, fd, [this, number] { closed_.push_back(number); });
  }

  std::shared_ptr<Unproven> pool_ =
      std::make_shared<Unproven>(UnprovenOptions{.max = 8, .max_each = 3});
  std::vector<int> closed_;
};

TEST_F(UnprovenTest, ASourceThatUsesItsShareUpDisplacesItsOwn) {
  const auto other = Enter(1, 100);
  std::vector<std::unique_ptr<Unproven::Ticket>> tickets;
  for (int i = 0; i < 5; ++i) tickets.push_back(Enter(2, i));
  EXPECT_THAT(closed_, testing::ElementsAre(0, 1));
  EXPECT_EQ(pool_->open(), 4U);
  EXPECT_EQ(pool_->displaced(), 2U);
}

TEST_F(UnprovenTest, AFullPoolDisplacesTheOldestSilentOne) {
  std::vector<std::unique_ptr<Unproven::Ticket>> tickets;
  for (int i = 0; i < 8; ++i) tickets.push_back(Enter(static_cast<Source>(i), i));
  tickets[0]->Heard();
  tickets[1]->Heard();
  tickets.push_back(Enter(100, 8));
  tickets.push_back(Enter(101, 9));
  EXPECT_THAT(closed_, testing::ElementsAre(2, 3));
  EXPECT_EQ(pool_->open(), 8U);
}

TEST_F(UnprovenTest, WhereAllHaveSpokenTheOldestGivesWay) {
  std::vector<std::unique_ptr<Unproven::Ticket>> tickets;
  for (int i = 0; i < 8; ++i) {
    tickets.push_back(Enter(static_cast<Source>(i), i));
    tickets.back()->Heard();
  }
  tickets.push_back(Enter(100, 8));
  EXPECT_THAT(closed_, testing::ElementsAre(0));
}

TEST_F(UnprovenTest, WhoIsLetInOrLeavesMakesRoom) {
  for (int i = 0; i < 100; ++i) Enter(1, i);  // each leaves at once
  EXPECT_EQ(pool_->open(), 0U);
  auto proven = Enter(1, 0);
  std::vector<std::unique_ptr<Unproven::Ticket>> tickets;
  tickets.push_back(Enter(1, 1));
  tickets.push_back(Enter(1, 2));
  proven.reset();
  tickets.push_back(Enter(1, 3));
  EXPECT_TRUE(closed_.empty());
}

TEST_F(UnprovenTest, ATicketThatWasDisplacedIsOfNoUse) {
  std::vector<std::unique_ptr<Unproven::Ticket>> tickets;
  for (int i = 0; i < 4; ++i) tickets.push_back(Enter(1, i));
  ASSERT_THAT(closed_, testing::ElementsAre(0));
  tickets[0]->Heard();
  tickets[0]->Replace(-1, [this] { closed_.push_back(1000); });
  EXPECT_THAT(closed_, testing::ElementsAre(0, 1000)) << "what took its place ends, too";
  tickets[0].reset();
  EXPECT_EQ(pool_->open(), 3U);
}

TEST_F(UnprovenTest, AReplacedWayToCloseIsTheOneThatIsUsed) {
  std::vector<std::unique_ptr<Unproven::Ticket>> tickets;
  tickets.push_back(Enter(1, 0));
  tickets[0]->Replace(-1, [this] { closed_.push_back(1000); });
  for (int i = 1; i < 4; ++i) tickets.push_back(Enter(1, i));
  EXPECT_THAT(closed_, testing::ElementsAre(1000));
}

TEST_F(UnprovenTest, BytesThatNobodyHasReadYetAreNoSilence) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const UniqueFd near(ends[0]);
  const UniqueFd far(ends[1]);
  std::vector<std::unique_ptr<Unproven::Ticket>> tickets;
  tickets.push_back(Enter(1, 0, near.get()));
  tickets.push_back(Enter(1, 1));
  tickets.push_back(Enter(1, 2));
  ASSERT_EQ(write(far.get(), "x", 1), 1);
  tickets.push_back(Enter(1, 3));
  EXPECT_THAT(closed_, testing::ElementsAre(1));
  char byte = 0;
  EXPECT_EQ(read(near.get(), &byte, 1), 1) << "the byte is still there";
}

TEST(SourceTest, IsTheAddressNotThePort) {
  Address listen{.host = "127.0.0.1", .port = 0};
  const UniqueFd listener = *ListenTcp(listen);
  std::vector<Source> sources;
  for (int i = 0; i < 2; ++i) {
    const UniqueFd client = *ConnectTcp(listen, SystemClock::Instance().NowNs() + 60 * kSecond);
    UniqueFd server;
    while (!server.valid()) server = UniqueFd(accept(listener.get(), nullptr, nullptr));
    sources.push_back(SourceOf(server.get()));
  }
  EXPECT_EQ(sources[0], sources[1]);
  EXPECT_NE(sources[0], 0U);
}

TEST(SourceTest, IsTheProcessOnAUnixSocket) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const UniqueFd near(ends[0]);
  const UniqueFd far(ends[1]);
  EXPECT_EQ(SourceOf(near.get()), static_cast<Source>(getpid()));
}

TEST(UnprovenOfTest, TakesHalfOfFewConnectionsAndAnEighthOfMany) {
  EXPECT_EQ(UnprovenOf("x", 1 << 20)->max(), 4096U);
  EXPECT_EQ(UnprovenOf("x", 8192)->max(), 1024U);
  EXPECT_EQ(UnprovenOf("x", 1024)->max(), 256U);
  EXPECT_EQ(UnprovenOf("x", 16)->max(), 8U);
}

}  // namespace
}  // namespace kvcove::rpc
