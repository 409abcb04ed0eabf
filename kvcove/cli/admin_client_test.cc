// SPDX-License-Identifier: Apache-2.0
#include "kvcove/cli/admin_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/cli/command.h"
#include "kvcove/rpc/address.h"

namespace kvcove::cli {
namespace {

TEST(AdminClientTest, AnAnswerMayTakeLongerByWhatTheEndpointIsAskedToWait) {
  const Result<AdminClient> client = AdminClient::Open({"127.0.0.1:7480"}, {});
  ASSERT_TRUE(client);
  const std::int64_t usual_ns = client->AnswerTimeNs({{"namespace", "m"}});
  EXPECT_EQ(client->AnswerTimeNs({{"timeout_ms", "60000"}}), usual_ns + 60 * kSecond);
  EXPECT_EQ(client->AnswerTimeNs({{"timeout_ms", "long"}}), usual_ns);
  EXPECT_EQ(client->AnswerTimeNs({{"timeout_ms", "99999999999999999999"}}), usual_ns);
}

// An admin endpoint that answers with no field, and notes whether it was shown a token.
class Listener {
 public:
  Listener() {
    rpc::Address address{.host = "127.0.0.1", .port = 0};
    auto listener = rpc::ListenTcp(address);
    address_ = address.ToString();
    const auto answer = [this](const http::Request& request) {
      shows_ = request.authorization.starts_with("Bearer ");
      return http::Response{.body = "{}"};
    };
    auto server = http::Server::Open({.listener = std::move(*listener)},
                                     {{.method = "GET", .path = "/v1/status", .answer = answer},
                                      {.method = "GET", .path = "/v1/key", .answer = answer},
                                      {.method = "GET", .path = "/v1/segments", .answer = answer}});
    server_ = std::move(*server);
  }
  const std::string& address() const { return address_; }
  // Returns whether the last request, which has been answered, had a token.
  bool shown() const { return shows_; }

 private:
  std::string address_;
  std::atomic<bool> shows_ = false;
  std::unique_ptr<http::Server> server_;
};

TEST(AdminClientTest, OnlyAnEndpointThatIsTrustedSeesTheToken) {
  const std::string token = testing::TempDir() + "/admin_client_test.toml";
  std::ofstream(token) << "tenant = \"boss\"\ntoken = \"" << std::string(64, 'a') << "\"\n";
  ASSERT_EQ(chmod(token.c_str(), 0600), 0);
  const Listener listener;
  for (const bool trusted : {false, true}) {
    const auto client =
        AdminClient::Open({.address = listener.address(), .trusted = trusted}, {.token = token});
    ASSERT_TRUE(client) << client.error().ToString();
    ASSERT_TRUE(client->Json("GET", "/v1/status", {}));
    EXPECT_EQ(listener.shown(), trusted);
  }
}

TEST(AdminClientTest, AWrongTokenFileIsAnErrorAlsoWhereNobodyWouldSeeTheToken) {
  EXPECT_FALSE(AdminClient::Open({.address = "127.0.0.1:7480", .trusted = false},
                                 {.token = testing::TempDir() + "/no-such-file.toml"}));
}

// As an earlier master may answer.
TEST(AdminClientTest, AnAnswerWithoutAFieldEndsTheCommandWithAReason) {
  const Listener listener;
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"key", "k"}, std::vector<std::string>{"segments"}}) {
    std::vector<std::string> words{"kvcove", "admin", "--admin", listener.address()};
    words.insert(words.end(), command.begin(), command.end());
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    testing::internal::CaptureStderr();
    const int status = Main(static_cast<int>(arguments.size()), arguments.data(), {});
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                testing::HasSubstr("the endpoint may be of another version"));
    EXPECT_EQ(status, 2);
  }
}

}  // namespace
}  // namespace kvcove::cli
