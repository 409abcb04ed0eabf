// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/size.h"

#include <gtest/gtest.h>

namespace kvcove {
namespace {

TEST(SizeTest, ReadsBinaryAndDecimalUnits) {
  EXPECT_EQ(*ParseSize("4GiB"), 4 * kGiB);
  EXPECT_EQ(*ParseSize("64 KiB"), 64 * kKiB);
  EXPECT_EQ(*ParseSize("1.5m"), 3 * kMiB / 2);
  EXPECT_EQ(*ParseSize("3GB"), 3'000'000'000U);
  EXPECT_EQ(*ParseSize("4096"), 4096U);
}

TEST(SizeTest, NamesTheTextThatIsWrong) {
  for (const char* wrong : {"", "GiB", "4Gib4", "4 potatoes", "-1", "1.2.3G", "99999999999T"}) {
    const auto parsed = ParseSize(wrong);
    ASSERT_FALSE(parsed) << wrong;
    EXPECT_EQ(parsed.error().code, Code::kInvalid);
    EXPECT_NE(parsed.error().detail.find(wrong), std::string::npos);
    EXPECT_NE(parsed.error().detail.find("4GiB"), std::string::npos);
  }
}

TEST(SizeTest, FormatsWithTheLargestUnit) {
  EXPECT_EQ(FormatSize(512), "512B");
  EXPECT_EQ(FormatSize(4 * kGiB), "4GiB");
  EXPECT_EQ(FormatSize(3 * kMiB / 2), "1.5MiB");
}

}  // namespace
}  // namespace kvcove
