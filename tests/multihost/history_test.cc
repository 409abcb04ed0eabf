// SPDX-License-Identifier: Apache-2.0
// The checker finds what it is there for.
#include "tests/multihost/history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvcove::multihost {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Kind = Operation::Kind;
using Outcome = Operation::Outcome;

Operation Put(std::uint64_t value, std::int64_t captured, std::int64_t began, std::int64_t ended,
              Outcome outcome = Outcome::kDone) {
  return {.kind = Kind::kPut,
          .outcome = outcome,
          .key = 1,
          .value = value,
          .captured_ns = captured,
          .began_ns = began,
          .ended_ns = ended};
}
Operation Hit(std::uint64_t value, std::int64_t began, std::int64_t ended) {
  return {.kind = Kind::kGet,
          .outcome = Outcome::kDone,
          .key = 1,
          .value = value,
          .began_ns = began,
          .ended_ns = ended};
}
Operation Remove(std::int64_t began, std::int64_t ended, Outcome outcome = Outcome::kDone) {
  return {
      .kind = Kind::kRemove, .outcome = outcome, .key = 1, .began_ns = began, .ended_ns = ended};
}
Operation Reset(std::int64_t began, std::int64_t ended, Outcome outcome = Outcome::kDone) {
  return {.kind = Kind::kReset, .outcome = outcome, .began_ns = began, .ended_ns = ended};
}

TEST(History, WhatIsAllowed) {
  EXPECT_THAT(CheckHistory({}), IsEmpty());
  EXPECT_THAT(CheckHistory({Put(7, 1, 2, 3), Hit(7, 4, 5), Hit(7, 6, 7)}), IsEmpty());
  // Seen while it is being put; a reset at the same time as the read, or not proven; captured after
  // the reset began.
  EXPECT_THAT(CheckHistory({Put(7, 1, 2, 9), Hit(7, 4, 5)}), IsEmpty());
  EXPECT_THAT(CheckHistory({Put(7, 1, 2, 3), Reset(4, 6), Hit(7, 5, 7)}), IsEmpty());
  EXPECT_THAT(CheckHistory({Put(7, 1, 2, 3), Reset(4, 5, Outcome::kUnknown), Hit(7, 6, 7)}),
              IsEmpty());
  EXPECT_THAT(CheckHistory({Reset(1, 5), Put(7, 3, 4, 6), Hit(7, 7, 8)}), IsEmpty());
  // Removed, put again, another value; evicted in between.
  EXPECT_THAT(
      CheckHistory({Put(7, 1, 2, 3), Hit(7, 3, 4), Remove(5, 6), Put(8, 7, 7, 8), Hit(8, 9, 10)}),
      IsEmpty());
  // A put that overlaps a removal may come after it.
  EXPECT_THAT(CheckHistory({Put(7, 1, 2, 6), Remove(3, 4), Hit(7, 8, 9)}), IsEmpty());
  // A put whose caller died may have happened.
  EXPECT_THAT(CheckHistory({Put(7, 1, 2, kNever, Outcome::kUnknown), Hit(7, 8, 9)}), IsEmpty());
}

TEST(History, FromNowhere) {
  EXPECT_THAT(CheckHistory({Hit(7, 1, 2)}), ElementsAre(HasSubstr("nobody put")));
  EXPECT_THAT(CheckHistory({Put(7, 5, 6, 7), Hit(7, 1, 2)}),
              ElementsAre(HasSubstr("before it was put")));
  EXPECT_THAT(CheckHistory({Put(7, 1, 2, 3, Outcome::kRefused), Hit(7, 4, 5)}),
              ElementsAre(HasSubstr("refused")));
}

TEST(History, BehindAFence) {
  EXPECT_THAT(CheckHistory({Put(7, 1, 2, 3), Reset(4, 5), Hit(7, 6, 7)}),
              ElementsAre(HasSubstr("reset")));
  // The put ended long after the reset, but its token is from before.
  EXPECT_THAT(CheckHistory({Put(7, 1, 6, 7), Reset(2, 5), Hit(7, 8, 9)}),
              ElementsAre(HasSubstr("reset")));
  EXPECT_THAT(CheckHistory({Put(7, 1, 2, 3), Remove(4, 5), Hit(7, 6, 7)}),
              ElementsAre(HasSubstr("removal")));
  // One of several fences is enough, whatever the others do.
  EXPECT_THAT(
      CheckHistory({Put(7, 1, 2, 3), Reset(2, 90), Reset(4, 5), Reset(80, 90), Hit(7, 6, 7)}),
      ElementsAre(HasSubstr("reset")));
}

TEST(History, BackAgain) {
  EXPECT_THAT(
      CheckHistory({Put(7, 1, 2, 3), Hit(7, 4, 5), Put(8, 6, 6, 7), Hit(8, 8, 9), Hit(7, 10, 11)}),
      ElementsAre(HasSubstr("came back")));
  EXPECT_THAT(CheckHistory({Put(7, 1, 2, 3), Put(8, 6, 6, 7), Hit(7, 10, 11)}),
              ElementsAre(HasSubstr("came back")));
  // The newer one is not from after the fence; the older one is seen after it.
  EXPECT_THAT(CheckHistory({Put(7, 1, 2, 3), Reset(5, 20), Put(8, 4, 6, 7), Hit(7, 10, 11)}),
              ElementsAre(HasSubstr("came back")));
  EXPECT_THAT(CheckHistory({Put(7, 1, 2, 3), Put(8, 6, 6, 7), Remove(8, 20), Hit(7, 10, 11)}),
              ElementsAre(HasSubstr("came back")));
  EXPECT_THAT(CheckHistory({Put(7, 8, 9, 10), Put(8, 8, 11, 12), Reset(1, 7), Hit(7, 13, 14)}),
              ElementsAre(HasSubstr("came back")));
}

// Owners hear of a removal or a reset one after the other.
TEST(History, BackWhileAFenceIsUnderWay) {
  EXPECT_THAT(CheckHistory({Put(7, 1, 2, 3), Reset(5, 20), Put(8, 6, 7, 8), Hit(7, 10, 11)}),
              IsEmpty());
  EXPECT_THAT(CheckHistory({Put(7, 1, 2, 3), Remove(5, 20), Put(8, 4, 7, 8), Hit(7, 10, 11)}),
              IsEmpty());
  EXPECT_THAT(CheckHistory({Put(7, 1, 2, 3), Remove(5, 9, Outcome::kUnknown), Put(8, 6, 7, 8),
                            Hit(7, 10, 11)}),
              IsEmpty());
  // A master that was not told yet.
  const Operation master = {.kind = Kind::kMaster, .began_ns = 5, .ended_ns = 12};
  EXPECT_THAT(CheckHistory({Put(7, 1, 2, 3), master, Put(8, 6, 7, 8), Hit(7, 10, 11)}), IsEmpty());
  EXPECT_THAT(CheckHistory({Put(7, 1, 2, 3), master, Put(8, 6, 7, 8), Hit(7, 13, 14)}),
              ElementsAre(HasSubstr("came back")));
  EXPECT_THAT(CheckHistory({Put(7, 1, 1, 2), Put(8, 2, 3, 4), master, Hit(7, 10, 11)}),
              ElementsAre(HasSubstr("came back")));
  // Seen by the owner that has heard of it, by one that has not, and again.
  EXPECT_THAT(
      CheckHistory({Put(7, 1, 2, 3), Reset(5, 20), Put(8, 6, 7, 8), Hit(7, 9, 10), Hit(8, 11, 12)}),
      IsEmpty());
}

}  // namespace
}  // namespace kvcove::multihost
