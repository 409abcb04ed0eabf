// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/link/outbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <thread>

namespace kvcove::owner {
namespace {

using testing::ElementsAre;

class OutboxTest : public testing::Test {
 protected:
  static std::vector<Pending> Puts(std::vector<std::uint64_t> reservations) {
    std::vector<Pending> pending;
    for (const std::uint64_t one : reservations)
      pending.push_back({.reservation = one, .item = {}});
    return pending;
  }
  void Add(std::vector<std::uint64_t> reservations) {
    outbox_.Add(Puts(std::move(reservations)), [this](std::span<const Code> codes) {
      outcomes_.emplace_back(codes.begin(), codes.end());
    });
  }
  // The first reservation of each listing.
  static std::vector<std::uint64_t> FirstOf(const std::vector<Listing>& listings) {
    std::vector<std::uint64_t> first;
    for (const Listing& one : listings) first.push_back(one.pending.front().reservation);
    return first;
  }
  std::vector<std::uint64_t> Queued() {
    std::vector<Listing> listings = outbox_.Take(~std::size_t{0});
    std::vector<std::uint64_t> first = FirstOf(listings);
    outbox_.Return(std::move(listings));
    return first;
  }
  FakeClock clock_;
  Outbox outbox_{clock_};
  std::vector<std::vector<Code>> outcomes_;
};

TEST_F(OutboxTest, ListingsAreTakenWholeAndGoBackToTheHead) {
  Add({1, 2, 3});
  Add({4});
  Add({5});
  std::vector<Listing> listings = outbox_.Take(2);
  EXPECT_THAT(FirstOf(listings), ElementsAre(1)) << "three items, as a listing is not cut";
  outbox_.Return(std::move(listings));
  EXPECT_THAT(FirstOf(outbox_.Take(4)), ElementsAre(1, 4));
  EXPECT_THAT(Queued(), ElementsAre(5));
}

TEST_F(OutboxTest, TheListLaneWaitsForAListingOrUntilItIsWoken) {
  EXPECT_FALSE(outbox_.Wait(kMillisecond));
  outbox_.Wake();
  EXPECT_FALSE(outbox_.Wait(3600 * kSecond)) << "woken before it waits";
  std::thread caller([this] { Add({1}); });
  EXPECT_TRUE(outbox_.Wait(3600 * kSecond));
  caller.join();
}

TEST_F(OutboxTest, ACallerGetsTheMastersAnswer) {
  std::thread lane([this] {
    while (!outbox_.Wait(kSecond)) {
    }
    outbox_.Take(1).front().done(std::vector<Code>{Code::kOk, Code::kExists});
  });
  EXPECT_THAT(outbox_.Await(Puts({1, 2}), clock_.NowNs() + kSecond),
              ElementsAre(Code::kOk, Code::kExists));
  lane.join();
}

TEST_F(OutboxTest, ACallerThatStopsWaitingLeavesItsListing) {
  EXPECT_THAT(outbox_.Await(Puts({1}), clock_.NowNs()), ElementsAre(Code::kNotListed));
  outbox_.SetMasterReachable(false);
  EXPECT_THAT(outbox_.Await(Puts({2}), clock_.NowNs() + kSecond), ElementsAre(Code::kNotListed));
  outbox_.SetMasterReachable(true);
  outbox_.EndWaits();
  EXPECT_THAT(outbox_.Await(Puts({3}), clock_.NowNs() + kSecond), ElementsAre(Code::kNotListed));
  std::vector<Listing> listings = outbox_.Take(3);
  EXPECT_THAT(FirstOf(listings), ElementsAre(1, 2, 3));
  for (const Listing& one : listings) one.done(std::vector<Code>{Code::kOk});  // to nobody
}

TEST_F(OutboxTest, ACallWithoutAThreadIsAnsweredOnce) {
  std::vector<std::vector<Code>> answers;
  const auto note = [&](std::vector<Code> codes) { answers.push_back(std::move(codes)); };
  outbox_.AddThen(Puts({1}), clock_.NowNs() + 1, note);
  outbox_.AddThen(Puts({2, 3}), clock_.NowNs() + kSecond, note);
  outbox_.EndOverdue();
  EXPECT_TRUE(answers.empty());
  clock_.AdvanceNs(1);
  outbox_.EndOverdue();
  EXPECT_THAT(answers, ElementsAre(ElementsAre(Code::kNotListed)));
  std::vector<Listing> listings = outbox_.Take(3);
  listings[0].done(std::vector<Code>{Code::kOk});
  listings[1].done(std::vector<Code>{Code::kOk, Code::kStale});
  EXPECT_THAT(answers,
              ElementsAre(ElementsAre(Code::kNotListed), ElementsAre(Code::kOk, Code::kStale)));
  outbox_.EndWaits();
  outbox_.AddThen(Puts({4}), clock_.NowNs() + kSecond, note);
  EXPECT_EQ(answers.size(), 3U) << "at once, as the janitor may have looked before";
  outbox_.ResumeWaits();
  outbox_.AddThen(Puts({5}), clock_.NowNs() + kSecond, note);
  EXPECT_EQ(answers.size(), 3U);
}

TEST_F(OutboxTest, ATrimCompletesWhatWasEvictedAndKeepsTheOrder) {
  for (std::uint64_t i = 1; i <= 100; ++i) Add({i});
  std::size_t looks = 0;
  const std::set<std::uint64_t> waiting = {3, 50, 99};
  const auto waits = [&](const Pending& pending) {
    ++looks;
    return waiting.contains(pending.reservation);
  };
  outbox_.Trim(100, waits);
  EXPECT_EQ(looks, 0U) << "64 and half of the queue are not worth a look at all of it";
  outbox_.Trim(15, waits);
  EXPECT_EQ(looks, 100U);
  EXPECT_THAT(Queued(), ElementsAre(3, 50, 99));
  EXPECT_EQ(outcomes_, std::vector<std::vector<Code>>(97, {Code::kNoSpace}));
  outbox_.Trim(65, waits);
  EXPECT_EQ(looks, 100U) << "counted from the last trim on";
}

TEST_F(OutboxTest, ATrimLooksAtListingsThatWereAwayWhenTheirPutsWereEvicted) {
  for (std::uint64_t i = 1; i <= 100; ++i) Add({i});
  const auto waits = [](const Pending& pending) { return pending.reservation == 3; };
  std::vector<Listing> taken = outbox_.Take(~std::size_t{0});
  outbox_.Trim(120, waits);
  outbox_.Return(std::move(taken));
  outbox_.Trim(0, waits);
  EXPECT_THAT(Queued(), ElementsAre(3));
}

TEST_F(OutboxTest, CallersOfAnotherProcessAreNotCalled) {
  Add({1});
  outbox_.ForgetCallers();
  outbox_.Take(1).front().done(std::vector<Code>{Code::kOk});
  EXPECT_TRUE(outcomes_.empty());
}

}  // namespace
}  // namespace kvcove::owner
