// SPDX-License-Identifier: Apache-2.0
#include "kvcove/http/metrics.h"

#include <gmock/gmock.h>

namespace kvcove::http {
namespace {

using ::testing::HasSubstr;

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

}  // namespace
}  // namespace kvcove::http
