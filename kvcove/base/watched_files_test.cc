// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/watched_files.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "kvcove/base/log.h"

namespace kvcove {
namespace {

using Look = WatchedFiles::Look;

class WatchedFilesTest : public testing::Test {
 protected:
  void SetUp() override {
    Put("a", "1");
    Put("b", "1");
    ASSERT_TRUE(files_.Open([] { return Status(); }));
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  static std::string NewDirectory() {
    std::string name = testing::TempDir() + "kvcove-watched-XXXXXX";
    return mkdtemp(name.data());
  }
  // In one step, as editors do.
  void Put(const std::string& name, const std::string& text) const {
    const std::string path = directory_ + "/" + name;
    std::ofstream(path + ".new") << text;
    std::filesystem::rename(path + ".new", path);
  }
  Look Refresh(bool now = false) {
    return files_.Refresh(now, [&]() -> Status {
      ++reads_;
      if (broken_) return Fail(Code::kInvalid, "broken");
      return {};
    });
  }
  Look Later() {
    clock_.AdvanceNs(kSecond);
    return Refresh();
  }

  const std::string directory_ = NewDirectory();
  FakeClock clock_;
  WatchedFiles files_ =
      WatchedFiles("the files", {directory_ + "/a", "", directory_ + "/b"}, clock_);
  int reads_ = 0;
  bool broken_ = false;
};

TEST_F(WatchedFilesTest, WhatHasChangedIsReadOnceAndLookedAtOnceASecond) {
  EXPECT_EQ(Later(), Look::kSame);
  Put("b", "2");
  EXPECT_EQ(Refresh(), Look::kNotDue);
  EXPECT_EQ(Refresh(/*now=*/true), Look::kRead);
  EXPECT_EQ(Later(), Look::kSame);
  Put("a", "2");
  EXPECT_EQ(Later(), Look::kRead);
  EXPECT_EQ(reads_, 2);
}

TEST_F(WatchedFilesTest, WhatCannotBeReadIsReadAgainAndSaidOnce) {
  SetLogLevel(LogLevel::kWarn);
  testing::internal::CaptureStderr();
  Put("a", "2");
  broken_ = true;
  EXPECT_EQ(Later(), Look::kFailed);
  EXPECT_EQ(Later(), Look::kFailed);
  EXPECT_EQ(reads_, 2);
  broken_ = false;
  EXPECT_EQ(Later(), Look::kRead);
  SetLogLevel(LogLevel::kOff);
  const std::string log = testing::internal::GetCapturedStderr();
  const std::size_t said = log.find("the files are those of before: ");
  EXPECT_NE(said, std::string::npos) << log;
  EXPECT_EQ(log.find("those of before", said + 40), std::string::npos) << log;
  EXPECT_NE(log.find("the files are in order again", said), std::string::npos) << log;
}

TEST_F(WatchedFilesTest, AFileThatIsPutBackIsInOrderAgain) {
  SetLogLevel(LogLevel::kWarn);
  testing::internal::CaptureStderr();
  const std::string file = directory_ + "/a";
  broken_ = true;
  for (int i = 0; i < 2; ++i) {
    std::filesystem::rename(file, file + ".before");
    EXPECT_EQ(Later(), Look::kFailed);
    std::filesystem::rename(file + ".before", file);
    EXPECT_EQ(Later(), Look::kSame);
    EXPECT_EQ(Later(), Look::kSame);
  }
  const std::string log = testing::internal::GetCapturedStderr();
  SetLogLevel(LogLevel::kInfo);
  const auto count = [&](const std::string& text) {
    int found = 0;
    for (std::size_t at = log.find(text); at != std::string::npos; at = log.find(text, at + 1)) {
      ++found;
    }
    return found;
  };
  EXPECT_EQ(count("are those of before: "), 2) << log;
  EXPECT_EQ(count("the files are in order again"), 2) << log;
}

TEST_F(WatchedFilesTest, AFileThatIsGoneHasChanged) {
  std::filesystem::remove(directory_ + "/b");
  EXPECT_EQ(Later(), Look::kRead);
}

TEST_F(WatchedFilesTest, WhatCannotBeReadAtFirstIsAnError) {
  WatchedFiles files("the files", {directory_ + "/a"}, clock_);
  EXPECT_EQ(files.Open([]() -> Status { return Fail(Code::kInvalid, "broken"); }).error().detail,
            "broken");
}

}  // namespace
}  // namespace kvcove
