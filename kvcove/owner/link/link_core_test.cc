// SPDX-License-Identifier: Apache-2.0
// What an owner asks its master, and in which order it does what the master says.
#include "kvcove/owner/link/link_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "kvcove/owner/link/link_core_fixture.h"

namespace kvcove::owner {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class LinkCoreTest : public LinkCoreFixture {};

// ---- hello

TEST_F(LinkCoreTest, AFreshIdentitySaysSoUntilItIsWelcomed) {
  EXPECT_TRUE(Idle(Lane::kWatch));
  EXPECT_TRUE(Idle(Lane::kRemovals));
  EXPECT_TRUE(Idle(Lane::kList));
  const wire::OwnerHello first = AskHello();
  EXPECT_TRUE(first.fresh);
  EXPECT_EQ(first.pool, Id128{});
  EXPECT_EQ(first.seen, wire::Position{});
  EXPECT_EQ(first.number, wire::kNoOwner);
  Fail(Lane::kLease, Code::kTimeout);
  EXPECT_TRUE(AskHello().fresh) << "the answer may be lost";
  AnswerHello(Welcome(7));
  core_.Disconnected();
  const wire::OwnerHello again = AskHello();
  EXPECT_FALSE(again.fresh);
  EXPECT_EQ(again.pool, kPool);
  EXPECT_EQ(again.incarnation, kIncarnation);
  EXPECT_EQ(again.seen, (wire::Position{.term = kTerm, .tag = 44, .revision = 100}));
  EXPECT_EQ(again.number, 3);
  EXPECT_EQ(again.epoch, 7U);
}

TEST_F(LinkCoreTest, TheHighestRevisionThatWasHeardOfIsShownToTheNextMaster) {
  Join();
  AskRenew();
  Grant();
  core_.Disconnected();
  EXPECT_EQ(AskHello().seen.revision, 120U);
}

// Else a master that has lost the changes, as after a control file that was rolled back, does not
// notice, and this owner calls every put stale for ever.
TEST_F(LinkCoreTest, ChangesOfAnEarlierMasterThatComeDuringAHelloAreShownByTheNext) {
  Join();
  Ask(Lane::kWatch, wire::Method::kWatch);
  core_.Disconnected();
  EXPECT_EQ(AskHello().seen.revision, 100U);
  core_.Answer(Lane::kWatch,
               wire::Encode(Changes(0, 130, {{.slot = 1, .generation = 9, .name = "acme"}})));
  wire::OwnerWelcome next = Welcome(8);
  next.position = {.term = kTerm + 1, .tag = 45, .revision = 110};
  AnswerHello(next);
  const wire::Position seen{.term = kTerm, .tag = 44, .revision = 130};
  EXPECT_EQ(AskHello().seen, seen);
  AnswerHello(next);
  EXPECT_EQ(AskRenew().epoch, 8U) << "a master that knows them is followed";
}

TEST_F(LinkCoreTest, AStaleRenewalSaysHelloAgain) {
  Join();
  AskRenew();
  Fail(Lane::kLease, Code::kStale);
  EXPECT_EQ(AskHello().epoch, 7U) << "the epoch may go on";
}

// It was away for so long that its number is another tenant's owner's.
TEST_F(LinkCoreTest, ADeniedRenewalSaysHelloAgain) {
  Join();
  AskRenew();
  Fail(Lane::kLease, Code::kDenied);
  EXPECT_EQ(AskHello().epoch, 7U);
}

TEST_F(LinkCoreTest, APredecessorIsNamedUntilAMasterHasHeardOfIt) {
  const Id128 before{.high = 100, .low = 9};
  Join();
  core_.NamePredecessor(before);
  EXPECT_EQ(AskHello().predecessor, before);
  Fail(Lane::kLease, Code::kUnavailable);
  EXPECT_EQ(core_.predecessor(), before);
  EXPECT_EQ(AskHello().predecessor, before);
  AnswerHello(Welcome(7, /*resumed=*/true));
  EXPECT_EQ(core_.predecessor(), Id128{});
  AskRenew();
  core_.Disconnected();
  EXPECT_EQ(AskHello().predecessor, Id128{});
}

TEST_F(LinkCoreTest, APredecessorThatIsFoundDuringAHelloIsNamedByTheNext) {
  const Id128 before{.high = 100, .low = 9};
  EXPECT_EQ(AskHello().predecessor, Id128{});
  core_.NamePredecessor(before);
  AnswerHello(Welcome(7));
  EXPECT_EQ(core_.predecessor(), before);
  EXPECT_EQ(AskHello().predecessor, before);
}

TEST_F(LinkCoreTest, OtherErrorsAreAskedAgain) {
  Join();
  AskRenew();
  Fail(Lane::kLease, Code::kTimeout);
  EXPECT_EQ(AskRenew().epoch, 7U);
}

TEST_F(LinkCoreTest, GoodbyeIsSaidByAKnownOwnerOnly) {
  EXPECT_FALSE(core_.Goodbye());
  Join();
  ASSERT_TRUE(core_.Goodbye());
  const auto goodbye = wire::DecodeWatch(Bytes(core_.Goodbye()->body));
  EXPECT_EQ(goodbye->number, 3);
  EXPECT_EQ(goodbye->epoch, 7U);
}

TEST_F(LinkCoreTest, OtherLanesAskNothingUntilAMasterHasAnsweredHello) {
  Join();
  core_.Disconnected();
  EXPECT_TRUE(core_.AwaitsWelcome());
  target_.Put(1);
  for (const Lane lane : {Lane::kWatch, Lane::kRemovals, Lane::kList}) EXPECT_TRUE(Idle(lane));
  AskHello();
  for (const Lane lane : {Lane::kWatch, Lane::kRemovals, Lane::kList}) EXPECT_TRUE(Idle(lane));
  AnswerHello(Welcome(7, /*resumed=*/true));
  EXPECT_FALSE(core_.AwaitsWelcome());
  Ask(Lane::kWatch, wire::Method::kWatch);
  AskRemovals();
  AskList();
}

// ---- the lease

TEST_F(LinkCoreTest, WithoutALeaseUntilAllIsToldItRenewsNoMoreOftenThanWithOne) {
  Join();
  target_.objects = 1;
  AskRenew();
  Grant(Changes(0, 0), {}, /*granted=*/false);
  EXPECT_EQ(core_.Next(Lane::kLease).wait_ns, kRenewalNs);
  AskRenew();
  Grant(Changes(0, 0), {}, /*granted=*/false);
  // Reported before the shell waits: it does not.
  AnswerList(AskList());
  AnswerList(AskList());
  ASSERT_EQ(target_.reported, 1);
  EXPECT_TRUE(core_.Next(Lane::kLease).call.has_value());
}

TEST_F(LinkCoreTest, HiddenSlotsAndGenerationsComeBeforeTheDeadline) {
  Join();
  AskRenew();
  Grant(Changes(0, 5, {{.slot = 1, .generation = 9, .name = "acme"}}), {4, 6});
  EXPECT_THAT(target_.said, ElementsAre("hide 4 6", "publish 1=9", "lease"));
  EXPECT_TRUE(target_.master_reachable);
}

TEST_F(LinkCoreTest, TheDeadlineCountsFromWhenTheRenewalWasSent) {
  Join();
  const std::int64_t sent_ns = clock_.NowNs();
  AskRenew();
  clock_.AdvanceNs(400 * kMillisecond);
  Grant();
  EXPECT_EQ(target_.lease_ns, sent_ns + kSecond);
}

TEST_F(LinkCoreTest, ARenewalSaysWhetherTheLastLeaseStillRuns) {
  Join();
  EXPECT_FALSE(AskRenew().leased) << "there was none";
  Grant();
  clock_.AdvanceNs(kRenewalNs);
  EXPECT_TRUE(Idle(Lane::kLease));
  EXPECT_TRUE(AskRenew().leased);
  Fail(Lane::kLease, Code::kUnavailable);
  clock_.AdvanceNs(kSecond - kRenewalNs - 1);
  core_.Disconnected();
  AskHello();
  AnswerHello(Welcome(9));
  EXPECT_TRUE(AskRenew().leased) << "whichever master gave it";
  Fail(Lane::kLease, Code::kTimeout);
  clock_.AdvanceNs(1);
  EXPECT_FALSE(AskRenew().leased) << "something may have been proven without this owner";
}

TEST_F(LinkCoreTest, TheOwnerHearsWhetherItsVoidDisksAreStored) {
  Join();
  target_.asks_void = true;
  for (const bool stored : {false, true, false}) {
    EXPECT_TRUE(AskRenew().disks_void);
    core_.Answer(Lane::kLease, wire::Encode(wire::RenewReply{.granted = true,
                                                             .lease_ns = kSecond,
                                                             .hidden = {},
                                                             .changes = Changes(0, 0),
                                                             .disks_void = stored}));
    EXPECT_EQ(target_.disks_void, stored);
  }
}

TEST_F(LinkCoreTest, ALeaseOfAnotherIncarnationDoesNotCountAsOneThatRuns) {
  Join();
  (void)AskRenew();
  Grant();
  core_.Disconnected();
  AskHello();
  wire::OwnerWelcome welcome = Welcome(9);
  welcome.incarnation = {.high = 3, .low = 3};
  AnswerHello(welcome);
  EXPECT_FALSE(AskRenew().leased);
}

TEST_F(LinkCoreTest, ALeaseThatWaitsForOtherMembersIsAskedForAgainSoon) {
  Join();
  (void)AskRenew();
  core_.Answer(Lane::kLease,
               wire::Encode(wire::RenewReply{
                   .lease_ns = kSecond, .hidden = {}, .changes = Changes(0, 0), .doubted = true}));
  EXPECT_EQ(target_.lease_ns, -1);
  const std::int64_t wait_ns = core_.Next(Lane::kLease).wait_ns;
  EXPECT_GT(wait_ns, 0) << "a thousand owners may be waiting";
  EXPECT_LE(wait_ns, kRenewalNs / 4) << "nobody reads until then";
}

TEST_F(LinkCoreTest, ARenewalNamesWhatIsPublished) {
  Join();
  AskRenew();
  Grant(Changes(0, 5, {{.slot = 1, .generation = 9, .name = "acme"}}), {}, /*granted=*/false);
  EXPECT_THAT(target_.said, ElementsAre("publish 1=9")) << "no lease";
  const wire::RenewRequest next = AskRenew();
  EXPECT_EQ(next.table, 5U);
  EXPECT_EQ(next.objects, 42U);
  EXPECT_FALSE(next.told);
}

TEST_F(LinkCoreTest, APageThatIsNotTheLastIsNotAcknowledged) {
  Join();
  AskRenew();
  wire::Changes page = Changes(0, 5, {{.slot = 1, .generation = 9, .name = "acme"}});
  page.more = true;
  Grant(page, {}, /*granted=*/false);
  const wire::RenewRequest next = AskRenew();
  EXPECT_EQ(next.table, 5U);
  EXPECT_TRUE(next.partial);
  EXPECT_TRUE(wire::DecodeWatch(Bytes(Ask(Lane::kWatch, wire::Method::kWatch).body))->partial);
  Grant(Changes(5, 7, {{.slot = 2, .generation = 9, .name = "acme"}}), {}, /*granted=*/false);
  const wire::RenewRequest last = AskRenew();
  EXPECT_EQ(last.table, 7U);
  EXPECT_FALSE(last.partial);
}

TEST_F(LinkCoreTest, HiddenSlotsAreSetWhenTheyChange) {
  Join();
  AskRenew();
  Grant(Changes(0, 0), {4});
  AskRenew();
  Grant(Changes(0, 0), {4});
  AskRenew();
  Grant();
  EXPECT_THAT(target_.said, ElementsAre("hide 4", "lease", "lease", "hide", "lease"));
}

// A reset ends the barrier: what was removed from the slot is under the old generation, and the
// last lease is running.
TEST_F(LinkCoreTest, ASlotIsShownAgainOnlyUnderTheGenerationThatEndedItsBarrier) {
  Join();
  AskRenew();
  Grant(Changes(0, 4, {{.slot = 5, .generation = 7, .name = "m"}}), {5});
  target_.said.clear();
  AskRenew();
  wire::Changes first = Changes(4, 5, {{.slot = 1, .generation = 8, .name = "n"}});
  first.more = true;
  Grant(first, {}, /*granted=*/false);
  AskRenew();
  Grant(Changes(5, 6, {{.slot = 5, .generation = 9, .name = "m"}}), {}, /*granted=*/false);
  AskRenew();
  Grant(Changes(6, 6));
  EXPECT_EQ(target_.said,
            (std::vector<std::string>{"publish 1=8", "publish 5=9", "hide", "lease"}));
}

TEST_F(LinkCoreTest, AnOwnerThatMustTellFirstGivesItsLeaseUp) {
  Join();
  AskRenew();
  Grant();
  core_.Disconnected();
  AskHello();
  wire::OwnerWelcome welcome = Welcome(8);
  welcome.tell_first = true;
  AnswerHello(welcome);
  EXPECT_EQ(target_.lease_ns, 0);
}

TEST_F(LinkCoreTest, AnOwnerThatWasOvertakenBeginsAnotherEpoch) {
  Join();
  AskRenew();
  core_.Answer(Lane::kLease, wire::Encode(wire::RenewReply{
                                 .hidden = {}, .changes = Changes(0, 0), .tell_again = true}));
  EXPECT_EQ(AskHello().epoch, 0U);
}

// ---- generations

TEST_F(LinkCoreTest, AWatchPublishesAndAcknowledges) {
  Join();
  Ask(Lane::kWatch, wire::Method::kWatch);
  core_.Answer(Lane::kWatch,
               wire::Encode(Changes(0, 5, {{.slot = 1, .generation = 9, .name = "acme"}})));
  EXPECT_THAT(target_.said, ElementsAre("publish 1=9"));
  const auto next = wire::DecodeWatch(Bytes(Ask(Lane::kWatch, wire::Method::kWatch).body));
  EXPECT_EQ(next->table, 5U);
}

TEST_F(LinkCoreTest, ChangesThatCameOverTheOtherLaneAreNotAppliedTwice) {
  Join();
  const wire::Changes first = Changes(0, 5, {{.slot = 1, .generation = 9, .name = "acme"}});
  const wire::Changes second = Changes(5, 6, {{.slot = 1, .generation = 10, .name = "acme"}});
  Ask(Lane::kWatch, wire::Method::kWatch);
  AskRenew();
  core_.Answer(Lane::kWatch, wire::Encode(first));
  Ask(Lane::kWatch, wire::Method::kWatch);
  core_.Answer(Lane::kWatch, wire::Encode(second));
  Grant(first, {}, /*granted=*/false);  // asked for before, answered late
  EXPECT_THAT(target_.said, ElementsAre("publish 1=9", "publish 1=10"));
  EXPECT_EQ(AskRenew().table, 6U);
}

TEST_F(LinkCoreTest, VersionsThatNobodyUsesAreMarked) {
  Join();
  Ask(Lane::kWatch, wire::Method::kWatch);
  wire::Changes changes = Changes(
      0, 5, {{.slot = 1, .generation = 9, .name = "a"}, {.slot = 2, .generation = 8, .name = "a"}});
  core_.Answer(Lane::kWatch, wire::Encode(changes));
  Ask(Lane::kWatch, wire::Method::kWatch);
  changes = Changes(5, 5);
  changes.naming = 77;
  changes.names_changed = true;
  changes.unnamed = {2};
  core_.Answer(Lane::kWatch, wire::Encode(changes));
  EXPECT_THAT(target_.said, ElementsAre("publish 1=9 2=8", "publish 2=8 unnamed"));
  const auto next = wire::DecodeWatch(Bytes(Ask(Lane::kWatch, wire::Method::kWatch).body));
  EXPECT_EQ(next->naming, 77U);
}

TEST_F(LinkCoreTest, AnotherIncarnationVoidsEverything) {
  Join();
  AskRenew();
  Grant(Changes(0, 5, {{.slot = 1, .generation = 9, .name = "acme"}}));
  AskRenew();
  wire::Changes changes = Changes(5, 8, {{.slot = 1, .generation = 0, .name = ""}});
  changes.incarnation = {.high = 3, .low = 3};
  Grant(changes, {}, /*granted=*/false);
  AskHello();
  target_.said.clear();
  wire::OwnerWelcome welcome = Welcome(8);
  welcome.incarnation = {.high = 3, .low = 3};
  AnswerHello(welcome);
  EXPECT_THAT(target_.said, ElementsAre("publish 1=0"));
  EXPECT_EQ(AskRenew().table, 0U);
}

// ---- forgotten

TEST_F(LinkCoreTest, AForgottenOwnerDropsEverythingBeforeItIsAnotherOne) {
  Join();
  AskRenew();
  Grant(Changes(
            0, 5,
            {{.slot = 1, .generation = 9, .name = "a"}, {.slot = 2, .generation = 8, .name = "b"}}),
        {2});
  const auto put = target_.Put(1);
  AskList();
  core_.Disconnected();
  const Id128 before = AskHello().owner;
  target_.said.clear();
  wire::OwnerWelcome welcome = Welcome(0);
  welcome.forgotten = true;
  AnswerHello(welcome);
  EXPECT_THAT(target_.said,
              ElementsAre("no lease", "publish 1=0 2=0", "drop void 1", "drop void 2", "hide"));
  EXPECT_TRUE(Idle(Lane::kWatch));
  EXPECT_TRUE(Idle(Lane::kList));
  EXPECT_EQ(target_.listings.size(), 1U) << "the put is answered under the next identity";
  const wire::OwnerHello next = AskHello();
  EXPECT_NE(next.owner, before);
  EXPECT_TRUE(next.fresh);
  EXPECT_EQ(next.pool, kPool);
  EXPECT_EQ(next.seen, wire::Position{}) << "it has seen nothing of the store that this is";
  EXPECT_EQ(next.epoch, 0U);
}

// ---- with a disk

TEST_F(LinkCoreTest, AnOwnerWithADiskComesBackAsWhatItWas) {
  const OwnerFacts before{.identity = {.high = 100, .low = 1},
                          .pool = kPool,
                          .incarnation = kIncarnation,
                          .seen = {.term = 3, .tag = 33, .revision = 90}};
  LinkCore core(target_,
                {.owner = before.identity,
                 .process = {.high = 200, .low = 2},
                 .address = "h:1",
                 .socket = {},
                 .host = "h",
                 .tenant = {},
                 .disk = true,
                 .before = before},
                kRenewalNs, clock_);
  const auto call = core.Next(Lane::kLease).call;
  ASSERT_TRUE(call);
  const auto hello = wire::DecodeOwnerHello(Bytes(call->body));
  EXPECT_FALSE(hello->fresh);
  EXPECT_TRUE(hello->disk);
  EXPECT_EQ(hello->seen, before.seen) << "a master that knows less has lost facts";
  EXPECT_EQ(hello->pool, kPool);
  EXPECT_EQ(hello->number, wire::kNoOwner) << "it is another process";
}

TEST_F(LinkCoreTest, WhatItFollowsIsNotedBeforeItIsAcknowledged) {
  Join();
  ASSERT_EQ(target_.followed.size(), 1U);
  EXPECT_EQ(target_.followed[0].first.seen.term, kTerm);
  AskRenew();
  Grant(Changes(0, 130, {{.slot = 1, .generation = 9, .name = "a"}}), {}, /*granted=*/false);
  ASSERT_EQ(target_.followed.size(), 2U);
  EXPECT_EQ(target_.followed[1].first.seen.revision, 130U);
  EXPECT_THAT(target_.followed[1].second, ElementsAre("publish 1=9"));
  EXPECT_EQ(target_.table_known, 1);
  EXPECT_EQ(AskRenew().table, 130U);
  wire::Changes more = Changes(130, 140, {{.slot = 2, .generation = 8, .name = "b"}});
  more.more = true;
  Grant(more, {}, /*granted=*/false);
  EXPECT_EQ(target_.table_known, 1) << "a part of it";
}

TEST_F(LinkCoreTest, AForgottenOwnerVoidsItsDiskBeforeTheSameGenerationsAreCurrentAgain) {
  Join();
  core_.Disconnected();
  AskHello();
  wire::OwnerWelcome welcome = Welcome(0);
  welcome.forgotten = true;
  AnswerHello(welcome);
  ASSERT_EQ(target_.followed.size(), 2U);
  EXPECT_NE(target_.followed[1].first.identity, target_.followed[0].first.identity);
  EXPECT_EQ(target_.followed[1].first.seen, wire::Position{});
  EXPECT_EQ(AskHello().owner, target_.followed[1].first.identity);
}

class LinkCoreOfADiskTest : public LinkCoreFixture {
 protected:
  LinkCoreOfADiskTest() : LinkCoreFixture(/*disk=*/true) {}
  void GrantAt(std::uint64_t revision) {
    AskRenew();
    core_.Answer(Lane::kLease, wire::Encode(wire::RenewReply{.granted = true,
                                                             .lease_ns = kSecond,
                                                             .revision = revision,
                                                             .hidden = {},
                                                             .changes = Changes(0, 0)}));
  }
  std::uint64_t FollowedRevision() const { return target_.followed.back().first.seen.revision; }
};

TEST_F(LinkCoreOfADiskTest, APositionThatARenewalShowsIsNotedOnceASecond) {
  Join();
  ASSERT_EQ(target_.followed.size(), 1U);
  GrantAt(120);
  ASSERT_EQ(target_.followed.size(), 2U) << "no generation has changed, but a barrier may have";
  EXPECT_EQ(FollowedRevision(), 120U);
  GrantAt(121);
  clock_.AdvanceNs(kSecond / 2);
  GrantAt(122);
  EXPECT_EQ(target_.followed.size(), 2U);
  clock_.AdvanceNs(kSecond / 2);
  GrantAt(122);
  ASSERT_EQ(target_.followed.size(), 3U);
  EXPECT_EQ(FollowedRevision(), 122U);
  clock_.AdvanceNs(2 * kSecond);
  GrantAt(122);
  EXPECT_EQ(target_.followed.size(), 3U) << "nothing new";
  GrantAt(125);
  GrantAt(126);
  ASSERT_TRUE(core_.Goodbye());
  EXPECT_EQ(FollowedRevision(), 126U) << "the last one is noted at the end";
}

TEST_F(LinkCoreOfADiskTest, TheOpeningsOfItsDirectoryAreNamedAndFollowed) {
  const Id128 now{.high = 7, .low = 1};
  const Id128 before{.high = 7, .low = 2};
  target_.openings = {.now = now, .before = before};
  const wire::OwnerHello hello = AskHello();
  EXPECT_EQ(hello.opening, now);
  EXPECT_EQ(hello.opening_before, before);
  wire::OwnerWelcome welcome = Welcome(7);
  welcome.opening = before;
  AnswerHello(welcome);
  EXPECT_THAT(target_.welcomed, ElementsAre(std::optional(before)));
  target_.told_opening = now;
  EXPECT_EQ(AskRenew().opening, now);
  core_.Answer(Lane::kLease, wire::Encode(wire::RenewReply{.granted = true,
                                                           .lease_ns = kSecond,
                                                           .hidden = {},
                                                           .changes = Changes(0, 0),
                                                           .opening = now}));
  EXPECT_EQ(target_.stored_opening, now);
  target_.told_opening = {.high = 7, .low = 3};
  EXPECT_EQ(wire::DecodeWatch(Bytes(core_.Goodbye()->body))->opening, target_.told_opening);
}

TEST_F(LinkCoreOfADiskTest, RenewalsHurryWhileTheDisksWaitForTheirOpening) {
  Join();
  target_.awaits_opening = true;
  AskRenew();
  Grant();
  EXPECT_EQ(core_.Next(Lane::kLease).wait_ns, kLanePauseNs);
  target_.awaits_opening = false;
  AskRenew();
  Grant();
  EXPECT_EQ(core_.Next(Lane::kLease).wait_ns, kRenewalNs);
}

// ---- answers of an earlier epoch

TEST_F(LinkCoreTest, AnswersOfAnEarlierEpochAreIgnored) {
  Join(7);
  AskRemovals();
  Ask(Lane::kWatch, wire::Method::kWatch);
  const auto put = target_.Put(1);
  const wire::ListRequest listing = AskList();
  core_.Disconnected();
  AskHello();
  AnswerHello(Welcome(8));
  target_.said.clear();
  AnswerRemovals({.drop = {9}, .drop_number = 5, .removals = {}, .upto = kFirst + 9});
  core_.Answer(Lane::kWatch,
               wire::Encode(Changes(0, 5, {{.slot = 1, .generation = 9, .name = "acme"}})));
  AnswerList(listing);
  EXPECT_THAT(target_.said, IsEmpty());
  EXPECT_THAT(*put, IsEmpty());
  EXPECT_EQ(AskRemovals().after, kFirst);
  const wire::ListRequest again = AskList();
  EXPECT_EQ(again.epoch, 8U);
  EXPECT_EQ(again.sequence, 1U);
  EXPECT_EQ(again.items.size(), 1U) << "the put is listed under the new epoch";
  AnswerList(again);
  EXPECT_THAT(*put, ElementsAre(Code::kOk));
}

// The lane has seen that its answer is of the current epoch, and waits for the welcome to end.
TEST_F(LinkCoreTest, ChangesOfAnEarlierMasterThatComeDuringAWelcomeAreIgnored) {
  Join();
  Ask(Lane::kWatch, wire::Method::kWatch);
  core_.Disconnected();
  AskHello();
  target_.said.clear();
  std::thread watch;
  target_.on_lease = [&] {
    if (watch.joinable()) return;
    watch = std::thread([&] {
      core_.Answer(Lane::kWatch, wire::Encode(Changes(0, 5, {{.slot = 1, .generation = 9}})));
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // for the thread to get there
  };
  wire::OwnerWelcome welcome = Welcome(8);
  welcome.tell_first = true;
  AnswerHello(welcome);
  watch.join();
  EXPECT_THAT(target_.said, ElementsAre("no lease"));
  EXPECT_EQ(AskRenew().table, 0U);
}

TEST_F(LinkCoreTest, ARenewalsAnswerOfAnEarlierEpochGivesNoLease) {
  Join(7);
  AskRenew();
  core_.Disconnected();
  AskHello();
  AnswerHello(Welcome(8));
  AskRenew();
  core_.Disconnected();
  AskHello();
  Fail(Lane::kLease, Code::kTimeout);
  EXPECT_EQ(target_.lease_ns, -1);
}

}  // namespace
}  // namespace kvcove::owner
