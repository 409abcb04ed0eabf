// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/directory.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

namespace kvcove {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uid_t kUser = 65534;
constexpr uid_t kStranger = 65533;

// Root owns the system's directories: as root the tests run as another user.
class DirectoryTest : public testing::Test {
 protected:
  void SetUp() override {
    unsetenv("XDG_RUNTIME_DIR");
    unsetenv("HOME");
    std::string name = "/tmp/kvcove-directory-XXXXXX";
    base_ = mkdtemp(name.data());
    if (!root_) return;
    ASSERT_EQ(chown(base_.c_str(), kUser, kUser), 0);
    ASSERT_EQ(seteuid(kUser), 0);
  }
  void TearDown() override {
    if (root_) {
      ASSERT_EQ(seteuid(0), 0);
    }
    std::filesystem::remove_all(base_);
  }
  std::string Make(const std::string& name, mode_t mode) const {
    const std::string path = base_ + "/" + name;
    EXPECT_EQ(mkdir(path.c_str(), 0700), 0);
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    return path;
  }
  // A directory of another user's that this one may write to, as far as it can be had.
  std::string Foreign() const {
    if (!root_) return "/";
    const std::string path = Make("foreign", 0777);
    EXPECT_EQ(seteuid(0), 0);
    EXPECT_EQ(chown(path.c_str(), kStranger, kStranger), 0);
    EXPECT_EQ(seteuid(kUser), 0);
    return path;
  }
  static std::string WhyNot(const std::string& path, DirectoryUse use) {
    const auto opened = OpenOwnDirectory(path, use);
    if (opened) return {};
    EXPECT_EQ(opened.error().code, Code::kDenied) << opened.error().detail;
    return opened.error().detail;
  }

  const bool root_ = geteuid() == 0;
  std::string base_;
};

TEST_F(DirectoryTest, WhatIsMissingIsMadeAndClosedToOthers) {
  for (const DirectoryUse use : {DirectoryUse::kSocket, DirectoryUse::kData}) {
    const std::string path = fmt::format("{}/a{}/b/", base_, static_cast<int>(use));
    const auto opened = OpenOwnDirectory(path, use);
    ASSERT_TRUE(opened) << opened.error().detail;
    struct stat status{};
    ASSERT_EQ(fstat(opened->get(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777U, 0700U);
    EXPECT_EQ(status.st_uid, geteuid());
  }
}

TEST_F(DirectoryTest, ADataDirectoryThatOthersMayWriteToIsRefused) {
  for (const mode_t mode : {0700, 0500, 0750, 0755, 0711}) {
    EXPECT_EQ(WhyNot(Make(fmt::format("ok{:o}", mode), mode), DirectoryUse::kData), "");
  }
  for (const mode_t mode : {0777, 0770, 0720, 0702, 01777}) {
    EXPECT_THAT(WhyNot(Make(fmt::format("no{:o}", mode), mode), DirectoryUse::kData),
                HasSubstr(fmt::format("the mode {:04o}", mode)));
  }
  EXPECT_THAT(WhyNot(Foreign(), DirectoryUse::kData), HasSubstr("belongs to the user "));
}

TEST_F(DirectoryTest, ASocketsDirectoryIsClosedToOthers) {
  EXPECT_EQ(WhyNot(Make("ok", 0700), DirectoryUse::kSocket), "");
  for (const mode_t mode : {0777, 0750, 0711, 0704}) {
    EXPECT_NE(WhyNot(Make(fmt::format("no{:o}", mode), mode), DirectoryUse::kSocket), "");
  }
  EXPECT_NE(WhyNot(Foreign(), DirectoryUse::kSocket), "");
}

TEST_F(DirectoryTest, ADataDirectoryIsNoSymbolicLink) {
  const std::string target = Make("target", 0700);
  const std::string link = base_ + "/link";
  ASSERT_EQ(symlink(target.c_str(), link.c_str()), 0);
  for (const std::string& path : {link, link + "/", link + "//"}) {
    EXPECT_THAT(WhyNot(path, DirectoryUse::kData), HasSubstr("symbolic link"));
  }
  // systemd makes one for the sockets of a service with a dynamic user.
  EXPECT_EQ(WhyNot(link, DirectoryUse::kSocket), "");
}

TEST_F(DirectoryTest, ADirectoryThatOthersNeedIsNeverToBeClosed) {
  for (const DirectoryUse use : {DirectoryUse::kSocket, DirectoryUse::kData}) {
    const std::string suffix = std::to_string(static_cast<int>(use));
    const std::string sticky = Make("sticky" + suffix, 01777);
    EXPECT_THAT(WhyNot(sticky, use),
                AllOf(Not(HasSubstr("chmod")),
                      HasSubstr(fmt::format("such as '{}/kvcove-{}'", sticky, geteuid()))));
    EXPECT_THAT(WhyNot("/tmp", use), AllOf(Not(HasSubstr("chmod")), HasSubstr("such as '/tmp/")));
    EXPECT_THAT(WhyNot("/", use), Not(HasSubstr("chmod")));
    const std::string own = Make("own" + suffix, 0777);
    EXPECT_THAT(WhyNot(own, use),
                AllOf(HasSubstr(fmt::format("run: chmod 700 '{}'", own)),
                      HasSubstr(fmt::format("such as '{}/kvcove-{}'", own, geteuid()))));
  }
  EXPECT_THAT(WhyNot(Foreign(), DirectoryUse::kData),
              AllOf(Not(HasSubstr("chmod")), Not(HasSubstr("such as"))));
  if (!root_) return;
  // Root's own may be the system's.
  ASSERT_EQ(seteuid(0), 0);
  EXPECT_THAT(WhyNot("/tmp", DirectoryUse::kData), Not(HasSubstr("chmod")));
  EXPECT_THAT(WhyNot("/", DirectoryUse::kSocket), Not(HasSubstr("chmod")));
}

TEST(SecretTest, OnlyTheGroupOfAFileOfRootsMayReadItBesideItsOwner) {
  const auto closed = [](uid_t owner, mode_t mode) {
    struct stat file{};
    file.st_uid = owner;
    file.st_mode = S_IFREG | mode;
    return IsClosedToOthers(file);
  };
  EXPECT_TRUE(closed(1000, 0600));
  EXPECT_FALSE(closed(1000, 0640));
  EXPECT_TRUE(closed(0, 0440)) << "as a Kubernetes secret with an fsGroup";
  for (const mode_t mode : {0660, 0444, 0610, 0604}) EXPECT_FALSE(closed(0, mode)) << mode;
}

TEST_F(DirectoryTest, WhatIsSuggestedCanBeUsed) {
  const std::string sticky = Make("sticky", 01777);
  const std::string taken = fmt::format("{}/kvcove-{}", sticky, geteuid());
  ASSERT_EQ(mkdir(taken.c_str(), 0700), 0);
  ASSERT_EQ(chmod(taken.c_str(), 0777), 0);
  EXPECT_THAT(WhyNot(sticky, DirectoryUse::kData), Not(HasSubstr("such as")));
  const std::string home = Make("home", 0755);
  setenv("HOME", home.c_str(), 1);
  EXPECT_THAT(WhyNot(sticky, DirectoryUse::kData),
              HasSubstr(fmt::format("such as '{}/.kvcove'", home)));
  EXPECT_EQ(WhyNot(home + "/.kvcove", DirectoryUse::kData), "");
  // What must survive a restart of the host does not go there.
  setenv("XDG_RUNTIME_DIR", base_.c_str(), 1);
  EXPECT_THAT(WhyNot(sticky, DirectoryUse::kSocket),
              HasSubstr(fmt::format("such as '{}/kvcove'", base_)));
  EXPECT_THAT(WhyNot(sticky, DirectoryUse::kData),
              HasSubstr(fmt::format("such as '{}/.kvcove'", home)));
}

}  // namespace
}  // namespace kvcove
