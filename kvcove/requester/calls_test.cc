// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/calls.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kvcove/rpc/busy.h"

namespace kvcove::requester {
namespace {

// An authority that proves each reset, and answers each registration as the test says.
class FakeAuthority final : public wire::GenerationService {
 public:
  Result<wire::Registration> Register(const wire::RegisterRequest&, std::int64_t) override {
    EXPECT_EQ(resets, 0) << "the registration is sent first";
    if (registers.code != Code::kOk) return std::unexpected(registers);
    ++registrations;
    return wire::Registration{};
  }
  Result<wire::ResetOutcome> Reset(const wire::ResetRequest& request, std::int64_t) override {
    ++resets;
    marked = request.registered;
    return wire::ResetOutcome{};
  }
  Status NameVersions(std::string_view, std::string_view, std::span<const std::string>,
                      std::int64_t) override {
    return {};
  }
  Status EndEngine(std::string_view, std::string_view, std::int64_t) override { return {}; }
  Result<wire::PruneOutcome> Prune(const wire::PruneRequest&, std::int64_t) override {
    return Fail(Code::kUnavailable, "not in this test");
  }

  Error registers{.code = Code::kOk, .detail = {}};
  int registrations = 0;
  int resets = 0;
  bool marked = false;
};

Result<wire::ResetOutcome> Attempt(FakeAuthority& authority, bool known) {
  const SessionOptions options{.name = "n", .engine = "e"};
  return AttemptReset(authority, options, ResetOf(options, {.version = "v1"}), known, 0);
}

TEST(AttemptResetTest, AKnownVersionIsRegisteredFirst) {
  FakeAuthority authority;
  EXPECT_TRUE(Attempt(authority, /*known=*/true));
  EXPECT_EQ(authority.registrations, 1);
  EXPECT_EQ(authority.resets, 1);
  EXPECT_TRUE(authority.marked) << "another process of the engine may register in between";
}

// It says that the engine has this version from now on.
TEST(AttemptResetTest, AnUnknownVersionIsNotRegistered) {
  FakeAuthority authority;
  EXPECT_TRUE(Attempt(authority, /*known=*/false));
  EXPECT_EQ(authority.registrations, 0);
  EXPECT_EQ(authority.resets, 1);
  EXPECT_FALSE(authority.marked);
}

TEST(AttemptResetTest, NoResetIsSentWithoutTheRegistration) {
  for (const Error& error :
       {Error{Code::kUnavailable, "an election"}, Error{Code::kTimeout, "late"},
        rpc::BusyError({.refusal = rpc::Refusal::kTenantCalls, .retry_after_ms = 10})}) {
    FakeAuthority authority;
    authority.registers = error;
    const auto outcome = Attempt(authority, /*known=*/true);
    ASSERT_FALSE(outcome) << error.ToString();
    EXPECT_EQ(outcome.error().code, error.code);
    EXPECT_EQ(authority.resets, 0) << error.ToString();
  }
}

// It has lost its store, or given the version's slot away, and a token that does not write makes no
// version. Without the reset the session would stay closed, as a refused one is not repeated.
TEST(AttemptResetTest, AnAuthorityThatDeniesTheRegistrationIsAskedForTheReset) {
  FakeAuthority authority;
  authority.registers = {Code::kDenied, "the token does not write, and nothing is stored here"};
  EXPECT_TRUE(Attempt(authority, /*known=*/true));
  EXPECT_EQ(authority.resets, 1);
  EXPECT_TRUE(authority.marked);
}

// It has no value of this version, or does not know the engine.
TEST(AttemptResetTest, AnAuthorityWithoutRoomForTheRegistrationIsAskedForTheReset) {
  FakeAuthority authority;
  authority.registers = {Code::kLimit, "all slots are in use"};
  EXPECT_TRUE(Attempt(authority, /*known=*/true));
  EXPECT_EQ(authority.resets, 1);
}

// Moves on by a second with each attempt.
class PruneTest : public testing::Test {
 protected:
  Result<std::uint64_t> Prune(std::vector<Code> answers) {
    return PruneUntil(clock_, clock_.NowNs() + 10 * kSecond,
                      [&, answers](std::int64_t) -> Result<wire::PruneOutcome> {
                        clock_.AdvanceNs(kSecond);
                        const Code code = answers.at(std::min(asked_++, answers.size() - 1));
                        if (code != Code::kOk) return Fail(code, "the test says so");
                        return wire::PruneOutcome{.versions = 7};
                      });
  }
  FakeClock clock_;
  std::size_t asked_ = 0;
};

TEST_F(PruneTest, ItIsRepeatedWhileNobodyAnswers) {
  EXPECT_EQ(*Prune({Code::kUnavailable, Code::kUnavailable, Code::kOk}), 7U);
  EXPECT_EQ(asked_, 3U);
}

TEST_F(PruneTest, ItEndsAtItsDeadline) {
  EXPECT_EQ(Prune({Code::kUnavailable}).error().code, Code::kUnavailable);
  EXPECT_EQ(asked_, 10U);
}

TEST_F(PruneTest, WhatAnAuthorityRefusesIsNotRepeated) {
  for (const Code code : {Code::kInvalid, Code::kDenied, Code::kNotProven, Code::kIncompatible}) {
    asked_ = 0;
    EXPECT_EQ(Prune({code}).error().code, code);
    EXPECT_EQ(asked_, 1U);
  }
}

}  // namespace
}  // namespace kvcove::requester
