// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/link/link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvcove/base/carry.h"
#include "kvcove/base/log.h"
#include "kvcove/owner/link/link_core_fixture.h"
#include "kvcove/rpc/address.h"

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

// The process that gave its state continues with the lease, and the master knows it alone.
TEST(LinkTest, OneThatHasTakenOverAndNeverStartsEndsNoLease) {
  SetLogLevel(LogLevel::kOff);
  FakeTarget target;
  Outbox outbox(SystemClock::Instance());
  LinkOptions options;
  options.master = rpc::LoopbackAddress(1);  // nobody listens there
  StateWriter writer = *StateWriter::Open();
  {
    Link giver(target, outbox, options, SystemClock::Instance());
    giver.Pause();
    giver.Save(writer);
  }
  const UniqueFd state = *writer.Finish();
  for (const bool starts : {false, true}) {
    target.said.clear();
    {
      Link taker(target, outbox, options, SystemClock::Instance());
      StateReader reader = *StateReader::Open(state);
      taker.Load(reader);
      EXPECT_TRUE(reader.ok());
      if (starts) {
        EXPECT_TRUE(taker.Start());
      }
    }
    if (starts) {
      EXPECT_THAT(target.said, testing::ElementsAre("last opening", "no waits", "no lease"));
    } else {
      EXPECT_THAT(target.said, testing::IsEmpty());
    }
  }
}

}  // namespace
}  // namespace kvcove::owner
