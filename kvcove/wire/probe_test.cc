// SPDX-License-Identifier: Apache-2.0
#include "kvcove/wire/probe.h"

#include <gtest/gtest.h>

#include "kvcove/wire/frame.h"

namespace kvcove::wire {
namespace {

TEST(ProbeTest, AMeasurementIsReadAsItWasWritten) {
  const auto read = DecodeProbe(AsBytes(Encode(Probe{.payload_bytes = 5, .wanted_bytes = 6})));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->payload_bytes, 5U);
  EXPECT_EQ(read->wanted_bytes, 6U);
}

TEST(ProbeTest, ManyBytesAreCorrupt) {
  EXPECT_TRUE(DecodeProbe(
      AsBytes(Encode(Probe{.payload_bytes = kMaxProbeBytes, .wanted_bytes = kMaxProbeBytes}))));
  for (const Probe& probe : {Probe{.payload_bytes = kMaxProbeBytes + 1, .wanted_bytes = 0},
                             Probe{.payload_bytes = 0, .wanted_bytes = ~0ULL}}) {
    const auto read = DecodeProbe(AsBytes(Encode(probe)));
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().code, Code::kCorrupt);
  }
}

}  // namespace
}  // namespace kvcove::wire
