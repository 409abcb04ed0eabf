// SPDX-License-Identifier: Apache-2.0
// The admin interface of a pool of one host, asked over its socket while sessions use the pool.
#include "kvcove/server/host_admin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "kvcove/base/log.h"
#include "kvcove/base/size.h"
#include "kvcove/http/connection.h"
#include "kvcove/pool/host_status.h"
#include "kvcove/pool/pool.h"
#include "kvcove/rpc/test_tls.h"
#include "kvcove/rpc/unix_access.h"
#include "kvcove/server/daemon.h"
#include "kvcove/server/embedded_admin.h"
#include "tests/becomes.h"
#include "tests/must.h"

namespace kvcove::server {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr std::chrono::milliseconds kCallTime(60'000);

std::int64_t InAMinute() { return SystemClock::Instance().NowNs() + 60 * kSecond; }

http::Response AskAt(UniqueFd fd, const std::string& method, const std::string& target,
                     const std::string& body = {}) {
  http::Connection connection(std::move(fd));
  return Must(connection.Ask(
      {.method = method, .host = "localhost", .target = target, .authorization = {}, .body = body},
      InAMinute()));
}

void PutValue(Session& session, const std::string& key, std::size_t size, const Token& token) {
  const std::string value(size, 'v');
  const ConstBuffer pieces[] = {{value.data(), value.size()}};
  const PutItem item{.key = key, .value = pieces};
  ItemResult result;
  ASSERT_TRUE(session.Put(token, {&item, 1}, {&result, 1}, {.timeout = kCallTime}));
  ASSERT_EQ(result.code, Code::kOk);
}

void PutValue(Session& session, const std::string& key, std::size_t size = 3000) {
  PutValue(session, key, size, Must(session.Capture({.timeout = kCallTime})));
}

class HostAdminTest : public testing::Test {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kError);
    directory_ = std::filesystem::temp_directory_path() / "kvcove-admin-XXXXXX";
    ASSERT_NE(mkdtemp(directory_.data()), nullptr);
    DaemonOptions options;
    options.host.owner.memory_bytes = 4 * kMiB;
    options.host.owner.populate = false;
    options.host.owner.log_resets = false;
    options.host.data_directory = directory_ + "/data";
    options.socket_path = directory_ + "/kvcove.sock";
    daemon_ = Must(Daemon::Open(options, SystemClock::Instance()));
    Serve();
    pool_ = Must(Pool::Open("unix:" + options.socket_path, kCallTime));
    session_ = Must(pool_->OpenSession({.name = "acme/llama", .engine = "e1"}));
  }
  void TearDown() override {
    session_.reset();
    pool_.reset();
    admin_.reset();
    EXPECT_FALSE(std::filesystem::exists(socket()));
    daemon_.reset();
    std::filesystem::remove_all(directory_);
    SetLogLevel(LogLevel::kWarn);
  }
  void Serve() {
    Daemon* const daemon = daemon_.get();
    HostAdminOptions options;
    options.socket_path = socket();
    admin_ =
        Must(HostAdmin::Open(PoolOf({&daemon, 1}), std::move(options), SystemClock::Instance()));
  }
  std::string socket() const { return pool::AdminSocketOf(directory_ + "/kvcove.sock"); }
  http::Response Ask(const std::string& method, const std::string& target,
                     const std::string& body = {}) {
    return AskAt(Must(rpc::ConnectUnix(socket(), InAMinute())), method, target, body);
  }
  json Get(const std::string& target) {
    const http::Response response = Ask("GET", target);
    EXPECT_EQ(response.status, 200) << response.body;
    return json::parse(response.body);
  }
  json Post(const std::string& target, const json& body) {
    const http::Response response = Ask("POST", target, body.dump());
    EXPECT_EQ(response.status, 200) << response.body;
    return json::parse(response.body);
  }

  std::string directory_;
  std::unique_ptr<Daemon> daemon_;
  std::unique_ptr<HostAdmin> admin_;
  std::unique_ptr<Pool> pool_;
  SessionPtr session_;
};

TEST_F(HostAdminTest, ShowsThePoolInTheWordsOfAMasters) {
  PutValue(*session_, "k1");
  PutValue(*session_, "k2");
  EXPECT_EQ(Ask("GET", "/healthz").body, "ok\n");
  EXPECT_EQ(Ask("GET", "/readyz").status, 200);
  ASSERT_TRUE(Becomes([&] { return Get("/v1/status")["objects"] == 2; }));
  const json status = Get("/v1/status");
  EXPECT_EQ(status["role"], "host");
  EXPECT_EQ(status["owners_live"], 1);
  EXPECT_EQ(status["capacity_bytes"], 4 * kMiB);
  EXPECT_EQ(status["registrations"], 1);
  EXPECT_EQ(status["pool"].get<std::string>().size(), 32U);
  EXPECT_FALSE(status.contains("members"));
  json expected;
  ASSERT_TRUE(Becomes([&] {
    expected = Get("/v1/status")["expected"];
    return expected["asked"] == 2;
  })) << expected;
  EXPECT_EQ(expected["hit_ratio"]["memory"]["double"], 0) << "both were stored, and none read";
  EXPECT_EQ(expected["hit_ratio"]["memory"]["any"], 0);
  EXPECT_EQ(expected["hit_ratio"]["disk"], json::object());
  const json segments = Get("/v1/segments")["segments"];
  ASSERT_EQ(segments.size(), 1U);
  EXPECT_EQ(segments[0]["address"], directory_ + "/kvcove.sock");
  EXPECT_EQ(segments[0]["state"], "live");
  EXPECT_EQ(segments[0]["puts"], 2);
  const json namespaces = Get("/v1/namespaces")["namespaces"];
  ASSERT_EQ(namespaces.size(), 1U);
  EXPECT_EQ(namespaces[0]["namespace"], "acme/llama");
  EXPECT_GE(namespaces[0]["bytes"], 6000);
  EXPECT_LT(namespaces[0]["bytes"], 3 * 3000) << "those of two values, in whole granules";
  EXPECT_EQ(Get("/v1/tasks")["tasks"], json::array());
  EXPECT_THAT(Ask("GET", "/metrics").body, HasSubstr("kvcove_owner_sessions 1\n"));
  EXPECT_EQ(Ask("GET", "/v1/members").status, 404);
}

TEST_F(HostAdminTest, ListsKeysInPages) {
  for (int i = 0; i < 5; ++i) PutValue(*session_, "key" + std::to_string(i));
  PutValue(*session_, "other");
  std::set<std::string> found;
  std::string after;
  int pages = 0;
  for (; pages < 20; ++pages) {
    const json page = Get("/v1/keys?namespace=acme%2Fllama&prefix=key&limit=2" + after);
    EXPECT_LE(page["keys"].size(), 2U);
    for (const json& key : page["keys"]) {
      found.insert(key["key"]);
      EXPECT_EQ(key["bytes"], 3000);
      EXPECT_EQ(key["tier"], "memory");
    }
    if (!page.contains("next")) break;
    after = "&after=" + page["next"].get<std::string>();
  }
  EXPECT_THAT(found, testing::ElementsAre("key0", "key1", "key2", "key3", "key4"));
  EXPECT_GT(pages, 1);
}

TEST_F(HostAdminTest, ListsTheKeysOfAllVersions) {
  for (const char* version : {"v1", "v2", "v3"}) {
    const Token token = Must(session_->Capture({.timeout = kCallTime, .version = version}));
    for (const char* key : {"a", "b"}) PutValue(*session_, key, 3000, token);
  }
  std::multiset<std::string> found;
  std::string after;
  for (int pages = 0; pages < 20; ++pages) {
    const json page = Get("/v1/keys?namespace=acme%2Fllama&limit=1" + after);
    EXPECT_LE(page["keys"].size(), 1U);
    for (const json& key : page["keys"]) {
      found.insert(key["version"].get<std::string>() + key["key"].get<std::string>());
    }
    if (!page.contains("next")) break;
    after = "&after=" + page["next"].get<std::string>();
  }
  EXPECT_THAT(found, testing::ElementsAre("v1a", "v1b", "v2a", "v2b", "v3a", "v3b"));
  EXPECT_EQ(Get("/v1/keys?namespace=acme%2Fllama&version=v2")["keys"].size(), 2U);
}

TEST_F(HostAdminTest, SaysWhereAKeyIsOrWhyItIsNowhere) {
  PutValue(*session_, "here");
  PutValue(*session_, "gone");
  json here = Get("/v1/key?key=here")["in"][0];
  EXPECT_TRUE(here["found"].get<bool>());
  EXPECT_EQ(here["bytes"], 3000);
  EXPECT_EQ(here["locations"][0]["owner"], directory_ + "/kvcove.sock");
  EXPECT_EQ(Post("/v1/remove", {{"namespace", "acme/llama"}, {"prefix", "gone"}})["removed"], 1);
  EXPECT_EQ(Get("/v1/key?key=gone")["in"][0]["reason"], "removed");
  const json never = Get("/v1/key?key=never")["in"][0];
  EXPECT_EQ(never["reason"], "not put since the owner started");
  EXPECT_GE(never["started_seconds_ago"].get<double>(), 0);
  const http::Response unknown = Ask("GET", "/v1/key?key=here&namespace=acme%2Fllma");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_THAT(unknown.body, HasSubstr("did you mean 'acme/llama'?"));
}

TEST_F(HostAdminTest, LocatesAPrefix) {
  PutValue(*session_, "a");
  PutValue(*session_, "g0.h0of1@0a1b");
  const json located =
      Post("/v1/prefix", {{"namespace", "acme/llama"}, {"keys", {"a", "b", "g0.h0of1@0a1b"}}});
  EXPECT_EQ(located["keys"], 1);
  EXPECT_EQ(located["reason"], "never put");
  ASSERT_EQ(located["owners"].size(), 1U);
  EXPECT_EQ(located["owners"][0]["owner"], directory_ + "/kvcove.sock");
  EXPECT_EQ(located["owners"][0]["memory_prefix"], 1);
  const json blocks =
      Post("/v1/prefix",
           {{"namespace", "acme/llama"}, {"block_hashes", {"0a1b", "ff"}}, {"tags", {"g0.h0of1"}}});
  EXPECT_EQ(blocks["chunks"], 1);
  EXPECT_EQ(blocks["owners"][0]["prefix_chunks"], 1);
  // The most keys of a call.
  const std::vector<std::string> many(kMaxBatch, std::string(80, 'k'));
  EXPECT_EQ(Post("/v1/prefix", {{"namespace", "acme/llama"}, {"keys", many}})["keys"], 0);
}

TEST_F(HostAdminTest, ListsTheEnginesThatWork) {
  PutValue(*session_, "k");
  const json answer = Get("/v1/engines");
  EXPECT_EQ(answer["registered"], 1);
  const json engine = answer["engines"][0];
  EXPECT_EQ(engine["namespace"], "acme/llama");
  EXPECT_TRUE(engine["open"].get<bool>());
  EXPECT_EQ(engine["processes"], 1);
}

TEST_F(HostAdminTest, CountsForThePage) {
  Daemon* const daemon = daemon_.get();
  HostPool pool(PoolOf({&daemon, 1}), SystemClock::Instance());
  PutValue(*session_, "k");
  EXPECT_EQ(pool.Count().resets, 0U);
  ASSERT_TRUE(session_->Reset({.timeout = kCallTime}));
  const HostPool::Counts counts = pool.Count();
  EXPECT_EQ(counts.resets, 1U);
  ASSERT_EQ(counts.calls.size(), 2U);
  EXPECT_EQ(counts.calls[1].first, "reset");
  EXPECT_EQ(std::accumulate(counts.calls[1].second.begin(), counts.calls[1].second.end(), 0ULL),
            1U);
  EXPECT_EQ(Ask("GET", "/").status, 404) << "no browser reaches the socket";
}

// A session that the reset overtook follows it, as that of an operator at a master's endpoint.
TEST_F(HostAdminTest, AResetIsProvenAndFollowed) {
  PutValue(*session_, "k");
  const json answer = Post("/v1/reset", {{"namespace", "acme/llama"}});
  EXPECT_TRUE(answer["proven"].get<bool>());
  EXPECT_EQ(answer["raised"], 1);
  EXPECT_FALSE(Get("/v1/key?key=k")["in"][0]["found"].get<bool>());
  PutValue(*session_, "k");
  EXPECT_TRUE(Get("/v1/key?key=k")["in"][0]["found"].get<bool>());
}

// A change keeps a thread of the endpoint while it waits.
TEST_F(HostAdminTest, AWaitForAProofIsBounded) {
  PutValue(*session_, "k");
  const json reset = {{"namespace", "acme/llama"}};
  const json prune = {{"namespace", "acme/llama"}, {"before", "v1"}};
  for (const auto& [path, body] : {std::pair{"/v1/reset", reset}, std::pair{"/v1/prune", prune}}) {
    for (const char* timeout : {"60001", "9223372036854775807", "18446744073709551615"}) {
      json asked = body;
      asked["timeout_ms"] = timeout;
      const http::Response answer = Ask("POST", path, asked.dump());
      EXPECT_EQ(answer.status, 400) << path << " " << timeout;
      EXPECT_THAT(answer.body, HasSubstr("at most 60000"));
    }
  }
  EXPECT_TRUE(Get("/v1/key?key=k")["in"][0]["found"].get<bool>());
}

TEST_F(HostAdminTest, PrunesVersions) {
  for (const char* version : {"v1", "v2"}) {
    ASSERT_TRUE(session_->Capture({.timeout = kCallTime, .version = version}));
  }
  EXPECT_EQ(Post("/v1/prune", {{"namespace", "acme/llama"}, {"before", "v2"}})["versions"], 1);
}

TEST_F(HostAdminTest, PinsForATimeAndUnpins) {
  for (const char* key : {"a/1", "a/2", "b"}) PutValue(*session_, key);
  const auto pinned = [&](std::string_view key) {
    return Must(session_->Stat({&key, 1}, {.timeout = kCallTime}))[0]->hard_pinned;
  };
  const json name = {{"namespace", "acme/llama"}};
  const auto with = [&](json more) {
    more.update(name);
    return more;
  };
  json answer = Post("/v1/pin", with({{"prefix", "a/"}, {"seconds", "600"}}));
  EXPECT_EQ(answer["pinned"], 2) << answer.dump();
  EXPECT_EQ(answer["refused"], 0);
  EXPECT_TRUE(pinned("a/1"));
  EXPECT_FALSE(pinned("b"));
  EXPECT_TRUE(Get("/v1/keys?prefix=a/1")["keys"][0]["hard_pinned"].get<bool>());
  EXPECT_EQ(daemon_->host().owner().Stat().timed_pin_bytes,
            daemon_->host().owner().Stat().pinned_bytes);
  EXPECT_EQ(Post("/v1/unpin", with({{"key", "a/2"}}))["unpinned"], 1);
  EXPECT_FALSE(pinned("a/2"));
  EXPECT_EQ(Post("/v1/pin", with({{"key", "b"}, {"seconds", 1}}))["pinned"], 1);
  EXPECT_TRUE(Becomes([&] { return !pinned("b"); }));
  EXPECT_EQ(Post("/v1/pin", with({{"key", "c"}, {"seconds", 1}}))["pinned"], 0);
  EXPECT_EQ(Post("/v1/pin", with({{"key", "b"}, {"seconds", 9}, {"version", ""}}))["pinned"], 1);
  EXPECT_EQ(Ask("POST", "/v1/pin", with({{"key", "b"}}).dump()).status, 400) << "for how long";
  EXPECT_EQ(Ask("POST", "/v1/pin", with({{"key", "b"}, {"seconds", 86'401}}).dump()).status, 400);
  EXPECT_EQ(Ask("POST", "/v1/unpin", with({{"key", "b"}, {"version", "v1"}}).dump()).status, 404);
}

TEST_F(HostAdminTest, PinsBeyondHalfOfTheMemoryAreRefusedAndCounted) {
  for (const char* key : {"1", "2", "3"}) PutValue(*session_, key, 700 << 10);
  std::uint64_t done = 0;
  std::uint64_t refused = 0;
  for (const char* key : {"1", "2", "3"}) {
    const json answer =
        Post("/v1/pin", {{"namespace", "acme/llama"}, {"key", key}, {"seconds", 0}});
    done += answer["pinned"].get<std::uint64_t>();
    refused += answer["refused"].get<std::uint64_t>();
  }
  EXPECT_EQ(done, 2U);
  EXPECT_EQ(refused, 1U);
  EXPECT_EQ(daemon_->host().owner().Stat().timed_pin_bytes, 0U) << "without an end";
}

// The rules are those of a master's endpoint: a page of a browser cannot reach the socket, but a
// proxy in front may be one.
TEST_F(HostAdminTest, ForeignPagesAreRefused) {
  http::Connection connection(Must(rpc::ConnectUnix(socket(), InAMinute())));
  const auto foreign = Must(connection.Ask({.method = "GET",
                                            .host = "pool.example",
                                            .target = "/v1/status",
                                            .authorization = {},
                                            .body = {}},
                                           InAMinute()));
  EXPECT_EQ(foreign.status, 403);
}

TEST_F(HostAdminTest, TheSocketIsThisUsersAlone) {
  struct stat status{};
  ASSERT_EQ(stat(socket().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
  EXPECT_EQ(pool::StatusOfOwners(directory_ + "/kvcove.sock", 60 * kSecond).size(), 1U)
      << "the admin socket was taken for a sibling's";
}

// A cleaner of /tmp removes names that nobody has touched for days.
TEST_F(HostAdminTest, ASocketThatIsRemovedIsBoundAgain) {
  ASSERT_TRUE(std::filesystem::remove(socket()));
  ASSERT_TRUE(Becomes([&] { return rpc::ConnectUnix(socket(), InAMinute()).has_value(); }));
  EXPECT_EQ(Get("/v1/status")["role"], "host");
}

TEST_F(HostAdminTest, ASocketThatCannotBeBoundEndsNothing) {
  Daemon* const daemon = daemon_.get();
  HostAdminOptions options;
  options.socket_path = directory_ + "/" + std::string(120, 'x');
  SetLogLevel(LogLevel::kOff);
  const auto without =
      Must(HostAdmin::Open(PoolOf({&daemon, 1}), std::move(options), SystemClock::Instance()));
  EXPECT_EQ(without->endpoint(), "");
}

TEST_F(HostAdminTest, ASocketThatIsInUseAtTheStartIsBoundOnceItIsFree) {
  Daemon* const daemon = daemon_.get();
  const std::string path = directory_ + "/admin-late.sock";
  UniqueFd other = Must(rpc::ListenUnix(path, {}));
  HostAdminOptions options;
  options.socket_path = path;
  SetLogLevel(LogLevel::kOff);
  const auto late =
      Must(HostAdmin::Open(PoolOf({&daemon, 1}), std::move(options), SystemClock::Instance()));
  other = {};
  ASSERT_TRUE(Becomes([&] {
    auto connected = rpc::ConnectUnix(path, InAMinute());
    return connected && AskAt(std::move(*connected), "GET", "/healthz").body == "ok\n";
  }));
}

// Over TCP: mutual TLS, and a token of the scope admin for what is more than health and metrics.
TEST_F(HostAdminTest, OverTcpItHasCredentialsAndTls) {
  const std::string token(40, 'a');
  const std::string monitor(40, 'm');
  const std::string path = directory_ + "/servers.toml";
  std::ofstream(path) << "[tenants.boss]\ntokens = [\"" << token << "\"]\nscopes = [\"admin\"]\n"
                      << "[tenants.watch]\ntokens = [\"" << monitor
                      << "\"]\nscopes = [\"metrics\"]\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_read);
  const auto tls = Must(rpc::SelfSignedTls());
  rpc::Address address = rpc::LoopbackAddress(0);
  HostAdminOptions options;
  options.listener = Must(rpc::ListenTcp(address));
  options.address = address;
  options.credentials = Must(rpc::Credentials::Load(path));
  options.tls = tls;
  Daemon* const daemon = daemon_.get();
  const auto admin =
      Must(HostAdmin::Open(PoolOf({&daemon, 1}), std::move(options), SystemClock::Instance()));
  const auto ask = [&](const std::string& target, const std::string& authorization) {
    UniqueFd fd =
        Must(tls->Connect(Must(rpc::ConnectTcp(address, InAMinute())), "127.0.0.1", InAMinute()));
    http::Connection connection(std::move(fd));
    const std::string host = address.ToString();
    return Must(connection.Ask({.method = "GET",
                                .host = host,
                                .target = target,
                                .authorization = authorization,
                                .body = {}},
                               InAMinute()))
        .status;
  };
  const std::string boss = "Bearer " + rpc::BearerOf({.tenant = "boss", .token = token});
  const std::string watch = "Bearer " + rpc::BearerOf({.tenant = "watch", .token = monitor});
  EXPECT_EQ(ask("/healthz", ""), 200);
  EXPECT_EQ(ask("/v1/status", ""), 401);
  EXPECT_EQ(ask("/v1/status", boss), 200);
  EXPECT_EQ(ask("/metrics", watch), 200);
  EXPECT_EQ(ask("/", ""), 200) << "the page, which asks for the bearer";
  EXPECT_EQ(ask("/v1/page", ""), 401);
  EXPECT_EQ(ask("/v1/page", watch), 401);
  EXPECT_EQ(ask("/v1/page", boss), 200);
  EXPECT_EQ(ask("/v1/status", watch), 401);
  // In the clear nobody is answered.
  http::Connection clear(Must(rpc::ConnectTcp(address, InAMinute())));
  EXPECT_FALSE(clear.Ask(
      {.method = "GET", .host = "127.0.0.1", .target = "/healthz", .authorization = {}, .body = {}},
      InAMinute()));
}

class EmbeddedAdminTest : public testing::Test {
 protected:
  void SetUp() override {
    pool::LocalHostOptions options;
    options.owner.memory_bytes = 4 * kMiB;
    options.owner.populate = false;
    options.owner.log_resets = false;
    host_ = Must(pool::LocalHost::Open(options, SystemClock::Instance()));
  }
  std::unique_ptr<HostAdmin> Serve() {
    HostPoolOptions pool;
    pool.hosts = {host_.get()};
    return HostAdmin::OpenEmbedded(std::move(pool), SystemClock::Instance());
  }
  static std::string NameOf(const HostAdmin& admin) { return admin.endpoint().substr(6); }

  std::unique_ptr<pool::LocalHost> host_;
};

TEST_F(EmbeddedAdminTest, AnEmbeddedPoolLeavesNoFile) {
  auto admin = Serve();
  ASSERT_NE(admin, nullptr);
  ASSERT_THAT(admin->endpoint(), testing::StartsWith("unix:@kvcove/"));
  const std::string name = NameOf(*admin);
  const http::Response status =
      AskAt(Must(rpc::ConnectAbstract(name, InAMinute())), "GET", "/v1/status");
  EXPECT_EQ(json::parse(status.body)["role"], "embedded");
  EXPECT_EQ(json::parse(status.body)["pid"], getpid());
  admin.reset();
  EXPECT_FALSE(rpc::ConnectAbstract(name, InAMinute()));
}

// Another container on the same network has the same numbers of processes, and any user may bind
// any name.
TEST_F(EmbeddedAdminTest, ANameInUseIsPassedOver) {
  auto admin = Serve();
  ASSERT_NE(admin, nullptr);
  const std::string name = NameOf(*admin);
  const std::size_t dash = name.rfind('-');
  const std::string next =
      name.substr(0, dash + 1) + std::to_string(std::stoi(name.substr(dash + 1)) + 1);
  const UniqueFd taken = Must(rpc::ListenAbstract(next));
  const auto another = Serve();
  ASSERT_NE(another, nullptr);
  EXPECT_NE(NameOf(*another), next);
  EXPECT_TRUE(rpc::ConnectAbstract(NameOf(*another), InAMinute()));
}

// Workers of a training program are forked while a pool is open.
TEST_F(EmbeddedAdminTest, AForkedChildDoesNotKeepTheName) {
  auto admin = Serve();
  ASSERT_NE(admin, nullptr);
  const std::string name = NameOf(*admin);
  const pid_t child = fork();
  if (child == 0) {
    while (true) pause();
  }
  ASSERT_GT(child, 0);
  EXPECT_TRUE(rpc::ConnectAbstract(name, InAMinute()));
  admin.reset();
  EXPECT_FALSE(rpc::ConnectAbstract(name, InAMinute()));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST_F(EmbeddedAdminTest, PoolsThatAreOpenedByTheirAddressHaveOne) {
  const auto names = [] {
    std::set<std::string> found;
    std::ifstream lines("/proc/net/unix");
    const std::string wanted = "embedded-" + std::to_string(getpid()) + "-";
    for (std::string line; std::getline(lines, line);) {
      if (line.find(wanted) != std::string::npos) found.insert(line.substr(line.rfind(' ')));
    }
    return found.size();
  };
  ServeEmbedded();
  const std::string address = "embedded:?memory=4MiB&populate=0";
  {
    const auto pool = Must(Pool::Open(address));
    EXPECT_EQ(names(), 1U);
    const auto another = Must(Pool::Open(address));
    EXPECT_EQ(names(), 2U);
    const auto without = Must(Pool::Open(address + "&admin=0"));
    EXPECT_EQ(names(), 2U);
  }
  EXPECT_EQ(names(), 0U);
}

}  // namespace
}  // namespace kvcove::server
