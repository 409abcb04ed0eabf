// SPDX-License-Identifier: Apache-2.0
// Servers whose log nobody reads: the pipe behind stderr is full from the start.
#include "kvcove/base/log.h"

#include <gtest/gtest.h>

#include "tests/fault/cluster_processes.h"

namespace kvcove {
namespace {

// A pipe that takes no more bytes until it is read.
class FullPipe {
 public:
  FullPipe() {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    read_end_ = UniqueFd(ends[0]);
    write_end_ = UniqueFd(ends[1]);
    fcntl(write_end_.get(), F_SETFL, O_NONBLOCK);
    while (write(write_end_.get(), "#", 1) == 1) {
    }
    fcntl(write_end_.get(), F_SETFL, 0);
    fcntl(read_end_.get(), F_SETFL, O_NONBLOCK);
  }
  int write_end() const { return write_end_.get(); }
  // What has arrived since the last call.
  std::string Read() {
    std::string text(1 << 20, '\0');
    const ssize_t got = read(read_end_.get(), text.data(), text.size());
    text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return text;
  }

 private:
  UniqueFd read_end_;
  UniqueFd write_end_;
};

class UnreadLogTest : public testing::Test {
 protected:
  void SetUp() override { SetLogLevel(LogLevel::kOff); }

  // Whether it ends by itself; else it is killed.
  static bool EndsOn(pid_t pid, int signal) {
    kill(pid, signal);
    int status = 0;
    const bool ended =
        Becomes([&] { return waitpid(pid, &status, WNOHANG) == pid; }, milliseconds(30'000));
    if (!ended) ClusterProcesses::End(pid, SIGKILL);
    return ended && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  static void PutAndReset(Pool& pool) {
    auto session = Must(pool.OpenSession({.name = "m", .engine = "e"}));
    ASSERT_TRUE(Becomes([&] {
      const auto token = session->Capture({.timeout = kCallTime});
      if (!token) return false;
      const ConstBuffer piece{.data = "value", .size = 5};
      const PutItem item{.key = "key", .value = {&piece, 1}, .after = {}};
      ItemResult result;
      (void)session->Put(*token, {&item, 1}, {&result, 1}, {.timeout = kCallTime});
      return result.code == Code::kOk;
    }));
    EXPECT_TRUE(Becomes([&] { return session->Reset({.timeout = kCallTime}).has_value(); }));
  }

  ClusterProcesses processes_;
  FullPipe log_;
};

TEST_F(UnreadLogTest, AServePutsResetsAndEnds) {
  const std::string socket = processes_.directory() + "/kvcove.sock";
  const pid_t serve = ClusterProcesses::Spawn(
      {"serve", "--socket", socket, "--memory", "8MiB", "--data", processes_.directory() + "/data"},
      "host", {.stderr_fd = log_.write_end()});
  const auto pool = Await([&] { return Pool::Open("unix:" + socket, kCallTime); });
  PutAndReset(*pool);
  EXPECT_TRUE(EndsOn(serve, SIGTERM));
}

TEST_F(UnreadLogTest, AServerThatCannotStartEnds) {
  const pid_t serve = ClusterProcesses::Spawn({"serve", "--memory", "lots"}, "host",
                                              {.stderr_fd = log_.write_end()});
  int status = 0;
  const bool ended = Becomes([&] { return waitpid(serve, &status, WNOHANG) == serve; });
  if (!ended) ClusterProcesses::End(serve, SIGKILL);
  ASSERT_TRUE(ended) << "it waits for a reader of its last words";
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 2);
}

TEST_F(UnreadLogTest, AMasterAdmitsOwnersResetsAndEndsAndItsLogGoesOn) {
  processes_.StartMaster("off", {.stderr_fd = log_.write_end()});
  processes_.StartOwner(0, 1);
  PutAndReset(*processes_.Open());
  // Its lines wait for a reader, and come once there is one.
  std::string text;
  EXPECT_TRUE(Becomes([&] { return (text += log_.Read()).find(" info kvcove[") != text.npos; }));
  EXPECT_TRUE(EndsOn(std::exchange(processes_.master(), 0), SIGTERM));
}

}  // namespace
}  // namespace kvcove
