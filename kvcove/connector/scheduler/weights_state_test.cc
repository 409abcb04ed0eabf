// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/scheduler/weights_state.h"

#include <gtest/gtest.h>

#include "kvcove/base/clock.h"

namespace kvcove::connector {
namespace {

using Change = WeightsState::Change;

class WeightsStateTest : public testing::Test {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kOff);
    options_.shape.tp = 2;
    options_.fingerprint_timeout = std::chrono::milliseconds(10);
    Start(VersionSource::kFingerprint);
  }
  void TearDown() override { SetLogLevel(LogLevel::kWarn); }
  void Start(VersionSource versions) {
    options_.versions = versions;
    state_.emplace(options_, 0);
  }
  // A rank's answer to question `asked`; it has seen `changes` changes, the last of them before
  // the fingerprint.
  Change Report(std::uint32_t rank, std::uint64_t asked, const std::string& fingerprint,
                std::uint64_t changes = 0) {
    connector::Report report;
    report.rank = rank;
    report.weight_changes = changes;
    report.fingerprint_asked = asked;
    report.fingerprint = fingerprint;
    report.fingerprint_changes = changes;
    return Take(report);
  }
  Change Take(const connector::Report& report) {
    LinesAfterLock lines;
    const Change change = state_->TakeChanges(report, 0);
    return change == Change::kNone ? state_->TakeFingerprint(report, 0, lines) : change;
  }
  Change StartWith(const std::vector<std::string>& fingerprints) {
    LinesAfterLock lines;
    return state_->StartWith(fingerprints, 0, lines);
  }
  Change SetVersion(std::string_view version) {
    LinesAfterLock lines;
    return state_->SetVersion(version, lines);
  }
  Change SetPeers(std::uint64_t number, const std::vector<std::string>& peers, bool alone = false) {
    LinesAfterLock lines;
    return state_->SetPeers(number, peers, alone, 0, lines);
  }

  SchedulerOptions options_;
  std::optional<WeightsState> state_;
};

TEST_F(WeightsStateTest, TheWeightsAreKnownOnceAllRanksHaveAnswered) {
  EXPECT_TRUE(state_->awaited());
  EXPECT_TRUE(state_->AsksAtOnce());
  EXPECT_EQ(state_->TakeQuestion(), 1U);
  EXPECT_EQ(state_->TakeQuestion(), 0U) << "ranks are asked once";
  EXPECT_FALSE(state_->AsksAtOnce());
  EXPECT_TRUE(state_->MayWait(9 * kMillisecond));
  EXPECT_FALSE(state_->MayWait(10 * kMillisecond));
  EXPECT_EQ(Report(0, 1, "a"), Change::kNone);
  EXPECT_FALSE(state_->known());
  EXPECT_EQ(Report(1, 1, "b"), Change::kFirst);
  EXPECT_TRUE(state_->known());
  EXPECT_FALSE(state_->version().empty());
  EXPECT_EQ(state_->VersionOf("salt"), state_->version());
  EXPECT_EQ(state_->ResetVersion(), state_->version());
}

TEST_F(WeightsStateTest, AChangeThatARankSawAsksAllRanksAgain) {
  ASSERT_EQ(StartWith({"a", "b"}), Change::kFirst);
  const std::string before = state_->version();
  EXPECT_FALSE(state_->TakeMoved());
  EXPECT_EQ(Report(0, 0, {}, /*changes=*/1), Change::kUnsettled);
  EXPECT_TRUE(state_->TakeMoved());
  EXPECT_FALSE(state_->TakeMoved());
  EXPECT_EQ(state_->TakeQuestion(), 2U);
  EXPECT_EQ(Report(1, 1, "b"), Change::kNone) << "an answer to the question before";
  EXPECT_EQ(Report(0, 2, "c", 1), Change::kNone);
  EXPECT_EQ(Report(1, 2, "b"), Change::kOther);
  EXPECT_NE(state_->version(), before);
}

TEST_F(WeightsStateTest, WeightsThatCameBackAreNoOthers) {
  ASSERT_EQ(StartWith({"a", "b"}), Change::kFirst);
  EXPECT_EQ(state_->Changing(), Change::kUnsettled);
  EXPECT_TRUE(state_->changing());
  EXPECT_EQ(Report(0, 0, {}, 1), Change::kNone) << "it is known that they change";
  state_->Changed(0);
  EXPECT_EQ(state_->TakeQuestion(), 2U);
  EXPECT_EQ(Report(0, 2, "a", 1), Change::kNone);
  EXPECT_EQ(Report(1, 2, "b"), Change::kNone);
  EXPECT_TRUE(state_->known());
}

TEST_F(WeightsStateTest, AFingerprintOfBeforeAChangeDoesNotCount) {
  connector::Report report;
  report.fingerprint_asked = state_->TakeQuestion();
  report.fingerprint = "a";
  report.fingerprint_changes = 1;  // of a report that was overtaken
  EXPECT_EQ(Take(report), Change::kNone);
  EXPECT_EQ(state_->TakeQuestion(), 2U) << "the ranks are asked again";
}

TEST_F(WeightsStateTest, AFingerprintThatCannotBeReadLeavesThemUnknown) {
  EXPECT_EQ(StartWith({"a;4;nonsense", "b"}), Change::kNone);
  EXPECT_TRUE(state_->awaited());
  EXPECT_EQ(StartWith({"a"}), Change::kNone) << "not all ranks";
  EXPECT_TRUE(state_->awaited());
}

TEST_F(WeightsStateTest, ExpertsOnOtherEnginesAreAwaited) {
  EXPECT_EQ(StartWith({"a;4;0.0=p", "b;4;0.1=q"}), Change::kNone);
  EXPECT_FALSE(state_->known());
  const auto own = state_->TakesPeers();
  ASSERT_TRUE(own);
  const std::string peer = TextOf(*Joined({"a;4;0.2=r", "b;4;0.3=s"}));
  EXPECT_EQ(SetPeers(own->number + 1, {peer}), Change::kNone) << "of another question";
  EXPECT_FALSE(state_->known());
  EXPECT_EQ(SetPeers(own->number, {peer}), Change::kFirst);
  EXPECT_EQ(SetPeers(own->number, {}), Change::kUnsettled) << "the peer's weights change";
  EXPECT_TRUE(state_->awaited());
  EXPECT_EQ(SetPeers(own->number, {peer}), Change::kNone) << "they are the same again";
  EXPECT_TRUE(state_->known());
  EXPECT_EQ(SetPeers(own->number, {}, /*alone=*/true), Change::kOther);
  (void)state_->Changing();
  EXPECT_FALSE(state_->TakesPeers());
  EXPECT_EQ(SetPeers(own->number, {peer}), Change::kNone);
  EXPECT_TRUE(state_->changing());
  state_->Changed(0);
  EXPECT_TRUE(state_->AsksAtOnce()) << "the peers wait for this engine's experts";
}

TEST_F(WeightsStateTest, AnEngineSaysItsOwnVersion) {
  Start(VersionSource::kEngine);
  EXPECT_TRUE(state_->known());
  EXPECT_EQ(state_->ResetVersion(), std::nullopt);
  EXPECT_EQ(SetVersion("1"), Change::kFirst);
  EXPECT_EQ(state_->Changing(), Change::kUnsettled);
  state_->Changed(0);
  EXPECT_TRUE(state_->changing()) << "the version says that they are the new ones";
  EXPECT_EQ(SetVersion("1"), Change::kNone);
  EXPECT_TRUE(state_->known());
  EXPECT_EQ(SetVersion("2"), Change::kOther);
  EXPECT_EQ(state_->VersionOf("salt"), "2");
  EXPECT_EQ(StartWith({"a", "b"}), Change::kNone);
}

TEST_F(WeightsStateTest, ASaltIsARequestsVersion) {
  Start(VersionSource::kSalt);
  EXPECT_FALSE(state_->DifferFrom("1")) << "which weights are loaded is not known";
  EXPECT_EQ(SetVersion("1"), Change::kNone);
  EXPECT_EQ(state_->VersionOf("2"), "2");
  EXPECT_FALSE(state_->DifferFrom("1"));
  EXPECT_TRUE(state_->DifferFrom("2"));
  EXPECT_EQ(state_->Changing(), Change::kNone);
  EXPECT_TRUE(state_->known());
  EXPECT_EQ(state_->ResetVersion(), std::nullopt);
}

TEST_F(WeightsStateTest, WithoutVersionsAChangeIsNoticedAndNothingElse) {
  Start(VersionSource::kNone);
  EXPECT_EQ(Report(0, 0, {}, 1), Change::kNone);
  EXPECT_TRUE(state_->TakeMoved());
  EXPECT_EQ(state_->VersionOf("salt"), "");
  EXPECT_EQ(SetVersion("1"), Change::kNone);
  EXPECT_EQ(state_->VersionOf("salt"), "");
}

}  // namespace
}  // namespace kvcove::connector
