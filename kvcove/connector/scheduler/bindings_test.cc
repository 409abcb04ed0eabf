// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/scheduler/bindings.h"

#include <gtest/gtest.h>

#include "kvcove/base/clock.h"

namespace kvcove::connector {
namespace {

using std::chrono::milliseconds;

class BindingsTest : public testing::Test {
 protected:
  static constexpr milliseconds kLeft{5};

  void SetUp() override {
    SetLogLevel(LogLevel::kOff);
    options_.bind_in_thread = true;
    options_.bind_wait = milliseconds(100);
  }
  void TearDown() override { SetLogLevel(LogLevel::kWarn); }
  static Token Of(std::uint64_t generation) { return {.generation = generation}; }
  // The binder's next version, answered.
  Bindings::Answer Answer(const Result<Token>& token) {
    LinesAfterLock lines;
    const auto version = bindings_.Next();
    EXPECT_TRUE(version);
    return bindings_.Answered(version.value_or(""), token, lines);
  }
  Bindings::Answer EndCapture(const Result<Token>& token) {
    LinesAfterLock lines;
    return bindings_.EndCapture("v", token, 0, lines);
  }
  Bindings::Question Capture() { return bindings_.BeginCapture("v", kLeft, 0); }

  SchedulerOptions options_;
  Bindings bindings_{options_};
};

TEST_F(BindingsTest, AVersionWaitsForTheBinderAtFirst) {
  EXPECT_TRUE(bindings_.idle());
  EXPECT_TRUE(bindings_.Awaits("v", 0));
  EXPECT_TRUE(bindings_.TakeQueued());
  EXPECT_FALSE(bindings_.TakeQueued()) << "the binder is woken once";
  EXPECT_TRUE(bindings_.BindsNext());
  EXPECT_FALSE(Capture().ask) << "the engine's thread does not ask";
  const auto answer = Answer(Of(1));
  EXPECT_TRUE(answer.ends_waits);
  EXPECT_FALSE(answer.moved);
  EXPECT_FALSE(bindings_.Awaits("v", 0));
  const auto question = Capture();
  EXPECT_TRUE(question.ask);
  EXPECT_EQ(question.timeout, kLeft);
  EXPECT_EQ(EndCapture(Of(1)).token, Of(1));
  EXPECT_TRUE(bindings_.idle());
}

TEST_F(BindingsTest, NoVersionWaitsForEver) {
  EXPECT_TRUE(bindings_.Awaits("v", 0));
  EXPECT_TRUE(bindings_.Awaits("v", 99 * kMillisecond));
  EXPECT_FALSE(bindings_.Awaits("v", 100 * kMillisecond));
}

TEST_F(BindingsTest, AVersionIsQueuedOnce) {
  bindings_.Add("v", 0);
  bindings_.Add("v", 0);
  EXPECT_FALSE(Capture().ask);
  EXPECT_TRUE(bindings_.Next());
  EXPECT_FALSE(bindings_.Next());
}

TEST_F(BindingsTest, ANewGenerationIsNewsOnceAndNoneAfterAReset) {
  bindings_.Add("v", 0);
  (void)Answer(Of(1));
  ASSERT_TRUE(Capture().ask);
  EXPECT_TRUE(EndCapture(Of(2)).moved);
  EXPECT_FALSE(EndCapture(Of(2)).moved);
  bindings_.ForgetTokens();
  EXPECT_FALSE(EndCapture(Of(3)).moved) << "this engine has reset itself";
}

// Another engine may reset a version whose token is forgotten.
TEST_F(BindingsTest, WhereTokensAreForgottenTheirKvCountsAsOfBefore) {
  LinesAfterLock lines;
  bool moved = false;
  for (std::size_t i = 0; i < Bindings::kMostTokens; ++i) {
    moved = moved || bindings_.EndCapture("v" + std::to_string(i), Of(1), 0, lines).moved;
  }
  EXPECT_FALSE(moved);
  EXPECT_TRUE(bindings_.EndCapture("one more", Of(1), 0, lines).moved);
  EXPECT_FALSE(bindings_.EndCapture("v0", Of(2), 0, lines).moved) << "nothing of before is left";
  EXPECT_TRUE(bindings_.EndCapture("v0", Of(3), 0, lines).moved);
}

TEST_F(BindingsTest, APoolThatIsSilentSaidTheLastToken) {
  bindings_.Add("v", 0);
  (void)Answer(Of(1));
  (void)bindings_.TakeQueued();
  ASSERT_TRUE(Capture().ask);
  const auto answer = EndCapture(Fail(Code::kTimeout, ""));
  EXPECT_EQ(answer.token, Of(1));
  EXPECT_FALSE(answer.ends_waits);
  EXPECT_TRUE(bindings_.TakeQueued()) << "the binder asks now";
  const auto question = Capture();
  EXPECT_FALSE(question.ask);
  EXPECT_EQ(question.token, Of(1));
  EXPECT_FALSE(bindings_.Awaits("v", 0)) << "it was bound before";
}

TEST_F(BindingsTest, ATryThatFailsIsRepeatedButBringsNoToken) {
  bindings_.Add("v", 0);
  (void)Answer(Of(1));
  ASSERT_TRUE(Capture().ask);
  EXPECT_FALSE(EndCapture(Fail(Code::kClosed, "")).token) << "nobody knows which one is current";
  EXPECT_FALSE(Capture().token);
  EXPECT_FALSE(Answer(Fail(Code::kUnavailable, "")).ends_waits);
  EXPECT_TRUE(bindings_.BindsNext()) << "again";
}

TEST_F(BindingsTest, ARefusalIsFinalUntilAReset) {
  bindings_.Add("v", 0);
  EXPECT_TRUE(Answer(Fail(Code::kDenied, "")).ends_waits);
  EXPECT_TRUE(bindings_.idle()) << "it would be refused again";
  EXPECT_FALSE(bindings_.Awaits("v", 0));
  EXPECT_FALSE(Capture().ask);
  EXPECT_TRUE(bindings_.idle());
  bindings_.Forget();
  EXPECT_TRUE(bindings_.Awaits("v", 0));
  EXPECT_TRUE(bindings_.BindsNext());
}

TEST_F(BindingsTest, AnAnswerThatAResetOvertookDoesNotCount) {
  bindings_.Add("v", 0);
  const auto version = bindings_.Next();
  bindings_.Forget();
  LinesAfterLock lines;
  EXPECT_FALSE(bindings_.Answered(*version, Of(1), lines).ends_waits);
  EXPECT_TRUE(bindings_.Awaits("v", 0)) << "it is to be bound anew";
}

TEST_F(BindingsTest, AStepWithoutTimeUsesTheLastToken) {
  bindings_.Add("v", 0);
  (void)Answer(Of(1));
  const auto question = bindings_.BeginCapture("v", milliseconds(0), 0);
  EXPECT_FALSE(question.ask);
  EXPECT_EQ(question.token, Of(1));
}

TEST_F(BindingsTest, WithoutABinderTheFirstCallAsks) {
  options_.bind_in_thread = false;
  EXPECT_FALSE(bindings_.Awaits("v", 0));
  EXPECT_TRUE(Capture().ask);
  (void)EndCapture(Fail(Code::kTimeout, ""));
  EXPECT_FALSE(Capture().ask) << "later ones leave it to the next step's first call";
  EXPECT_TRUE(bindings_.Next());
}

TEST_F(BindingsTest, WhoSavesNothingAsksForNothing) {
  options_.save = false;
  EXPECT_FALSE(bindings_.Awaits("v", 0));
  bindings_.Add("v", 0);
  EXPECT_TRUE(bindings_.idle());
}

TEST_F(BindingsTest, VersionsComeBeforeNames) {
  bindings_.QueueNames(/*salts=*/false, kSecond);
  EXPECT_TRUE(bindings_.idle()) << "nothing has changed";
  bindings_.NamesChanged();
  bindings_.QueueNames(false, kSecond);
  EXPECT_TRUE(bindings_.TakeQueued());
  bindings_.Add("v", 0);
  EXPECT_TRUE(bindings_.BindsNext());
  (void)Answer(Of(1));
  EXPECT_FALSE(bindings_.BindsNext());
  EXPECT_TRUE(bindings_.idle());
  bindings_.BeginNaming(kSecond);
  EXPECT_FALSE(bindings_.NamesDue(false, 3 * kSecond)) << "nothing has changed since";
  EXPECT_FALSE(bindings_.NamesDue(/*salts=*/true, 2 * kSecond - 1)) << "too soon";
  EXPECT_TRUE(bindings_.NamesDue(/*salts=*/true, 2 * kSecond));
}

}  // namespace
}  // namespace kvcove::connector
