// SPDX-License-Identifier: Apache-2.0
// Operating a cluster: drains, copies, moves, repairs, the admin endpoint, placement.
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <future>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "kvcove/base/random.h"
#include "kvcove/master/server/admin.h"
#include "kvcove/owner/link/link.h"
#include "kvcove/rpc/server.h"
#include "kvcove/server/admin.h"
#include "kvcove/transport/peer.h"
#include "kvcove/transport/pick/fake_rdma.h"
#include "kvcove/wire/cluster.h"
#include "tests/herd.h"
#include "tests/integration/cluster_fixture.h"

namespace kvcove {
namespace {

using nlohmann::json;

class OperationsTest : public ClusterFixture {
 protected:
  void SetUp() override {
    ClusterFixture::SetUp();
    StartAdmin();
  }
  void TearDown() override {
    admin_.reset();
    tasks_.reset();
    ClusterFixture::TearDown();
  }
  void StartAdmin() {
    const Clock& clock = SystemClock::Instance();
    tasks_ = std::make_unique<master::Tasks>(
        *master_, master::TaskOptions{.repair_delay_ns = 300 * kMillisecond}, clock);
    EXPECT_TRUE(tasks_->Begin());
    auto admin = master::Admin::Open(*master_, *tasks_,
                                     {.listen = rpc::Address{.host = "127.0.0.1", .port = 0},
                                      .metrics = rpc::Address{.host = "127.0.0.1", .port = 0},
                                      .credentials = credentials_,
                                      .tls = tls_},
                                     clock);
    ASSERT_TRUE(admin) << admin.error().ToString();
    admin_ = std::move(*admin);
  }

  http::Response Ask(const std::string& method, const std::string& target, const json& body = {},
                     const std::string& authorization = {}) {
    auto response = http::Call({.host = "127.0.0.1",
                                .port = admin_->address().port,
                                .method = method,
                                .target = target,
                                .body = body.is_null() ? "" : body.dump(),
                                .authorization = authorization});
    EXPECT_TRUE(response) << response.error().ToString();
    return response ? *response : http::Response{.status = 0};
  }
  json Json(const std::string& method, const std::string& target, const json& body = {}) {
    const http::Response response = Ask(method, target, body);
    EXPECT_EQ(response.status, 200) << target << ": " << response.body;
    return json::parse(response.body, nullptr, false);
  }
  std::string AddressOf(std::size_t owner) { return owners_[owner]->host().address(); }
  std::uint64_t ObjectsOf(std::size_t owner) {
    return owners_[owner]->host().owner().Stat().objects;
  }
  master::TaskStat Finish(std::uint64_t id) {
    for (int i = 0; i < 12'000; ++i) {
      for (const master::TaskStat& task : tasks_->List()) {
        if (task.id == id && task.state > master::TaskState::kRunning) return task;
      }
      std::this_thread::sleep_for(milliseconds(10));
    }
    ADD_FAILURE() << "the task does not end";
    return {};
  }

  std::unique_ptr<master::Tasks> tasks_;
  std::unique_ptr<master::Admin> admin_;
};

// As an upgrade does it that fails. The endpoint of metrics goes on meanwhile.
TEST_F(OperationsTest, MetricsAreReadWhileAnOwnerIsHandedOver) {
  pool::LocalHost& host = owners_[0]->host();
  std::atomic<bool> ends = false;
  std::atomic<int> scrapes = 0;
  std::thread scraper([&] {
    while (!ends) {
      Metrics metrics;
      host.Collect(metrics);
      EXPECT_FALSE(metrics.Text().empty());
      ++scrapes;
    }
  });
  for (int i = 0; i < 20; ++i) {
    const int before = scrapes;
    ASSERT_TRUE(host.Pause());
    EXPECT_TRUE(Becomes([&] { return scrapes > before + 1; }));
    host.Resume();
  }
  ends = true;
  scraper.join();
  WaitLive(2);
}

// Owners with RDMA, on a device of the tests.
class RdmaOperationsTest : public ClusterFixture {
 protected:
  static constexpr std::size_t kBytes = 256 << 10;

  void Configure(std::size_t /*number*/, server::DaemonOptions& options) override {
    options.host.cluster->transport = &rdma_.owner();
  }
  // Stores a value at the first owner, and makes it known to `Gets`.
  void Store() {
    const auto pool = Open("host0");
    const SessionPtr session = OpenSession(*pool);
    ASSERT_EQ(Put(*session, "k", kBytes), Code::kOk);
    const auto token = session->Capture({.timeout = kCallTime});
    ASSERT_TRUE(token);
    token_ = *token;
  }
  // Returns how a get of the value from the first owner ends.
  Status Gets(transport::Peer& peer, milliseconds most = kCallTime) {
    const Clock& clock = SystemClock::Instance();
    transport::Exchange call;
    call.to = &peer;
    call.method = wire::Method::kDataGet;
    call.head = wire::Encode(wire::DataGet{.token = token_, .keys = {"k"}, .room = {kBytes}});
    call.on_reply = [this](std::span<const std::byte>) -> Result<std::vector<transport::Piece>> {
      return std::vector<transport::Piece>{{.data = buffer_.data(), .size = buffer_.size()}};
    };
    transport::Run({&call, 1}, clock.NowNs() + most.count() * kMillisecond, clock);
    return call.status;
  }
  std::shared_ptr<transport::Peer> PeerBy(transport::Transport& transport) {
    const auto address = rpc::ParseAddress(owners_[0]->host().address(), 0);
    return transport.Connect(*address, {}, SystemClock::Instance());
  }
  bool HasMovedByDevice() {
    Metrics metrics;
    owners_[0]->host().Collect(metrics);
    return metrics.Text().find("kvcove_owner_rdma_bytes_total{direction=\"sent\"} 0\n") ==
           std::string::npos;
  }

  Token token_;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(kBytes);
  transport::FakeRdma rdma_;
};

// The device is silent for less than the second after which MayPause knows it.
TEST_F(RdmaOperationsTest, AHandOverEndsThoughADeviceHasJustFrozen) {
  ASSERT_NO_FATAL_FAILURE(Store());
  const auto registered = *rdma_.requester().Register(buffer_);
  const auto peer = PeerBy(rdma_.requester());
  ASSERT_TRUE(Becomes([&] { return Gets(*peer) && HasMovedByDevice(); }));
  pool::LocalHost& host = owners_[0]->host();
  rdma_.HoldAfter(100);
  EXPECT_FALSE(Gets(*peer, milliseconds(50)));
  const Status paused = host.Pause();
  ASSERT_FALSE(paused);
  EXPECT_EQ(paused.error().code, Code::kInProgress);
  EXPECT_NE(paused.error().detail.find("RDMA device"), std::string::npos) << paused.error().detail;
  host.Resume();
  // Others get values all the same, and no hand-over begins until the transfer has ended.
  WaitLive(2);
  const Status got = Gets(*PeerBy(transport::Preferred()));
  EXPECT_TRUE(got) << got.error().ToString();
  EXPECT_FALSE(host.MayPause());
  rdma_.Land();
  EXPECT_TRUE(Becomes([&] { return host.MayPause().has_value(); }));
  EXPECT_TRUE(host.Pause());
  host.Resume();
  WaitLive(2);
}

// An owner without objects, as the master and its tasks see it.
class ListedOwner final : public rpc::Handler {
 public:
  explicit ListedOwner(const rpc::Address& master) {
    auto server = rpc::Server::Open({.listen = {.host = "127.0.0.1", .port = 0}}, *this);
    EXPECT_TRUE(server) << server.error().ToString();
    server_ = std::move(*server);
    EXPECT_TRUE(server_->Start());
    link_.emplace(target_, outbox_,
                  owner::LinkOptions{.master = {master},
                                     .identity = {.owner = RandomId(),
                                                  .process = RandomId(),
                                                  .address = server_->address().ToString(),
                                                  .socket = {},
                                                  .host = "listed",
                                                  .tenant = {},
                                                  .before = {}},
                                     .lease_renewal_ns = 250 * kMillisecond,
                                     .on_heard = {}},
                  SystemClock::Instance());
    EXPECT_TRUE(link_->Start());
  }
  ~ListedOwner() override {
    link_->Stop();
    server_->Stop();
  }

  void OnOpen(rpc::ConnectionId, const rpc::Peer&) override {}
  void OnClose(rpc::ConnectionId) override {}
  void OnProcessGone(std::uint64_t) override {}
  bool Admitted(rpc::ConnectionId) const override { return true; }
  void OnRequest(rpc::ConnectionId, wire::Method method, std::span<const std::byte>, std::int64_t,
                 rpc::Responder respond) override {
    if (method != wire::Method::kInventory) return respond({.code = Code::kOk});
    if (silent) {
      silent_ = std::move(respond);
    } else if (asked == 0) {
      respond(rpc::ErrorReply({Code::kUnavailable, "not now"}));
    } else {
      respond({.code = Code::kOk, .body = wire::Encode(wire::InventoryReply{.objects = {}})});
    }
    ++asked;
  }

  std::atomic<int> asked{0};
  std::atomic<bool> silent{false};

 private:
  HerdOwner target_{0};
  owner::Outbox outbox_{SystemClock::Instance()};
  std::optional<owner::Link> link_;
  rpc::Responder silent_;  // the server's thread
  std::unique_ptr<rpc::Server> server_;
};

TEST_F(OperationsTest, ARepairThatPassedOverAnOwnerIsMadeAgain) {
  ListedOwner owner(master_->address());
  EXPECT_TRUE(Becomes([&] { return owner.asked >= 2; }));
}

// A daemon that gives its leadership up would hold the new leader's tasks up.
TEST_F(OperationsTest, TheEndOfTheTasksEndsTheirCall) {
  ListedOwner owner(master_->address());
  owner.silent = true;
  WaitLive(3);
  ASSERT_TRUE(Becomes([&] { return owner.asked >= 1; }));
  const auto began = std::chrono::steady_clock::now();
  admin_.reset();
  tasks_.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - began, milliseconds(4000)) << "the call lasts 5 s";
}

TEST_F(OperationsTest, ADrainThatCannotBeQueuedLeavesTheOwnerAsItIs) {
  master::Tasks waiting(*master_, {}, SystemClock::Instance());  // without its thread
  const auto drains = [&] {
    return std::ranges::count_if(master_->Owners(), &wire::OwnerStat::draining);
  };
  Result<std::uint64_t> queued = 0;
  for (int i = 0; queued && i < 1000; ++i) {
    queued = waiting.Start({.kind = master::TaskKind::kCopy, .from = AddressOf(0)});
  }
  ASSERT_EQ(queued.error().code, Code::kLimit);
  EXPECT_EQ(waiting.Start({.kind = master::TaskKind::kDrain, .from = AddressOf(0)}).error().code,
            Code::kLimit);
  EXPECT_EQ(drains(), 0);
}

TEST_F(OperationsTest, ADrainLosesNothingWhileOthersPutAndGet) {
  auto pool = Open("host0");
  auto session = OpenSession(*pool);
  for (int i = 0; i < 3000; ++i) {
    ASSERT_EQ(Put(*session, fmt::format("k{}", i), 100 + i * 7), Code::kOk);
  }
  ASSERT_GT(ObjectsOf(0), 2000U);
  std::atomic<bool> stop{false};
  std::atomic<int> put{0};
  std::atomic<int> missed{0};
  std::thread traffic([&] {
    auto own = OpenSession(*pool, "e1");
    Random random(1);
    while (!stop) {
      const int i = put;
      if (Put(*own, fmt::format("during{}", i), 2000) == Code::kOk) ++put;
      const auto k = random.Below(3000);
      if (!Get(*own, fmt::format("k{}", k), 100 + k * 7).ok()) ++missed;
    }
  });
  const json started = Json("POST", "/v1/drain", {{"owner", AddressOf(0)}});
  const master::TaskStat task = Finish(started["task"].get<std::uint64_t>());
  stop = true;
  traffic.join();
  EXPECT_EQ(task.state, master::TaskState::kDone) << task.message;
  EXPECT_GE(task.copied, 3000U);
  EXPECT_EQ(ObjectsOf(0), 0U);
  EXPECT_GT(put, 0);
  EXPECT_EQ(missed, 0);
  EXPECT_EQ(Json("GET", "/v1/segments")["segments"][0]["state"], "draining");
  // It may be stopped now: nothing is lost.
  owners_[0].reset();
  auto far = Open();
  auto reader = OpenSession(*far);
  std::vector<std::pair<std::string, std::size_t>> batch;
  const auto read = [&](const std::string& key, std::size_t size) {
    batch.emplace_back(key, size);
    if (batch.size() < 200) return;
    EXPECT_EQ(CountGot(*reader, batch), batch.size()) << "up to " << key;
    batch.clear();
  };
  for (int i = 0; i < 3000; ++i) read(fmt::format("k{}", i), 100 + i * 7);
  for (int i = 0; i < put; ++i) read(fmt::format("during{}", i), 2000);
  EXPECT_EQ(CountGot(*reader, batch), batch.size());
}

TEST_F(OperationsTest, ADrainWithoutRoomSaysSoAndKeepsEverything) {
  StartOwner(4 << 20);
  owners_[1].reset();  // 64 MiB and 4 MiB are left
  WaitLive(2);
  auto pool = Open("host0");
  auto session = OpenSession(*pool);
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(Put(*session, fmt::format("k{}", i), 1 << 20), Code::kOk);
  }
  const auto id = tasks_->Start({.kind = master::TaskKind::kDrain, .from = AddressOf(0)});
  ASSERT_TRUE(id) << id.error().ToString();
  const master::TaskStat task = Finish(*id);
  EXPECT_EQ(task.state, master::TaskState::kFailed);
  EXPECT_THAT(task.message, testing::HasSubstr("no room"));
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(Get(*session, fmt::format("k{}", i), 1 << 20).ok()) << i;
  }
  // Given up: it takes objects again.
  Json("POST", "/v1/cancel", {{"id", task.id}});
  std::this_thread::sleep_for(milliseconds(600));
  EXPECT_EQ(Put(*session, "again", 1000), Code::kOk);
}

TEST_F(OperationsTest, TasksWithNothingToDoAreDoneAndListed) {
  for (const master::TaskRequest& request :
       {master::TaskRequest{.kind = master::TaskKind::kRepair},
        master::TaskRequest{.kind = master::TaskKind::kCopy, .from = AddressOf(0)},
        master::TaskRequest{.kind = master::TaskKind::kMove, .from = AddressOf(0)},
        master::TaskRequest{.kind = master::TaskKind::kDrain, .from = AddressOf(0)}}) {
    const auto id = tasks_->Start(request);
    ASSERT_TRUE(id) << id.error().ToString();
    const master::TaskStat task = Finish(*id);
    EXPECT_EQ(task.state, master::TaskState::kDone) << task.message;
    EXPECT_EQ(task.copied, 0U);
    EXPECT_EQ(task.left, 0U);
  }
  EXPECT_EQ(Json("GET", "/v1/tasks")["tasks"].size(), 4U) << "the master's own are no news";
}

TEST_F(OperationsTest, AnOwnerMayStopInTheMiddleOfATask) {
  for (int round = 0; round < 5; ++round) {
    StartOwner();
    const std::size_t last = owners_.size() - 1;
    auto pool = Open(fmt::format("host{}", last));
    auto session = OpenSession(*pool);
    for (int i = 0; i < 40; ++i) {
      ASSERT_EQ(Put(*session, fmt::format("r{}-{}", round, i), 1 << 20), Code::kOk);
    }
    const auto drain = tasks_->Start({.kind = master::TaskKind::kDrain, .from = AddressOf(last)});
    ASSERT_TRUE(drain);
    std::this_thread::sleep_for(milliseconds(round * 6));
    session.reset();
    pool.reset();
    owners_.pop_back();
    EXPECT_NE(Finish(*drain).state, master::TaskState::kRunning);
    WaitLive(2);
    --next_owner_;
    auto reset = Open();
    EXPECT_TRUE(OpenSession(*reset)->Reset({.timeout = kCallTime, .all_void = true}));
  }
}

TEST_F(OperationsTest, CopiesAndMovesByPrefix) {
  auto pool = Open("host0");
  auto session = OpenSession(*pool);
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(Put(*session, fmt::format("{}-{}", i % 2 == 0 ? "even" : "odd", i)), Code::kOk);
  }
  const auto copy = tasks_->Start({.kind = master::TaskKind::kCopy,
                                   .from = AddressOf(0),
                                   .to = AddressOf(1),
                                   .prefix = "even-"});
  const master::TaskStat copied = Finish(*copy);
  EXPECT_EQ(copied.copied, 50U) << copied.message;
  EXPECT_EQ(ObjectsOf(0), 100U);
  EXPECT_EQ(ObjectsOf(1), 50U);
  const auto move = tasks_->Start(
      {.kind = master::TaskKind::kMove, .from = AddressOf(0), .to = AddressOf(1), .prefix = "odd"});
  const master::TaskStat moved = Finish(*move);
  EXPECT_EQ(moved.copied, 50U) << moved.message;
  EXPECT_EQ(ObjectsOf(0), 50U);
  EXPECT_EQ(ObjectsOf(1), 100U);
  // What the owner has dropped the master hears a moment later.
  EXPECT_TRUE(Becomes([&] { return master_->Stat().directory_entries == 150; }));
  for (int i = 0; i < 100; ++i) {
    const std::string key = fmt::format("{}-{}", i % 2 == 0 ? "even" : "odd", i);
    EXPECT_TRUE(Get(*session, key).ok()) << key;
    const json where = Json("GET", "/v1/key?key=" + key)["in"][0];
    EXPECT_EQ(where["locations"].size(), i % 2 == 0 ? 2U : 1U) << where.dump();
  }
  EXPECT_THAT(Ask("GET", "/metrics").body,
              testing::HasSubstr("kvcove_master_owner_live{owner=\"" + AddressOf(0)));
  EXPECT_THAT(Ask("GET", "/metrics").body,
              testing::HasSubstr(
                  "kvcove_master_namespace_entries{namespace=\"acme/llama\",version=\"\"} 150\n"));
  EXPECT_THAT(Json("GET", "/v1/namespaces").dump(), testing::HasSubstr("\"entries\":150"));
  // A removal and a reset reach every copy.
  EXPECT_EQ(
      Json("POST", "/v1/remove", {{"namespace", "acme/llama"}, {"prefix", "even-"}})["removed"],
      100);
  EXPECT_FALSE(Get(*session, "even-2").ok());
  EXPECT_TRUE(Get(*session, "odd-1").ok());
  EXPECT_EQ(Json("POST", "/v1/reset", {{"namespace", "acme/llama"}})["proven"], true);
  EXPECT_FALSE(Get(*session, "odd-1").ok());
}

TEST_F(OperationsTest, ACopyOfANamespaceHasAllItsWeightVersions) {
  auto pool = Open("host0");
  auto session = OpenSession(*pool);
  auto other = Must(pool->OpenSession({.name = "other", .engine = "e1"}));
  const auto put = [](Session& into, const std::string& version, const std::string& key) {
    const auto token = into.Capture({.timeout = kCallTime, .version = version});
    ASSERT_TRUE(token) << token.error().ToString();
    ASSERT_EQ(Put(into, key, 5000, *token), Code::kOk);
  };
  for (const char* version : {"v1", "v2", "v3"}) {
    for (const char* key : {"a", "b"}) put(*session, version, key);
  }
  put(*other, "v1", "a");
  const auto copied = [&](json body) {
    body["from"] = AddressOf(0);
    body["to"] = AddressOf(1);
    const json started = Json("POST", "/v1/copy", body);
    const master::TaskStat task = Finish(started["task"].get<std::uint64_t>());
    EXPECT_EQ(task.state, master::TaskState::kDone) << task.message;
    return task.copied;
  };
  EXPECT_EQ(copied({{"namespace", "acme/llama"}, {"version", "v2"}}), 2U);
  EXPECT_EQ(copied({{"namespace", "acme/llama"}, {"key", "a"}}), 2U) << "v2 has been copied";
  EXPECT_EQ(copied({{"namespace", "acme/llama"}}), 2U) << "b of v1 and v3";
  EXPECT_EQ(copied({{"version", "v1"}}), 1U) << "that of the other namespace";
  EXPECT_EQ(ObjectsOf(1), 7U);
  json move = {{"from", AddressOf(0)}, {"to", AddressOf(1)}, {"namespace", "acme/llama"}};
  (void)Json("POST", "/v1/move", move);
  EXPECT_TRUE(Becomes([&] { return ObjectsOf(0) == 1; })) << "all versions have moved";
  move["version"] = "v4";
  const http::Response refused = Ask("POST", "/v1/move", move);
  EXPECT_EQ(refused.status, 404);
  EXPECT_THAT(refused.body, testing::HasSubstr("with version 'v4'"));
}

TEST_F(OperationsTest, APrefixIsLocatedByOwner) {
  auto pool = Open();
  auto near0 = Open("host0");
  auto near1 = Open("host1");
  const auto put = [](Pool& at, std::uint32_t replicas, std::vector<std::string> keys) {
    auto session =
        Must(at.OpenSession({.name = "acme/llama", .engine = "e", .replicas = replicas}));
    for (const std::string& key : keys) ASSERT_EQ(Put(*session, key), Code::kOk);
  };
  put(*near0, 2, {"k0", "k1"});
  put(*near0, 1, {"k2", "k3"});
  put(*near1, 1, {"k4", "k6"});
  auto session = OpenSession(*pool, "router");
  const std::string_view keys[] = {"k0", "k1", "k2", "k3", "k4", "k5", "k6"};
  const LocatedPrefix located = Must(session->Locate(keys, {.timeout = kCallTime}));
  EXPECT_EQ(located.keys, 5U);
  ASSERT_EQ(located.owners.size(), 2U);
  EXPECT_EQ(located.owners[0].owner, AddressOf(0));
  EXPECT_EQ(located.owners[0].prefix, 4U);
  EXPECT_EQ(located.owners[0].memory, 4U);
  EXPECT_EQ(located.owners[1].owner, AddressOf(1));
  EXPECT_EQ(located.owners[1].prefix, 2U);
  EXPECT_EQ(located.owners[1].memory, 3U);
  const json answer =
      Json("POST", "/v1/prefix", {{"namespace", "acme/llama"}, {"keys", {"k0", "k1", "k2", "k5"}}});
  EXPECT_EQ(answer["keys"], 3);
  EXPECT_EQ(answer["owners"][0]["owner"], AddressOf(0));
  EXPECT_EQ(answer["owners"][0]["host"], "host0");
  EXPECT_EQ(answer["owners"][0]["memory_prefix"], 3);
  EXPECT_EQ(answer["owners"][1]["prefix"], 2);
  // What a reset has voided is nowhere.
  ASSERT_EQ(Json("POST", "/v1/reset", {{"namespace", "acme/llama"}})["proven"], true);
  EXPECT_EQ(Must(session->Locate(keys, {.timeout = kCallTime})).keys, 0U);
  // A session that must reset first finds nothing.
  ASSERT_TRUE(OpenSession(*near0, "other")->Reset({.timeout = kCallTime}));
  const LocatedPrefix closed = Must(session->Locate(keys, {.timeout = kCallTime}));
  EXPECT_EQ(closed.reason, MissReason::kClosed);
}

TEST_F(OperationsTest, ALostReplicaIsMadeAgain) {
  StartOwner();
  auto pool = Open();
  auto session = Must(pool->OpenSession({.name = "acme/llama", .engine = "e", .replicas = 2}));
  std::vector<std::string> names;
  for (int i = 0; i < 200; ++i) names.push_back(fmt::format("k{}", i));
  for (const std::string& name : names) ASSERT_EQ(Put(*session, name), Code::kOk);
  const std::vector<std::string_view> keys(names.begin(), names.end());
  const auto copies = [&] {
    std::uint64_t all = 0;
    for (std::size_t i = 0; i < owners_.size(); ++i) {
      if (owners_[i] != nullptr) all += ObjectsOf(i);
    }
    return all;
  };
  EXPECT_EQ(copies(), 400U);
  owners_[2].reset();
  // The master knows of both, too: an owner counts a copy before the master has listed it, and for
  // a moment a copy that was begun twice.
  EXPECT_TRUE(Becomes([&] {
    if (copies() != 400) return false;
    const auto where = session->Where(keys, {.timeout = kCallTime});
    return where && std::ranges::all_of(*where, [&](const std::vector<std::string>& owners) {
             return std::set(owners.begin(), owners.end()) == std::set{AddressOf(0), AddressOf(1)};
           });
  })) << copies();
  // One more may go now.
  owners_[1].reset();
  WaitLive(1);
  for (const std::string& name : names) EXPECT_TRUE(Get(*session, name).ok()) << name;
}

TEST_F(OperationsTest, EveryMissHasAReasonAndIsTold) {
  std::this_thread::sleep_for(milliseconds(2100));  // the master has listened long enough
  auto pool = Open();
  auto session = OpenSession(*pool);
  EXPECT_EQ(Put(*session, "removed"), Code::kOk);
  EXPECT_EQ(Put(*session, "voided"), Code::kOk);
  const std::string_view keys[] = {"removed"};
  ItemResult result;
  EXPECT_TRUE(session->Remove(keys, {&result, 1}, {.timeout = kCallTime}));
  EXPECT_EQ(Get(*session, "removed").reason, MissReason::kRemoved);
  EXPECT_EQ(Get(*session, "never").reason, MissReason::kNeverPut);
  EXPECT_TRUE(session->Reset({.timeout = kCallTime, .all_void = true}));
  EXPECT_EQ(Get(*session, "voided").reason, MissReason::kReset);
  for (const auto& [key, reason] :
       {std::pair("removed", "removed"), std::pair("never", "never put"),
        std::pair("voided", "reset")}) {
    const json in = Json("GET", fmt::format("/v1/key?key={}&namespace=acme/llama", key))["in"][0];
    EXPECT_EQ(in["found"], false);
    EXPECT_EQ(in["last_miss"]["reason"], reason) << in.dump();
    EXPECT_GE(in["last_miss"]["count"].get<int>(), 1);
  }
  // Nobody but the last master knows what was removed before this one started.
  const json never = Json("GET", "/v1/key?key=never&namespace=acme/llama")["in"][0];
  EXPECT_EQ(never["reason"], "not put since the master started") << never.dump();
  EXPECT_GT(never["started_seconds_ago"].get<double>(), 0) << never.dump();
  // What the master cannot know is told to it, too: here the owners are gone.
  EXPECT_EQ(Put(*session, "gone"), Code::kOk);
  EXPECT_TRUE(Get(*session, "gone").ok());
  for (auto& owner : owners_) owner.reset();
  EXPECT_FALSE(Get(*session, "gone").ok());
  json last;
  EXPECT_TRUE(Becomes([&] {
    last = Json("GET", "/v1/key?key=gone")["in"][0]["last_miss"]["reason"];
    return last == "owner gone";
  })) << last;
  // Counted, as the requester tells the master.
  std::string metrics;
  (void)Becomes([&] {
    metrics = Ask("GET", "/metrics").body;
    return metrics.contains("kvcove_requester_misses_total{reason=\"removed\"} 1");
  });
  EXPECT_THAT(metrics, testing::HasSubstr("kvcove_requester_misses_total{reason=\"removed\"} 1"));
  EXPECT_THAT(metrics, testing::HasSubstr("kvcove_requester_misses_total{reason=\"reset\"} 1"));
  EXPECT_THAT(metrics, testing::HasSubstr("# TYPE kvcove_master_call_seconds histogram"));
  EXPECT_THAT(metrics, testing::HasSubstr("kvcove_master_insecure 1"));
}

TEST_F(OperationsTest, KeysArePagedByPrefix) {
  auto pool = Open("host0");
  auto session = OpenSession(*pool);
  for (int i = 0; i < 250; ++i) ASSERT_EQ(Put(*session, fmt::format("p{}", i), 100), Code::kOk);
  ASSERT_EQ(Put(*session, "q\xff\x01", 100), Code::kOk);  // keys are bytes
  std::set<std::string> seen;
  std::string after;
  int pages = 0;
  while (true) {
    const json page = Json("GET", "/v1/keys?namespace=acme/llama&limit=100&prefix=p" +
                                      (after.empty() ? std::string() : "&after=" + after));
    for (const json& key : page["keys"]) seen.insert(key["key"].get<std::string>());
    ++pages;
    if (!page.contains("next")) break;
    after = page["next"].get<std::string>();
  }
  EXPECT_EQ(seen.size(), 250U);
  EXPECT_GE(pages, 3);
  const json odd = Json("GET", "/v1/keys?prefix=q")["keys"];
  ASSERT_EQ(odd.size(), 1U);
  EXPECT_EQ(odd[0]["key_percent"], "q%FF%01") << "it is no UTF-8, and can be named all the same";
  EXPECT_EQ(Json("GET", "/v1/key?key=q%FF%01")["in"][0]["found"], true);
  EXPECT_FALSE(Json("GET", "/v1/keys?prefix=p1&limit=1")["keys"][0].contains("key_percent"));
  EXPECT_EQ(Json("GET", "/v1/namespaces")["namespaces"][0]["namespace"], "acme/llama");
}

TEST_F(OperationsTest, OwnersTellTheBytesThatWereReadAndStoredAndNamespacesTheirs) {
  auto pool = Open();
  auto session = OpenSession(*pool, "engine-1");
  ASSERT_EQ(Put(*session, "k", 5000), Code::kOk);
  ASSERT_TRUE(Get(*session, "k", 5000).ok());
  const auto sum = [&](const char* figure) {
    std::uint64_t bytes = 0;
    const json segments = Json("GET", "/v1/segments")["segments"];
    for (const json& owner : segments) bytes += owner[figure].get<std::uint64_t>();
    return bytes;
  };
  ASSERT_TRUE(Becomes([&] { return sum("hit_bytes") == 5000U; })) << sum("hit_bytes");
  EXPECT_EQ(sum("put_bytes"), 5000U);
  EXPECT_EQ(sum("disk_hits"), 0U);
  ASSERT_TRUE(
      Becomes([&] { return Json("GET", "/v1/namespaces")["namespaces"][0]["bytes"] == 5000U; }));
  const json engines = Json("GET", "/v1/engines");
  ASSERT_EQ(engines["engines"].size(), 1U);
  EXPECT_EQ(engines["engines"][0]["engine"], "engine-1");
  EXPECT_EQ(engines["engines"][0]["namespace"], "acme/llama");
  EXPECT_EQ(engines["engines"][0]["open"], true);
  EXPECT_EQ(engines["engines"][0]["processes"], 1U);
  EXPECT_EQ(engines["registered"], 1U);
  EXPECT_TRUE(Json("GET", "/v1/engines?limit=0")["engines"].empty());
}

TEST_F(OperationsTest, ThePageShowsWhatTheMasterCounts) {
  auto pool = Open();
  auto session = OpenSession(*pool, "engine-1");
  ASSERT_EQ(Put(*session, "k", 5000), Code::kOk);
  ASSERT_TRUE(Becomes([&] { return Get(*session, "never").reason == MissReason::kNeverPut; }));
  ASSERT_TRUE(session->Reset({.timeout = kCallTime}));
  const auto call = [&](const std::string& name) {
    std::uint64_t calls = 0;
    for (const auto& [of, counts] : master_->Counts().calls) {
      if (of == name) calls = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
    }
    return calls;
  };
  EXPECT_EQ(master_->Counts().resets, 1U);
  EXPECT_EQ(master_->Counts().resets_not_proven, 0U);
  EXPECT_EQ(call("reset"), 1U);
  EXPECT_GT(call("lookup"), 0U);
  EXPECT_TRUE(Becomes([&] {
    return master_->Counts().misses[static_cast<std::size_t>(MissReason::kNeverPut)] > 0;
  }));
  EXPECT_THAT(Ask("GET", "/").body, testing::HasSubstr("<title>kvcove</title>"));
  const json page = Json("GET", "/v1/page");
  EXPECT_EQ(page["pool"]["live"], 2);
  EXPECT_EQ(page["resets"]["all"], 1);
  EXPECT_EQ(page["namespaces"]["rows"][0]["namespace"], "acme/llama");
  EXPECT_EQ(page["engines"]["rows"][0]["engine"], "engine-1");
  // A repair begins by itself where the machine was too slow for an owner's lease.
  for (const json& task : page["tasks"]) EXPECT_EQ(task["kind"], "repair");
}

TEST_F(OperationsTest, BadRequestsAreToldWhatIsWrong) {
  auto pool = Open();
  auto session = OpenSession(*pool);
  (void)session->Capture({.timeout = kCallTime});
  EXPECT_EQ(Ask("GET", "/v1/nothing").status, 404);
  EXPECT_EQ(Ask("GET", "/v1/reset").status, 405);
  const auto wrong = Ask("POST", "/v1/reset", {{"namespace", "acme/lama"}});
  EXPECT_EQ(wrong.status, 404);
  EXPECT_THAT(wrong.body, testing::HasSubstr("did you mean 'acme/llama'"));
  EXPECT_EQ(Ask("POST", "/v1/remove", {{"namespace", "acme/llama"}}).status, 400);
  EXPECT_EQ(Ask("POST", "/v1/remove", {{"namespace", "acme/llama"}, {"prefix", "a*"}}).status, 400);
  EXPECT_EQ(Ask("POST", "/v1/drain", {{"owner", "127.0.0.1:1"}}).status, 400);
  EXPECT_EQ(Ask("POST", "/v1/drain", json::array()).status, 400);
  EXPECT_EQ(Ask("GET", "/v1/keys?limit=x").status, 400);
  EXPECT_EQ(Ask("GET", "/v1/keys?after=x").status, 400);
  EXPECT_EQ(Ask("POST", "/v1/cancel", {{"id", "7"}}).status, 404);
}

TEST_F(OperationsTest, OlderVersionsAreDeclaredDead) {
  auto pool = Open();
  auto session = OpenSession(*pool);
  for (const char* version : {"v1", "v2", "v3"}) {
    ASSERT_TRUE(session->Capture({.timeout = kCallTime, .version = version}));
  }
  const auto prune = [&](const json& body) { return Ask("POST", "/v1/prune", body); };
  EXPECT_EQ(prune({{"namespace", "acme/llama"}}).status, 400);
  EXPECT_EQ(prune({{"namespace", "acme/lama"}, {"before", "v3"}}).status, 404);
  const auto unknown = prune({{"namespace", "acme/llama"}, {"before", "v4"}});
  EXPECT_EQ(unknown.status, 400);
  EXPECT_THAT(unknown.body, testing::HasSubstr("nobody has named the weight version 'v4'"));
  const json answer = Json("POST", "/v1/prune", {{"namespace", "acme/llama"}, {"before", "v3"}});
  EXPECT_EQ(answer["proven"], true) << answer.dump();
  EXPECT_EQ(answer["versions"], 2);
  EXPECT_EQ(answer["raised"], 2);
  const json slots = Json("GET", "/v1/namespaces")["namespaces"];
  for (const json& slot : slots) {
    EXPECT_EQ(slot["dead"], slot["version"] == "v1" || slot["version"] == "v2") << slot.dump();
  }
  EXPECT_EQ(session->Capture({.timeout = kCallTime, .version = "v1"}).error().code, Code::kDenied);
  const std::string metrics = Ask("GET", "/metrics").body;
  EXPECT_THAT(metrics, testing::HasSubstr("kvcove_master_prunes_total 2\n"));
  EXPECT_THAT(metrics, testing::HasSubstr("kvcove_master_prunes_not_proven_total 1\n"));
  EXPECT_THAT(metrics, testing::HasSubstr("kvcove_master_versions 3\n"));
  EXPECT_THAT(metrics, testing::HasSubstr("kvcove_master_versions_dead 2\n"));
  EXPECT_THAT(metrics, testing::ContainsRegex("kvcove_master_dead_registrations_total [1-9]"));
}

TEST_F(OperationsTest, AnOperatorPinsForATimeAndACopyOfAPinnedValueHasTheSameEnd) {
  auto pool = Open("host0");
  auto session = OpenSession(*pool);
  for (const char* key : {"a/1", "a/2", "b"}) ASSERT_EQ(Put(*session, key), Code::kOk);
  const auto pinned = [&](std::string_view key) {
    const auto stat = session->Stat({&key, 1}, {.timeout = kCallTime});
    return stat && (*stat)[0] && (*stat)[0]->hard_pinned;
  };
  const auto refused = [&](json body) { return Ask("POST", "/v1/pin", body).status; };
  const std::string name = "acme/llama";
  EXPECT_EQ(refused({{"namespace", name}, {"key", "b"}}), 400) << "for how long";
  EXPECT_EQ(refused({{"namespace", name}, {"seconds", "9"}}), 400);
  EXPECT_EQ(refused({{"namespace", name}, {"key", "b"}, {"prefix", "b"}, {"seconds", "9"}}), 400);
  EXPECT_EQ(refused({{"namespace", name}, {"key", "b"}, {"seconds", "86401"}}), 400);
  EXPECT_EQ(refused({{"key", "b"}, {"seconds", "9"}}), 400);
  EXPECT_EQ(refused({{"namespace", "acme/lama"}, {"key", "b"}, {"seconds", "9"}}), 404);

  const json many =
      Json("POST", "/v1/pin", {{"namespace", name}, {"prefix", "a/"}, {"seconds", "86400"}});
  EXPECT_EQ(many["pinned"], 2) << many.dump();
  EXPECT_EQ(many["refused"], 0);
  EXPECT_TRUE(pinned("a/1"));
  EXPECT_FALSE(pinned("b"));
  const json one = Json("POST", "/v1/unpin", {{"namespace", name}, {"key", "a/2"}});
  EXPECT_EQ(one["unpinned"], 1) << one.dump();
  EXPECT_FALSE(pinned("a/2"));
  EXPECT_EQ(
      Json("POST", "/v1/pin", {{"namespace", name}, {"key", "b"}, {"seconds", "1"}})["pinned"], 1);
  EXPECT_TRUE(Becomes([&] { return !pinned("b"); }));
  EXPECT_EQ(
      Json("POST", "/v1/pin", {{"namespace", name}, {"key", "c"}, {"seconds", "1"}})["pinned"], 0);

  const auto move = tasks_->Start(
      {.kind = master::TaskKind::kMove, .from = AddressOf(0), .to = AddressOf(1), .prefix = "a/1"});
  EXPECT_EQ(Finish(*move).copied, 1U);
  EXPECT_TRUE(Becomes([&] { return pinned("a/1"); }));
  PoolStat stat = owners_[1]->host().owner().Stat();
  EXPECT_GT(stat.timed_pin_bytes, 0U);
  EXPECT_EQ(stat.timed_pin_bytes, stat.pinned_bytes);

  // The other owner has the value already, without a pin.
  const auto copy = tasks_->Start(
      {.kind = master::TaskKind::kCopy, .from = AddressOf(0), .to = AddressOf(1), .prefix = "b"});
  EXPECT_EQ(Finish(*copy).copied, 1U);
  const std::uint64_t before = owners_[1]->host().owner().Stat().pinned_bytes;
  const Token token = Must(session->Capture({.timeout = kCallTime}));
  const std::string_view key = "b";
  ASSERT_EQ(owners_[0]->host().owner().Pin(token, {&key, 1},
                                           {.kind = PinKind::kHard, .duration_ns = 3600 * kSecond},
                                           SystemClock::Instance().NowNs() + 60 * kSecond),
            std::vector{Code::kOk});
  const auto again = tasks_->Start(
      {.kind = master::TaskKind::kMove, .from = AddressOf(0), .to = AddressOf(1), .prefix = "b"});
  (void)Finish(*again);
  EXPECT_EQ(owners_[0]->host().owner().Stat().pinned_bytes, 0U) << "it was dropped there";
  EXPECT_GT(owners_[1]->host().owner().Stat().pinned_bytes, before);
}

TEST_F(OperationsTest, SilentConnectionsDoNotHoldTheEndpoint) {
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 1000; ++i) {
    auto fd = rpc::ConnectTcp(admin_->address(), SystemClock::Instance().NowNs() + 15 * kSecond);
    ASSERT_TRUE(fd) << i;
    if (i % 2 == 0) (void)!write(fd->get(), "GET /he", 7);
    silent.push_back(std::move(*fd));
  }
  // The shortest of several: another process may have the processor for once.
  std::int64_t shortest = kSecond;
  for (int i = 0; i < 50 && shortest >= 100 * kMillisecond; ++i) {
    const std::int64_t began = SystemClock::Instance().NowNs();
    EXPECT_EQ(Ask("GET", "/healthz").body, "ok\n");
    shortest = std::min(shortest, SystemClock::Instance().NowNs() - began);
  }
  EXPECT_LT(shortest, 100 * kMillisecond);
  int open = 0;
  EXPECT_TRUE(Becomes([&] {  // after 5 s
    open = 0;
    for (const UniqueFd& fd : silent) {
      char byte;
      open += recv(fd.get(), &byte, 1, MSG_DONTWAIT) < 0 ? 1 : 0;
    }
    return open == 0;
  })) << open;
}

TEST_F(OperationsTest, OwnersHaveAnEndpointToo) {
  auto pool = Open("host0");
  auto session = OpenSession(*pool);
  EXPECT_EQ(Put(*session, "a"), Code::kOk);
  EXPECT_TRUE(Get(*session, "a").ok());
  rpc::Address address{.host = "127.0.0.1", .port = 0};
  auto listener = rpc::ListenTcp(address);
  ASSERT_TRUE(listener);
  const auto server = Must(server::ServeAdmin(
      owners_[0]->host(),
      {.listener = std::move(*listener), .address = address, .credentials = {}, .tls = {}},
      SystemClock::Instance()));
  const auto get = [&](const std::string& path) {
    return Must(http::Call({.port = address.port, .target = path}));
  };
  EXPECT_EQ(get("/healthz").body, "ok\n");
  EXPECT_EQ(get("/readyz").status, 200);
  EXPECT_THAT(get("/metrics").body, testing::HasSubstr("kvcove_owner_objects{tier=\"memory\"} 1"));
  EXPECT_THAT(get("/metrics").body, testing::HasSubstr("kvcove_owner_local_gets_total 1"));
  EXPECT_THAT(get("/metrics").body, testing::HasSubstr("kvcove_owner_local_get_bytes_total 5000"));
  EXPECT_EQ(json::parse(get("/v1/stat").body)["objects"], 1);
  const json before = json::parse(get("/v1/stat").body);
  EXPECT_TRUE(session->Reset({.timeout = kCallTime, .all_void = true}));
  const json after = json::parse(get("/v1/stat").body);
  EXPECT_EQ(after["resets_total"].get<int>() - before["resets_total"].get<int>(), 1);
  EXPECT_EQ(after["voided_total"], 1);
  EXPECT_EQ(after["voided_bytes_total"], before["object_bytes"]);
  EXPECT_THAT(get("/metrics").body,
              testing::HasSubstr("kvcove_owner_voided_total{tier=\"memory\"} 1"));
  // Without a master it is alive, but not ready.
  admin_.reset();
  tasks_.reset();
  master_.reset();
  (void)Becomes([&] { return get("/readyz").status != 200; });
  EXPECT_EQ(get("/readyz").status, 503);
  EXPECT_EQ(get("/healthz").status, 200);
}

// A hand-over to another process writes the owner's state under this lock.
TEST_F(OperationsTest, AScrapeThatWaitsForAnOwnersLockHoldsNoOtherQuestionUp) {
  rpc::Address address{.host = "127.0.0.1", .port = 0};
  auto listener = Must(rpc::ListenTcp(address));
  pool::LocalHost& host = owners_[0]->host();
  const auto server = Must(server::ServeAdmin(
      host, {.listener = std::move(listener), .address = address, .credentials = {}, .tls = {}},
      SystemClock::Instance()));
  std::promise<void> held;
  std::promise<void> go;
  std::thread holder([&] {
    const MutexLock lock(host.owner().memory().mutex);
    held.set_value();
    go.get_future().wait();
  });
  held.get_future().wait();
  const UniqueFd scrape =
      Must(rpc::ConnectTcp(address, SystemClock::Instance().NowNs() + 60 * kSecond));
  const std::string ask = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
  EXPECT_EQ(write(scrape.get(), ask.data(), ask.size()), static_cast<ssize_t>(ask.size()));
  const auto alive = http::Call({.port = address.port, .target = "/healthz"});
  go.set_value();
  holder.join();
  ASSERT_TRUE(alive) << alive.error().ToString();
  EXPECT_EQ(alive->body, "ok\n");
  pollfd answered{.fd = scrape.get(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(poll(&answered, 1, 60'000), 1) << "the lock is free";
  std::string first(15, ' ');
  EXPECT_EQ(recv(scrape.get(), first.data(), first.size(), 0), 15);
  EXPECT_EQ(first, "HTTP/1.1 200 OK");
}

TEST_F(OperationsTest, ThePreferredSegmentIsTheOptionsThenKvcovesThenTheOthers) {
  struct Sources {
    std::string option, kvcove, mooncake;
    int expected;
  };
  const std::string one = owners_[0]->host().address();
  const std::string two = owners_[1]->host().address();
  auto pool = Open("host0");  // whose own owner is the one that nothing prefers
  int number = 0;
  for (const Sources& from :
       {Sources{"", "", "", 0}, Sources{"", "", two, 1}, Sources{"", two, one, 1},
        Sources{"", one, two, 0}, Sources{two, one, one, 1}, Sources{one, two, two, 0}}) {
    setenv("KVCOVE_PREFERRED_SEGMENT", from.kvcove.c_str(), 1);
    setenv("MOONCAKE_PREFERRED_SEGMENT", from.mooncake.c_str(), 1);
    auto session =
        pool->OpenSession({.name = "acme/llama", .engine = "e1", .preferred_segment = from.option});
    unsetenv("KVCOVE_PREFERRED_SEGMENT");
    unsetenv("MOONCAKE_PREFERRED_SEGMENT");
    ASSERT_TRUE(session) << session.error().ToString();
    const std::string key = fmt::format("preferred-{}", number++);
    ASSERT_EQ(Put(**session, key), Code::kOk);
    const std::string_view keys[] = {key};
    EXPECT_EQ(Must((*session)->Where(keys, {.timeout = kCallTime})).front(),
              std::vector<std::string>{from.expected == 0 ? one : two})
        << fmt::format("'{}' '{}' '{}'", from.option, from.kvcove, from.mooncake);
  }
}

TEST_F(OperationsTest, PlacementByName) {
  auto pool = Must(Pool::Open(
      fmt::format("kvcove://{}?host=host0&placement=random", master_->address().ToString()),
      kCallTime));
  auto session = OpenSession(*pool);
  for (int i = 0; i < 60; ++i) EXPECT_EQ(Put(*session, fmt::format("r{}", i)), Code::kOk);
  EXPECT_GT(ObjectsOf(0), 10U);
  EXPECT_GT(ObjectsOf(1), 10U);
  const auto wrong = Pool::Open(
      fmt::format("kvcove://{}?placement=randon", master_->address().ToString()), kCallTime);
  ASSERT_FALSE(wrong);
  EXPECT_THAT(wrong.error().detail, testing::HasSubstr("'random'"));
  // A preferred segment that is no address, from wherever it is named.
  EXPECT_EQ(pool->OpenSession({.name = "acme/llama", .preferred_segment = "nowhere"}).error().code,
            Code::kInvalid);
  setenv("MOONCAKE_PREFERRED_SEGMENT", "10.0.0.1", 1);
  const auto refused = pool->OpenSession({.name = "acme/llama"});
  unsetenv("MOONCAKE_PREFERRED_SEGMENT");
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().detail.find("MOONCAKE_PREFERRED_SEGMENT: '10.0.0.1'"),
            std::string::npos);
  // A preferred segment that is not there: others are used, and it is counted.
  auto lost = Must(pool->OpenSession(
      {.name = "acme/llama", .engine = "e1", .preferred_segment = "127.0.0.1:9"}));
  EXPECT_EQ(Put(*lost, "x"), Code::kOk);
  std::string metrics;
  (void)Becomes([&] {
    metrics = Ask("GET", "/metrics").body;
    return metrics.contains("kvcove_requester_placement_fallbacks_total 1");
  });
  EXPECT_THAT(metrics, testing::HasSubstr("kvcove_requester_placement_fallbacks_total 1"));
}

class SecuredOperationsTest : public OperationsTest {
 protected:
  void Prepare() override {
    const std::string path = directory_ + "/credentials.toml";
    std::ofstream(path) << fmt::format(
        "[tenants.boss]\ntokens = [\"{}\"]\nscopes = [\"admin\", \"owner\"]\n"
        "[tenants.user]\ntokens = [\"{}\"]\nscopes = [\"read\", \"write\", \"reset\"]\n",
        boss_.token, user_.token);
    chmod(path.c_str(), 0600);
    credentials_ = Must(rpc::Credentials::Load(path));
  }
  const rpc::Credential boss_{.tenant = "boss", .token = rpc::NewToken()};
  const rpc::Credential user_{.tenant = "user", .token = rpc::NewToken()};
};

TEST_F(SecuredOperationsTest, StrangersMayDoNothingButHealthz) {
  EXPECT_EQ(Ask("GET", "/healthz").status, 200);
  for (const char* path : {"/metrics", "/v1/status", "/v1/segments", "/v1/keys", "/v1/none"}) {
    EXPECT_EQ(Ask("GET", path).status, 401) << path;
    EXPECT_EQ(Ask("GET", path, {}, "Bearer " + rpc::BearerOf(user_)).status, 401) << path;
    EXPECT_EQ(Ask("GET", path, {}, "Bearer boss." + boss_.token).status, 401) << path;
  }
  EXPECT_EQ(Ask("POST", "/v1/reset", {{"namespace", "x"}}).status, 401);
  EXPECT_EQ(Ask("GET", "/metrics", {}, "Bearer " + rpc::BearerOf(boss_)).status, 200);
  // What a token stands for there does not tell the token.
  EXPECT_EQ(rpc::BearerOf(boss_).find(boss_.token), std::string::npos);
}

}  // namespace
}  // namespace kvcove
