// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/peers.h"

#include <gtest/gtest.h>

#include <atomic>

namespace kvcove::requester {
namespace {

// A hint may name an owner that has left since, and the master may be frozen.
TEST(PeersTest, AskingForAnOwnerThatIsNotKnownWaitsNoLongerThanItsCaller) {
  std::atomic<std::int64_t> asked_until_ns{0};
  Peers peers(
      [&](Asker asker, const std::vector<wire::OwnerNumber>&,
          std::int64_t deadline_ns) -> Result<std::vector<wire::OwnerStat>> {
        if (asker == Asker::kCall) asked_until_ns = deadline_ns;
        return Fail(Code::kTimeout, "the master is frozen");
      },
      [] { return rpc::Breaker::kNever; }, {}, SystemClock::Instance());
  const std::int64_t deadline_ns = SystemClock::Instance().NowNs() + 5 * kMillisecond;
  EXPECT_EQ(peers.Get(7, deadline_ns), nullptr);
  EXPECT_EQ(asked_until_ns, deadline_ns);
}

}  // namespace
}  // namespace kvcove::requester
