// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/cluster/locator.h"

#include <gtest/gtest.h>

#include <map>

namespace kvcove::requester {
namespace {

// A master with one namespace in one slot, which counts what it is asked.
class LookupMaster final : public LookupService {
 public:
  Result<wire::Registration> Register(const wire::RegisterRequest& request, std::int64_t) override {
    ++registrations;
    last = request;
    if (error != Code::kOk) return Fail(error, "the master says so");
    return wire::Registration{
        .incarnation = {.low = 1}, .slot = 3, .generation = generation, .open = open};
  }
  Result<std::vector<wire::Place>> Lookup(const Token& token, std::span<const Id128> hashes,
                                          std::int64_t) override {
    ++lookups;
    if (refuses || token.generation != generation) {
      return Fail(Code::kStale, "another generation");
    }
    if (error != Code::kOk) return Fail(error, "the master says so");
    std::vector<wire::Place> found;
    for (const Id128& hash : hashes) {
      const auto at = places.find(hash.low);
      found.push_back(at == places.end() ? wire::Place{.reason = MissReason::kEvicted}
                                         : at->second);
    }
    return found;
  }
  void Add(std::string_view key, wire::OwnerNumber owner) {
    places[DirectoryHash(3, key).low] = {.size_bytes = 10, .owner = owner};
  }

  std::map<std::uint64_t, wire::Place> places;
  Generation generation = 7;
  bool open = true;
  bool refuses = false;  // every generation
  Code error = Code::kOk;
  int registrations = 0;
  int lookups = 0;
  wire::RegisterRequest last;
};

class LocatorTest : public testing::Test {
 protected:
  Locator::Found Locate(std::string_view version = "") {
    return locator_.Locate(keys_, {0, 1}, results_, version, clock_.NowNs() + kSecond);
  }
  FakeClock clock_;
  LookupMaster master_;
  Locator locator_{master_, {.name = "n", .engine = "e"}, clock_};
  const std::vector<std::string_view> keys_{"here", "nowhere"};
  std::vector<ItemResult> results_{2};
};

TEST_F(LocatorTest, AsksTheMasterOnceForABindingAndOnceABatch) {
  master_.Add("here", 4);
  const auto found = Locate();
  ASSERT_EQ(found.which, std::vector<std::size_t>{0});
  EXPECT_EQ(found.places[0].owner, 4);
  EXPECT_TRUE(results_[0].ok());
  EXPECT_EQ(results_[0].tier, Tier::kRemoteMemory) << "another host's memory";
  EXPECT_EQ(results_[1].code, Code::kMiss);
  EXPECT_EQ(results_[1].reason, MissReason::kEvicted);
  Locate();
  EXPECT_EQ(master_.registrations, 1);
  EXPECT_EQ(master_.lookups, 2);
}

TEST_F(LocatorTest, ANewGenerationCostsOneMoreRegistrationAndIsNoError) {
  Locate();
  master_.generation = 8;
  master_.Add("here", 4);
  const auto found = Locate();
  EXPECT_EQ(found.token.generation, 8U);
  EXPECT_TRUE(results_[0].ok());
  EXPECT_EQ(master_.registrations, 2);
  EXPECT_EQ(master_.last.last_generation, 7U) << "it tells what it was bound to";
}

// A shard or a standby that lags refuses a generation that the master has just given.
TEST_F(LocatorTest, AResetIsSaidOnlyWhereTheGenerationChanged) {
  master_.refuses = true;
  Locate();
  EXPECT_EQ(results_[0].reason, MissReason::kShardAway);
  Locate();
  EXPECT_EQ(results_[0].reason, MissReason::kShardAway);
  ++master_.generation;
  Locate();
  EXPECT_EQ(results_[0].reason, MissReason::kReset);
}

TEST_F(LocatorTest, AClosedEngineFindsNothingAndAsksAgainNowAndThenOnly) {
  master_.open = false;
  for (int i = 0; i < 10; ++i) Locate();
  EXPECT_EQ(results_[0].reason, MissReason::kClosed);
  EXPECT_EQ(master_.registrations, 1);
  EXPECT_EQ(master_.lookups, 0);
  clock_.AdvanceNs(50 * kMillisecond);
  master_.open = true;  // another process of this engine has reset
  Locate();
  EXPECT_EQ(master_.registrations, 2);
  EXPECT_EQ(results_[0].reason, MissReason::kEvicted);
}

TEST_F(LocatorTest, WithoutTheMasterEverythingIsAMissThatSaysWhy) {
  master_.error = Code::kUnavailable;
  Locate();
  EXPECT_EQ(results_[0].reason, MissReason::kUnavailable);
  master_.error = Code::kTimeout;
  Locate();
  EXPECT_EQ(results_[0].reason, MissReason::kTimeout);
  master_.error = Code::kDenied;
  Locate();
  EXPECT_EQ(results_[0].reason, MissReason::kDenied) << "it answers, but not with places";
}

// This host's owner has answered before, or an owner at which a hint pointed.
TEST_F(LocatorTest, AnOwnersReasonRemainsWhileTheMasterDoesNotAnswer) {
  for (const bool bound : {false, true}) {
    results_ = {Miss(MissReason::kDiskFailed), Miss(MissReason::kNeverPut)};
    master_.error = Code::kUnavailable;
    Locate();
    EXPECT_EQ(results_[0].reason, MissReason::kDiskFailed) << bound;
    EXPECT_EQ(results_[1].reason, MissReason::kUnavailable) << "another owner may have it";
    master_.error = Code::kOk;
    Locate();
    EXPECT_EQ(results_[0].reason, MissReason::kEvicted) << "the master's answer counts";
  }
}

TEST_F(LocatorTest, WhatWasFoundIsRecalledWithoutTheMasterUntilItIsFoundNowhere) {
  master_.Add("here", 4);
  std::vector<std::size_t> which{0, 1};
  EXPECT_TRUE(locator_.Recall(keys_, which, results_, "").which.empty()) << "nothing is known yet";
  EXPECT_EQ(which.size(), 2U);
  Locate();
  const int asked = master_.registrations + master_.lookups;
  const auto hinted = locator_.Recall(keys_, which, results_, "");
  EXPECT_EQ(hinted.which, std::vector<std::size_t>{0});
  EXPECT_EQ(hinted.places[0].owner, 4);
  EXPECT_EQ(which, std::vector<std::size_t>{1}) << "the rest is left to the master";
  EXPECT_EQ(master_.registrations + master_.lookups, asked);
  master_.places.clear();
  Locate();
  which = {0, 1};
  EXPECT_TRUE(locator_.Recall(keys_, which, results_, "").which.empty());
}

// A batch whose keys are all known costs no call to the master, and one exchange with each owner.
TEST_F(LocatorTest, HintsAreLostOnlyWhereTheTableIsFull) {
  constexpr std::size_t kHints = 1024;
  Locator locator{master_, {.name = "n", .engine = "e"}, clock_, kHints};
  std::vector<std::string> names;
  for (std::size_t i = 0; i < 3 * kHints; ++i) names.push_back("key " + std::to_string(i));
  const std::vector<std::string_view> keys(names.begin(), names.end());
  std::vector<ItemResult> results(keys.size());
  const auto locate = [&](std::size_t begin, std::size_t end) {
    std::vector<std::size_t> which;
    for (std::size_t i = begin; i < end; ++i) {
      master_.Add(keys[i], static_cast<wire::OwnerNumber>(i % 100));
      which.push_back(i);
    }
    locator.Locate(keys, std::move(which), results, "", clock_.NowNs() + kSecond);
  };
  const auto recalled = [&](std::size_t begin, std::size_t end) {
    std::vector<std::size_t> which;
    for (std::size_t i = begin; i < end; ++i) which.push_back(i);
    const auto found = locator.Recall(keys, which, results, "");
    EXPECT_EQ(found.which.size() + which.size(), end - begin);
    for (std::size_t k = 0; k < found.which.size(); ++k) {
      EXPECT_EQ(found.places[k].owner, found.which[k] % 100);
    }
    return found.which.size();
  };
  locate(0, kHints / 2);
  EXPECT_EQ(recalled(0, kHints / 2), kHints / 2);
  locate(kHints / 2, 3 * kHints);
  EXPECT_GT(recalled(0, 3 * kHints), kHints * 9 / 10);
  EXPECT_LE(recalled(0, 3 * kHints), kHints);
  // The latest ones are those that are asked for.
  EXPECT_GT(recalled(3 * kHints - 100, 3 * kHints), 90U);
}

// A new master does not know that another engine's reset has closed the session.
TEST_F(LocatorTest, ASessionVouchesForItsWeightsWhenItStartsAndNotAgain) {
  Locator locator(master_, {.name = "n", .engine = "e", .assume_weights = true}, clock_);
  const auto bind = [&] { return locator.Bind("", /*fresh=*/true, clock_.NowNs() + kSecond); };
  master_.error = Code::kUnavailable;
  EXPECT_FALSE(bind());
  master_.error = Code::kOk;
  master_.open = false;
  EXPECT_TRUE(bind());
  EXPECT_TRUE(master_.last.assume_weights);
  EXPECT_TRUE(bind());
  EXPECT_FALSE(master_.last.assume_weights);
}

TEST_F(LocatorTest, AProvenResetMakesTheNextCallRegisterWithWhatItIsBoundToNow) {
  Locate();
  locator_.CloseAll({.incarnation = {.low = 5}, .generation = 9});
  master_.generation = 9;
  Locate();
  EXPECT_EQ(master_.registrations, 2);
  EXPECT_EQ(master_.last.last_generation, 9U);
  EXPECT_EQ(master_.last.last_incarnation.low, 5U);
}

// A trainer makes a version a step.
TEST_F(LocatorTest, VersionsThatAreNoLongerUsedAreForgotten) {
  for (int step = 0; step < 1000; ++step) {
    Locate(std::to_string(step));
    Locate("kept");
  }
  EXPECT_EQ(master_.registrations, 1001) << "a version in use is asked for once";
  EXPECT_EQ(locator_.SlotOf("0"), std::nullopt);
  EXPECT_EQ(locator_.SlotOf("999"), SlotId{3});
  EXPECT_EQ(locator_.SlotOf("kept"), SlotId{3});
}

}  // namespace
}  // namespace kvcove::requester
