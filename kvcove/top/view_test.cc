// SPDX-License-Identifier: Apache-2.0
#include "kvcove/top/view.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace kvcove::top {
namespace {

class ViewTest : public testing::Test {
 protected:
  ViewTest() {
    before_.role = now_.role = "leader";
    before_.term = now_.term = 3;
    before_.owners = {Owner{.address = "a",
                            .state = "live",
                            .hits = 100,
                            .hit_bytes = 1000,
                            .put_bytes = 0,
                            .disk_hits = 0}};
    now_.owners = {Owner{.address = "a",
                         .state = "live",
                         .capacity_bytes = 10,
                         .free_bytes = 4,
                         .objects = 7,
                         .hits = 160,
                         .hit_bytes = 5000,
                         .put_bytes = 0,
                         .disk_hits = 20}};
    before_.misses = {{"never put", 10}};
    now_.misses = {{"evicted", 10}, {"never put", 40}};
  }
  View Make(double seconds = 2) const { return MakeView(&before_, now_, seconds); }

  Sample before_;
  Sample now_;
};

TEST_F(ViewTest, RatesAreDifferencesOfCountersOverTheTime) {
  const View view = Make();
  EXPECT_EQ(view.owners[0].hits, 30);
  EXPECT_EQ(view.down_bytes, 2000);
  EXPECT_EQ(view.up_bytes, 0);
  EXPECT_EQ(view.misses[0].reason, "never put") << "the most frequent first";
  EXPECT_EQ(view.misses[0].keys, 15);
  EXPECT_EQ(view.misses[1].keys, 5) << "a reason that is new counts from zero";
}

TEST_F(ViewTest, HitsAreSharedByTiers) {
  const View view = Make();
  // 60 values were read in two seconds, of which a disk had 20; 40 keys were missed.
  EXPECT_EQ(view.hits.keys, 50);
  EXPECT_DOUBLE_EQ(*view.hits.ratio, 0.6);
  EXPECT_DOUBLE_EQ(*view.hits.memory, 0.4);
  EXPECT_DOUBLE_EQ(*view.hits.disk, 0.2);
}

TEST_F(ViewTest, WithoutReadsThereIsNoRatio) {
  now_.owners = before_.owners;
  now_.misses = before_.misses;
  const View view = Make();
  EXPECT_EQ(view.hits.keys, 0);
  EXPECT_FALSE(view.hits.ratio);
}

TEST_F(ViewTest, TheFirstSampleHasNoRates) {
  const View view = MakeView(nullptr, now_, 0);
  EXPECT_FALSE(view.down_bytes);
  EXPECT_FALSE(view.hits.keys);
  EXPECT_FALSE(view.misses[0].keys);
  EXPECT_EQ(view.owners_live, 1U);
  EXPECT_EQ(view.capacity_bytes, 10U);
}

TEST_F(ViewTest, AnotherMastersCountersAreNotCompared) {
  now_.term = 4;
  const View view = Make();
  EXPECT_FALSE(view.down_bytes);
  EXPECT_EQ(view.seconds, 0);
}

TEST_F(ViewTest, SumsOverOtherEndpointsAreNotCompared) {
  before_.summed = {"m:7480"};
  now_.summed = {"m:7480", "a:7481"};
  before_.calls["get"].up_to = {{INFINITY, 1}};
  now_.calls["get"].up_to = {{INFINITY, 100'000}};
  const View view = Make();
  EXPECT_FALSE(view.misses[0].keys);
  EXPECT_FALSE(view.calls[0].calls) << "the owner's calls since its start";
  EXPECT_TRUE(view.calls[0].since_start);
}

TEST_F(ViewTest, AnOwnerThatWasStartedAnewHasNoRatesForOnce) {
  before_.owners->push_back({.address = "b", .state = "live", .hits = 500, .hit_bytes = 9000});
  now_.owners->push_back({.address = "b", .state = "live", .hits = 5, .hit_bytes = 90});
  const View view = Make();
  EXPECT_FALSE(view.owners[1].hits);
  EXPECT_EQ(view.down_bytes, 2000) << "those of the other owner";
}

TEST_F(ViewTest, AnOwnerThatHasJustJoinedHasNoRatesYet) {
  now_.owners->push_back({.address = "b", .state = "live", .hits = 5});
  EXPECT_FALSE(Make().owners[1].hits);
}

TEST_F(ViewTest, OwnersThatAreGoneAreNotSummed) {
  now_.owners->push_back({.address = "b", .state = "gone", .capacity_bytes = 90, .objects = 3});
  const View view = Make();
  EXPECT_EQ(view.owners_live, 1U);
  EXPECT_EQ(view.capacity_bytes, 10U);
  EXPECT_EQ(view.owners.size(), 2U);
}

TEST_F(ViewTest, LatenciesAreThoseOfTheIntervalWhereThereWereCalls) {
  before_.calls["get"].up_to = {{0.001, 100}, {0.002, 100}, {INFINITY, 100}};
  now_.calls["get"].up_to = {{0.001, 100}, {0.002, 110}, {INFINITY, 110}};
  before_.calls["reset"] = now_.calls["reset"] = before_.calls["get"];
  now_.calls["never"].up_to = {{INFINITY, 0}};
  const View view = Make();
  ASSERT_EQ(view.calls.size(), 2U) << "a call that was never made is left out";
  EXPECT_EQ(view.calls[0].calls, 5);
  EXPECT_FALSE(view.calls[0].since_start);
  EXPECT_DOUBLE_EQ(*view.calls[0].p50_s, 0.0015);
  EXPECT_EQ(view.calls[1].calls, 0);
  EXPECT_TRUE(view.calls[1].since_start);
  EXPECT_DOUBLE_EQ(*view.calls[1].p50_s, 0.0005);
}

TEST_F(ViewTest, JsonHasNullForWhatIsNotKnownAndNoSectionThatIsMissing) {
  const nlohmann::json first = JsonOf(MakeView(nullptr, now_, 0));
  EXPECT_EQ(first["schema"], "kvcove.top.1");
  EXPECT_TRUE(first["down_bytes_per_second"].is_null());
  EXPECT_TRUE(first["hit_ratio"].is_null());
  EXPECT_FALSE(first.contains("tasks"));
  const nlohmann::json second = JsonOf(Make());
  EXPECT_EQ(second["down_bytes_per_second"], 2000);
  EXPECT_EQ(second["misses"]["never put"]["total"], 40);
  EXPECT_EQ(second["owners"][0]["hits_per_second"], 30);
  EXPECT_FALSE(second["owners"][0].contains("lease_age_seconds"));
  EXPECT_EQ(second["capacity_bytes"], 10);
}

}  // namespace
}  // namespace kvcove::top
