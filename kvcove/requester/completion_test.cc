// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/completion.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <set>
#include <thread>

#include "kvcove/base/interrupt_fixture.h"
#include "kvcove/transport/landing.h"

namespace kvcove {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kSoon{5000};

// A call that ends when it is told to.
class Gate {
 public:
  CompletionQueue::Call Call() {
    return [this](milliseconds, std::uint64_t&) -> Status {
      begun_ = true;
      open_.get_future().wait();
      return {};
    };
  }
  void Open() { open_.set_value(); }
  bool begun() const { return begun_; }

 private:
  std::atomic<bool> begun_{false};
  std::promise<void> open_;
};

Status Done(milliseconds, std::uint64_t& count) {
  ++count;
  return {};
}

bool Readable(const CompletionQueue& queue) {
  pollfd poller{.fd = queue.event_fd(), .events = POLLIN, .revents = 0};
  return poll(&poller, 1, 0) == 1;
}

TEST(CompletionQueueTest, AnInterruptedWaitLeavesTheCompletionToTheNextOne) {
  CompletionQueue queue;
  Gate gate;
  ASSERT_TRUE(queue.Start(7, kSoon, gate.Call()));
  {
    AskedInterrupt interrupt(/*ends_at=*/1, [&] {
      gate.Open();  // it comes while the wait is interrupted
      while (!Readable(queue)) std::this_thread::yield();
    });
    EXPECT_FALSE(queue.Next(std::chrono::hours(1)));
  }
  const auto completion = queue.Next(kSoon);
  ASSERT_TRUE(completion);
  EXPECT_EQ(completion->tag, 7U);
}

TEST(CompletionQueueTest, EachCallCompletesOnceWithItsTag) {
  CompletionQueue queue;
  for (std::uint64_t tag = 1; tag <= 100; ++tag) ASSERT_TRUE(queue.Start(tag, kSoon, Done));
  std::set<std::uint64_t> tags;
  for (int i = 0; i < 100; ++i) {
    const auto completion = queue.Next(kSoon);
    ASSERT_TRUE(completion);
    EXPECT_TRUE(completion->status);
    EXPECT_TRUE(completion->final);
    EXPECT_EQ(completion->count, 1U);
    tags.insert(completion->tag);
  }
  EXPECT_EQ(tags.size(), 100U);
  EXPECT_FALSE(queue.Next());
  EXPECT_FALSE(Readable(queue));
}

TEST(CompletionQueueTest, WhatIsNotTakenCountsAgainstItsCapacity) {
  CompletionQueue queue(2);
  Gate gate;
  ASSERT_TRUE(queue.Start(1, kSoon, gate.Call()));
  ASSERT_TRUE(queue.Start(2, kSoon, Done));
  EXPECT_EQ(queue.Start(3, kSoon, Done).error().code, Code::kLimit);
  gate.Open();
  ASSERT_TRUE(queue.Next(kSoon));
  EXPECT_TRUE(queue.Start(3, kSoon, Done));
  EXPECT_EQ(queue.Start(4, kSoon, Done).error().code, Code::kLimit);
  ASSERT_TRUE(queue.Next(kSoon));
  ASSERT_TRUE(queue.Next(kSoon));
}

// Its buffers belong to it until the second completion.
TEST(CompletionQueueTest, ACallThatRunsPastItsDeadlineCompletesTwice) {
  CompletionQueue queue;
  Gate gate;
  ASSERT_TRUE(queue.Start(9, milliseconds(1), gate.Call()));
  const auto late = queue.Next(kSoon);
  ASSERT_TRUE(late);
  if (late->final && !gate.begun()) GTEST_SKIP() << "this machine started it after its deadline";
  EXPECT_FALSE(late->final);
  EXPECT_EQ(late->tag, 9U);
  EXPECT_EQ(late->status.error().code, Code::kBufferBusy);
  gate.Open();
  const auto end = queue.Next(kSoon);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->tag, 9U);
  EXPECT_TRUE(end->final);
  // A machine that came to it only after the deadline does not begin it any more.
  EXPECT_TRUE(end->status || !gate.begun());
}

// The call has returned, and a device still writes into its buffers.
TEST(CompletionQueueTest, ACallWhoseTransferCannotBeStoppedCompletesOnceMoreWhenItIsQuiet) {
  CompletionQueue queue;
  std::shared_ptr<transport::Landing> landing;
  ASSERT_TRUE(queue.Start(9, kSoon, [&](milliseconds, std::uint64_t& count) -> Status {
    landing = transport::Landing::Current();
    landing->Begin();
    count = 3;
    return Fail(Code::kTimeout, "late");
  }));
  const auto busy = queue.Next(kSoon);
  ASSERT_TRUE(busy);
  EXPECT_EQ(busy->tag, 9U);
  EXPECT_EQ(busy->status.error().code, Code::kBufferBusy);
  EXPECT_FALSE(busy->final);
  ASSERT_TRUE(queue.Start(10, kSoon, Done)) << "its thread is free";
  EXPECT_EQ(queue.Next(kSoon)->tag, 10U);
  EXPECT_FALSE(queue.Next());
  landing->End();
  const auto end = queue.Next();
  ASSERT_TRUE(end);
  EXPECT_EQ(end->tag, 9U);
  EXPECT_TRUE(end->final);
  EXPECT_EQ(end->status.error().code, Code::kTimeout) << "as the call returned it";
  EXPECT_EQ(end->count, 3U);
}

TEST(CompletionQueueTest, ItsEndWaitsForWhatMayStillLand) {
  std::promise<std::shared_ptr<transport::Landing>> begun;
  std::atomic<bool> landed{false};
  auto queue = std::make_unique<CompletionQueue>();
  ASSERT_TRUE(queue->Start(1, kSoon, [&](milliseconds, std::uint64_t&) -> Status {
    const auto landing = transport::Landing::Current();
    landing->Begin();
    begun.set_value(landing);
    return {};
  }));
  std::thread device([&, landing = begun.get_future().get()] {
    landed = true;
    landing->End();
  });
  queue.reset();
  EXPECT_TRUE(landed);
  device.join();
}

TEST(CompletionQueueTest, ACallWithoutTimeIsNotStarted) {
  CompletionQueue queue;
  ASSERT_TRUE(queue.Start(1, milliseconds(0), Done));
  const auto completion = queue.Next(kSoon);
  ASSERT_TRUE(completion);
  EXPECT_EQ(completion->status.error().code, Code::kTimeout);
  EXPECT_EQ(completion->count, 0U);
}

TEST(CompletionQueueTest, ItsEndWaitsForItsCalls) {
  std::atomic<int> ran = 0;
  {
    CompletionQueue queue;
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(queue.Start(1, kSoon, [&](milliseconds, std::uint64_t&) -> Status {
        ++ran;
        return {};
      }));
    }
  }
  EXPECT_EQ(ran, 20);
}

TEST(CompletionQueueTest, AForkedChildUsesNoneOfItsParents) {
  CompletionQueue queue;
  ASSERT_TRUE(queue.Start(1, kSoon, Done));
  ASSERT_TRUE(queue.Next(kSoon));
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    const bool refused = queue.Start(2, kSoon, Done).error().code == Code::kUnavailable;
    queue.~CompletionQueue();  // joins no thread: there is none
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace kvcove
