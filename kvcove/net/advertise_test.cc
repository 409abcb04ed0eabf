// SPDX-License-Identifier: Apache-2.0
#include "kvcove/net/advertise.h"

#include <fmt/core.h>
#include <gmock/gmock.h>

namespace kvcove::net {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

RouteFunction From(const std::string& source, const std::string& peer) {
  return [=](const rpc::Address&) { return rpc::Route{.source = source, .peer = peer}; };
}
const RouteFunction kRemote = From("10.0.0.5", "10.0.0.1");
const RouteFunction kRemote6 = From("fd00::5", "fd00::1");
const RouteFunction kSameHost = From("10.0.0.1", "10.0.0.1");
const RouteFunction kLoopback = From("127.0.0.1", "127.0.0.1");
Result<rpc::Route> NoRoute(const rpc::Address&) {
  return Fail(Code::kUnavailable, "no route to 10.0.0.1:7400: Network is unreachable");
}
Result<rpc::Route> Unasked(const rpc::Address&) {
  ADD_FAILURE() << "the route is not needed";
  return Fail(Code::kInternal, {});
}

AdvertiseRequest Request(const std::string& listen, const std::string& advertise = {}) {
  return {.advertise = advertise,
          .listen = *rpc::ParseAddress(listen, 7401),
          .master = rpc::Address{.host = "10.0.0.1", .port = 7400}};
}
// "address | why"; an error: its text.
std::string Chosen(const AdvertiseRequest& request, const RouteFunction& route) {
  const auto chosen = ChooseAdvertised(request, route);
  return chosen ? fmt::format("{} | {}", chosen->address.ToString(), chosen->why)
                : chosen.error().ToString();
}

TEST(Advertise, WhatTheUserSaysWins) {
  EXPECT_EQ(Chosen(Request("0.0.0.0:7401", "192.0.2.7:9000"), Unasked),
            "192.0.2.7:9000 | --advertise says so");
  EXPECT_EQ(Chosen(Request("10.0.0.5:7401", "[fd00::7]:9000"), Unasked),
            "[fd00::7]:9000 | --advertise says so");
  EXPECT_EQ(Chosen(Request("10.0.0.5:7401", "node7.example:9000"), Unasked),
            "node7.example:9000 | --advertise says so");
}

TEST(Advertise, WithoutAPortItIsTheOneThatItListensOn) {
  EXPECT_EQ(Chosen(Request("0.0.0.0:8123", "192.0.2.7"), Unasked),
            "192.0.2.7:8123 | --advertise says so");
  EXPECT_THAT(Chosen(Request("0.0.0.0:0", "192.0.2.7"), Unasked), HasSubstr("names no port"));
}

TEST(Advertise, WhatNobodyCanConnectToIsRefused) {
  for (const char* host : {"0.0.0.0", "[::]", "0", "[::ffff:0.0.0.0]"}) {
    EXPECT_THAT(Chosen(Request("10.0.0.5:7401", fmt::format("{}:7401", host)), kRemote),
                HasSubstr("no address that others can connect to"));
  }
  for (const char* host : {"224.0.0.1", "255.255.255.255", "[ff02::1]"}) {
    EXPECT_THAT(Chosen(Request("10.0.0.5:7401", fmt::format("{}:7401", host)), kRemote),
                HasSubstr("is the address of no host"));
  }
  EXPECT_THAT(Chosen(Request("10.0.0.5:7401", "10.0.0.300:7401"), kRemote),
              HasSubstr("'10.0.0.300' is no IPv4 address"));
  EXPECT_THAT(Chosen(Request("10.0.0.5:7401", "10.0.0.5:0"), kRemote), HasSubstr("port 0"));
  EXPECT_THAT(Chosen(Request("10.0.0.5:7401", "fd00::7"), kRemote), HasSubstr("in brackets"));
  EXPECT_THAT(Chosen(Request("10.0.0.5:7401", ":7401"), kRemote), HasSubstr("names no host"));
}

TEST(Advertise, ALoopbackAddressIsForAMasterOnLoopback) {
  for (const char* host : {"127.0.0.1", "localhost", "[::1]", "127.1", "[::ffff:127.0.0.1]"}) {
    const AdvertiseRequest request = Request("10.0.0.5:7401", fmt::format("{}:7401", host));
    for (const RouteFunction& route : {kRemote, kSameHost}) {
      EXPECT_THAT(Chosen(request, route),
                  AllOf(HasSubstr("only this host reaches it"), HasSubstr("10.0.0.1:7400")));
    }
    EXPECT_THAT(Chosen(request, kLoopback), HasSubstr("--advertise says so"));
  }
}

TEST(Advertise, AListenAddressIsItself) {
  EXPECT_EQ(Chosen(Request("10.0.0.5:7401"), Unasked), "10.0.0.5:7401 | it listens there");
  EXPECT_EQ(Chosen(Request("[fd00::5]:7401"), Unasked), "[fd00::5]:7401 | it listens there");
  EXPECT_EQ(Chosen(Request("node5:0"), Unasked), "node5:0 | it listens there");
}

TEST(Advertise, ListeningOnLoopbackIsForAMasterOnThisHost) {
  for (const char* listen : {"127.0.0.1:7401", "localhost:7401", "[::1]:7401"}) {
    EXPECT_THAT(Chosen(Request(listen), kLoopback), HasSubstr("for this host alone"));
    EXPECT_THAT(Chosen(Request(listen), kSameHost), HasSubstr("for this host alone"));
    // A master that is not known yet is waited for.
    EXPECT_THAT(Chosen(Request(listen), NoRoute), HasSubstr("for this host alone"));
    EXPECT_THAT(Chosen(Request(listen), kRemote), AllOf(HasSubstr("only this host reaches it"),
                                                        HasSubstr("say --listen 10.0.0.5:7401")));
  }
}

TEST(Advertise, ListeningEverywhereItIsTheAddressOfTheRouteToTheMaster) {
  EXPECT_EQ(Chosen(Request("0.0.0.0:7401"), kRemote),
            "10.0.0.5:7401 | the route to the master 10.0.0.1:7400 leaves from it");
  EXPECT_THAT(Chosen(Request("[::]:7401"), kRemote), HasSubstr("10.0.0.5:7401 | "));
  EXPECT_THAT(Chosen(Request("[::]:7401"), kRemote6), HasSubstr("[fd00::5]:7401 | "));
  EXPECT_THAT(Chosen(Request("0.0.0.0:7401"), kSameHost), HasSubstr("10.0.0.1:7401 | "));
  // The port comes when it listens.
  EXPECT_THAT(Chosen(Request("0.0.0.0:0"), kRemote), HasSubstr("10.0.0.5:0 | "));
}

TEST(Advertise, ARouteThatGivesNothingToAdvertiseIsRefused) {
  EXPECT_THAT(Chosen(Request("0.0.0.0:7401"), kLoopback),
              AllOf(HasSubstr("no address that others can connect to"), HasSubstr("--advertise")));
  EXPECT_THAT(Chosen(Request("0.0.0.0:7401"), NoRoute),
              AllOf(HasSubstr("Network is unreachable"), HasSubstr("--advertise HOST:PORT")));
  EXPECT_THAT(Chosen(Request("0.0.0.0:7401"), kRemote6), HasSubstr("say --listen [::]:7401"));
}

TEST(Advertise, ALinkLocalAddressNeedsItsInterface) {
  EXPECT_THAT(Chosen(Request("[::]:7401", "[fe80::5]:7401"), kRemote6),
              HasSubstr("needs its interface"));
  EXPECT_THAT(Chosen(Request("[fe80::5]:7401"), kRemote6), HasSubstr("needs its interface"));
  EXPECT_THAT(Chosen(Request("[::]:7401", "[fe80::5%lo]:7401"), kRemote6),
              AllOf(HasSubstr("[fe80::5%lo]:7401 | --advertise says so"),
                    HasSubstr("only hosts on the same link")));
  EXPECT_THAT(
      Chosen(Request("[::]:7401"), From("fe80::5%lo", "fe80::1%lo")),
      AllOf(HasSubstr("[fe80::5%lo]:7401 | the route"), HasSubstr("only hosts on the same link")));
}

TEST(Advertise, TheKernelIsAskedForTheRoute) {
  const auto route = rpc::RouteTo({.host = "127.0.0.1", .port = 7400});
  ASSERT_TRUE(route) << route.error().detail;
  EXPECT_EQ(route->source, "127.0.0.1");
  EXPECT_EQ(route->peer, "127.0.0.1");
  EXPECT_EQ(InterfaceOf("127.0.0.1"), "lo");
  EXPECT_EQ(InterfaceOf("192.0.2.1"), "");
  EXPECT_EQ(rpc::RouteTo({.host = "no.such.host.invalid", .port = 7400}).error().code,
            Code::kInvalid);
}

}  // namespace
}  // namespace kvcove::net
