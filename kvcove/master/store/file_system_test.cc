// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/store/file_system.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace kvcove::master {
namespace {

class PosixFileSystemTest : public testing::Test {
 protected:
  PosixFileSystemTest() {
    char name[] = "/tmp/kvcove-disk-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~PosixFileSystemTest() override { std::filesystem::remove_all(path_); }

  Code OpenCode(const std::string& path) {
    const auto disk = PosixFileSystem::Open(path);
    return disk ? Code::kOk : disk.error().code;
  }

  std::string path_;
};

TEST_F(PosixFileSystemTest, WritesAppendsAndRenames) {
  auto disk = *PosixFileSystem::Open(path_ + "/made/below");
  EXPECT_EQ(*disk->Read("control"), std::nullopt);
  EXPECT_FALSE(*disk->Exists("control"));
  EXPECT_FALSE(disk->Append("control", "x")) << "an append makes no file";
  ASSERT_TRUE(disk->Write("control.new", "one"));
  ASSERT_TRUE(disk->Rename("control.new", "control"));
  ASSERT_TRUE(disk->Append("control", " two"));
  ASSERT_TRUE(disk->Sync("control"));
  EXPECT_EQ(*disk->Read("control"), "one two");
  ASSERT_TRUE(disk->Write("control.new", "three"));
  ASSERT_TRUE(disk->Rename("control.new", "control"));
  ASSERT_TRUE(disk->Append("control", " four")) << "to the new file, not to the one that went";
  EXPECT_EQ(*disk->Read("control"), "three four");
  EXPECT_FALSE(*disk->Exists("control.new"));
  EXPECT_EQ(disk->PathOf("control"), path_ + "/made/below/control");
}

TEST_F(PosixFileSystemTest, OneProcessUsesADirectory) {
  auto first = PosixFileSystem::Open(path_);
  ASSERT_TRUE(first);
  const auto second = PosixFileSystem::Open(path_);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::kUnavailable);
  EXPECT_NE(second.error().detail.find(path_), std::string::npos);
  first->reset();
  EXPECT_EQ(OpenCode(path_), Code::kOk);
}

TEST_F(PosixFileSystemTest, WhatIsRemovedIsMadeAnewBeforeTheNextWrite) {
  auto disk = *PosixFileSystem::Open(path_ + "/data");
  ASSERT_TRUE(disk->Write("control.new", "one"));
  ASSERT_TRUE(disk->Rename("control.new", "control"));
  ASSERT_TRUE(disk->Append("control", " two"));
  EXPECT_EQ(disk->Keeps("control").value_or(false), true);
  std::filesystem::remove(path_ + "/data/control");
  EXPECT_EQ(disk->Keeps("control").value_or(true), false);
  std::filesystem::remove_all(path_ + "/data");
  EXPECT_EQ(disk->Keeps("control").value_or(true), false);
  ASSERT_TRUE(disk->Write("control.new", "three"));
  ASSERT_TRUE(disk->Rename("control.new", "control"));
  ASSERT_TRUE(disk->Append("control", " four"));
  EXPECT_EQ(OpenCode(path_ + "/data"), Code::kUnavailable) << "the new lock is this disk's";
  disk.reset();
  EXPECT_EQ(*(*PosixFileSystem::Open(path_ + "/data"))->Read("control"), "three four");
}

// An operator renames it, or puts another one in its place.
TEST_F(PosixFileSystemTest, WhatIsMovedAwayIsMadeAnewAndNothingElseIsWrittenTo) {
  for (const bool replaced : {false, true}) {
    const std::string data = path_ + (replaced ? "/replaced" : "/data");
    auto disk = *PosixFileSystem::Open(data);
    ASSERT_TRUE(disk->Write("control", "one"));
    ASSERT_TRUE(disk->Append("control", " two"));
    std::filesystem::rename(data, data + ".away");
    if (replaced) {
      ASSERT_TRUE((*PosixFileSystem::Open(data))->Write("control", "of a backup"));
    }
    EXPECT_FALSE(disk->Append("control", " three"));
    EXPECT_EQ(*(*PosixFileSystem::Open(data + ".away"))->Read("control"), "one two");
    EXPECT_EQ(disk->Keeps("control").value_or(true), false) << "it must be written anew";
    EXPECT_EQ(*disk->Exists("control"), replaced);
    EXPECT_EQ(OpenCode(data), Code::kUnavailable) << "nobody else has it";
    ASSERT_TRUE(disk->Write("control.new", "all"));
    ASSERT_TRUE(disk->Rename("control.new", "control"));
    ASSERT_TRUE(disk->Append("control", " four"));
    EXPECT_EQ(disk->Keeps("control").value_or(false), true);
    EXPECT_EQ(*disk->Read("control"), "all four");
  }
}

TEST_F(PosixFileSystemTest, AfterItsLockWasRemovedAndTakenItWritesNothingMore) {
  auto first = *PosixFileSystem::Open(path_);
  ASSERT_TRUE(first->Write("control", "one"));
  std::filesystem::remove(path_ + "/lock");
  auto second = PosixFileSystem::Open(path_);
  ASSERT_TRUE(second) << "nothing says that the directory is in use";
  EXPECT_EQ(first->Append("control", "x").error().code, Code::kUnavailable);
  EXPECT_EQ(first->Write("control", "x").error().code, Code::kUnavailable);
  EXPECT_EQ(first->Keeps("control").error().code, Code::kUnavailable);
  ASSERT_TRUE((*second)->Append("control", " two"));
  EXPECT_EQ(*(*second)->Read("control"), "one two");
}

TEST_F(PosixFileSystemTest, WhatOthersMayHavePutThereIsNotUsed) {
  std::filesystem::permissions(path_, std::filesystem::perms(0777));
  EXPECT_EQ(OpenCode(path_), Code::kDenied);
  EXPECT_TRUE(std::filesystem::is_empty(path_));
  std::filesystem::permissions(path_, std::filesystem::perms(0755));
  std::filesystem::create_symlink(path_, path_ + "/link");
  EXPECT_EQ(OpenCode(path_ + "/link"), Code::kDenied);

  auto disk = *PosixFileSystem::Open(path_);
  const std::string file = path_ + "/control";
  std::ofstream(file) << "bytes";
  std::filesystem::permissions(file, std::filesystem::perms(0666));
  EXPECT_EQ(disk->Read("control").error().code, Code::kDenied);
  EXPECT_EQ(disk->Append("control", "x").error().code, Code::kDenied);
  std::filesystem::rename(file, path_ + "/elsewhere");
  std::filesystem::create_symlink(path_ + "/elsewhere", file);
  EXPECT_FALSE(disk->Read("control")) << "no link is followed";
  EXPECT_TRUE(*disk->Exists("control"));
}

// Another user who may write to the parent directory could put a link there. This process would
// then write into the directory that the user has chosen.
TEST_F(PosixFileSystemTest, ALinkInPlaceOfTheDirectoryIsNotFollowed) {
  const std::string path = path_ + "/data";
  auto disk = *PosixFileSystem::Open(path);
  std::filesystem::rename(path, path_ + "/aside");
  std::filesystem::create_directory(path_ + "/target");
  std::filesystem::create_symlink(path_ + "/target", path);
  EXPECT_EQ(disk->Write("control", "bytes").error().code, Code::kDenied);
  EXPECT_TRUE(std::filesystem::is_empty(path_ + "/target"));
}

}  // namespace
}  // namespace kvcove::master
