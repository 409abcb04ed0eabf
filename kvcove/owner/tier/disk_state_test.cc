// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/tier/disk_state.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <vector>

namespace kvcove::owner {
namespace {

using State = DiskState::State;
using Note = DiskState::Note;

// Returns a disk in this state, by calls that an owner makes.
DiskState In(State state) {
  DiskState disk;
  switch (state) {
    case State::kOpening:
      break;
    case State::kReopening:
      EXPECT_TRUE(disk.Use(State::kReporting));
      EXPECT_TRUE(disk.Pause());
      break;
    case State::kOn:
      EXPECT_TRUE(disk.SetOn());
      break;
    case State::kReporting:
      EXPECT_TRUE(disk.Use(State::kReporting));
      break;
    case State::kAside:
      EXPECT_TRUE(disk.SetAside("why"));
      break;
    case State::kVoided:
      EXPECT_TRUE(disk.Void("why"));
      break;
    case State::kUnmounted:
      EXPECT_TRUE(disk.Unmount("why"));
      break;
  }
  EXPECT_EQ(disk.state(), state);
  return disk;
}

constexpr State kStates[] = {State::kOpening,   State::kReopening, State::kOn,
                             State::kReporting, State::kAside,     State::kVoided,
                             State::kUnmounted};

// Expects the state after a call, from each state in their order: a column of the header's table.
void ExpectRow(const std::function<void(DiskState&)>& call, const std::vector<State>& after) {
  ASSERT_EQ(after.size(), std::size(kStates));
  for (std::size_t i = 0; i < after.size(); ++i) {
    DiskState disk = In(kStates[i]);
    const bool was_aside = disk.aside();
    const std::uint64_t era = disk.era();
    call(disk);
    EXPECT_EQ(disk.state(), after[i]) << "from the state " << i;
    EXPECT_TRUE(!was_aside || disk.era() == era) << "its era is over already";
  }
}

TEST(DiskStateTest, OpensFromWhereItMayBeOpened) {
  ExpectRow([](DiskState& disk) { disk.SetOn(); },
            {State::kOn, State::kReopening, State::kOn, State::kReporting, State::kAside,
             State::kVoided, State::kUnmounted});
  ExpectRow([](DiskState& disk) { disk.Use(State::kOn); },
            {State::kOn, State::kOn, State::kOn, State::kReporting, State::kOn, State::kVoided,
             State::kUnmounted});
  ExpectRow([](DiskState& disk) { disk.Use(State::kReporting); },
            {State::kReporting, State::kReporting, State::kOn, State::kReporting, State::kReporting,
             State::kVoided, State::kUnmounted});
  ExpectRow([](DiskState& disk) { disk.SetOnReported(disk.era()); },
            {State::kOpening, State::kReopening, State::kOn, State::kOn, State::kAside,
             State::kVoided, State::kUnmounted});
}

TEST(DiskStateTest, EndsFromAnyState) {
  ExpectRow([](DiskState& disk) { disk.SetAside("x"); },
            {State::kAside, State::kAside, State::kAside, State::kAside, State::kAside,
             State::kVoided, State::kUnmounted});
  ExpectRow([](DiskState& disk) { disk.Void("x"); },
            {State::kVoided, State::kVoided, State::kVoided, State::kVoided, State::kVoided,
             State::kVoided, State::kUnmounted});
  ExpectRow([](DiskState& disk) { disk.Unmount("x"); },
            {State::kUnmounted, State::kUnmounted, State::kUnmounted, State::kUnmounted,
             State::kUnmounted, State::kUnmounted, State::kUnmounted});
  ExpectRow([](DiskState& disk) { disk.UseAnew(); },
            {State::kOpening, State::kReopening, State::kOn, State::kReporting, State::kAside,
             State::kAside, State::kUnmounted});
  ExpectRow([](DiskState& disk) { disk.Pause(); },
            {State::kOpening, State::kReopening, State::kOpening, State::kReopening, State::kAside,
             State::kVoided, State::kUnmounted});
}

TEST(DiskStateTest, WhatEndsAUseEndsItsEraOnceAndKeepsTheFirstReason) {
  DiskState disk = In(State::kOn);
  const std::uint64_t era = disk.era();
  EXPECT_TRUE(disk.SetAside("first"));
  EXPECT_EQ(disk.era(), era + 1);
  EXPECT_FALSE(disk.SetAside("second"));
  EXPECT_FALSE(disk.Void("third"));
  EXPECT_FALSE(disk.Unmount("fourth"));
  EXPECT_EQ(disk.era(), era + 1);
  EXPECT_EQ(disk.why(), "first");
  DiskState paused = In(State::kOn);
  EXPECT_TRUE(paused.Pause());
  EXPECT_EQ(paused.era(), era + 1);
  EXPECT_EQ(paused.why(), "");
}

TEST(DiskStateTest, AUseThatBeginsForgetsWhyTheLastOneEnded) {
  DiskState disk = In(State::kAside);
  EXPECT_TRUE(disk.Use(State::kOn));
  EXPECT_EQ(disk.why(), "");
}

TEST(DiskStateTest, WhatWasReportedInAnotherEraDoesNotSetItOn) {
  DiskState disk = In(State::kReporting);
  const std::uint64_t era = disk.reporting_in().value();
  EXPECT_TRUE(disk.SetAside("it failed"));
  EXPECT_FALSE(disk.reporting_in());
  EXPECT_TRUE(disk.Use(State::kReporting));
  EXPECT_FALSE(disk.SetOnReported(era));
  EXPECT_TRUE(disk.SetOnReported(disk.reporting_in().value()));
}

TEST(DiskStateTest, SaysWhatItsStateMeans) {
  std::map<State, std::string> meaning;
  for (const State state : kStates) {
    const DiskState disk = In(state);
    meaning[state] = std::string(disk.on() ? "on " : "") + (disk.reporting() ? "reporting " : "") +
                     (disk.opening() ? "opening " : "") + (disk.aside() ? "aside " : "") +
                     (disk.away() ? "away " : "") + (disk.may_open() ? "opens " : "") +
                     (disk.tries_again() ? "again" : "");
  }
  EXPECT_EQ(meaning[State::kOpening], "opening opens again");
  EXPECT_EQ(meaning[State::kReopening], "opening away opens again");
  EXPECT_EQ(meaning[State::kOn], "on opens again");
  EXPECT_EQ(meaning[State::kReporting], "reporting away opens again");
  EXPECT_EQ(meaning[State::kAside], "aside away opens again");
  EXPECT_EQ(meaning[State::kVoided], "aside away again");
  EXPECT_EQ(meaning[State::kUnmounted], "aside away ");
}

TEST(DiskStateTest, NothingIsStoredOverADiskThatTheNoteNamesAndThatIsNotOn) {
  DiskState disk = In(State::kOn);
  EXPECT_FALSE(disk.Cover()) << "the note does not name it";
  EXPECT_EQ(disk.unnoted_in(), disk.era());
  disk.Name();
  EXPECT_FALSE(disk.unnoted_in());
  EXPECT_FALSE(disk.Cover()) << "it is on: a put is answered by what it holds";
  EXPECT_FALSE(disk.must_be_struck());
  EXPECT_TRUE(disk.SetAside("it failed"));
  EXPECT_TRUE(disk.Cover());
  EXPECT_TRUE(disk.must_be_struck());
  disk.Name();
  EXPECT_TRUE(disk.must_be_struck()) << "a put waits";
  disk.Strike();
  EXPECT_FALSE(disk.must_be_struck());
  EXPECT_FALSE(disk.Cover());
  EXPECT_EQ(disk.note(), Note::kStruck);
}

TEST(DiskStateTest, OthersMayStoreTheKeysOfADiskThatIsAwayOnceItIsStruck) {
  DiskState disk = In(State::kOn);
  disk.Name();
  EXPECT_FALSE(disk.unstruck());
  EXPECT_FALSE(disk.away_and_struck());
  EXPECT_TRUE(disk.SetAside("it failed"));
  EXPECT_TRUE(disk.unstruck());
  EXPECT_FALSE(disk.away_and_struck());
  disk.Strike();
  EXPECT_FALSE(disk.unstruck());
  EXPECT_TRUE(disk.away_and_struck());
  DiskState voided = In(State::kVoided);
  voided.Name();
  EXPECT_TRUE(voided.away_and_struck()) << "its owner has another identity";
}

TEST(DiskStateTest, ADiskThatIsUsedAgainNeedNotBeStruck) {
  DiskState disk = In(State::kAside);
  disk.Name();
  EXPECT_TRUE(disk.Cover());
  EXPECT_TRUE(disk.Use(State::kOn));
  EXPECT_EQ(disk.note(), Note::kNamed);
}

}  // namespace
}  // namespace kvcove::owner
