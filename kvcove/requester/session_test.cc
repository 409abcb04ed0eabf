// SPDX-License-Identifier: Apache-2.0
// What every session has, whatever pool it belongs to.
#include "kvcove/requester/session.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kvcove/requester/completion.h"

namespace kvcove {
namespace {

using std::chrono::milliseconds;

// Notes what it is asked.
class FakeSession final : public Session {
 public:
  explicit FakeSession(int* ended = nullptr) : ended_(ended) {}
  ~FakeSession() override {
    if (ended_ != nullptr) ++*ended_;
  }
  using Session::Put;
  Result<Token> Capture(const CallOptions& options) override {
    asked += "capture " + std::string(options.version) + ";";
    if (captured != Code::kOk) return Fail(captured, "no token");
    return Token{.generation = 7};
  }
  Status Put(const Token& token, std::span<const PutItem> items, std::span<ItemResult> results,
             const CallOptions& options) override {
    KVCOVE_TRY(CheckBatch(items.size(), results.size()));
    asked += "put " + std::to_string(token.generation) + " " + std::string(options.after) + ";";
    std::fill_n(results.begin(), items.size(), ItemResult{.code = Code::kOk});
    return {};
  }
  Status Announce(const Token&, std::span<const std::string_view>, SaveNotice,
                  const CallOptions&) override {
    return {};
  }
  Status Get(std::span<const GetItem> items, std::span<ItemResult> results,
             const CallOptions&) override {
    return CheckBatch(items.size(), results.size());
  }
  Result<Borrowed> Borrow(std::span<const std::string_view>, const CallOptions&) override {
    return Borrowed();
  }
  Result<Reserved> Reserve(const Token&, std::span<const ReserveItem>,
                           const CallOptions&) override {
    return Reserved();
  }
  Result<std::vector<SegmentRange>> Segments(const CallOptions&) override {
    return std::vector<SegmentRange>();
  }
  Status Exists(std::span<const std::string_view> keys, std::span<ItemResult> results,
                const CallOptions& options) override {
    KVCOVE_TRY(CheckBatch(keys.size(), results.size()));
    asked += "exists " + std::string(options.version) + " hold " +
             std::to_string(options.hold.count()) + ";";
    return {};
  }
  Result<std::size_t> LongestPrefix(std::span<const std::string_view> keys,
                                    const CallOptions&) override {
    return keys.size();
  }
  Status Pin(std::span<const std::string_view>, PinKind, milliseconds, std::span<ItemResult>,
             const CallOptions&) override {
    return {};
  }
  Status Unpin(std::span<const std::string_view>, std::span<ItemResult>,
               const CallOptions&) override {
    return {};
  }
  Status Remove(std::span<const std::string_view>, std::span<ItemResult>,
                const CallOptions&) override {
    return {};
  }
  Result<std::uint64_t> RemoveMatching(std::string_view pattern, const CallOptions&) override {
    asked += "remove " + std::string(pattern) + ";";
    return 42;
  }
  Result<std::vector<std::optional<ObjectStat>>> Stat(std::span<const std::string_view> keys,
                                                      const CallOptions&) override {
    return std::vector<std::optional<ObjectStat>>(keys.size(), ObjectStat{.size_bytes = 3});
  }
  Result<std::vector<StoredObject>> List(std::string_view, const CallOptions&) override {
    return {};
  }
  Result<ObjectCount> Count(const CallOptions&) override { return {}; }
  Result<std::vector<std::vector<ObjectPlace>>> Places(std::span<const std::string_view>,
                                                       const CallOptions&) override {
    return std::vector<std::vector<ObjectPlace>>{
        {{.owner = "here:1"}, {.owner = "there:1", .tier = Tier::kDisk}}, {}};
  }
  Result<LocatedPrefix> Locate(std::span<const std::string_view> keys,
                               const CallOptions&) override {
    return LocatedPrefix{.keys = keys.size()};
  }
  Status Reset(const ResetOptions& options) override {
    asked += "reset " + options.version.value_or("-") + ";";
    return Fail(Code::kNotProven, "not yet");
  }
  Result<std::uint64_t> Prune(std::string_view before, const CallOptions&) override {
    asked += "prune " + std::string(before) + ";";
    return 3;
  }
  Status NameVersions(std::span<const std::string>, const CallOptions&) override { return {}; }
  bool closed() const override { return false; }

  std::string asked;
  Code captured = Code::kOk;

 private:
  int* ended_;
};

TEST(SessionTest, APutWithoutATokenCapturesFirst) {
  FakeSession session;
  const PutItem item{.key = "k"};
  ItemResult result;
  EXPECT_TRUE(session.Put({&item, 1}, {&result, 1}, {.version = "v", .after = "a"}));
  EXPECT_EQ(session.asked, "capture v;put 7 a;");
  EXPECT_TRUE(result.ok());
}

TEST(SessionTest, APutWithoutATokenThatGetsNoneFailsForEachItem) {
  FakeSession session;
  session.captured = Code::kClosed;
  const PutItem items[2] = {{.key = "a"}, {.key = "b"}};
  ItemResult results[2];
  EXPECT_EQ(session.Put(items, results).error().code, Code::kClosed);
  EXPECT_EQ(results[0].code, Code::kClosed);
  EXPECT_EQ(results[1].code, Code::kClosed);
  EXPECT_EQ(session.asked, "capture ;") << "nothing is put";
}

TEST(SessionTest, WhereIsThePlacesNamesAlone) {
  FakeSession session;
  const std::string_view keys[] = {"a", "b"};
  const auto where = session.Where(keys, {});
  ASSERT_TRUE(where);
  EXPECT_EQ(*where, (std::vector<std::vector<std::string>>{{"here:1", "there:1"}, {}}));
}

TEST(SessionTest, HoldIsALookUpThatHolds) {
  FakeSession session;
  const std::string_view key = "k";
  ItemResult result;
  EXPECT_TRUE(session.Hold({&key, 1}, milliseconds(250), {&result, 1}, {.version = "v"}));
  EXPECT_EQ(session.asked, "exists v hold 250;");
}

TEST(SessionTest, ABatchThatIsTooLargeOrHasTooLittleRoomIsRefused) {
  FakeSession session;
  std::vector<GetItem> items(kMaxBatch + 1);
  std::vector<ItemResult> results(kMaxBatch + 1);
  EXPECT_EQ(session.Get(items, results, {}).error().code, Code::kInvalid);
  EXPECT_TRUE(session.Get(std::span(items).first(kMaxBatch), results, {}));
  EXPECT_EQ(session.Get(std::span(items).first(2), std::span(results).first(1), {}).error().code,
            Code::kInvalid);
}

TEST(SessionTest, AsynchronousCallsKeepTheirOptionsAndTellTheirCounts) {
  FakeSession session;
  CompletionQueue queue;
  ItemResult result;
  const std::string_view key = "k";
  {
    const std::string version = "a version that is gone when the call runs";
    ASSERT_TRUE(session.ExistsAsync(queue, 1, {&key, 1}, {&result, 1},
                                    {.version = version, .hold = milliseconds(9)}));
  }
  EXPECT_EQ(queue.Next(milliseconds(5000))->tag, 1U);
  EXPECT_EQ(session.asked, "exists a version that is gone when the call runs hold 9;");
  ASSERT_TRUE(session.LongestPrefixAsync(queue, 2, {&key, 1}));
  EXPECT_EQ(queue.Next(milliseconds(5000))->count, 1U);
  ASSERT_TRUE(session.RemoveMatchingAsync(queue, 3, std::string("p*")));
  EXPECT_EQ(queue.Next(milliseconds(5000))->count, 42U);
  ASSERT_TRUE(session.ResetAsync(queue, 4, {.version = "w"}));
  EXPECT_EQ(queue.Next(milliseconds(5000))->status.error().code, Code::kNotProven);
  ASSERT_TRUE(session.PruneAsync(queue, 5, std::string("step-7, which is gone when it runs")));
  EXPECT_EQ(queue.Next(milliseconds(5000))->count, 3U);
  EXPECT_TRUE(session.asked.ends_with("prune step-7, which is gone when it runs;"));
}

TEST(SessionTest, ItsMemoryIsFreedByItsParentOnly) {
  int ended = 0;
  SessionPtr session(new FakeSession(&ended));
  const pid_t child = fork();
  if (child == 0) {
    ItemResult result;
    const GetItem item{.key = "k"};
    const bool refused =
        session->Get({&item, 1}, {&result, 1}, {}).error().code == Code::kUnavailable;
    session.reset();
    _exit(refused && ended == 0 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  session.reset();
  EXPECT_EQ(ended, 1);
}

}  // namespace
}  // namespace kvcove
