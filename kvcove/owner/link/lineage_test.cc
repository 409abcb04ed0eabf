// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/link/lineage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>

namespace kvcove::owner {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr Id128 kFirst{.high = 1, .low = 2};
constexpr Id128 kLater{.high = 3, .low = 4};
constexpr Id128 kThird{.high = 5, .low = 0xabcdef};

class LineageTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = "/tmp/kvcove-lineage-XXXXXX";
    directory_ = mkdtemp(name.data());
    place_ = directory_ + "/kvcove.sock";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::unique_ptr<Lineage> Open(const Id128& identity) {
    auto lineage = Lineage::Open(place_, identity);
    EXPECT_TRUE(lineage) << lineage.error().ToString();
    return std::move(*lineage);
  }
  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
      names.push_back(entry.path().filename().string());
    }
    std::ranges::sort(names);
    return names;
  }
  static std::string NameOf(const Id128& identity) {
    return "kvcove.sock." + ToHex(identity) + ".owner";
  }
  // What a successor reports to its master, and when.
  void Watch(Lineage& lineage) {
    const Status watches = lineage.Watch([this](const Id128& identity) {
      ++calls_;
      if (!master_answers_) return false;
      const MutexLock lock(mutex_);
      reported_.push_back(identity);
      return true;
    });
    EXPECT_TRUE(watches);
  }
  std::vector<Id128> Reported() {
    const MutexLock lock(mutex_);
    return reported_;
  }
  template <typename Condition>
  static bool Comes(const Condition& condition) {
    for (int i = 0; i < 12'000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }

  std::string directory_;
  std::string place_;
  std::atomic<bool> master_answers_ = true;
  std::atomic<int> calls_ = 0;
  Mutex mutex_;
  std::vector<Id128> reported_ KVCOVE_GUARDED_BY(mutex_);
};

TEST_F(LineageTest, ASuccessorTellsOfAnOwnerThatNobodyMaps) {
  Open(kFirst).reset();  // its file stays: nobody said goodbye for it
  EXPECT_THAT(Files(), ElementsAre(NameOf(kFirst)));
  const auto second = Open(kLater);
  Watch(*second);
  EXPECT_TRUE(Comes([&] { return Files().size() == 1; }));
  EXPECT_THAT(Reported(), ElementsAre(kFirst));
  EXPECT_THAT(Files(), ElementsAre(NameOf(kLater)));
}

// Killed, not stopped, and another process keeps what came with the segment.
TEST_F(LineageTest, AProcessThatMapsTheSegmentKeepsItsOwnerFromBeingOver) {
  int owner_lives[2];
  int engine_lives[2];
  ASSERT_EQ(pipe(owner_lives), 0);
  ASSERT_EQ(pipe(engine_lives), 0);
  const pid_t owner = fork();
  if (owner == 0) {
    auto lineage = Lineage::Open(place_, kFirst);
    if (!lineage) _exit(1);
    if (fork() == 0) {  // an engine, with the descriptor that it got
      char byte = 0;
      close(engine_lives[1]);
      (void)!read(engine_lives[0], &byte, 1);
      _exit(0);
    }
    (void)!write(owner_lives[1], "x", 1);
    pause();
  }
  char byte = 0;
  ASSERT_EQ(read(owner_lives[0], &byte, 1), 1);
  const auto second = Open(kLater);
  Watch(*second);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_THAT(Reported(), IsEmpty()) << "it lives";
  kill(owner, SIGKILL);
  waitpid(owner, nullptr, 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_THAT(Reported(), IsEmpty()) << "an engine may still read its memory";
  close(engine_lives[1]);
  EXPECT_TRUE(Comes([&] { return !Reported().empty(); }));
  EXPECT_THAT(Reported(), ElementsAre(kFirst));
  for (const int fd : {owner_lives[0], owner_lives[1], engine_lives[0]}) close(fd);
}

TEST_F(LineageTest, AFileStaysUntilTheMasterKnows) {
  Open(kFirst).reset();
  master_answers_ = false;
  const auto second = Open(kLater);
  Watch(*second);
  EXPECT_TRUE(Comes([&] { return calls_ >= 2; })) << "it is tried again";
  EXPECT_EQ(Files().size(), 2U);
  master_answers_ = true;
  EXPECT_TRUE(Comes([&] { return Files().size() == 1; }));
  EXPECT_THAT(Reported(), ElementsAre(kFirst));
}

TEST_F(LineageTest, OwnersSideBySideLeaveEachOtherAlone) {
  const auto first = Open(kFirst);
  auto second = Open(kLater);
  Watch(*first);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_THAT(Reported(), IsEmpty());
  second.reset();
  EXPECT_TRUE(Comes([&] { return Files().size() == 1; }));
  EXPECT_THAT(Reported(), ElementsAre(kLater));
}

TEST_F(LineageTest, AnIdentityThatChangesTakesItsFileAlong) {
  auto first = Open(kFirst);
  first->Rename(kThird);
  EXPECT_THAT(Files(), ElementsAre(NameOf(kThird)));
  first.reset();
  const auto second = Open(kLater);
  Watch(*second);
  EXPECT_TRUE(Comes([&] { return !Reported().empty(); }));
  EXPECT_THAT(Reported(), ElementsAre(kThird));
}

TEST_F(LineageTest, AGoodbyeThatWasHeardLeavesNothing) {
  const auto first = Open(kFirst);
  first->Remove();
  EXPECT_THAT(Files(), IsEmpty());
  // Another one's file of that name is not its own.
  const auto again = Open(kFirst);
  first->Remove();
  EXPECT_THAT(Files(), ElementsAre(NameOf(kFirst)));
}

TEST_F(LineageTest, OtherFilesAreNotTouched) {
  const std::vector<std::string> others = {
      "kvcove.sock", "kvcove.sock.owner", "kvcove.sock.0123.owner",
      "kvcove.sock." + std::string(32, 'x') + ".owner", "other.sock." + ToHex(kFirst) + ".owner"};
  for (const std::string& name : others) std::ofstream(directory_ + "/" + name) << "kept";
  const auto second = Open(kLater);
  Watch(*second);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_THAT(Reported(), IsEmpty());
  EXPECT_EQ(Files().size(), others.size() + 1);
}

TEST_F(LineageTest, ADirectoryThatIsNotThereIsAnError) {
  const auto lineage = Lineage::Open(directory_ + "/none/kvcove.sock", kFirst);
  ASSERT_FALSE(lineage);
  EXPECT_EQ(lineage.error().code, Code::kUnavailable);
}

}  // namespace
}  // namespace kvcove::owner
