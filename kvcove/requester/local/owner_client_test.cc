// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/local/owner_client.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "kvcove/base/interrupt.h"
#include "kvcove/base/random.h"
#include "kvcove/requester/local/host_session.h"

namespace kvcove::requester {
namespace {

using std::chrono::milliseconds;

// An owner that knows one slot, under the same generation in each of its lives.
class FakeOwner final : public wire::HostService {
 public:
  static constexpr Generation kGeneration = 7;
  int registrations() const { return registrations_; }

  Result<wire::Registration> Register(const wire::RegisterRequest& request, std::int64_t) override {
    if (!registers) return No();
    ++registrations_;
    assumes_weights = request.assume_weights;
    return wire::Registration{
        .incarnation = {}, .slot = 0, .generation = kGeneration, .open = true};
  }
  Result<wire::ResetOutcome> Reset(const wire::ResetRequest&, std::int64_t) override {
    ++resets;
    if (!resets_answered) return No();
    return wire::ResetOutcome{};
  }
  bool registers = true;
  bool assumes_weights = false;  // the last registration
  int resets = 0;
  bool resets_answered = false;
  Status NameVersions(std::string_view, std::string_view, std::span<const std::string>,
                      std::int64_t deadline_ns) override {
    return Late(deadline_ns);
  }
  Status EndEngine(std::string_view, std::string_view, std::int64_t) override { return {}; }
  Result<wire::PruneOutcome> Prune(const wire::PruneRequest&, std::int64_t) override {
    return No();
  }
  // It takes what travels with a request, and has no room for what is to be reserved.
  Result<std::vector<wire::PutResult>> Put(const Token&, std::span<const wire::PutItem> items,
                                           std::int64_t) override {
    std::vector<wire::PutResult> answers(items.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
      const bool travels = !items[i].value.empty() || items[i].staged.sequence != 0;
      answers[i].code = travels ? Code::kOk : Code::kNoSpace;
    }
    ++puts;
    return answers;
  }
  int puts = 0;
  Result<std::vector<Code>> Finish(std::span<const wire::FinishItem>, std::int64_t) override {
    return No();
  }
  Result<std::vector<Code>> Remove(const Token&, std::span<const std::string_view>,
                                   std::int64_t deadline_ns) override {
    return Late(deadline_ns);
  }
  Result<std::uint64_t> RemoveMatching(const Token&, std::string_view,
                                       std::int64_t deadline_ns) override {
    return Late(deadline_ns);
  }
  Result<std::vector<Code>> Pin(const Token&, std::span<const std::string_view>,
                                std::optional<PinKind>, std::int64_t,
                                std::int64_t deadline_ns) override {
    return Late(deadline_ns);
  }
  Result<std::vector<std::optional<ObjectStat>>> StatObjects(const Token&,
                                                             std::span<const std::string_view>,
                                                             std::int64_t deadline_ns) override {
    asked();
    if (stats) return std::vector<std::optional<ObjectStat>>(1);
    return Late(deadline_ns);
  }
  Result<wire::InventoryReply> Page(const wire::InventoryRequest&,
                                    std::int64_t deadline_ns) override {
    return Late(deadline_ns);
  }
  Result<std::vector<Code>> NoteSaves(const Token&, std::span<const Id128> hashes, SaveNotice,
                                      std::int64_t) override {
    if (saves != Code::kMiss && saves != Code::kInProgress) return Fail(saves, "as told");
    return std::vector<Code>(hashes.size(), saves);
  }
  Code saves = Code::kMiss;             // its answer for each, or its refusal
  std::vector<std::int64_t> deadlines;  // of calls that it takes long to refuse
  Code refusal = Code::kUnavailable;
  bool stats = false;                   // it answers StatObjects
  std::function<void()> asked = [] {};  // at StatObjects
  Result<PoolStat> Stat(std::int64_t) override { return No(); }

 private:
  std::unexpected<Error> Late(std::int64_t deadline_ns) {
    deadlines.push_back(deadline_ns);
    SleepNs(5 * kMillisecond);
    return Fail(refusal, "not in this test");
  }
  static std::unexpected<Error> No() { return Fail(Code::kUnavailable, "not in this test"); }
  int registrations_ = 0;
};

// One life of the owner, with a segment of its own.
class FakeSegmentAttachment final : public Attachment {
 public:
  static std::shared_ptr<FakeSegmentAttachment> At(void* place, std::vector<std::byte>& header,
                                                   segment::SessionPage& page) {
    const segment::HeaderSizes sizes{.max_objects = 1024, .payload_bytes = 1 << 20};
    header.assign(segment::HeaderFileBytes(sizes) + 4096, std::byte{});
    void* data = header.data();
    std::size_t room = header.size();
    std::align(4096, segment::HeaderFileBytes(sizes), data, room);
    EXPECT_TRUE(
        segment::FormatHeader(static_cast<std::byte*>(data), sizes, RandomId(), RandomU64()));
    segment::FormatSessionPage(reinterpret_cast<std::byte*>(&page));
    auto view =
        segment::HeaderView::Open(static_cast<std::byte*>(data), segment::HeaderFileBytes(sizes));
    view->slot(0).generation.store(FakeOwner::kGeneration);
    return {new (place) FakeSegmentAttachment(*view, page),
            [](FakeSegmentAttachment* attachment) { attachment->~FakeSegmentAttachment(); }};
  }
  FakeSegmentAttachment(segment::HeaderView view, segment::SessionPage& page)
      : Attachment(view, nullptr, &page) {}
  wire::HostService& service() override { return owner_; }
  void SetLease(std::int64_t deadline_ns) {
    segment::HeaderView(header()).header().lease_deadline_ns.store(deadline_ns);
  }
  void SetSavesUntil(std::int64_t until_ns) {
    segment::HeaderView(header()).header().saves_until_ns.store(until_ns);
  }
  FakeOwner& owner() { return owner_; }

 private:
  FakeOwner owner_;
};

class FakeHost final : public OwnerTie {
 public:
  std::shared_ptr<Attachment> Current() override { return current; }
  std::shared_ptr<Attachment> current;
};

// The memory of an attachment that is gone is used for the next one, more often than not.
TEST(OwnerClientTest, AnOwnerThatHasStartedAgainLearnsOfTheEngineAlsoAtTheSameAddress) {
  alignas(FakeSegmentAttachment) std::byte place[sizeof(FakeSegmentAttachment)];
  std::vector<std::byte> header;
  const auto page = std::make_unique<segment::SessionPage>();
  const auto host = std::make_shared<FakeHost>();
  OwnerClient session(host, {.name = "n", .engine = "e", .assume_weights = true},
                      SystemClock::Instance());
  for (int life = 0; life < 3; ++life) {
    host->current.reset();
    const auto attachment = FakeSegmentAttachment::At(place, header, *page);
    host->current = attachment;
    ASSERT_TRUE(session.Capture({}));
    ASSERT_TRUE(session.Capture({}));
    EXPECT_EQ(attachment->owner().registrations(), 1) << "in life " << life;
    EXPECT_EQ(attachment->owner().assumes_weights, life == 0) << "later it shows what it had";
  }
}

// A session of an owner that is there for as long as this lives.
struct AttachedSession {
  AttachedSession() { host->current = attachment; }
  ~AttachedSession() { host->current.reset(); }
  AttachedSession(const AttachedSession&) = delete;
  AttachedSession& operator=(const AttachedSession&) = delete;

  alignas(FakeSegmentAttachment) std::byte place[sizeof(FakeSegmentAttachment)];
  std::vector<std::byte> header;
  const std::unique_ptr<segment::SessionPage> page = std::make_unique<segment::SessionPage>();
  const std::shared_ptr<FakeHost> host = std::make_shared<FakeHost>();
  OwnerClient session{host, {.name = "n", .engine = "e"}, SystemClock::Instance()};
  const std::shared_ptr<FakeSegmentAttachment> attachment =
      FakeSegmentAttachment::At(place, header, *page);
};

// It is frozen, most likely: asking it would cost each look-up all of its time.
TEST(OwnerClientTest, ALookUpAsksNothingOfAnOwnerWithoutALease) {
  AttachedSession attached;
  OwnerClient& session = attached.session;
  FakeOwner& owner = attached.attachment->owner();
  const std::string_view key = "k";
  ItemResult result;
  ASSERT_TRUE(session.Exists({&key, 1}, {&result, 1}, {}));
  EXPECT_EQ(result.reason, MissReason::kLease);
  EXPECT_EQ(owner.registrations(), 0);
  attached.attachment->SetLease(SystemClock::Instance().NowNs() + 60 * kSecond);
  ASSERT_TRUE(session.Exists({&key, 1}, {&result, 1}, {}));
  EXPECT_EQ(result.reason, MissReason::kNeverPut);
  EXPECT_EQ(owner.registrations(), 1);
}

// A saver that takes all processors delays the owner's answer, too: the look-up would end while its
// values are being stored.
TEST(OwnerClientTest, AnOwnerThatIsLateDeniesNoSave) {
  AttachedSession attached;
  FakeOwner& owner = attached.attachment->owner();
  attached.attachment->SetLease(SystemClock::Instance().NowNs() + 60 * kSecond);
  const auto under_way = [&](Code answer) {
    owner.saves = answer;
    const std::string_view key = "k";
    ItemResult result;
    EXPECT_TRUE(attached.session.Exists({&key, 1}, {&result, 1}, {.under_way = true}));
    EXPECT_EQ(result.code, Code::kMiss);
    return result.under_way;
  };
  EXPECT_FALSE(under_way(Code::kTimeout)) << "no save was announced: it is not asked";
  attached.attachment->SetSavesUntil(SystemClock::Instance().NowNs() + 60 * kSecond);
  EXPECT_TRUE(under_way(Code::kInProgress));
  EXPECT_TRUE(under_way(Code::kTimeout));
  EXPECT_FALSE(under_way(Code::kMiss));
  EXPECT_FALSE(under_way(Code::kUnavailable)) << "its end is that of the saves that it knew";
}

// The header of an owner without a lease may show a generation that a reset has ended.
TEST(OwnerClientTest, ACaptureThatMustBeProvenAsksNothingOfAnOwnerWithoutALease) {
  AttachedSession attached;
  OwnerClient& session = attached.session;
  FakeOwner& owner = attached.attachment->owner();
  const auto lease_for = [&](std::int64_t ns) {
    attached.attachment->SetLease(SystemClock::Instance().NowNs() + ns);
  };
  EXPECT_EQ(session.Capture({.leased = true}).error().code, Code::kUnavailable);
  EXPECT_EQ(owner.registrations(), 0);
  lease_for(60 * kSecond);
  EXPECT_TRUE(session.Capture({.leased = true}));
  lease_for(-1);
  EXPECT_EQ(session.Capture({.leased = true}).error().code, Code::kUnavailable)
      << "also of a version that the session knows";
  EXPECT_TRUE(session.Capture({})) << "puts go on, and the owner checks the token";
}

// Each request waits for the one before it: a batch that would need several is reserved instead.
TEST(OwnerClientTest, AValueTravelsWithItsRequestWhileOneRequestCarriesTheBatch) {
  AttachedSession attached;
  OwnerClient& session = attached.session;
  FakeOwner& owner = attached.attachment->owner();
  const std::vector<std::byte> bytes(16 << 10);
  const auto put = [&](std::size_t count, std::size_t size) {
    std::vector<std::string> keys(count);
    std::vector<PutItem> items(count);
    const ConstBuffer value{.data = bytes.data(), .size = size};
    for (std::size_t i = 0; i < count; ++i) {
      keys[i] = "key " + std::to_string(i);
      items[i] = {.key = keys[i], .value = {&value, 1}, .after = {}};
    }
    std::vector<ItemResult> results(count);
    owner.puts = 0;
    EXPECT_TRUE(session.Put({.generation = FakeOwner::kGeneration, .slot = 0}, items, results, {}));
    return static_cast<std::size_t>(std::ranges::count_if(results, &ItemResult::ok));
  };
  EXPECT_EQ(put(63, 16 << 10), 63U);
  EXPECT_EQ(owner.puts, 1);
  EXPECT_EQ(put(64, 16 << 10), 0U) << "all of them are reserved";
  EXPECT_EQ(put(2048, 1 << 10), 2048U) << "copying is the least of what such small ones cost";
  EXPECT_GT(owner.puts, 1);
}

// A session of a host with two owners.
class HostSessionTest : public testing::Test {
 protected:
  HostSessionTest() {
    EXPECT_TRUE(owners_->Add({.socket = "one", .host = one.host}));
    EXPECT_TRUE(owners_->Add({.socket = "two", .host = two.host}));
  }

  AttachedSession one;
  AttachedSession two;
  const std::shared_ptr<LocalOwners> owners_ = std::make_shared<LocalOwners>();
  HostSession session{owners_, *owners_, {.name = "n", .engine = "e"}, SystemClock::Instance()};
  const std::string_view key = "k";
};

// Alone it would count as a change of version, which voids nothing. The second owner's client has
// not registered for the version itself, but both owners have one authority.
TEST_F(HostSessionTest, AResetOfAKnownVersionIsNotSentWithoutItsRegistration) {
  FakeOwner& first = one.attachment->owner();
  FakeOwner& second = two.attachment->owner();
  ASSERT_TRUE(session.Capture({.version = "v1"}));
  ASSERT_EQ(first.registrations(), 1);
  first.registers = second.registers = false;
  first.resets_answered = second.resets_answered = true;
  const ResetOptions options{.timeout = milliseconds(10), .version = "v1"};
  EXPECT_EQ(session.Reset(options).error().code, Code::kNotProven);
  EXPECT_EQ(first.resets + second.resets, 0);
  EXPECT_TRUE(session.closed());
}

TEST_F(HostSessionTest, AResetThatTheNextOwnerAnswersIsRegisteredThere) {
  ASSERT_TRUE(session.Capture({.version = "v1"}));
  FakeOwner& second = two.attachment->owner();
  second.resets_answered = true;
  EXPECT_TRUE(session.Reset({.timeout = milliseconds(60'000), .version = "v1"}));
  EXPECT_EQ(second.registrations(), 1);
  EXPECT_EQ(second.resets, 1);
}

// An owner that answers late uses up the time of the next one, too.
TEST_F(HostSessionTest, ACallThatAsksSeveralOwnersHasOneDeadline) {
  const std::span<const std::string_view> keys(&key, 1);
  ItemResult result;
  const std::vector<std::pair<std::string, std::function<void()>>> calls = {
      {"unpin", [&] { (void)session.Unpin(keys, {&result, 1}, {}); }},
      {"remove", [&] { (void)session.Remove(keys, {&result, 1}, {}); }},
      {"remove matching", [&] { (void)session.RemoveMatching("*", {}); }},
      {"stat", [&] { (void)session.Stat(keys, {}); }},
      {"list", [&] { (void)session.List("", {}); }},
      {"count", [&] { (void)session.Count({}); }},
      {"name versions", [&] { (void)session.NameVersions({}, {}); }},
  };
  for (const auto& [name, call] : calls) {
    std::vector<std::int64_t>& first = one.attachment->owner().deadlines;
    std::vector<std::int64_t>& second = two.attachment->owner().deadlines;
    first.clear();
    second.clear();
    call();
    ASSERT_EQ(first.size(), 1U) << name;
    ASSERT_EQ(second.size(), 1U) << name;
    EXPECT_LE(second[0], first[0] + kMillisecond) << name;  // it is rounded up
  }
}

// A slow owner's part must not be left out of the answer as if the owner had none.
TEST_F(HostSessionTest, ASlowOwnerIsNotTakenForOneThatIsAway) {
  const auto stat = [&] { return session.Stat({&key, 1}, {}); };
  const std::int64_t leased = SystemClock::Instance().NowNs() + 60 * kSecond;
  FakeOwner& slow = one.attachment->owner();
  FakeOwner& quick = two.attachment->owner();
  slow.refusal = Code::kTimeout;
  quick.stats = true;
  one.attachment->SetLease(leased);
  two.attachment->SetLease(leased);
  EXPECT_EQ(stat().error().code, Code::kTimeout);

  slow.deadlines.clear();
  one.attachment->SetLease(0);
  quick.asked = [&] { EXPECT_TRUE(slow.deadlines.empty()) << "a frozen owner is asked last"; };
  EXPECT_TRUE(stat()) << "it is frozen";
  EXPECT_EQ(slow.deadlines.size(), 1U);
  quick.asked = [] {};

  slow.refusal = Code::kUnavailable;
  one.attachment->SetLease(leased);
  EXPECT_TRUE(stat());
  quick.stats = false;
  EXPECT_EQ(stat().error().code, Code::kUnavailable);
}

}  // namespace
}  // namespace kvcove::requester
