// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/disk/facts_writer.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/becomes.h"

namespace kvcove::owner {
namespace {

OwnerFacts FactsAt(std::uint64_t revision) {
  return {.identity = {.high = 1, .low = 1}, .seen = {.term = 1, .tag = 2, .revision = revision}};
}

// A file system that hangs or fails on command. The writer's thread may use it after the test.
class FakeFiles {
 public:
  FactsWriter::Files Files() const {
    return {.strike = [state = state_] { return state->Do("strike"); },
            .write =
                [state = state_](const OwnerFacts& facts) {
                  return state->Do(std::to_string(facts.seen.revision));
                }};
  }
  void SetHangs(bool hangs) {
    const MutexLock lock(state_->mutex);
    state_->hangs = hangs;
    state_->changed.NotifyAll();
  }
  void SetFails(const std::string& call) {
    const MutexLock lock(state_->mutex);
    state_->fails = call;
  }
  std::vector<std::string> done() const {
    const MutexLock lock(state_->mutex);
    return state_->done;
  }

 private:
  struct State {
    Mutex mutex;
    CondVar changed;
    bool hangs KVCOVE_GUARDED_BY(mutex) = false;
    std::string fails KVCOVE_GUARDED_BY(mutex);
    std::vector<std::string> done KVCOVE_GUARDED_BY(mutex);

    Status Do(const std::string& call) {
      const MutexLock lock(mutex);
      while (hangs) changed.Wait(mutex);
      if (call == fails) return Fail(Code::kUnavailable, "as the test wants");
      done.push_back(call);
      return {};
    }
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

using Calls = std::vector<std::string>;

TEST(FactsWriterTest, WhatWasHandedOverLastIsWrittenLast) {
  FakeFiles files;
  FactsWriter writer;
  ASSERT_TRUE(writer.Start(files.Files()));
  files.SetHangs(true);
  writer.Write({.facts = FactsAt(1)});
  ASSERT_TRUE(Becomes([&] { return writer.busy(); }));
  writer.Write({.facts = FactsAt(2)});
  writer.Write({.facts = FactsAt(3)});
  EXPECT_FALSE(writer.TakeEnded());
  files.SetHangs(false);
  ASSERT_TRUE(Becomes([&] { return files.done().size() == 2; }));
  EXPECT_EQ(files.done(), (Calls{"1", "3"})) << "only the newest of those that waited";
  EXPECT_TRUE(writer.Stop());
  const auto ended = writer.TakeEnded();
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->facts, FactsAt(3));
  EXPECT_TRUE(ended->outcome);
  EXPECT_FALSE(writer.TakeEnded()) << "once";
}

TEST(FactsWriterTest, TheDisksAreStruckBeforeTheFactsThatVoidThem) {
  FakeFiles files;
  FactsWriter writer;
  ASSERT_TRUE(writer.Start(files.Files()));
  files.SetFails("strike");
  writer.Write({.facts = FactsAt(1), .voided = 1});
  std::optional<FactsWriter::Ended> ended;
  ASSERT_TRUE(Becomes([&] { return (ended = writer.TakeEnded()).has_value(); }));
  EXPECT_FALSE(ended->outcome);
  EXPECT_EQ(ended->struck, 0U);
  EXPECT_TRUE(files.done().empty()) << "a process that starts with these facts would use the disks";
  files.SetFails("");
  ASSERT_TRUE(Becomes([&] { return files.done().size() == 2; })) << "it is tried again by itself";
  writer.Write({.facts = FactsAt(2), .voided = 1});
  ASSERT_TRUE(Becomes([&] { return files.done().size() == 3; }));
  EXPECT_EQ(files.done(), (Calls{"strike", "1", "2"})) << "the disks may be noted again by now";
  ASSERT_TRUE(Becomes([&] {
    ended = writer.TakeEnded();
    return ended && ended->facts == FactsAt(2);
  }));
  EXPECT_EQ(ended->struck, 1U);
}

TEST(FactsWriterTest, StopWritesWhatWaits) {
  FakeFiles files;
  FactsWriter writer;
  ASSERT_TRUE(writer.Start(files.Files()));
  files.SetFails("1");
  writer.Write({.facts = FactsAt(1)});
  ASSERT_TRUE(Becomes([&] { return writer.TakeEnded().has_value(); }));
  files.SetFails("");
  EXPECT_TRUE(writer.Stop());
  EXPECT_EQ(files.done(), Calls{"1"});
}

TEST(FactsWriterTest, StopDoesNotWaitForAFileSystemThatHangs) {
  FakeFiles files;
  {
    FactsWriter writer;
    ASSERT_TRUE(writer.Start(files.Files()));
    files.SetHangs(true);
    writer.Write({.facts = FactsAt(1)});
    ASSERT_TRUE(Becomes([&] { return writer.busy(); }));
    writer.Write({.facts = FactsAt(2)});
    EXPECT_FALSE(writer.Stop());
  }
  files.SetHangs(false);
  EXPECT_TRUE(Becomes([&] { return files.done() == Calls{"1", "2"}; }));
}

TEST(FactsWriterTest, NothingIsWrittenOnceAnotherProcessMayWrite) {
  FakeFiles files;
  FactsWriter writer;
  ASSERT_TRUE(writer.Start(files.Files()));
  files.SetHangs(true);
  writer.Write({.facts = FactsAt(1)});
  ASSERT_TRUE(Becomes([&] { return writer.busy(); }));
  EXPECT_FALSE(writer.AwaitIdle());
  EXPECT_FALSE(writer.Pause()) << "a write is under way";
  writer.Resume();
  files.SetHangs(false);
  ASSERT_TRUE(Becomes([&] { return !writer.busy(); }));
  EXPECT_TRUE(writer.AwaitIdle());
  EXPECT_TRUE(writer.Pause());
  writer.Write({.facts = FactsAt(2)});
  EXPECT_TRUE(writer.Stop());
  EXPECT_EQ(files.done(), Calls{"1"});
}

}  // namespace
}  // namespace kvcove::owner
