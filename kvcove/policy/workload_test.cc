// SPDX-License-Identifier: Apache-2.0
#include "kvcove/policy/workload.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace kvcove::policy {
namespace {

std::vector<Chain> Trace() {
  std::vector<Chain> trace;
  for (std::uint32_t i = 0; i < 40; ++i) trace.push_back({0, 100 + i, 200 + i});
  return trace;
}

TEST(WorkloadTest, TheSameSeedGivesTheSameRequests) {
  for (const std::string_view name : WorkloadNames()) {
    const auto once = *MakeWorkload(name, Trace(), 7);
    EXPECT_EQ(once, *MakeWorkload(name, Trace(), 7)) << name;
    EXPECT_FALSE(once.empty()) << name;
    EXPECT_TRUE(std::ranges::none_of(once, [](const Chain& chain) { return chain.empty(); }));
  }
  EXPECT_NE(*MakeWorkload("agents", {}, 1), *MakeWorkload("agents", {}, 2));
}

TEST(WorkloadTest, VariationsKeepTheTracesRequests) {
  const std::vector<Chain> trace = Trace();
  for (const std::string_view name : {"reversed", "shuffled"}) {
    auto requests = *MakeWorkload(name, trace, 3);
    EXPECT_NE(requests, trace) << name;
    std::sort(requests.begin(), requests.end());
    EXPECT_EQ(requests, trace) << name << ": the trace is sorted";
  }
  const auto scans = *MakeWorkload("scan", trace, 3);
  EXPECT_EQ(scans.size(), 44U);
  EXPECT_EQ(scans[10].size(), 200U);
  EXPECT_GT(scans[10].front(), 239U) << "no block of the trace";
}

TEST(WorkloadTest, AnUnknownNameIsTold) {
  const auto made = MakeWorkload("zip", {}, 1);
  ASSERT_FALSE(made);
  EXPECT_NE(made.error().detail.find("zipf"), std::string::npos);
}

// What the default is for: on none of them, at no size, it finds clearly less than LRU.
TEST(WorkloadTest, TheDefaultIsNotBeatenByRecency) {
  for (const std::string_view name : {"loop", "zipf", "agents"}) {
    auto requests = *MakeWorkload(name, {}, 1);
    requests.resize(5000);
    for (const std::uint64_t capacity : {1000, 10'000}) {
      EXPECT_GT(Simulate("default", requests, capacity)->ratio(),
                Simulate("lru", requests, capacity)->ratio() - 0.003)
          << name << " " << capacity;
    }
  }
}

}  // namespace
}  // namespace kvcove::policy
