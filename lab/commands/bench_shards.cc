// SPDX-License-Identifier: Apache-2.0
// `kvcove bench scale --bench shards --bench shard-model`: masters that share the directory, two of
// them measured, and sixteen computed from what one of them needs.
#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>
#include <thread>

#include "kvcove/base/random.h"
#include "kvcove/base/size.h"
#include "kvcove/http/server.h"
#include "kvcove/master/directory/directory_service.h"
#include "kvcove/master/shards/shards.h"
#include "lab/commands/bench.h"
#include "lab/commands/bench_cluster.h"

namespace kvcove::lab {
namespace {

using nlohmann::json;

constexpr std::uint64_t kKeys = 4096;

struct Asked {
  explicit Asked(std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) keys.push_back(KeyOf(i));
    views.assign(keys.begin(), keys.end());
    results.resize(count);
  }
  bool AllFound(Session& session) {
    if (!session.Exists(views, results, {.timeout = kTimeout})) return false;
    return std::ranges::all_of(results, &ItemResult::ok);
  }
  std::vector<std::string> keys;
  std::vector<std::string_view> views;
  std::vector<ItemResult> results;
};

// ---- what one master needs

struct Constants {
  double lookup_message_us = 0;  // processor time of the master, the kernel's included
  double lookup_key_us = 0;
  double list_us = 0;  // of an object: what a master needs to take it
  double tell_us = 0;  // and its owner to tell it
  double round_trip_us = 0;
  json Json() const {
    return {{"lookup_message_us", lookup_message_us},
            {"lookup_key_us", lookup_key_us},
            {"list_us", list_us},
            {"tell_us", tell_us},
            {"round_trip_us", round_trip_us}};
  }
};

// What the master takes for a look-up of so many keys.
Result<double> LookupCpuUs(const BenchOptions& options, Cluster& cluster, std::uint64_t batch) {
  Asked asked(batch);
  if (!asked.AllFound(*cluster.session)) return Fail(Code::kInternal, "a key is not found");
  const double before = cluster.master->CpuSeconds();
  std::uint64_t calls = 0;
  const std::int64_t until = Now() + static_cast<std::int64_t>(options.seconds * 2e9);
  for (; Now() < until; ++calls) (void)asked.AllFound(*cluster.session);
  return (cluster.master->CpuSeconds() - before) * 1e6 / static_cast<double>(calls);
}

Result<std::uint64_t> EntriesOf(const rpc::Address& admin) {
  KVCOVE_ASSIGN(const auto reply,
                http::Call({.host = admin.host, .port = admin.port, .target = "/v1/status"}));
  const json body = json::parse(reply.body, nullptr, /*allow_exceptions=*/false);
  return body.is_object() ? body.value("directory_entries", std::uint64_t{0}) : 0;
}

// A master begins again, and its owners tell it everything.
Status MeasureTelling(Cluster& cluster, std::uint64_t objects, Constants& constants) {
  const auto owners_cpu = [&] {
    double seconds = 0;
    for (const auto& owner : cluster.owners) seconds += owner->CpuSeconds();
    return seconds;
  };
  KVCOVE_ASSIGN(const std::uint64_t all, EntriesOf(cluster.admin_address));
  if (all < objects * 9 / 10) return Fail(Code::kInternal, "the owners do not hold enough");
  const double before = owners_cpu();
  cluster.master->Kill();
  KVCOVE_TRY(cluster.StartMaster());
  std::uint64_t told = 0;
  for (const std::int64_t until = Now() + 60 * kSecond; told < all && Now() < until;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    told = EntriesOf(cluster.admin_address).value_or(0);
  }
  if (told < all) return Fail(Code::kTimeout, "the owners did not tell everything");
  const auto count = static_cast<double>(all);
  constants.list_us = cluster.master->CpuSeconds() * 1e6 / count;
  constants.tell_us = (owners_cpu() - before) * 1e6 / count;
  return {};
}

Result<Constants> MeasureConstants(const BenchOptions& options) {
  const std::uint64_t objects = std::min<std::uint64_t>(options.most_objects, 1'000'000);
  KVCOVE_ASSIGN(Cluster cluster, Cluster::Start({.owners = 3,
                                                 .memory = (objects * 128 / kMiB + 64) * kMiB,
                                                 .max_objects = objects}));
  KVCOVE_TRY(Fill(*cluster.session, objects, 64));
  Constants constants;
  constexpr std::uint64_t kFew = 8;
  KVCOVE_ASSIGN(const double few, LookupCpuUs(options, cluster, kFew));
  KVCOVE_ASSIGN(const double many, LookupCpuUs(options, cluster, kKeys));
  constants.lookup_key_us = (many - few) / static_cast<double>(kKeys - kFew);
  constants.lookup_message_us = few - constants.lookup_key_us * static_cast<double>(kFew);
  Asked one(1);
  std::vector<double> trips;
  for (int i = 0; i < 2000; ++i) {
    const std::int64_t began = Now();
    (void)one.AllFound(*cluster.session);
    trips.push_back(static_cast<double>(Now() - began) / 1e3);
  }
  constants.round_trip_us = Quantile(trips, 0.5);
  KVCOVE_TRY(MeasureTelling(cluster, objects, constants));
  return constants;
}

// ---- the model

// Each shard has one thread for listings and look-ups, which takes one message after the other. An
// owner tells a page when every shard has taken the one before. A requester looks keys up at random
// times, and not before its last look-up is answered. Times in microseconds.
struct Model {
  Constants constants;
  std::size_t shards = 16;
  std::size_t owners = 1000;
  std::uint64_t objects = 1'000'000;  // of each owner
  std::size_t requesters = 8000;
  double keys_per_second = 1e7;
  std::uint64_t batch = 128;  // keys of a look-up
  std::size_t tellers = 16;   // at a time, for each shard
  // Until another master leads, has read the facts and gathered who follows: the longest of 200
  // kills (docs/ha.md), and Shards' time to gather.
  double leads_us = 2.68e6;
  double network_us = 200;  // a round trip between two hosts, beyond loopback's
  // Only this shard begins anew; the leader takes its part. Else all do.
  bool one_lost = false;

  struct Outcome {
    double seconds = 0;  // until all is told
    std::vector<double> during_us;
    std::vector<double> after_us;
    double keys_per_second = 0;  // that are answered behind the recovery
    double busiest = 0;          // of the shards then: the share of its time
  };
  Outcome Run() const;
};

Model::Outcome Model::Run() const {
  constexpr std::uint64_t kPage = 4096;
  constexpr double kPollUs = 20'000;  // of an owner that is not admitted yet
  constexpr double kAfterUs = 2e6;    // of look-ups alone, at the end
  constexpr double kMostUs = 6e8;     // it does not recover
  struct Event {
    double at = 0;
    std::size_t owner = 0;  // those behind the owners are requesters
    bool sends = false;     // a page that it has read
    bool operator>(const Event& other) const { return at > other.at; }
  };
  Outcome outcome;
  Random random(1);
  const auto uniform = [&] { return (static_cast<double>(random.Next() >> 11) + 0.5) * 0x1.0p-53; };
  const double trip = constants.round_trip_us - constants.lookup_message_us + network_us;
  std::vector<double> free_at(shards, leads_us + 2e5);
  std::vector<double> busy(shards);
  // When the shard is done with it; both ways are half a trip.
  const auto serve = [&](std::size_t shard, double sent, double cost) {
    free_at[shard] = std::max(free_at[shard], sent + trip / 2) + cost;
    busy[shard] += cost;
    return free_at[shard] + trip / 2;
  };
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events;
  const double between = 1e6 * static_cast<double>(batch * requesters) / keys_per_second;
  for (std::size_t i = 0; i < requesters; ++i) {
    events.push({.at = free_at[0] + uniform() * between, .owner = owners + i});
  }
  // Owners come back within a lease's steps (docs/ha.md, "Coming back").
  for (std::size_t i = 0; i < owners; ++i) {
    events.push({.at = free_at[0] + uniform() * 4e5, .owner = i});
  }
  const std::uint64_t pages = (objects + kPage - 1) / kPage;
  std::vector<std::uint64_t> left(owners, pages);
  std::vector<bool> admitted(owners);
  std::size_t telling = 0;
  std::size_t done = 0;
  const std::size_t most = tellers * (one_lost ? 1 : shards);
  double ends = kMostUs;
  while (!events.empty() && events.top().at < ends) {
    const Event event = events.top();
    events.pop();
    if (event.owner >= owners) {
      const double per_shard = static_cast<double>(batch) / static_cast<double>(shards);
      const double cost = constants.lookup_message_us + constants.lookup_key_us * per_shard;
      double answered = 0;  // the last of its parts
      for (std::size_t s = 0; s < shards; ++s) {
        answered = std::max(answered, serve(s, event.at, cost));
      }
      (done < owners ? outcome.during_us : outcome.after_us).push_back(answered - event.at);
      const double next = event.at - between * std::log(uniform());
      events.push({.at = std::max(answered, next), .owner = event.owner});
      continue;
    }
    if (!admitted[event.owner]) {
      if (telling == most) {
        events.push({.at = event.at + kPollUs * (0.5 + uniform()), .owner = event.owner});
        continue;
      }
      admitted[event.owner] = true;
      ++telling;
    }
    if (left[event.owner] == 0 && !event.sends) {
      --telling;
      if (++done == owners) {
        outcome.seconds = event.at / 1e6;
        ends = event.at + kAfterUs;
        std::ranges::fill(busy, 0);
      }
      continue;
    }
    if (!event.sends) {  // it reads and codes the page first
      --left[event.owner];
      events.push({.at = event.at + constants.tell_us * static_cast<double>(kPage),
                   .owner = event.owner,
                   .sends = true});
      continue;
    }
    const double part = static_cast<double>(kPage) / static_cast<double>(shards);
    const double cost = constants.list_us * part + constants.lookup_message_us;
    double answered = 0;
    if (one_lost) {
      answered = serve(0, event.at, cost);
    } else {
      for (std::size_t s = 0; s < shards; ++s) {
        answered = std::max(answered, serve(s, event.at, cost));
      }
    }
    events.push({.at = answered, .owner = event.owner});
  }
  outcome.busiest = std::min(std::ranges::max(busy) / kAfterUs, 1.0);
  outcome.keys_per_second = static_cast<double>(outcome.after_us.size() * batch) * 1e6 / kAfterUs;
  return outcome;
}

}  // namespace

Status BenchShards(const BenchOptions& options) {
  KVCOVE_ASSIGN(Cluster one, Cluster::Start({.owners = 1, .memory = 64 * kMiB}));
  KVCOVE_ASSIGN(
      Cluster two,
      Cluster::Start({.owners = 1, .memory = 64 * kMiB, .masters = 2, .etcd = options.etcd}));
  KVCOVE_TRY(Fill(*one.session, kKeys, 64));
  KVCOVE_TRY(Fill(*two.session, kKeys, 64));
  Asked asked(kKeys);
  bool found = true;
  Row row{.bench = "exists",
          .form = "2 shards",
          .objects = kKeys,
          .object_bytes = 64,
          .batch = kKeys,
          .limit = "one master"};
  Measure(
      options, row, kKeys, [&](std::size_t) { found = asked.AllFound(*two.session) && found; },
      [&](std::size_t) { found = asked.AllFound(*one.session) && found; });
  if (!found) return Fail(Code::kInternal, "a key was not found");
  row.extra = {{"times_of_one", row.p50_us / row.limit_p50_us}};
  Print(options, row);
  return {};
}

Status BenchShardModel(const BenchOptions& options) {
  KVCOVE_ASSIGN(const Constants constants, MeasureConstants(options));
  for (const bool one_lost : {false, true}) {
    for (const std::uint64_t batch : {std::uint64_t{128}, std::uint64_t{512}, kKeys}) {
      const Model model{.constants = constants,
                        .batch = batch,
                        .tellers = master::DirectoryService::Options().tellers,
                        .one_lost = one_lost};
      Model::Outcome outcome = model.Run();
      Row row{.bench = "shard_model",
              .form = one_lost ? "one lost" : "all begin anew",
              .objects = model.objects * model.owners,
              .batch = batch};
      row.extra = {{"constants", constants.Json()},
                   {"shards", model.shards},
                   {"owners", model.owners},
                   {"requesters", model.requesters},
                   {"keys_per_second_wanted", model.keys_per_second},
                   {"keys_per_second", outcome.keys_per_second},
                   {"recovered_s", outcome.seconds},
                   {"lookups_during_p50_ms", Quantile(outcome.during_us, 0.5) / 1e3},
                   {"lookups_during_p99_ms", Quantile(outcome.during_us, 0.99) / 1e3},
                   {"lookups_after_p50_ms", Quantile(outcome.after_us, 0.5) / 1e3},
                   {"lookups_after_p99_ms", Quantile(outcome.after_us, 0.99) / 1e3},
                   {"busiest_shard_after", outcome.busiest}};
      Print(options, row);
    }
  }
  return {};
}

}  // namespace kvcove::lab
