// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/cluster/peers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "kvcove/transport/pick/transports.h"

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
      [] { return rpc::Breaker::kNever; }, transport::Preferred(), {}, SystemClock::Instance());
  ASSERT_TRUE(peers.Start());
  const std::int64_t deadline_ns = SystemClock::Instance().NowNs() + 5 * kMillisecond;
  EXPECT_EQ(peers.Get(7, deadline_ns), nullptr);
  EXPECT_EQ(asked_until_ns, deadline_ns);
}

// A caller that says when the master is due may take locks of its own, and call this.
TEST(PeersTest, TheMasterIsAskedAboutWithoutALock) {
  std::atomic<Peers*> known{nullptr};
  std::atomic<int> asked{0};
  Peers peers(
      [](Asker, const std::vector<wire::OwnerNumber>&,
         std::int64_t) -> Result<std::vector<wire::OwnerStat>> {
        return std::vector<wire::OwnerStat>{{.number = 7, .address = "127.0.0.1:1"}};
      },
      [&] {
        if (Peers* const self = known.load(); self != nullptr) {
          EXPECT_EQ(self->Owners().size(), 1U);
          ++asked;
        }
        return rpc::Breaker::kNever;
      },
      transport::Preferred(), {}, SystemClock::Instance());
  ASSERT_TRUE(peers.Start());
  known = &peers;
  const std::int64_t until_ns = SystemClock::Instance().NowNs() + 60 * kSecond;
  while (asked == 0 && SystemClock::Instance().NowNs() < until_ns) {
    peers.Wake();
    std::this_thread::yield();
  }
  EXPECT_GT(asked, 0);
}

}  // namespace
}  // namespace kvcove::requester
