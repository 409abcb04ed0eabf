// SPDX-License-Identifier: Apache-2.0
#include "kvcove/net/devices/numa.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvcove/base/size.h"
#include "kvcove/net/devices/fake_sysfs.h"

namespace kvcove::net {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Two sockets with memory; a memory expander without processors; a node whose memory is elsewhere.
class NumaTest : public testing::Test {
 protected:
  NumaTest() {
    sysfs_.Nodes({{"0-3,8-11", 0}, {"4-7,12-15", 1}});
    sysfs_.Write("devices/system/node/online", "0-3");
    sysfs_.Memory(0, 4096, 1024, 2048);
    sysfs_.Memory(1, 4096, 4000);
    sysfs_.Write("devices/system/node/node2/cpulist", "");
    sysfs_.Memory(2, 8192, 8192);
    sysfs_.Write("devices/system/node/node3/cpulist", "16-19");
    sysfs_.Memory(3, 0, 0);
  }
  std::vector<NumaNode> Read(const NodeLimits& limits = {}) const {
    return ReadNumaNodes(sysfs_.Tree(), limits);
  }
  FakeSysfs sysfs_;
};

TEST_F(NumaTest, NodesAreReadWithWhatTheyCanGive) {
  const std::vector<NumaNode> nodes = Read();
  ASSERT_EQ(nodes.size(), 4U);
  EXPECT_THAT(nodes[0].processors, ElementsAre(0, 1, 2, 3, 8, 9, 10, 11));
  EXPECT_EQ(nodes[0].memory_bytes, 4 * kGiB);
  EXPECT_EQ(nodes[0].available_bytes, 3 * kGiB) << "the cache of files gives way";
  EXPECT_EQ(nodes[0].unfit, "");
  EXPECT_EQ(nodes[1].unfit, "");
  EXPECT_THAT(nodes[2].unfit, HasSubstr("no processors"));
  EXPECT_EQ(nodes[2].barred, "") << "it can be named";
  EXPECT_EQ(nodes[3].barred, "has no memory");
}

TEST_F(NumaTest, ANodeThatIsOfflineIsNotThere) {
  sysfs_.Write("devices/system/node/online", "1");
  const std::vector<NumaNode> nodes = Read();
  ASSERT_EQ(nodes.size(), 1U);
  EXPECT_EQ(nodes[0].id, 1);
}

TEST_F(NumaTest, ACpusetBarsNodesAndProcessors) {
  sysfs_.Write("status",
               "Name:\tx\nCpus_allowed_list:\t0-5\nMems_allowed:\t2\nMems_allowed_list:\t1-2\n");
  const std::vector<NumaNode> nodes = Read(ReadNodeLimits(sysfs_.root() + "/status"));
  EXPECT_THAT(nodes[0].barred, HasSubstr("cpuset.mems"));
  EXPECT_EQ(nodes[1].unfit, "");
  EXPECT_THAT(nodes[1].processors, ElementsAre(4, 5)) << "the others are not this process's";
}

TEST_F(NumaTest, ANodeWithoutAnAllowedProcessorIsLeftOut) {
  const std::vector<NumaNode> nodes = Read({.memory = std::nullopt, .processors = std::set{0}});
  EXPECT_EQ(nodes[0].unfit, "");
  EXPECT_THAT(nodes[1].unfit, HasSubstr("no processor that this process may use"));
}

TEST_F(NumaTest, WithoutTheKernelsWordAllIsAllowed) {
  const NodeLimits limits = ReadNodeLimits(sysfs_.root() + "/nowhere");
  EXPECT_FALSE(limits.memory);
  EXPECT_FALSE(limits.processors);
}

TEST_F(NumaTest, AllIsOneOwnerANodeThatFits) {
  const auto shares = SplitOverNodes("all", 2 * kGiB, Read());
  ASSERT_TRUE(shares) << shares.error().ToString();
  ASSERT_EQ(shares->size(), 2U);
  EXPECT_EQ((*shares)[0].place.node, 0);
  EXPECT_EQ((*shares)[0].memory_bytes, kGiB);
  EXPECT_EQ((*shares)[1].place.node, 1);
  EXPECT_THAT((*shares)[1].place.processors, ElementsAre(4, 5, 6, 7, 12, 13, 14, 15));
}

TEST_F(NumaTest, ANumberIsOneOwnerThereEvenOnAnExpander) {
  const auto shares = SplitOverNodes("2", 6 * kGiB, Read());
  ASSERT_TRUE(shares) << shares.error().ToString();
  ASSERT_EQ(shares->size(), 1U);
  EXPECT_EQ((*shares)[0].place.node, 2);
  EXPECT_TRUE((*shares)[0].place.processors.empty()) << "its threads run anywhere";
}

TEST_F(NumaTest, NothingGivenIsOneOwnerBoundToNone) {
  const auto shares = SplitOverNodes("", kGiB, Read());
  ASSERT_EQ(shares->size(), 1U);
  EXPECT_FALSE((*shares)[0].place.bound());
}

TEST_F(NumaTest, AHostWhoseKernelKnowsNoNodesIsOneNode) {
  const auto shares = SplitOverNodes("all", kGiB, {});
  ASSERT_EQ(shares->size(), 1U);
  EXPECT_FALSE((*shares)[0].place.bound());
}

TEST_F(NumaTest, WhatCannotBeIsRefusedWithWhatThereIs) {
  const auto refused = [&](const std::string& numa, std::uint64_t bytes) {
    const auto shares = SplitOverNodes(numa, bytes, Read());
    EXPECT_FALSE(shares) << numa;
    return shares ? std::string() : shares.error().ToString();
  };
  EXPECT_THAT(refused("7", kGiB), HasSubstr("there are: 0, 1, 2 (has memory but no processors"));
  EXPECT_THAT(refused("1x", kGiB), HasSubstr("neither 'all' nor a NUMA node"));
  EXPECT_THAT(refused("-1", kGiB), HasSubstr("neither"));
  EXPECT_THAT(refused("3", kGiB), HasSubstr("NUMA node 3 has no memory"));
  // 3.5 GiB each: the first node has 3.
  EXPECT_THAT(refused("all", 7 * kGiB), HasSubstr("node 0 would get 3.5GiB"));
}

}  // namespace
}  // namespace kvcove::net
