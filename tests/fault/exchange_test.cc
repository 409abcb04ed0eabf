// SPDX-License-Identifier: Apache-2.0
// Tokens, certificates and their authority are exchanged as docs/security.md says, with nothing
// started again: sessions and new clients go on, and what was exchanged is refused afterwards.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>

#include "kvcove/rpc/credentials.h"
#include "kvcove/rpc/tls.h"
#include "tests/certificates.h"
#include "tests/fault/cluster_fault_fixture.h"
#include "tests/slowness.h"

namespace kvcove {
namespace {

class ExchangeTest : public ClusterFaultTest {
 protected:
  // In its place at once, as an editor or a secret's volume does it.
  void Write(const std::string& name, const std::string& text) const {
    const std::string path = directory() + "/" + name;
    std::ofstream(path + ".new") << text;
    std::filesystem::permissions(path + ".new", std::filesystem::perms(0600));
    std::filesystem::rename(path + ".new", path);
  }
  std::string Read(const std::string& name) const {
    std::ifstream file(directory() + "/" + name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void WriteServers() const {
    std::string text;
    for (const auto& [name, tokens] : tokens_) {
      text += fmt::format("[tenants.{}]\ntokens = [\"{}\"]\nscopes = [{}]\n", name,
                          fmt::join(tokens, "\", \""),
                          name == "cluster" ? R"("owner", "admin", "read")"
                                            : R"("read", "write", "reset", "owner")");
    }
    Write("servers.toml", text);
  }
  void WriteClient(const std::string& name, const std::string& token) const {
    Write(name, fmt::format("tenant = \"acme\"\ntoken = \"{}\"\n", token));
  }
  Result<std::unique_ptr<Pool>> OpenWith(const std::string& query) const {
    return Pool::Open(
        fmt::format("kvcove://{}?host=elsewhere{}", master_address().ToString(), query), kCallTime);
  }

  // With the owners' own words, for load from a session that stays and from clients that come.
  void Start(const std::vector<std::string>& owner_words) {
    StartMaster();
    const std::vector<std::string> masters = server_words_;
    server_words_.insert(server_words_.end(), owner_words.begin(), owner_words.end());
    for (std::size_t i = 0; i < 2; ++i) StartOwner(i, i + 1);
    server_words_ = masters;
    pool_ = Open();
    session_ = OpenSession(*pool_);
    ASSERT_TRUE(session_->Reset({.timeout = kCallTime}));
    load_ = std::thread([this] { Load(); });
  }
  void TearDown() override {
    StopLoad();
    ClusterFaultTest::TearDown();
  }
  void StopLoad() {
    stop_ = true;
    if (load_.joinable()) load_.join();
  }
  // What is wrong with a put or a get; empty: nothing.
  std::string Call(const std::vector<std::string>& keys, bool put) {
    const auto results = put ? Put(*session_, keys) : Get(*session_, keys);
    const auto bad = std::ranges::find_if_not(results, [](const ItemResult& result) {
      return result.ok() || result.code == Code::kExists;  // the call is a repeated one
    });
    if (bad == results.end()) return {};
    return fmt::format("{} of {} {}, then {}, reason {}", CountOk(results), keys.size(),
                       put ? "put" : "got", CodeName(bad->code), MissReasonName(bad->reason));
  }
  std::string Come() {
    const auto come = OpenWith(query_);
    return come ? std::string() : come.error().ToString();
  }
  void Load() {
    NoteWaits();
    for (int round = 0; !stop_; ++round) {
      const auto keys = Keys(4, fmt::format("round-{}", round));
      for (const bool put : {true, false}) Expect(round, [&] { return Call(keys, put); });
      NoteWaits();
      if (round % 20 == 0 && clients_come_) Expect(round, [&] { return Come(); });
      ++rounds_;
    }
  }
  // Looks, once in a quarter of a lease, whether some thread had no core for most of that time. The
  // sum over all threads would say nothing: the load itself makes them wait for each other.
  void NoteWaits() {
    const std::int64_t now = NowMs();
    if (now < noted_ms_ + kQuarterMs) return;
    auto waits = Slowness::WaitsNs();
    for (const auto& [thread, wait_ns] : waits) {
      const auto before = waits_.find(thread);
      if (before == waits_.end()) continue;
      const std::int64_t waited_ms = (wait_ns - before->second) / kMillisecond;
      if (waited_ms >= 200 && waited_ms * 5 >= (now - noted_ms_) * 3) starved_ms_ = now;
    }
    waits_ = std::move(waits);
    noted_ms_ = now;
  }
  // This process, or a thread of an owner or the master, had no core for a quarter of a lease.
  bool MachineWasSlow() {
    NoteWaits();
    return slowness_.StoodStillWithin(kAfterStandingStillMs) ||
           NowMs() - starved_ms_ <= kAfterStandingStillMs;
  }
  // No call fails. Two things last a second whatever deadline a call has: an owner's lease, without
  // which a get misses, and what a put has reserved. A machine that stands still for longer ends
  // either. So a call that it has failed is repeated, as an engine does, and must succeed; on a
  // machine that runs, none is repeated.
  template <typename Ask>
  void Expect(int round, const Ask& ask) {
    std::string wrong = ask();
    if (!wrong.empty() && MachineWasSlow()) {
      repeated_ += fmt::format("{}: {}\n", NowMs(), wrong);
      (void)Becomes([&] { return (wrong = ask()).empty(); });
    }
    if (wrong.empty()) return;
    ++failed_;
    const std::lock_guard lock(mutex_);
    failures_ += fmt::format("{}: round {}: {}\n", NowMs(), round, wrong);
  }
  // So many more rounds of the load, and more than a second: servers look at their files once in
  // that time.
  void GoOn() {
    const int rounds = rounds_ + 20;
    const std::int64_t until_ms = NowMs() + 1500;
    ASSERT_TRUE(Becomes([&] { return rounds_ >= rounds && NowMs() >= until_ms; }));
  }
  void ExpectNoFailure() {
    StopLoad();
    EXPECT_EQ(failed_, 0) << "in " << rounds_ << " rounds:\n" << failures_;
    RecordProperty("repeated", repeated_);
    WaitLive(2);
  }

  // Until an owner has its lease again, and the requester trusts it.
  static constexpr std::int64_t kAfterStandingStillMs = 3000;
  static constexpr std::int64_t kQuarterMs = 250;

  std::map<std::string, std::vector<std::string>> tokens_;
  const Slowness slowness_;
  std::map<std::string, std::int64_t> waits_;  // the load's, as the next: of each thread
  std::int64_t noted_ms_ = 0;
  std::int64_t starved_ms_ = INT64_MIN / 2;
  std::thread load_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> clients_come_{true};
  std::atomic<int> rounds_{0};
  std::atomic<int> failed_{0};
  std::string repeated_;  // the load's alone, until it has ended
  std::mutex mutex_;
  std::string failures_;
};

// The owners serve all tenants, or one.
class TokenExchangeTest : public ExchangeTest, public testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kOff);
    tokens_ = {{"acme", {rpc::NewToken()}}, {"cluster", {rpc::NewToken()}}};
    WriteServers();
    WriteClient("client.toml", tokens_["acme"][0]);
    WriteClient("old.toml", tokens_["acme"][0]);
    server_words_ = {"--credentials", directory() + "/servers.toml"};
    query_ = "&token=" + directory() + "/client.toml";
    const std::string cluster = directory() + "/servers.toml";
    access_ = Must(rpc::ServerAccess(Must(rpc::Credentials::Load(cluster)), {}, nullptr));
    Start(GetParam() ? std::vector<std::string>{"--tenant", "acme"} : std::vector<std::string>{});
  }
};

TEST_P(TokenExchangeTest, ATenantsTokenAndTheClustersAreExchangedUnderLoad) {
  const std::string old = tokens_["cluster"][0];
  for (const char* name : {"acme", "cluster"}) {
    // The new one stands last in the first round and first in the second: any order will do.
    auto& tokens = tokens_[name];
    const std::string next = rpc::NewToken();
    tokens.insert(name == std::string("acme") ? tokens.end() : tokens.begin(), next);
    WriteServers();
    GoOn();
    if (name == std::string("acme")) WriteClient("client.toml", next);
    GoOn();
    tokens = {next};
    WriteServers();
    GoOn();
  }
  ExpectNoFailure();
  const auto refused = OpenWith("&token=" + directory() + "/old.toml");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kDenied) << refused.error().ToString();
  const auto stale =
      rpc::Client::Connect(master_address(), rpc::AccessWith({.tenant = "cluster", .token = old}),
                           SystemClock::Instance().NowNs() + 30 * kSecond);
  ASSERT_FALSE(stale);
  EXPECT_EQ(stale.error().code, Code::kDenied) << stale.error().ToString();
}

INSTANTIATE_TEST_SUITE_P(Owners, TokenExchangeTest, testing::Bool(), [](const auto& param) {
  return std::string(param.param ? "OfOneTenant" : "OfAll");
});

class CertificateExchangeTest : public ExchangeTest {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kOff);
    ASSERT_TRUE(MakeCertificates(directory())) << "openssl could not make certificates";
    Write("authority.pem", Read("good-ca.pem"));
    Write("mine.pem", Read("good.pem"));
    Write("mine.key", Read("good.key"));
    const rpc::TlsFiles files{.authority = directory() + "/authority.pem",
                              .certificate = directory() + "/mine.pem",
                              .key = directory() + "/mine.key"};
    server_words_ = {"--tls-authority", files.authority, "--tls-certificate", files.certificate,
                     "--tls-key",       files.key,       "--insecure"};
    query_ = Query(files);
    access_.tls = Must(rpc::Tls::Open(files));
    Start({});
  }
  static std::string Query(const rpc::TlsFiles& files) {
    return fmt::format("&tls_authority={}&tls_certificate={}&tls_key={}", files.authority,
                       files.certificate, files.key);
  }
};

TEST_F(CertificateExchangeTest, ACertificateAndItsAuthorityAreExchangedUnderLoad) {
  // Both authorities count, then each process shows the new one's certificate, then that counts
  // alone.
  Write("authority.pem", Read("good-ca.pem") + Read("evil-ca.pem"));
  GoOn();
  // For a moment the two do not fit each other: what runs goes on, and what starts says so.
  clients_come_ = false;
  GoOn();
  Write("mine.pem", Read("evil.pem"));
  const auto mixed = OpenWith(query_);
  ASSERT_FALSE(mixed);
  EXPECT_NE(mixed.error().detail.find("mine.key"), std::string::npos) << mixed.error().detail;
  GoOn();
  Write("mine.key", Read("evil.key"));
  clients_come_ = true;
  GoOn();
  Write("authority.pem", Read("evil-ca.pem"));
  GoOn();
  ExpectNoFailure();
  const auto refused = OpenWith(Query({.authority = directory() + "/good-ca.pem",
                                       .certificate = directory() + "/good.pem",
                                       .key = directory() + "/good.key"}));
  EXPECT_FALSE(refused) << "the server still shows the old certificate";
  const auto unknown = OpenWith(Query({.authority = directory() + "/evil-ca.pem",
                                       .certificate = directory() + "/good.pem",
                                       .key = directory() + "/good.key"}));
  EXPECT_FALSE(unknown) << "the old authority still counts";
}

TEST_F(CertificateExchangeTest, AHangUpEndsNoServer) {
  for (const pid_t pid : {master(), owner(0), owner(1)}) kill(pid, SIGHUP);
  GoOn();
  ExpectNoFailure();
  for (const pid_t pid : {master(), owner(0), owner(1)}) EXPECT_EQ(kill(pid, 0), 0);
}

}  // namespace
}  // namespace kvcove
