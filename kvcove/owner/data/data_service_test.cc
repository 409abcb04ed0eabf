// SPDX-License-Identifier: Apache-2.0
// What an owner does for other hosts, step by step, and what is given back when it ends early.
#include "kvcove/owner/data/data_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>

#include "kvcove/base/hash.h"
#include "kvcove/wire/cluster.h"

namespace kvcove::owner {
namespace {

using testing::ElementsAre;
using transport::Step;

constexpr std::uint64_t kTenant = 5;
const Token kToken{.incarnation = {1, 2}, .generation = 3, .slot = 1};

// Objects that lie one behind the other, each in one extent.
class FakeStore final : public DataStore {
 public:
  explicit FakeStore(std::uint64_t bytes) : memory_(bytes) {}

  void Hold(const std::string& key, const std::string& value, bool with_checksum) {
    const Extent extent = Take(value.size());
    std::memcpy(payload().At(extent).data(), value.data(), value.size());
    Loan loan{.code = Code::kOk, .size_bytes = static_cast<std::uint32_t>(value.size())};
    loan.extents = {extent};
    loan.has_checksum = with_checksum;
    if (with_checksum) loan.checksum = Hash64(std::string_view(value), 0);
    objects[key] = loan;
  }

  SessionNumber AddRemoteSession() override { return ++sessions; }
  void EndSession(SessionNumber) override {
    ++ended_sessions;
    reserved = 0;
  }
  std::vector<PutResult> Reserve(SessionNumber, const Token&, std::span<const PutItem> items,
                                 bool) override {
    std::vector<PutResult> places;
    for (const PutItem& item : items) {
      PutResult place{.code = full ? Code::kNoSpace : Code::kOk, .extents = {}};
      if (!full) {
        place.reservation = ++reserved;
        place.extents = {Take(item.size_bytes)};
      }
      places.push_back(place);
    }
    return places;
  }
  void FinishThen(SessionNumber, std::span<const FinishItem> items,
                  std::function<void(std::vector<Code>)> done) override {
    std::vector<Code> codes;
    for (const FinishItem& item : items) {
      if (item.commit) ++committed;
      codes.push_back(Code::kOk);
    }
    finish = [codes, done = std::move(done)] { done(codes); };
    if (answers_at_once) finish();
  }
  bool MasterReachable() const override { return reachable; }
  bool Awaits(const Token&) override { return awaits; }
  std::vector<Loan> Lend(const Token&, std::span<const std::string_view> keys) override {
    std::vector<Loan> loans;
    for (const std::string_view key : keys) {
      const auto at = objects.find(std::string(key));
      loans.push_back(at == objects.end() ? Loan{.reason = MissReason::kNeverPut} : at->second);
      if (at != objects.end()) ++lent;
    }
    if (lease_ends_when_lent) lease = false;
    return loans;
  }
  void Return(std::span<const Loan> loans) override {
    for (const Loan& loan : loans) lent -= loan.code == Code::kOk ? 1 : 0;
  }
  std::shared_ptr<void> BringUp(const Token&, std::span<const std::string_view> keys,
                                const Upcoming& upcoming) override {
    if (std::ranges::none_of(keys, [&](auto key) { return below.contains(std::string(key)); })) {
      return nullptr;
    }
    session_of_upcoming = upcoming.session();
    upcoming_until_ns = upcoming.deadline_ns;
    asked.assign(keys.begin(), keys.end());
    bring = [this, done = upcoming.done](std::vector<wire::LoadResult> results) {
      for (std::size_t i = 0; i < asked.size(); ++i) {
        if (results[i].code == Code::kOk) Hold(asked[i], below[asked[i]], false);
      }
      done(std::move(results));
    };
    return std::make_shared<int>(++brought);
  }
  void GiveUp(const std::shared_ptr<void>&) override { ++given_up; }
  void SetChecksum(const Loan&, std::uint64_t) override { ++checksums_set; }
  bool LeaseHolds() const override { return lease; }
  std::uint64_t TenantOfSlot(SlotId) const override { return kTenant; }
  segment::Payload payload() const override {
    return {.data = const_cast<std::byte*>(memory_.data()), .granule = {}};
  }

  std::map<std::string, Loan> objects;
  bool full = false;
  bool awaits = false;
  bool lease = true;
  bool lease_ends_when_lent = false;
  bool reachable = true;
  bool answers_at_once = true;
  std::function<void()> finish;
  SessionNumber sessions = 0;
  int ended_sessions = 0;
  std::uint64_t reserved = 0;
  int committed = 0;
  int lent = 0;
  int checksums_set = 0;
  // Of a lower tier:
  std::map<std::string, std::string> below;
  std::vector<std::string> asked;
  std::function<void(std::vector<wire::LoadResult>)> bring;
  SessionNumber session_of_upcoming = 0;
  std::int64_t upcoming_until_ns = 0;
  int brought = 0;
  int given_up = 0;

 private:
  Extent Take(std::uint64_t bytes) {
    const std::uint64_t granules = segment::Granule().Count(bytes);
    const Extent extent{.start = static_cast<decltype(Extent::start)>(next_),
                        .count = static_cast<decltype(Extent::count)>(granules)};
    next_ += granules;
    return extent;
  }
  std::vector<std::byte> memory_;
  std::uint64_t next_ = 0;
};

class DataServiceTest : public testing::Test {
 protected:
  static rpc::Caller CallerOf(std::uint64_t tag, rpc::Scopes scopes) {
    return {.tenant = "t", .tag = tag, .scopes = scopes};
  }
  std::unique_ptr<transport::Served> Begin(wire::Method method, const std::string& head) {
    return service_.Begin(session_, caller_, method, std::as_bytes(std::span(head)), deadline_ns_,
                          [this] { ++wakes_; });
  }
  std::unique_ptr<transport::Served> Get(const std::vector<std::string_view>& keys,
                                         std::uint64_t room = 64 << 20) {
    wire::DataGet get{.token = kToken, .keys = keys, .room = {}};
    get.room.resize(keys.size(), room);
    return Begin(wire::Method::kDataGet, wire::Encode(get));
  }
  std::unique_ptr<transport::Served> Put(const std::vector<std::string>& values,
                                         std::uint64_t harm = 0) {
    wire::DataPut put{.token = kToken, .items = {}, .budget_ms = 200};
    static constexpr std::string_view kKeys[] = {"a", "b", "c"};
    for (std::size_t i = 0; i < values.size(); ++i) {
      put.items.push_back({.key = kKeys[i],
                           .after = {},
                           .size_bytes = static_cast<std::uint32_t>(values[i].size()),
                           .checksum = Hash64(std::string_view(values[i]), 0) ^ harm});
    }
    return Begin(wire::Method::kDataPut, wire::Encode(put));
  }
  static std::vector<wire::DataValue> ValuesOf(const Step& step, std::size_t count) {
    EXPECT_EQ(step.kind, Step::Kind::kReply);
    auto values = wire::DecodeValues(std::as_bytes(std::span(step.head)), count);
    EXPECT_TRUE(values);
    return values ? *values : std::vector<wire::DataValue>(count);
  }
  static std::vector<Code> CodesOf(const Step& step, std::size_t count) {
    EXPECT_EQ(step.kind, Step::Kind::kReply);
    auto codes = wire::DecodeCodes(std::as_bytes(std::span(step.head)), count);
    EXPECT_TRUE(codes);
    return codes ? *codes : std::vector<Code>();
  }
  static std::string TextOf(const Step& step) {
    std::string text;
    for (const transport::ConstPiece& piece : step.out) {
      text.append(reinterpret_cast<const char*>(piece.data), piece.size);
    }
    return text;
  }
  // Lets a put's payload arrive, so many bytes at a time.
  static void Arrive(transport::Served& served, const Step& step, std::string_view payload,
                     std::uint64_t at_a_time) {
    std::uint64_t arrived = 0;
    for (const transport::Piece& piece : step.into) {
      for (std::uint64_t at = 0; at < piece.size;) {
        const std::uint64_t bytes = std::min(at_a_time, piece.size - at);
        if (piece.data != nullptr) {
          std::memcpy(piece.data + at, payload.data() + arrived, bytes);
        }
        at += bytes;
        arrived += bytes;
        served.Received(arrived);
      }
    }
    EXPECT_EQ(arrived, payload.size());
  }

  FakeClock clock_;
  FakeStore store_{24 << 20};
  DataService service_{store_, {.checksum = true}, clock_};
  DataService::Session session_{store_};
  rpc::Caller caller_ = CallerOf(kTenant, rpc::kAllScopes);
  std::int64_t deadline_ns_ = 0;
  int wakes_ = 0;
};

// ---- limits

TEST_F(DataServiceTest, AGetThatMayNotMoveItsValuesSaysSoAndReturnsItsLoans) {
  std::uint64_t asked = 0;
  session_.SetPermit([&](std::uint64_t bytes) -> Status {
    asked = bytes;
    return Fail(Code::kLimit, "busy");
  });
  store_.Hold("a", "hello", true);
  auto get = Get({"a", "never put"});
  const Step step = get->Next();
  EXPECT_EQ(asked, 5U) << "what would travel";
  EXPECT_EQ(step.kind, Step::Kind::kReply);
  EXPECT_EQ(step.code, Code::kLimit);
  EXPECT_EQ(step.head, "busy");
  EXPECT_TRUE(step.out.empty());
  EXPECT_EQ(service_.counters().sent_bytes, 0U);
  get.reset();
  EXPECT_EQ(store_.lent, 0);
  // A miss moves nothing, and needs no permit.
  EXPECT_EQ(ValuesOf(Get({"never put"})->Next(), 1)[0].reason, MissReason::kNeverPut);
}

TEST_F(DataServiceTest, APutThatMayNotComeIsReadAwayAndReservesNothing) {
  session_.SetPermit([&](std::uint64_t bytes) -> Status {
    EXPECT_EQ(bytes, 8U);
    return Fail(Code::kLimit, "busy");
  });
  auto put = Put({"hello", "you"});
  const Step step = put->Next();
  ASSERT_EQ(step.kind, Step::Kind::kReceive);
  Arrive(*put, step, "helloyou", 3);
  const Step reply = put->Next();
  EXPECT_EQ(reply.kind, Step::Kind::kReply);
  EXPECT_EQ(reply.code, Code::kLimit);
  EXPECT_EQ(store_.reserved, 0U);
  EXPECT_EQ(store_.sessions, 0U);
}

TEST_F(DataServiceTest, AGetBeyondAConnectionsBytesIsAnsweredInParts) {
  DataService small(store_, {.checksum = true, .max_batch_bytes = 8}, clock_);
  store_.Hold("a", "hello", true);
  store_.Hold("b", "world", true);
  wire::DataGet request{.token = kToken, .keys = {"a", "b"}, .room = {100, 100}};
  const std::string head = wire::Encode(request);
  const auto get = small.Begin(session_, caller_, wire::Method::kDataGet,
                               std::as_bytes(std::span(head)), 0, [] {});
  const Step step = get->Next();
  const auto values = ValuesOf(step, 2);
  EXPECT_EQ(values[0].code, Code::kOk);
  EXPECT_EQ(values[1].code, Code::kLimit) << "to be asked for again";
  EXPECT_EQ(TextOf(step), "hello");
}

TEST_F(DataServiceTest, AGetSendsWhatIsThereAndReturnsItsLoansWithTheExchange) {
  store_.Hold("a", "hello", true);
  store_.Hold("b", "world", true);
  auto served = Get({"a", "missing", "b"});
  const Step step = served->Next();
  const auto values = ValuesOf(step, 3);
  EXPECT_EQ(TextOf(step), "helloworld");
  EXPECT_EQ(values[0].checksum, Hash64(std::string_view("hello"), 0));
  EXPECT_EQ(values[1].code, Code::kMiss);
  EXPECT_EQ(values[1].reason, MissReason::kNeverPut);
  EXPECT_EQ(store_.lent, 2) << "until nothing is read from them any more";
  served.reset();
  EXPECT_EQ(store_.lent, 0);
  EXPECT_EQ(service_.counters().sent_bytes, 10U);
}

TEST_F(DataServiceTest, AGetWaitsForWhatALowerTierBringsUp) {
  store_.Hold("a", "hello", true);
  store_.below = {{"d1", "from"}, {"d2", "disk"}, {"d3", "much"}};
  deadline_ns_ = clock_.NowNs() + kSecond;
  auto served = Get({"d1", "a", "never", "d2", "d3"});
  EXPECT_THAT(store_.asked, ElementsAre("d1", "never", "d2", "d3"));
  EXPECT_NE(store_.session_of_upcoming, 0U) << "what came first is held for the rest";
  const Step wait = served->Next();
  EXPECT_EQ(wait.kind, Step::Kind::kWait);
  EXPECT_EQ(wait.until_ns, store_.upcoming_until_ns);
  EXPECT_LT(wait.until_ns, deadline_ns_) << "the values must still travel";
  store_.bring({{.code = Code::kOk},
                {.code = Code::kMiss, .reason = MissReason::kNeverPut},
                {.code = Code::kMiss, .reason = MissReason::kRaced},
                {.code = Code::kLimit}});
  EXPECT_EQ(wakes_, 1);
  const Step step = served->Next();
  const auto values = ValuesOf(step, 5);
  EXPECT_EQ(TextOf(step), "fromhello");
  EXPECT_EQ(values[0].tier, Tier::kDisk);
  EXPECT_EQ(values[0].checksum, Hash64(std::string_view("from"), 0));
  EXPECT_EQ(values[1].tier, Tier::kMemory);
  EXPECT_EQ(values[2].reason, MissReason::kNeverPut);
  EXPECT_EQ(values[3].reason, MissReason::kRaced);
  EXPECT_EQ(values[4].code, Code::kLimit) << "to be asked for again";
  served.reset();
  EXPECT_EQ(store_.lent, 0);
}

TEST_F(DataServiceTest, AGetDoesNotWaitForALowerTierBeyondItsDeadlineOrItsPeer) {
  store_.Hold("a", "hello", true);
  store_.below = {{"d", "disk"}};
  auto served = Get({"d", "a"});
  const Step wait = served->Next();
  ASSERT_EQ(wait.kind, Step::Kind::kWait) << "also of a peer that does not say how long it waits";
  clock_.AdvanceNs(wait.until_ns - clock_.NowNs());
  const Step step = served->Next();
  EXPECT_EQ(TextOf(step), "hello");
  EXPECT_EQ(ValuesOf(step, 2)[0].reason, MissReason::kTimeout);
  EXPECT_EQ(store_.given_up, 1);

  served = Get({"d"});
  EXPECT_EQ(served->Next().kind, Step::Kind::kWait);
  served.reset();
  EXPECT_EQ(store_.given_up, 2);
  EXPECT_EQ(store_.lent, 0);
  const SessionNumber sessions = store_.sessions;
  EXPECT_EQ(Get({"never"})->Next().kind, Step::Kind::kReply) << "there is nothing to wait for";
  EXPECT_EQ(store_.sessions, sessions);
}

TEST_F(DataServiceTest, AGetWhosePeerEndsReturnsItsLoans) {
  store_.Hold("a", "hello", true);
  auto served = Get({"a"});
  EXPECT_EQ(store_.lent, 1);
  served.reset();
  EXPECT_EQ(store_.lent, 0);
}

TEST_F(DataServiceTest, ALeaseThatEndsBetweenLendingAndSendingSendsNothing) {
  store_.Hold("a", "hello", true);
  store_.lease_ends_when_lent = true;
  const Step step = Get({"a"})->Next();
  EXPECT_EQ(ValuesOf(step, 1)[0].reason, MissReason::kLease);
  EXPECT_TRUE(step.out.empty());
  EXPECT_EQ(store_.lent, 0);
}

TEST_F(DataServiceTest, WithoutALeaseNothingIsLent) {
  store_.Hold("a", "hello", true);
  store_.lease = false;
  EXPECT_EQ(ValuesOf(Get({"a"})->Next(), 1)[0].reason, MissReason::kLease);
}

TEST_F(DataServiceTest, AnotherTenantNeitherFindsNorStores) {
  store_.Hold("a", "hello", true);
  caller_ = CallerOf(kTenant + 1, static_cast<rpc::Scopes>(rpc::Scope::kRead) |
                                      static_cast<rpc::Scopes>(rpc::Scope::kWrite));
  EXPECT_EQ(ValuesOf(Get({"a"})->Next(), 1)[0].reason, MissReason::kDenied);
  auto put = Put({"xy"});
  const Step step = put->Next();
  ASSERT_EQ(step.into.size(), 1U);
  EXPECT_EQ(step.into[0].data, nullptr) << "what is not taken must still be read";
  Arrive(*put, step, "xy", 1);
  EXPECT_THAT(CodesOf(put->Next(), 1), ElementsAre(Code::kDenied));
  EXPECT_EQ(store_.sessions, 0U) << "a session costs memory";
}

TEST_F(DataServiceTest, AValueThatIsTooLargeForItsRoomIsNotSent) {
  store_.Hold("a", "hello", true);
  const Step step = Get({"a"}, 4)->Next();
  const auto values = ValuesOf(step, 1);
  EXPECT_EQ(values[0].code, Code::kBufferTooSmall);
  EXPECT_EQ(values[0].size_bytes, 5U);
  EXPECT_TRUE(step.out.empty());
}

TEST_F(DataServiceTest, MissingChecksumsAreComputedInSlices) {
  constexpr std::size_t kBytes = 10 << 20;
  store_.Hold("large", std::string(kBytes, 'x'), false);
  store_.Hold("small", "hello", false);
  auto served = Get({"large", "small"});
  Step step;
  int turns = 0;
  std::uint64_t before = 0;
  do {
    step = served->Next();
    const std::uint64_t hashed = service_.counters().hashed_bytes;
    EXPECT_LE(hashed - before, DataService::kSliceBytes);
    before = hashed;
    ++turns;
  } while (step.kind == Step::Kind::kAgain);
  EXPECT_EQ(before, kBytes + 5);
  EXPECT_EQ(turns, 11);
  EXPECT_EQ(store_.checksums_set, 2) << "for the next get";
  const auto values = ValuesOf(step, 2);
  EXPECT_EQ(values[0].checksum, Hash64(std::string(kBytes, 'x'), 0));
  EXPECT_EQ(values[1].checksum, Hash64(std::string_view("hello"), 0));
}

TEST_F(DataServiceTest, APutIsCommittedWhenAllOfItHasArrived) {
  auto put = Put({"hello", std::string(1000, 'y')});
  const Step step = put->Next();
  ASSERT_EQ(step.kind, Step::Kind::kReceive);
  Arrive(*put, step, "hello" + std::string(1000, 'y'), 7);
  EXPECT_EQ(store_.committed, 0);
  EXPECT_EQ(service_.counters().hashed_bytes, 1005U) << "as it arrives";
  EXPECT_THAT(CodesOf(put->Next(), 2), ElementsAre(Code::kOk, Code::kOk));
  EXPECT_EQ(store_.committed, 2);
}

TEST_F(DataServiceTest, ALargePutIsHashedInSlicesHoweverItArrives) {
  const std::string value(10 << 20, 'z');
  auto put = Put({value});
  Step step = put->Next();
  std::memcpy(step.into[0].data, value.data(), value.size());
  std::uint64_t before = 0;
  const auto one_slice = [&] {
    const std::uint64_t hashed = service_.counters().hashed_bytes;
    EXPECT_LE(hashed - before, DataService::kSliceBytes);
    before = hashed;
  };
  put->Received(value.size());  // all at once
  one_slice();
  for (step = put->Next(); step.kind == Step::Kind::kAgain; step = put->Next()) one_slice();
  EXPECT_EQ(service_.counters().hashed_bytes, value.size());
  EXPECT_THAT(CodesOf(step, 1), ElementsAre(Code::kOk));
}

TEST_F(DataServiceTest, AValueWithAnotherChecksumIsGivenUp) {
  auto put = Put({"hello"}, /*harm=*/1);
  const Step step = put->Next();
  Arrive(*put, step, "hello", 5);
  EXPECT_THAT(CodesOf(put->Next(), 1), ElementsAre(Code::kCorrupt));
  EXPECT_EQ(store_.committed, 0);
  EXPECT_EQ(service_.counters().corrupt, 1U);
}

TEST_F(DataServiceTest, APutThatEndsInTheMiddleCommitsNothingAndEndsItsSession) {
  {
    DataService::Session session(store_);
    const std::string head = wire::Encode(
        wire::DataPut{.token = kToken, .items = {{.key = "a", .after = {}, .size_bytes = 100}}});
    auto put = service_.Begin(session, caller_, wire::Method::kDataPut,
                              std::as_bytes(std::span(head)), 0, [] {});
    ASSERT_EQ(put->Next().kind, Step::Kind::kReceive);
    put->Received(40);
    EXPECT_EQ(store_.reserved, 1U);
  }
  EXPECT_EQ(store_.committed, 0);
  EXPECT_EQ(store_.ended_sessions, 1);
  EXPECT_EQ(store_.reserved, 0U);
}

TEST_F(DataServiceTest, APutWaitsForTheMastersListing) {
  store_.answers_at_once = false;
  auto put = Put({"hello"});
  Arrive(*put, put->Next(), "hello", 5);
  Step step = put->Next();
  EXPECT_EQ(step.kind, Step::Kind::kWait);
  EXPECT_GT(step.until_ns, clock_.NowNs());
  store_.finish();
  EXPECT_EQ(wakes_, 1);
  EXPECT_THAT(CodesOf(put->Next(), 1), ElementsAre(Code::kOk));
}

TEST_F(DataServiceTest, APutIsNotListedYetWhenTheBudgetOrTheMasterIsGone) {
  store_.answers_at_once = false;
  auto late = Put({"hello"});
  Arrive(*late, late->Next(), "hello", 5);
  EXPECT_EQ(late->Next().kind, Step::Kind::kWait);
  clock_.AdvanceNs(200 * kMillisecond);
  EXPECT_THAT(CodesOf(late->Next(), 1), ElementsAre(Code::kNotListed));
  late.reset();
  store_.finish();  // the answer comes when the exchange is gone

  store_.reachable = false;
  auto away = Put({"hello"});
  Arrive(*away, away->Next(), "hello", 5);
  EXPECT_THAT(CodesOf(away->Next(), 1), ElementsAre(Code::kNotListed));
}

// The master told the requester first. The owner cannot say yet whose the slot is, either.
TEST_F(DataServiceTest, APutUnderAGenerationThatIsNotKnownHereYetWaitsForIt) {
  store_.awaits = true;
  auto put = Put({"hello"});
  Step step = put->Next();
  ASSERT_EQ(step.kind, Step::Kind::kWait);
  EXPECT_LE(step.until_ns, clock_.NowNs() + 10 * kMillisecond);
  EXPECT_EQ(store_.reserved, 0U);
  clock_.AdvanceNs(2 * kMillisecond);
  EXPECT_EQ(put->Next().kind, Step::Kind::kWait);
  store_.awaits = false;
  step = put->Next();
  ASSERT_EQ(step.kind, Step::Kind::kReceive);
  Arrive(*put, step, "hello", 5);
  EXPECT_THAT(CodesOf(put->Next(), 1), ElementsAre(Code::kOk));
}

TEST_F(DataServiceTest, APutWaitsForItsGenerationUntilTheBudgetOrTheMasterIsGone) {
  store_.awaits = true;
  auto late = Put({"hello"});
  EXPECT_EQ(late->Next().kind, Step::Kind::kWait);
  clock_.AdvanceNs(200 * kMillisecond);
  EXPECT_EQ(late->Next().kind, Step::Kind::kReceive) << "the store says what became of it";
  store_.reachable = false;
  EXPECT_EQ(Put({"hello"})->Next().kind, Step::Kind::kReceive);
}

TEST_F(DataServiceTest, AnOwnerOfOneTenantWaitsForNoGenerationOfAnother) {
  store_.awaits = true;
  DataService service(store_, {.checksum = true, .own_tag = kTenant}, clock_);
  const wire::DataPut put{
      .token = kToken, .items = {{.key = "a", .after = {}, .size_bytes = 5}}, .budget_ms = 200};
  const std::string head = wire::Encode(put);
  const rpc::Caller other = CallerOf(kTenant + 1, static_cast<rpc::Scopes>(rpc::Scope::kWrite));
  auto served = service.Begin(session_, other, wire::Method::kDataPut,
                              std::as_bytes(std::span(head)), 0, [] {});
  EXPECT_EQ(served->Next().kind, Step::Kind::kReceive);
  EXPECT_EQ(store_.reserved, 0U);
}

// The budget is that of the whole call: what the payload took is gone.
TEST_F(DataServiceTest, APutWaitsForItsListingUntilTheCallersDeadline) {
  store_.answers_at_once = false;
  auto put = Put({"hello"});
  const Step step = put->Next();
  clock_.AdvanceNs(150 * kMillisecond);
  Arrive(*put, step, "hello", 5);
  EXPECT_EQ(put->Next().kind, Step::Kind::kWait);
  clock_.AdvanceNs(50 * kMillisecond);
  EXPECT_THAT(CodesOf(put->Next(), 1), ElementsAre(Code::kNotListed));
}

TEST_F(DataServiceTest, GarbageHasNoExchange) {
  EXPECT_EQ(Begin(wire::Method::kDataGet, "garbage"), nullptr);
  EXPECT_EQ(Begin(wire::Method::kDataPut, std::string(100, '\xff')), nullptr);
}

}  // namespace
}  // namespace kvcove::owner
