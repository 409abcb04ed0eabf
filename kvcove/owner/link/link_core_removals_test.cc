// SPDX-License-Identifier: Apache-2.0
// How an owner applies its master's removals, and when it acknowledges them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvcove/owner/link/link_core_fixture.h"

namespace kvcove::owner {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class LinkRemovalsTest : public LinkCoreFixture {};

TEST_F(LinkRemovalsTest, RemovalsThatADiskHasNotProvenAreNotAcknowledged) {
  Join();
  AskRemovals();
  AnswerRemovals({.removals = {{.number = kFirst + 1, .slot = 1, .keys = {"a"}, .pattern = {}}},
                  .upto = kFirst + 1});
  EXPECT_EQ(target_.awaited, 1);
  EXPECT_EQ(AskRemovals().after, kFirst + 1);
}

TEST_F(LinkRemovalsTest, RemovalsThatAnUpgradeCutOffAreAskedForAgain) {
  Join();
  AskRemovals();
  target_.link_ends = true;
  const wire::RemovalsPage page = {
      .removals = {{.number = kFirst + 1, .slot = 1, .keys = {"a"}, .pattern = {}}},
      .upto = kFirst + 1};
  AnswerRemovals(page);
  EXPECT_EQ(AskRemovals().after, kFirst);
  target_.link_ends = false;
  AnswerRemovals(page);
  EXPECT_EQ(AskRemovals().after, kFirst + 1);
}

TEST_F(LinkRemovalsTest, RemovalsAreAppliedInOrderAndAcknowledged) {
  Join();
  EXPECT_EQ(AskRemovals().after, kFirst);
  AnswerRemovals({.drop = {9},
                  .drop_number = 5,
                  .removals = {{.number = kFirst + 1, .slot = 1, .keys = {"a"}, .pattern = {}},
                               {.number = kFirst + 2, .slot = 1, .keys = {"b"}, .pattern = {}}},
                  .upto = kFirst + 2});
  EXPECT_THAT(target_.said, ElementsAre("drop 9", "remove " + std::to_string(kFirst + 1),
                                        "remove " + std::to_string(kFirst + 2)));
  EXPECT_EQ(target_.applied, kFirst + 2);
  TellAll();
  EXPECT_TRUE(Idle(Lane::kList));
  EXPECT_TRUE(Idle(Lane::kList));
  const wire::RemovalsRequest next = AskRemovals();
  EXPECT_EQ(next.after, kFirst + 2);
  EXPECT_EQ(next.dropped, 5U);
}

// An owner that returns to a later master drops slots: with large disks that takes seconds.
TEST_F(LinkRemovalsTest, RemovalsInOtherSlotsGoOnWhileDisksAreWalkedForADrop) {
  Join();
  TellAll();
  AskRemovals();
  target_.drops = true;
  target_.said.clear();
  const wire::RemovalsPage page{
      .drop = {9},
      .drop_number = 5,
      .removals = {{.number = kFirst + 1, .slot = 1, .keys = {"a"}, .pattern = {}}},
      .upto = kFirst + 1,
      .takes_dropping = true};
  AnswerRemovals(page);
  EXPECT_THAT(target_.said, ElementsAre("drop 9", "remove " + std::to_string(kFirst + 1)));
  wire::RemovalsRequest next = AskRemovals();
  EXPECT_EQ(next.after, kFirst);
  EXPECT_EQ(next.ahead, kFirst + 1);
  EXPECT_EQ(next.dropped, 0U);
  EXPECT_THAT(next.dropping, ElementsAre(9U));
  // A further drop waits, and is not asked for again at once.
  AnswerRemovals(
      {.drop = {8}, .drop_number = 6, .removals = {}, .upto = kFirst + 1, .takes_dropping = true});
  EXPECT_THAT(target_.said, ElementsAre("drop 9", "remove " + std::to_string(kFirst + 1)));
  EXPECT_TRUE(Idle(Lane::kRemovals));

  target_.drops = false;
  EXPECT_THAT(AskRemovals().dropping, ElementsAre(9U)) << "its keys are listed still";
  EXPECT_TRUE(Idle(Lane::kList));
  EXPECT_TRUE(Idle(Lane::kList));
  next = AskRemovals();
  EXPECT_EQ(next.after, kFirst + 1);
  EXPECT_EQ(next.dropped, 5U);
  EXPECT_THAT(next.dropping, IsEmpty());
}

// A master of an earlier version takes the next request for the end of the drop.
TEST_F(LinkRemovalsTest, ADropEndsBeforeTheNextRequestToAnEarlierMaster) {
  Join();
  TellAll();
  AskRemovals();
  target_.drops = true;
  AnswerRemovals({.drop = {9}, .drop_number = 5, .removals = {}, .upto = kFirst});
  EXPECT_TRUE(Idle(Lane::kList));
  EXPECT_TRUE(Idle(Lane::kList));
  const wire::RemovalsRequest next = AskRemovals();
  EXPECT_THAT(next.dropping, IsEmpty());
  EXPECT_EQ(next.dropped, 5U);
}

TEST_F(LinkRemovalsTest, APatternIsAcknowledgedWhenWhatItRemovedIsUnlisted) {
  Join();
  TellAll();
  AskRemovals();
  AnswerRemovals({.drop = {},
                  .removals = {{.number = kFirst + 1, .slot = 1, .keys = {}, .pattern = "x*"}},
                  .upto = kFirst + 1});
  EXPECT_TRUE(Idle(Lane::kRemovals));
  target_.Evict(1);
  AnswerList(AskList());
  EXPECT_TRUE(Idle(Lane::kRemovals)) << "that round may have begun before";
  EXPECT_TRUE(Idle(Lane::kList));  // an empty round
  const wire::RemovalsRequest next = AskRemovals();
  EXPECT_EQ(next.after, kFirst + 1);
  ASSERT_EQ(next.matched.size(), 1U);
  EXPECT_EQ(next.matched[0].number, kFirst + 1);
  EXPECT_EQ(next.matched[0].objects, 3U);
  AnswerRemovals({.drop = {}, .removals = {}, .upto = kFirst + 1});
  EXPECT_THAT(AskRemovals().matched, IsEmpty()) << "once";
}

// An owner whose disks walk for a pattern.
class OpenPatternTest : public LinkRemovalsTest {
 protected:
  static wire::Removal Key(std::uint64_t number) {
    return {.number = kFirst + number, .slot = 1, .keys = {"k"}, .pattern = {}};
  }
  static wire::Removal Pattern(std::uint64_t number) {
    return {.number = kFirst + number, .slot = 1, .keys = {}, .pattern = "x*"};
  }
  void AnswerUpTo(std::uint64_t upto, std::vector<wire::Removal> removals = {}) {
    AnswerRemovals({.drop = {}, .removals = std::move(removals), .upto = kFirst + upto});
  }
  // It has applied a pattern, 1, and a key, 2, and walks.
  void Begin() {
    target_.walks_disks = true;
    Join();
    TellAll();
    AskRemovals();
    target_.said.clear();
    AnswerUpTo(2, {Pattern(1), Key(2)});
  }
  // Another master leads.
  void JoinAnother() {
    core_.Disconnected();
    AskHello();
    wire::OwnerWelcome welcome = Welcome(9);
    ++welcome.position.term;
    AnswerHello(welcome);
  }
};

TEST_F(OpenPatternTest, OtherRemovalsAreAcknowledgedWhileDisksAreWalked) {
  Begin();
  EXPECT_THAT(target_.said, ElementsAre("begin " + std::to_string(kFirst + 1),
                                        "remove " + std::to_string(kFirst + 2)));
  EXPECT_EQ(target_.applied, kFirst + 2);
  wire::RemovalsRequest next = AskRemovals();
  EXPECT_EQ(next.after, kFirst);
  EXPECT_EQ(next.ahead, kFirst + 2);
  EXPECT_THAT(next.open, ElementsAre(kFirst + 1));
  ASSERT_EQ(next.matched.size(), 1U);
  EXPECT_EQ(next.matched[0].objects, 3U) << "those of memory";
  AnswerUpTo(3, {Key(3)});
  next = AskRemovals();
  EXPECT_EQ(next.after, kFirst);
  EXPECT_EQ(next.ahead, kFirst + 3);
  EXPECT_THAT(next.open, ElementsAre(kFirst + 1));
  EXPECT_THAT(next.matched, IsEmpty());
}

TEST_F(OpenPatternTest, ItIsAcknowledgedOnceWhatDisksHadIsUnlisted) {
  Begin();
  AskRemovals();
  target_.ended_patterns = {{.number = kFirst + 1, .objects = 5}};
  AnswerUpTo(2);
  wire::RemovalsRequest next = AskRemovals();
  EXPECT_THAT(next.open, ElementsAre(kFirst + 1)) << "its keys are still listed";
  ASSERT_EQ(next.matched.size(), 1U);
  EXPECT_EQ(next.matched[0].number, kFirst + 1);
  EXPECT_EQ(next.matched[0].objects, 5U);
  EXPECT_TRUE(Idle(Lane::kList));
  AnswerUpTo(2);
  next = AskRemovals();
  EXPECT_THAT(next.open, ElementsAre(kFirst + 1)) << "that round may have begun before";
  EXPECT_TRUE(Idle(Lane::kList));
  AnswerUpTo(2);
  next = AskRemovals();
  EXPECT_EQ(next.after, kFirst + 2);
  EXPECT_THAT(next.open, IsEmpty());
}

TEST_F(OpenPatternTest, ItIsAcknowledgedOnceAllIsUnlistedHoweverMuchThatIs) {
  Begin();
  AskRemovals();
  target_.ended_patterns = {{.number = kFirst + 1, .objects = 5}};
  for (std::uint64_t key = 0; key <= 2 * kGonePageItems; ++key) target_.Evict(key);
  AnswerUpTo(2);
  AskRemovals();
  for (int page = 0; page < 2; ++page) {
    const wire::ListRequest full = AskList();
    ASSERT_EQ(full.items.size(), kGonePageItems);
    AnswerList(full);
  }
  AnswerUpTo(2);
  EXPECT_THAT(AskRemovals().open, ElementsAre(kFirst + 1)) << "one key is still listed";
  AnswerList(AskList());
  EXPECT_TRUE(Idle(Lane::kList));
  AnswerUpTo(2);
  EXPECT_THAT(AskRemovals().open, IsEmpty());
}

TEST_F(OpenPatternTest, TheFirstOfSeveralThatAreOpenCounts) {
  Begin();
  AskRemovals();
  AnswerUpTo(4, {Pattern(3), Key(4)});
  EXPECT_THAT(AskRemovals().open, ElementsAre(kFirst + 1, kFirst + 3));
  target_.ended_patterns = {{.number = kFirst + 1, .objects = 0}};
  AnswerUpTo(4);
  AskRemovals();
  EXPECT_TRUE(Idle(Lane::kList) && Idle(Lane::kList));
  AnswerUpTo(4);
  const wire::RemovalsRequest next = AskRemovals();
  EXPECT_EQ(next.after, kFirst + 2);
  EXPECT_THAT(next.open, ElementsAre(kFirst + 3));
}

// The list lane reports nothing meanwhile, so none of them ends, however fast the disks are. An
// owner that returns has missed thousands: one walk must serve all for which there is room.
TEST_F(OpenPatternTest, NoMoreAreOpenThanARequestMayName) {
  constexpr std::uint64_t kMost = wire::kMaxOpenRemovals;
  Begin();
  AskRemovals();
  std::vector<wire::Removal> patterns;
  for (std::uint64_t number = 3; number <= kMost + 3; ++number) patterns.push_back(Pattern(number));
  AnswerUpTo(kMost + 3, patterns);
  EXPECT_EQ(target_.said.back(), "begin " + std::to_string(kFirst + kMost + 1));
  EXPECT_EQ(target_.applied, kFirst + kMost + 1);
  wire::RemovalsRequest next = AskRemovals();
  EXPECT_EQ(next.open.size(), kMost);
  EXPECT_EQ(next.ahead, kFirst + kMost + 1);
  const std::size_t said = target_.said.size();
  const std::vector<wire::Removal> rest(patterns.end() - 2, patterns.end());
  AnswerUpTo(kMost + 3, rest);
  EXPECT_TRUE(Idle(Lane::kRemovals) && Idle(Lane::kRemovals)) << "the answer would be the same";
  EXPECT_EQ(target_.said.size(), said);

  target_.ended_patterns = {{.number = kFirst + 1, .objects = 0}};
  EXPECT_TRUE(Idle(Lane::kRemovals)) << "its keys are still listed";
  EXPECT_TRUE(Idle(Lane::kList) && Idle(Lane::kList));
  next = AskRemovals();
  EXPECT_EQ(next.after, kFirst + 2);
  EXPECT_EQ(next.open.size(), kMost - 1);
  AnswerUpTo(kMost + 3, rest);
  ASSERT_EQ(target_.said.size(), said + 1);
  EXPECT_EQ(target_.said.back(), "begin " + std::to_string(kFirst + kMost + 2));
  EXPECT_EQ(AskRemovals().ahead, kFirst + kMost + 2);
}

TEST_F(OpenPatternTest, RemovalsBeforeOneWithoutRoomAreAcknowledged) {
  Begin();
  AskRemovals();
  target_.said.clear();
  target_.pattern_room = 0;
  AnswerUpTo(5, {Key(3), Pattern(4), Key(5)});
  EXPECT_THAT(target_.said, ElementsAre("remove " + std::to_string(kFirst + 3)));
  EXPECT_EQ(target_.applied, kFirst + 3);
  EXPECT_EQ(AskRemovals().ahead, kFirst + 3);
}

// As above, where `open` has room, but the walks of an earlier master's removals are under way.
TEST_F(OpenPatternTest, TheLaneContinuesOnceWalksOfAnEarlierMasterHaveEnded) {
  Begin();
  JoinAnother();
  AskRemovals();
  target_.said.clear();
  target_.pattern_room = 0;
  AnswerUpTo(4, {Pattern(3), Key(4)});
  EXPECT_TRUE(Idle(Lane::kRemovals) && Idle(Lane::kRemovals));
  EXPECT_THAT(target_.said, IsEmpty());
  target_.pattern_room = 1;
  EXPECT_EQ(AskRemovals().seen(), kFirst);
  AnswerUpTo(4, {Pattern(3), Key(4)});
  EXPECT_THAT(target_.said, ElementsAre("begin " + std::to_string(kFirst + 3),
                                        "remove " + std::to_string(kFirst + 4)));
}

// The page comes again once there is room, and each drop walks over the disks.
TEST_F(OpenPatternTest, APageThatBeginsWithOneWithoutRoomDropsNoSlot) {
  Begin();
  AskRemovals();
  target_.said.clear();
  target_.pattern_room = 0;
  AnswerRemovals({.drop = {9}, .drop_number = 5, .removals = {Pattern(3)}, .upto = kFirst + 3});
  EXPECT_THAT(target_.said, IsEmpty());
  target_.pattern_room = 1;
  EXPECT_EQ(AskRemovals().dropped, 0U);
  AnswerRemovals({.drop = {9}, .drop_number = 5, .removals = {Pattern(3)}, .upto = kFirst + 3});
  EXPECT_THAT(target_.said, ElementsAre("drop 9", "begin " + std::to_string(kFirst + 3)));
}

// Its log may begin with keys.
TEST_F(OpenPatternTest, AnotherMasterIsAskedEvenIfThereIsNoRoom) {
  Begin();
  AskRemovals();
  target_.pattern_room = 0;
  AnswerUpTo(3, {Pattern(3)});
  EXPECT_TRUE(Idle(Lane::kRemovals));
  JoinAnother();
  EXPECT_EQ(AskRemovals().seen(), kFirst);
}

TEST_F(OpenPatternTest, SoItIsWhereItsWelcomeOvertakesAPageOfTheLastOne) {
  Begin();
  AskRemovals();
  target_.said.clear();
  target_.pattern_room = 0;
  target_.on_room = [&] { JoinAnother(); };
  AnswerUpTo(3, {Pattern(3)});
  EXPECT_EQ(AskRemovals().seen(), kFirst);
}

// It knows no open removals, and sends all again that it has not seen acknowledged.
TEST_F(OpenPatternTest, AMasterOfAnEarlierVersionIsAskedWithPauses) {
  Begin();
  AskRemovals();
  target_.said.clear();
  AnswerUpTo(3, {Pattern(1), Key(2), Key(3)});
  EXPECT_THAT(target_.said, ElementsAre("remove " + std::to_string(kFirst + 3)));
  EXPECT_TRUE(Idle(Lane::kRemovals));
  EXPECT_EQ(AskRemovals().ahead, kFirst + 3);
  AnswerUpTo(2, {Pattern(1), Key(2)});
  EXPECT_EQ(target_.applied, kFirst + 3) << "its number never falls";
}

// The successor's process walks anew.
TEST_F(OpenPatternTest, AHandOverAsksForOpenRemovalsAgain) {
  Begin();
  core_.ForgetCallers();
  EXPECT_EQ(target_.forgotten_patterns, 1);
  const wire::RemovalsRequest next = AskRemovals();
  EXPECT_EQ(next.after, kFirst);
  EXPECT_EQ(next.seen(), kFirst);
  EXPECT_THAT(next.open, IsEmpty());
}

TEST_F(OpenPatternTest, AnotherMasterKnowsNoneOfThem) {
  Begin();
  JoinAnother();
  const wire::RemovalsRequest next = AskRemovals();
  EXPECT_EQ(next.after, kFirst);
  EXPECT_EQ(next.seen(), kFirst);
  EXPECT_THAT(next.open, IsEmpty());
}

}  // namespace
}  // namespace kvcove::owner
