// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/keys.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvcove {
namespace {

TEST(KeysTest, TheNearestKeyHasTheFewestEdits) {
  const std::vector<std::string_view> known = {"memory", "metrics", "policy"};
  EXPECT_EQ(NearestKey("memroy", known), "memory");
  EXPECT_EQ(NearestKey("metric", known), "metrics");
  EXPECT_EQ(NearestKey("frobnicate", known), "");
  EXPECT_EQ(NearestKey("", known), "");
  EXPECT_EQ(NearestKey("memory", {}), "");
}

// Names of namespaces are paths of models, which are long and begin alike.
TEST(KeysTest, LongKeysAreComparedToTheirEnd) {
  const std::string path(200, 'm');
  const std::string one = path + "/checkpoint-1000";
  const std::string other = path + "/another-model";
  const std::vector<std::string_view> known = {other, "short", one};
  EXPECT_EQ(NearestKey(path + "/checkpoint-100", known), one);
  EXPECT_EQ(NearestKey(one, known), one);
  EXPECT_EQ(NearestKey(std::string(200, 'x'), known), "") << "a long text is not near to all keys";
  EXPECT_EQ(NearestKey(std::string(8 << 20, 'm'), known), "") << "nor one without a bound";
}

TEST(KeysTest, AnUnknownKeyIsNamedWithTheNearestOneAndAllOthers) {
  const std::vector<std::string_view> known = {"memory", "policy"};
  EXPECT_EQ(UnknownKey("option", "memroy", known).error().detail,
            "unknown option 'memroy'; did you mean 'memory'? (known: memory, policy)");
}

}  // namespace
}  // namespace kvcove
