// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/cluster/held_engines.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace kvcove::requester {
namespace {

class AskedMaster final : public wire::GenerationService {
 public:
  Result<wire::Registration> Register(const wire::RegisterRequest& request, std::int64_t) override {
    if (refused.contains(request.engine)) return std::unexpected(refusal);
    registered.insert(request.engine);
    versions.push_back(request.version);
    return wire::Registration{.generation = request.last_generation, .open = true};
  }
  Result<wire::ResetOutcome> Reset(const wire::ResetRequest&, std::int64_t) override {
    return Fail(Code::kUnavailable, "not in this test");
  }
  Status NameVersions(std::string_view, std::string_view, std::span<const std::string>,
                      std::int64_t) override {
    return {};
  }
  Status EndEngine(std::string_view, std::string_view, std::int64_t) override { return {}; }
  Result<wire::PruneOutcome> Prune(const wire::PruneRequest&, std::int64_t) override {
    return Fail(Code::kUnavailable, "not in this test");
  }

  std::set<std::string> refused;
  Error refusal;
  std::set<std::string> registered;
  std::vector<std::string> versions;
};

class HeldEnginesTest : public testing::Test {
 protected:
  HeldEnginesTest() {
    for (const char* engine : {"a", "b", "c"}) {
      held_.Registered({.name = "n", .version = {}, .engine = engine},
                       {.generation = 7, .open = true});
    }
  }
  Status Repeat() { return held_.Repeat(master_, kSecond); }

  AskedMaster master_;
  HeldEngines held_;
};

TEST_F(HeldEnginesTest, ANewMasterHearsOfThemOnce) {
  EXPECT_TRUE(held_.Forgotten(1, kSecond));
  EXPECT_FALSE(held_.Forgotten(1, 2 * kSecond));
  EXPECT_TRUE(held_.Forgotten(2, 3 * kSecond));
  EXPECT_FALSE(held_.Forgotten(2, 4 * kSecond));
}

// It ends what it has not heard of for 30 s, and its term stays.
TEST_F(HeldEnginesTest, AMasterThatThisProcessWasCutOffFromHearsOfThemAgain) {
  EXPECT_TRUE(held_.Forgotten(1, kSecond));
  EXPECT_FALSE(held_.Forgotten(1, 10 * kSecond));
  EXPECT_TRUE(held_.Forgotten(1, 41 * kSecond));
  EXPECT_FALSE(held_.Forgotten(1, 42 * kSecond));
}

TEST_F(HeldEnginesTest, WhatAMasterDidNotTakeIsSaidAgain) {
  EXPECT_TRUE(held_.Forgotten(1, kSecond));
  master_.refused = {"a"};
  master_.refusal = {.code = Code::kTimeout, .detail = {}};
  EXPECT_FALSE(Repeat());
  EXPECT_TRUE(held_.Forgotten(1, 2 * kSecond));
  master_.refused.clear();
  EXPECT_TRUE(Repeat());
  EXPECT_FALSE(held_.Forgotten(1, 3 * kSecond));
  EXPECT_EQ(master_.registered, (std::set<std::string>{"a", "b", "c"}));
}

// A reset that names another version than the master's last voids nothing.
TEST(HeldVersionsTest, TheVersionThatAnEngineRegisteredForLastIsRepeatedLast) {
  HeldEngines held;
  for (const char* version : {"2", "1", "3", "2", "1"}) {
    held.Registered({.name = "n", .version = version, .engine = "e"},
                    {.generation = 7, .open = true});
  }
  AskedMaster master;
  EXPECT_TRUE(held.Repeat(master, kSecond));
  EXPECT_EQ(master.versions, (std::vector<std::string>{"3", "2", "1"}));
}

TEST_F(HeldEnginesTest, AnEngineThatIsRefusedKeepsNoOtherFromBeingSaid) {
  master_.refused = {"a"};
  for (const Code code : {Code::kDenied, Code::kLimit, Code::kUnavailable}) {
    master_.registered.clear();
    master_.refusal = {.code = code, .detail = {}, .answered = true};
    EXPECT_EQ(Repeat().has_value(), code == Code::kDenied);
    EXPECT_EQ(master_.registered, (std::set<std::string>{"b", "c"}));
  }
}

}  // namespace
}  // namespace kvcove::requester
