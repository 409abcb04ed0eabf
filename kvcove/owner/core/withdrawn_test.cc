// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/core/withdrawn.h"

#include <gtest/gtest.h>

#include "kvcove/owner/core/core_fixture.h"

namespace kvcove::owner {
namespace {

using Places = std::vector<Place>;

class WithdrawnTest : public testing::Test {
 protected:
  static void Protect(TestPage& page, std::size_t lane, std::vector<Place> places) {
    (*page).lanes[lane].used = static_cast<std::uint32_t>(places.size());
    for (std::size_t i = 0; i < places.size(); ++i) {
      (*page).lanes[lane].slots[i].place = places[i];
    }
  }
  Steps steps_;
  Withdrawn withdrawn_{/*payload_bytes=*/16 * 1000, segment::Granule(), steps_};
};

TEST_F(WithdrawnTest, WhatNothingProtectsIsFreeAtOnce) {
  withdrawn_.Add(5, 100);
  withdrawn_.Add(6, 10);
  EXPECT_EQ(withdrawn_.bytes(), 192U);
  EXPECT_EQ(withdrawn_.Settle(), (Places{5, 6}));
  EXPECT_EQ(withdrawn_.bytes(), 0U);
  EXPECT_EQ(withdrawn_.Settle(), Places{});
}

TEST_F(WithdrawnTest, AReaderKeepsItsObjectUntilItHasCopied) {
  TestPage page;
  withdrawn_.AddPage(1, page.get());
  Protect(page, 3, {5});
  withdrawn_.Add(5, 100);
  withdrawn_.Add(6, 100);
  EXPECT_EQ(withdrawn_.Settle(), Places{6});
  EXPECT_TRUE(withdrawn_.waiting());
  EXPECT_EQ(withdrawn_.Recheck(), Places{});
  Protect(page, 3, {});
  EXPECT_EQ(withdrawn_.Recheck(), Places{5});
  EXPECT_FALSE(withdrawn_.waiting());
}

TEST_F(WithdrawnTest, ALoanKeepsItsObjectUntilItsLastReturn) {
  withdrawn_.Lend(5);
  withdrawn_.Lend(5);
  withdrawn_.Add(5, 100);
  EXPECT_EQ(withdrawn_.Settle(), Places{});
  EXPECT_FALSE(withdrawn_.Return(5));
  EXPECT_EQ(withdrawn_.Recheck(), Places{});
  EXPECT_TRUE(withdrawn_.Return(5));
  EXPECT_EQ(withdrawn_.Settle(), Places{5});
  EXPECT_FALSE(withdrawn_.Return(5)) << "nobody has borrowed it";
}

TEST_F(WithdrawnTest, AnEvictionLooksAtItsOwnVictimsOnly) {
  TestPage page;
  withdrawn_.AddPage(1, page.get());
  std::vector<Place> kept;
  for (Place place = 1; place <= segment::kLaneSlots; ++place) {
    kept.push_back(place);
    withdrawn_.Add(place, 10);
  }
  Protect(page, 0, kept);
  EXPECT_EQ(withdrawn_.Settle(), Places{});
  const std::uint64_t before = steps_.withdrawn;
  withdrawn_.Add(1000, 10);
  EXPECT_EQ(withdrawn_.Settle(), Places{1000});
  EXPECT_EQ(steps_.withdrawn - before, 1U);
}

TEST_F(WithdrawnTest, WhatASessionKeepsBeyondItsBoundIsItsExcessAndStaysProtected) {
  TestPage page;
  TestPage other;
  withdrawn_.AddPage(1, page.get());
  withdrawn_.AddPage(2, other.get());
  Protect(page, 0, {5, 6});
  Protect(page, 1, {5, 7});  // twice the same counts once
  Protect(other, 0, {7});
  for (const Place place : {5, 6, 7}) withdrawn_.Add(static_cast<Place>(place), 400);
  EXPECT_EQ(withdrawn_.Settle(), Places{});
  EXPECT_EQ(withdrawn_.Recheck(), Places{});
  EXPECT_EQ(withdrawn_.ExcessBytes(1), 200U);
  EXPECT_EQ(withdrawn_.ExcessBytes(2), 0U);
  withdrawn_.RemovePage(1);
  EXPECT_EQ(withdrawn_.Recheck(), (Places{5, 6}));
  EXPECT_EQ(withdrawn_.ExcessBytes(1), 0U);
}

}  // namespace
}  // namespace kvcove::owner
