// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/call_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "kvcove/base/clock.h"

namespace kvcove::rpc {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr std::uint64_t kMiB = 1 << 20;

class CallLimitsTest : public testing::Test {
 protected:
  // How many of `calls` at this moment are admitted; each ends at once.
  int Admitted(CallLimits::Account& account, int calls, Traffic traffic = Traffic::kOther) {
    int admitted = 0;
    for (int i = 0; i < calls; ++i) {
      if (!account.Begin(traffic, 100, now_ns_).admitted()) continue;
      account.End(100);
      ++admitted;
    }
    return admitted;
  }
  static Refusal Why(const CallLimits& all) {
    const CallLimits::Stat stat = all.Count(0);
    for (std::size_t i = 1; i < kRefusals; ++i) {
      if (stat.refused[i] > 0) return static_cast<Refusal>(i);
    }
    return Refusal::kNone;
  }

  std::int64_t now_ns_ = 1'000'000 * kSecond;
};

TEST_F(CallLimitsTest, AConnectionHasASecondsWorthOfCallsAndThenItsRate) {
  CallLimits all({.connection = {.calls_per_second = 100}});
  const auto one = all.Enter({});
  const auto other = all.Enter({});
  EXPECT_EQ(Admitted(*one, 500), 100);
  EXPECT_EQ(Why(all), Refusal::kConnectionCalls);
  EXPECT_EQ(Admitted(*other, 100), 100) << "another connection's limit is its own";
  now_ns_ += kSecond / 10;
  EXPECT_EQ(Admitted(*one, 500), 10);
  now_ns_ += 100 * kSecond;
  EXPECT_EQ(Admitted(*one, 500), 100) << "what was not used is not saved up";
}

TEST_F(CallLimitsTest, ATenantsConnectionsShareItsRateAndNobodyElses) {
  CallLimits all({.connection = {}, .tenant = {.calls_per_second = 50}});
  const auto a1 = all.Enter({.tenant = "a"});
  const auto a2 = all.Enter({.tenant = "a"});
  const auto b = all.Enter({.tenant = "b"});
  const auto nobody = all.Enter({});
  EXPECT_EQ(Admitted(*a1, 30) + Admitted(*a2, 100), 50);
  EXPECT_EQ(Why(all), Refusal::kTenantCalls);
  EXPECT_EQ(Admitted(*b, 50), 50);
  EXPECT_EQ(Admitted(*nobody, 1000), 1000) << "callers without a tenant are not one";
  const CallLimits::Stat stat = all.Count(now_ns_);
  ASSERT_EQ(stat.tenants.size(), 2U);
  EXPECT_EQ(stat.tenants[0].tenant, "a");
  EXPECT_EQ(stat.tenants[0].connections, 2U);
  EXPECT_EQ(stat.tenants[0].refused, 80U);
  EXPECT_TRUE(stat.tenants[0].limited);
  EXPECT_FALSE(stat.tenants[1].limited);
  EXPECT_FALSE(all.Count(now_ns_ + 2 * kSecond).tenants[0].limited);
}

TEST_F(CallLimitsTest, ATenantsOwnLimitTakesThePlaceOfTheCommonOne) {
  CallLimits all({.connection = {}, .tenant = {.calls_per_second = 50, .bytes = kMiB}});
  const auto small = all.Enter({.tenant = "small", .own = {.calls_per_second = 5}});
  EXPECT_EQ(Admitted(*small, 100), 5);
  // Read anew with each connection, as the credentials are.
  const auto larger = all.Enter({.tenant = "small", .own = {.calls_per_second = 20}});
  now_ns_ += 10 * kSecond;
  EXPECT_EQ(Admitted(*small, 100), 20);
  EXPECT_EQ(all.Count(now_ns_).tenants[0].limit,
            (CallLimit{.calls_per_second = 20, .bytes = kMiB}));
}

TEST_F(CallLimitsTest, TheReserveIsForOwnersAndAdminAlone) {
  CallLimits all({.connection = {},
                  .tenant = {.calls_per_second = 10},
                  .all = {.calls_per_second = 100},
                  .reserve = 0.2});
  const auto engines = all.Enter({});
  const auto tenant = all.Enter({.tenant = "t"});
  const auto owner = all.Enter({.may_own = true});
  const auto admin = all.Enter({.tenant = "cluster", .administers = true});
  EXPECT_EQ(Admitted(*engines, 1000), 80);
  EXPECT_EQ(Why(all), Refusal::kAllCalls);
  EXPECT_EQ(Admitted(*tenant, 10), 0);
  EXPECT_EQ(Admitted(*tenant, 10, Traffic::kOwner), 0) << "saying so makes nobody an owner";
  EXPECT_EQ(Admitted(*owner, 10), 0) << "only what keeps its lease";
  EXPECT_EQ(Admitted(*owner, 12, Traffic::kOwner), 12);
  EXPECT_EQ(Admitted(*admin, 100), 8) << "of what the owner has left";
  EXPECT_EQ(all.Count(now_ns_).reserved_calls, 20U);
  now_ns_ += kSecond;
  EXPECT_EQ(Admitted(*admin, 1000), 100) << "beyond the reserve they share what others leave";
  EXPECT_EQ(Admitted(*engines, 10), 0);
}

TEST_F(CallLimitsTest, ARefusedCallCostsTheOtherLimitsNothing) {
  CallLimits all({.connection = {.calls_per_second = 1000},
                  .tenant = {.calls_per_second = 1000},
                  .all = {.calls_per_second = 10},
                  .reserve = 0});
  const auto account = all.Enter({.tenant = "a"});
  EXPECT_EQ(Admitted(*account, 900), 10);
  now_ns_ += kSecond;
  EXPECT_EQ(Admitted(*account, 900), 10) << "not what was refused for another's sake";
}

// ---- bytes

TEST_F(CallLimitsTest, BytesInFlightAreATenantsTogether) {
  CallLimits all({.connection = {}, .tenant = {.bytes = 10 * kMiB}});
  const auto one = all.Enter({.tenant = "a"});
  const auto two = all.Enter({.tenant = "a"});
  const auto other = all.Enter({.tenant = "b"});
  ASSERT_TRUE(one->Begin(Traffic::kOther, 6 * kMiB, now_ns_).admitted());
  const CallLimits::Verdict refused = two->Begin(Traffic::kOther, 6 * kMiB, now_ns_);
  EXPECT_EQ(refused.refusal, Refusal::kTenantBytes);
  EXPECT_GE(refused.retry_after_ms, CallLimits::kLeastRetryMs);
  EXPECT_FALSE(refused.close);
  EXPECT_TRUE(two->Begin(Traffic::kOther, 4 * kMiB, now_ns_).admitted());
  EXPECT_TRUE(other->Begin(Traffic::kOther, 10 * kMiB, now_ns_).admitted());
  EXPECT_EQ(all.Count(now_ns_).bytes, 20 * kMiB);
  one->End(6 * kMiB);
  EXPECT_TRUE(one->Begin(Traffic::kOther, 5 * kMiB, now_ns_).admitted());
}

TEST_F(CallLimitsTest, ASingleCallPassesAloneWhateverItsSize) {
  CallLimits all({.connection = {}, .tenant = {.bytes = kMiB}, .all = {.bytes = 2 * kMiB}});
  const auto one = all.Enter({.tenant = "a"});
  const auto two = all.Enter({.tenant = "a"});
  ASSERT_TRUE(one->Begin(Traffic::kOther, 1000, now_ns_).admitted());
  EXPECT_TRUE(one->More(100 * kMiB, now_ns_).admitted()) << "its own head is not beside it";
  EXPECT_FALSE(two->Begin(Traffic::kOther, 1, now_ns_).admitted());
  one->End(100 * kMiB + 1000);
  ASSERT_TRUE(two->Begin(Traffic::kOther, 1000, now_ns_).admitted());
  EXPECT_FALSE(one->More(100 * kMiB, now_ns_).admitted());
}

TEST_F(CallLimitsTest, CallsSideBySideOfOneConnectionShareItsBytes) {
  CallLimits all({.connection = {.bytes = kMiB}});
  const auto one = all.Enter({});
  ASSERT_TRUE(one->Begin(Traffic::kOther, kMiB, now_ns_).admitted());
  EXPECT_EQ(one->Begin(Traffic::kOther, 1, now_ns_).refusal, Refusal::kConnectionBytes);
  one->End(kMiB);
  EXPECT_TRUE(one->Begin(Traffic::kOther, 1, now_ns_).admitted());
}

TEST_F(CallLimitsTest, OwnersHaveBytesWhereTheOthersHaveNone) {
  CallLimits all({.connection = {}, .all = {.bytes = 8 * kMiB}, .reserve = 0.25});
  const auto engine = all.Enter({});
  const auto second = all.Enter({});
  const auto owner = all.Enter({.may_own = true});
  engine->Hold(100 * kMiB);  // such as answers that nobody reads
  EXPECT_FALSE(second->Begin(Traffic::kOther, 1, now_ns_).admitted());
  EXPECT_TRUE(owner->Begin(Traffic::kOwner, kMiB, now_ns_).admitted());
  const auto another = all.Enter({.may_own = true});
  EXPECT_FALSE(another->Begin(Traffic::kOwner, 2 * kMiB, now_ns_).admitted())
      << "the reserve has its own bound";
  owner->End(kMiB);
  EXPECT_TRUE(another->Begin(Traffic::kOwner, 2 * kMiB, now_ns_).admitted());
}

TEST_F(CallLimitsTest, AConnectionThatEndsGivesAllOfItBack) {
  CallLimits all({.connection = {}, .tenant = {.bytes = kMiB, .connections = 1}});
  all.SetConnections(100);
  {
    const auto one = all.Enter({.tenant = "a"});
    ASSERT_TRUE(one->Begin(Traffic::kOther, kMiB, now_ns_).admitted());
    one->Hold(kMiB);
    EXPECT_EQ(all.Count(now_ns_).bytes, 2 * kMiB);
  }
  EXPECT_EQ(all.Count(now_ns_).bytes, 0U);
  EXPECT_THAT(all.Count(now_ns_).tenants, IsEmpty());
  EXPECT_TRUE(all.Enter({.tenant = "a"})->Begin(Traffic::kOther, kMiB, now_ns_).admitted());
}

TEST_F(CallLimitsTest, WhoeverConnectsAnewGainsNoCalls) {
  CallLimits all({.connection = {}, .tenant = {.calls_per_second = 50}});
  int admitted = 0;
  for (int i = 0; i < 100; ++i) admitted += Admitted(*all.Enter({.tenant = "a"}), 10);
  EXPECT_EQ(admitted, 50);
  // Forgotten behind a second: it has all of its calls again by then, as everybody.
  now_ns_ += 2 * kSecond;
  EXPECT_EQ(Admitted(*all.Enter({.tenant = "b"}), 10), 10);
  EXPECT_EQ(Admitted(*all.Enter({.tenant = "a"}), 100), 50);
}

// ---- connections

TEST_F(CallLimitsTest, ATenantsConnectionsAreCounted) {
  CallLimits all({.connection = {}, .tenant = {.connections = 2}});
  const auto one = all.Enter({.tenant = "a"});
  const auto two = all.Enter({.tenant = "a"});
  auto three = all.Enter({.tenant = "a"});
  EXPECT_TRUE(two->Begin(Traffic::kOther, 1, now_ns_).admitted());
  const CallLimits::Verdict refused = three->Begin(Traffic::kOther, 1, now_ns_);
  EXPECT_EQ(refused.refusal, Refusal::kTenantConnections);
  EXPECT_TRUE(refused.close);
  three.reset();
  EXPECT_TRUE(all.Enter({.tenant = "b"})->Begin(Traffic::kOther, 1, now_ns_).admitted());
}

TEST_F(CallLimitsTest, OwnersConnectWhereOthersHaveUsedTheirConnectionsUp) {
  CallLimits all({.connection = {}, .reserve = 0.25});
  all.SetConnections(8);
  std::vector<std::unique_ptr<CallLimits::Account>> engines;
  std::vector<bool> admitted;
  for (int i = 0; i < 8; ++i) {
    // Without credentials each may be an owner, and shows with its first call that it is none.
    engines.push_back(all.Enter({.may_own = true}));
    admitted.push_back(engines.back()->Begin(Traffic::kOther, 1, now_ns_).admitted());
  }
  EXPECT_THAT(admitted, ElementsAre(true, true, true, true, true, true, false, false));
  const auto owner = all.Enter({.may_own = true});
  EXPECT_TRUE(owner->Begin(Traffic::kOwner, 1, now_ns_).admitted());
  engines.pop_back();
  engines.pop_back();
  engines.pop_back();
  EXPECT_TRUE(owner->Begin(Traffic::kOther, 1, now_ns_).admitted()) << "one has ended";
}

// ---- when to come again

TEST_F(CallLimitsTest, RefusedCallersAreToldDifferentMoments) {
  CallLimits all({.connection = {}, .tenant = {.calls_per_second = 100}});
  std::vector<std::unique_ptr<CallLimits::Account>> callers;
  for (int i = 0; i < 150; ++i) callers.push_back(all.Enter({.tenant = "a"}));
  std::vector<std::uint32_t> told;
  for (const auto& caller : callers) {
    const auto verdict = caller->Begin(Traffic::kOther, 1, now_ns_);
    if (!verdict.admitted()) told.push_back(verdict.retry_after_ms);
  }
  ASSERT_EQ(told.size(), 50U);
  for (std::size_t i = 0; i < told.size(); ++i) {
    EXPECT_EQ(told[i], 10 * (i + 1)) << "one each 10 ms, which is the tenant's rate";
  }
  // Each comes when it was told, and is admitted.
  for (std::size_t i = 0; i < told.size(); ++i) {
    EXPECT_TRUE(
        callers[100 + i]->Begin(Traffic::kOther, 1, now_ns_ + told[i] * kMillisecond).admitted())
        << i;
  }
}

TEST_F(CallLimitsTest, NobodyIsToldToWaitForLongerThanASecond) {
  CallLimits all({.connection = {}, .tenant = {.calls_per_second = 2}});
  const auto account = all.Enter({.tenant = "a"});
  for (int i = 0; i < 1000; ++i) {
    const auto verdict = account->Begin(Traffic::kOther, 1, now_ns_);
    if (!verdict.admitted()) {
      ASSERT_LE(verdict.retry_after_ms, CallLimits::kMostRetryMs);
      ASSERT_GE(verdict.retry_after_ms, CallLimits::kLeastRetryMs);
    }
  }
  now_ns_ += kSecond;
  EXPECT_EQ(Admitted(*account, 10), 2) << "refusals are no debt";
}

// ---- several threads

TEST_F(CallLimitsTest, ThreadsTakeNoMoreThanThereIs) {
  CallLimits all({.connection = {}, .tenant = {.calls_per_second = 10'000, .bytes = 1 << 30}});
  std::atomic<int> admitted{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      const auto account = all.Enter({.tenant = "a"});
      admitted += Admitted(*account, 10'000);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(admitted, 10'000);
  EXPECT_EQ(all.Count(now_ns_).bytes, 0U);
  EXPECT_THAT(all.Count(now_ns_).tenants, IsEmpty());
}

}  // namespace
}  // namespace kvcove::rpc
