// SPDX-License-Identifier: Apache-2.0
#include "kvcove/wire/host_wire.h"

#include <flatbuffers/flatbuffers.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <map>

#include "tests/golden.h"

namespace kvcove::wire {
namespace {

constexpr std::int64_t kFrameDeadline = 12'345;  // as the server read it from a frame

// Answers with what it was asked, so that each field shows on the other side.
class EchoHost final : public HostService {
 public:
  Result<Registration> Register(const RegisterRequest& request, std::int64_t deadline_ns) override {
    deadline = deadline_ns;
    registered = request;
    return Registration{
        .incarnation = request.last_incarnation, .slot = 5, .generation = 9, .open = true};
  }
  Result<ResetOutcome> Reset(const ResetRequest& request, std::int64_t deadline_ns) override {
    deadline = deadline_ns;
    reset = request;
    return ResetOutcome{
        .raised = 3, .incarnation = request.id, .generation = 11, .unshared_ms = 12};
  }
  Status NameVersions(std::string_view name, std::string_view engine,
                      std::span<const std::string> versions, std::int64_t deadline_ns) override {
    deadline = deadline_ns;
    text = fmt::format("{} {} {}", name, engine, fmt::join(versions, ","));
    return {};
  }
  Status EndEngine(std::string_view name, std::string_view engine,
                   std::int64_t deadline_ns) override {
    deadline = deadline_ns;
    text = fmt::format("{} {}", name, engine);
    return {};
  }
  Result<PruneOutcome> Prune(const PruneRequest& request, std::int64_t deadline_ns) override {
    deadline = deadline_ns;
    text = fmt::format("{} before {}", request.name, request.before);
    return PruneOutcome{.versions = 1ULL << 40, .raised = 6};
  }
  Result<std::vector<Code>> Remove(const Token& token, std::span<const std::string_view> keys,
                                   std::int64_t deadline_ns) override {
    Note(token, keys, deadline_ns);
    return std::vector<Code>{Code::kOk, Code::kMiss};
  }
  Result<std::uint64_t> RemoveMatching(const Token& token, std::string_view pattern,
                                       std::int64_t deadline_ns) override {
    Note(token, {&pattern, 1}, deadline_ns);
    return 1234567890123;
  }
  Result<std::vector<PutResult>> Put(const Token& token, std::span<const PutItem> items,
                                     std::int64_t deadline_ns) override {
    deadline = deadline_ns;
    at = token;
    std::vector<PutResult> results;
    for (const PutItem& item : items) {
      const std::string staged =
          item.staged.sequence == 0
              ? ""
              : fmt::format(" staged {} {}", item.staged.sequence, item.staged.offset);
      text = fmt::format("{}[{} {} {} after '{}'{}]", text, item.key, item.size_bytes,
                         item.value.size(), item.after, staged);
      hints.push_back(item.hints);
      results.push_back({.code = Code::kOk, .reservation = 7, .extents = {{1, 2}, {30, 4}}});
    }
    return results;
  }
  Result<std::vector<Code>> Finish(std::span<const FinishItem> items,
                                   std::int64_t deadline_ns) override {
    deadline = deadline_ns;
    for (const FinishItem& item : items) {
      text = fmt::format("{}[{} {}]", text, item.reservation, item.commit);
    }
    return std::vector<Code>(items.size(), Code::kNotListed);
  }
  Result<std::vector<Code>> NoteSaves(const Token& token, std::span<const Id128> hashes,
                                      SaveNotice notice, std::int64_t deadline_ns) override {
    deadline = deadline_ns;
    text = fmt::format("{} {} {}", token.generation, hashes.size(), static_cast<int>(notice));
    return std::vector<Code>(hashes.size(), Code::kInProgress);
  }
  Result<std::vector<Code>> Pin(const Token& token, std::span<const std::string_view> keys,
                                std::optional<PinKind> kind, std::int64_t duration_ns,
                                std::int64_t deadline_ns) override {
    Note(token, keys, deadline_ns);
    text = fmt::format("{} kind {} for {}", text, kind ? static_cast<int>(*kind) : 0, duration_ns);
    return std::vector<Code>(keys.size(), Code::kOk);
  }
  Result<std::vector<std::optional<ObjectStat>>> StatObjects(const Token& token,
                                                             std::span<const std::string_view> keys,
                                                             std::int64_t deadline_ns) override {
    Note(token, keys, deadline_ns);
    std::vector<std::optional<ObjectStat>> stats(keys.size());
    stats[0] = ObjectStat{.size_bytes = 1ULL << 33, .extents = 3, .soft_pinned = true};
    return stats;
  }
  Result<InventoryReply> Page(const InventoryRequest& request, std::int64_t deadline_ns) override {
    deadline = deadline_ns;
    text = fmt::format("slot {} at most {} '{}'", *request.slot, request.at_most, request.prefix);
    InventoryReply reply;
    reply.cursor = kInventoryDone;
    reply.live = 17;
    return reply;
  }
  Result<PoolStat> Stat(std::int64_t deadline_ns) override {
    deadline = deadline_ns;
    PoolStat stat{.payload_bytes = 1, .dropped_events = 99, .voided_bytes = 98};
    stat.namespaces.push_back({.name = "n", .bytes = 1, .maximum_bytes = 2, .guaranteed_bytes = 3});
    stat.disk_shares.push_back({.name = "n", .bytes = 4, .read_bytes = 5, .write_rate = 6});
    stat.sessions.push_back({.number = 4, .pid = 5, .held_bytes = 6});
    DiskStat disk{.path = "/a", .space = {}, .log = {}};
    std::uint64_t number = 0;
    ForEachFigure(disk, [&](const auto&, std::uint64_t& value) { value = ++number; });
    stat.AddDisk(std::move(disk));
    stat.AddDisk(
        {.path = "/b", .space = {.total_bytes = 5}, .log = {}, .retry_ms = 9, .counted_ms = 10});
    return stat;
  }

  RegisterRequest registered;
  ResetRequest reset;
  Token at;
  std::string text;
  std::vector<Hints> hints;
  std::int64_t deadline = 0;

 private:
  void Note(const Token& token, std::span<const std::string_view> keys, std::int64_t deadline_ns) {
    at = token;
    deadline = deadline_ns;
    text = fmt::format("{}", fmt::join(keys, ","));
  }
};

// Hands each request to `serve`, aligned as in a server, and keeps its bytes.
class Loopback final : public Channel {
 public:
  explicit Loopback(HostService& service) : service_(service) {}
  Result<std::string> Call(Method method, std::span<const std::byte> body,
                           std::int64_t /*deadline_ns*/) override {
    requests[method].assign(reinterpret_cast<const char*>(body.data()), body.size());
    std::vector<std::uint64_t> words(body.size() / 8 + 1);
    std::ranges::copy(body, reinterpret_cast<std::byte*>(words.data()));
    Result<std::string> answer = ServeHost(
        service_, method, std::as_bytes(std::span(words)).first(body.size()), frame_deadline);
    if (answer) answers[method] = *answer;
    return answer;
  }
  std::map<Method, std::string> requests;
  std::map<Method, std::string> answers;
  std::int64_t frame_deadline = kFrameDeadline;

 private:
  HostService& service_;
};

class HostWireTest : public testing::Test {
 protected:
  const Token token_{.incarnation = {.high = 1, .low = 2}, .generation = 3, .slot = 4};
  const std::vector<std::string_view> keys_{"k1", "key-2"};
  EchoHost host_;
  Loopback channel_{host_};
  FakeClock clock_;
  std::unique_ptr<HostService> stub_ = MakeHostStub(channel_, clock_);
  std::int64_t Soon() const { return clock_.NowNs() + 2 * kSecond; }

  // Each call once, as the golden bytes have it.
  void CallAll() {
    ASSERT_TRUE(stub_->Register({.name = "n",
                                 .version = "v",
                                 .engine = "e",
                                 .follow_always = true,
                                 .last_incarnation = {.high = 8, .low = 9},
                                 .last_generation = 10,
                                 .holder = {.high = 11, .low = 12}},
                                Soon()));
    ASSERT_TRUE(
        stub_->Reset({.name = "n", .engine = "e", .version = "v2", .id = {.low = 5}}, Soon()));
    const std::vector<std::string> versions = {"v", "v2"};
    ASSERT_TRUE(stub_->NameVersions("n", "e", versions, Soon()));
    ASSERT_TRUE(stub_->EndEngine("n", "e", Soon()));
    ASSERT_TRUE(stub_->Prune({.name = "n", .before = "v2"}, Soon()));
    const std::byte value[3] = {std::byte{1}, std::byte{2}, std::byte{3}};
    const std::vector<PutItem> items = {{.key = "k1", .size_bytes = 3, .value = value},
                                        {.key = "k2", .size_bytes = 70000, .after = "k1"}};
    ASSERT_TRUE(stub_->Put(token_, items, Soon()));
    const std::vector<FinishItem> finish = {{.reservation = 7, .commit = true},
                                            {.reservation = 8, .commit = false}};
    ASSERT_TRUE(stub_->Finish(finish, Soon()));
    const Id128 hash{.high = 1, .low = 2};
    ASSERT_TRUE(stub_->NoteSaves(token_, {&hash, 1}, SaveNotice::kBegin, Soon()));
    ASSERT_TRUE(stub_->Remove(token_, keys_, Soon()));
    ASSERT_TRUE(stub_->RemoveMatching(token_, "k*", Soon()));
    ASSERT_TRUE(stub_->Pin(token_, keys_, PinKind::kSoft, kSecond, Soon()));
    ASSERT_TRUE(stub_->StatObjects(token_, keys_, Soon()));
    ASSERT_TRUE(stub_->Page({.at_most = 10, .slot = 4, .prefix = "k"}, Soon()));
    ASSERT_TRUE(stub_->Stat(Soon()));
  }
};

TEST_F(HostWireTest, PutsThatAreAnsweredLaterSayTheSame) {
  CallAll();
  const auto any = [](const Token&) { return true; };
  for (const Method method : {Method::kPut, Method::kFinish}) {
    const std::string& request = channel_.requests[method];
    std::vector<std::uint64_t> words((request.size() / 8) + 1);
    std::memcpy(words.data(), request.data(), request.size());
    const auto body = std::as_bytes(std::span(words)).first(request.size());
    std::optional<Result<std::string>> later;
    const auto done = [&](Result<std::string> answer) { later = std::move(answer); };
    const auto serve = [&](std::span<const std::byte> of) {
      if (method == Method::kFinish) return ServeFinishThen(host_, of, kFrameDeadline, done);
      EXPECT_TRUE(ServePutThen(host_, of, kFrameDeadline, any, done));
    };
    serve(body);
    ASSERT_TRUE(later && *later);
    EXPECT_EQ(**later, *ServeHost(host_, method, body, kFrameDeadline));
    EXPECT_EQ(host_.deadline, kFrameDeadline);
    serve(body.first(6));
    EXPECT_EQ(later->error().code, Code::kCorrupt);
    if (method == Method::kFinish) continue;
    later.reset();
    EXPECT_FALSE(ServePutThen(
        host_, body, kFrameDeadline, [&](const Token& token) { return token != token_; }, done));
    EXPECT_FALSE(later);
  }
}

TEST_F(HostWireTest, RemovalsThatAreAnsweredLaterSayTheSame) {
  CallAll();
  for (const Method method : {Method::kRemove, Method::kRemoveMatching}) {
    const std::string& request = channel_.requests[method];
    std::vector<std::uint64_t> words((request.size() / 8) + 1);
    std::memcpy(words.data(), request.data(), request.size());
    const auto body = std::as_bytes(std::span(words)).first(request.size());
    std::optional<Result<std::string>> later;
    const auto done = [&](Result<std::string> answer) { later = std::move(answer); };
    ServeRemovalThen(host_, method, body, kFrameDeadline, done);
    ASSERT_TRUE(later && *later);
    const std::int64_t deadline = host_.deadline;
    EXPECT_EQ(**later, *ServeHost(host_, method, body, kFrameDeadline));
    EXPECT_EQ(host_.deadline, deadline);
    ServeRemovalThen(host_, method, body.first(6), kFrameDeadline, done);
    EXPECT_EQ(later->error().code, Code::kCorrupt);
  }
}

TEST_F(HostWireTest, EachCallArrivesAndComesBackAsItWasMeant) {
  const auto registration = *stub_->Register(
      {.name = "n", .version = "v", .engine = "e", .last_incarnation = {.low = 8}}, Soon());
  EXPECT_EQ(host_.registered.name + host_.registered.version + host_.registered.engine, "nve");
  EXPECT_EQ(registration.slot, 5);
  EXPECT_EQ(registration.generation, 9U);
  EXPECT_TRUE(registration.open);
  EXPECT_EQ(registration.incarnation.low, 8U);

  const auto outcome = *stub_->Reset({.name = "n", .version = "", .id = {.low = 3}}, Soon());
  EXPECT_EQ(host_.reset.version, "") << "an empty version is one, none is none";
  EXPECT_FALSE(host_.reset.registered);
  EXPECT_EQ(outcome.raised, 3U);
  EXPECT_EQ(outcome.incarnation.low, 3U);
  EXPECT_EQ(outcome.unshared_ms, 12U);
  EXPECT_TRUE(stub_->Reset({.name = "n", .version = "v", .registered = true}, Soon()));
  EXPECT_TRUE(host_.reset.registered);

  const std::vector<std::string> versions = {"a", "b"};
  EXPECT_TRUE(stub_->NameVersions("n", "e", versions, Soon()));
  EXPECT_EQ(host_.text, "n e a,b");
  EXPECT_TRUE(stub_->EndEngine("n", "f", Soon()));
  EXPECT_EQ(host_.text, "n f");
  const auto pruned = *stub_->Prune({.name = "n", .before = "step 7"}, Soon());
  EXPECT_EQ(host_.text, "n before step 7");
  EXPECT_EQ(pruned.versions, 1ULL << 40);
  EXPECT_EQ(pruned.raised, 6U);

  EXPECT_EQ(*stub_->Remove(token_, keys_, Soon()), (std::vector{Code::kOk, Code::kMiss}));
  EXPECT_EQ(host_.text, "k1,key-2");
  EXPECT_EQ(host_.at.generation, token_.generation);
  EXPECT_EQ(*stub_->RemoveMatching(token_, "a*", Soon()), 1234567890123U);
  EXPECT_EQ(host_.text, "a*");
  EXPECT_TRUE(stub_->Pin(token_, keys_, std::nullopt, 0, Soon()));
  EXPECT_EQ(host_.text, "k1,key-2 kind 0 for 0");
  EXPECT_TRUE(stub_->Pin(token_, keys_, PinKind::kHard, 0, Soon()));
  EXPECT_EQ(host_.text, "k1,key-2 kind 2 for 0");
  EXPECT_TRUE(stub_->Pin(token_, keys_, PinKind::kHard, 9, Soon()));
  EXPECT_EQ(host_.text, "k1,key-2 kind 2 for 9");
  for (const std::int64_t wrong : {std::int64_t{-1}, 24 * 3600 * kSecond + 1}) {
    const auto refused = stub_->Pin(token_, keys_, PinKind::kHard, wrong, Soon());
    ASSERT_FALSE(refused) << wrong;
    EXPECT_EQ(refused.error().code, Code::kInvalid);
  }
  // The owner adds the duration to its clock.
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_TRUE(stub_->Pin(token_, keys_, PinKind::kSoft, kMost, Soon()));
  EXPECT_EQ(host_.text, fmt::format("k1,key-2 kind 1 for {}", 1'000'000 * kSecond));
  EXPECT_TRUE(stub_->Pin(token_, keys_, PinKind::kSoft, -kMost, Soon()));
  EXPECT_EQ(host_.text, "k1,key-2 kind 1 for 0");

  const auto stats = *stub_->StatObjects(token_, keys_, Soon());
  ASSERT_TRUE(stats[0]);
  EXPECT_EQ(stats[0]->size_bytes, 1ULL << 33);
  EXPECT_TRUE(stats[0]->soft_pinned);
  EXPECT_FALSE(stats[0]->hard_pinned);
  EXPECT_FALSE(stats[1]);
  EXPECT_EQ(stub_->Page({.at_most = 9, .slot = 4, .prefix = "p"}, Soon())->live, 17U);
  EXPECT_EQ(host_.text, "slot 4 at most 9 'p'");
  const PoolStat stat = *stub_->Stat(Soon());
  EXPECT_EQ(stat.payload_bytes, 1U);
  EXPECT_EQ(stat.dropped_events, 99U);
  EXPECT_EQ(stat.voided_bytes, 98U);
  EXPECT_EQ(stat.namespaces.at(0).guaranteed_bytes, 3U);
  EXPECT_EQ(stat.disk_shares.at(0).name, "n");
  EXPECT_EQ(stat.disk_shares.at(0).bytes, 4U);
  EXPECT_EQ(stat.disk_shares.at(0).maximum_bytes, ~0ULL);
  EXPECT_EQ(stat.disk_shares.at(0).read_bytes, 5U);
  EXPECT_EQ(stat.disk_shares.at(0).write_rate, 6U);
  EXPECT_EQ(stat.sessions.at(0).held_bytes, 6U);
  ASSERT_EQ(stat.disks.size(), 2U);
  EXPECT_EQ(stat.disks[0].path, "/a");
  std::uint64_t number = 0;
  ForEachFigure(stat.disks[0], [&](const auto& figure, std::uint64_t value) {
    EXPECT_EQ(value, ++number) << figure.key;
  });
  EXPECT_EQ(stat.disks[1].path, "/b");
  EXPECT_EQ(stat.disks[1].retry_ms, 9U);
  EXPECT_EQ(stat.disks[1].counted_ms, 10U);
  EXPECT_EQ(stat.disk_capacity_bytes, stat.disks[0].space.total_bytes + 5)
      << "the sums are made of the disks";
}

TEST_F(HostWireTest, APutCarriesHints) {
  const Hints all{
      .output_tokens = 700, .ephemeral = true, .session_ends = true, .request_goes_on = true};
  const std::vector<PutItem> items = {
      {.key = "a", .size_bytes = 3, .hints = all},
      {.key = "b", .size_bytes = 3},
      {.key = "c", .size_bytes = 3, .hints = {.session_ends = true}}};
  ASSERT_TRUE(stub_->Put(token_, items, Soon()));
  ASSERT_EQ(host_.hints.size(), 3U);
  EXPECT_EQ(host_.hints[0], all);
  EXPECT_EQ(host_.hints[1], Hints{});
  EXPECT_EQ(host_.hints[2], items[2].hints);
}

TEST_F(HostWireTest, APutCarriesValuesAndReservations) {
  const std::byte value[3] = {};
  const std::vector<PutItem> items = {{.key = "a", .size_bytes = 3, .value = value},
                                      {.key = "b", .size_bytes = 70000, .after = "a"}};
  const auto results = *stub_->Put(token_, items, Soon());
  EXPECT_EQ(host_.text, "[a 3 3 after ''][b 70000 0 after 'a']");
  ASSERT_EQ(results.size(), 2U);
  EXPECT_EQ(results[1].reservation, 7U);
  ASSERT_EQ(results[1].extents.size(), 2U);
  EXPECT_EQ(results[1].extents[1].start, 30U);
  host_.text.clear();
  const std::vector<FinishItem> finish = {{.reservation = 1, .commit = true},
                                          {.reservation = 2, .commit = false}};
  EXPECT_EQ(*stub_->Finish(finish, Soon()), std::vector(2, Code::kNotListed));
  EXPECT_EQ(host_.text, "[1 true][2 false]");
}

TEST_F(HostWireTest, ASaveIsAnnouncedByItsHashes) {
  const std::vector<Id128> hashes = {{.high = 1, .low = 2}, {.high = 3, .low = 4}};
  EXPECT_EQ(*stub_->NoteSaves(token_, hashes, SaveNotice::kEnd, Soon()),
            std::vector(2, Code::kInProgress));
  EXPECT_EQ(host_.text, fmt::format("{} 2 2", token_.generation));
}

TEST_F(HostWireTest, APutNamesWhereItsValueIsStaged) {
  PutItem staged{.key = "a", .size_bytes = 3};
  staged.staged = {.sequence = 1ULL << 40, .offset = 64};
  const std::vector<PutItem> items = {staged, {.key = "b", .size_bytes = 3}};
  ASSERT_TRUE(stub_->Put(token_, items, Soon()));
  EXPECT_EQ(host_.text, "[a 3 0 after '' staged 1099511627776 64][b 3 0 after '']");
}

// The caller's time ends the call, not a time of the server's own.
TEST_F(HostWireTest, EveryCallEndsByTheBudgetOfItsFrame) {
  const std::vector<std::string> versions = {"v"};
  const std::vector<FinishItem> finish = {{.reservation = 1}};
  const std::vector<std::function<bool()>> calls = {
      [&] { return stub_->Register({.name = "n"}, Soon()).has_value(); },
      [&] { return stub_->Reset({.name = "n"}, Soon()).has_value(); },
      [&] { return stub_->NameVersions("n", "e", versions, Soon()).has_value(); },
      [&] { return stub_->EndEngine("n", "e", Soon()).has_value(); },
      [&] { return stub_->Prune({.name = "n"}, Soon()).has_value(); },
      [&] { return stub_->Put(token_, {}, Soon()).has_value(); },
      [&] { return stub_->Finish(finish, Soon()).has_value(); },
      [&] { return stub_->Remove(token_, keys_, Soon()).has_value(); },
      [&] { return stub_->RemoveMatching(token_, "*", Soon()).has_value(); },
      [&] { return stub_->Pin(token_, keys_, PinKind::kHard, 0, Soon()).has_value(); },
      [&] { return stub_->StatObjects(token_, keys_, Soon()).has_value(); },
      [&] { return stub_->Page({.slot = 1}, Soon()).has_value(); },
      [&] { return stub_->Stat(Soon()).has_value(); },
  };
  for (std::size_t i = 0; i < calls.size(); ++i) {
    host_.deadline = 0;
    EXPECT_TRUE(calls[i]()) << "call " << i;
    EXPECT_EQ(host_.deadline, kFrameDeadline) << "call " << i;
  }
}

// A frame that says no budget: the tables say it.
TEST_F(HostWireTest, WithoutABudgetInTheFrameTheTablesCountsAndElseTenSeconds) {
  channel_.frame_deadline = 0;
  const std::int64_t now = SystemClock::Instance().NowNs();
  ASSERT_TRUE(stub_->Register({.name = "n"}, clock_.NowNs() + 100 * kSecond));
  EXPECT_GE(host_.deadline, now + 100 * kSecond);
  EXPECT_LT(host_.deadline, now + 160 * kSecond);
  ASSERT_TRUE(stub_->EndEngine("n", "e", clock_.NowNs() + 100 * kSecond));
  EXPECT_GE(host_.deadline, now + kUntoldBudgetNs);
  EXPECT_LT(host_.deadline, now + 70 * kSecond);
}

// The frame tells at most about a minute.
TEST_F(HostWireTest, ALongerTimeThanAFrameTellsComesFromTheTable) {
  const std::int64_t now = SystemClock::Instance().NowNs();
  ASSERT_TRUE(stub_->Reset({.name = "n"}, clock_.NowNs() + 100 * kSecond));
  EXPECT_GE(host_.deadline, now + 100 * kSecond);
}

// It does not know the method, and takes the frame for garbage.
TEST(OlderPeerTest, AnAuthorityThatDoesNotKnowPruneIsNamedAsTooOld) {
  class Older final : public Channel {
   public:
    Result<std::string> Call(Method, std::span<const std::byte>, std::int64_t) override {
      return std::unexpected(
          Error{.code = Code::kCorrupt, .detail = "not a call for the master", .answered = true});
    }
  } channel;
  const auto pruned = MakeHostStub(channel)->Prune({.name = "n", .before = "v"}, kSecond);
  ASSERT_FALSE(pruned);
  EXPECT_EQ(pruned.error().code, Code::kIncompatible);
}

// Such an owner ignores the duration of a hard pin, and closes the connection for an unknown kind.
TEST_F(HostWireTest, AnOwnerThatDoesNotKnowHardPinsWithAnEndPinsSoftlyAndIsNamedAsTooOld) {
  class Older final : public Channel {
   public:
    Result<std::string> Call(Method, std::span<const std::byte> body, std::int64_t) override {
      // The fields of Keys that it knows, by their places.
      const auto* keys = flatbuffers::GetRoot<flatbuffers::Table>(body.data());
      asked = fmt::format("kind {} for {}", keys->GetField<std::uint8_t>(8, 0),
                          keys->GetField<std::int64_t>(10, 0));
      return soft;
    }
    std::string soft;
    std::string asked;
  } channel;
  ASSERT_TRUE(stub_->Pin(token_, keys_, PinKind::kSoft, kSecond, Soon()));
  const std::string request = channel_.requests[Method::kPin];
  channel.soft = *channel_.Call(Method::kPin, AsBytes(request), Soon());
  const auto stub = MakeObjectStub(channel);
  EXPECT_TRUE(stub->Pin(token_, keys_, PinKind::kSoft, kSecond, Soon()));
  const auto hard = stub->Pin(token_, keys_, PinKind::kHard, kSecond, Soon());
  ASSERT_FALSE(hard);
  EXPECT_EQ(hard.error().code, Code::kIncompatible);
  EXPECT_EQ(channel.asked, fmt::format("kind 1 for {}", kSecond));
  EXPECT_TRUE(stub->Pin(token_, keys_, PinKind::kHard, 0, Soon())) << "it knows these";
  EXPECT_EQ(channel.asked, "kind 2 for 0");
}

TEST_F(HostWireTest, AServiceOfObjectsAnswersNoCallOfAnotherKind) {
  ASSERT_NO_FATAL_FAILURE(CallAll());
  for (const auto& [method, body] : channel_.requests) {
    const auto answer = ServeObjects(host_, method, std::as_bytes(std::span(body)), kFrameDeadline);
    const bool objects = method == Method::kPin || method == Method::kStatObjects ||
                         method == Method::kStat || method == Method::kInventory;
    EXPECT_EQ(answer.has_value(), objects) << "method " << static_cast<int>(method);
    if (!objects) {
      EXPECT_EQ(answer.error().code, Code::kCorrupt);
    }
  }
}

TEST_F(HostWireTest, ABodyThatIsCutIsCorrupt) {
  ASSERT_NO_FATAL_FAILURE(CallAll());
  for (const auto& [method, body] : channel_.requests) {
    if (method == Method::kStat) continue;  // it has none
    for (std::size_t size = 0; size < body.size(); size += 4) {
      std::vector<std::uint64_t> words(body.size() / 8 + 1);
      std::copy_n(body.begin(), size, reinterpret_cast<char*>(words.data()));
      const auto answer =
          ServeHost(host_, method, std::as_bytes(std::span(words)).first(size), kFrameDeadline);
      if (!answer) {
        EXPECT_EQ(answer.error().code, Code::kCorrupt);
      }
      if (size < 8) {
        EXPECT_FALSE(answer) << "method " << static_cast<int>(method);
      }
    }
  }
}

// Other builds read these bytes. A field that is added at a table's end may change them for
// messages that use it, and for no other.
TEST_F(HostWireTest, RequestsHaveTheseBytes) {
  ASSERT_NO_FATAL_FAILURE(CallAll());
  const std::map<Method, std::string_view> golden = {
      {Method::kRegister,
       "1c00000000001600440008000c001000070000001400340024003c0016000000000000014c0000004000"
       "000034000000080000000000000009000000000000000b000000000000000c000000000000000a000000"
       "00000000009435770000000001000000650000000100000076000000010000006e000000"},
      {Method::kReset,
       "1c0000000000000014003c0008000c000700100014003400000024001400000000000001440000003800"
       "00002c000000000000000000000005000000000000000000000000000000000000000000000000943577"
       "0000000002000000763200000100000065000000010000006e000000"},
      {Method::kNameVersions,
       "100000000c002400040008000c0010000c00000044000000380000001800000000000000000000000000"
       "000000000000000000000200000010000000040000000200000076320000010000007600000001000000"
       "65000000010000006e000000"},
      {Method::kEndEngine,
       "100000000c002400040008000c0010000c0000002c000000200000001800000000000000000000000000"
       "00000000000000000000000000000100000065000000010000006e000000"},
      {Method::kPrune,
       "140000000000000000000a001400040008000c000a000000180000000c00000000943577000000000200"
       "000076320000010000006e000000"},
      {Method::kPut,
       "0c0000000800280004002400080000000100000000000000020000000000000003000000000000000400"
       "000000000000040000000200000040000000100000000c0010000400080000000c000c00000014000000"
       "7011010004000000020000006b310000020000006b32000000000a001000040008000c000a0000001400"
       "000003000000040000000300000001020300020000006b310000"},
      {Method::kFinish,
       "0c0000000000060008000400060000000400000002000000070000000000000001000000000000000800"
       "0000000000000000000000000000"},
      {Method::kRemove,
       "0c00000008002c0004002800080000000100000000000000020000000000000003000000000000000400"
       "0000000000000000000004000000020000001400000004000000050000006b65792d3200000002000000"
       "6b310000"},
      {Method::kRemoveMatching,
       "140000000000000000000a003400040028002c000a000000010000000000000002000000000000000300"
       "0000000000000400000000000000000000000c0000000094357700000000020000006b2a0000"},
      {Method::kPin,
       "100000000c00380008002c00070030000c00000000000001010000000000000002000000000000000300"
       "0000000000000400000000000000000000000c00000000ca9a3b00000000020000001400000004000000"
       "050000006b65792d32000000020000006b310000"},
      {Method::kStatObjects,
       "0c00000008002c0004002800080000000100000000000000020000000000000003000000000000000400"
       "0000000000000000000004000000020000001400000004000000050000006b65792d3200000002000000"
       "6b310000"},
      {Method::kNoteSaves,
       "1000000000000a002c000800280007000a00000000000001010000000000000002000000000000000300"
       "0000000000000400000000000000040000000100000001000000000000000200000000000000"},
      {Method::kStat, ""},
      {Method::kInventory,
       "1400000000000e00100000000800000006000c000e000000000004000a00000004000000010000006b00"
       "0000"},
  };
  for (const auto& [method, body] : channel_.requests) {
    std::string hex;
    for (const char c : body) {
      hex += "0123456789abcdef"[static_cast<unsigned char>(c) >> 4];
      hex += "0123456789abcdef"[static_cast<unsigned char>(c) & 15];
    }
    const auto at = golden.find(method);
    EXPECT_TRUE(at != golden.end() && at->second == hex)
        << "{Method{" << static_cast<int>(method) << "}, \"" << hex << "\"},";
  }
}

// Without that of kStat, which has a column for each figure: builds add some.
TEST_F(HostWireTest, AnswersHaveTheseBytes) {
  ASSERT_NO_FATAL_FAILURE(CallAll());
  const GoldenBytes golden = {
      {"register",
       "100000000c00200008000600180005000c00000000010500080000000000000009000000000000000900"
       "000000000000"},
      {"reset",
       "14000000000000000c002c00140004001c0024000c000000000000000000000005000000000000000300"
       "0000000000000b000000000000000c00000000000000"},
      {"name versions", ""},
      {"end engine", ""},
      {"prune", "0c0000000800140004000c000800000000000000000100000600000000000000"},
      {"put",
       "10000000000000000000060008000400060000000400000002000000440000001000000000000a001000"
       "0000080004000a0000000c00000007000000000000000200000001000000020000001e00000004000000"
       "00000a0014000000080004000a0000001000000007000000000000000000000002000000010000000200"
       "00001e00000004000000"},
      {"finish", "0c000000000006000800040006000000040000000200000012001200"},
      {"note saves", "0c000000000006000800040006000000040000000100000008000000"},
      {"remove", "0c000000000006000800040006000000040000000200000000000100"},
      {"remove matching", "0c000000000006000c00040006000000cb04fb711f010000"},
      {"pin", "0c000000000006000800040006000000040000000200000000000000"},
      {"stat objects",
       "0c0000000000060008000400060000000400000002000000010200000300000000000000020000000000"
       "0000000000000000000000000000"},
      {"inventory",
       "280000000000000000001e003800040008000c001000140018001c002000240028002c00000030001e00"
       "0000ffffffff540000004c000000440000003c000000340000002c000000240000001c00000014000000"
       "0c0000001100000000000000000000000000000000000000000000000000000000000000000000000000"
       "00000000000000000000"},
  };
  ExpectGolden({{"register", channel_.answers[Method::kRegister]},
                {"reset", channel_.answers[Method::kReset]},
                {"name versions", channel_.answers[Method::kNameVersions]},
                {"end engine", channel_.answers[Method::kEndEngine]},
                {"prune", channel_.answers[Method::kPrune]},
                {"put", channel_.answers[Method::kPut]},
                {"finish", channel_.answers[Method::kFinish]},
                {"note saves", channel_.answers[Method::kNoteSaves]},
                {"remove", channel_.answers[Method::kRemove]},
                {"remove matching", channel_.answers[Method::kRemoveMatching]},
                {"pin", channel_.answers[Method::kPin]},
                {"stat objects", channel_.answers[Method::kStatObjects]},
                {"inventory", channel_.answers[Method::kInventory]}},
               golden);
}

TEST(HelloTest, BothSidesTellTheirLayout) {
  const auto bytes = [](const std::string& text) { return std::as_bytes(std::span(text)); };
  const std::string hello = EncodeHello({.name = "n", .layout = 3});
  EXPECT_EQ(DecodeHello(bytes(hello))->name, "n");
  EXPECT_EQ(DecodeHello(bytes(hello))->layout, 3U);
  const std::string welcome =
      EncodeWelcome({.session = 7, .secret = {.high = 1, .low = 2}, .now_ns = 5, .layout = 3});
  EXPECT_EQ(DecodeWelcome(bytes(welcome))->layout, 3U);
  // Another program's hello may lack it, and says 0, which no layout is.
  const std::string without = EncodeWelcome({.session = 7, .now_ns = 5});
  EXPECT_EQ(DecodeWelcome(bytes(without))->session, 7U);
  EXPECT_EQ(DecodeWelcome(bytes(without))->layout, 0U);
}

}  // namespace
}  // namespace kvcove::wire
