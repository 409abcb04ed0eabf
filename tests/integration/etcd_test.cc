// SPDX-License-Identifier: Apache-2.0
// The control store over etcd itself: what its gateway, its users, its certificates and its quorum
// really do.
#include "tests/etcd.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <fstream>
#include <future>

#include "kvcove/master/etcd/etcd_store.h"
#include "kvcove/pool/masters.h"
#include "kvcove/server/etcd_masters.h"
#include "tests/becomes.h"
#include "tests/certificates.h"
#include "tests/must.h"

namespace kvcove::master {
namespace {

using nlohmann::json;

// A lease that outlasts a machine that stands still for some seconds, and a leader that waits for
// an etcd that starts slowly.
constexpr LeadershipOptions kPatient = {.ttl_ns = 10 * kSecond, .give_up_ns = 60 * kSecond};

class EtcdTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!EtcdProcesses::Available()) GTEST_SKIP() << "no etcd; scripts/etcd.sh fetches it";
  }
  static std::int64_t In(std::int64_t seconds) {
    return SystemClock::Instance().NowNs() + seconds * kSecond;
  }
  static EtcdOptions Options(const EtcdProcesses& etcd, const std::string& prefix = "/kvcove/a") {
    EtcdOptions options;
    options.place = *ParseEtcdPlace(etcd.Place(prefix));
    return options;
  }
  // Until it leads: an attempt whose answer was late may hold the place until its lease ends.
  static std::shared_ptr<EtcdLeadership> Campaign(const EtcdOptions& options,
                                                  const LeadershipOptions& how = kPatient) {
    EtcdClient client(options, SystemClock::Instance());
    return Await([&]() -> Result<std::shared_ptr<EtcdLeadership>> {
      std::optional<EtcdLeader> leader;
      KVCOVE_ASSIGN(auto leadership, EtcdLeadership::Campaign(
                                         client, {}, how, SystemClock::Instance(), In(5), leader));
      if (leadership == nullptr) return Fail(Code::kUnavailable, "somebody else leads");
      return leadership;
    });
  }
  static std::unique_ptr<EtcdStore> Open(const std::shared_ptr<EtcdLeadership>& leadership,
                                         Opened& opened) {
    auto store = EtcdStore::Open(leadership, {}, SystemClock::Instance(), opened);
    EXPECT_TRUE(store) << store.error().ToString();
    return store ? std::move(*store) : nullptr;
  }
  static Result<std::uint64_t> Commit(EtcdStore& store, std::vector<FactChange> changes) {
    std::promise<Result<std::uint64_t>> promise;
    store.Commit(std::move(changes),
                 [&](Result<std::uint64_t> revision) { promise.set_value(std::move(revision)); });
    return promise.get_future().get();
  }
  static Status Check(const EtcdOptions& options) {
    EtcdClient client(options, SystemClock::Instance());
    return CheckEtcd(client, In(8), SystemClock::Instance());
  }
  // Waits until etcd, which may be slow to answer, lets it through.
  static void ExpectUsable(const EtcdOptions& options) {
    Status checked;
    EXPECT_TRUE(Becomes([&] { return (checked = Check(options)).has_value(); }))
        << checked.error().ToString();
  }
  // Waits until the reason is this one: an etcd that is slow to answer is another. It is never let
  // through meanwhile.
  static void ExpectRefused(const EtcdOptions& options, const std::string& reason) {
    std::string why;
    EXPECT_TRUE(Becomes([&] {
      const Status checked = Check(options);
      EXPECT_FALSE(checked) << "instead of: " << reason;
      why = checked ? "" : checked.error().ToString();
      return checked || why.contains(reason);
    })) << "'"
        << why << "' instead of: " << reason;
  }
};

TEST_F(EtcdTest, FactsOutliveLeadersAndLargeTransactionsAreWhole) {
  EtcdProcesses etcd;
  etcd.StartAll();
  const EtcdOptions options = Options(etcd);
  ExpectUsable(options);
  auto leadership = Campaign(options);
  ASSERT_NE(leadership, nullptr);
  Opened opened;
  auto store = Open(leadership, opened);
  EXPECT_TRUE(opened.found_nothing);
  ASSERT_EQ(Commit(*store, {{"a", "1"}, {"odd key \x01", std::string("\0\xFF", 2)}}).value_or(0),
            1);
  std::vector<FactChange> many;
  for (int i = 0; i < 4096; ++i) many.push_back({fmt::format("slot/{}", i), std::string(200, 's')});
  ASSERT_EQ(Commit(*store, many).value_or(0), 2);
  std::vector<FactChange> large;
  for (int i = 0; i < 60; ++i) large.push_back({fmt::format("l{}", i), std::string(65536, 'l')});
  ASSERT_EQ(Commit(*store, large).value_or(0), 3);
  ASSERT_EQ(Commit(*store, {{"a", std::nullopt}}).value_or(0), 4);
  store.reset();
  leadership.reset();  // it resigns, so the next one leads at once
  leadership = Campaign(options);
  ASSERT_NE(leadership, nullptr);
  store = Open(leadership, opened);
  EXPECT_EQ(opened.revision, 4U);
  EXPECT_EQ(opened.facts.size(), 4096U + 60 + 1);
  EXPECT_EQ(opened.facts.at("odd key \x01"), (Fact{std::string("\0\xFF", 2), 1}));
  EXPECT_EQ(opened.facts.at("slot/4095").revision, 2U);
  EXPECT_EQ(opened.facts.at("l59"), (Fact{std::string(65536, 'l'), 3}));
}

TEST_F(EtcdTest, AKilledLeadersPlaceIsFreeAfterItsLeaseAndItsWritesAreRefused) {
  EtcdProcesses etcd;
  etcd.StartAll();
  const EtcdOptions options = Options(etcd);
  auto first = Campaign(options, {.ttl_ns = 5 * kSecond, .give_up_ns = 60 * kSecond});
  Opened opened;
  const auto store = Open(first, opened);
  ASSERT_TRUE(Commit(*store, {{"a", "1"}}));
  etcd.Stop(0);
  EXPECT_TRUE(Becomes([&] { return !first->Leads(); }));
  ASSERT_FALSE(Commit(*store, {{"a", "2"}}));
  etcd.Start(0);
  etcd.AwaitReady();
  // etcd counts leases anew when it starts, so nobody else has led.
  EXPECT_TRUE(Becomes([&] { return first->Leads(); })) << first->why_lost();
  EXPECT_EQ(Commit(*store, {{"a", "3"}}).value_or(0), 2U);
}

TEST_F(EtcdTest, NoQuorumIsSaid) {
  EtcdProcesses etcd({.members = 3});
  etcd.StartAll();
  etcd.Stop(1);
  etcd.Stop(2);
  const EtcdOptions options = Options(etcd);
  // The member that is left takes itself for the cluster's until it notices.
  ASSERT_TRUE(Becomes([&] { return !Check(options); }));
  ExpectRefused(options, "answers, but has no leader: its cluster has no quorum");
}

TEST_F(EtcdTest, OneOfThreeMembersMayDie) {
  EtcdProcesses etcd({.members = 3});
  etcd.StartAll();
  const EtcdOptions options = Options(etcd);
  auto leadership = Campaign(options);
  Opened opened;
  const auto store = Open(leadership, opened);
  std::uint64_t revision = 0;
  for (std::size_t gone = 0; gone < 3; ++gone) {
    etcd.Stop(gone);
    // While etcd elects, commits may be refused; nothing else may happen.
    const std::int64_t until = In(60);
    while (SystemClock::Instance().NowNs() < until) {
      const auto made = Commit(*store, {{"a", "v"}});
      if (made) {
        EXPECT_GT(*made, revision);
        revision = *made;
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    EXPECT_EQ(revision, gone + 1);
    EXPECT_FALSE(leadership->lost()) << leadership->why_lost();
    etcd.Start(gone);
    etcd.AwaitReady();
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
}

TEST_F(EtcdTest, EndpointsOfTwoClustersAreRefused) {
  EtcdProcesses one;
  EtcdProcesses two;
  one.StartAll();
  two.StartAll();
  EtcdOptions options = Options(one);
  options.place.endpoints.push_back(two.clients()[0]);
  ExpectRefused(options, "endpoints of two clusters");
}

class EtcdUsersTest : public EtcdTest {
 protected:
  void SetUp() override {
    EtcdTest::SetUp();
    if (IsSkipped()) return;
    etcd_.StartAll();
    EtcdClient client(Options(etcd_), SystemClock::Instance());
    const auto ask = [&](const char* path, const json& body) {
      // One attempt: a second one would find what the first one, answered late, has done.
      const auto answer = client.Call(path, body, In(60), 60 * kSecond);
      ASSERT_TRUE(answer) << path << " " << answer.error().ToString();
    };
    for (const char* role : {"root", "reader", "writer"}) {
      ask("/v3/auth/role/add", {{"name", role}});
      ask("/v3/auth/user/add", {{"name", role}, {"password", std::string(role) + "pass"}});
      ask("/v3/auth/user/grant", {{"user", role}, {"role", role}});
      if (role == std::string("root")) continue;
      ask("/v3/auth/role/grant",
          {{"name", role},
           {"perm",
            {{"permType", role == std::string("reader") ? "READ" : "READWRITE"},
             {"key", ToBase64("/kvcove/a/")},
             {"range_end", ToBase64(EndOfPrefix("/kvcove/a/"))}}}});
    }
    ask("/v3/auth/enable", json::object());
  }
  EtcdOptions As(const std::string& user, const std::string& prefix = "/kvcove/a") const {
    EtcdOptions options = Options(etcd_, prefix);
    if (!user.empty()) options.user = {.user = user, .password = user + "pass"};
    return options;
  }
  EtcdProcesses etcd_;
};

TEST_F(EtcdUsersTest, EachMistakeHasItsOwnMessage) {
  ExpectUsable(As("writer"));
  ExpectRefused(As(""), "give --store-user-file");
  ExpectRefused(As("reader"), "the user 'reader' may read below '/kvcove/a/' and not write");
  ExpectRefused(As("writer", "/kvcove/b"), "the user 'writer' may not read below '/kvcove/b/'");
  EtcdOptions wrong = As("writer");
  wrong.user.password = "guess";
  ExpectRefused(wrong, "user or password is wrong");
}

TEST_F(EtcdUsersTest, AUserLeadsAndWrites) {
  const auto leadership = Campaign(As("writer"));
  ASSERT_NE(leadership, nullptr);
  Opened opened;
  const auto store = Open(leadership, opened);
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(Commit(*store, {{"a", "1"}}).value_or(0), 1U);
  // Its keep-alives are answered: each moves the moment until which it leads.
  const auto leads_until = [&] { return SystemClock::Instance().NowNs() + leadership->LeftNs(); };
  for (int i = 0; i < 2; ++i) {
    const std::int64_t before = leads_until() + kMillisecond;
    EXPECT_TRUE(Becomes([&] { return leads_until() > before; })) << leadership->why_lost();
  }
  EXPECT_TRUE(Becomes([&] { return leadership->Leads(); })) << leadership->why_lost();
  EXPECT_FALSE(leadership->lost()) << leadership->why_lost();
}

// A client needs no more of etcd.
TEST_F(EtcdUsersTest, AReaderFindsWhoLeads) {
  server::UseEtcd();
  EtcdClient client(As("writer"), SystemClock::Instance());
  const EtcdLeader leader{.address = "m1:7400", .admin = ""};
  ASSERT_TRUE(client.Call(
      "/v3/kv/put", {{"key", ToBase64("/kvcove/a/leader")}, {"value", ToBase64(Encode(leader))}},
      In(60), 60 * kSecond));
  const auto find = [&] {
    return pool::FindMasters(etcd_.Place("/kvcove/a"), In(60), SystemClock::Instance());
  };
  const auto refused = find();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kDenied);
  EXPECT_THAT(refused.error().detail, testing::HasSubstr("$KVCOVE_STORE_USER_FILE"));
  const std::string file = etcd_.directory() + "/reader.toml";
  std::ofstream(file) << "user = \"reader\"\npassword = \"readerpass\"\n";
  std::filesystem::permissions(file, std::filesystem::perms::owner_read);
  setenv("KVCOVE_STORE_USER_FILE", file.c_str(), 1);
  const auto found = find();
  unsetenv("KVCOVE_STORE_USER_FILE");
  ASSERT_TRUE(found) << found.error().ToString();
  EXPECT_EQ(found->front().ToString(), "m1:7400");
}

TEST_F(EtcdTest, TlsAndItsMistakes) {
  std::string directory = "/dev/shm/kvcove-etcd-tls-XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  ASSERT_TRUE(MakeCertificates(directory));
  const auto file = [&](const char* name) { return directory + "/" + name; };
  {
    EtcdProcesses etcd({.more = {"--cert-file", file("good.pem"), "--key-file", file("good.key"),
                                 "--trusted-ca-file", file("good-ca.pem"), "--client-cert-auth"},
                        .scheme = "https"});
    etcd.StartAll();
    const auto with = [&](const rpc::TlsFiles& files) {
      EtcdOptions options = Options(etcd);
      auto tls = rpc::Tls::Open(files);
      EXPECT_TRUE(tls) << tls.error().ToString();
      options.tls = *tls;
      return options;
    };
    const EtcdOptions good = with({.authority = file("good-ca.pem"),
                                   .certificate = file("good.pem"),
                                   .key = file("good.key"),
                                   .foreign_server = true});
    ExpectUsable(good);
    const auto leadership = Campaign(good);
    ASSERT_NE(leadership, nullptr);
    Opened opened;
    EXPECT_EQ(Commit(*Open(leadership, opened), {{"a", "1"}}).value_or(0), 1U);
    ExpectRefused(with({.authority = file("evil-ca.pem"),
                        .certificate = file("good.pem"),
                        .key = file("good.key"),
                        .foreign_server = true}),
                  "certificate is not signed by the authority");
    EXPECT_FALSE(Check(with({.authority = file("good-ca.pem"),
                             .certificate = file("evil.pem"),
                             .key = file("evil.key"),
                             .foreign_server = true})));
    EXPECT_FALSE(Check(with({.authority = file("good-ca.pem"), .foreign_server = true})));
    ExpectRefused(Options(etcd), "if it speaks TLS");
  }
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace kvcove::master
