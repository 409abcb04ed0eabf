// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/server/server_metrics.h"

#include <gmock/gmock.h>

#include <memory>

namespace kvcove::master {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(ServerMetricsTest, OfTwoOwnersInTurnAtOneAddressTheLaterIsShown) {
  const FakeClock clock;
  const auto standings = std::make_unique<Standings>(clock);
  const wire::OwnerStat ended{
      .number = 0, .address = "h1:7401", .live = false, .lease_age_ns = 60 * kSecond, .puts = 9};
  const wire::OwnerStat later{
      .number = 1, .address = "h1:7401", .live = true, .lease_age_ns = kMillisecond, .puts = 2};
  const wire::OwnerStat away{
      .number = 2, .address = "h2:7401", .live = false, .lease_age_ns = 9 * kSecond, .puts = 3};
  for (const auto& owners : {std::vector{ended, later, away}, std::vector{away, later, ended}}) {
    Metrics metrics;
    CollectOwners(metrics, owners, *standings, clock.NowNs());
    const std::string text = metrics.Text();
    EXPECT_THAT(text, HasSubstr("kvcove_master_owner_live{owner=\"h1:7401\"} 1\n"));
    EXPECT_THAT(text, Not(HasSubstr("kvcove_master_owner_live{owner=\"h1:7401\"} 0\n")));
    EXPECT_THAT(text, HasSubstr("kvcove_master_owner_puts_total{owner=\"h1:7401\"} 2\n"));
    EXPECT_THAT(text, HasSubstr("kvcove_master_owner_live{owner=\"h2:7401\"} 0\n"));
  }
}

}  // namespace
}  // namespace kvcove::master
