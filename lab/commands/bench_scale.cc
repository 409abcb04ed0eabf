// SPDX-License-Identifier: Apache-2.0
// `kvcove bench scale`: how far one master goes, and what disturbs others.
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <thread>

#include "kvcove/base/random.h"
#include "kvcove/base/size.h"
#include "kvcove/http/server.h"
#include "kvcove/master/directory/directory.h"
#include "kvcove/rpc/channel.h"
#include "kvcove/wire/master_stub.h"
#include "lab/commands/bench.h"
#include "lab/commands/bench_cluster.h"

namespace kvcove::lab {
namespace {

using nlohmann::json;

// Latencies of gets of 4 KiB and of look-ups, one after the other, for a while.
struct Latencies {
  std::vector<double> get_us;
  std::vector<double> lookup_us;
  json Json() {
    return {{"get_p50_us", Quantile(get_us, 0.5)},
            {"get_p99_us", Quantile(get_us, 0.99)},
            {"lookup_p50_us", Quantile(lookup_us, 0.5)},
            {"lookup_p99_us", Quantile(lookup_us, 0.99)}};
  }
};

Latencies Probe(Session& session, std::uint64_t objects, const std::atomic<bool>& stop) {
  Latencies latencies;
  Random random(1);
  std::vector<std::byte> buffer(4096);
  while (!stop) {
    const std::string key = KeyOf(random.Below(objects));
    const std::string_view view = key;
    const MutableBuffer into{.data = buffer.data(), .size = buffer.size()};
    const GetItem item{.key = key, .into = {&into, 1}};
    ItemResult result;
    std::int64_t began = Now();
    (void)session.Get({&item, 1}, {&result, 1}, {.timeout = kTimeout});
    latencies.get_us.push_back(static_cast<double>(Now() - began) / 1e3);
    began = Now();
    (void)session.Exists({&view, 1}, {&result, 1}, {.timeout = kTimeout});
    latencies.lookup_us.push_back(static_cast<double>(Now() - began) / 1e3);
  }
  return latencies;
}

Latencies ProbeFor(Session& session, std::uint64_t objects, double seconds) {
  std::atomic<bool> stop{false};
  std::thread timer([&] {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    stop = true;
  });
  Latencies latencies = Probe(session, objects, stop);
  timer.join();
  return latencies;
}

// Of each of three owners, so that small objects fit however they fall.
std::uint64_t MemoryOfOwners(std::uint64_t objects) {
  return (objects * 128 * 2 / 3 / kMiB + 64) * kMiB;
}

Status BenchDirectory(const BenchOptions& options) {
  for (const std::uint64_t entries : {1'000'000ULL, 10'000'000ULL}) {
    if (entries > options.most_objects) break;
    master::Standings standings(SystemClock::Instance());
    standings.SetSlot({.slot = 0, .generation = 1, .name = {}});
    standings.owner(0).epoch = 1;
    standings.owner(0).live_until_ns = std::numeric_limits<std::int64_t>::max();
    standings.owner(0).present_until_ns = std::numeric_limits<std::int64_t>::max();
    master::Directory directory(standings);
    std::vector<std::pair<wire::OwnerNumber, SlotId>> to_bar;
    const auto hash = [](std::uint64_t i) { return Id128{.high = Mix64(i), .low = Mix64(~i)}; };
    const std::int64_t began = Now();
    for (std::uint64_t i = 0; i < entries; ++i) {
      (void)directory.List({.hash = hash(i), .generation = 1, .size_bytes = 4096, .group = 1}, 0, 1,
                           to_bar);
    }
    const std::int64_t listed = Now();
    std::uint64_t found = 0;
    for (std::uint64_t i = 0; i < entries; ++i) {
      found += directory.Find(0, hash(i)).owner == 0 ? 1 : 0;
    }
    const std::int64_t looked = Now();
    if (found != entries) return Fail(Code::kInternal, "the directory lost entries");
    const auto per = [&](std::int64_t ns) {
      return static_cast<double>(ns) / static_cast<double>(entries);
    };
    Row row{.bench = "directory", .form = "embedded", .objects = entries};
    row.extra = {{"bytes_per_entry", per(static_cast<std::int64_t>(directory.bytes()))},
                 {"list_ns", per(listed - began)},
                 {"find_ns", per(looked - listed)}};
    Print(options, row);
  }
  return {};
}

// A master is killed and started again: from then on, how long until its owners' objects are found.
Status BenchRestart(const BenchOptions& options) {
  for (const std::uint64_t objects : {100'000ULL, 1'000'000ULL}) {
    if (objects > options.most_objects) break;
    KVCOVE_ASSIGN(
        Cluster cluster,
        Cluster::Start({.owners = 3, .memory = MemoryOfOwners(objects), .max_objects = objects}));
    KVCOVE_TRY(Fill(*cluster.session, objects, 64));
    std::vector<std::string> keys;
    for (std::uint64_t i = 0; i < objects; ++i) keys.push_back(KeyOf(i));
    const auto share_found = [&] {
      std::uint64_t found = 0;
      for (std::uint64_t at = 0; at < objects; at += 4096) {
        const std::uint64_t end = std::min(objects, at + 4096);
        const std::vector<std::string_view> part(keys.begin() + static_cast<std::ptrdiff_t>(at),
                                                 keys.begin() + static_cast<std::ptrdiff_t>(end));
        std::vector<ItemResult> results(part.size());
        if (!cluster.session->Exists(part, results, {})) return 0.0;
        found += static_cast<std::uint64_t>(std::ranges::count_if(results, &ItemResult::ok));
        // The first part tells whether looking at all the others is worth while.
        if (at == 0 && found < part.size() / 2) return 0.0;
      }
      return static_cast<double>(found) / static_cast<double>(objects);
    };
    const double before = share_found();
    cluster.master->Kill();
    const std::int64_t began = Now();
    KVCOVE_TRY(cluster.StartMaster());
    double ms_99 = -1;
    double share = 0;
    while (Now() < began + 30 * kSecond && share < before) {
      share = share_found();
      if (share >= 0.99 && ms_99 < 0) ms_99 = static_cast<double>(Now() - began) / 1e6;
      if (share < before) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    Row row{.bench = "master_restart", .form = "cluster", .objects = objects};
    row.extra = {{"found_before", before},
                 {"ms_until_99_percent", ms_99},
                 {"ms_until_all", static_cast<double>(Now() - began) / 1e6},
                 {"found", share},
                 {"owners", 3}};
    Print(options, row);
  }
  return {};
}

Status BenchLookups(const BenchOptions& options) {
  KVCOVE_ASSIGN(Cluster cluster, Cluster::Start({.owners = 1, .memory = 64 * kMiB}));
  constexpr std::uint64_t kObjects = 20'000;
  KVCOVE_TRY(Fill(*cluster.session, kObjects, 64));
  for (const int clients : {1, 2, 4}) {
    std::atomic<std::uint64_t> looked{0};
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (int c = 0; c < clients; ++c) {
      threads.emplace_back([&, c] {
        std::vector<std::string> keys;
        for (std::uint64_t i = 0; i < 128; ++i) {
          keys.push_back(KeyOf((static_cast<std::uint64_t>(c) * 1000 + i * 7) % kObjects));
        }
        const std::vector<std::string_view> views(keys.begin(), keys.end());
        std::vector<ItemResult> results(views.size());
        while (!stop) {
          (void)cluster.session->Exists(views, results, {});
          looked += views.size();
        }
      });
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(options.seconds));
    stop = true;
    for (std::thread& thread : threads) thread.join();
    Row row{.bench = "lookups", .form = "cluster", .objects = kObjects, .batch = 128};
    row.extra = {{"clients", clients},
                 {"keys_per_second", static_cast<double>(looked) / options.seconds}};
    Print(options, row);
  }
  return {};
}

// Asks `ask` in so many threads for a while, and prints how many keys a second it has answered.
// `ask`: returns how many of `batch` leading keys are found, for a client of this number.
Status ReportLocate(const BenchOptions& options, const Row& row, int clients,
                    const std::function<std::uint64_t(int client)>& ask) {
  std::atomic<std::uint64_t> asked{0};
  std::atomic<bool> stop{false};
  std::atomic<bool> lost{false};
  std::vector<std::thread> threads;
  for (int c = 0; c < clients; ++c) {
    threads.emplace_back([&, c] {
      while (!stop) {
        const std::uint64_t found = ask(c);
        asked += found;
        if (found != row.batch) lost = true;
      }
    });
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(options.seconds));
  stop = true;
  for (std::thread& thread : threads) thread.join();
  if (lost) return Fail(Code::kInternal, "a stored prefix was not found whole");
  Row done = row;
  done.extra = {{"clients", clients},
                {"keys_per_second", static_cast<double>(asked) / options.seconds}};
  Print(options, done);
  return {};
}

// What routers ask: which owners have how much of a prefix; by a session, and at the admin
// endpoint.
Status BenchLocate(const BenchOptions& options) {
  constexpr std::uint64_t kObjects = 20'000;
  constexpr std::uint64_t kPrefix = 4096;
  KVCOVE_ASSIGN(Cluster cluster, Cluster::Start({.owners = 3, .memory = 64 * kMiB}));
  KVCOVE_TRY(Fill(*cluster.session, kObjects, 64));
  for (const int clients : {1, 2, 4}) {
    std::vector<std::vector<std::string>> keys(static_cast<std::size_t>(clients));
    std::vector<std::vector<std::string_view>> views(keys.size());
    std::vector<std::string> bodies;
    for (std::size_t c = 0; c < keys.size(); ++c) {
      for (std::uint64_t i = 0; i < kPrefix; ++i) {
        keys[c].push_back(KeyOf((c * 1000 + i) % kObjects));
      }
      views[c].assign(keys[c].begin(), keys[c].end());
      bodies.push_back(json{{"namespace", "bench"}, {"keys", keys[c]}}.dump());
    }
    Row row{.bench = "locate", .form = "cluster", .objects = kObjects, .batch = kPrefix};
    KVCOVE_TRY(ReportLocate(options, row, clients, [&](int c) -> std::uint64_t {
      const auto located =
          cluster.session->Locate(views[static_cast<std::size_t>(c)], {.timeout = kTimeout});
      return located ? located->keys : 0;
    }));
    row.form = "http";
    KVCOVE_TRY(ReportLocate(options, row, clients, [&](int c) -> std::uint64_t {
      const auto response = http::Call({.port = cluster.admin_address.port,
                                        .method = "POST",
                                        .target = "/v1/prefix",
                                        .body = bodies[static_cast<std::size_t>(c)]});
      if (!response || response->status != 200) return 0;
      return json::parse(response->body)["keys"].get<std::uint64_t>();
    }));
  }
  return {};
}

// What a reset of a million objects costs those who do something else.
Status BenchResetOthers(const BenchOptions& options) {
  const std::uint64_t objects = std::min<std::uint64_t>(options.most_objects, 1'000'000);
  KVCOVE_ASSIGN(
      Cluster cluster,
      Cluster::Start({.owners = 3, .memory = MemoryOfOwners(objects), .max_objects = objects}));
  KVCOVE_ASSIGN(auto others, cluster.pool->OpenSession({.name = "others", .engine = "others"}));
  constexpr std::uint64_t kOthers = 2000;
  KVCOVE_TRY(Fill(*others, kOthers, 4096));
  Latencies before = ProbeFor(*others, kOthers, 3 * options.seconds);
  std::vector<double> resets_ms;
  Latencies during;
  for (int round = 0; round < 3; ++round) {
    KVCOVE_TRY(Fill(*cluster.session, objects, 64));
    std::atomic<bool> stop{false};
    Latencies part;
    std::thread prober([&] { part = Probe(*others, kOthers, stop); });
    // The sweep of what the reset voided goes on behind it.
    const std::int64_t until = Now() + static_cast<std::int64_t>(options.seconds * 1e9);
    while (Now() < until) {
      const std::int64_t began = Now();
      KVCOVE_TRY(cluster.session->Reset({.timeout = kTimeout}));
      resets_ms.push_back(static_cast<double>(Now() - began) / 1e6);
      (void)cluster.session->Capture({});
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    stop = true;
    prober.join();
    during.get_us.insert(during.get_us.end(), part.get_us.begin(), part.get_us.end());
    during.lookup_us.insert(during.lookup_us.end(), part.lookup_us.begin(), part.lookup_us.end());
  }
  Row row{.bench = "reset_and_others", .form = "cluster", .objects = objects};
  row.extra = {{"resets", resets_ms.size()},
               {"reset_p50_ms", Quantile(resets_ms, 0.5)},
               {"reset_p99_ms", Quantile(resets_ms, 0.99)},
               {"others_before", before.Json()},
               {"others_during", during.Json()}};
  Print(options, row);
  return {};
}

Result<std::vector<rpc::Address>> PortsOf(const Cluster& cluster) {
  rpc::TcpChannel channel(cluster.master_address, {});
  KVCOVE_ASSIGN(const auto reply, wire::MasterStub(channel).Owners(Now() + kSecond));
  KVCOVE_ASSIGN(const rpc::Address owner, rpc::ParseAddress(reply.owners.front().address, 0));
  return std::vector<rpc::Address>{cluster.master_address, cluster.admin_address, owner};
}

// A thousand connections on each port that say nothing, or half a greeting.
Status BenchSilent(const BenchOptions& options) {
  KVCOVE_ASSIGN(Cluster cluster, Cluster::Start({.owners = 1, .memory = 64 * kMiB}));
  constexpr std::uint64_t kObjects = 2000;
  KVCOVE_TRY(Fill(*cluster.session, kObjects, 4096));
  KVCOVE_ASSIGN(const std::vector<rpc::Address> ports, PortsOf(cluster));
  Latencies before = ProbeFor(*cluster.session, kObjects, 3 * options.seconds);
  std::vector<UniqueFd> silent;
  const std::int64_t opened = Now();
  for (const rpc::Address& port : ports) {
    for (int i = 0; i < 1000; ++i) {
      KVCOVE_ASSIGN(UniqueFd fd, rpc::ConnectTcp(port, Now() + kSecond));
      if (i % 2 == 0) (void)!send(fd.get(), "kvcf\1\0\1\0", 8, MSG_NOSIGNAL);
      silent.push_back(std::move(fd));
    }
  }
  std::vector<double> health_ms;
  std::atomic<bool> stop{false};
  std::thread health([&] {
    while (!stop) {
      const std::int64_t began = Now();
      const auto response = http::Call({.port = cluster.admin_address.port, .target = "/healthz"});
      if (response) health_ms.push_back(static_cast<double>(Now() - began) / 1e6);
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  });
  Latencies during = ProbeFor(*cluster.session, kObjects, 3 * options.seconds);
  stop = true;
  health.join();
  std::size_t closed = 0;
  while (closed < silent.size() && Now() < opened + 30 * kSecond) {
    closed = static_cast<std::size_t>(std::ranges::count_if(silent, [](const UniqueFd& fd) {
      char bytes[256];
      ssize_t got = 1;
      while (got > 0) got = recv(fd.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
      return got == 0 || errno != EAGAIN;
    }));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  Row row{.bench = "silent_connections", .form = "cluster", .objects = kObjects};
  row.extra = {{"connections", silent.size()},
               {"closed", closed},
               {"seconds_until_closed", static_cast<double>(Now() - opened) / 1e9},
               {"healthz_max_ms", Quantile(health_ms, 1)},
               {"others_before", before.Json()},
               {"others_during", during.Json()}};
  Print(options, row);
  return {};
}

// Frames that are none, on live ports.
Status BenchGarbage(const BenchOptions& options) {
  KVCOVE_ASSIGN(Cluster cluster, Cluster::Start({.owners = 1, .memory = 64 * kMiB}));
  constexpr std::uint64_t kObjects = 2000;
  KVCOVE_TRY(Fill(*cluster.session, kObjects, 4096));
  KVCOVE_ASSIGN(const std::vector<rpc::Address> ports, PortsOf(cluster));
  (void)ProbeFor(*cluster.session, kObjects, options.seconds);
  const std::uint64_t master_before = cluster.master->ResidentBytes();
  const std::uint64_t owner_before = cluster.owners[0]->ResidentBytes();
  Random random(RandomU64());
  constexpr int kFrames = 100'000;
  UniqueFd fd;
  for (int i = 0; i < kFrames; ++i) {
    const rpc::Address& port = ports[random.Below(ports.size())];
    auto connected = rpc::ConnectTcp(port, Now() + kSecond);
    if (!connected) continue;
    // After a true hello, or before it; a head that is right with a body that is not, or nonsense.
    std::string bytes;
    if (random.OneIn(2)) {
      const auto hello = wire::EncodeFrameHeader(
          {.method = static_cast<std::uint16_t>(wire::Method::kHello), .body_bytes = 0, .call = 1});
      bytes.assign(reinterpret_cast<const char*>(hello.data()), hello.size());
    }
    std::string body(random.Below(2000), '\0');
    for (char& byte : body) byte = static_cast<char>(random.Next());
    if (!random.OneIn(4)) {
      const auto head = wire::EncodeFrameHeader(
          {.method = static_cast<std::uint16_t>(random.Below(wire::kMaxMethod + 2)),
           .body_bytes = static_cast<std::uint32_t>(
               random.OneIn(3) ? random.Next() : static_cast<std::uint64_t>(body.size())),
           .call = random.Next()});
      bytes.append(reinterpret_cast<const char*>(head.data()), head.size());
    }
    bytes += body;
    (void)!send(connected->get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    // Most are closed at once, the others stay until the next ones come.
    if (random.OneIn(50)) fd = std::move(*connected);
  }
  fd.Reset();
  std::this_thread::sleep_for(std::chrono::seconds(6));
  Latencies after = ProbeFor(*cluster.session, kObjects, options.seconds);
  const auto growth = [](std::uint64_t now, std::uint64_t then) {
    return (static_cast<double>(now) - static_cast<double>(then)) / static_cast<double>(kMiB);
  };
  Row row{.bench = "garbage", .form = "cluster", .objects = kObjects};
  row.extra = {{"frames", kFrames},
               {"master_growth_mib", growth(cluster.master->ResidentBytes(), master_before)},
               {"owner_growth_mib", growth(cluster.owners[0]->ResidentBytes(), owner_before)},
               {"others_after", after.Json()}};
  Print(options, row);
  return {};
}

}  // namespace

Result<int> RunScaleBench(const BenchOptions& options) {
  const std::pair<const char*, Status (*)(const BenchOptions&)> benches[] = {
      {"directory", BenchDirectory}, {"restart", BenchRestart},   {"lookups", BenchLookups},
      {"locate", BenchLocate},       {"reset", BenchResetOthers}, {"silent", BenchSilent},
      {"garbage", BenchGarbage}};
  const auto named = [&](const char* name) {
    return std::ranges::find(options.benches, name) != options.benches.end();
  };
  for (const auto& [name, bench] : benches) {
    if (options.benches.empty() || named(name)) KVCOVE_TRY(bench(options));
  }
  if (named("shards")) KVCOVE_TRY(BenchShards(options));
  if (named("shard-model")) KVCOVE_TRY(BenchShardModel(options));
  return 0;
}

}  // namespace kvcove::lab
