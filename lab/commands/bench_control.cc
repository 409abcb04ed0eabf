// SPDX-License-Identifier: Apache-2.0
// `kvcove bench control`: what faults and heavy use of the master cost those who do something else.
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <thread>

#include "kvcove/base/random.h"
#include "kvcove/base/size.h"
#include "kvcove/master/etcd/etcd_client.h"
#include "kvcove/rpc/channel.h"
#include "kvcove/wire/master_stub.h"
#include "lab/commands/bench.h"
#include "lab/commands/bench_cluster.h"

namespace kvcove::lab {
namespace {

using std::chrono::milliseconds;

double Ms(std::int64_t ns) { return static_cast<double>(ns) / 1e6; }

// A session on the first owner's host, whose puts and gets are local.
struct Local {
  static Result<Local> Open(const Cluster& cluster) {
    Local local;
    KVCOVE_ASSIGN(local.pool, Pool::Open(fmt::format("kvcove://{}?host=owner0",
                                                     cluster.master_address.ToString()),
                                         kTimeout));
    KVCOVE_ASSIGN(local.session, local.pool->OpenSession({.name = "bench", .engine = "bench"}));
    return local;
  }
  std::unique_ptr<Pool> pool;
  SessionPtr session;
};

std::uint64_t MemoryFor(std::uint64_t objects) { return (objects * 128 * 2 / kMiB + 64) * kMiB; }

// Reads one after the other, random ones of `objects`, and notes when they missed.
struct Misses {
  std::uint64_t reads = 0;
  std::uint64_t misses = 0;
  std::int64_t first_ns = -1;   // since it began
  std::int64_t longest_ns = 0;  // between two hits
};

Misses ReadWhile(Session& session, std::uint64_t objects, const std::atomic<bool>& stop) {
  Misses misses;
  Random random(1);
  std::vector<std::byte> buffer(64);
  const std::int64_t began = Now();
  std::int64_t last_hit = began;
  while (!stop) {
    const std::string key = KeyOf(random.Below(objects));
    const MutableBuffer into{.data = buffer.data(), .size = buffer.size()};
    const GetItem item{.key = key, .into = {&into, 1}};
    ItemResult result;
    (void)session.Get({&item, 1}, {&result, 1}, {.timeout = milliseconds(100)});
    ++misses.reads;
    const std::int64_t now = Now();
    if (result.ok()) {
      misses.longest_ns = std::max(misses.longest_ns, now - last_hit);
      last_hit = now;
    } else {
      ++misses.misses;
      if (misses.first_ns < 0) misses.first_ns = now - began;
    }
  }
  return misses;
}

// The master is killed, and another one started `away` later: what a process on an owner's host
// notices of it.
Status BenchLocalReads(const BenchOptions& options) {
  const std::uint64_t objects = std::min<std::uint64_t>(options.most_objects, 1'000'000);
  KVCOVE_ASSIGN(
      Cluster cluster,
      Cluster::Start({.owners = 1, .memory = MemoryFor(objects), .max_objects = objects}));
  KVCOVE_ASSIGN(const Local local, Local::Open(cluster));
  KVCOVE_TRY(Fill(*local.session, objects, 64));
  for (const int away_ms : {0, 300, 2000}) {
    std::atomic<bool> stop{false};
    Misses misses;
    cluster.master->Kill();
    std::thread reader([&] { misses = ReadWhile(*local.session, objects, stop); });
    std::this_thread::sleep_for(milliseconds(away_ms));
    const Status started = cluster.StartMaster();
    if (started) std::this_thread::sleep_for(milliseconds(4000));
    stop = true;
    reader.join();
    KVCOVE_TRY(started);
    Row row{.bench = "local_reads", .form = "cluster", .objects = objects};
    row.extra = {{"master_away_ms", away_ms},
                 {"reads", misses.reads},
                 {"misses", misses.misses},
                 {"first_miss_ms", misses.first_ns < 0 ? -1.0 : Ms(misses.first_ns)},
                 {"longest_without_a_hit_ms", Ms(misses.longest_ns)}};
    Print(options, row);
  }
  return {};
}

// What a store does at least for each reset: one record and its sync, or one transaction of etcd
// that compares and writes.
class BareWrite {
 public:
  static Result<BareWrite> Open(const BenchOptions& options, const Cluster& cluster) {
    BareWrite bare;
    if (options.store.empty()) {
      const std::string path = cluster.directory->path() + "/limit";
      bare.file_ = UniqueFd(open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
      return bare;
    }
    master::EtcdOptions etcd;
    KVCOVE_ASSIGN(etcd.place, master::ParseEtcdPlace(options.store));
    bare.etcd_ = std::make_unique<master::EtcdClient>(etcd, SystemClock::Instance());
    return bare;
  }
  std::string name() const {
    return etcd_ == nullptr ? "one write and fdatasync" : "one transaction of etcd";
  }
  Status Do() {
    if (etcd_ == nullptr) {
      (void)!write(file_.get(), record_.data(), record_.size());
      fdatasync(file_.get());
      return {};
    }
    // Not below a pool's prefix, where it would be a stranger.
    const std::string key = "/kvcove-bench-limit";
    return Done(etcd_->Call(
        "/v3/kv/txn",
        {{"compare", nlohmann::json::array({master::EtcdCompareCreated(key + "-none", 0)})},
         {"success", nlohmann::json::array({master::EtcdPut(key, record_)})}},
        Now() + 10 * kSecond));
  }

 private:
  static Status Done(const Result<nlohmann::json>& answer) {
    if (!answer) return std::unexpected(answer.error());
    if (answer->value("succeeded", false)) return {};
    return Fail(Code::kInternal, "etcd did not make the bare transaction");
  }
  UniqueFd file_;
  std::unique_ptr<master::EtcdClient> etcd_;
  std::string record_ = std::string(512, 'r');
};

// Resets of nothing in particular.
Status BenchResets(const BenchOptions& options) {
  KVCOVE_ASSIGN(Cluster cluster,
                Cluster::Start({.owners = 3, .memory = 64 * kMiB, .store = options.store}));
  KVCOVE_ASSIGN(BareWrite bare, BareWrite::Open(options, cluster));
  std::vector<double> ours;
  std::vector<double> limits;
  for (int round = 0; round < 1000; ++round) {
    std::int64_t start = Now();
    KVCOVE_TRY(cluster.session->Reset({.timeout = kTimeout}));
    ours.push_back(static_cast<double>(Now() - start) / 1e3);
    // Used again, so that the next one raises it.
    KVCOVE_TRY(Fill(*cluster.session, 1, 64));
    start = Now();
    KVCOVE_TRY(bare.Do());
    limits.push_back(static_cast<double>(Now() - start) / 1e3);
  }
  Row row{.bench = "resets",
          .form = options.store.empty() ? "cluster" : "cluster on etcd",
          .limit = bare.name()};
  row.p50_us = Quantile(ours, 0.5);
  row.p99_us = Quantile(ours, 0.99);
  row.limit_p50_us = Quantile(limits, 0.5);
  row.bytes_per_s = 1e6 / row.p50_us;
  row.limit_bytes_per_s = 1e6 / row.limit_p50_us;
  row.extra = {{"limit_p99_us", Quantile(limits, 0.99)}, {"rounds", 1000}, {"owners", 3}};
  Print(options, row);
  return {};
}

Result<std::size_t> LiveOwners(const Cluster& cluster) {
  rpc::TcpChannel channel(cluster.master_address, {});
  KVCOVE_ASSIGN(const auto reply, wire::MasterStub(channel).Owners(Now() + kSecond));
  return static_cast<std::size_t>(std::ranges::count_if(reply.owners, &wire::OwnerStat::live));
}

// Five removals at once, with an owner that stands still for 0.4 s meanwhile, and resets of
// another namespace.
Status BenchRemovals(const BenchOptions& options) {
  KVCOVE_ASSIGN(Cluster cluster, Cluster::Start({.owners = 3, .memory = 256 * kMiB}));
  KVCOVE_ASSIGN(auto others, cluster.pool->OpenSession({.name = "others", .engine = "others"}));
  constexpr std::uint64_t kEach = 8000;
  constexpr int kCallers = 5;
  KVCOVE_TRY(Fill(*cluster.session, kEach * kCallers, 64));
  std::atomic<int> proven{0};
  std::atomic<int> late{0};
  std::atomic<std::int64_t> longest{0};
  std::vector<std::thread> callers;
  std::atomic<int> running{kCallers};
  cluster.owners[1]->Signal(SIGSTOP);
  for (int c = 0; c < kCallers; ++c) {
    callers.emplace_back([&, c] {
      std::vector<std::string> keys;
      for (std::uint64_t i = 0; i < kEach; ++i) {
        keys.push_back(KeyOf(static_cast<std::uint64_t>(c) * kEach + i));
      }
      const std::vector<std::string_view> views(keys.begin(), keys.end());
      std::vector<ItemResult> results(views.size());
      const std::int64_t began = Now();
      const Status removed =
          cluster.session->Remove(views, results, {.timeout = milliseconds(2500)});
      const std::int64_t took = Now() - began;
      std::int64_t before = longest;
      while (took > before && !longest.compare_exchange_weak(before, took)) {
      }
      proven += removed ? 1 : 0;
      late += took > 2600 * kMillisecond ? 1 : 0;
      --running;
    });
  }
  std::thread thaw([&] {
    std::this_thread::sleep_for(milliseconds(400));
    cluster.owners[1]->Signal(SIGCONT);
  });
  std::size_t least_live = 3;
  std::vector<double> resets_ms;
  const std::int64_t until = Now() + 2 * kSecond;
  Status reset;
  while (reset && (running > 0 || Now() < until)) {
    const std::int64_t began = Now();
    reset = others->Reset({.timeout = kTimeout});
    resets_ms.push_back(Ms(Now() - began));
    (void)others->Capture({});
    if (const auto live = LiveOwners(cluster)) least_live = std::min(least_live, *live);
    std::this_thread::sleep_for(milliseconds(5));
  }
  for (std::thread& caller : callers) caller.join();
  thaw.join();
  KVCOVE_TRY(reset);
  Row row{.bench = "removals", .form = "cluster", .objects = kEach * kCallers, .batch = kEach};
  row.extra = {{"proven", proven.load()},
               {"of", kCallers},
               {"later_than_their_deadline", late.load()},
               {"longest_ms", Ms(longest)},
               {"least_live_owners", least_live},
               {"resets", resets_ms.size()},
               {"resets_p50_ms", Quantile(resets_ms, 0.5)},
               {"resets_p99_ms", Quantile(resets_ms, 0.99)}};
  Print(options, row);
  return {};
}

// A removal that every owner walks through all its objects for, while a process on an owner's host
// reads others.
Status BenchPattern(const BenchOptions& options) {
  const std::uint64_t objects = std::min<std::uint64_t>(options.most_objects, 1'000'000);
  KVCOVE_ASSIGN(
      Cluster cluster,
      Cluster::Start({.owners = 1, .memory = MemoryFor(objects), .max_objects = objects}));
  KVCOVE_ASSIGN(const Local local, Local::Open(cluster));
  constexpr std::uint64_t kOthers = 2000;
  KVCOVE_ASSIGN(auto others, local.pool->OpenSession({.name = "others", .engine = "others"}));
  KVCOVE_TRY(Fill(*others, kOthers, 64));
  KVCOVE_TRY(Fill(*local.session, objects, 64));
  KVCOVE_ASSIGN(const Token token, local.session->Capture({}));
  rpc::TcpChannel channel(cluster.master_address, {});
  wire::MasterStub stub(channel);
  std::atomic<bool> stop{false};
  Misses misses;
  std::thread reader([&] { misses = ReadWhile(*others, kOthers, stop); });
  std::size_t least_live = 1;
  std::thread watcher([&] {
    while (!stop) {
      if (const auto live = LiveOwners(cluster)) least_live = std::min(least_live, *live);
      std::this_thread::sleep_for(milliseconds(5));
    }
  });
  std::this_thread::sleep_for(milliseconds(500));
  const std::int64_t began = Now();
  const Result<std::uint64_t> matched = stub.RemoveMatching(token, "*", Now() + 10 * kSecond);
  const std::int64_t took = Now() - began;
  std::this_thread::sleep_for(milliseconds(500));
  stop = true;
  reader.join();
  watcher.join();
  if (!matched) return std::unexpected(matched.error());
  Row row{.bench = "removal_by_pattern", .form = "cluster", .objects = objects};
  row.extra = {{"matched", *matched},
               {"ms", Ms(took)},
               {"others_first_miss_ms", misses.first_ns < 0 ? -1.0 : Ms(misses.first_ns)},
               {"others_longest_without_a_hit_ms", Ms(misses.longest_ns)},
               {"least_live_owners", least_live}};
  Print(options, row);
  return {};
}

}  // namespace

Result<int> RunControlBench(const BenchOptions& options) {
  const std::pair<const char*, Status (*)(const BenchOptions&)> benches[] = {
      {"reads", BenchLocalReads},
      {"resets", BenchResets},
      {"removals", BenchRemovals},
      {"pattern", BenchPattern}};
  for (const auto& [name, bench] : benches) {
    const bool wanted = options.benches.empty() ||
                        std::ranges::find(options.benches, name) != options.benches.end();
    if (wanted) KVCOVE_TRY(bench(options));
  }
  return 0;
}

}  // namespace kvcove::lab
