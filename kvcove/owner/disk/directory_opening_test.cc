// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/disk/directory_opening.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>

namespace kvcove::owner {
namespace {

constexpr Id128 kBefore{.high = 1, .low = 1};
constexpr Id128 kOlder{.high = 1, .low = 2};

OwnerFacts FactsOf(const DirectoryOpening& opening) {
  OwnerFacts facts;
  opening.Set(facts);
  return facts;
}

// A process that has drawn its number, which is in the directory.
class DirectoryOpeningTest : public testing::Test {
 protected:
  void Begin(const Id128& stored = kBefore) {
    OwnerFacts facts;
    facts.opening = kBefore;
    facts.opening_before = kOlder;
    opening_.Read(facts);
    ASSERT_TRUE(opening_.Welcomed(stored, 0));
    opening_.Written(FactsOf(opening_));
  }
  void Store() { opening_.Stored(opening_.Told()); }

  DirectoryOpening opening_{600 * kSecond};
};

TEST_F(DirectoryOpeningTest, AProcessDrawsOneAndKeepsTheOneThatTheMasterHas) {
  // The last process was killed before the master had stored kBefore.
  OwnerFacts facts;
  facts.opening = kBefore;
  facts.opening_before = kOlder;
  opening_.Read(facts);
  EXPECT_FALSE(opening_.awaits(0)) << "no master has welcomed it";
  ASSERT_TRUE(opening_.Welcomed(kOlder, 0));
  const OwnerFacts drawn = FactsOf(opening_);
  EXPECT_NE(drawn.opening, kBefore);
  EXPECT_EQ(drawn.opening_before, kOlder);
  EXPECT_EQ(opening_.Told(), Id128{}) << "the directory does not have it";
  opening_.Written(facts);
  EXPECT_EQ(opening_.Told(), Id128{}) << "an earlier write";
  opening_.Written(drawn);
  EXPECT_EQ(opening_.Told(), drawn.opening);
  EXPECT_TRUE(opening_.awaits(0)) << "the disks wait for the master";
  EXPECT_FALSE(opening_.awaits(6 * kSecond)) << "its store may hang";
  EXPECT_TRUE(opening_.hurries(kSecond / 2));
  EXPECT_FALSE(opening_.hurries(2 * kSecond));
  opening_.Stored(kOlder);
  EXPECT_TRUE(opening_.awaits(0));
  opening_.Stored(drawn.opening);
  EXPECT_FALSE(opening_.awaits(0));
  EXPECT_FALSE(opening_.Welcomed(drawn.opening, 1)) << "once a process";
}

TEST_F(DirectoryOpeningTest, UnderAMasterThatStoresNoneNothingIsDrawn) {
  OwnerFacts facts;
  facts.opening = kBefore;
  opening_.Read(facts);
  EXPECT_FALSE(opening_.Welcomed(std::nullopt, 0));
  EXPECT_FALSE(opening_.awaits(0));
  EXPECT_FALSE(opening_.DrawLast());
  EXPECT_EQ(FactsOf(opening_), facts) << "a later master may have stored it";
  EXPECT_TRUE(opening_.Welcomed(kBefore, 1)) << "the master was upgraded";
}

// Else the next process would be forgotten, though nothing was put back from a copy.
TEST_F(DirectoryOpeningTest, TheMasterIsNotToldOfANumberThatCannotBeWritten) {
  opening_.Read({});
  ASSERT_TRUE(opening_.Welcomed(Id128{}, 0));
  EXPECT_EQ(opening_.Told(), Id128{});
  EXPECT_TRUE(opening_.awaits(4 * kSecond));
  EXPECT_FALSE(opening_.awaits(6 * kSecond)) << "the disks do not wait for ever";
  EXPECT_FALSE(opening_.DrawLast());
}

TEST_F(DirectoryOpeningTest, ACleanEndDrawsTheNextOnceTheMasterHasTheLast) {
  Begin();
  EXPECT_FALSE(opening_.DrawLast()) << "the directory would have to name three";
  Store();
  const OwnerFacts before = FactsOf(opening_);
  ASSERT_TRUE(opening_.DrawLast());
  EXPECT_NE(FactsOf(opening_).opening, before.opening);
  EXPECT_EQ(FactsOf(opening_).opening_before, before.opening);
  EXPECT_EQ(opening_.Told(), Id128{}) << "the directory does not have it yet";
}

TEST_F(DirectoryOpeningTest, AnotherOneIsDrawnFromTimeToTime) {
  Begin();
  Store();
  EXPECT_FALSE(opening_.DrawAgain(599 * kSecond));
  EXPECT_TRUE(opening_.DrawAgain(600 * kSecond));
  EXPECT_FALSE(opening_.DrawAgain(1300 * kSecond)) << "the master does not have it yet";
  opening_.Written(FactsOf(opening_));
  Store();
  EXPECT_TRUE(opening_.DrawAgain(1300 * kSecond));
  opening_.Written(FactsOf(opening_));
  Store();
  EXPECT_FALSE(opening_.DrawAgain(1899 * kSecond));
}

TEST_F(DirectoryOpeningTest, AnotherIdentityDrawsOneOfItsOwn) {
  Begin();
  Store();
  opening_.Forget();
  EXPECT_TRUE(opening_.awaits(0));
  ASSERT_TRUE(opening_.Welcomed(Id128{}, 0));
  EXPECT_EQ(FactsOf(opening_).opening_before, Id128{});
}

// The store was put back from a backup, which begins another incarnation.
TEST_F(DirectoryOpeningTest, AMasterWithAnEarlierOpeningKnowsTheProcessByIt) {
  Begin();
  Store();
  const Id128 now = opening_.Told();
  EXPECT_TRUE(opening_.Welcomed(kOlder, 0));
  EXPECT_EQ(opening_.named().now, now);
  EXPECT_EQ(opening_.named().before, kOlder);
  EXPECT_EQ(opening_.Told(), now) << "the master is to store it";
  EXPECT_FALSE(opening_.Welcomed(kOlder, 0)) << "the directory names it already";
}

TEST_F(DirectoryOpeningTest, AnUpgradePassesItOn) {
  Begin();
  Store();
  DirectoryOpening successor;
  successor.Adopt(FactsOf(opening_));
  EXPECT_FALSE(successor.awaits(0));
  EXPECT_FALSE(successor.Welcomed(opening_.Told(), 0));
  EXPECT_FALSE(successor.awaits(0)) << "the master has it already";
}

// ---- processes that end at any time, as docs/control-plane.md lists it

// The directory's file and the master's store, and the steps of a process and its master.
class EndsAtAnyTimeTest : public testing::Test {
 protected:
  // Those of a start, of another number later on, and of a clean end.
  static constexpr std::size_t kSteps = 17;
  static constexpr std::array<std::size_t, 3> kWrites = {3, 9, 15};  // done after so many steps
  static constexpr std::array<std::size_t, 3> kStores = {5, 11, 17};

  // As Members::RolledBack decides.
  bool Known(const Id128& now, const Id128& before) const {
    return stored_ == Id128{} || stored_ == now || stored_ == before;
  }
  bool Known(const OwnerFacts& file) const { return Known(file.opening, file.opening_before); }
  // A process that is killed after so many steps. After `moves` of them another master leads, which
  // has the same store. The file is copied after `copies` of them.
  void Run(std::size_t steps, std::size_t moves = ~0ULL, std::size_t copies = ~0ULL) {
    DirectoryOpening opening(600 * kSecond);
    opening.Read(file_);
    const auto write = [&] { file_ = FactsOf(opening); };
    const auto written = [&] { opening.Written(file_); };
    // A renewal; one before the write names nothing yet.
    const auto store = [&] {
      if (opening.Told() != Id128{}) stored_ = opening.Told();
    };
    const auto answer = [&] { opening.Stored(stored_); };
    const std::array<std::function<void()>, kSteps> all = {
        [&] { EXPECT_TRUE(opening.Welcomed(stored_, 0)); },
        store,
        write,
        written,
        store,
        answer,
        [&] { EXPECT_TRUE(opening.DrawAgain(600 * kSecond)); },
        store,
        write,
        written,
        store,
        answer,
        [&] { EXPECT_TRUE(opening.DrawLast()); },
        store,
        write,
        written,
        store};
    for (std::size_t done = 0;; ++done) {
      ASSERT_TRUE(Known(opening.named().now, opening.named().before)) << "after step " << done;
      if (done == moves && done > 0) {
        EXPECT_FALSE(opening.Welcomed(stored_, 0));
      }
      if (done == copies) copy_ = file_;
      if (done == steps) return;
      all[done]();
    }
  }

  OwnerFacts file_;
  OwnerFacts copy_;
  Id128 stored_;
};

TEST_F(EndsAtAnyTimeTest, NoProcessIsTakenForACopy) {
  for (std::size_t first = 0; first <= kSteps; ++first) {
    for (std::size_t second = 0; second <= kSteps; ++second) {
      for (std::size_t moves = 0; moves <= second; ++moves) {
        SCOPED_TRACE(fmt::format("{} {} {}", first, second, moves));
        file_ = {};
        stored_ = {};
        Run(first);
        Run(second, moves);
        Run(kSteps);
        if (HasFailure()) return;
      }
    }
  }
}

// A copy has the numbers that were written before it was made.
TEST_F(EndsAtAnyTimeTest, ACopyFromBeforeTheMastersNumberIsKnownForOne) {
  const auto count = [](const auto& marks, std::size_t steps) {
    return std::ranges::count_if(marks, [&](std::size_t mark) { return mark <= steps; });
  };
  for (std::size_t end = 0; end <= kSteps; ++end) {
    for (std::size_t copied = 0; copied <= end; ++copied) {
      SCOPED_TRACE(fmt::format("copied after {} steps of {}", copied, end));
      Run(kSteps);
      Run(end, ~0ULL, copied);
      EXPECT_EQ(Known(copy_), count(kStores, end) <= count(kWrites, copied));
    }
  }
}

}  // namespace
}  // namespace kvcove::owner
