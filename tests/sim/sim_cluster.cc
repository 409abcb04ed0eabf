// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_cluster.h"

#include <fmt/core.h>

#include <algorithm>

namespace kvcove::sim {
namespace {

// Owners at 0 to 2 with a requester each on their host, the master, and a requester elsewhere.
const std::vector<int>& Hosts() {
  static const std::vector<int> hosts = {0, 1, 2, 0, 1, 2, 3, 4};
  return hosts;
}

std::vector<Space> SpacesOf(const ClusterSimOptions& options) {
  std::vector<Space> spaces = {{.tenant = "", .name = "m", .version = "", .family = 0},
                               {.tenant = "", .name = "m", .version = "v2", .family = 0},
                               {.tenant = "", .name = "m", .version = "v3", .family = 0},
                               {.tenant = "blue", .name = "m", .version = "", .family = 1}};
  if (!options.prunes) return spaces;
  // Their names say nothing about their order.
  for (const char* version : {"v1", "w", "v10", "a", "v7", "b"}) {
    spaces.push_back({.tenant = "", .name = "m", .version = version, .family = 0});
  }
  return spaces;
}

Cluster::Kind KindOf(std::uint64_t seed) {
  return {.pressure = seed % 3 == 0,
          .few_slots = seed % 5 == 1,
          .strict = seed % 7 == 2,
          .keeps = seed % 4 == 2};
}

}  // namespace

Cluster::Cluster(const ClusterSimOptions& given)
    : options(given),
      kind(KindOf(given.seed)),
      world(given.seed, Hosts()),
      oracle(world, SpacesOf(given)),
      master(
          world, kMasterPlace, MasterOptionsOf(),
          [this](const std::string& what) { oracle.Fail(what); },
          [this](const master::StoredState& state) { MasterStarted(state); }) {
  oracle.SetSeed(options.seed);
  owners_.resize(kOwners);
  for (int i = 0; i <= kOwners; ++i) {
    const bool local = i < kOwners;
    requesters.push_back(
        std::make_unique<SimRequester>(world, master, oracle, local ? kOwners + i : kElsewhere,
                                       SimRequester::Options{.tenant = i == 1 ? "blue" : "",
                                                             .local = local ? i : -1,
                                                             .owners = kOwners,
                                                             .rules = options.rules},
                                       [this](Place place) { return owner(place); }));
  }
  for (const auto& requester : requesters) world.Born(requester->place());
  master.Start();
  for (Place place = 0; place < kOwners; ++place) StartOwner(place);
  for (const auto& requester : requesters) requester->Start();
}

// Connections end before the master that they lead to.
Cluster::~Cluster() {
  owners_.clear();
  requesters.clear();
}

master::MasterOptions Cluster::MasterOptionsOf() const {
  master::MasterOptions master = options.master;
  master.strict =
      !options.force_lenient && (master.strict || kind.strict || options.stopped_clocks);
  master.member_ttl_ns = 6 * kSecond;
  master.generations.max_slots = kind.few_slots ? 3 : 16;
  master.generations.all_named_ns = 3 * kSecond;
  master.removals.page_bytes = 200;
  master.removals.part_bytes = 120;
  master.table_page_bytes = 100;
  master.inventory_batch = 3;
  return master;
}

void Cluster::MasterStarted(const master::StoredState& state) {
  world.Log(fmt::format("a master starts with term {}, {} members, {} barriers",
                        state.terms.back().term, state.members.size(), state.barriers.size()));
  for (const auto& barrier : state.barriers) barred.insert({barrier.member, barrier.slot});
}

void Cluster::StartOwner(Place place) {
  if (owners_[place] != nullptr) return;
  SimOwner::Options made;
  made.payload_bytes = kind.pressure ? 16 << 10 : 256 << 10;
  made.max_objects = kind.pressure ? 64 : 512;
  made.rules = options.rules;
  made.walks = options.walks;
  made.refused_as_stale = [this](const Token& token) { CheckStale(token); };
  SimRequester& near = *requesters[place];
  world.Born(place);
  owners_[place] = std::make_unique<SimOwner>(world, master, place, made);
  owners_[place]->Start();
  NamePredecessors(place);
  world.In(near.place(), world.random().OneIn(2) ? 0 : world.Some(2 * kSecond),
           [&near] { near.Attach(); });
}

// An owner may hear of a generation late, and may not say then that a reset came after the put.
void Cluster::CheckStale(const Token& token) {
  // Owners that know more than such a master are right.
  if (facts_lost || pool_lost || master.answering() == nullptr) return;
  if (master.answering()->Lookup(token, {})) {
    oracle.Fail(fmt::format("a put under the current generation {:x} of slot {} was called stale",
                            token.generation, token.slot));
  }
}

// What owner::Lineage does: an identity is over when nobody maps its memory any more, and stays
// written down until the master has heard so.
void Cluster::NamePredecessors(Place place) {
  std::vector<Former>& former = former_[place];
  if (former.empty()) return;
  SimOwner& owner = *owners_[place];
  if (owner.predecessor() == Id128{}) {
    std::erase_if(former, [&](const Former& one) { return one.told == owner.identity(); });
    const auto over = std::ranges::find_if(
        former, [&](const Former& one) { return !options.rules.lineage || one.segment.expired(); });
    if (over != former.end()) {
      over->told = owner.identity();
      owner.NamePredecessor(over->identity);
    }
  }
  world.In(place, 100 * kMillisecond, [this, place] { NamePredecessors(place); });
}

void Cluster::KillOwner(Place place) {
  if (owners_[place] == nullptr) return;
  ++report.owner_deaths;
  former_[place].push_back(
      {.identity = owners_[place]->identity(), .segment = owners_[place]->segment(), .told = {}});
  world.Die(place);
  owners_[place].reset();
  // The process that maps it learns of the death; what it reads now goes on.
  SimRequester& near = *requesters[place];
  if (world.random().OneIn(2)) {
    world.In(near.place(), world.Some(100 * kMillisecond), [&near] { near.Detach(); });
  }
}

void Cluster::Keep(const SimRequester::Stored& stored) {
  if (stored.code == Code::kStale) ++report.stale_puts;
  if (stored.code != Code::kOk) return;
  ++report.puts;
  kept.push_back(
      {.serial = stored.serial, .owner = stored.owner, .life = stored.life, .token = stored.token});
}

}  // namespace kvcove::sim
