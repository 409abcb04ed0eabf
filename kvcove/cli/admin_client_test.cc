// SPDX-License-Identifier: Apache-2.0
#include "kvcove/cli/admin_client.h"

#include <gtest/gtest.h>

#include "kvcove/base/clock.h"

namespace kvcove::cli {
namespace {

TEST(AdminClientTest, AnAnswerMayTakeLongerByWhatTheEndpointIsAskedToWait) {
  const Result<AdminClient> client = AdminClient::Open("127.0.0.1:7480", {});
  ASSERT_TRUE(client);
  const std::int64_t usual_ns = client->AnswerTimeNs({{"namespace", "m"}});
  EXPECT_EQ(client->AnswerTimeNs({{"timeout_ms", "60000"}}), usual_ns + 60 * kSecond);
  EXPECT_EQ(client->AnswerTimeNs({{"timeout_ms", "long"}}), usual_ns);
  EXPECT_EQ(client->AnswerTimeNs({{"timeout_ms", "99999999999999999999"}}), usual_ns);
}

}  // namespace
}  // namespace kvcove::cli
