// SPDX-License-Identifier: Apache-2.0
#include "kvcove/cli/find_pool.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "kvcove/rpc/unix_access.h"

namespace kvcove::cli {
namespace {

TEST(FindPoolTest, TheEndpointOfASiblingIsThatOfItsProcess) {
  std::string directory = std::filesystem::temp_directory_path() / "kvcove-find-XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  {
    const auto first = rpc::ListenUnix(directory + "/admin-kvcove.sock", {});
    ASSERT_TRUE(first) << first.error().ToString();
    const std::string expected = "unix:" + directory + "/admin-kvcove.sock";
    EXPECT_EQ(EndpointOf(directory + "/kvcove.sock").value_or(""), expected);
    EXPECT_EQ(EndpointOf(directory + "/kvcove.node1.sock").value_or(""), expected);
    // One that is a process of its own has its own.
    const auto own = rpc::ListenUnix(directory + "/admin-kvcove.node1.sock", {});
    ASSERT_TRUE(own) << own.error().ToString();
    EXPECT_EQ(EndpointOf(directory + "/kvcove.node1.sock").value_or(""),
              "unix:" + directory + "/admin-kvcove.node1.sock");
  }
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace kvcove::cli
