// SPDX-License-Identifier: Apache-2.0
// A host without RDMA. `make test-rdma` tests the library on devices (tests/rdma).
#include "kvcove/transport/verbs/library.h"

#include <gtest/gtest.h>

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
