// SPDX-License-Identifier: Apache-2.0
// A host without RDMA. `make test-rdma` tests the library on devices (tests/rdma).
#include "kvcove/transport/verbs/library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "kvcove/transport/verbs/functions.h"

namespace kvcove::transport::verbs {
namespace {

TEST(VerbsLibraryTest, ALibraryThatIsMissingIsNamed) {
  const auto opened = OpenLibrary("libibverbs-of-nobody.so.1");
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::kUnavailable);
  EXPECT_NE(opened.error().detail.find("libibverbs-of-nobody.so.1"), std::string::npos);
}

TEST(VerbsLibraryTest, AFunctionThatIsMissingIsNamed) {
  const auto opened = OpenLibrary("libc.so.6");
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::kUnavailable);
  EXPECT_EQ(opened.error().detail, "libc.so.6 has no ibv_get_device_list@IBVERBS_1.1");
}

TEST(VerbsLibraryTest, OnlyInfiniBandAndRoceMakeLanes) {
  ibv_device device{};
  device.node_type = IBV_NODE_CA;
  device.transport_type = IBV_TRANSPORT_IB;
  EXPECT_TRUE(MakesLanes(device));
  device.node_type = IBV_NODE_SWITCH;
  EXPECT_FALSE(MakesLanes(device));
  device.node_type = IBV_NODE_RNIC;
  device.transport_type = IBV_TRANSPORT_IWARP;
  EXPECT_FALSE(MakesLanes(device));
  device.node_type = IBV_NODE_UNSPECIFIED;
  device.transport_type = IBV_TRANSPORT_UNSPECIFIED;  // EFA
  EXPECT_FALSE(MakesLanes(device));
}

TEST(VerbsLibraryTest, KernelsBefore512NeedTheLibrarysHelpWithForks) {
  int calls = 0;
  int result = 0;
  const auto prepare = [&](std::string_view release) {
    return PrepareForForks(
        [&] {
          ++calls;
          return result;
        },
        release);
  };
  EXPECT_TRUE(prepare("5.12.0"));
  EXPECT_TRUE(prepare("6.1.0-13-amd64"));
  EXPECT_EQ(calls, 0);
  EXPECT_TRUE(prepare("5.10.0-28-amd64"));
  EXPECT_TRUE(prepare("4.18.0-553.el8_10.x86_64"));
  EXPECT_TRUE(prepare("what is this"));
  EXPECT_EQ(calls, 3);
  result = EINVAL;
  EXPECT_TRUE(prepare("6.1.0"));
  const Status late = prepare("5.10.0-28-amd64");
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, Code::kUnavailable);
  EXPECT_THAT(late.error().detail, testing::HasSubstr("5.10.0-28-amd64"));
}

TEST(VerbsLibraryTest, AHostWithoutDevicesHasNone) {
  const auto opened = VerbsOfProcess();
  if (!opened) {
    EXPECT_EQ(opened.error().code, Code::kUnavailable);
    return;
  }
  const auto context = (*opened)->Open("no such device");
  ASSERT_FALSE(context);
  EXPECT_EQ(context.error().code, Code::kUnavailable);
}

}  // namespace
}  // namespace kvcove::transport::verbs
