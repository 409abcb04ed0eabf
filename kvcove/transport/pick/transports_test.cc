// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/pick/transports.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "kvcove/base/log.h"
#include "kvcove/transport/verbs/fabric.h"
#include "kvcove/transport/verbs/fake_verbs.h"

namespace kvcove::transport {
namespace {

using Kind = TransportOptions::Kind;
using testing::HasSubstr;

class DevicesTest : public testing::Test {
 protected:
  DevicesTest() { SetLogLevel(LogLevel::kOff); }
  ~DevicesTest() override { SetLogLevel(LogLevel::kInfo); }
  verbs::FakeVerbs verbs_;
  Devices devices_;
};

TEST_F(DevicesTest, ReadsTheThreeKinds) {
  EXPECT_EQ(*ParseTransport("--transport", "auto"), Kind::kAuto);
  EXPECT_EQ(*ParseTransport("--transport", "verbs"), Kind::kVerbs);
  EXPECT_EQ(*ParseTransport("--transport", "tcp"), Kind::kTcp);
  const auto wrong = ParseTransport("--transport", "rdma");
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code, Code::kInvalid);
  EXPECT_THAT(wrong.error().detail, HasSubstr("--transport 'rdma'"));
}

TEST_F(DevicesTest, TcpOpensNoDevice) {
  verbs_.FailCall(0);
  EXPECT_EQ(*devices_.Open({}, &verbs_), &Preferred());
  EXPECT_FALSE(verbs_.failed());
}

TEST_F(DevicesTest, EqualOptionsHaveOneTransport) {
  const auto one = devices_.Open({.kind = Kind::kAuto}, &verbs_);
  ASSERT_TRUE(one);
  EXPECT_EQ((*one)->name(), "verbs");
  EXPECT_EQ(*devices_.Open({.kind = Kind::kVerbs}, &verbs_), *one);
  const auto plaintext = devices_.Open({.kind = Kind::kAuto, .plaintext = true}, &verbs_);
  EXPECT_NE(*plaintext, *one);
  const auto named = devices_.Open({.kind = Kind::kVerbs, .devices = "fake1"}, &verbs_);
  ASSERT_TRUE(named);
  EXPECT_NE(*named, *one);
}

TEST_F(DevicesTest, WithoutADeviceAutoIsTcpAndVerbsSaysWhy) {
  verbs_.SetPort("fake1", false);
  EXPECT_EQ(*devices_.Open({.kind = Kind::kAuto, .devices = "fake1"}, &verbs_), &Preferred());
  const auto none = devices_.Open({.kind = Kind::kVerbs, .devices = "fake1"}, &verbs_);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Code::kUnavailable);
  EXPECT_THAT(none.error().detail, HasSubstr("port 1 of fake1 is down"));
  verbs_.SetPort("fake1", true);
  EXPECT_EQ((*devices_.Open({.kind = Kind::kAuto, .devices = "fake1"}, &verbs_))->name(), "verbs");
}

TEST_F(DevicesTest, TlsKeepsPayloadOnItsConnections) {
  EXPECT_EQ(*devices_.Open({.kind = Kind::kAuto, .tls = true}, &verbs_), &Preferred());
  const auto none = devices_.Open({.kind = Kind::kVerbs, .tls = true}, &verbs_);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Code::kUnavailable);
  EXPECT_THAT(none.error().detail, HasSubstr("TLS"));
  const auto plaintext =
      devices_.Open({.kind = Kind::kVerbs, .tls = true, .plaintext = true}, &verbs_);
  ASSERT_TRUE(plaintext);
  EXPECT_EQ((*plaintext)->name(), "verbs");
}

TEST_F(DevicesTest, ADeviceThatReturnsIsOpenedAgain) {
  const TransportOptions options{.kind = Kind::kVerbs, .devices = "fake0"};
  const auto one = devices_.Open(options, &verbs_);
  ASSERT_TRUE(one);
  verbs_.RemoveDevice("fake0");
  EXPECT_FALSE(devices_.Open(options, &verbs_));
  verbs_.ReturnDevice("fake0");
  const auto other = devices_.Open(options, &verbs_);
  ASSERT_TRUE(other);
  EXPECT_NE(*other, *one);
  EXPECT_EQ(*devices_.Open(options, &verbs_), *other);
  EXPECT_EQ((*one)->name(), "verbs") << "whoever has it keeps it";
}

TEST_F(DevicesTest, ATrafficClassThatIsNoneIsAMistake) {
  for (const char* const variable : {"KVCOVE_RDMA_SERVICE_LEVEL", "KVCOVE_RDMA_TRAFFIC_CLASS"}) {
    for (const char* const text : {"256", "-1", "high"}) {
      ASSERT_EQ(setenv(variable, text, 1), 0);
      const auto wrong = devices_.Open({.kind = Kind::kAuto}, &verbs_);
      EXPECT_EQ(unsetenv(variable), 0);
      ASSERT_FALSE(wrong);
      EXPECT_EQ(wrong.error().code, Code::kInvalid);
      EXPECT_THAT(wrong.error().detail, HasSubstr(variable));
    }
  }
  ASSERT_EQ(setenv("KVCOVE_RDMA_SERVICE_LEVEL", "16", 1), 0);
  EXPECT_FALSE(devices_.Open({.kind = Kind::kAuto}, &verbs_)) << "InfiniBand has 16";
  ASSERT_EQ(setenv("KVCOVE_RDMA_SERVICE_LEVEL", "3", 1), 0);
  EXPECT_TRUE(devices_.Open({.kind = Kind::kAuto}, &verbs_));
  EXPECT_EQ(unsetenv("KVCOVE_RDMA_SERVICE_LEVEL"), 0);
}

TEST_F(DevicesTest, ANameThatIsNoneIsAMistake) {
  for (const Kind kind : {Kind::kAuto, Kind::kVerbs}) {
    const auto wrong = devices_.Open({.kind = kind, .devices = "fake0:0"}, &verbs_);
    ASSERT_FALSE(wrong);
    EXPECT_EQ(wrong.error().code, Code::kInvalid);
  }
}

}  // namespace
}  // namespace kvcove::transport
