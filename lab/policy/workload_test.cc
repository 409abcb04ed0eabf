// SPDX-License-Identifier: Apache-2.0
#include "lab/policy/workload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace kvcove::lab {
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

TEST(WorkloadTest, AShiftReturnsToTheTrace) {
  const std::vector<Chain> trace = Trace();
  const auto requests = *MakeWorkload("shift", trace, 3);
  ASSERT_EQ(requests.size(), 60U);
  EXPECT_TRUE(std::equal(trace.begin(), trace.begin() + 20, requests.begin()));
  EXPECT_TRUE(std::equal(trace.begin() + 20, trace.end(), requests.begin() + 40));
  for (std::size_t i = 20; i < 40; ++i) {
    EXPECT_GT(std::ranges::min(requests[i]), 239U) << "no block of the trace";
  }
}

// A turn has all full blocks of the one before, and another partial one.
TEST(WorkloadTest, TurnsOfASessionGoOnFromEachOther) {
  const auto requests = *MakeWorkload("sessions", {}, 2);
  std::map<std::uint32_t, std::size_t> seen;  // last full block of a request
  std::size_t later = 0;
  for (const Chain& chain : requests) {
    for (std::size_t i = 0; i + 1 < chain.size(); ++i) later += seen.contains(chain[i]) ? 1 : 0;
    EXPECT_FALSE(seen.contains(chain.back())) << "each partial block is asked for once";
    seen.emplace(chain.back(), 0);
    if (chain.size() > 1) ++seen[chain[chain.size() - 2]];
  }
  EXPECT_GT(later, requests.size() / 4);
}

TEST(WorkloadTest, AnUnknownNameIsTold) {
  const auto made = MakeWorkload("zip", {}, 1);
  ASSERT_FALSE(made);
  EXPECT_NE(made.error().detail.find("zipf"), std::string::npos);
}

// What the default is for: on none of them, at no size, it finds clearly less than LRU.
TEST(WorkloadTest, TheDefaultIsNotBeatenByRecency) {
  for (const std::string_view name : {"loop", "zipf", "agents", "sessions"}) {
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
}  // namespace kvcove::lab
