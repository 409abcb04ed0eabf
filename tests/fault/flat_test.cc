// SPDX-License-Identifier: Apache-2.0
// Nothing is used up by time or by use: each process of a cluster has as many descriptors, sockets
// and threads after half a minute and 1,400 visits of an engine as after ten seconds and 300
// visits, idle and busy, and the master's tables are as large. KVCOVE_FLAT_SECONDS makes it longer.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

#include "kvcove/base/log.h"
#include "kvcove/base/size.h"
#include "kvcove/http/server.h"
#include "tests/fault/cluster_processes.h"

namespace kvcove {
namespace {

constexpr int kOwners = 3;
// After so many visits they repeat: of 100 keys, 50 namespaces, 10 engines, 3 versions and kinds.
constexpr std::uint64_t kDistinctVisits = 300;
// The whole run makes at least as many, however long a busy machine takes for them.
constexpr std::uint64_t kVisits = 1400;
// Of allocators, from one look to the next. The engine's memory moves in steps of 2 MiB, the size
// of a session's hints, and was seen 8 MiB higher after a minute and 6 MiB higher after four.
constexpr std::uint64_t kMemoryNoiseBytes = 12 * kMiB;

// What a process holds now.
struct Use {
  std::size_t descriptors = 0;
  std::size_t sockets = 0;
  std::size_t threads = 0;
  std::uint64_t private_bytes = 0;  // not counting memory that it shares, such as a segment
};

Use UseOf(pid_t pid) {
  Use use;
  std::error_code error;
  const std::string process = fmt::format("/proc/{}", pid);
  for (const auto& entry : std::filesystem::directory_iterator(process + "/fd", error)) {
    ++use.descriptors;
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    if (target.starts_with("socket:")) ++use.sockets;
  }
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator(process + "/task", error)) {
    ++use.threads;
  }
  std::ifstream status(process + "/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.starts_with("RssAnon:")) use.private_bytes = std::stoull(line.substr(8)) * kKiB;
  }
  return use;
}

bool NoMoreThan(const Use& after, const Use& before) {
  return after.descriptors <= before.descriptors && after.sockets <= before.sockets &&
         after.threads <= before.threads &&
         after.private_bytes <= before.private_bytes + kMemoryNoiseBytes;
}

// The least of a second, of each process: calls that are under way may have a connection more.
std::map<std::string, Use> CalmUses(const std::map<std::string, pid_t>& processes) {
  std::map<std::string, Use> least;
  for (int i = 0; i < 50; ++i) {
    for (const auto& [name, pid] : processes) {
      const Use now = UseOf(pid);
      Use& use = least.try_emplace(name, now).first->second;
      use.descriptors = std::min(use.descriptors, now.descriptors);
      use.sockets = std::min(use.sockets, now.sockets);
      use.threads = std::min(use.threads, now.threads);
      use.private_bytes = std::min(use.private_bytes, now.private_bytes);
    }
    std::this_thread::sleep_for(milliseconds(20));
  }
  return least;
}

// What the master keeps for others, by the name of its metric.
constexpr const char* kTables[] = {
    "kvcove_master_directory_bytes", "kvcove_master_members",
    "kvcove_master_barriers",        "kvcove_master_slots",
    "kvcove_master_registrations",   "kvcove_master_removal_log_bytes",
    "kvcove_master_connections",     "kvcove_master_waiting_calls"};
using Tables = std::map<std::string, double>;

Tables TablesOf(std::uint16_t port) {
  Tables tables;
  const auto response = Await([&] { return http::Call({.port = port, .target = "/metrics"}); });
  EXPECT_EQ(response.status, 200) << "the master's metrics";
  std::istringstream lines(response.body);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t end = line.find_first_of(" {");
    const std::string name = line.substr(0, end);
    if (std::ranges::find(kTables, name) != std::end(kTables)) {
      tables[name] = std::stod(line.substr(line.rfind(' ')));
    }
  }
  return tables;
}

// The least of three seconds: what ended with a process is noticed, removals are applied.
Tables CalmTablesOf(std::uint16_t port) {
  Tables least = TablesOf(port);
  for (int i = 0; i < 30; ++i) {
    std::this_thread::sleep_for(milliseconds(100));
    for (const auto& [name, value] : TablesOf(port)) least[name] = std::min(least[name], value);
  }
  return least;
}

// An engine that comes and goes: a pool, a session, a reset, an object, its removal.
class Engine {
 public:
  explicit Engine(const ClusterProcesses& cluster) : cluster_(cluster) {}

  // `kind`: on an owner's host through the master, on a host without owner, or by an owner's
  // socket.
  void Visit(int kind, std::uint64_t round) {
    ++visits_;
    const Status done = TryVisit(kind, round);
    if (done) return;
    // A machine that is busy with other things makes calls late; more than that is a failure.
    ++late_;
    EXPECT_EQ(done.error().code, Code::kTimeout) << done.error().ToString();
  }
  std::uint64_t visits() const { return visits_; }
  std::uint64_t hits() const { return hits_; }
  std::uint64_t late() const { return late_; }

 private:
  Status TryVisit(int kind, std::uint64_t round) {
    const std::string address =
        kind == 2 ? "unix:" + cluster_.SocketOf(2)
                  : fmt::format("kvcove://{}?host={}", cluster_.master_address().ToString(),
                                kind == 0 ? "host0" : "elsewhere");
    KVCOVE_ASSIGN(const auto pool, Pool::Open(address, kCallTime));
    KVCOVE_ASSIGN(
        const auto session,
        pool->OpenSession({.name = "acme/llama", .engine = fmt::format("e{}", round % 10)}));
    KVCOVE_TRY(session->Reset({.timeout = kCallTime}));
    KVCOVE_ASSIGN(const Token token, session->Capture({.timeout = kCallTime}));
    const std::string value(2000, 'v');
    const ConstBuffer piece{value.data(), value.size()};
    const std::string key = fmt::format("key-{}", round % 100);
    const PutItem put{.key = key, .value = {&piece, 1}};
    ItemResult result;
    KVCOVE_TRY(session->Put(token, {&put, 1}, {&result, 1}, {.timeout = kCallTime}));
    std::string got(value.size(), '\0');
    const MutableBuffer into{got.data(), got.size()};
    const GetItem get{.key = key, .into = {&into, 1}};
    KVCOVE_TRY(session->Get({&get, 1}, {&result, 1}, {.timeout = kCallTime}));
    hits_ += result.ok() ? 1 : 0;
    const std::string_view view = key;
    if (round % 2 == 0)
      KVCOVE_TRY(session->Remove({&view, 1}, {&result, 1}, {.timeout = kCallTime}));
    // Namespaces and versions come and go, too.
    KVCOVE_ASSIGN(
        const auto other,
        pool->OpenSession({.name = fmt::format("acme/space-{}", round % 50), .engine = "e"}));
    KVCOVE_TRY(other->Capture({.timeout = kCallTime, .version = fmt::format("v{}", round % 3)}));
    return {};
  }

  const ClusterProcesses& cluster_;
  std::uint64_t visits_ = 0;
  std::uint64_t hits_ = 0;
  std::uint64_t late_ = 0;
};

class FlatTest : public testing::Test {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kError);
    for (ClusterProcesses* cluster : {&idle_, &busy_}) {
      cluster->StartMaster(Admin(*cluster).ToString());
      for (std::size_t i = 0; i < kOwners; ++i) cluster->StartOwner(i, i + 1);
    }
  }
  rpc::Address& Admin(const ClusterProcesses& cluster) {
    return &cluster == &idle_ ? idle_admin_ : busy_admin_;
  }
  // Of every process of both clusters, and of this one, which is the engine.
  std::map<std::string, Use> Look() {
    std::map<std::string, pid_t> processes = {{"engine", getpid()}};
    const auto add = [&](const std::string& name, ClusterProcesses& cluster) {
      processes[name + " master"] = cluster.master();
      for (std::size_t i = 0; i < kOwners; ++i) {
        processes[fmt::format("{} owner {}", name, i)] = cluster.owner(i);
      }
    };
    add("idle", idle_);
    add("busy", busy_);
    return CalmUses(processes);
  }
  // Until then, and until all visits before `round` have been made.
  void VisitUntil(Engine& engine, std::int64_t until_ms, std::uint64_t round) {
    while (NowMs() < until_ms || round_ < round) {
      engine.Visit(static_cast<int>(round_ % 3), round_);
      ++round_;
      // Other tests run beside this one, and need ports and processors, too.
      std::this_thread::sleep_for(milliseconds(8));
    }
  }

  ClusterProcesses idle_;
  ClusterProcesses busy_;
  rpc::Address idle_admin_ = LastingAddress();
  rpc::Address busy_admin_ = LastingAddress();
  std::uint64_t round_ = 1;
};

TEST_F(FlatTest, AfterHalfAMinuteEachProcessHoldsWhatItHeldAfterTenSeconds) {
  const char* length = std::getenv("KVCOVE_FLAT_SECONDS");
  const std::int64_t seconds = length == nullptr ? 30 : std::stoll(length);
  Engine engine(busy_);
  const std::int64_t began = NowMs();
  // The tables have all that visits leave in them before the first look.
  VisitUntil(engine, began + 10'000, 1 + kDistinctVisits);
  // The greater of two looks: a file that is replaced while one counts may be missing in it.
  std::map<std::string, Use> early = Look();
  for (const auto& [name, again] : Look()) {
    Use& use = early.at(name);
    use.descriptors = std::max(use.descriptors, again.descriptors);
    use.sockets = std::max(use.sockets, again.sockets);
    use.threads = std::max(use.threads, again.threads);
  }
  const Tables early_tables = CalmTablesOf(busy_admin_.port);
  VisitUntil(engine, began + seconds * 1000, 1 + kVisits);
  // On a busy machine calls are under way for longer than a look takes, so it looks again.
  std::map<std::string, Use> late;
  Tables late_tables;
  const bool flat = Becomes([&] {
    late = Look();
    late_tables = CalmTablesOf(busy_admin_.port);
    return std::ranges::all_of(
               early,
               [&](const auto& one) { return NoMoreThan(late.at(one.first), one.second); }) &&
           std::ranges::all_of(
               early_tables, [&](const auto& one) { return late_tables[one.first] <= one.second; });
  });
  for (const auto& [name, before] : early) {
    const Use& after = late.at(name);
    fmt::print(
        "{:14} descriptors {} -> {}, sockets {} -> {}, threads {} -> {}, memory {} -> {} KiB\n",
        name, before.descriptors, after.descriptors, before.sockets, after.sockets, before.threads,
        after.threads, before.private_bytes >> 10, after.private_bytes >> 10);
    EXPECT_TRUE(flat || NoMoreThan(after, before)) << name;
  }
  EXPECT_EQ(early_tables.size(), std::size(kTables)) << "each has a metric";
  for (const auto& [name, before] : early_tables) {
    fmt::print("{}: {} -> {}\n", name, before, late_tables.at(name));
    EXPECT_LE(late_tables.at(name), before) << name;
  }
  fmt::print("{} visits in {} s, {} of their gets were hits, {} were late\n", engine.visits(),
             seconds, engine.hits(), engine.late());
  EXPECT_GE(engine.visits(), kVisits);
  EXPECT_GT(engine.hits(), engine.visits() * 9 / 10);
}

}  // namespace
}  // namespace kvcove
