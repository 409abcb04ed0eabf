// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/tls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <thread>

#include "kvcove/base/clock.h"
#include "kvcove/base/log.h"
#include "kvcove/base/posix.h"
#include "kvcove/rpc/client.h"
#include "kvcove/rpc/test_tls.h"

namespace kvcove::rpc {
namespace {

// Accepts connections and ends each with its first bytes, as a server does that is killed in the
// middle of a handshake, or that has no room for one more newcomer.
class Closing {
 public:
  Closing() : listener_(*ListenTcp(address_)) {
    thread_ = std::thread([this] {
      while (!stopping_) {
        pollfd poller{.fd = listener_.get(), .events = POLLIN, .revents = 0};
        if (poll(&poller, 1, 10) <= 0) continue;
        const UniqueFd fd(accept(listener_.get(), nullptr, nullptr));
        char bytes[4096];
        while (recv(fd.get(), bytes, sizeof(bytes), 0) < 0) {
        }
        ++accepted_;
      }
    });
  }
  ~Closing() {
    stopping_ = true;
    thread_.join();
  }
  const Address& address() const { return address_; }
  int accepted() const { return accepted_; }

 private:
  Address address_{.host = "127.0.0.1", .port = 0};
  UniqueFd listener_;
  std::atomic<bool> stopping_{false};
  std::atomic<int> accepted_{0};
  std::thread thread_;
};

TEST(TlsTest, AServerThatEndsInTheMiddleOfAHandshakeIsUnavailableAndTriedAgain) {
  const auto tls = SelfSignedTls();
  ASSERT_TRUE(tls) << tls.error().ToString();
  const Closing server;
  const Access access{.credentials = {}, .tls = *tls};
  const auto client =
      Client::Connect(server.address(), access, SystemClock::Instance().NowNs() + 60 * kSecond);
  ASSERT_FALSE(client);
  // kDenied would say that nothing is to be tried again: a reset would not be repeated.
  EXPECT_EQ(client.error().code, Code::kUnavailable) << client.error().ToString();
  EXPECT_EQ(server.accepted(), 3);
}

// Two sides that do not trust each other: a server that shakes hands with each client and answers
// nothing.
class TlsTrustTest : public testing::Test {
 protected:
  void SetUp() override {
    auto listener = ListenTcp(address_);
    ASSERT_TRUE(listener) << listener.error().ToString();
    listener_ = std::move(*listener);
  }
  // What a client says that could not connect.
  Error Connect(const Result<std::shared_ptr<Tls>>& server,
                const Result<std::shared_ptr<Tls>>& client) {
    if (!server) return server.error();
    if (!client) return client.error();
    std::atomic<bool> ended = false;
    std::thread accepting([&] {
      while (!ended) {
        pollfd poller{.fd = listener_.get(), .events = POLLIN, .revents = 0};
        if (poll(&poller, 1, 10) <= 0) continue;
        (*server)->Accept(UniqueFd(accept(listener_.get(), nullptr, nullptr)), 60 * kSecond,
                          [](const UniqueFd&) {});
      }
    });
    const auto connected = Client::Connect(address_, {.credentials = {}, .tls = *client},
                                           SystemClock::Instance().NowNs() + 60 * kSecond);
    ended = true;
    accepting.join();
    return connected ? Error{Code::kOk, "connected"} : connected.error();
  }

  Address address_{.host = "127.0.0.1", .port = 0};
  UniqueFd listener_;
  const TestAuthority authority_;
  const TestAuthority other_;
};

TEST_F(TlsTrustTest, AServersCertificateOfAnotherAuthorityIsNamedWithItsReason) {
  const Error error =
      Connect(other_.Issue({.subject = "/CN=alien"}, authority_), authority_.Issue({}, authority_));
  EXPECT_EQ(error.code, Code::kDenied);
  EXPECT_THAT(error.detail,
              testing::HasSubstr(": unable to get local issuer certificate (the other side's "
                                 "certificate: /CN=alien)"));
}

TEST_F(TlsTrustTest, AServersCertificateThatHasExpiredIsNamedWithItsReason) {
  const Error error = Connect(authority_.Issue({.subject = "/CN=old", .days = -1}, authority_),
                              authority_.Issue({}, authority_));
  EXPECT_EQ(error.code, Code::kDenied);
  EXPECT_THAT(
      error.detail,
      testing::HasSubstr(": certificate has expired (the other side's certificate: /CN=old)"));
}

TEST_F(TlsTrustTest, AServersCertificateForOtherHostsSaysForWhich) {
  const Error error = Connect(
      authority_.Issue({.subject = "/CN=node2", .names = "DNS:node2,IP:10.0.0.2"}, authority_),
      authority_.Issue({}, authority_));
  EXPECT_EQ(error.code, Code::kDenied);
  EXPECT_THAT(error.detail,
              testing::HasSubstr(": the certificate is not for '127.0.0.1' but for DNS:node2, IP "
                                 "Address:10.0.0.2 (the other side's certificate: /CN=node2)"));
}

// A certificate of another kind than the one before is in place, and the key is still that one's.
TEST_F(TlsTrustTest, AKeyOfAnotherKindThanTheCertificatesIsRefused) {
  const auto tls = authority_.Issue({.with_rsa_key = true}, authority_);
  ASSERT_FALSE(tls);
  EXPECT_EQ(tls.error().code, Code::kInvalid);
  EXPECT_THAT(tls.error().detail, testing::HasSubstr("is not that of the certificate"));
}

// With TLS 1.3 the client's handshake has ended by then, so only the server knows the reason.
TEST_F(TlsTrustTest, AClientsCertificateOfAnotherAuthorityIsNamedInTheServersLog) {
  auto server = authority_.Issue({}, authority_);
  SetLogLevel(LogLevel::kWarn);
  testing::internal::CaptureStderr();
  const Error error = Connect(server, other_.Issue({.subject = "/CN=alien"}, authority_));
  const std::uint64_t refused = server ? (*server)->refused() : 0;
  server = Fail(Code::kUnavailable, "its thread, which logs, has ended");
  SetLogLevel(LogLevel::kError);
  const std::string logged = testing::internal::GetCapturedStderr();
  EXPECT_EQ(error.code, Code::kUnavailable);
  EXPECT_THAT(error.detail, testing::HasSubstr("refused this process's TLS certificate"));
  EXPECT_THAT(error.detail, testing::Not(testing::HasSubstr("expect TLS")));
  EXPECT_GE(refused, 1U);
  EXPECT_THAT(logged, testing::HasSubstr(": unable to get local issuer certificate (the other "
                                         "side's certificate: /CN=alien)"));
}

}  // namespace
}  // namespace kvcove::rpc
