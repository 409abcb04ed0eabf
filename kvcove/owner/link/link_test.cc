// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/link/link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvcove/owner/link/link_core_fixture.h"

namespace kvcove::owner {
namespace {

// The write of the last opening may take long, and resets by others wait for the lease.
TEST(LinkTest, AStopDrawsTheLastOpeningWhileTheLeaseIsStillRenewed) {
  FakeTarget target;
  Outbox outbox(SystemClock::Instance());
  Link link(target, outbox, {}, SystemClock::Instance());
  link.Stop();
  EXPECT_THAT(target.said, testing::ElementsAre("last opening", "no waits", "no lease"));
  link.Stop();
  EXPECT_EQ(target.said.size(), 3U) << "once";
}

}  // namespace
}  // namespace kvcove::owner
