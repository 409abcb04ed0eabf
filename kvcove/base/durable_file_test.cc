// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/durable_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>

namespace kvcove {
namespace {

class DurableFileTest : public testing::Test {
 protected:
  DurableFileTest() {
    std::string name = testing::TempDir() + "/kvcove-durable-XXXXXX";
    directory_ = mkdtemp(name.data());
  }
  ~DurableFileTest() override { std::filesystem::remove_all(directory_); }
  std::size_t Files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(directory_),
                                                  std::filesystem::directory_iterator()));
  }

  std::string directory_;
};

TEST_F(DurableFileTest, AFileIsReplacedWholeAndIsThisUsersAlone) {
  ASSERT_TRUE(ReplaceFile(directory_, "note", std::string(3000, 'a')));
  ASSERT_TRUE(ReplaceFile(directory_, "note", "b"));
  EXPECT_EQ(*ReadSmallFile(directory_, "note"), "b");
  struct stat status{};
  ASSERT_EQ(stat((directory_ + "/note").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U);
  EXPECT_EQ(Files(), 1U);
  ASSERT_TRUE(RemoveFile(directory_, "note"));
  EXPECT_TRUE(RemoveFile(directory_, "note")) << "it is gone already";
  EXPECT_EQ(*ReadSmallFile(directory_, "note"), std::nullopt);
}

TEST_F(DurableFileTest, WhatCannotBeReplacedStaysAndNothingIsLeftBesideIt) {
  std::filesystem::create_directories(directory_ + "/note/inside");
  EXPECT_EQ(ReplaceFile(directory_, "note", "b").error().code, Code::kUnavailable);
  EXPECT_TRUE(std::filesystem::is_directory(directory_ + "/note/inside"));
  EXPECT_EQ(Files(), 1U);
  EXPECT_EQ(ReplaceFile(directory_ + "/none", "note", "b").error().code, Code::kUnavailable);
}

}  // namespace
}  // namespace kvcove
