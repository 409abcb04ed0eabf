// SPDX-License-Identifier: Apache-2.0
// Generations of a pool without a master process, over a real directory.
#include "kvcove/master/control/blocking_generations.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "kvcove/base/log.h"

namespace kvcove::master {
namespace {

class FakeOwner final : public OwnerSink {
 public:
  void Publish(const Id128& /*incarnation*/, const std::vector<SlotUpdate>& updates) override {
    for (const SlotUpdate& update : updates) slots[update.slot] = update;
  }
  std::map<SlotId, SlotUpdate> slots;
};

class BlockingGenerationsTest : public testing::Test {
 protected:
  BlockingGenerationsTest() {
    SetLogLevel(LogLevel::kOff);
    std::string name = testing::TempDir() + "kvcove-generations-XXXXXX";
    directory_ = mkdtemp(name.data());
  }
  ~BlockingGenerationsTest() override {
    generations_.reset();
    std::filesystem::remove_all(directory_);
  }
  // A process starts.
  void Open(const std::string& directory) {
    generations_.reset();
    auto opened = BlockingGenerations::Open({.data_directory = directory, .lease_ns = kSecond},
                                            owner_, clock_);
    ASSERT_TRUE(opened) << opened.error().ToString();
    generations_ = std::move(*opened);
  }
  Registration Register(const std::string& version = "") {
    const auto registered = generations_->Register(
        {.name = "m", .version = version, .engine = "e", .follow_always = true},
        clock_.NowNs() + kSecond);
    EXPECT_TRUE(registered) << registered.error().ToString();
    return registered.value_or(Registration{});
  }
  Code Reset(std::uint64_t id) {
    const auto reset = generations_->Reset(
        {.name = "m", .engine = "e", .version = {}, .id = {.high = 1, .low = id}},
        clock_.NowNs() + kSecond / 2);
    return reset ? Code::kOk : reset.error().code;
  }

  std::string directory_;
  FakeClock clock_;
  FakeOwner owner_;
  std::unique_ptr<BlockingGenerations> generations_;
};

TEST_F(BlockingGenerationsTest, WithoutADirectoryNothingIsWaitedFor) {
  Open("");
  const Registration before = Register();
  EXPECT_TRUE(before.open);
  EXPECT_EQ(owner_.slots[before.slot].generation, before.generation);
  EXPECT_EQ(Reset(1), Code::kOk);
  EXPECT_NE(owner_.slots[before.slot].generation, before.generation);
  EXPECT_TRUE(generations_->Close());
}

TEST_F(BlockingGenerationsTest, ANeverUsedDirectoryIsNotWaitedFor) {
  Open(directory_);
  Register();
  EXPECT_EQ(Reset(1), Code::kOk);
}

TEST_F(BlockingGenerationsTest, AfterACleanEndTheNextProcessGoesOnAtOnce) {
  Open(directory_);
  const Registration before = Register();
  ASSERT_TRUE(generations_->Close());
  Open(directory_);
  EXPECT_EQ(owner_.slots[before.slot].generation, before.generation);
  EXPECT_EQ(Register().incarnation, before.incarnation);
  EXPECT_EQ(Reset(1), Code::kOk);
}

TEST_F(BlockingGenerationsTest, AfterAKillResetsWaitForTheLeaseOfTheDeadProcess) {
  Open(directory_);
  const Registration before = Register();
  Open(directory_);  // no Close
  EXPECT_EQ(Register().generation, before.generation);
  EXPECT_EQ(Reset(1), Code::kNotProven) << "somebody may still map its memory";
  clock_.AdvanceNs(2 * kSecond);
  EXPECT_EQ(Reset(1), Code::kOk);
  EXPECT_NE(owner_.slots[before.slot].generation, before.generation);
}

TEST_F(BlockingGenerationsTest, ThreadsThatResetAtOnceAreAllAnswered) {
  Open(directory_);
  Register();
  std::vector<std::thread> threads;
  for (std::uint64_t id = 1; id <= 8; ++id) {
    threads.emplace_back([this, id] { EXPECT_EQ(Reset(id), Code::kOk); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Register().generation, owner_.slots.begin()->second.generation);
}

TEST_F(BlockingGenerationsTest, DeadVersionsStayDeadInTheNextProcess) {
  Open(directory_);
  const Registration one = Register("v1");
  Register("v2");
  const auto pruned =
      generations_->Prune({.name = "m", .before = "v2"}, clock_.NowNs() + kSecond / 2);
  ASSERT_TRUE(pruned) << pruned.error().ToString();
  EXPECT_EQ(pruned->versions, 1U);
  EXPECT_NE(owner_.slots[one.slot].generation, one.generation);
  const auto refused = [&] {
    const auto late = generations_->Register({.name = "m", .version = "v1", .engine = "e"},
                                             clock_.NowNs() + kSecond);
    return late ? Code::kOk : late.error().code;
  };
  EXPECT_EQ(refused(), Code::kDenied);
  Open(directory_);  // no Close
  EXPECT_EQ(refused(), Code::kDenied);
  Register("v2");
}

TEST_F(BlockingGenerationsTest, TheOwnerHearsWhichVersionsNobodyUses) {
  Open("");
  clock_.AdvanceNs(120 * kSecond);  // after a start all count as named for a while
  const Registration one = Register("v1");
  const Registration two = Register("v2");
  const std::vector<std::string> versions = {"v2"};
  ASSERT_TRUE(generations_->NameVersions("m", "e", versions, 0));
  EXPECT_FALSE(owner_.slots[one.slot].named);
  EXPECT_TRUE(owner_.slots[two.slot].named);
  ASSERT_TRUE(generations_->EndEngine("m", "e", 0));
  EXPECT_FALSE(owner_.slots[two.slot].named);
}

}  // namespace
}  // namespace kvcove::master
