// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/cluster_simulation.h"

#include <fmt/core.h>
#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <cstdlib>

#include "kvcove/base/log.h"
#include "tests/sim/sim_cluster.h"
#include "tests/sim/sim_end.h"
#include "tests/sim/sim_faults.h"
#include "tests/sim/sim_rollbacks.h"

namespace kvcove::sim {
namespace {

// What requesters do while faults happen.
class Load {
 public:
  explicit Load(Cluster& cluster) : cluster_(cluster), world_(cluster.world) {}
  void Start() {
    began_ns_ = world_.NowNs();
    Act();
  }
  void Stop() { stopped_ = true; }

 private:
  Random& random() { return world_.random(); }
  std::string RandomKey() { return fmt::format("key-{}", random().Below(Cluster::kKeys)); }

  void Act() {
    if (stopped_) return;
    world_.After(world_.Some(3 * kMillisecond), [this] { Act(); });
    if (!world_.MayAwait()) return;
    const std::size_t which = random().Below(cluster_.requesters.size());
    SimRequester& requester = *cluster_.requesters[which];
    std::vector<int> spaces;
    const auto& all = cluster_.oracle.spaces();
    for (int i = 0; i < static_cast<int>(all.size()); ++i) {
      if (all[i].tenant == requester.tenant()) spaces.push_back(i);
    }
    if (cluster_.options.prunes) {
      const auto came_up = static_cast<std::size_t>((world_.NowNs() - began_ns_) / (3 * kSecond));
      spaces.resize(std::min(spaces.size(), 2 + came_up));
    }
    const bool first = !cluster_.options.prunes && random().OneIn(2);
    const int space = spaces[random().Below(first ? 1 : spaces.size())];
    const std::uint64_t dice = random().Below(1000);
    world_.In(requester.place(), 0,
              [this, &requester, space, dice] { Do(requester, space, dice); });
  }

  void Do(SimRequester& requester, int space, std::uint64_t dice) {
    const int family = cluster_.oracle.spaces()[space].family;
    if (cluster_.options.prunes && random().OneIn(500)) return Prune(requester, space);
    if (cluster_.kind.keeps && dice < 20) dice = 100;
    if (dice < 1) return Reset(requester, space);
    // A barrier that has just proven a removal may be known to no owner yet.
    if (dice < 8 && cluster_.options.rolls_back) return;
    if (dice < 8) return Remove(requester, space);
    if (dice < 10) return requester.EndEngine(family);
    if (dice < 13) return NameVersions(requester, space);
    if (dice < 20) {
      return requester.Pin(space, RandomKey(),
                           random().OneIn(3) ? wire::PinKind::kHard : wire::PinKind::kSoft);
    }
    if (dice < 40) return Copy();
    if (dice < 150) return Put(requester, space);
    if (dice < 650) {
      return requester.GetLocal(space, RandomKey(), [](Oracle::Serial) {});
    }
    requester.GetRemote(space, RandomKey(), [](Oracle::Serial) {});
  }

  void Put(SimRequester& requester, int space) {
    const std::size_t words = 1 + random().Below(random().OneIn(4) ? 250 : 30);
    const auto owner = static_cast<Place>(random().Below(Cluster::kOwners));
    const std::int64_t delay = random().OneIn(5) ? world_.Some(3 * kSecond) : 0;
    requester.Put(space, RandomKey(), words, owner, delay,
                  [this](const SimRequester::Stored& stored) { cluster_.Keep(stored); });
  }

  void Remove(SimRequester& requester, int space) {
    std::vector<std::string> keys;
    std::string prefix;
    if (random().OneIn(4)) {
      prefix = random().OneIn(2) ? "key-1" : "key-";
    } else {
      const std::uint64_t count = random().OneIn(3) ? 6 : 1;
      for (std::uint64_t i = 0; i < count; ++i) keys.push_back(RandomKey());
    }
    const auto removal = cluster_.oracle.CallRemoval(space, [keys, prefix](const std::string& key) {
      return keys.empty() ? key.starts_with(prefix) : std::ranges::find(keys, key) != keys.end();
    });
    world_.Log(fmt::format("remove from space {}: {} {}: dooms {}", space, fmt::join(keys, " "),
                           prefix, fmt::join(removal.doomed, " ")));
    requester.Remove(space, keys, prefix, [this, removal, space](bool proven) {
      world_.Log(fmt::format("removal from space {} of {}: {}", space,
                             fmt::join(removal.doomed, " "), proven));
      if (!proven) return;
      ++cluster_.report.removals_proven;
      cluster_.oracle.ProvenRemoval(removal);
    });
  }

  void Reset(SimRequester& requester, int space) {
    const Space& of = cluster_.oracle.spaces()[space];
    const bool one = !of.version.empty() && random().OneIn(2);
    const std::optional<int> only = one ? std::optional(space) : std::nullopt;
    const Oracle::Reset reset = cluster_.oracle.CallReset(of.family, only);
    world_.Log(fmt::format("reset of space {}", space));
    requester.Reset(of.family, only, !one && random().OneIn(2), [this, reset, space](bool proven) {
      world_.Log(fmt::format("reset of space {}: {}", space, proven));
      if (!proven) return;
      ++cluster_.report.resets_proven;
      cluster_.oracle.ProvenReset(reset);
    });
  }

  void Prune(SimRequester& requester, int space) {
    const Space& of = cluster_.oracle.spaces()[space];
    if (of.version.empty()) return;
    const Oracle::Prune prune = cluster_.oracle.CallPrune(space);
    world_.Log(fmt::format("prune before {}: kills {}", of.version, fmt::join(prune.dies, " ")));
    requester.Prune(space, [this, prune, &of](bool proven) {
      world_.Log(fmt::format("prune before {}: {}", of.version, proven));
      if (!proven) return;
      ++cluster_.report.prunes_proven;
      cluster_.oracle.ProvenPrune(prune);
    });
  }

  void NameVersions(SimRequester& requester, int space) {
    const Space& of = cluster_.oracle.spaces()[space];
    std::vector<std::string> versions;
    for (const Space& other : cluster_.oracle.spaces()) {
      if (other.family == of.family && random().OneIn(2)) versions.push_back(other.version);
    }
    requester.NameVersions(of.family, versions);
  }

  // An owner sends one of its objects to another one, which holds it as well, or instead.
  void Copy() {
    const auto from = static_cast<Place>(random().Below(Cluster::kOwners));
    const Place to =
        static_cast<Place>((from + 1 + random().Below(Cluster::kOwners - 1)) % Cluster::kOwners);
    const bool move = random().OneIn(2);
    const auto cursor = static_cast<std::uint32_t>(random().Below(64));
    if (cluster_.owner(from) == nullptr) return;
    world_.In(from, 0, [this, from, to, move, cursor] { CopyFrom(from, to, move, cursor); });
  }

  void CopyFrom(Place from, Place to, bool move, std::uint32_t cursor) {
    SimOwner& owner = *cluster_.owner(from);
    const std::uint64_t copied_at = owner.core().applied();
    if (copied_at == 0) return;  // it has heard nothing of this master yet
    const auto page = owner.core().Page({.cursor = cursor, .at_most = 1, .slot = {}, .prefix = {}});
    if (page.objects.empty()) return;
    const wire::HeldObject object = page.objects[0];
    const auto copy = owner.core().LendForCopy(object.id, object.version);
    if (!copy) return;
    const auto words =
        SimRequester::WordsOf(*owner.segment(), copy->loan.extents, copy->loan.size_bytes);
    owner.core().Return({&copy->loan, 1});
    const wire::DataPut put{.token = copy->token,
                            .items = {{.key = copy->key,
                                       .after = {},
                                       .size_bytes = copy->loan.size_bytes,
                                       .group = copy->group}},
                            .no_checksum = true,
                            .budget_ms = 1000,
                            .no_evict = true,
                            .copied_at = copied_at};
    SimMessage request{.method = wire::Method::kDataPut, .head = wire::Encode(put), .payload = {}};
    request.payload.assign(reinterpret_cast<const char*>(words.data()), words.size() * 8);
    const std::uint64_t life = world_.life(to);
    const std::uint64_t from_life = world_.life(from);
    const auto done = [this, from, from_life, to, move, object, key = copy->key, life,
                       token = copy->token, serial = words[0]](const Result<SimMessage>& reply) {
      Code code = Code::kUnavailable;
      if (reply) code = wire::DecodeCodes(std::as_bytes(std::span(reply->head)), 1)->front();
      cluster_.Keep({.serial = serial, .code = code, .owner = to, .life = life, .token = token});
      if (code == Code::kOk) ++cluster_.report.copies;
      if (!move || (code != Code::kOk && code != Code::kExists)) return;
      world_.Send(to, from, [this, from, from_life, object, key] {
        // What waits for the answer ends with its process; in another one the numbers are others'.
        if (world_.life(from) != from_life) return;
        cluster_.Moved(from, key);
        cluster_.owner(from)->core().DropObject(object.id, object.version);
      });
    };
    world_.Send(from, to, [this, to, request = std::move(request), done] {
      cluster_.owner(to)->server().Serve({.scopes = rpc::kAllScopes}, request, [] {}, done);
    });
  }

  Cluster& cluster_;
  World& world_;
  std::int64_t began_ns_ = 0;
  bool stopped_ = false;
};

}  // namespace

ClusterSimReport SimulateCluster(const ClusterSimOptions& options) {
  // Memory that comes and goes in large pieces is kept: the kernel would clear it each time.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  SetLogLevel(std::getenv("KVCOVE_SIM_LOG") != nullptr ? LogLevel::kInfo : LogLevel::kOff);
  // Not the numbers that the world draws: two owners would get one identity.
  const SeededRandomness identities(Mix64(~options.seed));
  Cluster cluster(options);
  Load load(cluster);
  Faults faults(cluster);
  Rollbacks rollbacks(cluster);
  load.Start();
  if (options.rolls_back) {
    rollbacks.Start();
  } else {
    faults.Start();
  }
  const std::int64_t end_ns = cluster.world.NowNs() + options.seconds * kSecond;
  cluster.world.RunUntil(end_ns);
  if (options.check_availability && !cluster.world.ended()) {
    load.Stop();
    rollbacks.End();
    faults.End();
    cluster.world.RunUntil(cluster.world.QuietFromNs() + options.quiet_seconds * kSecond);
    if (!cluster.world.ended()) CheckEnd(cluster);
  }
  cluster.report.verified_reads = cluster.oracle.verified();
  cluster.report.events = cluster.world.events_run();
  cluster.report.violation = cluster.oracle.violation();
  return cluster.report;
}

}  // namespace kvcove::sim
