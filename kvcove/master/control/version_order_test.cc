// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/control/version_order.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace kvcove::master {
namespace {

class VersionOrderTest : public testing::Test {
 protected:
  void Commit(const VersionOrder::Change& change, const std::vector<FactChange>& changes) {
    ApplyTransaction(changes, ++revision_, facts_);
    order_.Apply(change);
  }
  VersionOrder::Change Name(const std::string& name, const std::string& version) {
    std::vector<FactChange> changes;
    const auto change = order_.PlanName(
        {.number = ++number_, .name = name, .version = version},
        [this](const std::string&, const std::string& of) { return with_slot_.contains(of); },
        changes);
    Commit(change, changes);
    return change;
  }
  // Returns how many versions have died; -1: refused.
  int Prune(const std::string& name, const std::string& before) {
    std::vector<FactChange> changes;
    const auto change = order_.PlanPrune(name, before, changes);
    if (!change) {
      EXPECT_EQ(change.error().code, Code::kInvalid);
      return -1;
    }
    Commit(*change, changes);
    return static_cast<int>(change->dies);
  }
  void Restart() {
    const auto state = Decode(facts_);
    ASSERT_TRUE(state) << state.error().ToString();
    order_ = {};
    order_.Load(*state);
  }
  std::size_t Stored(std::string_view prefix) const {
    std::size_t count = 0;
    for (const auto& [key, fact] : facts_) count += key.starts_with(prefix) ? 1 : 0;
    return count;
  }

  VersionOrder order_;
  Facts facts_;
  std::uint64_t revision_ = 0;
  std::uint64_t number_ = 100;
  std::set<std::string> with_slot_;
};

TEST_F(VersionOrderTest, NamesAreThoseWithVersionsInTheOrder) {
  EXPECT_TRUE(order_.Names().empty());
  Name("n", "v1");
  Name("m", "v1");
  Name("n", "v2");
  EXPECT_EQ(order_.Names(), (std::vector<std::string>{"m", "n"}));
  Restart();
  EXPECT_EQ(order_.Names(), (std::vector<std::string>{"m", "n"}));
}

TEST_F(VersionOrderTest, WhatWasNamedFirstIsEarlierWhateverItIsCalled) {
  for (const char* version : {"step-9", "step-10", "a"}) Name("m", version);
  EXPECT_EQ(Prune("m", "a"), 2);
  EXPECT_TRUE(order_.Dead("m", "step-9"));
  EXPECT_TRUE(order_.Dead("m", "step-10"));
  EXPECT_FALSE(order_.Dead("m", "a"));
  EXPECT_FALSE(order_.Dead("other", "step-9"));
  EXPECT_EQ(order_.dead(), 2U);
}

TEST_F(VersionOrderTest, ALaterNamingChangesNoOrder) {
  Name("m", "v1");
  Name("m", "v2");
  EXPECT_FALSE(Name("m", "v1").named);
  EXPECT_EQ(Prune("m", "v2"), 1);
  EXPECT_TRUE(order_.Dead("m", "v1"));
  EXPECT_FALSE(Name("m", "v1").named) << "nor does one of a dead version";
  EXPECT_TRUE(order_.Dead("m", "v1"));
}

TEST_F(VersionOrderTest, AVersionThatNobodyHasNamedIsRefused) {
  Name("m", "v1");
  EXPECT_EQ(Prune("m", "v2"), -1);
  EXPECT_EQ(Prune("n", "v1"), -1) << "versions of namespaces do not mix";
  EXPECT_EQ(Prune("m", ""), -1);
  EXPECT_EQ(order_.dead(), 0U);
}

TEST_F(VersionOrderTest, ARepetitionAnEarlierAndADeadVersionChangeNothing) {
  for (const char* version : {"v1", "v2", "v3", "v4"}) Name("m", version);
  EXPECT_EQ(Prune("m", "v3"), 2);
  const Facts before = facts_;
  for (const char* version : {"v3", "v2", "v1"}) EXPECT_EQ(Prune("m", version), 0) << version;
  EXPECT_EQ(facts_, before);
  EXPECT_EQ(Prune("m", "v4"), 1);
  EXPECT_EQ(order_.dead(), 3U);
}

TEST_F(VersionOrderTest, BeforeTheFirstVersionThereIsNone) {
  Name("m", "v1");
  EXPECT_EQ(Prune("m", "v1"), 0);
  EXPECT_EQ(Stored("pruned/"), 0U);
}

TEST_F(VersionOrderTest, OrderAndDeathOutliveARestart) {
  for (const char* version : {"b", "a", "c"}) Name("m", version);
  EXPECT_EQ(Prune("m", "a"), 1);
  Restart();
  EXPECT_TRUE(order_.Dead("m", "b"));
  EXPECT_FALSE(order_.Dead("m", "a"));
  EXPECT_EQ(order_.dead(), 1U);
  EXPECT_EQ(order_.size(), 3U);
  EXPECT_EQ(Prune("m", "c"), 1);
  EXPECT_TRUE(order_.Dead("m", "a"));
}

TEST_F(VersionOrderTest, TheEarliestWithoutASlotIsForgotten) {
  with_slot_ = {"v0"};
  for (std::size_t i = 0; i < VersionOrder::kKept; ++i) Name("m", "v" + std::to_string(i));
  const auto change = Name("m", "new");
  ASSERT_EQ(change.left.size(), 1U);
  EXPECT_EQ(change.left[0].version, "v1");
  EXPECT_EQ(order_.size(), VersionOrder::kKept);
  EXPECT_EQ(Stored("version/"), VersionOrder::kKept);
  EXPECT_EQ(Prune("m", "v1"), -1) << "it is one that nobody has named";
  with_slot_.clear();
  EXPECT_EQ(Name("m", "newer").left[0].version, "v0");
  Restart();
  EXPECT_EQ(order_.size(), VersionOrder::kKept);
  EXPECT_EQ(Prune("m", "v5"), 3);
}

// If dead versions were forgotten, a client could revive one: it would name many others first, by
// the salts of its requests for example.
TEST_F(VersionOrderTest, ADeadVersionLeavesFirstAndStaysDead) {
  Name("other", "alive");
  with_slot_ = {"v0"};
  for (std::size_t i = 1; i < VersionOrder::kKept; ++i) Name("m", "v" + std::to_string(i - 1));
  EXPECT_EQ(Prune("m", "v3"), 3);
  const auto change = Name("m", "new");
  ASSERT_EQ(change.left.size(), 2U);
  EXPECT_EQ(change.left[0].version, "v1");
  EXPECT_EQ(change.left[1].version, "v2");
  EXPECT_EQ(Stored("version/"), VersionOrder::kKept - 1);
  EXPECT_EQ(Stored("pruned/"), 1U) << "v0 needs it";
  const auto expect_dead = [&] {
    for (const char* version : {"v0", "v1", "v2"}) {
      EXPECT_TRUE(order_.Dead("m", version)) << version;
      EXPECT_EQ(Prune("m", version), 0) << "all before it are dead: " << version;
      EXPECT_FALSE(order_.Dead("other", version));
    }
    EXPECT_FALSE(order_.Dead("m", "v3"));
    EXPECT_TRUE(order_.NumberOf("other", "alive"));
    EXPECT_EQ(order_.dead(), 3U);
  };
  expect_dead();
  Restart();
  expect_dead();
  with_slot_.clear();
  Name("m", "newer");
  EXPECT_EQ(Name("m", "newest").left[0].version, "v0");
  EXPECT_EQ(Stored("pruned/"), 0U) << "all dead ones are tombstones";
  expect_dead();
  EXPECT_EQ(Prune("m", "v4"), 1) << "pruning goes on";
}

TEST_F(VersionOrderTest, DeadVersionsLeaveSeveralAtATimeAndThoseOfOneTenant) {
  const std::string own = QualifiedName("acme", "m");
  for (std::size_t i = 0; i < 100; ++i) Name(own, "v" + std::to_string(i));
  for (std::size_t i = 0; i < VersionOrder::kKept - 100; ++i) Name("m", "w" + std::to_string(i));
  EXPECT_EQ(Prune(own, "v99"), 99);
  EXPECT_EQ(Prune("m", "w500"), 500);
  EXPECT_EQ(Name("m", "new").left.size(), VersionOrder::kBuriedAtOnce);
  EXPECT_EQ(order_.size(), VersionOrder::kKept - VersionOrder::kBuriedAtOnce + 1);
  while (order_.size() < VersionOrder::kKept) Name("m", "x" + std::to_string(number_));
  const auto rest = Name("m", "y").left;
  EXPECT_EQ(rest.size(), 99 - VersionOrder::kBuriedAtOnce);
  for (const VersionFact& one : rest) EXPECT_EQ(one.name, own);
  EXPECT_EQ(Stored("tombstones/"), 1U);
  Restart();
  EXPECT_EQ(order_.dead(), 599U);
  EXPECT_TRUE(order_.Dead(own, "v98"));
  EXPECT_FALSE(order_.Dead(own, "v99"));
}

TEST_F(VersionOrderTest, TombstonesAreBounded) {
  for (std::uint32_t number = 0; number < VersionOrder::kTombstonesKept; ++number) {
    TombstonesFact fact{.number = number + 7, .tenant = {}, .versions = {}};
    for (std::size_t i = 0; i < kTombstonesInFact; ++i) {
      fact.versions.push_back(VersionHash("m", std::to_string(number) + "/" + std::to_string(i)));
    }
    facts_[TombstonesKey("", fact.number)] = {.value = Encode(fact), .revision = 1};
  }
  Restart();
  for (std::size_t i = 0; i < VersionOrder::kKept; ++i) Name("m", "v" + std::to_string(i));
  EXPECT_EQ(Prune("m", "v100"), 100);
  Name("m", "new");
  const auto check = [&] {
    EXPECT_EQ(Stored("tombstones/"), VersionOrder::kTombstonesKept);
    EXPECT_FALSE(order_.Dead("m", "0/17")) << "the oldest";
    EXPECT_TRUE(order_.Dead("m", "1/17"));
    EXPECT_TRUE(order_.Dead("m", "v0"));
    EXPECT_EQ(order_.dead(), (VersionOrder::kTombstonesKept - 1) * kTombstonesInFact + 100);
  };
  check();
  Restart();
  check();
}

TEST_F(VersionOrderTest, ATenantForgetsNoneOfOthers) {
  Name("m", "oldest");
  const std::string own = QualifiedName("acme", "m");
  for (std::size_t i = 0; i < VersionOrder::kKeptOfTenant; ++i) {
    EXPECT_TRUE(Name(own, "v" + std::to_string(i)).left.empty());
  }
  const auto change = Name(own, "new");
  ASSERT_EQ(change.left.size(), 1U);
  EXPECT_EQ(change.left[0].name, own);
  EXPECT_EQ(change.left[0].version, "v0");
  EXPECT_TRUE(order_.NumberOf("m", "oldest"));
}

TEST_F(VersionOrderTest, OfVersionsThatAnEarlierBuildHasNamedNoneIsEarlier) {
  for (const char* version : {"x", "y"}) {
    number_ = 100;  // one number for all of them
    Name("m", version);
  }
  EXPECT_EQ(Prune("m", "y"), 0);
  Name("m", "z");
  EXPECT_EQ(Prune("m", "z"), 2);
}

}  // namespace
}  // namespace kvcove::master
