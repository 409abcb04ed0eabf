// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/unix_access.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <thread>

#include "kvcove/base/clock.h"
#include "kvcove/base/interrupt.h"

namespace kvcove::rpc {
namespace {

constexpr uid_t kEngine = 61001;  // numbers that nobody has
constexpr uid_t kOther = 61002;
constexpr gid_t kGroup = 61003;

class UnixAccessTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = "/tmp/kvcove-access-XXXXXX";
    directory_ = mkdtemp(name.data());
    chmod(directory_.c_str(), 0755);
    path_ = directory_ + "/socket/kvcove.sock";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  static struct stat StatOf(const std::string& path) {
    struct stat status{};
    EXPECT_EQ(stat(path.c_str(), &status), 0) << path;
    return status;
  }
  // Connects as another user; `listener` then decides on it. System calls only: a child of a
  // process with threads may do nothing else.
  bool LetsIn(int listener, const UnixAccess& access, uid_t user, gid_t group,
              std::optional<gid_t> another = std::nullopt) const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.data(), path_.size());
    const pid_t child = fork();
    if (child == 0) {
      const gid_t groups[] = {another.value_or(0)};
      char byte = 0;
      const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
      const bool connected =
          setgroups(another ? 1 : 0, groups) == 0 && setresgid(group, group, group) == 0 &&
          setresuid(user, user, user) == 0 &&
          connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
      if (connected) (void)!read(fd, &byte, 1);  // until it is judged
      _exit(connected ? 0 : 1);
    }
    bool allowed = false;
    int status = 0;
    while (waitpid(child, &status, WNOHANG) == 0) {
      const UniqueFd fd(accept(listener, nullptr, nullptr));
      ucred peer{};
      if (!fd.valid()) {
        usleep(1000);
      } else if ((allowed = access.Allows(fd.get(), peer))) {
        EXPECT_EQ(peer.uid, user);
      }
    }
    return allowed;
  }

  std::string directory_;
  std::string path_;
};

TEST_F(UnixAccessTest, AloneMeansClosedToAllOthers) {
  const auto access = ParseUnixAccess("", "");
  ASSERT_TRUE(access);
  EXPECT_TRUE(access->alone());
  const auto fd = ListenUnix(path_, *access);
  ASSERT_TRUE(fd) << fd.error().ToString();
  EXPECT_EQ(StatOf(path_).st_mode & 0777, 0600U);
  EXPECT_EQ(StatOf(directory_ + "/socket").st_mode & 0777, 0700U);
}

TEST_F(UnixAccessTest, NamesAndNumbersAreUnderstood) {
  EXPECT_EQ(ParseUnixAccess("root", "")->user, 0U);
  EXPECT_EQ(ParseUnixAccess("", "61003")->group, kGroup);
  EXPECT_THAT(ParseUnixAccess("no-such-user", "").error().detail,
              testing::HasSubstr("'no-such-user'"));
  EXPECT_THAT(ParseUnixAccess("", "no-such-group").error().detail,
              testing::HasSubstr("'no-such-group'"));
  EXPECT_THAT(ParseUnixAccess("61001", "").error().detail, testing::HasSubstr("--engine-group"));
}

TEST_F(UnixAccessTest, AnOwnGroupMayBeLetIn) {
  const UnixAccess access{.user = {}, .group = getegid(), .file_group = getegid()};
  const auto fd = ListenUnix(path_, access);
  ASSERT_TRUE(fd) << fd.error().ToString();
  EXPECT_EQ(StatOf(path_).st_mode & 0777, 0660U);
  EXPECT_EQ(StatOf(path_).st_gid, getegid());
  EXPECT_EQ(StatOf(directory_ + "/socket").st_mode & 0777, 0710U);
  EXPECT_TRUE(ListenUnix(directory_ + "/socket/another.sock", access)) << "it is as it must be";
}

TEST_F(UnixAccessTest, ADirectoryThatExistsIsNotOpenedToAGroup) {
  ASSERT_EQ(mkdir((directory_ + "/socket").c_str(), 0700), 0);
  const UnixAccess access{.user = {}, .group = getegid(), .file_group = getegid()};
  const auto fd = ListenUnix(path_, access);
  ASSERT_FALSE(fd);
  EXPECT_EQ(fd.error().code, Code::kDenied);
  EXPECT_THAT(fd.error().detail, testing::HasSubstr("chmod 710"));
  EXPECT_EQ(StatOf(directory_ + "/socket").st_mode & 0777, 0700U);
  chmod((directory_ + "/socket").c_str(), 0711);
  EXPECT_FALSE(ListenUnix(path_, access)) << "everybody may enter";
}

TEST_F(UnixAccessTest, AGroupOfOthersIsRefusedWithoutTheRight) {
  if (geteuid() == 0) GTEST_SKIP() << "root may give files to any group";
  const auto fd = ListenUnix(path_, {.user = {}, .group = kGroup, .file_group = kGroup});
  ASSERT_FALSE(fd);
  EXPECT_THAT(fd.error().detail, testing::HasSubstr("add this user to that group"));
}

TEST_F(UnixAccessTest, ASocketWhoseQueueIsFullIsInUse) {
  const auto frozen = ListenUnix(path_, {});
  ASSERT_TRUE(frozen) << frozen.error().ToString();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path_.data(), path_.size());
  std::vector<UniqueFd> waiting;
  do {
    waiting.emplace_back(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    ASSERT_LT(waiting.size(), 10'000U);
  } while (connect(waiting.back().get(), reinterpret_cast<const sockaddr*>(&address),
                   sizeof(address)) == 0);
  ASSERT_EQ(errno, EAGAIN);
  const auto another = ListenUnix(path_, {});
  ASSERT_FALSE(another);
  EXPECT_EQ(another.error().code, Code::kUnavailable);
  EXPECT_TRUE(std::filesystem::is_socket(path_)) << "it was not replaced";
}

// Another kvcove has bound it, under the lock, and does not listen yet.
TEST_F(UnixAccessTest, ASocketThatIsAboutToListenIsInUse) {
  ASSERT_TRUE(PrepareSocketDirectory(path_, {}));
  const UniqueFd lock(open((directory_ + "/socket").c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(flock(lock.get(), LOCK_EX), 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path_.data(), path_.size());
  const UniqueFd first(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(first.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  const ino_t bound = StatOf(path_).st_ino;
  Result<UniqueFd> second = Fail(Code::kInternal, "");
  const std::int64_t began_ns = SystemClock::Instance().NowNs();
  std::thread starts([&] { second = ListenUnix(path_, {}); });
  SleepNs(10 * kMillisecond);  // lets it come to the lock; the test passes without, too
  ASSERT_EQ(listen(first.get(), 1), 0);
  flock(lock.get(), LOCK_UN);
  const std::int64_t held_ns = SystemClock::Instance().NowNs() - began_ns;
  starts.join();
  if (held_ns < 50 * kMillisecond) {  // else the machine stood still, and the lock was given up
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code, Code::kUnavailable);
    EXPECT_EQ(StatOf(path_).st_ino, bound);
  }
}

TEST_F(UnixAccessTest, OneUserOrAGroupIsLetInAndNobodyElse) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become somebody else";
  const UnixAccess user{.user = kEngine, .group = {}, .file_group = kGroup};
  auto fd = ListenUnix(path_, user);
  ASSERT_TRUE(fd) << fd.error().ToString();
  EXPECT_TRUE(LetsIn(fd->get(), user, kEngine, kGroup));
  EXPECT_FALSE(LetsIn(fd->get(), user, kOther, kGroup)) << "its group is not enough";
  EXPECT_FALSE(LetsIn(fd->get(), user, kEngine, 61004)) << "the directory is closed to it";
  const UnixAccess group{.user = {}, .group = kGroup, .file_group = kGroup};
  fd->Reset();
  fd = ListenUnix(path_, group);
  ASSERT_TRUE(fd) << fd.error().ToString();
  EXPECT_TRUE(LetsIn(fd->get(), group, kOther, kGroup));
  EXPECT_TRUE(LetsIn(fd->get(), group, kOther, 61004, kGroup)) << "one of its other groups";
  EXPECT_FALSE(LetsIn(fd->get(), group, kOther, 61004));
}

}  // namespace
}  // namespace kvcove::rpc
