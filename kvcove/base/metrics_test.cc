// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/metrics.h"

#include <fmt/core.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>

#include "kvcove/version.h"
#include "tests/fake_root.h"

namespace kvcove {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(MetricsTest, SeriesOfOneNameStandTogetherUnderOneHelp) {
  Metrics metrics;
  metrics.Gauge("a_bytes", "bytes", 1.5, {{"owner", "one"}, {"tier", "memory"}});
  metrics.Counter("b_total", "others", 3);
  metrics.Gauge("a_bytes", "bytes", 2e10, {{"owner", "two"}});
  EXPECT_EQ(metrics.Text(),
            "# HELP a_bytes bytes\n# TYPE a_bytes gauge\n"
            "a_bytes{owner=\"one\",tier=\"memory\"} 1.5\na_bytes{owner=\"two\"} 20000000000\n"
            "# HELP b_total others\n# TYPE b_total counter\nb_total 3\n");
}

TEST(MetricsTest, LabelsAreEscaped) {
  Metrics metrics;
  metrics.Gauge("a", "two\nlines", 1, {{"key", "a\"b\\c\nd"}});
  EXPECT_THAT(metrics.Text(), HasSubstr("a{key=\"a\\\"b\\\\c\\nd\"} 1\n"));
  EXPECT_THAT(metrics.Text(), HasSubstr("# HELP a two\\nlines\n"));
}

TEST(MetricsTest, ALabelThatIsNoUtf8IsEscapedSoThatTheScrapeIsTaken) {
  Metrics metrics;
  metrics.Gauge("a", "help", 1, {{"namespace", "caf\xe9"}});
  metrics.Gauge("a", "help", 2, {{"namespace", "café"}});
  EXPECT_THAT(metrics.Text(), HasSubstr("a{namespace=\"\\\"caf\\\\xe9\\\"\"} 1\n"));
  EXPECT_THAT(metrics.Text(), HasSubstr("a{namespace=\"café\"} 2\n"));
}

TEST(MetricsTest, NamesOfClientsAreBoundedAndTheRestIsSummedUp) {
  std::vector<NamedValue> values;
  for (std::size_t i = 1; i <= Metrics::kMostNamedSeries + 3; ++i) {
    values.push_back({.labels = {{"namespace", std::to_string(i)}, {"version", "v"}},
                      .value = static_cast<double>(i)});
  }
  Metrics metrics;
  metrics.Gauges("a", "help", values);
  const std::string text = metrics.Text();
  // Two lines are HELP and TYPE.
  EXPECT_EQ(static_cast<std::size_t>(std::ranges::count(text, '\n')),
            Metrics::kMostNamedSeries + 1 + 2);
  EXPECT_THAT(text, HasSubstr("a{namespace=\"203\",version=\"v\"} 203\n"));
  EXPECT_THAT(text, HasSubstr("a{namespace=\"4\",version=\"v\"} 4\n"));
  EXPECT_THAT(text, Not(HasSubstr("namespace=\"3\"")));
  EXPECT_THAT(text, HasSubstr("a{namespace=\"(others)\",version=\"(others)\"} 6\n"));

  // The sum keeps what tells two owners of one scrape apart.
  Metrics owners;
  owners.Gauges("a", "help", values, {{"socket", "/s1"}});
  owners.Gauges("a", "help", values, {{"socket", "/s2"}});
  for (const char* socket : {"/s1", "/s2"}) {
    EXPECT_THAT(owners.Text(),
                HasSubstr(fmt::format(
                    "a{{namespace=\"(others)\",socket=\"{}\",version=\"(others)\"}} 6\n", socket)));
  }

  values.resize(2);
  Metrics few;
  few.Gauges("a", "help", values);
  EXPECT_THAT(few.Text(), Not(HasSubstr("others")));
}

TEST(MetricsTest, NamesThatReadTheSameAreOneSeries) {
  Metrics metrics;
  metrics.Gauges("a", "help",
                 {{.labels = {{"namespace", "x"}}, .value = 1},
                  {.labels = {{"namespace", "caf\xe9"}}, .value = 2},
                  {.labels = {{"namespace", "x"}}, .value = 3},
                  {.labels = {{"namespace", "\"caf\\xe9\""}}, .value = 4}});
  EXPECT_THAT(metrics.Text(), HasSubstr("a{namespace=\"x\"} 4\n"));
  EXPECT_THAT(metrics.Text(), HasSubstr("a{namespace=\"\\\"caf\\\\xe9\\\"\"} 6\n"));

  // A client's name for the sum of the others is part of that sum.
  std::vector<NamedValue> values(Metrics::kMostNamedSeries + 2,
                                 {.labels = {{"namespace", "(others)"}}, .value = 1});
  for (std::size_t i = 1; i < values.size(); ++i)
    values[i].labels["namespace"] = fmt::format("n{:03}", i);
  Metrics others;
  others.Gauges("a", "help", values);
  const std::string text = others.Text();
  EXPECT_THAT(text, HasSubstr("a{namespace=\"(others)\"} 3\n"));
  EXPECT_EQ(text.find("(others)"), text.rfind("(others)"));

  // Of equal values those stay that were there, whatever their order.
  std::ranges::reverse(values);
  Metrics again;
  again.Gauges("a", "help", values);
  EXPECT_EQ(again.Text(), text);
}

TEST(MetricsTest, AHistogramsBucketsAreCumulativeAndEndWithAll) {
  Histogram histogram;
  histogram.Add(500);              // under 1 us
  histogram.Add(3'000);            // under 4 us
  histogram.Add(100'000'000'000);  // above every bound
  Metrics metrics;
  metrics.Histogram("call_seconds", "how long", histogram, {{"call", "get"}});
  const std::string text = metrics.Text();
  EXPECT_THAT(text, HasSubstr("call_seconds_bucket{call=\"get\",le=\"1e-06\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("call_seconds_bucket{call=\"get\",le=\"4e-06\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("call_seconds_bucket{call=\"get\",le=\"+Inf\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("call_seconds_count{call=\"get\"} 3\n"));
}

// H11: a thread that renews a lease is slowed like any other.
class ProcessMetricsTest : public FakeRootTest {
 protected:
  void SetUp() override {
    FakeRootTest::SetUp();
    Write("/proc/self/cgroup", "0::/pod/engine\n");
    Write("/proc/self/mountinfo",
          "30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
    Write("/sys/fs/cgroup/pod/engine/memory.high", "max\n");
    Write("/sys/fs/cgroup/pod/memory.high", "629145600\n");
    Write("/sys/fs/cgroup/pod/memory.events", "low 0\nhigh 17\nmax 3\noom 0\n");
  }
  std::string Text() const {
    Metrics metrics;
    metrics.Process(root_);
    return metrics.Text();
  }
};

TEST_F(ProcessMetricsTest, EachGroupWithAMemoryHighTellsHowOftenItSlowed) {
  EXPECT_THAT(Text(), HasSubstr("kvcove_memory_high_events_total{group=\"/pod\"} 17\n"));
  EXPECT_THAT(Text(), Not(HasSubstr("group=\"/pod/engine\"")));
  Write("/sys/fs/cgroup/pod/engine/memory.high", "4096\n");
  Write("/sys/fs/cgroup/pod/engine/memory.events", "low 0\nhigh 2\n");
  EXPECT_THAT(Text(), HasSubstr("kvcove_memory_high_events_total{group=\"/pod/engine\"} 2\n"));
}

TEST_F(ProcessMetricsTest, TellsTheBuildAndTheStart) {
  EXPECT_THAT(Text(),
              HasSubstr("kvcove_build_info{version=\"" + std::string(Version()) + "\"} 1\n"));
  const std::string name = "\nprocess_start_time_seconds ";
  const std::string text = Text();
  ASSERT_NE(text.find(name), std::string::npos);
  const double started = std::atof(text.c_str() + text.find(name) + name.size());
  const auto now = static_cast<double>(std::time(nullptr));
  EXPECT_GT(started, now - 3600);
  EXPECT_LT(started, now + 2);
}

TEST_F(ProcessMetricsTest, WithoutMemoryHighNothingIsSaidOfIt) {
  Write("/sys/fs/cgroup/pod/memory.high", "max\n");
  EXPECT_THAT(Text(), Not(HasSubstr("memory_high")));
  EXPECT_THAT(Text(), HasSubstr("process_open_fds"));
}

}  // namespace
}  // namespace kvcove
