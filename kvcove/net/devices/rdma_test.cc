// SPDX-License-Identifier: Apache-2.0
#include "kvcove/net/devices/rdma.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kvcove/net/devices/fake_sysfs.h"

namespace kvcove::net {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

std::vector<FakePort> Roce(const std::string& mapped, const std::string& netdev,
                           const std::string& rate = "200 Gb/sec (4X HDR)") {
  return {{.rate = rate, .gids = GidsOf(mapped, netdev)}};
}
RdmaChoice Choose(const FakeSysfs& fake, const RdmaRequest& request) {
  auto choice = ChooseRdma(fake.Tree(), request);
  EXPECT_TRUE(choice) << choice.error().detail;
  return choice ? *choice : RdmaChoice();
}
std::vector<std::string> Names(const RdmaChoice& choice) {
  std::vector<std::string> names;
  for (const RdmaPath& path : choice.paths) names.push_back(path.port.Name());
  return names;
}
std::string Refusal(const FakeSysfs& fake, const RdmaRequest& request) {
  const auto choice = ChooseRdma(fake.Tree(), request);
  EXPECT_FALSE(choice);
  if (choice) return {};
  EXPECT_EQ(choice.error().code, Code::kInvalid);
  return choice.error().detail;
}
Target Find(const FakeSysfs& fake, const std::string& text) {
  auto target = FindTarget(fake.Tree(), text);
  EXPECT_TRUE(target) << target.error().detail;
  return target ? *target : Target();
}

// Two sockets, each with four switches, each with one GPU and one NIC: mlx5_0 and GPU 0 at bus 11
// and 12, mlx5_1 and GPU 1 at 21 and 22, ... And a slow NIC of each socket on a port of its own.
void EightAndEight(const FakeSysfs& fake) {
  fake.Nodes({{"0-31,64-95", 0}, {"32-63,96-127", 1}});
  for (int i = 0; i < 8; ++i) {
    const int node = i / 4;
    const std::string base = fmt::format("pci0000:{0}0/0000:{0}0:01.0/0000:{0}1:00.0", i + 1);
    const std::string nic = fmt::format("{0}/0000:{1}2:00.0/0000:{1}3:00.0", base, i + 1);
    const std::string gpu = fmt::format("{0}/0000:{1}2:01.0/0000:{1}4:00.0", base, i + 1);
    fake.Pci(nic, node);
    fake.Gpu(gpu, node);
    fake.Rdma(fmt::format("mlx5_{}", i), nic,
              Roce(MappedGid(10, 1, i, 5), fmt::format("rail{}", i), "400 Gb/sec (4X NDR)"));
  }
  for (int i = 0; i < 2; ++i) {
    const std::string nic = fmt::format("pci0000:{0}0/0000:{0}0:05.0/0000:{0}8:00.0", i * 4 + 1);
    fake.Pci(nic, i);
    fake.Rdma(fmt::format("mlx5_{}", 10 + i), nic,
              Roce(MappedGid(10, 0, 0, 5 + i), fmt::format("eth{}", i), "25 Gb/sec (1X EDR)"));
  }
}

TEST(Rdma, OneSocketBySpeedThenTheRoutedAddressThenName) {
  FakeSysfs fake;
  fake.Nodes({{"0-15", 0}});
  const auto add = [&](int i, const std::string& rate) {
    const std::string path = fmt::format("pci0000:00/0000:00:{0:02x}.0/0000:{0:02x}:00.0", i + 1);
    fake.Pci(path, 0);
    fake.Rdma(fmt::format("mlx5_{}", i), path,
              Roce(MappedGid(10, 0, i, 5), fmt::format("enp{}", i), rate));
  };
  add(0, "100 Gb/sec (4X EDR)");
  add(2, "200 Gb/sec (4X HDR)");
  add(3, "200 Gb/sec (4X HDR)");
  add(10, "200 Gb/sec (4X HDR)");
  add(1, "2.5 Gb/sec (1X SDR)");
  EXPECT_THAT(Names(Choose(fake, {})),
              ElementsAre("mlx5_2:1", "mlx5_3:1", "mlx5_10:1", "mlx5_0:1", "mlx5_1:1"));
  const RdmaChoice choice = Choose(fake, {.near = Find(fake, "numa:0"), .routed = "10.0.10.5"});
  EXPECT_THAT(Names(choice),
              ElementsAre("mlx5_10:1", "mlx5_2:1", "mlx5_3:1", "mlx5_0:1", "mlx5_1:1"));
  EXPECT_THAT(choice.left_out, IsEmpty());
  EXPECT_EQ(choice.paths[0].why, "on NUMA node 0, 200 Gb/s");
  EXPECT_EQ(choice.paths[0].gid.gid.index, 3);
  EXPECT_EQ(choice.paths[0].gid.gid.Address(), "10.0.10.5");
  EXPECT_EQ(choice.paths[0].interface, "enp10");
  EXPECT_EQ(choice.paths[4].why, "on NUMA node 0, 2.5 Gb/s");
}

TEST(Rdma, EachGpuHasTheDeviceOfItsSwitch) {
  FakeSysfs fake;
  EightAndEight(fake);
  const std::vector<std::string> gpus = Gpus(fake.Tree());
  ASSERT_EQ(gpus.size(), 8U);
  for (int i = 0; i < 8; ++i) {
    const RdmaChoice choice = Choose(fake, {.near = Find(fake, gpus[i])});
    ASSERT_EQ(choice.paths.size(), 10U);
    EXPECT_EQ(choice.paths[0].port.Name(), fmt::format("mlx5_{}:1", i));
    EXPECT_EQ(choice.paths[0].why,
              fmt::format("same PCI switch as 0000:{}4:00.0, 400 Gb/s", i + 1));
    // The slow one of the host bridge or the node goes before the fast ones of the other socket.
    for (std::size_t k = 0; k < 10; ++k) {
      const bool own = choice.paths[k].port.place.node == i / 4;
      EXPECT_EQ(own, k < 5) << i << " " << k << " " << choice.paths[k].why;
      EXPECT_EQ(choice.paths[k].why.starts_with("on another socket than"), !own);
    }
  }
}

TEST(Rdma, EachSocketHasItsOwnDevicesFirst) {
  FakeSysfs fake;
  EightAndEight(fake);
  EXPECT_THAT(Names(Choose(fake, {.near = Find(fake, "numa:1")})),
              ElementsAre("mlx5_4:1", "mlx5_5:1", "mlx5_6:1", "mlx5_7:1", "mlx5_11:1", "mlx5_0:1",
                          "mlx5_1:1", "mlx5_2:1", "mlx5_3:1", "mlx5_10:1"));
}

TEST(Rdma, AllDistancesInTheirOrder) {
  FakeSysfs fake;
  fake.Nodes({{"0-7", 0}, {"8-15", 0}, {"16-23", 1}});
  const std::string port = "pci0000:10/0000:10:01.0";
  fake.Gpu(port + "/0000:11:00.0/0000:12:01.0/0000:13:00.0/0000:14:01.0/0000:15:00.0", 0);
  const std::vector<std::pair<std::string, int>> places = {
      {"pci0000:30/0000:30:01.0/0000:31:00.0", -1},           // the firmware is silent
      {"pci0000:40/0000:40:01.0/0000:41:00.0", 2},            // other socket
      {"pci0000:50/0000:50:01.0/0000:51:00.0", 1},            // same socket
      {"pci0000:60/0000:60:01.0/0000:61:00.0", 0},            // same node
      {"pci0000:10/0000:10:02.0/0000:1a:00.0", 0},            // same bridge
      {port + "/0000:11:00.1", 0},                            // same root port
      {port + "/0000:11:00.0/0000:12:02.0/0000:16:00.0", 0},  // same upper switch
      {port + "/0000:11:00.0/0000:12:01.0/0000:13:00.0/0000:14:02.0/0000:17:00.0", 0},
  };
  for (std::size_t i = 0; i < places.size(); ++i) {
    fake.Pci(places[i].first, places[i].second);
    fake.Rdma(fmt::format("nic{}", i), places[i].first,
              Roce(MappedGid(10, 0, 0, 1), "eth", fmt::format("{} Gb/sec (4X)", 400 - 10 * i)));
  }
  fake.Rdma("rxe0", "", Roce(MappedGid(10, 0, 0, 1), "eth", "1000 Gb/sec"));  // in software
  const RdmaChoice choice = Choose(fake, {.near = Find(fake, "00000000:15:00.0")});
  EXPECT_THAT(Names(choice), ElementsAre("nic7:1", "nic6:1", "nic5:1", "nic4:1", "nic3:1", "nic2:1",
                                         "nic1:1", "rxe0:1", "nic0:1"));
  std::vector<std::string> reasons;
  for (const RdmaPath& path : choice.paths) reasons.push_back(path.why);
  EXPECT_THAT(reasons,
              ElementsAre(StartsWith("same PCI switch as 0000:15:00.0"),
                          StartsWith("same PCI switch"), StartsWith("same PCI root port"),
                          StartsWith("same host bridge"), StartsWith("on the NUMA node of"),
                          StartsWith("on the socket, but not the NUMA node of"),
                          StartsWith("on another socket"), StartsWith("at an unknown distance"),
                          StartsWith("at an unknown distance")));
}

TEST(Rdma, ABondIsNamedWithWhatItIsOver) {
  FakeSysfs fake;
  fake.Nodes({{"0-15", 0}});
  fake.Pci("pci0000:10/0000:10:01.0/0000:11:00.0", 0);
  fake.Pci("pci0000:10/0000:10:01.0/0000:11:00.1", 0);
  for (const char* name : {"enp17s0f0", "enp17s0f1"}) fake.Interface(name);
  fake.Interface("bond0", {"enp17s0f0", "enp17s0f1"});
  fake.Rdma("mlx5_bond_0", "pci0000:10/0000:10:01.0/0000:11:00.0",
            Roce(MappedGid(10, 0, 0, 5), "bond0", "200 Gb/sec (4X HDR)"));
  const RdmaChoice choice = Choose(fake, {.routed = "10.0.0.5"});
  ASSERT_THAT(Names(choice), ElementsAre("mlx5_bond_0:1"));
  EXPECT_EQ(choice.paths[0].interface, "bond0 over enp17s0f0, enp17s0f1");
  EXPECT_THAT(choice.paths[0].gid.why, HasSubstr("the address to advertise"));
}

// Without hardware bonding the kernel gives the bond's addresses to the active port alone; the
// other one is up, and has no address to be reached by.
TEST(Rdma, TheStandbyPortOfABondIsLast) {
  FakeSysfs fake;
  fake.Pci("pci0000:10/0000:10:01.0/0000:11:00.0", 0);
  fake.Pci("pci0000:10/0000:10:01.0/0000:11:00.1", 0);
  fake.Rdma(
      "mlx5_0", "pci0000:10/0000:10:01.0/0000:11:00.0",
      {{.rate = "400 Gb/sec (4X NDR)",
        .gids = {{kLinkLocalGid, "IB/RoCE v1", "bond0"}, {kLinkLocalGid, "RoCE v2", "bond0"}}}});
  fake.Rdma("mlx5_1", "pci0000:10/0000:10:01.0/0000:11:00.1",
            Roce(MappedGid(10, 0, 0, 5), "bond0"));
  fake.Rdma("mlx5_2", "pci0000:10/0000:10:01.0/0000:11:00.1", {{.gids = {}}});
  const RdmaChoice choice = Choose(fake, {});
  EXPECT_THAT(Names(choice), ElementsAre("mlx5_1:1", "mlx5_0:1"));
  EXPECT_THAT(choice.paths[1].gid.why, HasSubstr("link-local"));
  EXPECT_THAT(choice.left_out, ElementsAre(HasSubstr("mlx5_2:1: it has no GID")));
}

TEST(Rdma, TheGidOfAVlanIsTakenForItsAddress) {
  FakeSysfs fake;
  fake.Interface("enp1");
  fake.Interface("enp1.100", {"enp1"});
  std::vector<FakeGid> gids = GidsOf(MappedGid(192, 168, 0, 5), "enp1");
  for (const FakeGid& gid : GidsOf(MappedGid(10, 100, 0, 5), "enp1.100")) gids.push_back(gid);
  fake.Pci("pci0000:10/0000:10:01.0/0000:11:00.0", 0);
  fake.Rdma("mlx5_0", "pci0000:10/0000:10:01.0/0000:11:00.0", {{.gids = gids}});
  const RdmaChoice routed = Choose(fake, {.routed = "10.100.0.5"});
  EXPECT_EQ(routed.paths.at(0).gid.gid.index, 7);
  EXPECT_EQ(routed.paths.at(0).interface, "enp1.100 over enp1");
  EXPECT_EQ(Choose(fake, {.routed = "172.16.0.1"}).paths.at(0).gid.gid.index, 3);
}

TEST(Rdma, WithIpv6OnlyItsGlobalAddressIsTaken) {
  FakeSysfs fake;
  const std::string global = "fd00:0000:0000:0001:0000:0000:0000:0005";
  fake.Pci("pci0000:10/0000:10:01.0/0000:11:00.0", 0);
  fake.Rdma("mlx5_0", "pci0000:10/0000:10:01.0/0000:11:00.0", Roce(global, "enp1"));
  for (const char* routed : {"fd00:0:0:1::5", "10.0.0.5", ""}) {
    const RdmaChoice choice = Choose(fake, {.routed = routed});
    EXPECT_EQ(choice.paths.at(0).gid.gid.index, 3);
    EXPECT_EQ(choice.paths.at(0).gid.gid.Address(), "fd00:0:0:1::5");
    EXPECT_TRUE(choice.paths.at(0).gid.routable);
  }
}

TEST(Rdma, InfiniBandHasItsOwnGid) {
  FakeSysfs fake;
  fake.Pci("pci0000:10/0000:10:01.0/0000:11:00.0", 0);
  fake.Rdma("mlx5_0", "pci0000:10/0000:10:01.0/0000:11:00.0",
            {{.layer = "InfiniBand", .gids = {{kLinkLocalGid, "IB/RoCE v1", ""}}}});
  const RdmaChoice choice = Choose(fake, {.routed = "10.0.0.5"});
  EXPECT_EQ(choice.paths.at(0).gid.gid.index, 0);
  EXPECT_TRUE(choice.paths.at(0).gid.routable);
  EXPECT_EQ(choice.paths.at(0).interface, "");
}

TEST(Rdma, PortsThatAreNotUpAreLeftOut) {
  FakeSysfs fake;
  const std::string path = "pci0000:10/0000:10:01.0/0000:11:00.0";
  const auto gids = GidsOf(MappedGid(10, 0, 0, 5), "enp1");
  fake.Pci(path, 0);
  fake.Rdma("down", path, {{.state = "1: DOWN", .physical = "3: Disabled", .gids = gids}});
  fake.Rdma("init", path, {{.state = "2: INIT", .gids = gids}});
  fake.Rdma("defer", path, {{.state = "5: ACTIVE_DEFER", .gids = gids}});
  fake.Rdma("polling", path, {{.physical = "2: Polling", .gids = gids}});
  fake.Rdma("two", path,
            {{.number = 1, .state = "1: DOWN", .gids = gids}, {.number = 2, .gids = gids}});
  fake.Rdma("efa_0", path, {{.gids = gids}});
  fake.Write("class/infiniband/efa_0/node_type", "7: unspecified");
  const RdmaChoice choice = Choose(fake, {});
  EXPECT_THAT(Names(choice), ElementsAre("two:2"));
  EXPECT_THAT(
      choice.left_out,
      ElementsAre("defer:1: its state is '5: ACTIVE_DEFER'", "down:1: its state is '1: DOWN'",
                  HasSubstr("efa_0:1: its type is '7: unspecified'"),
                  "init:1: its state is '2: INIT'", "polling:1: its link is '2: Polling'",
                  "two:1: its state is '1: DOWN'"));
}

TEST(Rdma, NamedDevicesWinInTheirOrder) {
  FakeSysfs fake;
  EightAndEight(fake);
  const RdmaChoice choice =
      Choose(fake, {.devices = {"mlx5_11", "mlx5_3:1"}, .near = Find(fake, "numa:0")});
  EXPECT_THAT(Names(choice), ElementsAre("mlx5_11:1", "mlx5_3:1"));
  EXPECT_THAT(choice.paths[0].why, StartsWith("it was named; on another socket than"));
}

TEST(Rdma, ANamedDeviceMustBeThereAndUp) {
  FakeSysfs fake;
  const std::string path = "pci0000:10/0000:10:01.0/0000:11:00.0";
  fake.Pci(path, 0);
  fake.Rdma("mlx5_0", path, Roce(MappedGid(10, 0, 0, 5), "enp1"));
  fake.Rdma("mlx5_1", path, {{.state = "1: DOWN"}});
  for (const char* name : {"mlx5_2", "mlx5_0:2", "mlx5", "", "mlx5_0,mlx5_1"}) {
    EXPECT_THAT(Refusal(fake, {.devices = {name}}),
                AllOf(HasSubstr(fmt::format("'{}': there is no such RDMA device", name)),
                      HasSubstr("this host has: mlx5_0:1, mlx5_1:1 (its state is '1: DOWN')")));
  }
  EXPECT_THAT(Refusal(fake, {.devices = {"mlx5_0", "mlx5_1"}}),
              HasSubstr("'mlx5_1': its state is '1: DOWN'"));
  EXPECT_THAT(Refusal(fake, {.devices = {"mlx5_0", "mlx5_0:1"}}), HasSubstr("is named twice"));
  EXPECT_THAT(Refusal(FakeSysfs(), {.devices = {"mlx5_0"}}), HasSubstr("this host has: none"));
}

TEST(Rdma, AGidIndexMustBeInAPort) {
  FakeSysfs fake;
  const std::string path = "pci0000:10/0000:10:01.0/0000:11:00.0";
  fake.Pci(path, 0);
  fake.Rdma("mlx5_0", path, Roce(MappedGid(10, 0, 0, 5), "enp1"));
  std::vector<FakeGid> more = GidsOf(MappedGid(10, 0, 1, 5), "enp2");
  for (const FakeGid& gid : GidsOf(MappedGid(10, 0, 2, 5), "enp2.2")) more.push_back(gid);
  fake.Rdma("mlx5_1", path, {{.gids = more}});
  EXPECT_EQ(Choose(fake, {.gid_index = 2}).paths.at(0).gid.gid.index, 2);
  const RdmaChoice some = Choose(fake, {.gid_index = 7});
  EXPECT_THAT(Names(some), ElementsAre("mlx5_1:1"));
  EXPECT_THAT(some.left_out, ElementsAre(HasSubstr("mlx5_0:1: it has no GID with the index 7")));
  EXPECT_THAT(
      Refusal(fake, {.gid_index = 9}),
      AllOf(HasSubstr("no RDMA device has the GID index 9"), HasSubstr("10.0.0.5 of enp1")));
  EXPECT_THAT(Refusal(fake, {.devices = {"mlx5_0"}, .gid_index = 7}),
              HasSubstr("no GID with the index 7"));
}

TEST(Rdma, AHostWithoutDevicesHasNone) {
  FakeSysfs fake;
  EXPECT_THAT(ReadRdmaPorts(fake.Tree()), IsEmpty());
  EXPECT_THAT(Choose(fake, {.gid_index = 3}).paths, IsEmpty());
  EXPECT_THAT(ReadRdmaPorts(Sysfs("/no/such/tree")), IsEmpty());
}

TEST(Rdma, GarbageIsLeftOutWithItsReason) {
  FakeSysfs fake;
  const std::string path = "pci0000:10/0000:10:01.0/0000:11:00.0";
  const auto gids = GidsOf(MappedGid(10, 0, 0, 5), "enp1");
  fake.Pci(path, 0);
  const auto add = [&](const std::string& name, const FakePort& port) {
    fake.Rdma(name, path, {port});
    return "class/infiniband/" + name + "/ports/1/";
  };
  std::filesystem::remove(fake.root() + "/" + add("a_no_state", {.gids = gids}) + "state");
  add("b_state", {.state = "ACTIVE", .gids = gids});
  add("c_layer", {.layer = "Token Ring", .gids = gids});
  fake.Write("devices/virtual/infiniband/d_empty/node_type", "1: CA");
  fake.Link("class/infiniband/d_empty", "devices/virtual/infiniband/d_empty");
  fake.Write("devices/virtual/infiniband/e_ports/ports/x1/state", "4: ACTIVE");
  fake.Write("devices/virtual/infiniband/e_ports/ports/0/state", "4: ACTIVE");
  fake.Link("class/infiniband/e_ports", "devices/virtual/infiniband/e_ports");
  fake.Link("class/infiniband/f_dangling", "devices/no/such");
  fake.Write("class/infiniband/g_file", "text");
  const std::string bad_gids = add("h_gids", {.gids = gids});
  for (int i = 0; i < 4; ++i) fake.Write(fmt::format("{}gids/{}", bad_gids, i), "zzzz:1");
  const std::string no_types = add("i_types", {.gids = gids});
  std::filesystem::remove_all(fake.root() + "/" + no_types + "gid_attrs");
  // These can be used.
  add("k_rate", {.rate = "fast", .gids = gids});
  add("l_rate", {.rate = "-5 Gb/sec", .gids = gids});
  add("m_rate", {.rate = "1e99 Gb/sec", .gids = gids});
  fake.Write("devices/" + path + "/numa_node", "many");
  const RdmaChoice choice =
      Choose(fake, {.near = Target{.name = "NUMA node 0", .place = {.node = 0}}});
  EXPECT_THAT(Names(choice), ElementsAre("k_rate:1", "l_rate:1", "m_rate:1"));
  for (const RdmaPath& used : choice.paths) {
    EXPECT_EQ(used.why, "at an unknown distance from NUMA node 0, unknown speed");
  }
  EXPECT_THAT(
      choice.left_out,
      ElementsAre("a_no_state:1: its state cannot be read", "b_state:1: its state is 'ACTIVE'",
                  HasSubstr("c_layer:1: its link layer"), "d_empty:1: it has no port",
                  "e_ports:1: it has no port", "f_dangling:1: it has no port",
                  "g_file:1: it has no port", HasSubstr("h_gids:1: it has no GID"),
                  HasSubstr("i_types:1: it has no GID")));
}

TEST(Rdma, WhatMayNotBeReadIsAsIfItWereNotThere) {
  if (getuid() == 0) {
    ASSERT_EQ(seteuid(65534), 0);
  }
  {
    FakeSysfs fake;
    const std::string path = "pci0000:10/0000:10:01.0/0000:11:00.0";
    fake.Pci(path, 0);
    fake.Rdma("mlx5_0", path, Roce(MappedGid(10, 0, 0, 5), "enp1"));
    chmod((fake.root() + "/class/infiniband/mlx5_0/ports/1/state").c_str(), 0);
    EXPECT_THAT(Choose(fake, {}).left_out, ElementsAre("mlx5_0:1: its state cannot be read"));
    chmod((fake.root() + "/class/infiniband/mlx5_0/ports").c_str(), 0);
    EXPECT_THAT(Choose(fake, {}).left_out, ElementsAre("mlx5_0:1: it has no port"));
    chmod((fake.root() + "/class/infiniband/mlx5_0/ports").c_str(), 0700);
  }
  if (getuid() == 0) {
    ASSERT_EQ(seteuid(0), 0);
  }
}

TEST(Rdma, ATargetIsADeviceOrANodeThatIsThere) {
  FakeSysfs fake;
  EightAndEight(fake);
  fake.Pci("pci0000:f0/0000:f0:00.0", 0, "0x030000", "0x1a03");  // the server's console
  EXPECT_EQ(Find(fake, "0000:14:00.0").name, "0000:14:00.0");
  EXPECT_EQ(Find(fake, "14:00.0").name, "0000:14:00.0");
  EXPECT_EQ(Find(fake, "00000000:14:00.0").place.node, 0);
  EXPECT_EQ(Find(fake, "numa:1").place.socket, 1);
  for (const char* text : {"", "0000:aa:00.0", "14:00", "gpu0", "../../etc", "0000:14:00.0/.."}) {
    const auto target = FindTarget(fake.Tree(), text);
    ASSERT_FALSE(target) << text;
    EXPECT_THAT(target.error().detail,
                AllOf(HasSubstr("GPUs: 0000:14:00.0, "), Not(HasSubstr("f0:00.0"))));
  }
  for (const char* text : {"numa:", "numa:2", "numa:-1", "numa:x", "numa:1x"}) {
    const auto target = FindTarget(fake.Tree(), text);
    ASSERT_FALSE(target) << text;
    EXPECT_THAT(target.error().detail, HasSubstr("there are: 0, 1"));
  }
}

TEST(Rdma, TheNodeOfThisProcessIsThatOfItsProcessors) {
  FakeSysfs fake;
  fake.Nodes({{"0-1023", 0}});
  ASSERT_TRUE(NodeOfThisProcess(fake.Tree()));
  EXPECT_EQ(NodeOfThisProcess(fake.Tree())->place.node, 0);
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  int mine = 0;
  while (!CPU_ISSET(mine, &before)) ++mine;
  FakeSysfs other;
  other.Nodes({{"1000-1023", 0}, {fmt::format("{}", mine), 1}});
  const auto node = NodeOfThisProcess(other.Tree());
  ASSERT_TRUE(node);
  EXPECT_EQ(node->name, "NUMA node 1");
  EXPECT_EQ(node->place.socket, 1);
  other.Write("devices/system/node/node0/cpulist", "0-1023");
  EXPECT_FALSE(NodeOfThisProcess(other.Tree()));  // of both
  EXPECT_FALSE(NodeOfThisProcess(Sysfs("/no/such/tree")));
}

}  // namespace
}  // namespace kvcove::net
