// SPDX-License-Identifier: Apache-2.0
#include "kvcove/net/devices/gid.h"

#include <fmt/core.h>
#include <gmock/gmock.h>

#include "kvcove/net/devices/fake_sysfs.h"

namespace kvcove::net {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const char* const kGlobalGid = "fd00:0000:0000:0000:0000:0000:0000:0005";

Gid Make(int index, const std::string& gid, bool v2, const std::string& netdev = "enp1") {
  return {.index = index, .bytes = *ParseGid(gid), .v2 = v2, .netdev = netdev};
}
// Of an interface with a VLAN and addresses of both families, as the kernel fills a table.
std::vector<Gid> Table() {
  return {Make(0, kLinkLocalGid, false),
          Make(1, kLinkLocalGid, true),
          Make(2, MappedGid(10, 0, 0, 5), false),
          Make(3, MappedGid(10, 0, 0, 5), true),
          Make(4, kGlobalGid, false),
          Make(5, kGlobalGid, true),
          Make(6, MappedGid(10, 0, 7, 5), false, "enp1.7"),
          Make(7, MappedGid(10, 0, 7, 5), true, "enp1.7")};
}
int Index(const std::vector<Gid>& gids, const std::string& routed) {
  const auto chosen = ChooseGid(LinkLayer::kEthernet, gids, routed, std::nullopt);
  EXPECT_TRUE(chosen) << chosen.error().detail;
  return chosen ? chosen->gid.index : -1;
}

TEST(Gid, TheKernelsFormIsRead) {
  EXPECT_EQ(Make(0, MappedGid(10, 0, 0, 5), true).Address(), "10.0.0.5");
  EXPECT_EQ(Make(0, kGlobalGid, true).Address(), "fd00::5");
  EXPECT_FALSE(ParseGid(kZeroGid));
  for (const char* text : {"", "x", "10.0.0.5", "fd00:0000", "fd00::5::1"}) {
    EXPECT_FALSE(ParseGid(text)) << text;
  }
}

TEST(Gid, TheRoutedAddressIsFirst) {
  EXPECT_EQ(Index(Table(), "10.0.0.5"), 3);
  EXPECT_EQ(Index(Table(), "fd00::5"), 5);
  EXPECT_EQ(Index(Table(), "10.0.7.5"), 7);  // of the VLAN
  const auto chosen = ChooseGid(LinkLayer::kEthernet, Table(), "10.0.7.5", std::nullopt);
  EXPECT_TRUE(chosen->routable);
  EXPECT_THAT(chosen->why, HasSubstr("the address to advertise"));
}

TEST(Gid, ThenAGlobalOneOfVersion2AndTheSameFamily) {
  EXPECT_EQ(Index(Table(), "192.0.2.1"), 3);
  EXPECT_EQ(Index(Table(), "fd00::9"), 5);
  EXPECT_EQ(Index(Table(), "node5.example"), 3);
  EXPECT_EQ(Index(Table(), ""), 3);
  // The other family is better than a link-local address.
  EXPECT_EQ(Index({Make(1, kLinkLocalGid, true), Make(3, kGlobalGid, true)}, "10.0.0.5"), 3);
}

TEST(Gid, LinkLocalAndVersion1AreLast) {
  const Gid link1 = Make(0, kLinkLocalGid, false);
  const Gid link2 = Make(1, kLinkLocalGid, true);
  const Gid old = Make(2, MappedGid(10, 0, 0, 5), false);
  const Gid link4 = Make(3, MappedGid(169, 254, 1, 2), true);
  EXPECT_EQ(Index({link1, link2, old}, "10.0.0.5"), 1);
  EXPECT_EQ(Index({link1, old}, "10.0.0.5"), 2);
  EXPECT_EQ(Index({link1}, "10.0.0.5"), 0);
  EXPECT_EQ(Index({link4, Make(9, kGlobalGid, true)}, "10.0.0.5"), 9);
  for (const auto& gids : {std::vector{link2}, std::vector{old}, std::vector{link4}}) {
    EXPECT_FALSE(ChooseGid(LinkLayer::kEthernet, gids, "10.0.0.5", std::nullopt)->routable);
  }
}

TEST(Gid, AnIndexThatWasNamedWinsIfItIsThere) {
  const auto chosen = ChooseGid(LinkLayer::kEthernet, Table(), "10.0.0.5", 2);
  ASSERT_TRUE(chosen);
  EXPECT_EQ(chosen->gid.index, 2);
  EXPECT_EQ(chosen->why, "the index that was named");
  const auto missing = ChooseGid(LinkLayer::kEthernet, Table(), "10.0.0.5", 9);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Code::kInvalid);
  EXPECT_THAT(missing.error().detail,
              AllOf(HasSubstr("no GID with the index 9"), HasSubstr("3 (v2 10.0.0.5 of enp1)"),
                    HasSubstr("7 (v2 10.0.7.5 of enp1.7)")));
}

TEST(Gid, OnInfiniBandItIsThePortsOwn) {
  const std::vector<Gid> gids = {Make(0, kLinkLocalGid, false, ""), Make(1, kGlobalGid, false, "")};
  const auto chosen = ChooseGid(LinkLayer::kInfiniBand, gids, "10.0.0.5", std::nullopt);
  ASSERT_TRUE(chosen);
  EXPECT_EQ(chosen->gid.index, 0);
  EXPECT_TRUE(chosen->routable);
  EXPECT_EQ(ChooseGid(LinkLayer::kInfiniBand, gids, "10.0.0.5", 1)->gid.index, 1);
  EXPECT_FALSE(ChooseGid(LinkLayer::kInfiniBand, gids, "10.0.0.5", 3));
}

TEST(Gid, WithoutAnyThereIsNoChoice) {
  const auto chosen = ChooseGid(LinkLayer::kEthernet, {}, "10.0.0.5", std::nullopt);
  ASSERT_FALSE(chosen);
  EXPECT_THAT(chosen.error().detail, HasSubstr("no GID"));
}

TEST(Gid, AnIndexIsANumber) {
  EXPECT_EQ(*ParseGidIndex("MC_GID_INDEX", ""), std::nullopt);
  EXPECT_EQ(*ParseGidIndex("MC_GID_INDEX", "3"), 3);
  EXPECT_EQ(*ParseGidIndex("MC_GID_INDEX", "0"), 0);
  for (const char* text : {"-1", "x", "3x", " 3", "4096", "99999999999", "0x3", "3,4"}) {
    const auto index = ParseGidIndex("MC_GID_INDEX", text);
    ASSERT_FALSE(index) << text;
    EXPECT_THAT(index.error().detail, HasSubstr(fmt::format("MC_GID_INDEX: '{}'", text)));
  }
}

}  // namespace
}  // namespace kvcove::net
