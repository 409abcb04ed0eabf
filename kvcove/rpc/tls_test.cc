// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/tls.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <thread>

#include "kvcove/base/clock.h"
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

}  // namespace
}  // namespace kvcove::rpc
