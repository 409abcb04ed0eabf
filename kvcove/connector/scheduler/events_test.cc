// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/scheduler/events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvcove::connector {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Kind = PoolEvent::Kind;

class EventsTest : public testing::Test {
 protected:
  void SetUp() override { SetLogLevel(LogLevel::kOff); }
  void TearDown() override { SetLogLevel(LogLevel::kWarn); }

  static Events::Block Block(std::uint64_t chunk, std::string_view hash,
                             std::string_view parent = {}) {
    return {.request = "r", .chunk = chunk, .hash = hash, .parent = parent};
  }
  // "+memory a b" for what is stored, "-disk c" for what is removed.
  std::vector<std::string> Told() {
    std::vector<std::string> all;
    for (const PoolEvent& event : events_.Take()) {
      std::string line = event.kind == Kind::kAllCleared ? "cleared"
                         : event.kind == Kind::kStored   ? "+"
                                                         : "-";
      if (event.kind != Kind::kAllCleared) {
        line += event.medium == Medium::kDisk ? "disk" : "memory";
      }
      for (const std::string& hash : event.hashes) line += " " + hash;
      all.push_back(std::move(line));
    }
    return all;
  }

  LinesAfterLock lines_;
  Events events_{{.enabled = true, .engine = "e", .most_events = 3, .most_blocks = 4}};
};

TEST_F(EventsTest, ABlockGoesFromMemoryToTheDiskAndComesBack) {
  events_.Saved(Block(0, "a"), lines_);
  EXPECT_THAT(Told(), ElementsAre("+memory a"));
  events_.Found(Block(0, "a"), Medium::kMemory, lines_);
  EXPECT_THAT(Told(), IsEmpty());
  events_.Found(Block(0, "a"), Medium::kDisk, lines_);
  EXPECT_THAT(Told(), ElementsAre("-memory a", "+disk a"));
  events_.Found(Block(0, "a"), Medium::kDisk, lines_);
  EXPECT_THAT(Told(), IsEmpty());
  events_.Loaded(Block(0, "a"), lines_);
  events_.Loaded(Block(0, "a"), lines_);
  EXPECT_THAT(Told(), ElementsAre("+memory a"));
  // The disk has it still.
  events_.Found(Block(0, "a"), Medium::kDisk, lines_);
  EXPECT_THAT(Told(), ElementsAre("-memory a"));
}

TEST_F(EventsTest, WhatIsGoneIsRemovedFromEachMediumThatWasTold) {
  events_.Found(Block(0, "a"), Medium::kDisk, lines_);
  events_.Loaded(Block(0, "a"), lines_);
  (void)Told();
  events_.Gone(Block(0, "a"), lines_);
  EXPECT_THAT(Told(), ElementsAre("-memory a", "-disk a"));
  events_.Gone(Block(0, "a"), lines_);
  events_.Gone(Block(1, "never told"), lines_);
  EXPECT_THAT(Told(), IsEmpty());
}

TEST_F(EventsTest, ConsecutiveBlocksOfOneMediumAreOneEvent) {
  events_.Found(Block(3, "a", "before"), Medium::kDisk, lines_);
  events_.Found(Block(4, "b", "a"), Medium::kDisk, lines_);
  events_.Found(Block(5, "c", "b"), Medium::kMemory, lines_);
  const std::vector<PoolEvent> events = events_.Take();
  ASSERT_EQ(events.size(), 2U);
  EXPECT_THAT(events[0].hashes, ElementsAre("a", "b"));
  EXPECT_EQ(events[0].first_chunk, 3U);
  EXPECT_EQ(events[0].parent, "before");
  EXPECT_EQ(events[0].medium, Medium::kDisk);
  EXPECT_EQ(events[1].first_chunk, 5U);
  EXPECT_EQ(events[1].parent, "b");
}

TEST_F(EventsTest, OneHashInTwoGroupsIsTwoBlocks) {
  Events::Block other = Block(0, "a");
  other.group = 1;
  events_.Saved(Block(0, "a"), lines_);
  events_.Found(other, Medium::kMemory, lines_);
  EXPECT_THAT(Told(), ElementsAre("+memory a", "+memory a"));
}

TEST_F(EventsTest, BeyondItsBoundsTheOldestGoAndOnlySavesAreTold) {
  for (const char* hash : {"a", "b", "c", "d"}) events_.Saved(Block(9, hash), lines_);
  EXPECT_EQ(events_.dropped(), 1U);
  EXPECT_THAT(Told(), ElementsAre("+memory b", "+memory c", "+memory d"));
  events_.Found(Block(9, "e"), Medium::kDisk, lines_);
  events_.Saved(Block(9, "e"), lines_);
  EXPECT_THAT(Told(), ElementsAre("+memory e"));
}

TEST_F(EventsTest, AResetTakesBackWhatWasTold) {
  events_.Saved(Block(0, "a"), lines_);
  events_.Found(Block(1, "b"), Medium::kDisk, lines_);
  (void)Told();
  events_.Saved(Block(2, "c"), lines_);
  events_.Gone(Block(0, "a"), lines_);
  events_.Clear(lines_);
  EXPECT_THAT(Told(), ElementsAre("-memory a", "-memory c", "-disk b"));
  events_.Gone(Block(1, "b"), lines_);
  events_.Clear(lines_);
  EXPECT_THAT(Told(), IsEmpty());
}

TEST_F(EventsTest, AResetClearsAllWhereNotAllThatWasToldIsRemembered) {
  for (const char* hash : {"a", "b", "c", "d", "e"}) {
    events_.Saved(Block(0, hash), lines_);
    (void)events_.Take();
  }
  events_.Clear(lines_);
  EXPECT_THAT(Told(), ElementsAre("cleared", "-memory a b c d"));
  events_.Clear(lines_);
  EXPECT_THAT(Told(), IsEmpty());
}

TEST_F(EventsTest, WhatIsFoundIsToldOnceMoreAfterTheEngineClearedItsOwn) {
  events_.Saved(Block(0, "a"), lines_);
  (void)Told();
  events_.TellAgain();
  events_.Found(Block(0, "a"), Medium::kMemory, lines_);
  events_.Found(Block(0, "a"), Medium::kMemory, lines_);
  EXPECT_THAT(Told(), ElementsAre("+memory a"));
  events_.TellAgain();
  events_.Gone(Block(0, "a"), lines_);
  EXPECT_THAT(Told(), ElementsAre("-memory a"));
}

TEST_F(EventsTest, WithoutAListenerNothingIsKept) {
  Events none({.enabled = false, .engine = "e"});
  none.Saved(Block(0, "a"), lines_);
  none.Found(Block(1, "b"), Medium::kDisk, lines_);
  none.Clear(lines_);
  EXPECT_THAT(none.Take(), IsEmpty());
}

}  // namespace
}  // namespace kvcove::connector
