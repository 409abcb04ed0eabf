// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/reset_keeper.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "kvcove/base/log.h"
#include "kvcove/base/random.h"

namespace kvcove::requester {
namespace {

using std::chrono::milliseconds;

// A master as a session's resets see it: it can be cut off, and proves everything else.
class ResetMaster {
 public:
  Status Reset(const wire::ResetRequest& request) {
    const MutexLock lock(mutex_);
    ++asked_;
    if (code_ != Code::kOk) return Fail(code_, "as told");
    proven_.push_back(request);
    return {};
  }
  void Answer(bool answers) { AnswerWith(answers ? Code::kOk : Code::kUnavailable); }
  void AnswerWith(Code code) {
    const MutexLock lock(mutex_);
    code_ = code;
  }
  int asked() const {
    const MutexLock lock(mutex_);
    return asked_;
  }
  std::vector<wire::ResetRequest> proven() const {
    const MutexLock lock(mutex_);
    return proven_;
  }
  // Everything of the namespace was voided for an engine that has other weights now.
  bool VoidedAll() const {
    return std::ranges::any_of(proven(), [](const wire::ResetRequest& request) {
      return request.version.value_or("").empty() && !request.engine.empty();
    });
  }

 private:
  mutable Mutex mutex_;
  Code code_ KVCOVE_GUARDED_BY(mutex_) = Code::kOk;
  int asked_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::vector<wire::ResetRequest> proven_ KVCOVE_GUARDED_BY(mutex_);
};

wire::ResetRequest EngineReset(std::optional<std::string> version = std::nullopt) {
  return {.name = "n", .engine = "e", .version = std::move(version), .id = RandomId()};
}

class ResetKeeperTest : public testing::Test {
 protected:
  bool OpensAgain() {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (keeper_.closed() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    return !keeper_.closed();
  }

  // Returns when a reset that is repeated would have been, three times.
  static void AwaitRepetitions() {
    ResetMaster silent;
    silent.Answer(false);
    ResetKeeper other(
        "other",
        [&](const wire::ResetRequest& request, std::int64_t) { return silent.Reset(request); },
        SystemClock::Instance());
    EXPECT_FALSE(other.Reset(EngineReset(), milliseconds(10)));
    while (silent.asked() < 4) std::this_thread::yield();  // the test's own limit ends it
  }

  ResetMaster master_;
  ResetKeeper keeper_{
      "n",
      [this](const wire::ResetRequest& request, std::int64_t) { return master_.Reset(request); },
      SystemClock::Instance()};
};

TEST_F(ResetKeeperTest, AResetThatWasNotProvenIsRepeatedUnderItsId) {
  master_.Answer(false);
  const wire::ResetRequest request = EngineReset();
  EXPECT_EQ(keeper_.Reset(request, milliseconds(10)).error().code, Code::kNotProven);
  EXPECT_TRUE(keeper_.closed());
  master_.Answer(true);
  ASSERT_TRUE(OpensAgain());
  EXPECT_EQ(master_.proven().front().id, request.id);
}

// Nothing was voided, so the session is not as it was; and the answer would be the same again.
TEST_F(ResetKeeperTest, AResetThatIsRefusedClosesTheSessionAndIsNotRepeated) {
  for (const Code refused : {Code::kDenied, Code::kInvalid}) {
    master_.AnswerWith(refused);
    const int before = master_.asked();
    EXPECT_EQ(keeper_.Reset(EngineReset(), milliseconds(10)).error().code, refused);
    EXPECT_TRUE(keeper_.closed());
    AwaitRepetitions();
    EXPECT_EQ(master_.asked(), before + 1);
    master_.Answer(true);
    EXPECT_TRUE(keeper_.Reset(EngineReset(), milliseconds(30'000)));
    EXPECT_FALSE(keeper_.closed());
  }
}

// The token was changed meanwhile.
TEST_F(ResetKeeperTest, ARepetitionThatIsRefusedIsTheLastOne) {
  SetLogLevel(LogLevel::kOff);
  master_.Answer(false);
  EXPECT_EQ(keeper_.Reset(EngineReset(), milliseconds(10)).error().code, Code::kNotProven);
  master_.AnswerWith(Code::kDenied);
  const int before = master_.asked();
  while (master_.asked() == before) std::this_thread::yield();  // the test's own limit ends it
  AwaitRepetitions();
  EXPECT_LE(master_.asked(), before + 2) << "one may have been under way";
  EXPECT_TRUE(keeper_.closed());
  EXPECT_EQ(keeper_.Reset(EngineReset("v2"), milliseconds(10)).error().code, Code::kDenied);
  master_.Answer(true);
  EXPECT_TRUE(keeper_.Reset(EngineReset(), milliseconds(30'000)));
  EXPECT_FALSE(keeper_.closed());
  SetLogLevel(LogLevel::kWarn);
}

TEST_F(ResetKeeperTest, ALaterResetOfEverythingCoversAnEarlierOne) {
  master_.Answer(false);
  EXPECT_FALSE(keeper_.Reset(EngineReset("v1"), milliseconds(10)));
  const wire::ResetRequest all = EngineReset();
  EXPECT_FALSE(keeper_.Reset(all, milliseconds(10)));
  master_.Answer(true);
  ASSERT_TRUE(OpensAgain());
  EXPECT_TRUE(master_.VoidedAll());
}

// A change of version erases nothing: what the earlier reset meant to void would still be found.
TEST_F(ResetKeeperTest, AChangeOfVersionThatIsProvenDoesNotStandForAnEarlierReset) {
  master_.Answer(false);
  EXPECT_FALSE(keeper_.Reset(EngineReset(), milliseconds(10)));
  master_.Answer(true);
  EXPECT_TRUE(keeper_.Reset(EngineReset("v2"), milliseconds(30'000)));
  ASSERT_TRUE(OpensAgain());
  EXPECT_TRUE(master_.VoidedAll());
}

TEST_F(ResetKeeperTest, AChangeOfVersionThatIsNotProvenDoesNotReplaceAnEarlierReset) {
  master_.Answer(false);
  EXPECT_FALSE(keeper_.Reset(EngineReset(), milliseconds(10)));
  EXPECT_FALSE(keeper_.Reset(EngineReset("v2"), milliseconds(10)));
  master_.Answer(true);
  ASSERT_TRUE(OpensAgain());
  EXPECT_TRUE(master_.VoidedAll());
}

// Other engines follow an operator's reset at once, with whatever weights they have.
TEST_F(ResetKeeperTest, AnOperatorsResetDoesNotStandForAnEngines) {
  master_.Answer(false);
  EXPECT_FALSE(keeper_.Reset(EngineReset(), milliseconds(10)));
  master_.Answer(true);
  EXPECT_TRUE(keeper_.Reset({.name = "n", .engine = {}, .version = {}, .id = RandomId()},
                            milliseconds(30'000)));
  ASSERT_TRUE(OpensAgain());
  EXPECT_TRUE(master_.VoidedAll());
}

}  // namespace
}  // namespace kvcove::requester
