// SPDX-License-Identifier: Apache-2.0
#include "kvcove/segment/payload.h"

#include <gtest/gtest.h>

#include "kvcove/base/size.h"

namespace kvcove::segment {
namespace {

constexpr std::uint64_t kTiB = kGiB << 10;

TEST(GranuleTest, TheSmallestThatReachesAllOfThePayloadIsChosen) {
  EXPECT_EQ(Granule::For(kMiB).bytes(), 64U);
  EXPECT_EQ(Granule::For(256 * kGiB).bytes(), 64U);
  EXPECT_EQ(Granule::For(256 * kGiB + 1).bytes(), 128U);
  EXPECT_EQ(Granule::For(512 * kGiB).bytes(), 128U);
  EXPECT_EQ(Granule::For(kTiB).bytes(), 256U);
  EXPECT_EQ(Granule::For(2 * kTiB).bytes(), 512U);
  EXPECT_EQ(Granule::For(4 * kTiB).bytes(), 1024U);
  EXPECT_EQ(Granule::For(8 * kTiB).bytes(), 2048U);
  EXPECT_EQ(Granule::For(16 * kTiB).bytes(), 4096U);
}

TEST(GranuleTest, ALargerOneMayBeForced) {
  EXPECT_EQ(Granule::Of(0, 300 * kGiB)->bytes(), 128U);
  EXPECT_EQ(Granule::Of(4096, kMiB)->bytes(), 4096U);
  EXPECT_EQ(Granule::Of(128, 300 * kGiB)->bytes(), 128U);
}

TEST(GranuleTest, AWrongOneIsRefusedWithTheRightOnes) {
  const auto detail = [](std::uint64_t bytes, std::uint64_t payload) {
    const auto granule = Granule::Of(bytes, payload);
    return granule ? "it was taken" : granule.error().detail;
  };
  EXPECT_EQ(detail(100, kMiB), "a granule of 100 B; give a power of two from 64B to 4KiB");
  EXPECT_EQ(detail(32, kMiB), "a granule of 32 B; give a power of two from 64B to 4KiB");
  EXPECT_EQ(detail(8192, kMiB), "a granule of 8192 B; give a power of two from 64B to 4KiB");
  EXPECT_EQ(detail(64, 300 * kGiB),
            "a granule of 64B reaches 256GiB of payload; 300GiB needs 128B or more");
  EXPECT_EQ(detail(0, 17 * kTiB), "a payload of 17TiB; a segment has at most 16TiB");
}

TEST(GranuleTest, ValuesOccupyWholeGranules) {
  const Granule granule = *Granule::Of(128, kMiB);
  EXPECT_EQ(granule.Count(1), 1U);
  EXPECT_EQ(granule.Count(128), 1U);
  EXPECT_EQ(granule.Count(129), 2U);
  EXPECT_EQ(granule.Occupied(129), 256U);
}

TEST(PayloadTest, ExtentsReachTheEndOf16TiB) {
  constexpr std::uintptr_t kBase = 1ULL << 45;  // nothing is there, and nothing is touched
  const Payload payload{.data = reinterpret_cast<std::byte*>(kBase),
                        .granule = Granule::For(16 * kTiB)};
  const auto last = payload.At({.start = 0xFFFFFFFF, .count = 1});
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(last.data()) + last.size(), kBase + 16 * kTiB);
}

}  // namespace
}  // namespace kvcove::segment
