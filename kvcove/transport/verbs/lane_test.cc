// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/verbs/lane.h"

#include <gtest/gtest.h>

#include "kvcove/transport/verbs/fake_verbs.h"
#include "kvcove/transport/verbs/lane_fixture.h"

namespace kvcove::transport::verbs {
namespace {

constexpr std::size_t kMiB = 1 << 20;

class LaneTest : public ::testing::Test {
 protected:
  // Both memories differ in each byte.
  void Make(std::size_t bytes, LaneOptions options = {}) {
    ends = std::make_unique<LaneEnds>(verbs, "fake0", "fake1", options);
    source = std::make_unique<TestMemory>(ends->owner_context, bytes, Access::kLocal, 1);
    target = std::make_unique<TestMemory>(ends->requester_context, bytes, Access::kRemote, 2);
  }
  void TearDown() override {
    ends.reset();
    source.reset();
    target.reset();
    const FakeVerbsCounts counts = verbs.counts();
    EXPECT_EQ(counts.pairs, 0U);
    EXPECT_EQ(counts.queues, 0U);
    EXPECT_EQ(counts.mistakes, 0U);
  }
  Lane& owner() { return *ends->owner; }
  Lane& requester() { return *ends->requester; }
  Move WriteOf(std::uint64_t bytes) { return MoveOf(Operation::kWrite, *source, *target, bytes); }

  FakeVerbs verbs;
  std::unique_ptr<LaneEnds> ends;
  std::unique_ptr<TestMemory> source, target;
};

TEST_F(LaneTest, AWriteArrivesInPiecesOfAtMostAMebibyte) {
  Make(5 * kMiB + 3);
  ASSERT_TRUE(owner().Post(WriteOf(5 * kMiB + 3)));
  ASSERT_TRUE(AdvanceUntilIdle(owner()));
  EXPECT_EQ(target->data, source->data);
  EXPECT_EQ(owner().moved_bytes(), 5 * kMiB + 3);
  EXPECT_EQ(verbs.counts().works, 6U);
  EXPECT_EQ(verbs.counts().most_work, kMiB);
}

TEST_F(LaneTest, AReadTakesThePeersMemory) {
  Make(3 * kMiB);
  ASSERT_TRUE(owner().Post(MoveOf(Operation::kRead, *source, *target, 3 * kMiB)));
  ASSERT_TRUE(AdvanceUntilIdle(owner()));
  EXPECT_EQ(source->Count(2), 3 * kMiB);
  EXPECT_EQ(verbs.counts().works, 3U);
}

TEST_F(LaneTest, AMessageArrivesInTheSlotThatWasPostedFirst) {
  Make(100);
  TestMemory heads(ends->requester_context, 100, Access::kLocal, 0);
  ASSERT_TRUE(requester().PostReceive(7, heads.Segment(40, 30)));
  ASSERT_TRUE(owner().Post(MoveOf(Operation::kSend, *source, *target, 30)));
  std::vector<Received> received;
  ASSERT_TRUE(AdvanceUntil(requester(), received, [&] { return !received.empty(); }));
  EXPECT_EQ(received[0].slot, 7U);
  EXPECT_EQ(received[0].bytes, 30U);
  EXPECT_FALSE(received[0].immediate.has_value());
  EXPECT_EQ(heads.Count(1), 30U);
  EXPECT_TRUE(requester().PostReceive(7, heads.Segment(0, 30)));
}

TEST_F(LaneTest, AnImmediateIsThereOnlyBehindTheDataBeforeIt) {
  Make(2 * kMiB);
  ASSERT_TRUE(requester().PostReceive(0, {}));
  verbs.HoldAfter(100);
  ASSERT_TRUE(owner().Post(WriteOf(2 * kMiB)));
  Move head = WriteOf(0);
  head.operation = Operation::kWriteWithImmediate;
  head.immediate = 4711;
  ASSERT_TRUE(owner().Post(head));
  std::vector<Received> received;
  ASSERT_TRUE(requester().Advance(received));
  EXPECT_TRUE(received.empty());
  verbs.Land();
  ASSERT_TRUE(AdvanceUntil(requester(), received, [&] { return !received.empty(); }));
  EXPECT_EQ(received[0].immediate, 4711U);
  EXPECT_EQ(target->Count(1), 2 * kMiB);
}

TEST_F(LaneTest, MovesWaitForRoomInTheQueue) {
  LaneOptions options;
  options.sizes.sends = 4;
  Make(1000, options);
  verbs.HoldCompletions();
  for (int i = 0; i < 100; ++i) {
    Move move = WriteOf(10);
    move.local += 10 * i;
    move.remote += 10 * i;
    ASSERT_TRUE(owner().Post(move));
  }
  EXPECT_EQ(verbs.counts().works, 4U);
  EXPECT_FALSE(owner().idle());
  verbs.Deliver();
  ASSERT_TRUE(AdvanceUntilIdle(owner()));
  EXPECT_EQ(target->Count(1), 1000U);
  EXPECT_EQ(owner().moved_bytes(), 1000U);
}

TEST_F(LaneTest, ADeviceThatIsFullForNowIsPostedToAgain) {
  Make(2 * kMiB);
  verbs.HoldAfter(100);
  ASSERT_TRUE(owner().Post(WriteOf(kMiB)));
  verbs.FailCall(0);
  Move second = WriteOf(kMiB);
  second.local += kMiB;
  second.remote += kMiB;
  ASSERT_TRUE(owner().Post(second));
  EXPECT_TRUE(verbs.failed());
  EXPECT_EQ(verbs.counts().works, 1U);
  verbs.Land();
  ASSERT_TRUE(AdvanceUntilIdle(owner()));
  EXPECT_EQ(target->Count(1), 2 * kMiB);
}

TEST_F(LaneTest, CompletionsThatOvertakeOthersCountOnlyWithoutAGap) {
  Make(3 * kMiB);
  verbs.HoldCompletions();
  ASSERT_TRUE(owner().Post(WriteOf(3 * kMiB)));
  std::vector<Received> received;
  for (const std::uint64_t moved : {std::uint64_t{0}, std::uint64_t{0}, 3 * std::uint64_t{kMiB}}) {
    verbs.DeliverLast();
    ASSERT_TRUE(owner().Advance(received));
    EXPECT_EQ(owner().moved_bytes(), moved);
    EXPECT_EQ(owner().idle(), moved > 0);
  }
}

TEST_F(LaneTest, CompletionsInAnyOrderAreAllCounted) {
  Make(1000);
  verbs.Shuffle(1);
  verbs.HoldCompletions();
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(owner().Post(WriteOf(10)));
  verbs.Deliver();
  ASSERT_TRUE(AdvanceUntilIdle(owner()));
  EXPECT_EQ(owner().moved_bytes(), 1000U);
}

TEST_F(LaneTest, ASleeperIsWokenByACompletion) {
  Make(10);
  ASSERT_TRUE(owner().Arm());
  pollfd waits{.fd = owner().descriptor(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&waits, 1, 0), 0);
  ASSERT_TRUE(owner().Post(WriteOf(10)));
  EXPECT_EQ(poll(&waits, 1, 0), 1);
  owner().TakeEvents();
  EXPECT_EQ(poll(&waits, 1, 0), 0);
}

// What the peer's device refuses, with the message that names it.
class LaneRefusalTest : public LaneTest {
 protected:
  void ExpectRefused(const Move& move) {
    ASSERT_TRUE(requester().PostReceive(0, {}));
    ASSERT_TRUE(owner().Post(move));
    const Status status = AdvanceUntilIdle(owner());
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Code::kUnavailable);
    EXPECT_NE(status.error().detail.find("refused"), std::string::npos) << status.error().detail;
    EXPECT_EQ(owner().state(), Lane::State::kDying);
    EXPECT_EQ(target->Count(2), target->data.size());
    EXPECT_FALSE(owner().Post(move));
    std::vector<Received> received;
    EXPECT_FALSE(requester().Advance(received));
    EXPECT_EQ(requester().state(), Lane::State::kDying);
  }
};

TEST_F(LaneRefusalTest, AKeyThatIsNotThePeers) {
  Make(100);
  Move move = WriteOf(100);
  move.remote_key = target->region->local_key();
  ExpectRefused(move);
}
TEST_F(LaneRefusalTest, ARangeThatIsOneByteTooLong) {
  Make(100);
  Move move = WriteOf(100);
  move.remote += 1;
  ExpectRefused(move);
}
TEST_F(LaneRefusalTest, AKeyWhoseRegistrationHasEnded) {
  Make(100);
  const Move move = WriteOf(100);
  ASSERT_TRUE(target->region->Deregister());
  ExpectRefused(move);
}
TEST_F(LaneRefusalTest, MemoryThatWasRegisteredForItsProcessAlone) {
  Make(100);
  TestMemory own(ends->requester_context, 100, Access::kLocal, 2);
  ExpectRefused(MoveOf(Operation::kWrite, *source, own, 100));
  EXPECT_EQ(own.Count(2), 100U);
}
TEST_F(LaneRefusalTest, AnOwnersLaneWhateverTheKey) {
  Make(100);
  TestMemory exposed(ends->owner_context, 100, Access::kRemote, 3);
  TestMemory own(ends->requester_context, 100, Access::kLocal, 2);
  ASSERT_TRUE(requester().Post(MoveOf(Operation::kWrite, own, exposed, 100)));
  EXPECT_FALSE(AdvanceUntilIdle(requester()));
  EXPECT_EQ(exposed.Count(3), 100U);
}

TEST_F(LaneTest, APeerThatIsGoneEndsTheLane) {
  Make(100);
  ASSERT_TRUE(RetireAll(requester()));
  ASSERT_TRUE(owner().Post(WriteOf(100)));
  const Status status = AdvanceUntilIdle(owner());
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().detail.find("does not answer"), std::string::npos);
  EXPECT_EQ(target->Count(2), 100U);
  EXPECT_EQ(owner().moved_bytes(), 0U);
}

// P5, the requester's side: bytes may land until its own queue pair is destroyed, and not later.
TEST_F(LaneTest, ARequestersLaneIsGoneOnlyWhenItsPairIsDestroyed) {
  Make(kMiB);
  verbs.HoldAfter(100);
  ASSERT_TRUE(requester().PostReceive(0, {}));
  ASSERT_TRUE(owner().Post(WriteOf(kMiB)));
  EXPECT_EQ(target->Count(1), 100U);

  verbs.RefuseDestroys(true);
  EXPECT_FALSE(requester().Retire());
  EXPECT_EQ(requester().state(), Lane::State::kDying);
  // The device had begun the write: this is why ERR alone is no proof.
  verbs.Land();
  EXPECT_EQ(target->Count(1), kMiB);

  verbs.RefuseDestroys(false);
  const auto gone = requester().Retire();
  ASSERT_TRUE(gone);
  EXPECT_TRUE(*gone);
  EXPECT_EQ(requester().state(), Lane::State::kGone);
}

TEST_F(LaneTest, NothingLandsOnceTheRequestersLaneIsGone) {
  Make(kMiB);
  verbs.HoldAfter(100);
  ASSERT_TRUE(owner().Post(WriteOf(kMiB)));
  ASSERT_TRUE(RetireAll(requester()));
  std::fill(target->data.begin(), target->data.end(), std::byte{7});
  verbs.Land();
  (void)AdvanceUntilIdle(owner());
  EXPECT_EQ(target->Count(7), kMiB);
}

// P5, the owner's side: its source is read until the device has reported the end of all work.
TEST_F(LaneTest, AnOwnersLaneIsGoneOnlyWhenAllWorkHasEnded) {
  Make(3 * kMiB);
  verbs.HoldAfter(100);
  ASSERT_TRUE(owner().Post(WriteOf(3 * kMiB)));
  for (int i = 0; i < 3; ++i) {
    const auto gone = owner().Retire();
    ASSERT_TRUE(gone);
    EXPECT_FALSE(*gone);
  }
  verbs.Land();
  EXPECT_EQ(target->Count(1), kMiB);  // what was begun; the other pieces were flushed
  const auto gone = owner().Retire();
  ASSERT_TRUE(gone);
  EXPECT_TRUE(*gone);
  EXPECT_EQ(verbs.counts().pairs, 1U);
}

TEST_F(LaneTest, HalfOfTheFlushesIsNoEnd) {
  Make(100);
  for (std::uint32_t slot = 0; slot < 8; ++slot) ASSERT_TRUE(requester().PostReceive(slot, {}));
  verbs.HoldFlushesAfter(4);
  for (int i = 0; i < 3; ++i) {
    const auto gone = requester().Retire();
    ASSERT_TRUE(gone);
    EXPECT_FALSE(*gone);
  }
  EXPECT_EQ(verbs.counts().pairs, 2U);
  verbs.Deliver();
  const auto gone = requester().Retire();
  ASSERT_TRUE(gone);
  EXPECT_TRUE(*gone);
}

TEST_F(LaneTest, ACompletionThatBelongsToNothingEndsTheLaneAndCountsForNothing) {
  Make(2 * kMiB);
  verbs.HoldAfter(100);
  ASSERT_TRUE(requester().PostReceive(3, {}));
  ASSERT_TRUE(owner().Post(WriteOf(2 * kMiB)));
  verbs.AddCompletion(99);                 // of a work request that was never posted
  verbs.AddCompletion((1ULL << 63) | 99);  // of a slot that there is not
  std::vector<Received> received;
  for (Lane* lane : {&owner(), &requester()}) {
    const auto taken = lane->Advance(received);
    ASSERT_FALSE(taken);
    EXPECT_EQ(taken.error().code, Code::kInternal);
  }
  EXPECT_TRUE(received.empty());
  const auto gone = owner().Retire();  // its two pieces are still there
  ASSERT_TRUE(gone);
  EXPECT_FALSE(*gone);
  verbs.Land();
}

TEST_F(LaneTest, OnlyWorkThatHasSucceededIsSettled) {
  Make(2 * kMiB);
  verbs.HoldAfter(100);
  ASSERT_TRUE(owner().Post(WriteOf(2 * kMiB)));
  EXPECT_FALSE(owner().settled());
  verbs.Land();
  ASSERT_TRUE(AdvanceUntilIdle(owner()));
  EXPECT_TRUE(owner().settled());
  ASSERT_TRUE(RetireAll(requester()));
  EXPECT_TRUE(owner().settled()) << "an idle lane whose peer has ended moves nothing";
  ASSERT_TRUE(owner().Post(WriteOf(2 * kMiB)));
  EXPECT_FALSE(AdvanceUntilIdle(owner()));
  EXPECT_TRUE(owner().idle()) << "each work request has its completion";
  EXPECT_FALSE(owner().settled());
}

TEST_F(LaneTest, MistakesOfTheCallerAreRefusedAndHarmNothing) {
  Make(2 * kMiB);
  EXPECT_EQ(requester().PostReceive(16, {}).error().code, Code::kInvalid);
  ASSERT_TRUE(requester().PostReceive(0, {}));
  EXPECT_EQ(requester().PostReceive(0, {}).error().code, Code::kInvalid);
  EXPECT_EQ(owner().Post(MoveOf(Operation::kSend, *source, *target, kMiB + 1)).error().code,
            Code::kInvalid);
  EXPECT_EQ(owner().Connect(requester().own()).error().code, Code::kInvalid);
  ASSERT_TRUE(owner().Post(WriteOf(2 * kMiB)));
  EXPECT_TRUE(AdvanceUntilIdle(owner()));
}

TEST_F(LaneTest, AnAddressThatIsNoneOfAQueuePairIsRefused) {
  Make(100);
  const PairAddress good = requester().own();
  for (const auto& spoil : std::vector<std::function<void(PairAddress&)>>{
           [](PairAddress& peer) { peer.number = 0; },
           [](PairAddress& peer) { peer.number = 1U << 24; },
           [](PairAddress& peer) { peer.first_packet = 1U << 24; },
           [](PairAddress& peer) { peer.mtu = 0; }, [](PairAddress& peer) { peer.mtu = 6; },
           [](PairAddress& peer) { peer.reads = 0; }}) {
    const auto lane = LaneEnds::Opened(ends->owner_context, {}, 1);
    EXPECT_EQ(lane->Post(WriteOf(100)).error().code, Code::kUnavailable);
    PairAddress peer = good;
    spoil(peer);
    EXPECT_EQ(lane->Connect(peer).error().code, Code::kInvalid);
    EXPECT_EQ(lane->state(), Lane::State::kDying);
    EXPECT_TRUE(RetireAll(*lane));
  }
}

// It would hold the owner's first read back for ever.
TEST_F(LaneTest, AnOwnersDeviceThatBeginsNoReadsIsRefused) {
  Make(100);
  verbs.SetReadsBegun(0);
  const auto lane = LaneEnds::Opened(ends->owner_context, {.peer_may = Access::kLocal}, 1);
  const Status refused = lane->Connect(requester().own());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kUnavailable);
  EXPECT_TRUE(RetireAll(*lane));
  const auto only_written = LaneEnds::Opened(ends->owner_context, {.peer_may = Access::kRemote}, 1);
  EXPECT_TRUE(only_written->Connect(requester().own()));
  EXPECT_TRUE(RetireAll(*only_written));
}

TEST_F(LaneTest, APortThatIsDownMakesNoLane) {
  Make(100);
  verbs.SetCable(false);
  const auto lane = Lane::Open(ends->owner_context, {}, 1);
  ASSERT_FALSE(lane);
  EXPECT_EQ(lane.error().code, Code::kUnavailable);
  EXPECT_EQ(lane.error().detail, "port 1 of fake0 is down");
}

// All that an exchange makes; each ends before what it was made from.
struct ExchangeParts {
  std::vector<std::shared_ptr<Context>> contexts;
  std::vector<std::unique_ptr<MemoryRegion>> regions;
  std::vector<std::unique_ptr<Lane>> lanes;
};

// One exchange as an owner and a requester make it. Returns the first error.
Status TryExchange(FakeVerbs& verbs, ExchangeParts& parts, std::span<std::byte> source,
                   std::span<std::byte> target) {
  KVCOVE_ASSIGN(const auto owner_context, verbs.Open("fake0"));
  parts.contexts.push_back(owner_context);
  KVCOVE_ASSIGN(const auto requester_context, verbs.Open("fake1"));
  parts.contexts.push_back(requester_context);
  KVCOVE_ASSIGN(auto own, owner_context->Register(source, Access::kLocal));
  const MemoryRegion& from = *parts.regions.emplace_back(std::move(own));
  KVCOVE_ASSIGN(auto exposed, requester_context->Register(target, Access::kRemote));
  const MemoryRegion& to = *parts.regions.emplace_back(std::move(exposed));
  Move move{.local = source.data(),
            .bytes = source.size(),
            .local_key = from.local_key(),
            .remote = reinterpret_cast<std::uintptr_t>(target.data()),
            .remote_key = to.remote_key()};
  KVCOVE_ASSIGN(auto made, Lane::Open(owner_context, {}, 1));
  Lane& owner = *parts.lanes.emplace_back(std::move(made));
  KVCOVE_ASSIGN(made, Lane::Open(requester_context, {.peer_may = Access::kRemote}, 2));
  Lane& requester = *parts.lanes.emplace_back(std::move(made));
  KVCOVE_TRY(owner.Connect(requester.own()));
  KVCOVE_TRY(requester.Connect(owner.own()));
  KVCOVE_TRY(requester.PostReceive(0, {}));
  KVCOVE_TRY(owner.Post(move));
  move.operation = Operation::kWriteWithImmediate;
  move.bytes = 0;
  KVCOVE_TRY(owner.Post(move));
  std::vector<Received> received;
  for (int i = 0; i < 10 && received.empty(); ++i) {
    KVCOVE_TRY(requester.Advance(received));
    KVCOVE_TRY(owner.Advance(received));
  }
  return received.empty() ? Fail(Code::kTimeout, "no immediate") : Status();
}

TEST(LaneFaultTest, NoMemoryInAnyCallIsReportedAndLeavesNothingBehind) {
  int failed = 0;
  for (std::int64_t call = 0;; ++call) {
    SCOPED_TRACE(call);
    FakeVerbs verbs;
    verbs.FailCall(call);
    std::vector<std::byte> source(2 * kMiB, std::byte{1});
    std::vector<std::byte> target(2 * kMiB, std::byte{2});
    auto parts = std::make_unique<ExchangeParts>();
    const Status status = TryExchange(verbs, *parts, source, target);
    const bool reached = verbs.failed();
    // A queue that is full for now is no failure: the piece is posted with the next completion.
    if (status) {
      EXPECT_EQ(source, target);
    } else {
      EXPECT_EQ(status.error().code, Code::kLimit) << status.error().ToString();
      ++failed;
    }
    for (const auto& lane : parts->lanes) EXPECT_TRUE(RetireAll(*lane));
    parts.reset();
    const FakeVerbsCounts counts = verbs.counts();
    EXPECT_EQ(counts.pairs + counts.queues + counts.regions, 0U);
    EXPECT_EQ(counts.mistakes, 0U);
    if (!reached) break;
  }
  EXPECT_GE(failed, 20);
}

TEST(LaneFaultTest, NoMemoryOnTheWayToTheEndIsRepeated) {
  for (std::int64_t call = 0;; ++call) {
    FakeVerbs verbs;
    LaneEnds ends(verbs, "fake0", "fake1");
    ASSERT_TRUE(ends.requester->PostReceive(0, {}));
    verbs.FailCall(call);
    EXPECT_TRUE(RetireAll(*ends.requester));
    if (!verbs.failed()) return;
    EXPECT_EQ(verbs.counts().pairs, 1U);
  }
}

}  // namespace
}  // namespace kvcove::transport::verbs
