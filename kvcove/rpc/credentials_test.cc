// SPDX-License-Identifier: Apache-2.0
// The limits in a server's file of tenants.
#include "kvcove/rpc/credentials.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "kvcove/rpc/gate.h"
#include "tests/golden.h"

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
            (CallLimit{.calls_per_second = 5000, .bytes = 256 << 20, .connections = 512}));
  EXPECT_EQ(Parsed("")->limit, CallLimit());
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

std::string Bearer(const std::string& tenant, char digit) {
  return "Bearer " + BearerOf({.tenant = tenant, .token = std::string(64, digit)});
}

// `a`: an operator. `m`: monitoring. `t`: a tenant.
class ScopedCredentialsTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "kvcove-credentials-XXXXXX";
    directory_ = mkdtemp(name.data());
    const std::string path = directory_ + "/servers.toml";
    std::ofstream(path) << Entry("a", "\"owner\", \"admin\"") << Entry("m", "\"metrics\"")
                        << Entry("t", "\"read\", \"write\"");
    std::filesystem::permissions(path, std::filesystem::perms::owner_read);
    auto loaded = Credentials::Load(path);
    ASSERT_TRUE(loaded) << loaded.error().ToString();
    credentials_ = *loaded;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  static std::string Entry(const std::string& name, const std::string& scopes) {
    return fmt::format("[tenants.{}]\ntokens = [\"{}\"]\nscopes = [{}]\n", name,
                       std::string(64, name[0]), scopes);
  }
  // Both halves of the proof.
  static Reply Greet(Gate& server, Gate::Guest& guest, const std::string& tenant) {
    const Credential credential{.tenant = tenant, .token = std::string(64, tenant[0])};
    const wire::AuthHello hello = Greeting(credential);
    const std::string first = wire::Encode(hello);
    const Reply challenge =
        server.Greet(guest, wire::Method::kHello, std::as_bytes(std::span(first)));
    const auto decoded = wire::DecodeAuthChallenge(std::as_bytes(std::span(challenge.body)));
    EXPECT_TRUE(decoded);
    const auto proof = Prove(credential, hello, *decoded);
    EXPECT_TRUE(proof) << proof.error().ToString();
    const std::string second = wire::EncodeProof(*proof);
    return server.Greet(guest, wire::Method::kProve, std::as_bytes(std::span(second)));
  }
  std::string directory_;
  std::shared_ptr<Credentials> credentials_;
};

TEST_F(ScopedCredentialsTest, MonitoringReadsMetricsAndNothingElse) {
  EXPECT_TRUE(MayAsk(*credentials_, Bearer("a", 'a'), /*metrics=*/true));
  EXPECT_TRUE(MayAsk(*credentials_, Bearer("a", 'a'), /*metrics=*/false));
  EXPECT_TRUE(MayAsk(*credentials_, Bearer("m", 'm'), /*metrics=*/true));
  EXPECT_FALSE(MayAsk(*credentials_, Bearer("m", 'm'), /*metrics=*/false));
  EXPECT_FALSE(MayAsk(*credentials_, Bearer("t", 't'), /*metrics=*/true));
  EXPECT_FALSE(MayAsk(*credentials_, Bearer("m", 'x'), /*metrics=*/true));
  EXPECT_FALSE(MayAsk(*credentials_, "", /*metrics=*/true));
}

TEST_F(ScopedCredentialsTest, ATokenForMetricsIsNotLetInToThePool) {
  Gate gate(credentials_);
  Gate::Guest tenant;
  EXPECT_EQ(Greet(gate, tenant, "t").code, Code::kOk);
  EXPECT_TRUE(gate.Admitted(tenant));
  Gate::Guest monitoring;
  const Reply refused = Greet(gate, monitoring, "m");
  EXPECT_EQ(refused.code, Code::kDenied);
  EXPECT_THAT(refused.body, HasSubstr("metrics"));
  EXPECT_FALSE(gate.Admitted(monitoring));
  EXPECT_EQ(gate.refused(), 1U);
}

TEST(ScopesTest, TheirNamesAreReadAndWritten) {
  for (const char* name : {"read", "write", "reset", "admin", "owner", "metrics"}) {
    const auto scopes = ParseScopes({name});
    ASSERT_TRUE(scopes) << name;
    EXPECT_EQ(ScopeNames(*scopes), std::vector<std::string>{name});
  }
  EXPECT_THAT(ParseScopes({"metric"}).error().detail, HasSubstr("metrics"));
  EXPECT_EQ(ScopeNames(static_cast<Scopes>(Scope::kTenantOwner)), std::vector<std::string>());
}

// Both sides derive them from a token, whatever build each of them is.
TEST(ProofTest, WhatIsDerivedFromATokenIsThis) {
  const std::string token(64, 'a');
  const GoldenBytes golden = {
      {"mac", "ca0bbc7dfa99fa4fb6d2071aebe288238850d1d8f6606ee72efc4cb71b9d00b3"},
  };
  const wire::AuthBytes mac = Mac(token, "text");
  ExpectGolden({{"mac", {reinterpret_cast<const char*>(mac.data()), mac.size()}}}, golden);
  EXPECT_EQ(fmt::format("{:016x}", KeyIdOf(token)), "77181d14db5131a9");
  EXPECT_EQ(BearerOf({.tenant = "acme", .token = token}),
            "acme.cc37f5321d51a0eb4426daa9672dff373349e46f43bb573251c0ccdbb0a8c614");
}

}  // namespace
}  // namespace kvcove::rpc
