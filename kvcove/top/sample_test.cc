// SPDX-License-Identifier: Apache-2.0
#include "kvcove/top/sample.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kvcove/base/metrics.h"
#include "kvcove/top/metrics_text.h"

namespace kvcove::top {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

// Answers of a master and of an owner, shortened.
Answers LeaderAnswers() {
  return {
      .endpoint = "m:7480",
      .bodies = {
          {"/v1/status", R"({"role":"leader","term":3})"},
          {"/v1/segments", R"({"segments":[{"address":"a:1","host":"h","state":"live",
             "capacity_bytes":1000,"free_bytes":400,"objects":7,"hits":10,"hit_bytes":100,
             "put_bytes":50,"disk_hits":4,"disk_hit_bytes":40,"lease_age_ms":250}]})"},
          {"/v1/namespaces",
           R"({"namespaces":[{"namespace":"n","version":"1","bytes":9,"dead":true}]})"},
          {"/v1/engines", R"({"engines":[{"engine":"e","namespace":"n","version":"1","open":false,
             "processes":1}],"registered":5})"},
          {"/v1/tasks", R"({"tasks":[{"id":4,"kind":"drain","state":"running","from":"a:1",
             "copied":2,"copied_bytes":20,"left":1,"seconds":1.5}]})"},
          {"/metrics",
           "# HELP x y\n"
           "kvcove_requester_misses_total{reason=\"never put\"} 6\n"
           "kvcove_master_resets_total 2\n"
           "kvcove_master_resets_not_proven_total 1\n"
           "kvcove_master_refused_calls_total{reason=\"a\"} 1\n"
           "kvcove_master_refused_calls_total{reason=\"b\"} 2\n"
           "kvcove_master_call_seconds_bucket{call=\"lookup\",le=\"0.001\"} 3\n"
           "kvcove_master_call_seconds_bucket{call=\"lookup\",le=\"+Inf\"} 4\n"},
      }};
}

Answers OwnerAnswers() {
  return {.endpoint = "a:7481",
          .bodies = {
              {"/v1/stat", R"({"namespaces":[{"namespace":"n","bytes":600}],
                 "sessions":[{"pid":77,"protected_objects":2}]})"},
              {"/metrics",
               "kvcove_owner_capacity_bytes{tier=\"memory\"} 1000\n"
               "kvcove_owner_free_bytes{tier=\"memory\"} 300\n"
               "kvcove_owner_capacity_bytes{disk=\"/d1\",tier=\"disk\"} 2000\n"
               "kvcove_owner_capacity_bytes{disk=\"/d2\",tier=\"disk\"} 2000\n"
               "kvcove_owner_object_bytes{disk=\"/d1\",tier=\"disk\"} 500\n"
               "kvcove_owner_objects{tier=\"memory\"} 6\n"
               "kvcove_owner_objects{disk=\"/d1\",tier=\"disk\"} 60\n"
               "kvcove_owner_disk_aside{disk=\"/d2\"} 1\n"
               "kvcove_owner_disk_hits_total{disk=\"/d1\"} 3\n"
               "kvcove_owner_hits_total{tier=\"memory\"} 12\n"
               "kvcove_owner_expected_asked_total{tier=\"memory\"} 40\n"
               "kvcove_owner_expected_hits_total{size=\"double\",tier=\"memory\"} 20\n"
               "kvcove_owner_expected_hits_total{size=\"double\",tier=\"disk\"} 30\n"
               "kvcove_owner_distinct_values{tier=\"memory\"} 8\n"
               "kvcove_owner_lease_seconds 0.75\n"
               "kvcove_owner_local_misses_total{reason=\"evicted\"} 8\n"
               "kvcove_owner_call_seconds_bucket{call=\"get\",le=\"+Inf\"} 9\n"},
          }};
}

TEST(SampleTest, AMasterTellsOfOwnersNamespacesEnginesAndTasks) {
  const auto sample = MakeSample({LeaderAnswers()});
  ASSERT_TRUE(sample) << sample.error().ToString();
  EXPECT_EQ(sample->role, "leader");
  EXPECT_EQ(sample->term, 3U);
  ASSERT_EQ(sample->owners->size(), 1U);
  const Owner& owner = sample->owners->front();
  EXPECT_EQ(owner.address, "a:1");
  EXPECT_EQ(owner.free_bytes, 400U);
  EXPECT_EQ(owner.hit_bytes, 100U);
  EXPECT_EQ(owner.disk_hits, 4U);
  EXPECT_EQ(owner.lease_age_s, 0.25);
  EXPECT_EQ(sample->namespaces->front().bytes, 9U);
  EXPECT_EQ(sample->namespaces->front().dead, true);
  EXPECT_EQ(sample->engines->front().state, "must reset");
  EXPECT_EQ(sample->registered, 5U);
  EXPECT_TRUE(sample->tasks->front().unfinished());
  EXPECT_THAT(sample->misses, ElementsAre(Pair("never put", 6U)));
  EXPECT_EQ(sample->counters.at("resets"), 2U);
  EXPECT_EQ(sample->counters.at("refused calls"), 3U) << "the sum over the reasons";
  EXPECT_EQ(sample->calls.at("lookup").count(), 4U);
}

TEST(SampleTest, AnOwnerAloneTellsOfItself) {
  const auto sample = MakeSample({OwnerAnswers()});
  ASSERT_TRUE(sample) << sample.error().ToString();
  EXPECT_EQ(sample->role, "owner");
  ASSERT_EQ(sample->owners->size(), 1U);
  const Owner& owner = sample->owners->front();
  EXPECT_EQ(owner.address, "a:7481");
  EXPECT_EQ(owner.state, "live");
  EXPECT_EQ(owner.capacity_bytes, 1000U);
  EXPECT_EQ(owner.disk_capacity_bytes, 4000U);
  EXPECT_EQ(owner.disk_bytes, 500U);
  EXPECT_EQ(owner.disks, 2U);
  EXPECT_EQ(owner.disks_aside, 1U);
  EXPECT_EQ(owner.objects, 6U) << "those in memory";
  EXPECT_EQ(owner.disk_hits, 3U);
  EXPECT_EQ(owner.lease_left_s, 0.75);
  EXPECT_EQ(sample->namespaces->front().bytes, 600U);
  EXPECT_EQ(sample->engines->front().name, "process 77");
  EXPECT_THAT(sample->misses, ElementsAre(Pair("evicted", 8U)));
  EXPECT_EQ(sample->calls.at("remote get").count(), 9U);
  EXPECT_THAT(sample->expected.OfMemory(), ElementsAre(Pair("any", 0.8), Pair("double", 0.5)));
  EXPECT_THAT(sample->expected.OfDisk(), ElementsAre(Pair("double", 0.75)));
  EXPECT_FALSE(sample->tasks) << "it knows none";
}

TEST(SampleTest, BesideItsMasterAnOwnerAddsItsLatenciesOnly) {
  const auto sample = MakeSample({OwnerAnswers(), LeaderAnswers()});
  ASSERT_TRUE(sample) << sample.error().ToString();
  ASSERT_EQ(sample->owners->size(), 1U);
  EXPECT_EQ(sample->owners->front().address, "a:1");
  EXPECT_EQ(sample->namespaces->front().bytes, 9U);
  EXPECT_THAT(sample->misses, ElementsAre(Pair("never put", 6U)))
      << "a miss in an owner's own memory may be a hit elsewhere";
  EXPECT_TRUE(sample->calls.contains("lookup"));
  EXPECT_TRUE(sample->calls.contains("remote get"));
}

TEST(SampleTest, OfSeveralMastersTheLeaderCounts) {
  Answers standby{.endpoint = "s:7480",
                  .bodies = {{"/v1/status", R"({"role":"standby","term":2})"},
                             {"/metrics", "kvcove_master_resets_total 40\n"}}};
  const auto sample = MakeSample({standby, LeaderAnswers()});
  ASSERT_TRUE(sample) << sample.error().ToString();
  EXPECT_EQ(sample->role, "leader");
  EXPECT_EQ(sample->counters.at("resets"), 2U);
  const auto alone = MakeSample({standby});
  ASSERT_TRUE(alone) << alone.error().ToString();
  EXPECT_EQ(alone->role, "standby");
  EXPECT_FALSE(alone->owners);
}

TEST(SampleTest, SectionsThatAnEndpointDoesNotHaveAreMissing) {
  Answers answers = LeaderAnswers();
  answers.bodies.erase("/v1/engines");
  answers.bodies.erase("/metrics");
  const auto sample = MakeSample({answers});
  ASSERT_TRUE(sample) << sample.error().ToString();
  EXPECT_FALSE(sample->engines);
  EXPECT_FALSE(sample->registered);
  EXPECT_TRUE(sample->calls.empty());
  EXPECT_TRUE(sample->owners);
}

TEST(SampleTest, AHostsCountersAreCompletedByItsMetrics) {
  Answers host = OwnerAnswers();
  host.bodies["/v1/status"] = R"({"role":"host"})";
  host.bodies["/v1/segments"] = R"({"segments":[{"address":"s","state":"live","hits":11}]})";
  const auto sample = MakeSample({host});
  ASSERT_TRUE(sample) << sample.error().ToString();
  EXPECT_EQ(sample->role, "host");
  ASSERT_EQ(sample->owners->size(), 1U);
  EXPECT_EQ(sample->owners->front().hits, 11U) << "its own answer counts first";
  EXPECT_EQ(sample->owners->front().disk_hits, 3U);
  EXPECT_FALSE(sample->owners->front().put_bytes);
  EXPECT_THAT(sample->misses, ElementsAre(Pair("evicted", 8U)));
}

TEST(SampleTest, FieldsOfAnotherTypeCountAsMissing) {
  Answers answers = LeaderAnswers();
  answers.bodies["/v1/segments"] = R"({"segments":[{"address":7,"hits":"x"},3]})";
  const auto sample = MakeSample({answers});
  ASSERT_TRUE(sample) << sample.error().ToString();
  ASSERT_EQ(sample->owners->size(), 1U);
  EXPECT_EQ(sample->owners->front().address, "");
  EXPECT_FALSE(sample->owners->front().hits);
}

TEST(SampleTest, NumbersOfAnotherProcessMayBeAnything) {
  Answers answers = LeaderAnswers();
  answers.bodies["/v1/segments"] =
      R"({"segments":[{"hits":-1,"hit_bytes":1e300,"free_bytes":0.5,"lease_age_ms":-7}]})";
  answers.bodies["/metrics"] =
      "kvcove_master_resets_total nan\n"
      "kvcove_master_prunes_total -inf\n"
      "kvcove_requester_misses_total{reason=\"evicted\"} 1e300\n"
      "kvcove_master_call_seconds_bucket{call=\"lookup\",le=\"nan\"} 3\n"
      "kvcove_master_call_seconds_bucket{call=\"lookup\",le=\"+Inf\"} 4\n";
  const auto sample = MakeSample({answers});
  ASSERT_TRUE(sample) << sample.error().ToString();
  EXPECT_FALSE(sample->owners->front().hits);
  EXPECT_FALSE(sample->owners->front().hit_bytes);
  EXPECT_EQ(sample->owners->front().free_bytes, 0U);
  EXPECT_EQ(sample->counters.at("resets"), 0U);
  EXPECT_EQ(sample->counters.at("prunes"), 0U);
  EXPECT_EQ(sample->misses.at("evicted"), std::uint64_t{1} << 63U);
  EXPECT_EQ(sample->calls.at("lookup").up_to.size(), 1U);
}

TEST(SampleTest, BytesThatNobodyCountsAreNotZero) {
  Answers answers = LeaderAnswers();
  answers.bodies["/v1/namespaces"] = R"({"namespaces":[{"namespace":"n","version":"1"}]})";
  const auto sample = MakeSample({answers});
  ASSERT_TRUE(sample) << sample.error().ToString();
  EXPECT_FALSE(sample->namespaces->front().bytes);
}

TEST(SampleTest, WithoutAMasterTheResetsAreThoseThatAnOwnerHasFollowed) {
  Answers first = OwnerAnswers();
  first.bodies["/metrics"] +=
      "kvcove_owner_reset_seconds_bucket{le=\"+Inf\"} 9\n"
      "kvcove_owner_resets_total{socket=\"a\",tier=\"memory\"} 4\n"
      "kvcove_owner_resets_total{socket=\"b\",tier=\"memory\"} 4\n";
  const auto alone = MakeSample({first});
  ASSERT_TRUE(alone) << alone.error().ToString();
  EXPECT_EQ(alone->counters.at("resets"), 4U) << "each owner of a host follows the same";
  const auto beside = MakeSample({first, LeaderAnswers()});
  ASSERT_TRUE(beside) << beside.error().ToString();
  EXPECT_EQ(beside->counters.at("resets"), 2U);
  EXPECT_EQ(beside->calls.at("local reset").count(), 9U);
  EXPECT_FALSE(beside->calls.contains("reset")) << "the master counts these itself";
}

TEST(SampleTest, OwnersWithTheSameNamespaceAddTheirBytes) {
  Answers second = OwnerAnswers();
  second.endpoint = "b:7481";
  second.bodies["/v1/stat"] =
      R"({"namespaces":[{"namespace":"m","bytes":1},{"namespace":"n","bytes":50}]})";
  const auto sample = MakeSample({OwnerAnswers(), second});
  ASSERT_TRUE(sample) << sample.error().ToString();
  ASSERT_EQ(sample->namespaces->size(), 2U);
  EXPECT_EQ(sample->namespaces->front().bytes, 650U);
  EXPECT_EQ(sample->namespaces->back().name, "m");
  EXPECT_THAT(sample->summed, ElementsAre("a:7481", "b:7481"));
}

TEST(SampleTest, AnotherServersAnswerIsAnError) {
  Answers answers = LeaderAnswers();
  answers.bodies["/v1/segments"] = "<html>";
  const auto sample = MakeSample({answers});
  ASSERT_FALSE(sample);
  EXPECT_EQ(sample.error().code, Code::kCorrupt);
  EXPECT_THAT(sample.error().detail, HasSubstr("m:7480 answers /v1/segments"));
}

TEST(TimesTest, QuantilesAreInterpolatedWithinABucket) {
  Times times{.up_to = {{0.001, 50}, {0.002, 98}, {0.004, 99}, {INFINITY, 100}}};
  EXPECT_DOUBLE_EQ(*times.Quantile(0.5), 0.001);
  EXPECT_DOUBLE_EQ(*times.Quantile(0.25), 0.0005);
  EXPECT_DOUBLE_EQ(*times.Quantile(0.99), 0.004);
  EXPECT_DOUBLE_EQ(*times.Quantile(1), 0.004) << "the largest bound that is known";
  EXPECT_FALSE(Times{}.Quantile(0.5));
  EXPECT_FALSE((Times{.up_to = {{INFINITY, 0}}}.Quantile(0.5)));
}

TEST(TimesTest, TheCallsOfAnIntervalAreADifference) {
  const Times before{.up_to = {{0.001, 50}, {INFINITY, 60}}};
  const Times now{.up_to = {{0.001, 51}, {INFINITY, 80}}};
  const Times since = now.Since(before);
  EXPECT_EQ(since.count(), 20U);
  EXPECT_EQ(since.up_to.at(0.001), 1U);
  EXPECT_EQ(before.Since(now).count(), 0U);
}

TEST(MetricsTextTest, ReadsWhatMetricsWrites) {
  Metrics metrics;
  metrics.Counter("a_total", "help", 1e12, {{"reason", "odd \"name\"\nwith \\ in it"}});
  metrics.Gauge("b", "help", -2.5);
  Histogram histogram;
  histogram.Add(3000);
  metrics.Histogram("c_seconds", "help", histogram, {{"call", "get"}});
  std::vector<std::string> seen;
  ReadMetrics(
      metrics.Text(), [](std::string_view name) { return name != "c_seconds_bucket"; },
      [&](std::string_view name, const Labels& labels, double value) {
        seen.push_back(std::string(name) + "=" + std::to_string(value));
        if (name == "a_total") {
          EXPECT_EQ(labels.at("reason"), "odd \"name\"\nwith \\ in it");
        }
      });
  EXPECT_THAT(seen, ElementsAre("a_total=1000000000000.000000", "b=-2.500000",
                                "c_seconds_sum=0.000003", "c_seconds_count=1.000000"));
}

TEST(MetricsTextTest, LinesInAnotherFormAreSkipped) {
  std::size_t seen = 0;
  ReadMetrics(
      "a{b=\"1\nno value\n{\nx{a=1} 2\ny{a=\"1\"} z\nlast 5", [](std::string_view) { return true; },
      [&](std::string_view name, const Labels&, double value) {
        ++seen;
        EXPECT_EQ(name, "last");
        EXPECT_EQ(value, 5);
      });
  EXPECT_EQ(seen, 1U);
}

}  // namespace
}  // namespace kvcove::top
