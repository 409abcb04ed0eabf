// SPDX-License-Identifier: Apache-2.0
#include "kvcove/pool/pool.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

namespace kvcove {
namespace {

constexpr std::string_view kSmall = "embedded:?memory=4MiB&populate=0";

TEST(PoolTest, AnAddressThatIsNotUnderstoodSaysWhatIsRight) {
  for (const auto& [address, hint] :
       {std::pair{"redis://x", "embedded:?memory=4GiB"},
        std::pair{"embedded:?memroy=1GiB", "memory"},
        std::pair{"embedded:?max_objects=many", "not a number"},
        std::pair{"kvcove://host:7400?chekcsum=0", "checksum"},
        std::pair{"embedded:?memory=4MiB&memory=8MiB", "more than once"},
        std::pair{"kvcove://host:7400?local=0&local=1", "more than once"},
        std::pair{"kvcove://host:port", "port"}}) {
    const auto pool = Pool::Open(address);
    ASSERT_FALSE(pool) << address;
    EXPECT_EQ(pool.error().code, Code::kInvalid) << address;
    EXPECT_NE(pool.error().detail.find(hint), std::string::npos) << pool.error().detail;
  }
}

TEST(PoolTest, ADaemonOrMasterThatIsNotThereIsUnavailable) {
  EXPECT_EQ(Pool::Open("unix:/nowhere/at/all").error().code, Code::kUnavailable);
  EXPECT_EQ(Pool::Open("kvcove://127.0.0.1:1").error().code, Code::kUnavailable);
}

TEST(PoolTest, ASessionOutlivesItsPool) {
  auto pool = Pool::Open(kSmall);
  ASSERT_TRUE(pool) << pool.error().ToString();
  EXPECT_EQ((*pool)->form(), "embedded");
  EXPECT_EQ((*pool)->Stat()->objects, 0U);
  auto session = *(*pool)->OpenSession({.name = "n"});
  pool->reset();
  const std::string value = "value";
  const ConstBuffer piece{.data = value.data(), .size = value.size()};
  const PutItem put{.key = "k", .value = {&piece, 1}};
  ItemResult result;
  ASSERT_TRUE(session->Put({&put, 1}, {&result, 1}));
  ASSERT_TRUE(result.ok()) << CodeName(result.code);
  std::string back(16, '\0');
  const MutableBuffer into{.data = back.data(), .size = back.size()};
  const GetItem get{.key = "k", .into = {&into, 1}};
  ASSERT_TRUE(session->Get({&get, 1}, {&result, 1}, {}));
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(back.substr(0, result.bytes), value);
}

TEST(PoolTest, NamesThatAreEmptyOrTooLongAreRefused) {
  auto pool = *Pool::Open(kSmall);
  const auto nameless = pool->OpenSession({.name = ""});
  ASSERT_FALSE(nameless);
  EXPECT_EQ(nameless.error().code, Code::kInvalid);
  EXPECT_NE(nameless.error().detail.find("name of a namespace"), std::string::npos);
  const std::string longest(1 << 16, 'n');
  EXPECT_EQ(pool->OpenSession({.name = longest}).error().code, Code::kInvalid);
  EXPECT_EQ(pool->OpenSession({.name = "n", .engine = longest}).error().code, Code::kInvalid);
}

// Neither its threads nor the holders of its locks came along.
TEST(PoolTest, AForkedChildIsRefusedAndMayDropEverything) {
  auto pool = *Pool::Open(kSmall);
  auto session = *pool->OpenSession({.name = "n"});
  ASSERT_TRUE(session->Capture({}));
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);  // a wait that has no end would not let the test end
    const bool refused = session->Capture({}).error().code == Code::kUnavailable &&
                         pool->Stat().error().code == Code::kUnavailable &&
                         pool->OpenSession({.name = "n"}).error().code == Code::kUnavailable;
    session.reset();
    pool.reset();
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(session->Capture({})) << "the parent goes on";
}

}  // namespace
}  // namespace kvcove
