// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/loop_beat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>

namespace kvcove {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(LoopBeatTest, ALoopThatTurnsNeverHangs) {
  LoopBeat beat("loop");
  LoopWatch watch(2);
  for (int look = 0; look < 10; ++look) {
    beat.Turn();
    EXPECT_THAT(watch.Look(), IsEmpty());
  }
}

TEST(LoopBeatTest, ALoopHangsAfterSoManyLooksWithoutATurn) {
  LoopBeat beat("loop");
  LoopWatch watch(3);
  beat.Turn();
  EXPECT_THAT(watch.Look(), IsEmpty()) << "the first look only learns the number of turns";
  EXPECT_THAT(watch.Look(), IsEmpty());
  EXPECT_THAT(watch.Look(), IsEmpty());
  EXPECT_THAT(watch.Look(), ElementsAre("loop"));
  EXPECT_THAT(watch.Look(), ElementsAre("loop"));
  beat.Turn();
  EXPECT_THAT(watch.Look(), IsEmpty());
}

TEST(LoopBeatTest, OneThatTurnsDoesNotStandForAnother) {
  LoopBeat turning("turning");
  LoopBeat hanging("hanging");
  LoopWatch watch(1);
  (void)watch.Look();
  turning.Turn();
  EXPECT_THAT(watch.Look(), ElementsAre("hanging"));
}

TEST(LoopBeatTest, ALoopThatHasEndedIsForgotten) {
  std::optional<LoopBeat> beat(std::in_place, "ended");
  LoopWatch watch(1);
  (void)watch.Look();
  EXPECT_THAT(watch.Look(), ElementsAre("ended"));
  beat.reset();
  EXPECT_THAT(watch.Look(), IsEmpty());
  // Its successor may have the same address and the same number of turns.
  beat.emplace("begun again");
  EXPECT_THAT(watch.Look(), IsEmpty());
}

TEST(LoopBeatTest, LoopsOfOtherThreadsAreSeen) {
  LoopWatch watch(1);
  std::thread([&watch] {
    const LoopBeat beat("other");
    (void)watch.Look();
    EXPECT_THAT(watch.Look(), ElementsAre("other"));
  }).join();
  EXPECT_THAT(watch.Look(), IsEmpty());
}

}  // namespace
}  // namespace kvcove
