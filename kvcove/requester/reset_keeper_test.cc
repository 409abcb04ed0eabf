// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/reset_keeper.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "kvcove/base/random.h"

namespace kvcove::requester {
namespace {

using std::chrono::milliseconds;

// A master as a session's resets see it: it can be cut off, and proves everything else.
class FakeMaster {
 public:
  Status Reset(const wire::ResetRequest& request) {
    const MutexLock lock(mutex_);
    if (!answers_) return Fail(Code::kUnavailable, "cut off");
    proven_.push_back(request);
    return {};
  }
  void Answer(bool answers) {
    const MutexLock lock(mutex_);
    answers_ = answers;
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
  bool answers_ KVCOVE_GUARDED_BY(mutex_) = true;
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

  FakeMaster master_;
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
