// SPDX-License-Identifier: Apache-2.0
// Three masters, three etcds, three owners, each on a host of its own (a network namespace), and
// clients on the owners' hosts and elsewhere. What masters say to etcd, etcds to each other, owners
// to masters and clients to owners goes over four networks, so any two groups can be cut off from
// each other, and any host, by links that go down. Meanwhile clients go on, and what they saw is
// checked in the end.
//
//   KVCOVE_PARTITION_SECONDS=N   for how long partitions come and go, 40 unless it is set
//   KVCOVE_PARTITION_SEED=X      the same partitions again
//   KVCOVE_TEST_TIMES=1          each partition, and how long it took until all worked again
#include <fcntl.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <optional>
#include <thread>

#include "kvcove/base/clock.h"
#include "kvcove/base/log.h"
#include "kvcove/base/mutex.h"
#include "kvcove/base/random.h"
#include "kvcove/master/etcd/etcd_client.h"
#include "kvcove/pool/pool.h"
#include "kvcove/rpc/channel.h"
#include "kvcove/wire/master_stub.h"
#include "tests/call_time.h"
#include "tests/multihost/history.h"
#include "tests/multihost/hosts.h"
#include "tests/random_bytes.h"
#include "tests/slowness.h"

extern char** environ;

namespace kvcove::multihost {
namespace {

using std::chrono::milliseconds;

constexpr int kEach = 3;
constexpr int kEtcd = 3;   // the first host of the etcds; masters have 0, 1, 2
constexpr int kOwner = 6;  // of the owners
constexpr int kOther = 9;  // has clients only
constexpr int kHosts = 10;
enum Network {
  kPeers,
  kStore,
  kControl,
  kData,
  kNetworks
};  // etcd; to etcd; to masters; to owners

constexpr std::uint64_t kKeys = 40;
constexpr std::size_t kMasterBytes = 512;
constexpr milliseconds kTimeout{1000};
// Everything works again within 5 s; a leader that was cut off or frozen needs 2 s until another
// one leads, and so does etcd until it has elected one.
constexpr std::int64_t kWorksAgainMs = 5'000 + 4'000;
// A leader's time, and what two busy cores need to say so.
constexpr std::int64_t kStepsDownMs = 1'600 + 900;

std::uint64_t Number(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// A value says which put of which key it is; the rest follows from that.
struct Head {
  std::uint64_t key = 0;
  std::uint64_t serial = 0;
};
std::string ValueOf(const Head& head) {
  std::string value = RandomBytes(Mix64(head.key ^ Mix64(head.serial)), kMasterBytes);
  std::memcpy(value.data(), &head, sizeof(head));
  return value;
}

// One client: a pool of its own, on a host. All calls come from the thread that is on that host.
class Client {
 public:
  // `number` of all clients; each has values of its own.
  Client(int number, std::uint64_t seed) : number_(number), random_(seed) {}

  Status Open(const std::string& address) {
    KVCOVE_ASSIGN(pool_, Pool::Open(address, kCallTime));
    KVCOVE_ASSIGN(shared_, pool_->OpenSession({.name = "shared", .follow_always = true}));
    KVCOVE_ASSIGN(kept_, pool_->OpenSession({.name = "kept", .follow_always = true}));
    return {};
  }
  Session& kept() { return *kept_; }
  Session& shared() { return *shared_; }

  // Something at random.
  void Step() {
    const std::uint64_t dice = random_.Below(1000);
    if (dice < 550) return Read();
    if (dice < 850) return Store();
    if (dice < 960) return Keep();
    if (dice < 997) return Remove();
    Reset();
  }
  std::vector<Operation> history;
  // Keys of `kept` that were acknowledged (stored, and listed) and captured behind `since_ns`.
  std::vector<std::string> TakeKept(std::int64_t since_ns) {
    std::vector<std::string> keys;
    const MutexLock lock(mutex_);
    for (auto& [key, captured_ns] : std::exchange(acknowledged_, {})) {
      if (captured_ns > since_ns) keys.push_back(std::move(key));
    }
    return keys;
  }

  // How many of these are found, with the right bytes.
  static std::size_t Found(Session& session, const std::vector<std::string>& keys) {
    std::size_t found = 0;
    for (std::size_t from = 0; from < keys.size(); from += 64) {
      const std::size_t count = std::min<std::size_t>(64, keys.size() - from);
      std::vector<std::string> into(count, std::string(kMasterBytes, '\0'));
      std::vector<MutableBuffer> pieces(count);
      std::vector<GetItem> items(count);
      std::vector<ItemResult> results(count);
      for (std::size_t i = 0; i < count; ++i) {
        pieces[i] = {into[i].data(), kMasterBytes};
        items[i] = {.key = keys[from + i], .into = {&pieces[i], 1}};
      }
      (void)session.Get(items, results, {.timeout = kTimeout});
      for (std::size_t i = 0; i < count; ++i) {
        if (!results[i].ok()) continue;
        ++found;
        Head head;
        std::memcpy(&head, into[i].data(), sizeof(head));
        EXPECT_EQ(into[i], ValueOf(head)) << "wrong bytes of " << keys[from + i];
      }
    }
    return found;
  }
  // Whether it is acknowledged.
  static Code PutOne(Session& session, const Token& token, const std::string& key,
                     const Head& head) {
    const std::string value = ValueOf(head);
    const ConstBuffer piece{value.data(), value.size()};
    const PutItem item{.key = key, .value = {&piece, 1}};
    ItemResult result{.code = Code::kTimeout};
    (void)session.Put(token, {&item, 1}, {&result, 1}, {.timeout = kTimeout});
    return result.ok() && !result.listed ? Code::kTimeout : result.code;
  }

 private:
  std::uint64_t NextSerial() { return (static_cast<std::uint64_t>(number_) << 40) + ++serial_; }
  static std::string KeyOf(std::uint64_t key) { return fmt::format("key-{}", key); }

  void Read() {
    const std::uint64_t key = random_.Below(kKeys);
    const std::string name = KeyOf(key);
    std::string into(kMasterBytes, '\0');
    const MutableBuffer piece{into.data(), into.size()};
    const GetItem item{.key = name, .into = {&piece, 1}};
    ItemResult result;
    Operation operation{.kind = Operation::Kind::kGet,
                        .outcome = Operation::Outcome::kDone,
                        .key = static_cast<std::uint32_t>(key),
                        .began_ns = Now(),
                        .client = static_cast<std::uint8_t>(number_)};
    (void)shared_->Get({&item, 1}, {&result, 1}, {.timeout = kTimeout});
    operation.ended_ns = Now();
    if (!result.ok()) {
      // A miss is always allowed; one that waited does not have to be followed by the next at once.
      std::this_thread::sleep_for(milliseconds(2));
      return;
    }
    Head head;
    std::memcpy(&head, into.data(), sizeof(head));
    EXPECT_EQ(head.key, key);
    EXPECT_EQ(into, ValueOf(head)) << "wrong bytes of " << name;
    operation.value = head.serial;
    history.push_back(operation);
  }

  void Store() {
    const std::uint64_t key = random_.Below(kKeys);
    const auto token = shared_->Capture({.timeout = kTimeout});
    if (!token) return std::this_thread::sleep_for(milliseconds(5));
    Operation operation{.kind = Operation::Kind::kPut,
                        .key = static_cast<std::uint32_t>(key),
                        .value = NextSerial(),
                        .captured_ns = Now(),
                        .began_ns = Now(),
                        .client = static_cast<std::uint8_t>(number_)};
    const Code code = PutOne(*shared_, *token, KeyOf(key), {.key = key, .serial = operation.value});
    operation.ended_ns = Now();
    operation.outcome = code == Code::kOk      ? Operation::Outcome::kDone
                        : code == Code::kStale ? Operation::Outcome::kRefused
                                               : Operation::Outcome::kUnknown;
    history.push_back(operation);
  }

  // Under a key that nobody else stores, and nobody removes.
  void Keep() {
    const std::int64_t captured_ns = Now();
    const auto token = kept_->Capture({.timeout = kTimeout});
    if (!token) return std::this_thread::sleep_for(milliseconds(5));
    const Head head{.key = 0, .serial = NextSerial()};
    const std::string key = fmt::format("kept-{}", head.serial);
    if (PutOne(*kept_, *token, key, head) != Code::kOk) return;
    const MutexLock lock(mutex_);
    acknowledged_.emplace_back(key, captured_ns);
  }

  void Remove() {
    const std::uint64_t key = random_.Below(kKeys);
    const std::string name = KeyOf(key);
    const std::string_view view = name;
    ItemResult result;
    Operation operation{.kind = Operation::Kind::kRemove,
                        .key = static_cast<std::uint32_t>(key),
                        .began_ns = Now(),
                        .client = static_cast<std::uint8_t>(number_)};
    const Status done = shared_->Remove({&view, 1}, {&result, 1}, {.timeout = kTimeout});
    operation.ended_ns = Now();
    const bool proven = done && (result.code == Code::kOk || result.code == Code::kMiss);
    operation.outcome = proven ? Operation::Outcome::kDone : Operation::Outcome::kUnknown;
    history.push_back(operation);
  }

  void Reset() {
    Operation operation{.kind = Operation::Kind::kReset,
                        .began_ns = Now(),
                        .client = static_cast<std::uint8_t>(number_)};
    const bool done = shared_->Reset({.timeout = milliseconds(2000), .all_void = true}).has_value();
    operation.ended_ns = Now();
    operation.outcome = done ? Operation::Outcome::kDone : Operation::Outcome::kUnknown;
    history.push_back(operation);
  }

  const int number_;
  Random random_;
  std::uint64_t serial_ = 0;
  std::unique_ptr<Pool> pool_;
  SessionPtr shared_;
  SessionPtr kept_;
  Mutex mutex_;
  std::vector<std::pair<std::string, std::int64_t>> acknowledged_ KVCOVE_GUARDED_BY(mutex_);
};

class MastersPartitionTest : public testing::Test {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kOff);
    if (access(KVCOVE_ETCD, X_OK) != 0) GTEST_SKIP() << "no etcd; scripts/etcd.sh fetches it";
    auto hosts = Hosts::Make(kHosts, kNetworks);
    if (!hosts) GTEST_SKIP() << hosts.error().detail;
    hosts_.emplace(std::move(*hosts));
    std::string name = "/dev/shm/kvcove-partition-XXXXXX";
    directory_ = mkdtemp(name.data());
    std::vector<rpc::Address> masters;
    std::string store = "etcd://";
    std::string cluster;
    for (int i = 0; i < kEach; ++i) {
      masters.push_back({.host = Hosts::AddressOf(i, kControl), .port = 7400});
      store += fmt::format("{}{}:2379", i == 0 ? "" : ",", Hosts::AddressOf(kEtcd + i, kStore));
      cluster += fmt::format("{}m{}=http://{}:2380", i == 0 ? "" : ",", i,
                             Hosts::AddressOf(kEtcd + i, kPeers));
    }
    store += "/kvcove/partitions";
    masters_ = rpc::Addresses(masters);
    for (int i = 0; i < kEach; ++i) StartEtcd(i, cluster);
    AwaitEtcd(store);
    for (int i = 0; i < kEach; ++i) {
      pids_[static_cast<std::size_t>(i)] =
          Spawn(i, {KVCOVE_COMMAND, "--log", Log(), "master", "--listen", masters[i].ToString(),
                    "--store", store, "--insecure", "--admin", "off"});
    }
    for (int i = 0; i < kEach; ++i) {
      Spawn(kOwner + i,
            {KVCOVE_COMMAND, "--log", Log(), "owner", "--listen",
             fmt::format("{}:7401", Hosts::AddressOf(kOwner + i, kData)), "--master",
             masters_.ToString(), "--memory", "64MiB", "--no-populate", "--insecure", "--admin",
             "off", "--socket", fmt::format("{}/owner{}/kvcove.sock", directory_, i)},
            fmt::format("KVCOVE_HOST_ID=host{}", kOwner + i));
    }
  }
  void TearDown() override {
    for (const pid_t pid : processes_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    hosts_.reset();
    if (!directory_.empty()) std::filesystem::remove_all(directory_);
  }
  static std::string Log() {
    const char* log = std::getenv("KVCOVE_TEST_LOG");
    return log == nullptr ? "off" : log;
  }
  void StartEtcd(int i, const std::string& cluster) {
    const std::string client = fmt::format("http://{}:2379", Hosts::AddressOf(kEtcd + i, kStore));
    const std::string peer = fmt::format("http://{}:2380", Hosts::AddressOf(kEtcd + i, kPeers));
    Spawn(kEtcd + i, {KVCOVE_ETCD, "--name", fmt::format("m{}", i), "--data-dir",
                      fmt::format("{}/m{}", directory_, i), "--listen-client-urls", client,
                      "--advertise-client-urls", client, "--listen-peer-urls", peer,
                      "--initial-advertise-peer-urls", peer, "--initial-cluster", cluster,
                      "--initial-cluster-token", directory_, "--log-level", "fatal"});
  }
  void AwaitEtcd(const std::string& store) const {
    std::thread([&] {
      ASSERT_TRUE(hosts_->Enter(0));
      master::EtcdOptions etcd;
      etcd.place = master::ParseEtcdPlace(store).value();
      master::EtcdClient client(etcd, SystemClock::Instance());
      const std::int64_t until_ms = NowMs() + 60'000;
      while (!client.Call("/v3/kv/range", {{"key", "YQ=="}}, Now() + kSecond)) {
        ASSERT_LT(NowMs(), until_ms) << "etcd does not start";
        std::this_thread::sleep_for(milliseconds(50));
      }
    }).join();
  }
  pid_t Spawn(int host, const std::vector<std::string>& words, std::string variable = "KVCOVE_X=") {
    std::vector<std::string> texts = hosts_->Prefix(host);
    texts.insert(texts.end(), words.begin(), words.end());
    std::vector<char*> argv;
    for (std::string& text : texts) argv.push_back(text.data());
    argv.push_back(nullptr);
    std::vector<char*> environment = {variable.data()};
    for (char** at = environ; *at != nullptr; ++at) environment.push_back(*at);
    environment.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    // Raft's lines, which no level of etcd's silences.
    if (words[0] == KVCOVE_ETCD) {
      posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    }
    pid_t pid = 0;
    EXPECT_EQ(posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environment.data()), 0);
    posix_spawn_file_actions_destroy(&actions);
    processes_.push_back(pid);
    return pid;
  }
  std::string AddressFor(int host) const {
    return fmt::format("kvcove://{}?host=host{}", masters_.ToString(), host);
  }
  // ---- called on host kOther
  // What this master alone says to a call.
  bool Leads(int master) const {
    rpc::TcpChannel channel(masters_.list()[static_cast<std::size_t>(master)], {});
    return wire::MasterStub(channel).Owners(Now() + 300 * kMillisecond).has_value();
  }
  int Leader() const {
    for (const std::int64_t until = NowMs() + 60'000; NowMs() < until;) {
      for (int i = 0; i < kEach; ++i) {
        if (Leads(i)) return i;
      }
      std::this_thread::sleep_for(milliseconds(20));
    }
    return -1;
  }

  // ---- partitions
  struct Partition {
    std::string name;
    std::vector<std::pair<int, Network>> links;
    int frozen = -1;    // this master stands still
    int no_store = -1;  // this master leads and is cut off from etcd, but not from clients
    std::int64_t steps_down_ms = kStepsDownMs;
  };
  static void Add(Partition& partition, int host, std::initializer_list<Network> networks) {
    for (const Network network : networks) partition.links.emplace_back(host, network);
  }
  static Partition Choose(Random& random, int leader) {
    Partition p;
    const int one = static_cast<int>(random.Below(kEach));
    const int other = (one + 1) % kEach;
    switch (random.Below(12)) {
      case 0:
        p = {.name = "the leader | etcd", .links = {{leader, kStore}}, .no_store = leader};
        break;
      case 1:
        p = {.name = "the leader | owners and clients", .links = {{leader, kControl}}};
        break;
      case 2:
        p.name = "the leader | all";
        Add(p, leader, {kStore, kControl});
        break;
      case 3:
        p = {.name = "masters | etcds", .links = {}, .no_store = leader};
        for (int i = 0; i < kEach; ++i) Add(p, i, {kStore});
        break;
      case 4:
        p.name = "masters | owners and clients";
        for (int i = 0; i < kEach; ++i) Add(p, i, {kControl});
        break;
      case 5:
        p.name = fmt::format("etcd {} | all", one);
        Add(p, kEtcd + one, {kPeers, kStore});
        break;
      case 6:
        p.name = "etcd | etcd | etcd";
        Add(p, kEtcd + one, {kPeers});
        Add(p, kEtcd + other, {kPeers});
        // The one that leads the others renews leases until it misses them.
        p.no_store = leader;
        p.steps_down_ms += 2'000;
        break;
      case 7:
        p.name = fmt::format("owner {} with its clients | masters", one);
        Add(p, kOwner + one, {kControl});
        break;
      case 8:
        p.name = fmt::format("owner {} | all", one);
        Add(p, kOwner + one, {kControl, kData});
        break;
      case 9:
        p.name = fmt::format("owners {} and {} | masters; owner {} | owners", one, other, one);
        Add(p, kOwner + one, {kControl, kData});
        Add(p, kOwner + other, {kControl});
        break;
      case 10:
        p = {.name = "the leader stands still", .links = {}, .frozen = leader};
        break;
      default:
        for (int host = 0; host < kHosts; ++host) {
          for (int network = 0; network < kNetworks; ++network) {
            if (random.OneIn(4)) p.links.emplace_back(host, static_cast<Network>(network));
          }
        }
        p.name = fmt::format("{} links at random", p.links.size());
    }
    return p;
  }
  void Set(const Partition& partition, bool up) {
    for (const auto& [host, network] : partition.links) hosts_->SetLink(host, up, network);
    if (partition.frozen >= 0) {
      kill(pids_[static_cast<std::size_t>(partition.frozen)], up ? SIGCONT : SIGSTOP);
    }
  }

  std::optional<Hosts> hosts_;
  std::string directory_;
  rpc::Addresses masters_;
  std::array<pid_t, kEach> pids_{};  // of the masters
  std::vector<pid_t> processes_;
};

TEST_F(MastersPartitionTest, NothingStaleIsFoundAndNothingAcknowledgedIsLost) {
  const std::uint64_t seed = Number("KVCOVE_PARTITION_SEED", RandomU64() % 1'000'000);
  const auto seconds = static_cast<std::int64_t>(Number("KVCOVE_PARTITION_SECONDS", 40));
  const bool times = std::getenv("KVCOVE_TEST_TIMES") != nullptr;
  SCOPED_TRACE(fmt::format("KVCOVE_PARTITION_SEED={}", seed));
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < kEach + 1; ++i) {
    clients.push_back(std::make_unique<Client>(i, Mix64(seed + static_cast<std::uint64_t>(i))));
  }
  std::atomic<int> opened{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < kEach; ++i) {
    threads.emplace_back([&, i] {
      Client& client = *clients[static_cast<std::size_t>(i)];
      ASSERT_TRUE(hosts_->Enter(kOwner + i));
      Status open;
      for (const std::int64_t until = NowMs() + 60'000; NowMs() < until;) {
        open = client.Open(AddressFor(kOwner + i));
        if (open) break;
      }
      ++opened;
      ASSERT_TRUE(open) << open.error().ToString();
      while (!stop) client.Step();
    });
  }
  std::vector<Operation> history;
  std::vector<std::int64_t> works_ms;
  std::size_t kept_in_all = 0;
  std::size_t lost = 0;
  std::size_t stale = 0;
  int rounds = 0;
  // On a host without owner, whatever is asked and checked.
  std::thread([&] {
    ASSERT_TRUE(hosts_->Enter(kOther));
    Client& client = *clients.back();
    Status open;
    for (const std::int64_t until = NowMs() + 60'000; NowMs() < until;) {
      open = client.Open(AddressFor(kOther));
      if (open) break;
    }
    ASSERT_TRUE(open) << open.error().ToString();
    Random random(seed);
    std::vector<std::string> gone;  // of before a proven reset
    std::uint64_t probe = 0;
    const auto put = [&] {
      const auto token = client.kept().Capture({.timeout = kTimeout});
      ++probe;
      return token && Client::PutOne(client.kept(), *token, fmt::format("probe-{}", probe),
                                     {.key = 1, .serial = probe}) == Code::kOk;
    };
    std::int64_t reset_ns = 0;  // when the last proven one had ended
    const auto reset = [&] {
      const Status proven = client.kept().Reset({.timeout = milliseconds(2500), .all_void = true});
      // One that was not proven is repeated until it is.
      if (!proven || client.kept().closed()) return false;
      reset_ns = Now();
      return true;
    };
    for (const std::int64_t until = NowMs() + 60'000; NowMs() < until && opened < kEach;) {
      std::this_thread::sleep_for(milliseconds(20));
    }
    for (const std::int64_t by_ms = NowMs() + 60'000; !reset() || !put();) {
      ASSERT_LT(NowMs(), by_ms) << "the cluster does not start";
    }
    const std::int64_t until = NowMs() + seconds * 1000;
    std::vector<std::string> kept;
    while (NowMs() < until && !HasFailure()) {
      ++rounds;
      const int leader = Leader();
      ASSERT_GE(leader, 0) << "nobody leads";
      const Partition partition = Choose(random, leader);
      const std::int64_t lasts_ms = 500 + static_cast<std::int64_t>(random.Below(5500));
      if (times) {
        fmt::print("{}: {} for {} ms\n", rounds, partition.name, lasts_ms);
        std::fflush(stdout);
      }
      Operation unrest{.kind = Operation::Kind::kMaster,
                       .outcome = Operation::Outcome::kDone,
                       .began_ns = Now()};
      Set(partition, false);
      const std::int64_t cut_ms = NowMs();
      const Slowness slowness;
      while (NowMs() < cut_ms + lasts_ms) {
        client.Step();
        stale += Client::Found(client.kept(), gone);
        if (partition.no_store >= 0 &&
            NowMs() > cut_ms + partition.steps_down_ms + slowness.longest_ms()) {
          EXPECT_FALSE(Leads(partition.no_store)) << "a leader without etcd answers";
        }
      }
      const bool replaced = partition.frozen >= 0 && lasts_ms > 4'000;
      if (replaced) {
        // On a busy machine etcd takes longer to give the place to another one, so wait for that.
        EXPECT_GE(Leader(), 0) << "no master takes a frozen leader's place";
      }
      Set(partition, true);
      EXPECT_FALSE(replaced && Leads(partition.frozen)) << "a thawed leader answers";
      const std::int64_t healed_ms = NowMs();
      const std::int64_t by_ms = healed_ms + 60'000;
      for (const auto& one : clients) {
        for (std::string& key : one->TakeKept(reset_ns)) kept.push_back(std::move(key));
      }
      kept_in_all += kept.size();
      // A put, all that was acknowledged, and a reset.
      while (NowMs() < by_ms && !put()) stale += Client::Found(client.kept(), gone);
      std::size_t found = 0;
      while (NowMs() < by_ms && found < kept.size()) found = Client::Found(client.kept(), kept);
      EXPECT_EQ(found, kept.size()) << "acknowledged, and lost behind: " << partition.name;
      lost += kept.size() - found;
      const std::int64_t found_ms = NowMs() - healed_ms;
      bool proven = false;
      while (NowMs() < by_ms && !proven) proven = reset();
      EXPECT_TRUE(proven) << partition.name;
      works_ms.push_back(NowMs() - healed_ms);
      const std::int64_t slow_ms = slowness.ms();
      if (times) {
        fmt::print("   all {} found after {} ms, a reset proven after {} ms\n", kept.size(),
                   found_ms, works_ms.back());
      }
      EXPECT_LE(works_ms.back() - slow_ms, kWorksAgainMs) << partition.name;
      unrest.ended_ns = Now();
      history.push_back(unrest);
      gone = std::move(kept);
      kept.clear();
      if (gone.size() > 64) gone.resize(64);
      stale += Client::Found(client.kept(), gone);
      // What was acknowledged since the reset counts in the next round.
    }
  }).join();
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(stale, 0U);
  for (const auto& client : clients) {
    history.insert(history.end(), client->history.begin(), client->history.end());
  }
  const std::vector<std::string> violations = CheckHistory(history);
  EXPECT_THAT(violations, testing::IsEmpty());
  EXPECT_GT(kept_in_all, 0U);
  if (!works_ms.empty()) {
    std::ranges::sort(works_ms);
    fmt::print(
        "seed {}: {} partitions; {} operations; {} acknowledged, {} lost, {} stale; all works "
        "again after {} ms (median), {} ms (longest)\n",
        seed, rounds, history.size(), kept_in_all, lost, stale, works_ms[works_ms.size() / 2],
        works_ms.back());
  }
}

}  // namespace
}  // namespace kvcove::multihost
