// SPDX-License-Identifier: Apache-2.0
#include "kvcove/pool/host_control.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <optional>
#include <thread>

#include "kvcove/base/random.h"
#include "kvcove/base/size.h"

namespace kvcove::pool {
namespace {

class HostControlTest : public testing::Test {
 protected:
  void SetUp() override {
    auto control = HostControl::Open({.lease_ns = kSecond}, SystemClock::Instance());
    ASSERT_TRUE(control) << control.error().ToString();
    control_ = std::move(*control);
  }
  void TearDown() override {
    for (const auto& owner : owners_) control_->RemoveOwner(*owner);
  }
  owner::Owner& Add() {
    owner::OwnerOptions options;
    options.memory_bytes = kMiB;
    options.populate = false;
    owners_.push_back(*owner::Owner::Open(options, SystemClock::Instance()));
    EXPECT_EQ(control_->AddOwner(owners_.back()), owners_.size() - 1);
    return *owners_.back();
  }
  static std::int64_t Soon() { return SystemClock::Instance().NowNs() + 60 * kSecond; }
  Token Register() {
    const auto registration = *control_->Register({.name = "n", .engine = "e"}, Soon());
    return {.incarnation = registration.incarnation,
            .generation = registration.generation,
            .slot = registration.slot};
  }
  static Code Put(owner::Owner& owner, const Token& token, std::string_view key) {
    const std::byte value[100] = {};
    const wire::PutItem item{.key = key, .size_bytes = sizeof(value), .value = value};
    return owner.Put(owner.data_side().AddRemoteSession(), token, {&item, 1}, Soon())[0].code;
  }

  std::shared_ptr<HostControl> control_;
  std::vector<std::shared_ptr<owner::Owner>> owners_;
};

TEST_F(HostControlTest, AnOwnerThatIsAddedKnowsTheGenerationsOfNow) {
  (void)Add();
  const Token token = Register();
  owner::Owner& second = Add();
  EXPECT_EQ(second.memory().header().generation(token.slot), token.generation);
  EXPECT_EQ(Put(second, token, "k"), Code::kOk);
}

TEST_F(HostControlTest, AResetThatReturnsStandsAtEachOwner) {
  owner::Owner& first = Add();
  owner::Owner& second = Add();
  const Token token = Register();
  ASSERT_EQ(Put(second, token, "k"), Code::kOk);
  ASSERT_TRUE(control_->Reset({.name = "n", .engine = "e", .id = RandomId()}, Soon()));
  const Generation now = first.memory().header().generation(token.slot);
  EXPECT_NE(now, token.generation);
  EXPECT_EQ(second.memory().header().generation(token.slot), now);
  EXPECT_EQ(Put(first, token, "k"), Code::kStale);
  EXPECT_EQ(Put(second, token, "k"), Code::kStale);
}

TEST_F(HostControlTest, ARemovalFindsAKeyWhereverItIs) {
  owner::Owner& first = Add();
  owner::Owner& second = Add();
  const Token token = Register();
  ASSERT_EQ(Put(first, token, "a"), Code::kOk);
  ASSERT_EQ(Put(second, token, "b"), Code::kOk);
  ASSERT_EQ(Put(first, token, "both"), Code::kOk);
  ASSERT_EQ(Put(second, token, "both"), Code::kOk);
  const std::vector<std::string_view> keys = {"a", "b", "both", "none"};
  EXPECT_EQ(*control_->Remove(token, keys, Soon()),
            (std::vector<Code>{Code::kOk, Code::kOk, Code::kOk, Code::kMiss}));
  EXPECT_EQ((*control_->Remove(token, keys, Soon()))[2], Code::kMiss);
  ASSERT_EQ(Put(first, token, "x1"), Code::kOk);
  ASSERT_EQ(Put(second, token, "x2"), Code::kOk);
  EXPECT_EQ(*control_->RemoveMatching(token, "x*", Soon()), 2U);
}

TEST_F(HostControlTest, ARemovalThatOneOwnerCouldNotProveIsNotProven) {
  owner::Owner& first = Add();
  owner::Owner& second = Add();
  const Token token = Register();
  const std::vector<std::string_view> keys = {"here", "none"};
  const auto outdate = [&](owner::Owner& owner) {
    owner.link_side().Publish(
        token.incarnation, {{.slot = token.slot, .generation = token.generation + 1, .name = "n"}});
  };
  ASSERT_EQ(Put(first, token, "here"), Code::kOk);
  outdate(second);
  EXPECT_EQ(*control_->Remove(token, keys, Soon()), (std::vector{Code::kStale, Code::kStale}));
  outdate(first);
  EXPECT_EQ(*control_->Remove(token, keys, Soon()), (std::vector{Code::kStale, Code::kStale}));
}

TEST_F(HostControlTest, ARemovalThatIsAnsweredLaterFindsAKeyWhereverItIs) {
  owner::Owner& first = Add();
  owner::Owner& second = Add();
  const Token token = Register();
  ASSERT_EQ(Put(first, token, "a"), Code::kOk);
  ASSERT_EQ(Put(second, token, "b"), Code::kOk);
  const std::vector<std::string_view> keys = {"a", "b", "none"};
  std::optional<Result<std::vector<Code>>> codes;
  control_->RemoveThen(token, keys, Soon(), [&](auto answer) { codes = std::move(answer); });
  ASSERT_TRUE(codes && *codes);
  EXPECT_EQ(**codes, (std::vector<Code>{Code::kOk, Code::kOk, Code::kMiss}));
  ASSERT_EQ(Put(first, token, "x1"), Code::kOk);
  ASSERT_EQ(Put(second, token, "x2"), Code::kOk);
  std::optional<Result<std::uint64_t>> matched;
  control_->RemoveMatchingThen(token, "x*", Soon(), [&](auto answer) { matched = answer; });
  ASSERT_TRUE(matched && *matched);
  EXPECT_EQ(**matched, 2U);
  control_->RemoveMatchingThen({}, "x*", Soon(), [&](auto answer) { matched = answer; });
  EXPECT_EQ(matched->error().code, Code::kStale);
}

// The store cannot be opened again, perhaps, after an upgrade that has failed.
TEST_F(HostControlTest, WithoutItsStoreItsCallsFail) {
  owner::Owner& owner = Add();
  const Token token = Register();
  control_->Pause();
  const std::vector<std::string> versions = {"v"};
  EXPECT_EQ(control_->Register({.name = "n", .engine = "e"}, Soon()).error().code,
            Code::kUnavailable);
  EXPECT_EQ(control_->Reset({.name = "n", .engine = "e", .id = RandomId()}, Soon()).error().code,
            Code::kUnavailable);
  EXPECT_EQ(control_->NameVersions("n", "e", versions, Soon()).error().code, Code::kUnavailable);
  EXPECT_EQ(control_->EndEngine("n", "e", Soon()).error().code, Code::kUnavailable);
  ASSERT_EQ(Put(owner, token, "k"), Code::kOk);
  const std::string_view key = "k";
  EXPECT_EQ(*control_->Remove(token, {&key, 1}, Soon()), std::vector{Code::kOk});
  ASSERT_TRUE(control_->Resume());
  EXPECT_TRUE(control_->Register({.name = "n", .engine = "e"}, Soon()));
}

// Operators ask on threads that no hand-over pauses, and the successor opens the store at once.
TEST_F(HostControlTest, NoQuestionKeepsTheStoreOpenAfterAPause) {
  std::string directory = testing::TempDir() + "kvcove-control-XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  const HostControl::Options options{.data_directory = directory + "/data", .lease_ns = kSecond};
  auto giver = *HostControl::Open(options, SystemClock::Instance());
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(giver->Register({.name = "n" + std::to_string(i), .engine = "e"}, Soon()));
  }
  std::atomic<bool> ends = false;
  std::vector<std::thread> asking;
  for (int i = 0; i < 4; ++i) {
    asking.emplace_back([&] {
      while (!ends) {
        (void)giver->Describe();
        (void)giver->Engines(1000);
      }
    });
  }
  for (int round = 0; round < 10; ++round) {
    giver->Pause();
    const auto taker = HostControl::Open(options, SystemClock::Instance());
    EXPECT_TRUE(taker) << taker.error().ToString();
    if (!taker) break;
    (*taker)->Pause();
    EXPECT_TRUE(giver->Resume());
  }
  ends = true;
  for (std::thread& one : asking) one.join();
  giver.reset();
  std::filesystem::remove_all(directory);
}

TEST_F(HostControlTest, AnAuthorityIsNamedAfterItsDirectory) {
  const auto other = HostControl::Open({.lease_ns = kSecond}, SystemClock::Instance());
  EXPECT_NE((*other)->name(), control_->name()) << "without one, nothing is shared";
}

}  // namespace
}  // namespace kvcove::pool
