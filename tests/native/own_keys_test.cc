// SPDX-License-Identifier: Apache-2.0
#include "own_keys.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace kvcove::python {
namespace {

std::string KeyOf(int i) { return fmt::format("key-{}", i); }

TEST(OwnKeysTest, KnowsTheLatestAndForgetsWhatIsOlderThanTwiceAsMany) {
  constexpr int kAtLeast = 2000;  // a set grows once on the way
  OwnKeys keys(kAtLeast);
  EXPECT_FALSE(keys.Has(KeyOf(0)));
  for (int i = 0; i < 5 * kAtLeast; ++i) {
    keys.Add(KeyOf(i));
    for (const int back : {0, 1, kAtLeast / 2, kAtLeast - 1}) {
      ASSERT_TRUE(back > i || keys.Has(KeyOf(i - back))) << i << " " << back;
    }
    ASSERT_FALSE(i >= 2 * kAtLeast && keys.Has(KeyOf(i - 2 * kAtLeast))) << i;
    ASSERT_FALSE(keys.Has(KeyOf(i + 1)));
  }
}

TEST(OwnKeysTest, AKeyThatIsPutAgainStays) {
  constexpr int kAtLeast = 100;
  OwnKeys keys(kAtLeast);
  for (int i = 0; i < 10 * kAtLeast; ++i) {
    if (i % (kAtLeast / 2) == 0) keys.Add("again");
    keys.Add(KeyOf(i));
    ASSERT_TRUE(keys.Has("again")) << i;
  }
}

TEST(OwnKeysTest, ThreadsAddAtOnce) {
  constexpr int kEach = 5000;
  OwnKeys keys;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&keys, t] {
      for (int i = 0; i < kEach; ++i) keys.Add(KeyOf(t * kEach + i));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < 4 * kEach; ++i) ASSERT_TRUE(keys.Has(KeyOf(i))) << i;
  EXPECT_FALSE(keys.Has(KeyOf(4 * kEach)));
}

}  // namespace
}  // namespace kvcove::python
