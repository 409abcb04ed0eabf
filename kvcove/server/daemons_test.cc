// SPDX-License-Identifier: Apache-2.0
#include "kvcove/server/daemons.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvcove::server {
namespace {

std::vector<net::OwnerShare> Shares() {
  return {{.place = {.node = 0, .processors = {0}}, .memory_bytes = 100},
          {.place = {.node = 2, .processors = {1}}, .memory_bytes = 100}};
}

TEST(DaemonsTest, EachOwnerGetsAnEqualPartAndItsOwnSocketAndPorts) {
  DaemonOptions whole;
  whole.socket_path = "/run/kvcove/kvcove.sock";
  whole.host.owner.max_objects = 1000;
  whole.host.owner.quotas["acme"] = {.maximum_bytes = 80, .guaranteed_bytes = 40};
  whole.host.owner.disk_quotas["acme"] = {
      .maximum_bytes = 800, .guaranteed_bytes = 400, .read_rate = 1000, .write_rate = 1};
  whole.host.cluster.emplace();
  whole.host.cluster->listen = {.host = "0.0.0.0", .port = 7401};
  whole.host.cluster->advertise = "10.0.0.1:17401";
  const auto parts = SplitDaemon(whole, Shares());
  ASSERT_TRUE(parts) << parts.error().ToString();
  ASSERT_EQ(parts->size(), 2U);
  EXPECT_EQ((*parts)[0].socket_path, "/run/kvcove/kvcove.sock");
  EXPECT_EQ((*parts)[1].socket_path, "/run/kvcove/kvcove.node2.sock");
  EXPECT_EQ((*parts)[0].host.cluster->listen.port, 7401);
  EXPECT_EQ((*parts)[1].host.cluster->listen.port, 7402);
  EXPECT_EQ((*parts)[1].host.cluster->advertise, "10.0.0.1:17402");
  for (const DaemonOptions& part : *parts) {
    EXPECT_EQ(part.host.owner.memory_bytes, 100U);
    EXPECT_EQ(part.host.owner.max_objects, 500U);
    EXPECT_EQ(part.host.owner.quotas.at("acme").maximum_bytes, 40U);
    EXPECT_EQ(part.host.owner.quotas.at("acme").guaranteed_bytes, 20U);
    EXPECT_EQ(part.host.owner.disk_quotas.at("acme").maximum_bytes, 400U);
    EXPECT_EQ(part.host.owner.disk_quotas.at("acme").guaranteed_bytes, 200U);
    EXPECT_EQ(part.host.owner.disk_quotas.at("acme").read_rate, 500U);
    EXPECT_EQ(part.host.owner.disk_quotas.at("acme").write_rate, 1U) << "0 would be any rate";
  }
  EXPECT_EQ((*parts)[1].host.owner.place.node, 2);
}

TEST(DaemonsTest, DisksAreDealtOutByTurns) {
  DaemonOptions whole;
  whole.host.owner.disk_write_rate = 1000;
  whole.host.data_directory = "/data";
  for (const char* path : {"/a", "/b", "/c", "/d"}) {
    whole.host.owner.disks.push_back({.path = path, .size_bytes = 1 << 30});
  }
  auto parts = SplitDaemon(whole, Shares());
  ASSERT_TRUE(parts) << parts.error().ToString();
  const auto& first = (*parts)[0].host;
  const auto& second = (*parts)[1].host;
  ASSERT_EQ(first.owner.disks.size(), 2U);
  EXPECT_EQ(first.owner.disks[0].path, "/a");
  EXPECT_EQ(first.owner.disks[1].path, "/c");
  EXPECT_EQ(second.owner.disks[0].path, "/b");
  EXPECT_EQ(second.owner.disks[1].path, "/d");
  EXPECT_EQ(second.owner.disk_write_rate, 500U);
  EXPECT_EQ(second.number, 1U);
  EXPECT_EQ(second.of_owners, 2U);
  EXPECT_EQ(second.data_directory, "/data") << "one authority over generations for all";
  whole.host.cluster.emplace();
  parts = SplitDaemon(whole, Shares());
  EXPECT_EQ((*parts)[0].host.data_directory, "/data");
  EXPECT_EQ((*parts)[1].host.data_directory, "/data/owner-1") << "an identity each";
  whole.host.owner.disks.pop_back();
  const auto odd = SplitDaemon(whole, Shares());
  ASSERT_FALSE(odd);
  EXPECT_THAT(odd.error().ToString(), testing::HasSubstr("give 4"));
}

TEST(DaemonsTest, APortThatThereIsNotIsRefusedAndAnyPortStaysAny) {
  EXPECT_EQ(StepPort({.host = "h", .port = 0}, 3)->port, 0);
  EXPECT_EQ(StepPort({.host = "h", .port = 65535}, 0)->port, 65535);
  const auto none = StepPort({.host = "h", .port = 65535}, 1);
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().ToString(), testing::HasSubstr("the next port"));
}

}  // namespace
}  // namespace kvcove::server
