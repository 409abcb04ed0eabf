// SPDX-License-Identifier: Apache-2.0
#include "kvcove/top/cells.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kvcove::top {
namespace {

TEST(CellsTest, WideCharactersTakeTwoCellsAndMarksNone) {
  EXPECT_EQ(Cells("abc"), 3U);
  EXPECT_EQ(Cells("\u00e9"), 1U);
  EXPECT_EQ(Cells("e\u0301"), 1U);
  EXPECT_EQ(Cells("\u6a21\u578b"), 4U);
  EXPECT_EQ(Cells("\xff\xc3"), 2U) << "bytes that are no UTF-8 count, and nothing is read behind";
}

TEST(CellsTest, TextFitsExactly) {
  EXPECT_EQ(Fit("abc", 5), "abc  ");
  EXPECT_EQ(Fit("abc", 5, /*right=*/true), "  abc");
  EXPECT_EQ(Fit("abcdef", 5), "abcd~");
  EXPECT_EQ(Fit("abcdef", 1), "~");
  EXPECT_EQ(Fit("abcdef", 0), "");
  // The second character would end in the cell of the mark.
  EXPECT_EQ(Fit("\u6a21\u578b\u6a21", 4), "\u6a21 ~");
}

TEST(CellsTest, FiguresAreShort) {
  EXPECT_EQ(CountText(std::nullopt), "-");
  EXPECT_EQ(CountText(0), "0");
  EXPECT_EQ(CountText(0.25), "0.2");
  EXPECT_EQ(CountText(9.96), "10");
  EXPECT_EQ(CountText(999), "999");
  EXPECT_EQ(CountText(999.6), "1.0k");
  EXPECT_EQ(CountText(12'345), "12.3k");
  EXPECT_EQ(CountText(999'600), "1.0M");
  EXPECT_EQ(CountText(123.4e12), "123T");
  EXPECT_EQ(BytesText(1536), "1.5KiB");
  EXPECT_EQ(BytesText(std::nullopt), "-");
  EXPECT_EQ(PercentText(0.931), "93.1 %");
}

TEST(CellsTest, FiguresBeyondAllBoundsHaveAText) {
  EXPECT_EQ(BytesText(1e300), BytesText(0x1p63));
  EXPECT_EQ(BytesText(-1), "0B");
  EXPECT_EQ(BytesText(NAN), "0B");
  EXPECT_EQ(TimeText(NAN), "0ns");
  EXPECT_EQ(TimeText(INFINITY), TimeText(1e12));
}

TEST(CellsTest, TimesChangeTheirUnit) {
  EXPECT_EQ(TimeText(850e-9), "850ns");
  EXPECT_EQ(TimeText(12.34e-6), "12.3us");
  EXPECT_EQ(TimeText(999.6e-6), "1.0ms");
  EXPECT_EQ(TimeText(0.25), "250ms");
  EXPECT_EQ(TimeText(2.1), "2.1s");
  EXPECT_EQ(TimeText(200), "3m20s");
  EXPECT_EQ(TimeText(7500), "2h05m");
  EXPECT_EQ(TimeText(400'000), "4d15h");
  EXPECT_EQ(TimeText(std::nullopt), "-");
}

}  // namespace
}  // namespace kvcove::top
