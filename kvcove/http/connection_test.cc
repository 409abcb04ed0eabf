// SPDX-License-Identifier: Apache-2.0
// A client's connection to a server that is the other end of a socket pair.
#include "kvcove/http/connection.h"

#include <gmock/gmock.h>
#include <sys/socket.h>

#include <thread>

#include "kvcove/base/clock.h"

namespace kvcove::http {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class ConnectionTest : public testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    connection_ = std::make_unique<Connection>(UniqueFd(ends[0]));
    server_ = UniqueFd(ends[1]);
  }
  void Answer(std::string_view bytes) {
    ASSERT_EQ(send(server_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  Result<Response> Ask(const Connection::TakePart& take) {
    return connection_->Stream({.host = "h", .target = "/", .authorization = {}, .body = "{}"},
                               SystemClock::Instance().NowNs() + 60 * kSecond, take);
  }

  std::unique_ptr<Connection> connection_;
  UniqueFd server_;
};

TEST_F(ConnectionTest, AStreamIsTakenAsItArrives) {
  std::vector<std::string> parts;
  Answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n");
  // Each part is sent only after the one before it was taken.
  const auto answer = Ask([&](std::string_view part) -> Status {
    parts.emplace_back(part);
    if (parts.size() == 1) Answer("6\r\nsec");
    if (parts.size() == 2) Answer("ond\r\n0\r\n\r\n");
    return {};
  });
  ASSERT_TRUE(answer) << answer.error().ToString();
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(answer->body, "");
  EXPECT_THAT(parts, ElementsAre("first", "sec", "ond"));
  EXPECT_TRUE(connection_->usable());
}

TEST_F(ConnectionTest, AnAnswerOfAnotherStatusIsWhole) {
  Answer("HTTP/1.1 404 No\r\nContent-Length: 7\r\n\r\nno such");
  const auto answer = Ask([](std::string_view) -> Status {
    ADD_FAILURE() << "a part of an error";
    return {};
  });
  ASSERT_TRUE(answer) << answer.error().ToString();
  EXPECT_EQ(answer->status, 404);
  EXPECT_EQ(answer->body, "no such");
}

TEST_F(ConnectionTest, AGetIsAskedOverAConnectionThatIsKept) {
  for (const char* authorization : {"", "Bearer x"}) {
    Answer("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    const auto answer = connection_->Ask({.method = "GET",
                                          .host = "h",
                                          .target = "/a?b=1",
                                          .authorization = authorization,
                                          .body = {}},
                                         SystemClock::Instance().NowNs() + 60 * kSecond);
    ASSERT_TRUE(answer) << answer.error().ToString();
    EXPECT_EQ(answer->body, "ok");
    EXPECT_TRUE(connection_->usable());
  }
  std::string asked(4096, '\0');
  const ssize_t got = recv(server_.get(), asked.data(), asked.size(), 0);
  ASSERT_GT(got, 0);
  asked.resize(static_cast<std::size_t>(got));
  EXPECT_THAT(asked, StartsWith("GET /a?b=1 HTTP/1.1\r\nHost: h\r\n"));
  EXPECT_THAT(asked, HasSubstr("Content-Length: 0\r\n\r\nGET /a?b=1 HTTP/1.1\r\n"));
  EXPECT_THAT(asked, EndsWith("Authorization: Bearer x\r\n\r\n"));
}

TEST_F(ConnectionTest, AStreamThatIsCutShortIsAnError) {
  Answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n");
  const auto answer = Ask([&](std::string_view) -> Status {
    server_.Reset();
    return {};
  });
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, Code::kUnavailable);
  EXPECT_FALSE(connection_->usable());
}

TEST_F(ConnectionTest, AnErrorOfTheTakerEndsTheConnection) {
  Answer("HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nfirst");
  const auto answer =
      Ask([](std::string_view) -> Status { return Fail(Code::kCorrupt, "not wanted"); });
  ASSERT_FALSE(answer);
  EXPECT_THAT(answer.error().ToString(), HasSubstr("not wanted"));
  EXPECT_FALSE(connection_->usable());
}

}  // namespace
}  // namespace kvcove::http
