// SPDX-License-Identifier: Apache-2.0
// The limits in a server's file of tenants.
#include "kvcove/rpc/credentials.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvcove/rpc/gate.h"

namespace kvcove::rpc {
namespace {

using testing::HasSubstr;

Result<Tenant> Parsed(const std::string& more) {
  const Result<TenantTable> table = ParseTenants(
      "[tenants.acme]\ntokens = [\"" + std::string(64, 'a') + "\"]\nscopes = [\"read\"]\n" + more,
      "servers.toml");
  if (!table) return std::unexpected(table.error());
  return table->at("acme");
}

TEST(CredentialsTest, ATenantHasTheLimitsThatItsEntrySays) {
  const auto tenant =
      Parsed("calls_per_second = 5000\nbytes_in_flight = \"256MiB\"\nconnections = 512\n");
  ASSERT_TRUE(tenant) << tenant.error().ToString();
  EXPECT_EQ(tenant->limit,
            (AdmissionLimit{.calls_per_second = 5000, .bytes = 256 << 20, .connections = 512}));
  EXPECT_EQ(Parsed("")->limit, AdmissionLimit());
}

TEST(CredentialsTest, AMistakeInALimitNamesTheKey) {
  for (const char* line : {"calls_per_second = 0", "calls_per_second = -5",
                           "calls_per_second = \"many\"", "connections = 1.5"}) {
    const auto tenant = Parsed(line);
    ASSERT_FALSE(tenant) << line;
    EXPECT_THAT(tenant.error().detail, HasSubstr("write a number above 0")) << line;
  }
  EXPECT_THAT(Parsed("bytes_in_flight = 5").error().detail, HasSubstr("256MiB"));
  EXPECT_THAT(Parsed("bytes_in_flight = \"5 pounds\"").error().detail,
              HasSubstr("acme.bytes_in_flight"));
  EXPECT_THAT(Parsed("calls = 5").error().detail, HasSubstr("calls_per_second"));
}

TEST(CredentialsTest, WithoutCredentialsEveryCallerMayBeAnOwnerAndNoneAdministers) {
  const Gate gate(nullptr);
  Gate::Guest guest;
  guest.caller = std::make_shared<const Caller>();
  EXPECT_TRUE(gate.Describe(guest).may_own);
  EXPECT_FALSE(gate.Describe(guest).administers);
  EXPECT_TRUE(gate.Describe(guest).tenant.empty());
}

}  // namespace
}  // namespace kvcove::rpc
