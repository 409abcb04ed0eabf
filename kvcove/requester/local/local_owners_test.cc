// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/local/local_owners.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "kvcove/rpc/unix_access.h"

namespace kvcove::requester {
namespace {

using testing::ElementsAre;

class SocketsTest : public testing::Test {
 protected:
  SocketsTest() {
    std::string name = "/tmp/kvcove-sockets-XXXXXX";
    directory_ = std::string(mkdtemp(name.data())) + "/";
  }
  ~SocketsTest() override { std::filesystem::remove_all(directory_); }
  void Listen(const std::string& name) {
    auto socket = rpc::ListenUnix(directory_ + name, {});
    ASSERT_TRUE(socket) << socket.error().ToString();
    sockets_.push_back(std::move(*socket));
  }
  std::vector<std::string> Names(const std::string& name) const {
    std::vector<std::string> names;
    for (const std::string& path : SocketsOf(directory_ + name)) {
      EXPECT_TRUE(path.starts_with(directory_));
      names.push_back(path.substr(directory_.size()));
    }
    return names;
  }
  std::string directory_;
  std::vector<UniqueFd> sockets_;
};

TEST_F(SocketsTest, SiblingsShareTheNameBeforeAWord) {
  for (const char* name : {"kvcove.sock", "kvcove.node10.sock", "kvcove.node2.sock", "kvcoves.sock",
                           "other.sock", "kvcove.sock.old"}) {
    Listen(name);
  }
  std::ofstream(directory_ + "kvcove.file.sock") << "no socket";
  EXPECT_THAT(Names("kvcove.sock"),
              ElementsAre("kvcove.sock", "kvcove.node2.sock", "kvcove.node10.sock"));
  EXPECT_THAT(Names("kvcove.node2.sock"), ElementsAre("kvcove.node2.sock"));
  EXPECT_THAT(Names("absent.sock"), ElementsAre());
}

TEST_F(SocketsTest, TheFirstNeedNotBeThere) {
  Listen("kvcove.a.sock");
  EXPECT_THAT(Names("kvcove.sock"), ElementsAre("kvcove.a.sock"));
}

TEST_F(SocketsTest, ANameWithoutSuffixHasSiblingsToo) {
  Listen("pool");
  Listen("pool.1");
  EXPECT_THAT(Names("pool"), ElementsAre("pool", "pool.1"));
  EXPECT_EQ(SiblingSocket("/run/pool", "1"), "/run/pool.1");
  EXPECT_EQ(SiblingSocket("/run/kvcove.sock", "node1"), "/run/kvcove.node1.sock");
  EXPECT_EQ(SocketOfPool("/run/kvcove.node1.sock"), "/run/kvcove.sock");
  EXPECT_EQ(SocketOfPool("/run/pool.1"), "/run/pool");
  EXPECT_EQ(SocketOfPool("/run/v1.2/kvcove.sock"), "");
  EXPECT_EQ(SocketOfPool("/run/.sock"), "");
}

// As a member of --engine-group: the directory's mode is 0710.
TEST_F(SocketsTest, OwnersOfNodesAreFoundInADirectoryThatMayOnlyBeEntered) {
  for (const char* name : {"kvcove.sock", "kvcove.node10.sock", "kvcove.node2.sock",
                           "kvcove.other.sock", "kvcoves.sock"}) {
    Listen(name);
  }
  ASSERT_EQ(chmod(directory_.c_str(), 0111), 0);
  // Root may list every directory. setfsuid changes this thread alone.
  const int before = setfsuid(geteuid() == 0 ? 65'534 : geteuid());
  const std::vector<std::string> found = Names("kvcove.sock");
  setfsuid(static_cast<uid_t>(before));
  ASSERT_EQ(chmod(directory_.c_str(), 0700), 0);
  EXPECT_THAT(found, ElementsAre("kvcove.sock", "kvcove.node2.sock", "kvcove.node10.sock"));
}

TEST(LocalOwnersTest, ThereIsRoomForSoManyAndNoMore) {
  LocalOwners owners;
  for (std::size_t i = 0; i < LocalOwners::kMost; ++i) {
    EXPECT_TRUE(owners.Add({.socket = std::to_string(i), .host = nullptr}));
  }
  EXPECT_FALSE(owners.Add({.socket = "more", .host = nullptr}));
  EXPECT_EQ(owners.count(), LocalOwners::kMost);
  EXPECT_TRUE(owners.Has("7"));
  EXPECT_FALSE(owners.Has("more"));
}

}  // namespace
}  // namespace kvcove::requester
