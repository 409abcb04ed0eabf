// SPDX-License-Identifier: Apache-2.0
// Every process and every form of a pool opens, or says that it has no thread, wherever the limit
// of threads is met: no abort, no wait without an end.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "kvcove/base/clock.h"
#include "kvcove/base/log.h"
#include "kvcove/base/posix.h"
#include "kvcove/base/size.h"
#include "kvcove/master/server/server.h"
#include "kvcove/master/server/tasks.h"
#include "kvcove/pool/pool.h"
#include "kvcove/server/daemon.h"

namespace kvcove::server {
namespace {

class RefusedThreadsTest : public testing::Test {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kOff);
    directory_ = std::filesystem::temp_directory_path() / "kvcove-threads-XXXXXX";
    ASSERT_NE(mkdtemp(directory_.data()), nullptr);
  }
  void TearDown() override {
    RefuseThreadsAfter(-1);
    SetLogLevel(LogLevel::kWarn);
    std::filesystem::remove_all(directory_);
  }

  // Opens with room for 0 threads, then for 1, and so on until it opens. What is optional is done
  // without.
  template <typename Open>
  void OpensOrSaysWhy(const Open& open, int least) {
    for (int room = 0; room < 200; ++room) {
      RefuseThreadsAfter(room);
      const auto opened = open();
      RefuseThreadsAfter(-1);
      if (opened) {
        EXPECT_GE(room, least);
        return;
      }
      ASSERT_EQ(opened.error().code, Code::kLimit)
          << "with room for " << room << ": " << opened.error().ToString();
      ASSERT_NE(opened.error().detail.find("no thread 'kvcove-"), std::string::npos)
          << opened.error().detail;
    }
    FAIL() << "200 threads are not enough";
  }
  DaemonOptions Serve() const {
    DaemonOptions options;
    options.host.owner.memory_bytes = 4 * kMiB;
    options.host.data_directory = directory_ + "/data";
    options.socket_path = directory_ + "/socket";
    return options;
  }
  DaemonOptions Member(const rpc::Address& master) const {
    DaemonOptions options = Serve();
    options.host.data_directory.clear();
    options.host.cluster = pool::ClusterMember{
        .master = master, .listen = {.host = "127.0.0.1", .port = 0}, .host = "host"};
    return options;
  }
  struct Master {
    std::unique_ptr<master::MasterServer> server;
    std::unique_ptr<master::Tasks> tasks;
  };
  Result<Master> OpenMaster() const {
    Master master;
    KVCOVE_ASSIGN(master.server,
                  master::MasterServer::Open({.listen = {.host = "127.0.0.1", .port = 0},
                                              .data_directory = directory_ + "/master"},
                                             clock_));
    master.tasks = std::make_unique<master::Tasks>(*master.server, master::TaskOptions(), clock_);
    KVCOVE_TRY(master.tasks->Begin());
    return master;
  }

  const Clock& clock_ = SystemClock::Instance();
  std::string directory_;
};

TEST_F(RefusedThreadsTest, AnEmbeddedPool) {
  OpensOrSaysWhy([&] { return Pool::Open("embedded:?memory=4MiB"); }, 3);
}

TEST_F(RefusedThreadsTest, AServe) {
  OpensOrSaysWhy([&] { return Daemon::Open(Serve(), clock_); }, 8);
}

TEST_F(RefusedThreadsTest, APoolAtASocket) {
  const auto daemon = Daemon::Open(Serve(), clock_);
  ASSERT_TRUE(daemon) << daemon.error().ToString();
  OpensOrSaysWhy(
      [&] { return Pool::Open("unix:" + directory_ + "/socket", std::chrono::seconds(60)); }, 2);
}

TEST_F(RefusedThreadsTest, AMasterAnOwnerAndARequester) {
  OpensOrSaysWhy([&] { return OpenMaster(); }, 5);
  const auto master = OpenMaster();
  ASSERT_TRUE(master) << master.error().ToString();
  const rpc::Address address = master->server->address();
  OpensOrSaysWhy([&] { return Daemon::Open(Member(address), clock_); }, 12);
  OpensOrSaysWhy(
      [&] { return Pool::Open("kvcove://" + address.ToString(), std::chrono::seconds(60)); }, 1);
}

}  // namespace
}  // namespace kvcove::server
