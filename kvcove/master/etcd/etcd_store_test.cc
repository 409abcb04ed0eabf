// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/etcd/etcd_store.h"

#include <gmock/gmock.h>

#include <future>

#include "kvcove/master/etcd/fake_etcd.h"
#include "tests/becomes.h"

namespace kvcove::master {
namespace {

using Fault = FakeEtcd::Fault;
using testing::HasSubstr;

class EtcdStoreTest : public testing::Test {
 protected:
  static std::int64_t In(std::int64_t seconds) {
    return SystemClock::Instance().NowNs() + seconds * kSecond;
  }
  // A lease that outlasts a machine that stands still.
  static constexpr LeadershipOptions kPatient = {.ttl_ns = 60 * kSecond,
                                                 .give_up_ns = 60 * kSecond};
  std::shared_ptr<EtcdLeadership> Campaign(const LeadershipOptions& options = kPatient) {
    EtcdClient client(etcd_.Options(), SystemClock::Instance());
    auto leadership =
        EtcdLeadership::Campaign(client, {.candidate = {}, .address = "me:1", .admin = {}}, options,
                                 SystemClock::Instance(), In(60), leader_);
    EXPECT_TRUE(leadership) << leadership.error().ToString();
    return leadership ? *leadership : nullptr;
  }
  void Open(const EtcdStoreOptions& options = {.attempt_ns = 100 * kMillisecond}) {
    store_.reset();
    leadership_.reset();
    leadership_ = Campaign();
    ASSERT_NE(leadership_, nullptr);
    opened_ = {};
    auto store = EtcdStore::Open(leadership_, options, SystemClock::Instance(), opened_);
    ASSERT_TRUE(store) << store.error().ToString();
    store_ = std::move(*store);
  }
  using Answer = std::future<Result<std::uint64_t>>;
  Answer Begin(std::vector<FactChange> changes) {
    auto promise = std::make_shared<std::promise<Result<std::uint64_t>>>();
    store_->Commit(std::move(changes), [promise](Result<std::uint64_t> revision) {
      promise->set_value(std::move(revision));
    });
    return promise->get_future();
  }
  static Result<std::uint64_t> End(Answer& answer) {
    if (answer.wait_for(std::chrono::seconds(60)) != std::future_status::ready) {
      return Fail(Code::kTimeout, "no answer");
    }
    return answer.get();
  }
  Result<std::uint64_t> Commit(std::vector<FactChange> changes) {
    Answer answer = Begin(std::move(changes));
    return End(answer);
  }
  static void ExpectRevision(const Result<std::uint64_t>& result, std::uint64_t revision) {
    ASSERT_TRUE(result) << result.error().ToString();
    EXPECT_EQ(*result, revision);
  }
  // What the next leader finds.
  Facts Next() {
    Open();
    return opened_.facts;
  }

  FakeEtcd etcd_;
  std::optional<EtcdLeader> leader_;
  std::shared_ptr<EtcdLeadership> leadership_;
  std::unique_ptr<EtcdStore> store_;
  Opened opened_;
};

TEST_F(EtcdStoreTest, RevisionsGrowByOneAndOutliveTheLeader) {
  Open();
  EXPECT_TRUE(opened_.found_nothing);
  ExpectRevision(Commit({{"a", "1"}, {"b", "2"}}), 1);
  ExpectRevision(Commit({{"a", "3"}}), 2);
  ExpectRevision(Commit({{"b", std::nullopt}, {"c", "4"}}), 3);
  const Facts expected{{"a", {.value = "3", .revision = 2}}, {"c", {.value = "4", .revision = 3}}};
  EXPECT_EQ(Next(), expected);
  EXPECT_EQ(opened_.revision, 3U);
  EXPECT_FALSE(opened_.found_nothing);
  ExpectRevision(Commit({{"d", "5"}}), 4);
}

TEST_F(EtcdStoreTest, CommitsThatWaitAreOneTransactionAndKeepTheirRevisions) {
  Open();
  etcd_.Faults({Fault::kHang});
  std::vector<Answer> answers;
  answers.push_back(Begin({{"first", "1"}}));
  while (etcd_.transactions() < 2) std::this_thread::yield();  // the campaign's, and this one
  for (int i = 0; i < 30; ++i) answers.push_back(Begin({{"k", std::to_string(i)}}));
  const std::size_t before = etcd_.transactions();
  etcd_.Release();
  for (std::size_t i = 0; i < answers.size(); ++i) ExpectRevision(End(answers[i]), i + 1);
  EXPECT_LE(etcd_.transactions(), before + 20);  // repetitions of the first, and one
  EXPECT_EQ(Next().at("k"), (Fact{.value = "29", .revision = 31}));
}

class LostAnswerTest : public EtcdStoreTest, public testing::WithParamInterface<Fault> {};

TEST_P(LostAnswerTest, ATransactionWithoutAnAnswerIsMadeOnce) {
  Open();
  ExpectRevision(Commit({{"a", "1"}}), 1);
  etcd_.Faults({GetParam(), GetParam()});
  Answer waits = Begin({{"a", "2"}});
  Answer behind = Begin({{"b", "3"}});
  ExpectRevision(End(waits), 2);
  ExpectRevision(End(behind), 3);
  const Facts expected{{"a", {.value = "2", .revision = 2}}, {"b", {.value = "3", .revision = 3}}};
  EXPECT_EQ(Next(), expected);
}

INSTANTIATE_TEST_SUITE_P(Faults, LostAnswerTest,
                         testing::Values(Fault::kEndBefore, Fault::kEndAfter, Fault::kSayFailed));

TEST_F(EtcdStoreTest, ATransactionThatIsMadeAfterItsRepetitionChangesNothing) {
  Open();
  etcd_.Faults({Fault::kHang});
  ExpectRevision(Commit({{"a", "1"}}), 1);  // the repetition's answer
  ExpectRevision(Commit({{"a", "2"}}), 2);
  etcd_.Release();  // the first one is tried only now
  ExpectRevision(Commit({{"b", "3"}}), 3);
  EXPECT_EQ(Next().at("a"), (Fact{.value = "2", .revision = 2}));
}

// An answer that follows from the failure says then that this master does not lead, so that its
// caller waits for the next leader.
TEST_F(EtcdStoreTest, TheLeadershipEndsBeforeTheCommitFailsThatFindsAnotherLeader) {
  Open();
  etcd_.EndLeases();
  const auto other = Campaign();
  ASSERT_NE(other, nullptr);
  std::promise<bool> leads;
  store_->Commit({{"a", "1"}}, [&](const Result<std::uint64_t>& revision) {
    EXPECT_FALSE(revision);
    leads.set_value(leadership_->Leads());
  });
  EXPECT_FALSE(leads.get_future().get());
}

TEST_F(EtcdStoreTest, AnotherLeaderEndsThisOnesWrites) {
  Open();
  ExpectRevision(Commit({{"a", "1"}}), 1);
  etcd_.EndLeases();  // this one does not know yet
  const auto other = Campaign();
  ASSERT_NE(other, nullptr);
  const auto refused = Commit({{"a", "2"}});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kUnavailable);
  EXPECT_TRUE(leadership_->lost());
  EXPECT_FALSE(leadership_->Leads());
  EXPECT_TRUE(other->Leads());
  ASSERT_FALSE(Commit({{"a", "3"}})) << "not even asked";
  other->Lose("enough");
  etcd_.EndLeases();
  EXPECT_EQ(Next().at("a"), (Fact{.value = "1", .revision = 1}));
}

TEST_F(EtcdStoreTest, AnAnswerThatLiedEndsTheLeadership) {
  Open();
  etcd_.Faults({Fault::kSayDone});
  ExpectRevision(Commit({{"a", "1"}}), 1);
  ASSERT_FALSE(Commit({{"a", "2"}}));
  EXPECT_TRUE(leadership_->lost());
  EXPECT_THAT(leadership_->why_lost(), HasSubstr("somebody who does not lead has written"));
}

TEST_F(EtcdStoreTest, ARefusalIsToldAndTheNextCommitGoesOn) {
  Open();
  etcd_.Faults({Fault::kNoSpace});
  const auto refused = Commit({{"a", "1"}});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kNoSpace);
  ExpectRevision(Commit({{"a", "2"}}), 1);
}

TEST_F(EtcdStoreTest, ARefusalOfARepetitionSaysNothingAboutTheFirst) {
  Open();
  etcd_.Faults({Fault::kEndAfter, Fault::kEndAfter, Fault::kNoSpace});
  ExpectRevision(Commit({{"a", "1"}}), 1);
  EXPECT_EQ(Next().at("a").value, "1");
}

TEST_F(EtcdStoreTest, ATransactionLargerThanEtcdsIsWholeAllTheSame) {
  Open();
  std::vector<FactChange> changes;
  for (int i = 0; i < 1000; ++i) changes.push_back({"k" + std::to_string(i), std::to_string(i)});
  changes.push_back({"large", std::string(kMaxFactValueBytes, 'x')});
  ExpectRevision(Commit(changes), 1);
  ExpectRevision(Commit({{"k7", "new"}}), 2);
  const Facts facts = Next();
  EXPECT_EQ(facts.size(), 1001U);
  EXPECT_EQ(facts.at("k8"), (Fact{.value = "8", .revision = 1}));
  EXPECT_EQ(facts.at("k7"), (Fact{.value = "new", .revision = 2}));
  for (const auto& [key, value] : etcd_.keys()) EXPECT_FALSE(key.starts_with("/pool/part/")) << key;
}

// Whenever a leader ends while it writes a large transaction, the next one finds all of it or
// nothing.
TEST_F(EtcdStoreTest, ALargeTransactionIsAllOrNothingWhereverALeaderEnds) {
  std::vector<FactChange> changes;
  for (int i = 0; i < 300; ++i) changes.push_back({"k" + std::to_string(i), "new"});
  // A part, the head, the facts in 4 transactions, the head again.
  for (const std::size_t after : {0, 1, 2, 4, 6}) {
    FakeEtcd fresh;
    EtcdClient client(fresh.Options(), SystemClock::Instance());
    const auto open = [&](std::shared_ptr<EtcdLeadership>& leadership, Opened& opened) {
      leadership =
          *EtcdLeadership::Campaign(client, {}, kPatient, SystemClock::Instance(), In(60), leader_);
      return *EtcdStore::Open(leadership, {.attempt_ns = 50 * kMillisecond},
                              SystemClock::Instance(), opened);
    };
    std::shared_ptr<EtcdLeadership> leadership;
    Opened opened;
    auto store = open(leadership, opened);
    std::promise<void> small;
    store->Commit({{"k0", "old"}}, [&](const auto&) { small.set_value(); });
    small.get_future().wait();
    std::vector<Fault> faults(after, Fault::kNone);
    faults.resize(after + 100, Fault::kEndBefore);
    fresh.Faults(faults);
    std::promise<bool> done;
    store->Commit(changes, [&](const Result<std::uint64_t>& made) { done.set_value(!!made); });
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    leadership->Lose("killed");
    const bool said = done.get_future().get();
    store.reset();
    leadership.reset();
    fresh.EndLeases();
    fresh.Faults({});
    Opened next;
    store = open(leadership, next);
    const std::size_t count = next.facts.size();
    EXPECT_TRUE(count == 1 || count == 300) << count << " after " << after;
    EXPECT_TRUE(!said || count == 300U) << after;
    EXPECT_EQ(next.facts.at("k0").value, count == 300 ? "new" : "old");
    // What was left unfinished is finished before anything else is written.
    std::promise<std::uint64_t> then;
    store->Commit({{"k1", "later"}}, [&](const auto& made) { then.set_value(made.value_or(0)); });
    EXPECT_EQ(then.get_future().get(), count == 300 ? 3U : 2U);
    store.reset();
    leadership.reset();
    fresh.EndLeases();
    Opened last;
    store = open(leadership, last);
    EXPECT_EQ(last.facts.at("k1").value, "later");
    EXPECT_EQ(last.facts.size(), count == 300 ? 300U : 2U);
  }
}

TEST_F(EtcdStoreTest, ReadsInPages) {
  Open();
  for (int i = 0; i < 25; ++i) ASSERT_TRUE(Commit({{"k" + std::to_string(i), "v"}}));
  Open({.page = 4});
  EXPECT_EQ(opened_.facts.size(), 25U);
  EXPECT_EQ(opened_.revision, 25U);
}

TEST_F(EtcdStoreTest, ACutOffLeaderDoesNotLeadAndComesBackWhenItsLeaseLived) {
  leadership_ = Campaign({.ttl_ns = kSecond, .give_up_ns = 60 * kSecond});
  ASSERT_TRUE(Becomes([&] { return leadership_->Leads(); }));
  EXPECT_LE(leadership_->LeftNs(), kSecond / 10 * 8) << "it stops before etcd's lease ends";
  etcd_.Silence(true);
  EXPECT_TRUE(Becomes([&] { return !leadership_->Leads(); }));
  EXPECT_FALSE(leadership_->lost());
  etcd_.Silence(false);
  EXPECT_TRUE(Becomes([&] { return leadership_->Leads(); }));
  etcd_.EndLeases();
  EXPECT_TRUE(Becomes([&] { return leadership_->lost(); }));
}

TEST_F(EtcdStoreTest, OneLeadsAtATime) {
  leadership_ = Campaign();
  EXPECT_EQ(Campaign(), nullptr);
  ASSERT_TRUE(leader_);
  EXPECT_EQ(leader_->address, "me:1");
  leadership_.reset();  // resigns
  EXPECT_NE(Campaign(), nullptr);
}

TEST_F(EtcdStoreTest, ACampaignWhoseAnswerWasLostIsRecognised) {
  etcd_.Faults({Fault::kEndAfter, Fault::kEndAfter});
  leadership_ = Campaign();
  EXPECT_NE(leadership_, nullptr);
}

TEST_F(EtcdStoreTest, EndpointsOfTwoClustersAreRefused) {
  FakeEtcd other("88");
  EtcdOptions options = etcd_.Options();
  options.place.endpoints.push_back(other.address());
  EtcdClient client(options, SystemClock::Instance());
  const Status checked = CheckEtcd(client, In(60), SystemClock::Instance());
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().code, Code::kIncompatible);
  EXPECT_THAT(checked.error().detail, HasSubstr("endpoints of two clusters"));
}

TEST_F(EtcdStoreTest, APrefixWithinAnotherPoolsIsRefused) {
  Open();
  ASSERT_TRUE(Commit({{"a", "1"}}));
  EtcdClient within(etcd_.Options("/pool/fact/"), SystemClock::Instance());
  Status checked = CheckEtcd(within, In(60), SystemClock::Instance());
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().code, Code::kIncompatible);
  EtcdClient around(etcd_.Options("/"), SystemClock::Instance());
  etcd_.Set("/x/pool2/head", "x");
  EtcdClient above(etcd_.Options("/x/"), SystemClock::Instance());
  checked = CheckEtcd(above, In(60), SystemClock::Instance());
  ASSERT_FALSE(checked);
  EXPECT_THAT(checked.error().detail, HasSubstr("the prefix of another pool"));
}

TEST_F(EtcdStoreTest, AnEndpointThatDoesNotAnswerIsPassedOver) {
  EtcdOptions options = etcd_.Options();
  rpc::Address nobody = rpc::LoopbackAddress(0);
  {
    const auto listener = rpc::ListenTcp(nobody);
  }
  options.place.endpoints.insert(options.place.endpoints.begin(), nobody);
  EtcdClient client(options, SystemClock::Instance());
  const Status checked = CheckEtcd(client, In(60), SystemClock::Instance());
  EXPECT_TRUE(checked) << checked.error().ToString();
  options.place.endpoints.pop_back();
  EtcdClient none(options, SystemClock::Instance());
  const Status failed = CheckEtcd(none, In(60), SystemClock::Instance());
  ASSERT_FALSE(failed);
  EXPECT_THAT(failed.error().detail, HasSubstr("Connection refused"));
}

// The client asks anew each time, as leaders and clients do that have lost their token.
TEST_F(EtcdStoreTest, APasswordThatTakesLongerThanAnAttemptIsCheckedInALaterOne) {
  etcd_.CheckPasswordsFor(std::chrono::milliseconds(300));
  EtcdOptions options = etcd_.Options();
  options.user = {.user = "leader", .password = "secret"};
  EtcdClient client(options, SystemClock::Instance());
  constexpr std::int64_t kShortNs = 100 * kMillisecond;
  Result<nlohmann::json> answer = Fail(Code::kInternal, "");
  int attempts = 0;
  for (; !answer && attempts < 20; ++attempts) {
    answer = client.Call("/v3/kv/range", {{"key", ToBase64("/pool/head")}}, In(60), kShortNs);
  }
  EXPECT_TRUE(answer) << answer.error().ToString();
  EXPECT_GT(attempts, 1);
  EXPECT_EQ(client.AttemptNs(kShortNs), kShortNs) << "later calls need no password";
}

TEST_F(EtcdStoreTest, ADamagedValueIsNotTaken) {
  Open();
  ASSERT_TRUE(Commit({{"a", "1"}}));
  etcd_.Set("/pool/fact/a", "nonsense");
  store_.reset();
  leadership_.reset();
  leadership_ = Campaign();
  const auto damaged = EtcdStore::Open(leadership_, {}, SystemClock::Instance(), opened_);
  ASSERT_FALSE(damaged);
  EXPECT_EQ(damaged.error().code, Code::kCorrupt);
}

}  // namespace
}  // namespace kvcove::master
