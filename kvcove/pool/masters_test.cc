// SPDX-License-Identifier: Apache-2.0
#include "kvcove/pool/masters.h"

#include <gtest/gtest.h>

#include "kvcove/pool/pool.h"

namespace kvcove::pool {
namespace {

const Clock& ThisClock() { return SystemClock::Instance(); }

TEST(FindMastersTest, AListNeedsNoStore) {
  const auto found = FindMasters("m1,m2:7401", 0, ThisClock());
  ASSERT_TRUE(found);
  EXPECT_EQ(found->list(), (std::vector<rpc::Address>{{.host = "m1", .port = 7400},
                                                      {.host = "m2", .port = 7401}}));
  EXPECT_EQ(found->source(), nullptr);
}

TEST(FindMastersTest, AStoreNeedsAFinder) {
  const auto refused = Pool::Open("kvcove://etcd://e1:2379/pool", std::chrono::seconds(60));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kInvalid);
  EXPECT_TRUE(refused.error().detail.contains("link kvcove::server")) << refused.error().detail;
  UseMastersFinder([](std::string_view text, std::int64_t, const Clock&) -> Result<rpc::Addresses> {
    return rpc::ParseAddresses(text == "etcd://e1:2379/pool" ? "m1" : "", kDefaultMasterPort);
  });
  const auto found = FindMasters("etcd://e1:2379/pool", 0, ThisClock());
  UseMastersFinder(nullptr);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->front(), (rpc::Address{.host = "m1", .port = 7400}));
}

}  // namespace
}  // namespace kvcove::pool
