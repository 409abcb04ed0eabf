// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/size.h"

#include <gtest/gtest.h>

#include <clocale>
#include <cstdlib>
#include <filesystem>

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

// A program that loads an engine may set any locale: with a decimal comma, and with letters of its
// own. Made here, because a host need not have one.
TEST(SizeTest, TheLocaleOfTheProgramChangesNothing) {
  const std::string directory = testing::TempDir() + "kvcove-locales-XXXXXX";
  std::string made = directory;
  ASSERT_NE(mkdtemp(made.data()), nullptr);
  int set = 0;
  for (const std::string name : {"de_DE", "tr_TR"}) {
    const std::string path = made + "/" + name + ".UTF-8";
    const std::string command = "localedef -i " + name + " -f UTF-8 " + path + " >/dev/null 2>&1";
    (void)!std::system(command.c_str());
    setenv("LOCPATH", made.c_str(), 1);
    if (std::setlocale(LC_ALL, (name + ".UTF-8").c_str()) == nullptr) continue;
    ++set;
    EXPECT_EQ(ParseSize("1.5GiB").value_or(0), 3 * kGiB / 2) << name;
    EXPECT_EQ(ParseSize("64MIB").value_or(0), 64 * kMiB) << name;
    EXPECT_EQ(FormatSize(3 * kMiB / 2), "1.5MiB") << name;
  }
  std::setlocale(LC_ALL, "C");
  unsetenv("LOCPATH");
  std::filesystem::remove_all(made);
  if (set == 0) GTEST_SKIP() << "localedef, or the sources of locales, are not installed";
}

TEST(SizeTest, FormatsWithTheLargestUnit) {
  EXPECT_EQ(FormatSize(512), "512B");
  EXPECT_EQ(FormatSize(4 * kGiB), "4GiB");
  EXPECT_EQ(FormatSize(3 * kMiB / 2), "1.5MiB");
}

}  // namespace
}  // namespace kvcove
