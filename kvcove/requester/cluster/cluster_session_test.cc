// SPDX-License-Identifier: Apache-2.0
// What a session of a cluster does with the master's answers. What it exchanges with owners is
// shown with real ones, in tests/integration/cluster_test.cc.
#include "kvcove/requester/cluster/cluster_session.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "kvcove/requester/cluster/fake_master.h"
#include "kvcove/rpc/server.h"

namespace kvcove::requester {
namespace {

using std::chrono::milliseconds;

// Of calls whose duration says nothing.
constexpr CallOptions kUnhurried{.timeout = milliseconds(60'000)};

// Answers each Pin and Unpin with one code.
class FakeDataServer final : public rpc::Handler {
 public:
  FakeDataServer() {
    auto server = rpc::Server::Open({.listen = {.host = "127.0.0.1", .port = 0}}, *this);
    EXPECT_TRUE(server) << server.error().ToString();
    server_ = std::move(*server);
    EXPECT_TRUE(server_->Start());
  }
  ~FakeDataServer() override { server_->Stop(); }
  std::string address() const { return server_->address().ToString(); }

  void OnOpen(rpc::ConnectionId, const rpc::Peer&) override {}
  void OnClose(rpc::ConnectionId) override {}
  void OnProcessGone(std::uint64_t) override {}
  bool Admitted(rpc::ConnectionId) const override { return true; }
  void OnRequest(rpc::ConnectionId, wire::Method method, std::span<const std::byte>, std::int64_t,
                 rpc::Responder respond) override {
    const std::vector<Code> codes = {says.load()};
    respond({.code = Code::kOk,
             .body = method == wire::Method::kPin ? wire::Encode(std::span<const Code>(codes))
                                                  : std::string()});
  }

  std::atomic<Code> says{Code::kOk};

 private:
  std::unique_ptr<rpc::Server> server_;
};

class ClusterSessionTest : public testing::Test {
 protected:
  void SetUp() override {
    const Clock& clock = SystemClock::Instance();
    auto host = ClusterHost::Connect({.master = master_.address(), .host = "here"},
                                     clock.NowNs() + 60 * kSecond, clock);
    ASSERT_TRUE(host) << host.error().ToString();
    session_ = std::make_unique<ClusterSession>(std::move(*host),
                                                SessionOptions{.name = "n", .engine = "e"}, clock);
  }
  ItemResult Exists(std::string_view key) {
    ItemResult result;
    EXPECT_TRUE(session_->Exists({&key, 1}, {&result, 1}, kUnhurried));
    return result;
  }
  ItemResult Put(const Token& token, std::string_view key) {
    const ConstBuffer piece{.data = "value", .size = 5};
    const PutItem item{.key = key, .value = {&piece, 1}};
    ItemResult result;
    put_ = session_->Put(token, {&item, 1}, {&result, 1}, kUnhurried);
    return result;
  }

  FakeMaster master_;
  std::unique_ptr<ClusterSession> session_;
  Status put_;
};

TEST_F(ClusterSessionTest, ALookUpAsksTheMasterOnceABatch) {
  master_.List("a", 4);
  const std::vector<std::string_view> keys = {"a", "", "b", "a"};
  std::vector<ItemResult> results(keys.size());
  ASSERT_TRUE(session_->Exists(keys, results, kUnhurried));
  EXPECT_TRUE(results[0].ok());
  EXPECT_EQ(results[0].tier, Tier::kRemoteMemory);
  EXPECT_EQ(results[1].code, Code::kInvalid) << "an empty key";
  EXPECT_EQ(results[2].reason, MissReason::kEvicted);
  EXPECT_TRUE(results[3].ok());
  EXPECT_EQ(master_.Asked(wire::Method::kLookup), 1);
  EXPECT_EQ(master_.Asked(wire::Method::kRegister), 1);
}

TEST_F(ClusterSessionTest, ALookUpReportsWhichMissingKeysAreBeingSaved) {
  const std::string_view key = "k";
  const Token token = *session_->Capture(kUnhurried);
  EXPECT_FALSE(Exists(key).under_way);
  ASSERT_TRUE(session_->Announce(token, {&key, 1}, SaveNotice::kBegin, kUnhurried));
  const ItemResult result = Exists(key);
  EXPECT_EQ(result.code, Code::kMiss);
  EXPECT_TRUE(result.under_way);
  EXPECT_FALSE(Exists("another").under_way);
  ASSERT_TRUE(session_->Announce(token, {&key, 1}, SaveNotice::kEnd, kUnhurried));
  EXPECT_FALSE(Exists(key).under_way);
}

TEST_F(ClusterSessionTest, AnEarlierCallsReasonIsNotReportedWhileTheMasterDoesNotAnswer) {
  master_.With(
      [](FakeMaster::State& state) { state.refused[wire::Method::kLookup] = Code::kDenied; });
  const std::string_view key = "k";
  ItemResult result{.code = Code::kMiss, .reason = MissReason::kDiskFailed};
  ASSERT_TRUE(session_->Exists({&key, 1}, {&result, 1}, kUnhurried));
  EXPECT_EQ(result.reason, MissReason::kDenied);
}

TEST_F(ClusterSessionTest, APrefixEndsAtItsFirstMiss) {
  for (const std::string_view key : {"0", "1", "3"}) master_.List(key, 4);
  const std::vector<std::string_view> keys = {"0", "1", "2", "3"};
  EXPECT_EQ(*session_->LongestPrefix(keys, kUnhurried), 2U);
}

TEST_F(ClusterSessionTest, APrefixIsLocatedWithOneCall) {
  master_.With([](auto& state) { state.owners = {{.number = 4, .address = "there:1"}}; });
  for (const char* key : {"a", "b"}) master_.List(key, 4);
  master_.List("c", 9);  // an owner that no list names
  const std::vector<std::string_view> keys = {"a", "b", "c", "d", "a"};
  auto located = session_->Locate(keys, kUnhurried);
  ASSERT_TRUE(located) << located.error().ToString();
  EXPECT_EQ(located->keys, 3U);
  EXPECT_EQ(located->reason, MissReason::kEvicted);
  ASSERT_EQ(located->owners.size(), 1U);
  EXPECT_EQ(located->owners[0].owner, "there:1");
  EXPECT_EQ(located->owners[0].prefix, 2U);
  EXPECT_EQ(master_.Asked(wire::Method::kLocate), 1);
  EXPECT_EQ(master_.Asked(wire::Method::kLookup), 0);
  // Under another generation it asks once more.
  master_.With([](auto& state) { ++state.generation; });
  ASSERT_TRUE(session_->Locate(keys, kUnhurried));
  EXPECT_EQ(master_.Asked(wire::Method::kLocate), 3);
  // A session that must reset first.
  master_.With([](auto& state) {
    ++state.generation;
    state.open = false;
  });
  EXPECT_EQ(session_->Locate(keys, kUnhurried)->reason, MissReason::kClosed);
  EXPECT_EQ(session_->Locate(std::vector<std::string_view>{""}, kUnhurried).error().code,
            Code::kInvalid);
}

TEST_F(ClusterSessionTest, AMasterOfAnEarlierVersionIsNamed) {
  master_.With([](auto& state) { state.refused[wire::Method::kLocate] = Code::kCorrupt; });
  const auto located = session_->Locate(std::vector<std::string_view>{"a"}, kUnhurried);
  ASSERT_FALSE(located);
  EXPECT_EQ(located.error().code, Code::kIncompatible);
}

TEST_F(ClusterSessionTest, ACaptureAsksEachTime) {
  EXPECT_EQ(session_->Capture(kUnhurried)->generation, 7U);
  master_.With([](FakeMaster::State& state) { state.generation = 8; });
  EXPECT_EQ(session_->Capture(kUnhurried)->generation, 8U);
  master_.With([](FakeMaster::State& state) { state.open = false; });
  EXPECT_EQ(session_->Capture(kUnhurried).error().code, Code::kClosed);
}

TEST_F(ClusterSessionTest, WhatIsListedNeedNotTravelAndElseAnOwnerIsNeeded) {
  const Token token = *session_->Capture(kUnhurried);
  master_.List("there", 4);
  EXPECT_EQ(Put(token, "there").code, Code::kExists);
  EXPECT_TRUE(put_);
  EXPECT_EQ(Put(token, "new").code, Code::kUnavailable);
  EXPECT_EQ(put_.error().code, Code::kUnavailable) << "the cluster has no owner";
  EXPECT_EQ(Put({.slot = kMaxSlots}, "new").code, Code::kInvalid) << "no token of a capture";
}

TEST_F(ClusterSessionTest, APutWithATokenFromBeforeAResetIsStale) {
  const Token old = *session_->Capture(kUnhurried);
  ASSERT_TRUE(session_->Reset({.timeout = kUnhurried.timeout}));
  EXPECT_EQ(Put(old, "k").code, Code::kStale);
}

TEST_F(ClusterSessionTest, AHintAtAnOwnerThatIsGoneIsAMissThatSaysSo) {
  master_.List("k", 4);  // which no list of owners names
  char buffer[16];
  const MutableBuffer into{.data = buffer, .size = sizeof(buffer)};
  const GetItem item{.key = "k", .into = {&into, 1}};
  ItemResult result;
  ASSERT_TRUE(session_->Get({&item, 1}, {&result, 1}, kUnhurried));
  EXPECT_EQ(result.code, Code::kMiss);
  EXPECT_EQ(result.reason, MissReason::kOwnerGone);
}

TEST_F(ClusterSessionTest, RemovalsAreTheMasters) {
  master_.List("a", 4);
  const std::vector<std::string_view> keys = {"a", "b"};
  std::vector<ItemResult> results(2);
  ASSERT_TRUE(session_->Remove(keys, results, kUnhurried));
  EXPECT_TRUE(results[0].ok());
  EXPECT_EQ(results[1].code, Code::kMiss);
  EXPECT_EQ(*session_->RemoveMatching("a*", kUnhurried), 5U);
  EXPECT_EQ(session_->RemoveMatching("", kUnhurried).error().code, Code::kInvalid);
}

TEST_F(ClusterSessionTest, AValueIsPinnedAtOneReplicaAndUnpinnedAtBoth) {
  FakeDataServer first;
  FakeDataServer second;
  master_.With([&](FakeMaster::State& state) {
    state.owners = {{.number = 4, .address = first.address(), .live = true},
                    {.number = 5, .address = second.address(), .live = true}};
    state.places[DirectoryHash(FakeMaster::kSlot, "k").low] = {
        .size_bytes = 10, .owner = 4, .second = 5};
  });
  const std::string_view key = "k";
  ItemResult result;
  const CallOptions options{.timeout = milliseconds(60'000)};
  const auto pin = [&](Code at_first, Code at_second) {
    first.says = at_first;
    second.says = at_second;
    EXPECT_TRUE(session_->Pin({&key, 1}, PinKind::kHard, {}, {&result, 1}, options));
    return result.code;
  };
  const auto unpin = [&](Code at_first, Code at_second) {
    first.says = at_first;
    second.says = at_second;
    EXPECT_TRUE(session_->Unpin({&key, 1}, {&result, 1}, options));
    return result.code;
  };
  EXPECT_EQ(pin(Code::kOk, Code::kNoSpace), Code::kOk);
  EXPECT_EQ(pin(Code::kNoSpace, Code::kOk), Code::kOk);
  EXPECT_EQ(pin(Code::kNoSpace, Code::kMiss), Code::kNoSpace);
  EXPECT_EQ(pin(Code::kMiss, Code::kMiss), Code::kMiss);
  EXPECT_EQ(unpin(Code::kStale, Code::kOk), Code::kStale);
  EXPECT_EQ(unpin(Code::kOk, Code::kStale), Code::kStale);
  EXPECT_EQ(unpin(Code::kOk, Code::kMiss), Code::kOk);
  EXPECT_EQ(unpin(Code::kMiss, Code::kOk), Code::kOk);
}

TEST_F(ClusterSessionTest, ASessionWhoseResetIsNotProvenFindsNothingUntilItIs) {
  master_.List("k", 4);
  EXPECT_TRUE(Exists("k").ok());
  master_.With(
      [](FakeMaster::State& state) { state.refused[wire::Method::kReset] = Code::kUnavailable; });
  EXPECT_EQ(session_->Reset({.timeout = milliseconds(50)}).error().code, Code::kNotProven);
  EXPECT_TRUE(session_->closed());
  EXPECT_EQ(Exists("k").reason, MissReason::kClosed);
  EXPECT_EQ(session_->Capture(kUnhurried).error().code, Code::kClosed);
  // It is repeated in the background.
  const int before = master_.With([](FakeMaster::State& state) {
    state.refused.clear();
    return state.asked[wire::Method::kReset];
  });
  EXPECT_TRUE(master_.Await([&](const FakeMaster::State& state) {
    return state.asked.at(wire::Method::kReset) > before;
  }));
  EXPECT_TRUE(session_->Reset({.timeout = kUnhurried.timeout}));
  EXPECT_FALSE(session_->closed());
  EXPECT_TRUE(Exists("k").ok());
}

TEST_F(ClusterSessionTest, AResetWaitsForTheNextLeaderWithinItsTimeout) {
  master_.With(
      [](FakeMaster::State& state) { state.refused[wire::Method::kReset] = Code::kUnavailable; });
  std::thread caller([&] { EXPECT_TRUE(session_->Reset({.timeout = kUnhurried.timeout})); });
  EXPECT_TRUE(master_.Await([](const FakeMaster::State& state) {
    const auto asked = state.asked.find(wire::Method::kReset);
    return asked != state.asked.end() && asked->second > 2;
  }));
  master_.With([](FakeMaster::State& state) { state.refused.clear(); });
  caller.join();
  EXPECT_FALSE(session_->closed());
}

// A master that appears after the registration failed would take the reset alone for a change of
// version, which voids nothing.
TEST_F(ClusterSessionTest, AResetOfAKnownVersionIsNotSentWithoutItsRegistration) {
  const CallOptions versioned{.timeout = kUnhurried.timeout, .version = "v1"};
  ASSERT_TRUE(session_->Capture(versioned));
  const int before = master_.With([](FakeMaster::State& state) {
    state.decided.clear();
    state.refused[wire::Method::kRegister] = Code::kUnavailable;
    return state.asked[wire::Method::kRegister];
  });
  std::thread caller(
      [&] { EXPECT_TRUE(session_->Reset({.timeout = kUnhurried.timeout, .version = "v1"})); });
  EXPECT_TRUE(master_.Await([&](const FakeMaster::State& state) {
    return state.asked.at(wire::Method::kRegister) > before + 2;
  }));
  master_.With([](FakeMaster::State& state) {
    EXPECT_FALSE(state.asked.contains(wire::Method::kReset));
    state.refused.clear();
  });
  caller.join();
  const auto decided = master_.With([](FakeMaster::State& state) { return state.decided; });
  EXPECT_EQ(decided.front(), wire::Method::kRegister);
}

// The next leader may not have the registration, or one of another version by now.
TEST_F(ClusterSessionTest, ARegistrationAndAResetOfDifferentMastersAreNoProof) {
  FakeMaster next;
  const Clock& clock = SystemClock::Instance();
  auto host = ClusterHost::Connect(
      {.master = rpc::Addresses({master_.address(), next.address()}), .host = "here"},
      clock.NowNs() + 60 * kSecond, clock);
  ASSERT_TRUE(host) << host.error().ToString();
  ClusterSession session(std::move(*host), {.name = "n", .engine = "e"}, clock);
  ASSERT_TRUE(session.Capture({.timeout = kUnhurried.timeout, .version = "v1"}));
  master_.With([&](FakeMaster::State& state) {
    state.elsewhere[wire::Method::kReset] = next.address().ToString();
  });
  EXPECT_TRUE(session.Reset({.timeout = kUnhurried.timeout, .version = "v1"}));
  EXPECT_EQ(next.Asked(wire::Method::kReset), 2) << "alone, then after its registration there";
  next.With([](FakeMaster::State& state) {
    EXPECT_TRUE(std::ranges::find(state.registered, "e/v1") != state.registered.end());
  });
}

// A token file is being replaced: the same reset may be proven a moment later.
TEST_F(ClusterSessionTest, AnErrorOfThisProcessIsNoRefusalOfAReset) {
  FakeMaster next;
  std::atomic<bool> readable{true};
  std::atomic<int> failed{0};
  const Clock& clock = SystemClock::Instance();
  auto host = ClusterHost::Connect(
      {.master = rpc::Addresses({master_.address(), next.address()}),
       .host = "here",
       .access = {.credentials = [&]() -> Result<std::vector<rpc::Credential>> {
         if (readable) return std::vector<rpc::Credential>();
         ++failed;
         return Fail(Code::kInvalid, "the token file cannot be read");
       }}},
      clock.NowNs() + 60 * kSecond, clock);
  ASSERT_TRUE(host) << host.error().ToString();
  ClusterSession session(std::move(*host), {.name = "n", .engine = "e"}, clock);
  readable = false;
  // The next master needs a new connection.
  master_.With([&](FakeMaster::State& state) {
    state.elsewhere[wire::Method::kReset] = next.address().ToString();
  });
  std::atomic<bool> answered{false};
  std::thread caller([&] {
    EXPECT_TRUE(session.Reset({.timeout = kUnhurried.timeout}));
    answered = true;
  });
  while (failed < 4 && !answered) std::this_thread::yield();
  readable = true;
  caller.join();
  EXPECT_FALSE(session.closed());
}

TEST_F(ClusterSessionTest, TheEndOfTheLastSessionIsToldToTheMaster) {
  // The host outlives the session that is its last user: it tells.
  const Clock& clock = SystemClock::Instance();
  const std::shared_ptr<ClusterHost> host = *ClusterHost::Connect(
      {.master = master_.address(), .host = "here"}, clock.NowNs() + 60 * kSecond, clock);
  auto first =
      std::make_unique<ClusterSession>(host, SessionOptions{.name = "n", .engine = "mine"}, clock);
  auto second =
      std::make_unique<ClusterSession>(host, SessionOptions{.name = "n", .engine = "mine"}, clock);
  first.reset();
  second.reset();
  EXPECT_TRUE(master_.Await([](const FakeMaster::State& state) {
    return std::ranges::find(state.ended, "mine") != state.ended.end();
  }));
}

}  // namespace
}  // namespace kvcove::requester
