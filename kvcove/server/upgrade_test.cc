// SPDX-License-Identifier: Apache-2.0
// What a running process and its successor say to each other before anything stops.
#include "kvcove/server/upgrade.h"

#include <gmock/gmock.h>

#include "kvcove/segment/layout.h"

namespace kvcove::server {
namespace {

UpgradeHello HelloOfThisBuild() {
  UpgradeHello hello;
  hello.layout = segment::kLayoutVersion;
  hello.role = "owner";
  hello.memory_bytes = 1 << 20;
  return hello;
}

std::string WhyNot(const UpgradeHello& running, const UpgradeHello& asking) {
  return Mismatch({&running, 1}, {&asking, 1});
}

TEST(UpgradeHelloTest, TheSameBuildTakesOver) {
  const UpgradeHello hello = HelloOfThisBuild();
  EXPECT_EQ(WhyNot(hello, hello), "");
  const auto decoded = DecodeHellos(EncodeHellos({&hello, 1}));
  ASSERT_TRUE(decoded);
  ASSERT_EQ(decoded->size(), 1U);
  EXPECT_EQ(WhyNot(decoded->front(), hello), "");
}

TEST(UpgradeHelloTest, AnOwnerOfAnOlderBuildIsNotTakenOver) {
  UpgradeHello running = HelloOfThisBuild();
  running.layout = segment::kLayoutVersion - 1;
  EXPECT_EQ(WhyNot(running, HelloOfThisBuild()),
            "its memory has layout 3, this build writes layout 4: restart it instead, which starts "
            "empty");
  running = HelloOfThisBuild();
  running.version = kUpgradeVersion - 1;
  EXPECT_THAT(WhyNot(running, HelloOfThisBuild()), testing::HasSubstr("hands over in version 3"));
}

// As an older build's master said.
TEST(UpgradeHelloTest, AMasterIsNotTakenOverByAnOwner) {
  UpgradeHello running = HelloOfThisBuild();
  running.role = "master";
  EXPECT_EQ(WhyNot(running, HelloOfThisBuild()), "it is 'kvcove master', not 'kvcove owner'");
}

// A process of another build reads it before anything else, and says in which version it hands
// over.
TEST(UpgradeHelloTest, ItsTextIsThis) {
  UpgradeHello hello = HelloOfThisBuild();
  hello.max_objects = 1000;
  hello.data = "/d";
  hello.disks = "/a,/b";
  hello.master = "m:1";
  hello.listen = "h:2";
  hello.tenant = "t";
  const std::vector<UpgradeHello> two = {hello, HelloOfThisBuild()};
  EXPECT_EQ(EncodeHellos(two),
            "version=4\nlayout=4\nrole=owner\nmemory=1048576\nobjects=1000\ndata=/d\n"
            "master=m:1\nlisten=h:2\ntenant=t\ndisks=/a,/b\n\n"
            "version=4\nlayout=4\nrole=owner\nmemory=1048576\nobjects=0\ndata=\n"
            "master=\nlisten=\ntenant=\ndisks=\n");
}

}  // namespace
}  // namespace kvcove::server
