// SPDX-License-Identifier: Apache-2.0
#include "kvcove/pool/pool.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "kvcove/base/log.h"
#include "kvcove/base/posix.h"

namespace kvcove {
namespace {

constexpr std::string_view kSmall = "embedded:?memory=4MiB&populate=0";

TEST(PoolTest, AnAddressThatIsNotUnderstoodSaysWhatIsRight) {
  for (const auto& [address, hint] :
       {std::pair{"redis://x", "embedded:?memory=4GiB"},
        std::pair{"embedded:?memroy=1GiB", "memory"},
        std::pair{"embedded:?max_objects=many", "not a number"},
        std::pair{"kvcove://host:7400?chekcsum=0", "checksum"},
        std::pair{"embedded:?memory=4MiB&memory=8MiB", "more than once"},
        std::pair{"kvcove://host:7400?local=0&local=1", "more than once"},
        std::pair{"kvcove://host:7400?transport=rdma", "verbs (RDMA)"},
        std::pair{"kvcove://host:7400?transport=auto&devices=mlx5_0:0", "names no RDMA port"},
        std::pair{"kvcove://host:7400?devices=mlx5_0", "devices=mlx5_0 is for RDMA"},
        std::pair{"kvcove://host:7400?rdma_plaintext=1", "add transport=auto"},
        std::pair{"kvcove://host:port", "port"}}) {
    const auto pool = Pool::Open(address);
    ASSERT_FALSE(pool) << address;
    EXPECT_EQ(pool.error().code, Code::kInvalid) << address;
    EXPECT_NE(pool.error().detail.find(hint), std::string::npos) << pool.error().detail;
  }
}

TEST(PoolTest, ADaemonOrMasterThatIsNotThereIsUnavailable) {
  EXPECT_EQ(Pool::Open("unix:/nowhere/at/all").error().code, Code::kUnavailable);
  EXPECT_EQ(Pool::Open("kvcove://127.0.0.1:1").error().code, Code::kUnavailable);
}

// `auto` beside what stands at the socket's path.
class AutoTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::temp_directory_path() / "kvcove-auto-XXXXXX";
    ASSERT_NE(mkdtemp(directory_.data()), nullptr);
    path_ = directory_ + "/kvcove.sock";
  }
  void TearDown() override {
    unsetenv("KVCOVE_SOCKET");
    std::filesystem::remove_all(directory_);
  }
  // What it opens, and what it logs.
  Result<std::string> Open() {
    setenv("KVCOVE_SOCKET", path_.c_str(), 1);
    SetLogLevel(LogLevel::kInfo);
    testing::internal::CaptureStderr();
    const auto pool = Pool::Open("auto?memory=4MiB&populate=0");
    log_ = testing::internal::GetCapturedStderr();
    SetLogLevel(LogLevel::kWarn);
    if (!pool) return std::unexpected(pool.error());
    return std::string((*pool)->form());
  }
  void Listens(int backlog) {
    socket_ = UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path_.copy(address.sun_path, sizeof(address.sun_path) - 1);
    ASSERT_EQ(bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    if (backlog > 0) {
      ASSERT_EQ(listen(socket_.get(), backlog), 0);
    }
  }
  std::string directory_;
  std::string path_;
  std::string log_;
  UniqueFd socket_;
};

TEST_F(AutoTest, WhereThereIsCertainlyNoOwnerItIsEmbeddedAndSaysSo) {
  EXPECT_EQ(Open().value_or("an error"), "embedded");
  EXPECT_NE(log_.find(path_ + "' there is no such socket"), std::string::npos) << log_;
  Listens(/*backlog=*/0);
  EXPECT_EQ(Open().value_or("an error"), "embedded");
  EXPECT_NE(log_.find("nobody listens there any more"), std::string::npos) << log_;
}

TEST_F(AutoTest, WhatCannotBeKnownIsAnError) {
  const auto refused = [&](const std::string& why) {
    const auto opened = Open();
    if (opened) return *opened;
    const std::string& detail = opened.error().detail;
    return detail.find(why) == std::string::npos ? detail : std::string("refused");
  };
  path_ = directory_ + "/file";
  std::ofstream(path_) << "text";
  EXPECT_EQ(refused("it is no socket"), "refused");
  path_ += "/below.sock";
  EXPECT_EQ(refused("Not a directory"), "refused");
  path_ = directory_ + "/loop";
  std::filesystem::create_symlink("loop", path_);
  EXPECT_EQ(refused("symbolic links"), "refused");
  path_ = directory_ + "/" + std::string(120, 'x');
  EXPECT_EQ(refused("107 bytes at most"), "refused");
}

// One that does not answer is no reason to open another one.
TEST_F(AutoTest, AnOwnerThatDoesNotAnswerIsAnError) {
  Listens(/*backlog=*/1);
  setenv("KVCOVE_SOCKET", path_.c_str(), 1);
  const auto pool = Pool::Open("auto?memory=4MiB&populate=0", std::chrono::milliseconds(100));
  ASSERT_FALSE(pool);
}

TEST_F(AutoTest, ARelativeRuntimeDirectoryIsIgnored) {
  const char* before = std::getenv("XDG_RUNTIME_DIR");
  const std::string kept = before == nullptr ? "" : before;
  unsetenv("KVCOVE_SOCKET");
  setenv("XDG_RUNTIME_DIR", "run", 1);
  EXPECT_EQ(DefaultSocketPath(), "/tmp/kvcove-" + std::to_string(getuid()) + "/kvcove.sock");
  setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
  EXPECT_EQ(DefaultSocketPath(), "/run/user/7/kvcove/kvcove.sock");
  if (before == nullptr) {
    unsetenv("XDG_RUNTIME_DIR");
  } else {
    setenv("XDG_RUNTIME_DIR", kept.c_str(), 1);
  }
}

TEST(PoolTest, ASessionOutlivesItsPool) {
  auto pool = Pool::Open(kSmall);
  ASSERT_TRUE(pool) << pool.error().ToString();
  EXPECT_EQ((*pool)->form(), "embedded");
  EXPECT_EQ((*pool)->Stat()->objects, 0U);
  auto session = *(*pool)->OpenSession({.name = "n"});
  pool->reset();
  const std::string value = "value";
  const ConstBuffer piece{.data = value.data(), .size = value.size()};
  const PutItem put{.key = "k", .value = {&piece, 1}};
  ItemResult result;
  ASSERT_TRUE(session->Put({&put, 1}, {&result, 1}));
  ASSERT_TRUE(result.ok()) << CodeName(result.code);
  std::string back(16, '\0');
  const MutableBuffer into{.data = back.data(), .size = back.size()};
  const GetItem get{.key = "k", .into = {&into, 1}};
  ASSERT_TRUE(session->Get({&get, 1}, {&result, 1}, {}));
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(back.substr(0, result.bytes), value);
}

TEST(PoolTest, NamesThatAreEmptyOrTooLongAreRefused) {
  auto pool = *Pool::Open(kSmall);
  const auto nameless = pool->OpenSession({.name = ""});
  ASSERT_FALSE(nameless);
  EXPECT_EQ(nameless.error().code, Code::kInvalid);
  EXPECT_NE(nameless.error().detail.find("name of a namespace"), std::string::npos);
  const std::string longest(1 << 16, 'n');
  EXPECT_EQ(pool->OpenSession({.name = longest}).error().code, Code::kInvalid);
  EXPECT_EQ(pool->OpenSession({.name = "n", .engine = longest}).error().code, Code::kInvalid);
}

// Neither its threads nor the holders of its locks came along.
TEST(PoolTest, AForkedChildIsRefusedAndMayDropEverything) {
  auto pool = *Pool::Open(kSmall);
  auto session = *pool->OpenSession({.name = "n"});
  ASSERT_TRUE(session->Capture({}));
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);  // a wait that has no end would not let the test end
    const bool refused = session->Capture({}).error().code == Code::kUnavailable &&
                         pool->Stat().error().code == Code::kUnavailable &&
                         pool->OpenSession({.name = "n"}).error().code == Code::kUnavailable;
    session.reset();
    pool.reset();
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(session->Capture({})) << "the parent goes on";
}

}  // namespace
}  // namespace kvcove
